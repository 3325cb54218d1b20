package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/kafka/progress"
)

func TestDoctorTellsOfPartitioners(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) int64 { return now.Add(-d).UnixMilli() }
	for want, g := range map[string]progress.Progress{
		"":                               {AtMillis: ago(3 * time.Second), ThroughMillis: ago(5 * time.Second)},
		"has not been heard for 26s":     {AtMillis: ago(26 * time.Second), ThroughMillis: ago(27 * time.Second)},
		`topics forget --group "a slip"`: {Group: "a slip", AtMillis: ago(61 * time.Second), ThroughMillis: ago(62 * time.Second)},
		"has not proven yet":             {AtMillis: ago(time.Second)},
		"is 26s behind its topics":       {AtMillis: ago(time.Second), ThroughMillis: ago(26 * time.Second)},
		"topic likes does not exist":     {AtMillis: ago(0), ThroughMillis: ago(0), Missing: []string{"likes"}},
		"has stopped: topic timeline":    {AtMillis: ago(0), ThroughMillis: ago(0), OtherLog: "group g has stopped: topic timeline was deleted"},
		"stuck at offset 7":              {AtMillis: ago(0), ThroughMillis: ago(0), Stuck: []progress.Stuck{{Topic: "likes", Offset: 7, Next: 9}}},
	} {
		got := strings.Join(groupFaults(g, now), "\n")
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if strings.Contains(got, "behind its topics") && g.ThroughMillis == 0 {
			t.Errorf("what has proven nothing has no age: %q", got)
		}
		if strings.Contains(got, "forget") && strings.Contains(got, "26s") {
			t.Errorf("what may just be back is to be forgotten: %q", got)
		}
		own := ""
		if e := (*millrace.Error)(nil); errors.As(behind(groupFaults(g, now)), &e) {
			own = e.WayOut
		}
		if creates := strings.HasPrefix(own, "create it "); creates != strings.Contains(want, "does not exist") {
			t.Errorf("the way out of %q is %q", got, own)
		}
	}
}

// As many roles that host nothing are well as nodes were drained; others are not.
func TestDrainedNodesAreWell(t *testing.T) {
	all := func() []roleShown {
		return []roleShown{{Admin: "a", Why: "no partition is assigned to this node"}, {Admin: "b", Why: "no partition is assigned to this node"}, {Admin: "c", Why: "waiting"}, {Admin: "d", Ready: true}}
	}
	for drained, want := range map[int]string{0: "a b c", 1: "b c", 2: "c", 3: "c"} {
		var left []string
		for _, r := range excused(all(), drained) {
			if !r.Ready {
				left = append(left, r.Admin)
			}
		}
		if got := strings.Join(left, " "); got != want {
			t.Errorf("with %d drained %q are not ready, want %q", drained, got, want)
		}
	}
}

// A node that hosts nothing is ready for whoever runs it; doctor tells of it all the same,
// unless it was drained.
func TestDoctorTellsOfNodesThatHostNothing(t *testing.T) {
	t.Parallel()
	s := clitest.NewStage(t, "n1")
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, indexnode.ErrUnassigned)
	}))
	defer node.Close()
	addr := node.Listener.Addr().String()
	if all := askRoles(t.Context(), []string{addr}); unready(all) != nil || all[0].Why != indexnode.ErrUnassigned.Error() {
		t.Errorf("asked alone: %+v", all)
	}
	d := &doctor{Flags: clusters.Flags{Etcd: s.Etcd, Cluster: s.Name}, ports: []string{addr}}
	ready := check{"roles are ready", d.rolesReady, "start the role", nil, 0}
	if got := d.look(t.Context(), ready); got.Result != "fail" || got.Detail != addr+": "+indexnode.ErrUnassigned.Error() || !strings.Contains(got.WayOut, "millrace node add NODE --apply") {
		t.Errorf("%+v", got)
	}
	d.unassigned = true
	if got := d.look(t.Context(), ready); got.WayOut != "see to the assignment first, above" {
		t.Errorf("before any partition is assigned: %+v", got)
	}
	d.ports = append(d.ports, "127.0.0.1:1")
	if got := d.look(t.Context(), ready); got.WayOut != "start the role" {
		t.Errorf("with one that is not there: %+v", got)
	}
}

// A role that is unresponsive keeps nobody from being asked.
func TestReadyAsksAllAtOnce(t *testing.T) {
	asked := make(chan struct{})
	unresponsive := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-asked:
		case <-r.Context().Done():
		}
	}))
	defer unresponsive.Close()
	well := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { close(asked) }))
	defer well.Close()
	ctx, cancel := context.WithTimeout(t.Context(), clitest.Patience)
	defer cancel()
	if said, err := (&doctor{ports: []string{unresponsive.Listener.Addr().String(), well.Listener.Addr().String()}}).rolesReady(ctx); err != nil {
		t.Errorf("%s, %v", said, err)
	}
}

// What a role says of its own etcd or certificate is no fault of doctor's connections, and
// brings no way out for others.
func TestDoctorLeavesToRolesWhatTheySay(t *testing.T) {
	t.Parallel()
	const text = "waiting for etcd: cluster: etcd is away: tls: failed to verify certificate: x509: certificate has expired or is not yet valid"
	role := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, text, http.StatusServiceUnavailable)
	}))
	defer role.Close()
	d := &doctor{Flags: clusters.Flags{Etcd: []string{"127.0.0.1:1"}}, ports: []string{role.Listener.Addr().String()}}
	got := d.look(t.Context(), check{"roles are ready", d.rolesReady, "see each", nil, 0})
	if want := d.ports[0] + ": " + text; got.Result != "fail" || got.Detail != want || got.WayOut != "see each" {
		t.Errorf("%+v\nwant %s", got, want)
	}
}

// Roles that are not ready yet are waited for, as long as one says.
func TestReadyWaits(t *testing.T) {
	t.Parallel()
	asked := 0
	role := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked < 3 {
			http.Error(w, "waiting for etcd", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	}))
	defer role.Close()
	ports := []string{role.Listener.Addr().String()}
	if _, fault := awaitRoles(t.Context(), ports, 0); fault == nil || asked != 1 {
		t.Errorf("without a wait: %v after %d questions", fault, asked)
	}
	if _, fault := awaitRoles(t.Context(), ports, clitest.Patience); fault != nil || asked != 3 {
		t.Errorf("%v after %d questions", fault, asked)
	}
}

// Who is sent elsewhere has not heard the role that was asked.
func TestReadyFollowsNoRedirection(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer elsewhere.Close()
	other := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusFound))
	defer other.Close()
	all := askRoles(t.Context(), []string{other.Listener.Addr().String()})
	if err := unready(all); err == nil || !strings.Contains(err.Error(), "answers with a redirection to \""+elsewhere.URL) {
		t.Errorf("%+v, %v", all, err)
	}
}

// Just after etcd was restored a role that answers and is not ready is asked again; later
// it is not, nor is one that nobody answers for.
func TestDoctorWaitsForRolesAfterARestoration(t *testing.T) {
	t.Parallel()
	s := clitest.NewStage(t, "n1")
	unready := func(times int64) (addr string, asked *atomic.Int64) {
		asked = new(atomic.Int64)
		role := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if asked.Add(1) <= times {
				http.Error(w, "taking it over", http.StatusServiceUnavailable)
			}
		}))
		t.Cleanup(role.Close)
		return role.Listener.Addr().String(), asked
	}
	look := func(patience time.Duration, addrs ...string) checkShown {
		d := &doctor{Flags: clusters.Flags{Etcd: s.Etcd, Cluster: s.Name}, ports: addrs, patience: patience}
		return d.look(t.Context(), check{"roles are ready", d.rolesReady, "", nil, clitest.Patience})
	}
	addr, asked := unready(1)
	if got := look(clitest.Patience, addr); got.Result != "fail" || got.Detail != addr+": taking it over" || asked.Load() != 1 {
		t.Errorf("of no restoration: %+v, asked %d times", got, asked.Load())
	}
	cl, err := cluster.Open(t.Context(), cluster.Config{Endpoints: s.Etcd, Name: s.Name, Who: "ann", Log: slog.New(slog.DiscardHandler)})
	s.Check(err)
	defer cl.Close()
	s.Check(cl.Note(t.Context(), audit.Entry{Act: "restore", On: "what etcd had lost"}))
	if addr, asked = unready(2); look(clitest.Patience, addr).Result != "ok" || asked.Load() != 3 {
		t.Errorf("just after one it is asked %d times", asked.Load())
	}
	if addr, asked = unready(1); look(0, addr).Result != "fail" || asked.Load() != 1 {
		t.Errorf("long after one it is asked %d times", asked.Load())
	}
	if addr, asked = unready(1); look(clitest.Patience, addr, "127.0.0.1:1").Result != "fail" || asked.Load() != 1 {
		t.Errorf("beside one that is unresponsive it is asked %d times", asked.Load())
	}
}

// An address of the broker's that speaks JSON is told from one at which nobody is.
func TestDoctorNamesThePortOfJSON(t *testing.T) {
	json := httptest.NewServer(http.NotFoundHandler())
	defer json.Close()
	d := &doctor{grpc: json.Listener.Addr().String()}
	got := d.look(t.Context(), check{"a broker answers", d.brokerAnswers, "start a broker", nil, 0})
	if got.Result != "fail" || !strings.HasPrefix(got.Detail, d.grpc+" answers in HTTP/1.1") || !strings.HasPrefix(got.WayOut, "name the broker's port for gRPC (grpc in its configuration") {
		t.Errorf("%+v", got)
	}
}

// A role that alone has lost etcd is well by its /readyz; what it goes by is told by its
// metrics.
func TestDoctorTellsWhoDoesNotHearEtcd(t *testing.T) {
	role := func(metrics string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/metrics" {
				_, _ = w.Write([]byte(metrics))
			}
		}))
		t.Cleanup(s.Close)
		return s.Listener.Addr().String()
	}
	well := role("millrace_cluster_fault_seconds{of=\"feeds\"} 0\nmillrace_cluster_from_disk_seconds{of=\"feeds\"} 0\nmillrace_cluster_unwritten_seconds 0\n")
	cut := role("# HELP x y\nmillrace_cluster_fault_seconds{of=\"map\"} 55\nmillrace_cluster_fault_seconds{of=\"experiments\"} 5.5e+01\nmillrace_cluster_fault_seconds{of=\"feeds\"} 0\n")
	old := role("millrace_cluster_fault_seconds{of=\"map\"} 5\nmillrace_cluster_from_disk_seconds{of=\"map\"} 7200\n")
	full := role("millrace_cluster_unwritten_seconds 90\n")
	for name, c := range map[string]struct {
		ports  []string
		result string
		says   []string
	}{
		"well": {[]string{well}, "ok", nil},
		"cut":  {[]string{well, cut}, "fail", []string{cut + ": goes since ", "(55s ago) by the last good state of experiments, map"}},
		"old":  {[]string{old}, "fail", []string{"that is what its disk had as it started", "(2h0m0s ago)"}},
		"full": {[]string{full, well}, "warn", []string{full + ": cannot write to its data directory", "(1m30s ago)"}},
	} {
		d := &doctor{ports: c.ports, patience: time.Millisecond}
		got := d.look(t.Context(), check{"roles hear etcd", d.rolesHear, "mend the way", nil, 0})
		if got.Result != c.result {
			t.Errorf("%s: %+v", name, got)
		}
		for _, want := range c.says {
			if !strings.Contains(got.Detail, want) {
				t.Errorf("%s: %q does not say %q", name, got.Detail, want)
			}
		}
		if name == "cut" && strings.Contains(got.Detail, well) {
			t.Errorf("who hears etcd is named: %s", got.Detail)
		}
	}
}

// A broker that is registered and does not go by what etcd has is warned of, and so is
// that none is registered.
func TestDoctorTellsWhichBrokersHear(t *testing.T) {
	t.Parallel()
	s := clitest.NewStage(t, "n1")
	d := &doctor{Flags: clusters.Flags{Etcd: s.Etcd, Cluster: s.Name}}
	look := func(result, says string) {
		t.Helper()
		clitest.WaitFor(t.Context(), t, "doctor to say "+says, func() bool {
			got := d.look(t.Context(), check{"brokers hear of changes", d.brokersHear, "", nil, cluster.LookTime})
			return got.Result == result && strings.Contains(got.Detail, says) && !strings.Contains(got.Detail, "one:")
		})
	}
	look("warn", "no broker is registered")
	s.Broker("one")
	cut := s.Broker("two")
	look("ok", "one, two")
	cut()
	s.NewsAt("model: recency\n")
	look("fail", "BEHIND in feeds, by ")
}

// Of several addresses of etcd one that does not answer is warned of, by name.
func TestDoctorTellsOfAnUnresponsiveEtcd(t *testing.T) {
	t.Parallel()
	s := clitest.NewStage(t, "n1")
	d := &doctor{Flags: clusters.Flags{Etcd: append([]string{"127.0.0.1:1"}, s.Etcd...), Cluster: s.Name}}
	l, err := d.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Warnings(); len(got) == 0 || !strings.Contains(got[0], "does not answer at 127.0.0.1:1, ") {
		t.Errorf("%q", got)
	}
	answers := func() checkShown {
		return d.look(t.Context(), check{"etcd answers", d.etcdAnswers, "", nil, cluster.LookTime})
	}
	if got := answers(); got.Result != "warn" || !strings.Contains(got.Detail, "etcd does not answer at 127.0.0.1:1, ") {
		t.Errorf("%+v", got)
	}
	d.Etcd = s.Etcd
	if l, err = d.Look(t.Context()); err != nil || l.UnresponsiveEtcd() != "" {
		t.Errorf("%q, %v", l.UnresponsiveEtcd(), err)
	}
	if got := answers(); got.Result != "ok" {
		t.Errorf("%+v", got)
	}
}

// Replicas beyond those that are wanted are warned of, as a plan leaves them that etcd has
// lost; not while a plan is under way.
func TestDoctorTellsOfSurplusReplicas(t *testing.T) {
	t.Parallel()
	s := clitest.NewStage(t, "n1", "n2", "n3")
	for _, m := range s.Members {
		m.SetAnswering(topology.All(), topology.Lag{})
	}
	d := &doctor{Flags: clusters.Flags{Etcd: s.Etcd, Cluster: s.Name}}
	says := func(result, detail string) {
		t.Helper()
		got := checkShown{}
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if got = d.look(t.Context(), check{"every partition is served", d.nodesReady, "", nil, 0}); got.Result == result && strings.Contains(got.Detail, detail) {
				return
			}
		}
		t.Fatalf("%+v", got)
	}
	steer := func(change func(*steering.State)) {
		t.Helper()
		s.Check(steering.Change(t.Context(), s.Client, nil, func(of *steering.State) error { change(of); return nil }))
	}
	says("ok", "by 2 replicas each")
	steer(func(of *steering.State) {
		of.Assignment.Wanted = 2
		of.Assignment.Replicas[7] = []millrace.NodeID{"n1", "n2", "n3"}
	})
	says("warn", "1 of 720 partitions have more than 2 replicas, and no plan is under way that takes any away: 7: ")
	plan := func(status coordinator.Status) {
		steer(func(of *steering.State) {
			body, err := json.Marshal(coordinator.Plan{ID: "x", Status: status, Wanted: 2, BaseWanted: 2, Base: coordinator.Layout(of.Assignment.Replicas)})
			s.Check(err)
			of.Documents["plan"] = string(body)
		})
	}
	plan(coordinator.Running)
	says("ok", "by 2 replicas each")
	plan(coordinator.Done)
	says("warn", "1 of 720 partitions have more than 2 replicas")
}

// A plan that is paused, which keeps nodes that are gone from being repaired, is warned of
// by whom it is and since when, also by cluster show.
func TestDoctorTellsOfAPausedPlan(t *testing.T) {
	t.Parallel()
	s := clitest.NewStage(t, "n1", "n2", "n3")
	d := &doctor{Flags: clusters.Flags{Etcd: s.Etcd, Cluster: s.Name}}
	lead, err := s.Client.Lead(t.Context(), cluster.Leader{Name: "one"})
	s.Check(err)
	defer lead.Resign(t.Context())
	_, err = coordinator.Start(t.Context(), s.Client, coordinator.Request{Kind: coordinator.Drain, Nodes: []millrace.NodeID{"n1"}, By: "ann", Lossy: true}, func(*coordinator.Proposal) error { return nil })
	s.Check(err)
	order := func(o coordinator.Order) {
		t.Helper()
		_, err := coordinator.Command(t.Context(), s.Client, o, "bob@host: of ops", func(*coordinator.Steered) error { return nil })
		s.Check(err)
	}
	look := func(result, says string) (warned string) {
		t.Helper()
		if got := d.look(t.Context(), check{"a coordinator leads", d.coordinatorLeads, "", nil, 0}); got.Result != result || !strings.Contains(got.Detail, says) {
			t.Errorf("%+v; want %s: %s", got, result, says)
		}
		l, err := d.Look(t.Context())
		s.Check(err)
		return strings.Join(l.Warnings(), "\n")
	}
	if all := look("ok", "one"); strings.Contains(all, "paused") {
		t.Errorf("before the pause: %s", all)
	}
	order(coordinator.Pause)
	const says = ", by bob@host: of ops: nothing moves or is repaired until millrace cluster resume"
	if all := look("warn", says); !strings.Contains(all, "(drain) is paused since ") || !strings.Contains(all, says) {
		t.Errorf("cluster show warns of %q", all)
	}
	order(coordinator.Resume)
	if all := look("ok", "one"); strings.Contains(all, "paused") {
		t.Errorf("after it: %s", all)
	}
}

// What others have named, such as a leader, steers no terminal where the output ends up,
// and adds no line that looks like a check.
func TestDoctorShowsWhatOthersNamed(t *testing.T) {
	var out strings.Builder
	checkShown{"coordinator leads", "warn", "one\x1b[2J; paused\nfor all", "resume\x1b]0;title"}.write(&out)
	for _, want := range []string{`one\u001b[2J; paused`, "\n      ", "for all", `resume\u001b]0;title`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q does not have %q", out.String(), want)
		}
	}
}
