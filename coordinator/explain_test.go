package coordinator

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// What a plan did before it was told to go back says nothing of how long that
// takes.
func TestProgressIsOfTheLastOrder(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
	w.add("n3")
	p := w.to([]millrace.NodeID{"n0", "n1", "n2", "n3"}, 2)
	began := time.Unix(1_800_000_000, 0).UTC()
	p.Created, p.Since = began, began.Add(time.Hour)
	for i := range p.Moves {
		m := &p.Moves[i]
		m.Bytes = 1 << 20
		switch {
		case i < 100:
			m.State, m.Since = Moved, began.Add(time.Minute)
		case i < 110:
			m.State, m.Since = Moved, p.Since.Add(time.Duration(i-99)*time.Second)
		}
	}
	s := &Steered{State: &steering.State{Assignment: w.a, Map: w.evidence().nodes}, Plan: p}
	pr := s.Progress(p.Since.Add(10 * time.Second))
	if left := float64(len(p.Moves) - 110); pr.Rate != 1<<20 || pr.Left != left || pr.Done != 110<<20 {
		t.Errorf("%d bytes are done, at %.0f a second, %.0f s are left, not %.0f", pr.Done, pr.Rate, pr.Left, left)
	}
	p.Since = p.Since.Add(-10 * time.Minute) // so the first took long
	now, left := p.Moves[109].Since, float64(len(p.Moves)-110)
	if pr := s.Progress(now); pr.Left != left {
		t.Errorf("%.0f s are left, not %.0f", pr.Left, left)
	}
	for i := 100; i < 110; i++ { // the large ones are done, and so many begin a second
		p.Moves[i].Bytes = 10 << 20
	}
	if pr := s.Progress(now); pr.Left != left {
		t.Errorf("%.0f s are left by bytes, not %.0f by moves", pr.Left, left)
	}
	p.Moves[150].State, p.Moves[150].Since = Building, now
	full := topology.EncodeReports([]topology.Report{{State: "assigned", Reason: topology.DiskFullReason, Partitions: topology.All()}})
	s.Map, _ = s.Map.Next(&keyspace.Snapshot{Values: map[string]keyspace.Value{"state/" + string(p.Moves[150].To): {Data: full}}})
	if pr := s.Progress(now); pr.Left != -1 {
		t.Errorf("%.0f s are left while a disk is full", pr.Left)
	}
	for i := 101; i < 110; i++ {
		p.Moves[i].State = Waiting
	}
	p.Moves[150].State = Waiting
	if pr := s.Progress(now); pr.Left != -1 {
		t.Errorf("%.0f s are left after one move", pr.Left)
	}
}

// Explain says of each move of a partition where it is, for how long, and what it
// waits for.
func TestExplainSaysWhatMovesWaitFor(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
	w.add("n3")
	p := &Plan{ID: "p", Status: Running, Wanted: 2, BaseWanted: 2, Base: Layout(w.a.Replicas), Since: w.now}
	for q := range millrace.Partition(20) {
		p.Moves = append(p.Moves, Move{Partition: q, From: w.a.Replicas[q][0], To: "n3", State: Waiting})
	}
	w.now = w.now.Add(time.Minute)
	p.begin(&p.Moves[0], &w.a, w.now)
	p.begin(&p.Moves[1], &w.a, w.now)
	p.end(&p.Moves[1], &w.a, w.now)
	p.Moves[3].Bytes = 5 << 20
	w.now = w.now.Add(time.Second)
	for name, c := range map[string]struct {
		move    int
		change  func(*evidence, *Plan)
		replica string
		detail  string
		seconds float64
	}{
		"it is begun":      {0, nil, "assigned", "", 1},
		"its node is gone": {0, func(e *evidence, _ *Plan) { delete(w.alive, "n3") }, "gone", "n3 is not there", 1},
		"it is ready":      {0, func(*evidence, *Plan) { w.ready["n3"] = topology.All() }, "ready", string(p.Moves[0].From) + " goes when as many serve as are wanted", 1},
		"another is not": {0, func(*evidence, *Plan) {
			w.ready["n3"], w.ready[w.a.Replicas[0][1]] = topology.All(), topology.Set{}
		}, "ready", string(p.Moves[0].From) + " goes when as many serve as are wanted, and " + string(w.a.Replicas[0][1]) + " does not serve it yet", 1},
		"it is ready, paused": {0, func(_ *evidence, p *Plan) { w.ready["n3"], p.Status = topology.All(), Paused }, "ready", string(p.Moves[0].From) + " stays while the plan is paused", 1},
		"it is done":          {1, nil, "done", "", 1},
		"its turn":            {2, nil, "waiting", "its turn: 1 moves to n3 are under way, and 0 others wait before it", 61},
		"its turn, later":     {12, nil, "waiting", "its turn: 1 moves to n3 are under way, and 10 others wait before it", 61},
		"the plan is paused":  {2, func(_ *evidence, p *Plan) { p.Status = Paused }, "waiting", "the plan is paused", 61},
		"nobody is there":     {2, func(*evidence, *Plan) { delete(w.alive, "n3") }, "waiting", "n3 is not there", 61},
		"no room": {3, func(e *evidence, p *Plan) {
			e.stats["n3"] = members.NodeStats{DiskBytes: 100 << 20, FreeBytes: 9 << 20, KeptBytes: 2 << 20}
			p.Moves[0].Bytes = 3 << 20
		}, "waiting", "n3 has no room: 9 MiB are free, of which 2 stay so and 3 are for moves under way, and it takes 5", 61},
	} {
		plan := *p
		plan.Moves = slices.Clone(p.Moves)
		for _, id := range []millrace.NodeID{"n0", "n1", "n2"} {
			w.ready[id] = w.a.Hosted(id)
		}
		w.alive["n3"], w.ready["n3"] = true, topology.Set{}
		e := w.evidence()
		if c.change != nil {
			c.change(e, &plan)
		}
		s := &Steered{State: &steering.State{Assignment: w.a, Map: w.evidence().nodes}, Plan: &plan}
		x, err := s.Explain(e.stats, plan.Moves[c.move].Partition, "n3", w.now)
		if err != nil || len(x.Moves) != 1 || x.Moves[0].Replica != c.replica || x.Moves[0].Detail != c.detail || x.Moves[0].Seconds != c.seconds {
			t.Errorf("%s: %+v, %v; want %s for %.0f s: %s", name, x.Moves, err, c.replica, c.seconds, c.detail)
		}
	}
}

// What moves wait for that cannot begin is counted, the most frequent first; not what only
// waits for its turn, nor what a paused plan would wait for.
func TestWaitsAreCounted(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
	w.add("n4")
	p := &Plan{ID: "p", Status: Running, Wanted: 2, BaseWanted: 2, Base: Layout(w.a.Replicas), Since: w.now}
	for q := range millrace.Partition(20) {
		to, bytes := millrace.NodeID("n3"), int64(0) // nobody
		if q%3 == 0 {
			to, bytes = "n4", int64(q)<<20
		}
		p.Moves = append(p.Moves, Move{Partition: q, From: w.a.Replicas[q][0], To: to, State: Waiting, Bytes: bytes})
	}
	e := w.evidence()
	e.stats["n4"] = members.NodeStats{DiskBytes: 100 << 20, FreeBytes: 9 << 20, KeptBytes: 2 << 20}
	s := &Steered{State: &steering.State{Assignment: w.a, Map: e.nodes}, Plan: p}
	want := []Wait{{13, "n3 is not there"}, {4, "n4 has no room: 9 MiB are free, of which 2 stay so and 0 are for moves under way, and it takes 9"}}
	if got := s.Waits(e.stats, w.now); !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
	for _, status := range []Status{Paused, Done} {
		if p.Status = status; len(s.Waits(e.stats, w.now)) != 0 {
			t.Errorf("%s: %+v", status, s.Waits(e.stats, w.now))
		}
	}
}

// What a coordinator does is told of the plan that it is of, also of a repair after
// another plan, and of a plan to which more happened than its log keeps.
func TestWhatIsDoneIsTold(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 4, 2)
	delete(w.alive, "n0")
	e := w.evidence()
	e.givenUp["n0"] = true
	at := &Coordinator{cfg: Config{}.withDefaults(), pace: pace{limits: Limits{PerNode: 20}}}
	s := &Steered{State: &steering.State{Assignment: w.a, Map: e.nodes}, Plan: &Plan{ID: "p", Status: Done}}
	s.Plan.note(w.now, "begun by me: to see")
	s.Plan.note(w.now, "done")
	did := at.do(s, e)
	if len(did) != 2 || !strings.Contains(did[0], s.Plan.ID+": begun by coordinator") || !strings.Contains(did[1], "its replicas are made elsewhere") {
		t.Errorf("of a repair: %q", did)
	}
	for n := range maxEvents {
		s.Plan.note(w.now, "%d", n)
	}
	if did = at.do(s, e); len(did) != 0 {
		t.Errorf("nothing happened: %q", did)
	}
	delete(w.alive, "n1")
	e = w.evidence()
	e.givenUp["n0"], e.givenUp["n1"] = true, true
	s.Map = e.nodes
	if did = at.do(s, e); len(did) != 1 || !strings.Contains(did[0], "its replicas are made elsewhere") {
		t.Errorf("of a second node: %q", did)
	}
}

// Explain says since when a replica is where it is, as far as the last plan knows.
func TestExplainSaysSinceWhen(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
	w.add("n3")
	s := &Steered{State: &steering.State{Assignment: w.a, Map: w.evidence().nodes}}
	why := func(p millrace.Partition, id millrace.NodeID) string {
		t.Helper()
		x, err := s.Explain(nil, p, id, w.now)
		if err != nil || len(x.Replicas) != 1 {
			t.Fatalf("%+v, %v", x, err)
		}
		return x.Replicas[0].Why
	}
	stays, goes := w.a.Replicas[0][0], w.a.Replicas[0][1]
	if got := why(0, stays); got != fmt.Sprintf("assigned by epoch %d", w.a.Epoch) {
		t.Errorf("without a plan: %s", got)
	}
	p := &Plan{ID: "p", Kind: Add, Why: "n3 is to host its share", Status: Running, Wanted: 2, Base: Layout(w.a.Replicas), Created: w.now.UTC()}
	p.Moves = []Move{{From: goes, To: "n3", State: Waiting}}
	w.now = w.now.Add(time.Minute)
	p.begin(&p.Moves[0], &w.a, w.now)
	p.end(&p.Moves[0], &w.a, w.now)
	s.Plan, s.Assignment = p, w.a
	if got, want := why(0, stays), "it was here before 2001-09-09T01:46:40Z, when plan p (add) began"; got != want {
		t.Errorf("what stays: %s, want %s", got, want)
	}
	if got, want := why(0, "n3"), "plan p (add) brought it 2001-09-09T01:47:40Z: n3 is to host its share"; got != want {
		t.Errorf("what came: %s, want %s", got, want)
	}
}

// Explain knows nodes that back up and nodes that are gone, by the rules of the
// planner.
func TestExplainKnowsNodesThatServeNobody(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
	alive := []topology.Node{{ID: "n0", Addr: "a:1"}, {ID: "n1", Addr: "a:1"}, {ID: "keeper", Addr: "a:1", Keeps: "0-719"}}
	s := &Steered{State: &steering.State{Assignment: w.a, Map: topology.NewMap(w.a, alive, nil)}}
	p := millrace.Partition(0)
	for slices.Contains(w.a.Replicas[p], "n2") {
		p++
	}
	for node, want := range map[millrace.NodeID]string{"keeper": "backup_only: keeper reads and backs up", "n2": "away: n2 is not there, and gets nothing until it is back"} {
		x, err := s.Explain(nil, p, node, w.now)
		if err != nil || len(x.Elsewhere) != 1 || !strings.Contains(x.Elsewhere[0].Rule+": "+x.Elsewhere[0].Detail, want) {
			t.Errorf("%s: %+v, %v; want %q", node, x.Elsewhere, err, want)
		}
	}
	if made, err := s.solve(&evidence{now: w.now, nodes: s.Map}, 2, Layout(w.a.Replicas), everybody, 0); err != nil || (*Layout)(&made.Goal).hosts("keeper") {
		t.Errorf("a node that backs up is given replicas: %v", err)
	}
}

// While a plan brings partitions more replicas than were wanted before, those grow that have
// as many ready as were wanted, and are no outage; one that has fewer is.
func TestWhatGrowsIsNoOutage(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
	p := w.to([]millrace.NodeID{"n0", "n1", "n2"}, 3)
	s := &Steered{State: &steering.State{Assignment: w.a, Map: w.evidence().nodes}, Plan: p}
	ready := w.ready["n0"]
	lost := w.a.Hosted("n0")
	w.ready["n0"] = topology.Set{}
	fewer := &Steered{State: &steering.State{Assignment: w.a, Map: w.evidence().nodes}, Plan: p}
	w.ready["n0"] = ready
	all := topology.All()
	if got := fewer.Growing(); s.Growing() != all || got != all.Minus(lost) {
		grown := s.Growing()
		t.Errorf("%d grow, and %d of %d that have lost none", grown.Len(), got.Len(), 720-lost.Len())
	}
	for _, ends := range []func(){func() { p.BaseWanted = 3 }, func() { p.BaseWanted, p.Status = 2, Done }} {
		if ends(); s.Growing() != (topology.Set{}) {
			t.Errorf("%s, from %d to %d: some grow", p.Status, p.BaseWanted, p.Wanted)
		}
	}
}

// A move whose new replica is ready waits for nobody while enough others serve, though
// another one of its partition is being built.
func TestWhoIsBuiltHoldsNobodyUp(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
	w.add("n3")
	w.add("n4")
	from := w.a.Replicas[0]
	p := &Plan{ID: "p", Status: Running, Wanted: 2, BaseWanted: 2, Base: Layout(w.a.Replicas), Since: w.now, Moves: []Move{{Partition: 0, From: from[0], To: "n3", State: Building}, {Partition: 0, From: from[1], To: "n4", State: Building}}}
	a := w.a.Clone()
	a.Replicas[0] = append(slices.Clone(from), "n3", "n4")
	w.a = a
	held := func() map[millrace.NodeID]Held {
		s := &Steered{State: &steering.State{Assignment: w.a, Map: w.evidence().nodes}, Plan: p}
		return s.Progress(w.now).Holding
	}
	w.ready["n3"] = topology.All()
	if got := held(); len(got) != 0 {
		t.Errorf("while enough serve it waits for %v", got)
	}
	gone := w.ready[from[1]]
	gone.Remove(0)
	w.ready[from[1]] = gone
	if got := held(); len(got) != 1 || got[from[1]].Moves != 1 {
		t.Errorf("while %s does not serve it waits for %v", from[1], got)
	}
}
