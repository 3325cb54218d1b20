package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/secure"
)

// roleShown says whether the role of an admin port is ready.
type roleShown struct {
	Admin string `json:"admin"` // host:port
	Ready bool   `json:"ready"`
	Why   string `json:"why,omitempty"` // why it is not ready, or a note of a role that is

	unresponsive bool // nobody answers there
}

// unwell is the error of an admin port that answered, but not with status 200: what it
// said.
type unwell struct{ says string }

func (u unwell) Error() string { return u.says }

// askRoles asks admin ports, all at once: one that is unresponsive takes no time from the
// others.
func askRoles(ctx context.Context, ports []string) []roleShown {
	all := make([]roleShown, len(ports))
	var asked sync.WaitGroup
	for i, addr := range ports {
		asked.Go(func() {
			note, err := readyAt(ctx, addr)
			_, answers := errors.AsType[unwell](err)
			if err != nil && !answers {
				err = command.Told(err) // what went wrong with the connection to it
			}
			all[i] = roleShown{addr, err == nil, cmp.Or(note, display.FaultText(err)), err != nil && !answers}
		})
	}
	asked.Wait()
	return all
}

// unready returns which roles are not ready, and why, or nil.
func unready(all []roleShown) error {
	var faults []string
	for _, r := range all {
		if !r.Ready {
			faults = append(faults, fmt.Sprintf("%s: %s", r.Admin, r.Why))
		}
	}
	if len(faults) > 0 {
		return others{strings.Join(faults, "\n")}
	}
	return nil
}

// others is what is wrong with several roles, in their own words. The type keeps such an
// error from [command.Told]: a role that names its certificates or its etcd says nothing
// about the connections of doctor.
type others struct{ text string }

func (o others) Error() string { return o.text }

// rolesReady fails for roles that are not ready. Just after etcd was restored it waits for
// them, since they first have to take over the restored state.
func (d *doctor) rolesReady(ctx context.Context) (string, error) {
	for {
		says, all := d.readyNow(ctx)
		err := unready(all)
		if err != nil && !slices.ContainsFunc(all, func(r roleShown) bool { return !r.Ready && !unassigned(r) }) {
			return says, finding(d.hostWayOut(), "%v", err)
		}
		unresponsive := slices.ContainsFunc(all, func(r roleShown) bool { return r.unresponsive })
		if err == nil || unresponsive {
			return says, err
		}
		ago, known := d.sinceRestored(ctx)
		if !known || ago >= 2*d.patience {
			return says, err
		}
		if ago >= d.patience {
			return says, fmt.Errorf("%w\netcd was restored %s ago: what still takes that over may be ready in a minute", err, ago.Round(time.Second))
		}
		select {
		case <-ctx.Done():
			return says, err
		case <-time.After(time.Second):
		}
	}
}

// sinceRestored returns how long ago somebody restored what etcd had lost. known is false
// if nobody did, or etcd cannot be read.
func (d *doctor) sinceRestored(ctx context.Context) (ago time.Duration, known bool) {
	cl, err := d.OpenReadOnly(ctx)
	if err != nil {
		return 0, false
	}
	defer cl.Close()
	at, err := cl.LastRestored(ctx)
	return time.Since(at), err == nil && !at.IsZero()
}

// readyNow asks the roles once. It leaves out nodes that host nothing because they were
// drained, and takes other nodes that host nothing for not ready.
func (d *doctor) readyNow(ctx context.Context) (string, []roleShown) {
	all := askRoles(ctx, d.ports)
	says := strings.Join(d.ports, ", ")
	if slices.ContainsFunc(all, unassigned) {
		drained, err := d.drained(ctx)
		if err == nil && len(drained) > 0 {
			all = excused(all, len(drained))
			says += fmt.Sprintf("; drained, and well though they host nothing: %q", drained)
		}
		for i := range all { // such a node says that it is ready, and is of no use to the cluster
			all[i].Ready = all[i].Ready && !unassigned(all[i])
		}
	}
	return says, all
}

// unassigned reports whether a node says that it hosts nothing. A node of this version is
// ready then; one of an earlier version is not.
func unassigned(r roleShown) bool { return r.Why == indexnode.ErrUnassigned.Error() }

// hostWayOut returns the way out for nodes that host nothing.
func (d *doctor) hostWayOut() string {
	if d.unassigned {
		return "see to the assignment first, above"
	}
	return "have it host its share by millrace node add NODE --apply (docs/resizing.md), or stop it"
}

// excused returns all without the first roles that host nothing, one for each of the
// drained nodes: an admin port does not say which node it is of. It reuses all's memory.
func excused(all []roleShown, drained int) []roleShown {
	return slices.DeleteFunc(all, func(r roleShown) bool {
		if !unassigned(r) || drained == 0 {
			return false
		}
		drained--
		return true
	})
}

// drained returns the nodes that are alive, were drained, and host nothing any more, sorted.
func (d *doctor) drained(ctx context.Context) (ids []millrace.NodeID, err error) {
	cl, err := d.OpenReadOnly(ctx)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	s, _, err := coordinator.Look(ctx, cl)
	if err != nil {
		return nil, err
	}
	hosts := s.Assignment.Nodes()
	for id, m := range s.Intent.Nodes {
		if m.Draining && s.Map.Alive(id) && !slices.Contains(hosts, id) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// rolesHear fails for roles that go by what they last heard of etcd, if that lasts for
// d.patience. It warns of roles that could not keep on disk what they go by.
func (d *doctor) rolesHear(ctx context.Context) (string, error) {
	for began := time.Now(); ; {
		faults, warned := d.heardBy(ctx)
		switch {
		case faults != "" && time.Since(began) < d.patience: // as after a restoration
			select {
			case <-ctx.Done():
				return "", ctx.Err()
			case <-time.After(time.Second):
			}
		case faults != "":
			return "", others{strings.TrimSpace(faults + "\n" + warned)}
		case warned != "":
			return "", warning{warned}
		default:
			return strings.Join(d.ports, ", "), nil
		}
	}
}

// heardBy asks all roles at once for their metrics. It returns a line for each role that has
// a fault, and one for each that has a warning.
func (d *doctor) heardBy(ctx context.Context) (faulty, warned string) {
	faults, warnings := make([]string, len(d.ports)), make([]string, len(d.ports))
	var asked sync.WaitGroup
	for i, addr := range d.ports {
		asked.Go(func() {
			metrics, err := askAdmin(ctx, addr, "/metrics", 16<<20)
			if err != nil {
				warnings[i] = unknown(addr, err)
				return
			}
			faults[i], warnings[i] = hears(addr, metrics, time.Now())
		})
	}
	asked.Wait()
	said := func(all []string) string {
		return strings.Join(slices.DeleteFunc(all, func(s string) bool { return s == "" }), "\n")
	}
	return said(faults), said(warnings)
}

// unknown is the warning for a role whose metrics cannot be read.
func unknown(addr string, err error) string {
	return fmt.Sprintf("%s: its metrics cannot be read, and what it goes by is not known: %s", addr, display.FaultText(err))
}

// hears reads a role's metrics. fault says what the role has not heard of etcd, and warning
// what it could not keep on disk; each is empty if there is nothing to say.
func hears(addr, metrics string, now time.Time) (fault, warning string) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(metrics))
	if err != nil {
		return "", unknown(addr, err)
	}
	most := func(name string) (seconds float64, of []string) {
		for _, m := range families[name].GetMetric() {
			if x := m.GetGauge().GetValue() + m.GetUntyped().GetValue(); x > 0 {
				seconds = max(seconds, x)
				for _, l := range m.GetLabel() {
					of = append(of, l.GetValue())
				}
			}
		}
		return seconds, of
	}
	longest, of := most("millrace_cluster_fault_seconds")
	oldest, _ := most("millrace_cluster_from_disk_seconds")
	unwritten, _ := most("millrace_cluster_unwritten_seconds")
	ago := func(seconds float64) string {
		d := time.Duration(seconds * float64(time.Second))
		return fmt.Sprintf("%s (%s ago)", now.Add(-d).UTC().Format(time.RFC3339), d.Round(time.Second))
	}
	if longest > 0 {
		slices.Sort(of)
		fault = fmt.Sprintf("%s: goes since %s by the last good state of %s: it has not heard of etcd since, or cannot take over what etcd holds", addr, ago(longest), strings.Join(of, ", "))
		if oldest > 0 {
			fault += "; that is what its disk had as it started, some of it written " + ago(oldest)
		}
	}
	if unwritten > 0 {
		warning = fmt.Sprintf("%s: cannot write to its data directory what it goes by since %s: if it starts anew while etcd is away it goes by older feeds, experiments or models; make space", addr, ago(unwritten))
	}
	return fault, warning
}

// readyAt returns as err why the role of an admin port is not ready. note is what a role
// that is ready says beside "ok".
func readyAt(ctx context.Context, addr string) (note string, err error) {
	said, err := askAdmin(ctx, addr, "/readyz", 64<<10)
	if note = strings.TrimSpace(said); err != nil || note == "ok" {
		note = ""
	}
	return note, err
}

// askAdmin returns the first bytes, up to most, of what an admin port says at a path.
// An answer with another status than 200 is an error of type unwell, beside the text. It
// follows no redirection: the role at addr has to answer itself.
func askAdmin(ctx context.Context, addr, path string, most int64) (string, error) {
	s, scheme := reach.Of(ctx), "http"
	t := &http.Transport{DialContext: s.Plain().Dial}
	defer t.CloseIdleConnections()
	if s.TLS.On() {
		files, err := secure.Open(s.TLS, "tls", slog.Default())
		if err != nil {
			return "", err
		}
		t.DialTLSContext, scheme = files.Dial, "https"
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+addr+path, nil)
	if err != nil {
		return "", err
	}
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := (&http.Client{Transport: t, CheckRedirect: stay}).Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if to := resp.Header.Get("Location"); to != "" {
		return "", fmt.Errorf("it answers with a redirection to %.200q, which no admin port does", to)
	}
	said, err := io.ReadAll(io.LimitReader(resp.Body, most))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = unwell{strings.TrimSpace(string(said))}
	}
	return string(said), err
}
