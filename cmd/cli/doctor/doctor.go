// Package doctor checks a cluster from end to end, and says whether roles are ready.
package doctor

import (
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
	"github.com/spf13/cobra"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/cmd/cli/trials"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/cmd/cli/rollouts"
	"github.com/millrace/millrace/cmd/cli/topics"
	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/dial"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/progress"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/internal/secure"
)

// doctor is what the checks look at.
type doctor struct {
	clusters.Flags
	brokers     []string // of Kafka
	topicPrefix string
	grpc        string
	ports       []string      // of admin
	exposed     []string      // secrets of its own
	patience    time.Duration // with roles that may only just hear of a restoration

	kafkaAway, logMissing, logGone, etcdAway, etcdFull, etcdDoubted, unassigned bool // as the checks found
}

// Command checks a cluster from end to end.
func Command() *cobra.Command {
	d := doctor{patience: cluster.LookTime}
	c := display.Looking(&cobra.Command{
		Use:   "doctor",
		Short: "Check a cluster from end to end, and say how to mend what is wrong",
		Args:  cobra.NoArgs,
	}, func(c *cobra.Command, output *display.Form, _ []string) error {
		return d.run(c.Context(), c.OutOrStdout(), output)
	})
	f := c.Flags()
	f.StringSliceVar(&d.brokers, "brokers", []string{"127.0.0.1:9092"}, "Kafka, host:port each")
	f.StringSliceVar(&d.Etcd, "etcd", []string{"127.0.0.1:2379"}, "etcd, host:port each")
	f.StringVar(&d.Cluster, "cluster", "millrace", "the cluster's name in etcd")
	f.StringVar(&d.topicPrefix, "topic-prefix", "", "before Millrace's own topics")
	f.StringVar(&d.grpc, "grpc", "127.0.0.1:9090", "the broker's gRPC address")
	f.StringSliceVar(&d.ports, "admin", nil, "admin ports of roles that should be ready, host:port each")
	return c
}

// checkTimeout bounds each check.
const checkTimeout = 5 * time.Second

// check is one thing that doctor looks at.
type check struct {
	name   string
	do     func(context.Context) (string, error)
	wayOut string // unless the error has one
	// rests reports whether what the check rests on was found well, or nothing
	// that it says is of its own; nil: on nothing. Advice on what only follows
	// from something else leads astray.
	rests    func() bool
	patience time.Duration // beyond the time of a check
}

func (d *doctor) checks() []check {
	kafkaUp := func() bool { return !d.kafkaAway }
	etcdUp := func() bool { return !d.etcdAway }
	believed := func() bool { return !d.etcdAway && !d.etcdDoubted }
	assigned := func() bool { return !d.etcdAway && !d.unassigned }
	checks := []check{
		{"Kafka answers", d.kafkaAnswers, "start Kafka, or name it with --brokers", nil, 0},
		{"its topics fit", d.topicsFit, "start any role once: it creates them; a topic with another partition count must be deleted or another --topic-prefix used", kafkaUp, 0},
		{"the log is whole", d.logWhole, "look at Kafka's log", func() bool { return !d.kafkaAway && !d.logMissing }, 0},
		{"partitioners keep up", d.partitionersKeepUp, "look at the partitioner's log and its /readyz", func() bool { return !d.kafkaAway && !d.logGone }, 0},
		{"etcd answers", d.etcdAnswers, "start etcd, or name it with --etcd and --cluster", nil, 0},
		{"partitions are assigned", d.assigned, clusters.AssignWayOut, etcdUp, 0},
		{"index nodes are ready", d.nodesReady, "start the nodes that are gone; of the others look at the log and /readyz", assigned, 0},
		{"models do not fail", d.modelsGood, "", believed, 0},
		{"feeds are whole", d.feedsWhole, "", believed, 0},
		{"experiments are whole", d.experimentsWhole, "", believed, 0},
		{"a coordinator leads", d.coordinatorLeads, "", etcdUp, 0},
		{"brokers hear of changes", d.brokersHear, "mend the way from there to etcd, or what its log says that it cannot take over (experiment list, feed list, model list), or stop the broker", believed, d.patience},
		{"a broker answers", d.brokerAnswers, "start a broker, or name it with --grpc; of one that runs, look at its log and /readyz", nil, 0},
	}
	if len(d.exposed) > 0 {
		checks = append(checks, check{"secrets are private", d.secretsPrivate, "", nil, 0})
	}
	if len(d.ports) > 0 {
		checks = append(checks, check{"roles are ready", d.rolesReady, "start the role, or mend what its /readyz says", nil, d.patience},
			check{"roles hear etcd", d.rolesHear, "mend the way from there to etcd, or stop the role: a broker goes on with variants that were paused since and models that were rolled back; its log says why", believed, d.patience})
	}
	return checks
}

// roleShown is whether the role of an admin port is ready.
type roleShown struct {
	Admin string `json:"admin"`
	Ready bool   `json:"ready"`
	Why   string `json:"why,omitempty"` // it is not

	mute bool // nobody answers there
}

// unwell is what a role says by which it is not ready.
type unwell struct{ says string }

func (u unwell) Error() string { return u.says }

// askRoles asks admin ports, all at once: one that is mute takes no time from the
// others.
func askRoles(ctx context.Context, ports []string) []roleShown {
	all := make([]roleShown, len(ports))
	var asked sync.WaitGroup
	for i, addr := range ports {
		asked.Go(func() {
			err := readyAt(ctx, addr)
			_, answers := errors.AsType[unwell](err)
			all[i] = roleShown{addr, err == nil, display.FaultText(err), err != nil && !answers}
		})
	}
	asked.Wait()
	return all
}

func unready(all []roleShown) error {
	var faults []string
	for _, r := range all {
		if !r.Ready {
			faults = append(faults, fmt.Sprintf("%s: %s", r.Admin, r.Why))
		}
	}
	if len(faults) > 0 {
		return errors.New(strings.Join(faults, "\n"))
	}
	return nil
}

// rolesReady waits for roles that are not ready just after etcd was restored, as all
// that have to take that over.
func (d *doctor) rolesReady(ctx context.Context) (string, error) {
	for {
		says, all := d.readyNow(ctx)
		err := unready(all)
		mute := slices.ContainsFunc(all, func(r roleShown) bool { return r.mute })
		if err == nil || mute {
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

// sinceRestored is how long ago somebody restored what etcd had lost, if that is known.
func (d *doctor) sinceRestored(ctx context.Context) (ago time.Duration, known bool) {
	cl, err := d.OpenReadOnly(ctx)
	if err != nil {
		return 0, false
	}
	defer cl.Close()
	at, err := cl.LastRestored(ctx)
	return time.Since(at), err == nil && !at.IsZero()
}

// readyNow asks the roles once, and leaves out those that are well though they host
// nothing.
func (d *doctor) readyNow(ctx context.Context) (string, []roleShown) {
	all := askRoles(ctx, d.ports)
	says := strings.Join(d.ports, ", ")
	if slices.ContainsFunc(all, unassigned) {
		drained, err := d.drained(ctx)
		if err == nil && len(drained) > 0 {
			all = excused(all, len(drained))
			says += fmt.Sprintf("; drained, and well though they host nothing: %q", drained)
		}
	}
	return says, all
}

func unassigned(r roleShown) bool { return !r.Ready && r.Why == indexnode.ErrUnassigned.Error() }

// excused leaves out as many roles that host nothing as nodes were drained.
func excused(all []roleShown, drained int) []roleShown {
	return slices.DeleteFunc(all, func(r roleShown) bool {
		if !unassigned(r) || drained == 0 {
			return false
		}
		drained--
		return true
	})
}

// drained returns the nodes that are there, were drained, and host nothing any more.
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

// rolesHear tells of roles that go by what they last heard of etcd, and warns of those
// that could not keep on disk what they go by.
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
			return "", errors.New(strings.TrimSpace(faults + "\n" + warned))
		case warned != "":
			return "", warning{warned}
		default:
			return strings.Join(d.ports, ", "), nil
		}
	}
}

// heardBy asks the roles, all at once.
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

func unknown(addr string, err error) string {
	return fmt.Sprintf("%s: its metrics cannot be read, and what it goes by is not known: %s", addr, display.FaultText(err))
}

// hears says by a role's metrics what it has not heard of etcd, and what it could not
// keep.
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

// readyAt returns why the role of an admin port is not ready.
func readyAt(ctx context.Context, addr string) error {
	_, err := askAdmin(ctx, addr, "/readyz", 64<<10)
	return err
}

// askAdmin returns what an admin port says at a path, or as an error why it does not.
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
	resp, err := (&http.Client{Transport: t}).Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(io.LimitReader(resp.Body, most))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = unwell{strings.TrimSpace(string(said))}
	}
	return string(said), err
}

// warning is what is not wrong, and will be if nobody looks after it.
type warning struct{ text string }

func (w warning) Error() string { return w.text }

// checkShown is what a check found.
type checkShown struct {
	Check  string `json:"check"`
	Result string `json:"result"` // ok, warn, fail or unknown
	Detail string `json:"detail"`
	WayOut string `json:"way_out,omitempty"`
}

func (d *doctor) look(ctx context.Context, c check) checkShown {
	if c.rests != nil && !c.rests() {
		return checkShown{c.name, "unknown", "cannot be told before what is wrong above is mended", ""}
	}
	limited, cancel := context.WithTimeout(ctx, checkTimeout+c.patience)
	note, err := c.do(limited)
	cancel()
	if err == nil {
		return checkShown{c.name, "ok", note, ""}
	}
	if warns, ok := errors.AsType[warning](err); ok {
		return checkShown{c.name, "warn", warns.text, ""}
	}
	err = command.Told(err)
	what, wayOut := err.Error(), c.wayOut
	if e := (*millrace.Error)(nil); errors.As(err, &e) && e.WayOut != "" {
		what, wayOut = e.Detail, e.WayOut
		if e.Reason == millrace.ReasonForbidden {
			what = e.Field + ": " + what
		}
	}
	return checkShown{c.name, "fail", what, wayOut}
}

func (c checkShown) write(w io.Writer) {
	const indent = "\n                               "
	result := map[string]string{"ok": "ok", "warn": "warn", "fail": "FAIL", "unknown": "-"}[c.Result]
	fmt.Fprintf(w, "%-5s %-24s %s\n", result, c.Check, strings.ReplaceAll(c.Detail, "\n", indent))
	if c.WayOut != "" {
		fmt.Fprintf(w, "      %-24s way out: %s\n", "", c.WayOut)
	}
}

// run makes the checks. As text, each is told when it is made: some take seconds.
func (d *doctor) run(ctx context.Context, w io.Writer, output *display.Form) error {
	d.exposed = reach.Exposed(ctx)
	all, failed := []checkShown{}, 0
	for _, check := range d.checks() {
		found := d.look(ctx, check)
		if all = append(all, found); found.Result == "fail" {
			failed++
		}
		if !output.JSON() {
			found.write(w)
		}
	}
	if output.JSON() {
		if err := display.WriteJSON(w, all); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d checks failed", failed)
	}
	return nil
}

// secretsPrivate warns of files by which doctor itself reaches the cluster.
func (d *doctor) secretsPrivate(context.Context) (string, error) {
	return "", warning{strings.Join(d.exposed, "\n")}
}

// finding is what is wrong, with a way out of its own.
func finding(wayOut, what string, args ...any) error {
	return &millrace.Error{Reason: millrace.ReasonUnavailable, Detail: fmt.Sprintf(what, args...), WayOut: wayOut}
}

func (d *doctor) kafkaAnswers(ctx context.Context) (string, error) {
	err := kafka.WaitReady(ctx, reach.Kafka(ctx, d.brokers))
	d.kafkaAway = err != nil
	return fmt.Sprint(d.brokers), err
}

// logWhole warns of topics that no longer have their beginning: what is gone of
// them is only in the replicas that are there.
func (d *doctor) logWhole(ctx context.Context) (string, error) {
	look, err := kafka.NewInspector(reach.Kafka(ctx, d.brokers))
	if err != nil {
		return "", err
	}
	defer look.Close()
	var begins []string
	for _, topic := range kafka.Prefixed(d.topicPrefix).Logs() {
		starts, err := look.Starts(ctx, topic)
		if err != nil {
			return "", err
		}
		trimmed, gone := 0, int64(0)
		for _, start := range starts {
			if gone += int64(start); start > 0 {
				trimmed++
			}
		}
		if trimmed > 0 {
			begins = append(begins, fmt.Sprintf("%s has lost its beginning in %d of %d partitions, %d records at most", topic, trimmed, len(starts), gone))
		}
	}
	if len(begins) > 0 {
		return "", warning{strings.Join(begins, "\n") + "\na replica that is lost cannot be made whole again from the log: keep the index nodes' disks, and retention off"}
	}
	return "from its beginning", nil
}

func (d *doctor) topicsFit(ctx context.Context) (string, error) {
	topics := kafka.Prefixed(d.topicPrefix)
	log, err := kafka.InspectTopics(ctx, reach.Kafka(ctx, d.brokers), topics)
	if err != nil {
		return "", err
	}
	for _, t := range []struct {
		kafka.LogTopic
		count int
	}{{log.Timeline, partition.Count}, {log.Features, partition.Count}, {log.Schemas, 1}, {log.DeadLetters, 1}} {
		if t.Partitions == 0 {
			d.logMissing = true
			return "", d.missing(ctx, t.Name, slices.Contains(topics.Logs(), t.Name))
		}
		if t.Partitions != t.count {
			return "", fmt.Errorf("topic %s has %d partitions, not %d", t.Name, t.Partitions, t.count)
		}
	}
	if deletes := log.Deletes(); len(deletes) > 0 {
		return "", finding("set cleanup.policy=delete, retention.ms=-1 and retention.bytes=-1 on them: a node without its disk is rebuilt from them", "%s", strings.Join(deletes, "\n"))
	}
	if t := log.Schemas; t.CleanupPolicy != "compact" {
		return "", finding("set cleanup.policy=compact on it: records of a schema that is deleted cannot be read", "topic %s has cleanup.policy=%s", t.Name, t.CleanupPolicy)
	}
	dead, err := d.records(ctx, topics.DeadLetters)
	return fmt.Sprintf("%d partitions; %d dead letters", partition.Count, dead), err
}

// missing says that a topic is not there. A log that nodes have read is not to be
// made anew by whoever starts first: all that the nodes hold would be of another.
func (d *doctor) missing(ctx context.Context, topic string, isLog bool) error {
	if !isLog {
		return fmt.Errorf("topic %s does not exist", topic)
	}
	l, err := d.Look(ctx)
	if d.logGone = err != nil || l.Read(); !d.logGone {
		return fmt.Errorf("topic %s does not exist", topic)
	}
	const nothing = "start nothing and restart nothing, which would make it anew, and empty"
	if err != nil {
		return finding(nothing+"; bring etcd back first, which tells whether nodes have read it", "topic %s does not exist; whether it did cannot be told while etcd does not answer", topic)
	}
	return finding(nothing+`: every partition would be quarantined (other_log). Nodes that run answer from what they hold: see "The log is gone" in docs/backup.md`, "topic %s is gone, which index nodes have read", topic)
}

// records returns how many offsets of a topic have been used.
func (d *doctor) records(ctx context.Context, topic string) (sum int64, err error) {
	look, err := kafka.NewInspector(reach.Kafka(ctx, d.brokers))
	if err != nil {
		return 0, err
	}
	defer look.Close()
	ends, err := look.Ends(ctx, topic)
	for _, end := range ends {
		sum += int64(end)
	}
	return sum, err
}

var errNoPartitioner = finding("start one: millrace partitioner --config FILE", "no partitioner has ever said that it works")

func (d *doctor) partitionersKeepUp(ctx context.Context) (string, error) {
	topics := kafka.Prefixed(d.topicPrefix)
	look, err := kafka.InspectTopics(ctx, reach.Kafka(ctx, d.brokers), topics)
	if err != nil {
		return "", err
	}
	if look.Progress.Partitions == 0 {
		return "", errNoPartitioner
	}
	log, err := progress.Open(progress.Config{Brokers: reach.Kafka(ctx, d.brokers), Topic: topics.Progress})
	if err != nil {
		return "", err
	}
	defer log.Close()
	if err := log.Refresh(ctx); err != nil {
		return "", err
	}
	groups := log.Groups()
	if len(groups) == 0 {
		return "", errNoPartitioner
	}
	var faults []string
	for _, g := range groups {
		faults = append(faults, groupFaults(g, time.Now())...)
	}
	return fmt.Sprintf("%d groups", len(groups)), behind(faults)
}

// behind is the faults of groups, with a way out where nothing but a topic lacks.
func behind(faults []string) error {
	says := strings.Join(faults, "\n")
	switch {
	case len(faults) == 0:
		return nil
	case slices.ContainsFunc(faults, func(f string) bool { return !strings.HasSuffix(f, noTopic) }):
		return errors.New(says)
	}
	return finding("create it with Kafka's tools, with as many partitions as you want, or take it out of content and features in the partitioner's configuration", "%s", says)
}

const noTopic = " does not exist"

// groupFaults says what is wrong with a group of partitioners.
func groupFaults(g progress.Progress, now time.Time) (faults []string) {
	if silent := topics.Silence(g, now); silent != "" {
		return []string{silent}
	}
	if behind := now.Sub(g.Through()); behind > topics.HeartbeatLimit {
		faults = append(faults, fmt.Sprintf("group %s is %s behind its topics", g.Group, behind.Round(time.Second)))
	}
	if g.OtherLog != "" {
		faults = append(faults, g.OtherLog)
	}
	for _, t := range g.Missing {
		faults = append(faults, fmt.Sprintf("group %s: topic %s", g.Group, t)+noTopic)
	}
	for _, s := range g.Stuck {
		faults = append(faults, fmt.Sprintf("group %s: %s", g.Group, s))
	}
	return faults
}

func (d *doctor) etcdAnswers(ctx context.Context) (string, error) {
	l, err := d.Look(ctx)
	if d.etcdAway = err != nil; err != nil {
		return "", err
	}
	d.etcdDoubted = l.Health.Lost || cluster.Doubted(l.Fault)
	if d.etcdFull = errors.Is(l.Fault, dial.ErrFull); d.etcdFull {
		return "", finding(dial.FullWayOut, "%v", l.Fault)
	}
	if l.Fault != nil {
		return "", d.advise(ctx, l, l.Fault.Error())
	}
	if mute := l.MuteEtcd(); mute != "" {
		return "", warning{mute}
	}
	return "cluster " + d.Name(), nil
}

// advise gives what is wrong with the state in etcd its way out: to restore it
// where there was one, to assign only where there never was.
func (d *doctor) advise(ctx context.Context, l clusters.Look, what string) error {
	if l.Health.Lost {
		return finding(cluster.RestoreWayOut, "%s; nodes remember what it has lost", what)
	}
	if l.Health.Epoch > 0 {
		return finding(clusters.MendWayOut, "%s", what)
	}
	n, err := d.records(ctx, kafka.Prefixed(d.topicPrefix).Timeline)
	switch {
	case err == nil && n > 0:
		return finding(cluster.RestoreWayOut, "%s; this cluster has been at work, since its timeline topic holds %d records", what, n)
	case err != nil:
		return finding("bring Kafka back, and ask again: its log tells whether there was an assignment, which is restored and not made anew", "%s; whether there was more cannot be told while Kafka does not answer", what)
	}
	return finding(clusters.AssignWayOut, "%s", what)
}

func (d *doctor) assigned(ctx context.Context) (string, error) {
	l, err := d.Look(ctx)
	if err != nil {
		return "", err
	}
	if d.unassigned = l.Health.Lost || l.Health.Epoch == 0; d.unassigned {
		return "", d.advise(ctx, l, l.Health.Faults()[0])
	}
	a := l.Map.Assignment()
	return fmt.Sprintf("epoch %d, %d nodes, %d replicas", a.Epoch, len(a.Nodes()), l.Health.Replicas), nil
}

func (d *doctor) nodesReady(ctx context.Context) (string, error) {
	l, err := d.Look(ctx)
	if err != nil {
		return "", err
	}
	faults := strings.Join(l.Health.Faults(), "\n")
	full, alone := l.Health.Full()
	switch {
	case faults != "" && d.logGone:
		return "", finding("see to the log first, above", "%s", faults)
	case faults != "" && d.kafkaAway:
		return "", finding("bring Kafka back first: nodes that cannot ask it are stale, which mends itself", "%s", faults)
	case faults != "" && len(full) > 0:
		way := fmt.Sprintf("free space on the disks of %s, as much as it says where it says: they go on by themselves, and need no restart", full)
		if !alone {
			way += "; start the nodes that are gone; of the others look at the log and /readyz"
		}
		return "", finding(way, "%s", faults)
	case faults != "" && l.TakenOut():
		return "", finding("start the nodes that are gone; what an operator has taken out (by_operator) is made anew by millrace partition release PARTITION --node NODE --apply; of the others look at the log and /readyz", "%s", faults)
	case faults != "":
		return "", errors.New(faults)
	}
	if warnings := l.Health.Warnings(); len(warnings) > 0 {
		return "", warning{strings.Join(warnings, "\n")}
	}
	return fmt.Sprintf("%d of %d partitions by %d replicas each", partition.Count, partition.Count, l.Health.Replicas), nil
}

// modelsGood tells of versions that serve and no node has, and warns of those that
// some lack, that are condemned, or that cannot be read.
func (d *doctor) modelsGood(ctx context.Context) (string, error) {
	cl, err := d.OpenReadOnly(ctx)
	if err != nil {
		return "", err
	}
	defer cl.Close()
	serve, nowhere, lines, err := rollouts.ModelFaults(ctx, cl)
	if err != nil {
		return "", err
	}
	if len(nowhere) > 0 {
		return "", finding("mend what the nodes say, or let another version serve: millrace model rollback, or push one that is mended", "%s", strings.Join(append(nowhere, lines...), "\n"))
	}
	if len(lines) > 0 {
		return "", warning{strings.Join(lines, "\n")}
	}
	return fmt.Sprintf("%d serve", serve), nil
}

// feedsWhole tells of feeds that everybody is refused, since their model does not serve,
// and warns of definitions that brokers cannot take over.
func (d *doctor) feedsWhole(ctx context.Context) (string, error) {
	cl, err := d.OpenReadOnly(ctx)
	if err != nil {
		return "", err
	}
	defer cl.Close()
	feeds, refused, lines, err := rollouts.FeedFaults(ctx, cl)
	if err != nil {
		return "", err
	}
	if len(refused) > 0 {
		return "", errors.New(strings.Join(append(refused, lines...), "\n"))
	}
	if len(lines) > 0 {
		return "", warning{strings.Join(lines, "\n")}
	}
	return fmt.Sprintf("%d", feeds), nil
}

// coordinatorLeads warns where nobody repairs.
func (d *doctor) coordinatorLeads(ctx context.Context) (string, error) {
	cl, err := d.OpenReadOnly(ctx)
	if err != nil {
		return "", err
	}
	defer cl.Close()
	who, leads, err := cl.Leader(ctx)
	if err == nil && !leads {
		text := "none does: replicas that are lost are not made elsewhere, plans wait, ramps stand still, and no guard pauses an experiment; "
		if d.etcdFull {
			err = warning{text + "those that run cannot, while etcd takes no write: free its space, above"}
		} else {
			err = warning{text + "start one: millrace coordinator --config FILE"}
		}
	}
	return who.Name, err
}

// experimentsWhole warns of experiments that give nobody a variant though they may, or
// whose answers count for none, and of documents that cannot be taken over.
func (d *doctor) experimentsWhole(ctx context.Context) (string, error) {
	cl, err := d.OpenReadOnly(ctx)
	if err != nil {
		return "", err
	}
	defer cl.Close()
	says, lines, err := trials.Faults(ctx, cl)
	if err != nil {
		return "", err
	}
	if len(lines) > 0 {
		return "", warning{strings.Join(lines, "\n")}
	}
	return says, nil
}

// brokersHear tells of brokers that do not go by what etcd has, and warns of those that
// are silent, and may have ended.
func (d *doctor) brokersHear(ctx context.Context) (string, error) {
	all, err := d.Brokers(ctx)
	if err != nil {
		return "", err
	}
	var names, lines []string
	faulty := len(clusters.BrokerFaults(all)) > 0
	for _, b := range all {
		if names = append(names, b.Name); !b.Well() {
			line := b.Name + ": " + b.State() + "; if it still answers, it goes on with what was before"
			if b.Admin != "" {
				line += "; see millrace doctor --admin " + b.Admin
			}
			lines = append(lines, line)
		}
	}
	switch {
	case faulty:
		return "", errors.New(strings.Join(lines, "\n"))
	case len(lines) > 0:
		return "", warning{strings.Join(lines, "\n")}
	case len(names) == 0:
		return "", warning{"no broker is registered: whether one hears of changes is not known, unless by --admin"}
	}
	return strings.Join(names, ", "), nil
}

func (d *doctor) brokerAnswers(ctx context.Context) (string, error) {
	c, err := reach.Broker(ctx, d.grpc)
	if err != nil {
		return "", err
	}
	defer c.Close()
	began := time.Now()
	resp, err := c.GetFeed(ctx, &feedv1.GetFeedRequest{Feed: "recent", Viewer: &feedv1.Viewer{Id: "doctor"}, Entities: []string{"member:1"}})
	took := fmt.Sprintf("in %.1f ms", float64(time.Since(began).Microseconds())/1000)
	switch e := (*millrace.Error)(nil); {
	case !errors.As(err, &e):
	case e.Reason == millrace.ReasonUnavailable:
		return "", errors.New(e.Detail) // to try again is no way out
	case e.Detail == feeds.BuiltInRefused("recent").Detail:
		return took + "; index nodes were not asked: " + e.Detail, nil
	}
	if err != nil {
		return "", err
	}
	if len(resp.Coverage.GetMissing()) > 0 {
		return "", finding("see to the index nodes: the broker is well", "the answer misses partition %d: %s", resp.Coverage.Missing[0].Partition, resp.Coverage.Missing[0].Reason)
	}
	return took, nil
}
