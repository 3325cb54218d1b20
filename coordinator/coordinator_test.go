package coordinator_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/minicluster"
	"github.com/millrace/millrace/internal/partition"
)

var steps = flag.Bool("steps", false, "freeze the leader at each of 21 steps, and not at 3")

// estate is an etcd and nodes that do what the assignment says.
type estate struct {
	t    *testing.T
	etcd string
	look *cluster.Client
	runs map[millrace.NodeID]*fake
	role map[string]*coordinator.Coordinator
}

func newEstate(t *testing.T, nodes ...millrace.NodeID) *estate {
	t.Helper()
	e, err := minicluster.StartEtcd(t.Context(), t.TempDir(), "127.0.0.1:0")
	check(t, err)
	t.Cleanup(e.Close)
	s := &estate{t: t, etcd: e.Addr(), runs: map[millrace.NodeID]*fake{}, role: map[string]*coordinator.Coordinator{}}
	s.look = s.open()
	for _, id := range nodes {
		s.start(id)
	}
	a, err := topology.Spread(nodes, 2)
	check(t, err)
	a.Wanted, a.AllowUnknown = 2, true
	check(t, steering.Assign(t.Context(), s.look, a))
	s.await("every partition has two ready replicas", func(l *coordinator.Steered) bool { return s.served(l, 2) })
	return s
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s *estate) open() *cluster.Client {
	s.t.Helper()
	c, err := cluster.Open(s.t.Context(), cluster.Config{Endpoints: []string{s.etcd}, Name: "test", Log: slog.New(slog.DiscardHandler)})
	check(s.t, err)
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// fake is a node without data.
type fake struct {
	c    *cluster.Client
	m    *members.Membership
	stop context.CancelFunc
	done chan struct{}
}

// start starts a node that has nothing.
func (s *estate) start(id millrace.NodeID) {
	s.t.Helper()
	c := s.open()
	ctx, stop := context.WithCancel(s.t.Context())
	m, err := members.Join(ctx, c, topology.Node{ID: id, Addr: "127.0.0.1:1"})
	check(s.t, err)
	w, err := c.Watch(ctx)
	check(s.t, err)
	f := &fake{c, m, stop, make(chan struct{})}
	s.runs[id] = f
	go func() {
		defer close(f.done)
		var disk topology.Set
		for ctx.Err() == nil {
			changed := w.Changed()
			hosted := w.Current().Hosted(id)
			disk = disk.Or(hosted)
			disk = disk.Minus(w.Current().Drops(id))
			held := disk.Minus(hosted)
			m.SetAnswering(hosted, topology.Lag{})
			m.SetStats(members.NodeStats{DiskBytes: 1 << 40, FreeBytes: 1 << 39, Held: held})
			select {
			case <-ctx.Done():
			case <-changed:
			}
		}
	}()
}

// kill ends a node without a word.
func (s *estate) kill(id millrace.NodeID) {
	f := s.runs[id]
	f.stop()
	<-f.done
	_ = f.c.Close()
	delete(s.runs, id)
}

// coordinate runs a coordinator until the test ends, or stop is called.
func (s *estate) coordinate(name string, at func(step string)) (stop func()) {
	s.t.Helper()
	cfg := coordinator.Config{
		Cluster: s.open(), Name: name, Grace: 5 * time.Second, DropAfter: time.Second, Every: 50 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
	}
	if at != nil {
		cfg = cfg.At(at)
	}
	c, err := coordinator.New(cfg)
	check(s.t, err)
	s.role[name] = c
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = c.Run(ctx) }()
	stop = func() { cancel(); <-done }
	s.t.Cleanup(stop)
	return stop
}

// await looks until something is so.
func (s *estate) await(what string, ok func(*coordinator.Steered) bool) *coordinator.Steered {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Minute)
	defer cancel()
	for {
		l, _, err := coordinator.Look(ctx, s.look)
		if err == nil && ok(l) {
			return l
		}
		if ctx.Err() != nil {
			s.t.Fatalf("still waiting: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// served reports whether every partition has so many ready replicas.
func (s *estate) served(l *coordinator.Steered, replicas int) bool {
	for p := range partition.All() {
		n := 0
		for _, id := range l.Assignment.Replicas[p] {
			if ready := l.Map.Ready(id); l.Map.Alive(id) && ready.Has(p) {
				n++
			}
		}
		if n < replicas {
			return false
		}
	}
	return true
}

// pause has a node say that an operator has paused its ingest, which it goes on
// being ready with, or that it goes on.
func (s *estate) pause(id millrace.NodeID, paused bool) {
	s.t.Helper()
	var reports []topology.Report
	if paused {
		reports = []topology.Report{{State: "ready", Reason: topology.PausedReason, Partitions: topology.All(), Warning: true}}
	}
	s.runs[id].m.SetReports(reports)
	s.await("it is told", func(l *coordinator.Steered) bool { return l.Map.Paused(id) == paused })
}

// fail has the store of a node fail, which goes on answering, or work again.
func (s *estate) fail(id millrace.NodeID, reason string) {
	s.t.Helper()
	var reports []topology.Report
	if reason != "" {
		reports = []topology.Report{{State: "ready", Reason: reason, Partitions: topology.All()}}
	}
	s.runs[id].m.SetReports(reports)
	s.await("it is told", func(l *coordinator.Steered) bool { return l.Map.Halted(id) == reason })
}

func (s *estate) begin(r coordinator.Request) {
	s.t.Helper()
	r.By = "test"
	_, err := coordinator.Start(s.t.Context(), s.look, r, func(*coordinator.Proposal) error { return nil })
	check(s.t, err)
}

func hosts(l *coordinator.Steered) map[millrace.NodeID]int {
	n := map[millrace.NodeID]int{}
	for _, id := range l.Assignment.Nodes() {
		h := l.Assignment.Hosted(id)
		n[id] = h.Len()
	}
	return n
}

// A cluster grows, is drained and shrinks, and deletes what moved away, with
// every partition served by two all the while.
func TestResizes(t *testing.T) {
	s := newEstate(t, "a", "b", "c")
	s.coordinate("one", nil)
	watch(t, s)
	s.start("d")
	s.await("d is there", func(l *coordinator.Steered) bool { return l.Map.Alive("d") })
	s.begin(coordinator.Request{Kind: coordinator.Rebalance})
	l := s.await("the plan is done", func(l *coordinator.Steered) bool { return l.Plan.Status == coordinator.Done })
	if n := hosts(l); n["a"] != 360 || n["b"] != 360 || n["c"] != 360 || n["d"] != 360 {
		t.Errorf("%v", n)
	}
	if len(l.Plan.Moves) != 360 {
		t.Errorf("%d moves, not 360", len(l.Plan.Moves))
	}
	s.await("what moved away is deleted", func(l *coordinator.Steered) bool {
		_, stats, err := coordinator.Look(t.Context(), s.look)
		held := 0
		for _, st := range stats {
			held += st.Held.Len()
		}
		return err == nil && held == 0 && len(l.Assignment.Drop) == 0
	})

	s.begin(coordinator.Request{Kind: coordinator.Drain, Nodes: []millrace.NodeID{"a"}})
	l = s.await("a is drained", func(l *coordinator.Steered) bool {
		return l.Plan.Kind == coordinator.Drain && l.Plan.Status == coordinator.Done
	})
	if n := hosts(l); n["a"] != 0 || n["b"] != 480 || n["c"] != 480 || n["d"] != 480 {
		t.Errorf("%v", n)
	}
	if _, err := coordinator.Command(t.Context(), s.look, coordinator.Rollback, "test", agreed); err != nil {
		t.Fatal(err)
	}
	l = s.await("a is back", func(l *coordinator.Steered) bool { return l.Plan.Status == coordinator.RolledBack })
	if n := hosts(l); n["a"] != 360 || l.Intent.Nodes["a"].Draining {
		t.Errorf("%v, %v", n, l.Intent)
	}
}

// A node that has given way hosts nothing afterwards either, whatever is spread
// anew, and the one that was drained before it took over does.
func TestWhoGaveWayStaysEmpty(t *testing.T) {
	s := newEstate(t, "a", "b", "c")
	s.coordinate("one", nil)
	s.start("d")
	s.await("d is there", func(l *coordinator.Steered) bool { return l.Map.Alive("d") })
	l0, _, err := coordinator.Look(t.Context(), s.look)
	check(t, err)
	both, first := 0, -1
	for p := range partition.All() {
		if r := l0.Assignment.Replicas[p]; slices.Contains(r, "a") && slices.Contains(r, "b") {
			if both++; first < 0 {
				first = int(p)
			}
		}
	}
	want := fmt.Sprintf("b hosts %d of these partitions already, such as %d,", both, first)
	for _, lossy := range []bool{false, true} { // with a replica less, they would wait for ever
		if err := s.try(coordinator.Request{Kind: coordinator.Replace, Nodes: []millrace.NodeID{"a", "b"}, Lossy: lossy}); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "millrace node drain a") {
			t.Fatalf("b takes over what it has: %v, want %q", err, want)
		}
	}
	s.begin(coordinator.Request{Kind: coordinator.Drain, Nodes: []millrace.NodeID{"d"}})
	s.await("d is drained", func(l *coordinator.Steered) bool { return l.Plan.Status == coordinator.Done })
	s.begin(coordinator.Request{Kind: coordinator.Replace, Nodes: []millrace.NodeID{"a", "d"}})
	l := s.await("d has taken over", func(l *coordinator.Steered) bool {
		return l.Plan.Kind == coordinator.Replace && l.Plan.Status == coordinator.Done
	})
	if n := hosts(l); n["a"] != 0 || n["d"] != 480 {
		t.Errorf("%v", n)
	}
	moves := -1
	stop := errors.New("only looked at")
	_, err = coordinator.Start(t.Context(), s.look, coordinator.Request{Kind: coordinator.Rebalance, By: "test"}, func(p *coordinator.Proposal) error {
		moves = len(p.Plan.Moves)
		return stop
	})
	if !errors.Is(err, stop) || moves != 0 {
		t.Errorf("%d moves would follow, %v", moves, err)
	}
}

// A node that takes in nothing new is given nothing, and what it shares with a node that
// is drained stays there: its answers are about to be old, and its disk may be gone. When it
// is well again the plan goes on.
func TestANodeThatTakesNothingInIsNotCountedOn(t *testing.T) {
	for _, c := range []struct {
		reason string
		order  coordinator.Order // given as the drain waits for it
		ends   coordinator.Status
	}{
		{topology.DiskFullReason, "", coordinator.Done},
		{topology.StoreFailingReason, "", coordinator.Done},
		{topology.DiskFullReason, coordinator.Cancel, coordinator.Cancelled},
		{topology.DiskFullReason, coordinator.Rollback, coordinator.RolledBack},
	} {
		t.Run(c.reason+" "+string(c.order), func(t *testing.T) {
			s := newEstate(t, "a", "b", "c")
			var looks atomic.Int64
			s.coordinate("one", func(step string) {
				if step == "written" {
					looks.Add(1)
				}
			})
			s.fail("b", c.reason)
			s.begin(coordinator.Request{Kind: coordinator.Drain, Nodes: []millrace.NodeID{"a"}, Limits: coordinator.Limits{PerNode: partition.Count}})
			s.await("c has what a shares with b", func(l *coordinator.Steered) bool {
				return l.Map.Hosted("c") == topology.All() && l.Map.Ready("c") == topology.All()
			})
			seen := looks.Load()
			s.await("that is looked at", func(*coordinator.Steered) bool { return looks.Load() > seen+2 })
			l := s.await("", func(*coordinator.Steered) bool { return true })
			if n := hosts(l); n["a"] != 480 || n["b"] != 480 {
				t.Fatalf("a hosts %d of 480, b %d of 480, and b takes nothing in", n["a"], n["b"])
			}
			if pr := l.Progress(time.Now()); pr.Left != -1 || pr.Holding["b"] != (coordinator.Held{Moves: 240, Why: "takes in nothing new: " + c.reason}) {
				t.Errorf("%.0f s are left, waiting for %v", pr.Left, pr.Holding)
			}
			if c.order == "" {
				s.fail("b", "")
			} else {
				_, err := coordinator.Command(t.Context(), s.look, c.order, "test", agreed)
				check(t, err)
			}
			s.await("the plan has ended", func(l *coordinator.Steered) bool { return l.Plan.Status == c.ends })
			if c.order == "" {
				return
			}
			l = s.await("", func(*coordinator.Steered) bool { return true })
			if n := hosts(l); n["a"] != 480 {
				t.Errorf("a hosts %d of 480 since b takes nothing in", n["a"])
			}
			s.fail("b", "") // what is too many goes when that is mended
			s.begin(coordinator.Request{Kind: coordinator.Rebalance})
			s.await("all have two replicas", func(l *coordinator.Steered) bool {
				surplus := l.Map.Surplus()
				return l.Plan.Status == coordinator.Done && surplus.Len() == 0
			})
		})
	}
}

// A node whose ingest is paused is not counted on while a plan moves its
// partitions: what it shares with a node that is drained stays there, what it is
// given takes nobody's place, and what is drained from it goes once others serve
// it. When it goes on, so does the plan.
func TestAPausedNodeIsNotCountedOn(t *testing.T) {
	s := newEstate(t, "a", "b", "c")
	var looks atomic.Int64
	s.coordinate("one", func(step string) {
		if step == "written" {
			looks.Add(1)
		}
	})
	s.pause("b", true)
	// What a shares with b gets a replica on c, and what it shares with c one on b.
	s.begin(coordinator.Request{Kind: coordinator.Drain, Nodes: []millrace.NodeID{"a"}, Limits: coordinator.Limits{PerNode: partition.Count}})
	s.await("all are ready that say so", func(l *coordinator.Steered) bool {
		return l.Progress(time.Now()).Moves[coordinator.Waiting] == 0 && l.Map.Ready("b") == l.Map.Hosted("b") && l.Map.Ready("c") == l.Map.Hosted("c")
	})
	seen := looks.Load()
	s.await("that is looked at", func(*coordinator.Steered) bool { return looks.Load() > seen+2 })
	l := s.await("", func(*coordinator.Steered) bool { return true })
	if n := hosts(l); n["a"] != 480 {
		t.Fatalf("a hosts %d of 480, and b is paused", n["a"])
	}
	s.pause("b", false)
	s.await("a is drained", func(l *coordinator.Steered) bool { return l.Plan.Status == coordinator.Done })

	// Drained itself, it keeps nobody waiting: a and c serve what it had.
	s.begin(coordinator.Request{Kind: coordinator.Add, Nodes: []millrace.NodeID{"a"}})
	s.await("a hosts again", func(l *coordinator.Steered) bool {
		return l.Plan.Kind == coordinator.Add && l.Plan.Status == coordinator.Done
	})
	s.pause("b", true)
	s.begin(coordinator.Request{Kind: coordinator.Drain, Nodes: []millrace.NodeID{"b"}})
	l = s.await("b is drained", func(l *coordinator.Steered) bool {
		return l.Plan.Kind == coordinator.Drain && l.Plan.Status == coordinator.Done
	})
	if n := hosts(l); n["a"] != 720 || n["c"] != 720 || !s.served(l, 2) {
		t.Errorf("%v", n)
	}
}

// watch fails the test if a partition has fewer than two ready replicas.
func watch(t *testing.T, s *estate) {
	w, err := s.open().Watch(t.Context())
	check(t, err)
	go func() {
		for t.Context().Err() == nil {
			changed := w.Changed()
			m := w.Current()
			for p := range partition.All() {
				n := 0
				for _, id := range m.Replicas(p) {
					if ready := m.Ready(id); ready.Has(p) {
						n++
					}
				}
				if n < 2 && t.Context().Err() == nil {
					t.Errorf("partition %d is served by %d of %v", p, n, m.Replicas(p))
					return
				}
			}
			select {
			case <-changed:
			case <-t.Context().Done():
			}
		}
	}()
}

// A node that a rollback gives its replicas back to and that is gone is given up,
// though it hosts nothing; and so is one that hosts something, whose replicas go to
// neither.
func TestAPlanEndsWithoutWhoItLeadsTo(t *testing.T) {
	t.Parallel()
	s := newEstate(t, "a", "b", "c", "d")
	s.coordinate("one", nil)
	s.begin(coordinator.Request{Kind: coordinator.Drain, Nodes: []millrace.NodeID{"a"}})
	s.await("a is drained", func(l *coordinator.Steered) bool { return l.Plan.Status == coordinator.Done })
	s.kill("a")
	s.await("a is seen to be gone", func(l *coordinator.Steered) bool { return !l.Map.Alive("a") })
	var missing []millrace.NodeID
	_, err := coordinator.Command(t.Context(), s.look, coordinator.Rollback, "test", func(l *coordinator.Steered) error {
		missing = l.Missing()
		return nil
	})
	if err != nil || !slices.Equal(missing, []millrace.NodeID{"a"}) {
		t.Fatalf("%q are told to be missing, %v", missing, err)
	}
	s.kill("b")
	l := s.await("both are given up", func(l *coordinator.Steered) bool { return l.Plan.Status.Ended() && hosts(l)["b"] == 0 })
	if n := hosts(l); n["a"] != 0 || n["c"] != 720 || n["d"] != 720 || !s.served(l, 2) {
		t.Errorf("%s %s: %v", l.Plan.Kind, l.Plan.Status, n)
	}
}

// What a node that is gone hosted is made elsewhere; the loss of too many at
// once waits for a person.
func TestRepairs(t *testing.T) {
	t.Parallel()
	s := newEstate(t, "a", "b", "c", "d")
	stop := s.coordinate("one", nil)
	s.kill("d")
	l := s.await("d is replaced", func(l *coordinator.Steered) bool { return l.Plan != nil && l.Plan.Status == coordinator.Done })
	if n := hosts(l); l.Plan.Kind != coordinator.Repair || n["d"] != 0 || n["a"] != 480 || len(l.Plan.Moves) != 360 || !s.served(l, 2) {
		t.Errorf("%s: %v, %d moves", l.Plan.Kind, n, len(l.Plan.Moves))
	}

	s.start("d")
	s.await("d is there", func(l *coordinator.Steered) bool { return l.Map.Alive("d") })
	s.begin(coordinator.Request{Kind: coordinator.Rebalance})
	s.await("d hosts again", func(l *coordinator.Steered) bool {
		return l.Plan.Kind == coordinator.Rebalance && l.Plan.Status == coordinator.Done
	})
	stop() // which would replace the one whose lease ends first
	s.kill("c")
	s.kill("d")
	s.await("both are seen to be gone", func(l *coordinator.Steered) bool { return !l.Map.Alive("c") && !l.Map.Alive("d") })
	s.coordinate("two", nil)
	l = s.await("an alarm", func(l *coordinator.Steered) bool {
		return slices.ContainsFunc(l.Notes.Alarms, func(a coordinator.Alarm) bool { return a.What == "mass_loss" })
	})
	if l.Plan.Kind == coordinator.Repair {
		t.Error("half of the cluster is replaced without a word")
	}
	s.begin(coordinator.Request{Kind: coordinator.Repair, Nodes: []millrace.NodeID{"c", "d"}, Lossy: true})
	l = s.await("both are given up", func(l *coordinator.Steered) bool {
		return l.Plan.Kind == coordinator.Repair && l.Plan.Status == coordinator.Done
	})
	if n := hosts(l); n["a"] != 720 || n["b"] != 720 || !s.served(l, 2) {
		t.Errorf("%v", n)
	}
}

// Where no other node can take what a lost one hosted, a node that is added takes it: the
// coordinator has given the lost one up, and so does the plan.
func TestANodeTakesWhatNobodyElseCould(t *testing.T) {
	t.Parallel()
	s := newEstate(t, "a", "b", "c")
	s.coordinate("one", nil)
	s.begin(coordinator.Request{Kind: coordinator.Resize, Replicas: 3})
	s.await("all three have all", func(l *coordinator.Steered) bool { return l.Plan.Status == coordinator.Done })
	propose := func(l *coordinator.Steered, r coordinator.Request) *coordinator.Proposal {
		t.Helper()
		r.By = "test"
		p, err := coordinator.Propose(l, nil, r, time.Now())
		check(t, err)
		return p
	}
	s.start("d")
	s.kill("c")
	add := coordinator.Request{Kind: coordinator.Add, Nodes: []millrace.NodeID{"d"}}
	l := s.await("c is seen to be gone, and d is there", func(l *coordinator.Steered) bool { return !l.Map.Alive("c") && l.Map.Alive("d") })
	if err := propose(l, add).Err(); err != nil {
		t.Errorf("d is added while c is waited for: %v", err)
	}
	if err := propose(l, coordinator.Request{Kind: coordinator.Rebalance}).Err(); err == nil || !strings.Contains(err.Error(), "millrace node remove") {
		t.Errorf("all is spread anew while c is waited for: %v", err)
	}
	l = s.await("an alarm", func(l *coordinator.Steered) bool {
		return slices.ContainsFunc(l.Notes.Alarms, func(a coordinator.Alarm) bool { return a.What == "no_repair" })
	})
	if !slices.Equal(l.Notes.GivenUp, []millrace.NodeID{"c"}) {
		t.Errorf("%q are given up", l.Notes.GivenUp)
	}
	p := propose(l, add)
	for q, owners := range p.Goal {
		if p.Err() != nil || len(owners) != 3 || slices.Contains(owners, "c") {
			t.Fatalf("partition %d is to be on %q: %v", q, owners, p.Err())
		}
	}
	s.begin(add)
	s.await("d has all of c", func(l *coordinator.Steered) bool {
		return l.Plan.Kind == coordinator.Add && l.Plan.Status == coordinator.Done && hosts(l)["d"] == 720 && s.served(l, 3) && len(l.Notes.Alarms) == 0
	})
}

// One of two nodes that is gone for good is given up though no other can take what it
// hosted; a node that is added then takes it.
func TestOneOfTwoNodesIsGivenUp(t *testing.T) {
	t.Parallel()
	s := newEstate(t, "a", "b")
	s.coordinate("one", nil)
	s.kill("b")
	s.await("an alarm", func(l *coordinator.Steered) bool {
		return slices.ContainsFunc(l.Notes.Alarms, func(a coordinator.Alarm) bool { return a.What == "mass_loss" })
	})
	s.begin(coordinator.Request{Kind: coordinator.Repair, Nodes: []millrace.NodeID{"b"}, Lossy: true})
	l := s.await("b is given up", func(l *coordinator.Steered) bool {
		return l.Plan != nil && l.Plan.Status == coordinator.Done && l.Intent.Nodes["b"].Lost
	})
	if n := hosts(l); len(l.Plan.Moves) != 0 || n["a"] != 720 || n["b"] != 720 {
		t.Errorf("%v, %d moves", n, len(l.Plan.Moves))
	}
	s.start("c")
	s.await("c is there", func(l *coordinator.Steered) bool { return l.Map.Alive("c") })
	s.begin(coordinator.Request{Kind: coordinator.Add, Nodes: []millrace.NodeID{"c"}})
	s.await("c has all of b", func(l *coordinator.Steered) bool {
		return l.Plan.Kind == coordinator.Add && l.Plan.Status == coordinator.Done && hosts(l)["c"] == 720 && s.served(l, 2) && len(l.Notes.Alarms) == 0
	})
}

// Replicas that differ are told until a comparison that saw all of them finds none,
// or another leadership begins, which knows nothing of them.
func TestDifferencesAreToldUntilTheyAreNone(t *testing.T) {
	s := newEstate(t, "a", "b")
	s.coordinate("one", nil)
	one := s.role["one"]
	told := func(want string) {
		t.Helper()
		s.await("the alarm says "+want, func(l *coordinator.Steered) bool {
			i := slices.IndexFunc(l.Notes.Alarms, func(a coordinator.Alarm) bool { return a.What == "replicas_differ" })
			return i < 0 && want == "" || i >= 0 && l.Notes.Alarms[i].Detail == want
		})
	}
	s.await("one leads", func(l *coordinator.Steered) bool { return l.Notes.Leader == "one" })
	type found = map[millrace.Partition]string
	one.Differ(found{17: "17 differs", 18: "18 differs"})
	told("2 differences, such as: 17 differs")
	one.Differ(found{19: "19 differs"}, 16, 17, 18) // of which a node does not answer
	told("3 differences, such as: 17 differs")
	one.Differ(found{18: "18 differs still"}, 17, 19)
	told("3 differences, such as: 17 differs")
	one.Differ(found{18: "18 differs still"}, 19)
	told("2 differences, such as: 18 differs still")
	one.Differ(nil)
	told("")
	one.Differ(found{17: "17 differs"})
	told("1 differences, such as: 17 differs")
	depose(t, s.look)
	one.Differ(found{18: "18 differs"}) // which it cannot write: so it leads anew
	told("")
}

// Nodes that a plan waits for are given up while it is under way, also when it is
// rolled back: it goes on to another end.
func TestNodesOfAPlanAreGivenUp(t *testing.T) {
	for _, o := range []coordinator.Order{"", coordinator.Rollback, coordinator.Cancel} {
		t.Run(string(o), func(t *testing.T) {
			t.Parallel()
			s := newEstate(t, "a", "b", "c", "d")
			stop := s.coordinate("one", nil)
			s.begin(coordinator.Request{Kind: coordinator.Drain, Nodes: []millrace.NodeID{"d"}, Limits: coordinator.Limits{PerNode: 1, PerSecond: 1}})
			s.await("some are moved", func(l *coordinator.Steered) bool { return l.Progress(time.Now()).Moves[coordinator.Moved] > 2 })
			stop() // which would give up the one whose lease ends first
			s.kill("c")
			s.kill("d")
			if o != "" {
				if _, err := coordinator.Command(t.Context(), s.look, o, "test", agreed); err != nil {
					t.Fatal(err)
				}
			}
			s.await("both are seen to be gone", func(l *coordinator.Steered) bool { return !l.Map.Alive("c") && !l.Map.Alive("d") })
			s.coordinate("two", nil)
			s.await("an alarm", func(l *coordinator.Steered) bool {
				return slices.ContainsFunc(l.Notes.Alarms, func(a coordinator.Alarm) bool { return a.What == "mass_loss" })
			})
			s.begin(coordinator.Request{Kind: coordinator.Repair, Nodes: []millrace.NodeID{"c", "d"}, Lossy: true})
			l := s.await("the end", func(l *coordinator.Steered) bool { return l.Plan.Status.Ended() })
			if n := hosts(l); n["a"] != 720 || n["b"] != 720 || !s.served(l, 2) || l.Plan.Kind != coordinator.Drain && o != coordinator.Cancel { // which may have ended
				t.Errorf("%s %s: %v", l.Plan.Kind, l.Plan.Status, n)
			}
		})
	}
}

// A leader that is frozen at any step, for longer than its leadership lasts, and
// wakes when another has gone on, changes nothing more.
func TestAFrozenLeaderChangesNothing(t *testing.T) {
	times := []int{3}
	if *steps {
		times = []int{1, 2, 3, 5, 8, 13, 21}
	}
	for _, step := range []string{"read", "write", "written"} {
		for _, nth := range times {
			t.Run(fmt.Sprint(step, nth), func(t *testing.T) {
				t.Parallel()
				s := newEstate(t, "a", "b", "c")
				frozen, wake := make(chan struct{}), make(chan struct{})
				var once sync.Once
				n := 0
				s.start("d")
				s.await("d is there", func(l *coordinator.Steered) bool { return l.Map.Alive("d") })
				s.begin(coordinator.Request{Kind: coordinator.Rebalance})
				s.coordinate("one", func(at string) {
					if at == step {
						n++
					}
					if at == step && n == nth {
						once.Do(func() { close(frozen); <-wake })
					}
				})
				<-frozen
				depose(t, s.look) // as its lease does
				stop := s.coordinate("two", nil)
				s.await("the other one has ended the plan", func(l *coordinator.Steered) bool {
					return l.Plan.Status == coordinator.Done && l.Notes.Leader == "two"
				})
				stop()
				_, err := s.open().Lead(t.Context(), cluster.Leader{Name: "three"}) // which does nothing
				check(t, err)
				before := s.await("", func(*coordinator.Steered) bool { return true })
				close(wake)
				s.await("the first one waits again, or has written", func(l *coordinator.Steered) bool {
					leads, _ := s.role["one"].Leads()
					return !leads || l.Notes.Leader == "one"
				})
				after := s.await("", func(*coordinator.Steered) bool { return true })
				if after.Assignment.Epoch != before.Assignment.Epoch || !maps.Equal(after.Documents, before.Documents) {
					t.Errorf("epoch %d became %d, by %s", before.Assignment.Epoch, after.Assignment.Epoch, after.Notes.Leader)
				}
				if !s.served(after, 2) || len(after.Plan.Moves) != 360 {
					t.Errorf("%d moves", len(after.Plan.Moves))
				}
			})
		}
	}
}

// Every order that makes no sense now is refused with a way out.
func TestOrdersAreRefused(t *testing.T) {
	s := newEstate(t, "a", "b", "c")
	for name, do := range map[string]func() error{
		"pause": func() error {
			_, err := coordinator.Command(t.Context(), s.look, coordinator.Pause, "test", agreed)
			return err
		},
		"nobody": func() error {
			return s.try(coordinator.Request{Kind: coordinator.Drain, Nodes: []millrace.NodeID{"x"}})
		},
		"self": func() error {
			return s.try(coordinator.Request{Kind: coordinator.Replace, Nodes: []millrace.NodeID{"a", "a"}})
		},
		"gone": func() error {
			return s.try(coordinator.Request{Kind: coordinator.Replace, Nodes: []millrace.NodeID{"a", "x"}})
		},
		"moves per node":   func() error { return s.try(limited(coordinator.Limits{PerNode: -1})) },
		"moves per second": func() error { return s.try(limited(coordinator.Limits{PerSecond: -1})) },
		"bytes per second": func() error { return s.try(limited(coordinator.Limits{BytesPerSecond: -1 << 20})) },
	} {
		var e *millrace.Error
		if err := do(); !errors.As(err, &e) || e.WayOut == "" || strings.Contains(err.Error(), "<nil>") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An order is for the plan that was looked at: not for one that another began, nor
// for what became of it, while somebody thought.
func TestOrdersAreForThePlanThatWasSeen(t *testing.T) {
	s := newEstate(t, "a", "b", "c", "d")
	s.begin(coordinator.Request{Kind: coordinator.Drain, Nodes: []millrace.NodeID{"a"}})
	order := func(o coordinator.Order, meanwhile func()) (*coordinator.Plan, error) {
		return coordinator.Command(t.Context(), s.look, o, "test", func(*coordinator.Steered) error { meanwhile(); return nil })
	}
	now := func() *coordinator.Plan {
		return s.await("", func(*coordinator.Steered) bool { return true }).Plan
	}
	refused := func(what string, err error) {
		t.Helper()
		var e *millrace.Error
		if !errors.As(err, &e) || e.WayOut == "" || !strings.Contains(e.Detail, "the plan has changed") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := order(coordinator.Rollback, func() {
		_, err := order(coordinator.Cancel, func() {})
		check(t, err)
	})
	refused("a rollback of what is cancelled meanwhile", err)
	stop := s.coordinate("one", nil)
	s.await("it is cancelled", func(l *coordinator.Steered) bool { return l.Plan.Status.Ended() })
	stop()
	first := now().ID
	_, err = order(coordinator.Rollback, func() {
		s.begin(coordinator.Request{Kind: coordinator.Drain, Nodes: []millrace.NodeID{"b"}})
	})
	refused("a rollback of a plan that another follows", err)
	if p := now(); p.ID == first || p.Status != coordinator.Running {
		t.Errorf("the plan that was begun meanwhile is %s", p.Status)
	}
	if p, err := order(coordinator.Pause, func() {}); err != nil || p.Status != coordinator.Paused {
		t.Errorf("an order for the plan as it is: %v", err)
	}
	next, _, err := steering.Assigned(t.Context(), s.look)
	check(t, err)
	next.Epoch++
	var e *millrace.Error
	if err := coordinator.Assign(t.Context(), s.look, next, false); !errors.As(err, &e) || e.Field != "plan" || e.WayOut == "" {
		t.Errorf("an assignment while a plan is under way: %v", err)
	}
}

// A step that somebody's change overtakes has begun nothing, and so nothing waits for it.
func TestAStepThatIsOvertakenPaysNothing(t *testing.T) {
	s := newEstate(t, "a", "b", "c", "d")
	s.begin(coordinator.Request{Kind: coordinator.Drain, Nodes: []millrace.NodeID{"a"}, Limits: coordinator.Limits{PerSecond: 1}})
	races := true
	c, err := coordinator.New(coordinator.Config{Cluster: s.look, Name: "one", Log: slog.New(slog.DiscardHandler)}.At(func(step string) {
		if step == "write" && races {
			check(t, steering.Change(t.Context(), s.look, nil, func(raw *steering.State) error { raw.Documents["other"] = "theirs"; return nil }))
		}
	}))
	check(t, err)
	lead, err := s.look.Lead(t.Context(), cluster.Leader{Name: "one"})
	check(t, err)
	defer lead.Resign(t.Context())
	if paid, err := c.Step(t.Context(), lead); paid || !errors.Is(err, steering.ErrRaced) {
		t.Errorf("overtaken: it has begun moves: %t; %v", paid, err)
	}
	races = false
	if paid, err := c.Step(t.Context(), lead); !paid || err != nil {
		t.Errorf("alone: it has begun moves: %t; %v", paid, err)
	}
}

func limited(l coordinator.Limits) coordinator.Request {
	return coordinator.Request{Kind: coordinator.Rebalance, Limits: l}
}

func (s *estate) try(r coordinator.Request) error {
	_, err := coordinator.Start(s.t.Context(), s.look, r, func(*coordinator.Proposal) error { return nil })
	return err
}

// The last replica of a partition does not go, whoever asks for it (input 87).
func TestTheLastReplicaStays(t *testing.T) {
	s := newEstate(t, "a", "b")
	s.coordinate("one", nil)
	if err := s.try(coordinator.Request{Kind: coordinator.Drain, Nodes: []millrace.NodeID{"a"}}); err == nil {
		t.Error("a cluster of two with two replicas is drained to one without an override")
	}
	if err := s.try(coordinator.Request{Kind: coordinator.Drain, Nodes: []millrace.NodeID{"a", "b"}, Lossy: true}); err == nil {
		t.Error("every node is drained")
	}
	if err := s.try(coordinator.Request{Kind: coordinator.Resize, Replicas: 1}); err == nil {
		t.Error("redundancy goes without an override")
	}
	s.begin(coordinator.Request{Kind: coordinator.Resize, Replicas: 1, Lossy: true})
	s.await("there is one replica of each", func(l *coordinator.Steered) bool { return l.Plan != nil && l.Plan.Status == coordinator.Done })
	s.begin(coordinator.Request{Kind: coordinator.Drain, Nodes: []millrace.NodeID{"a"}})
	l := s.await("a is drained", func(l *coordinator.Steered) bool {
		return l.Plan.Kind == coordinator.Drain && l.Plan.Status == coordinator.Done
	})
	if n := hosts(l); n["b"] != 720 || !s.served(l, 1) {
		t.Errorf("%v", n)
	}
}

func agreed(*coordinator.Steered) error { return nil }

// What has more replicas than are wanted is nobody's surplus while a plan is under way, and
// any plan takes it away, though nothing else moves.
func TestAPlanTakesSurplusAway(t *testing.T) {
	s := newEstate(t, "a", "b", "c")
	check(t, steering.Change(t.Context(), s.look, nil, func(of *steering.State) error {
		of.Assignment.Replicas[7] = []millrace.NodeID{"a", "b", "c"}
		return nil
	}))
	surplus := func(what string, want, unplanned string) {
		t.Helper()
		s.await(what, func(l *coordinator.Steered) bool {
			all, left := l.Map.Surplus(), l.Surplus()
			return all.Ranges() == want && left.Ranges() == unplanned
		})
	}
	surplus("it is assigned", "7", "7")
	s.begin(coordinator.Request{Kind: coordinator.Rebalance, Gain: 1})
	surplus("a plan is under way", "7", "")
	s.coordinate("one", nil)
	surplus("it is gone", "", "")
	s.await("nothing else moved", func(l *coordinator.Steered) bool {
		return l.Plan.Status == coordinator.Done && len(l.Plan.Moves) == 1
	})
}

// depose ends the leadership of whoever has it, so that another leads: for a process that
// lives and does nothing.
func depose(t *testing.T, c *cluster.Client) {
	t.Helper()
	_, err := c.Etcd().Delete(t.Context(), c.LeaderKey())
	check(t, err)
}
