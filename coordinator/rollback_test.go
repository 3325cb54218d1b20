package coordinator

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/coordinator/plan"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/partition"
)

// A node that a plan leads to and that is gone is given up by hand, too, though it
// hosts nothing; one that nobody has heard of is not.
func TestWhoAPlanLeadsToIsGivenUpByHand(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
	w.add("n3")
	p := w.to([]millrace.NodeID{"n0", "n1", "n2", "n3"}, 2)
	delete(w.alive, "n3")
	s := &Steered{State: &steering.State{Assignment: w.a, Map: w.evidence().nodes}, Plan: p}
	pr, err := Propose(s, nil, Request{Kind: Repair, Nodes: []millrace.NodeID{"n3"}, By: "me"}, w.now)
	if err != nil || pr.Err() != nil || pr.Goal.hosts("n3") {
		t.Errorf("n3 is not given up: %v", err)
	}
	if _, err := Propose(s, nil, Request{Kind: Repair, Nodes: []millrace.NodeID{"n4"}, By: "me"}, w.now); err == nil {
		t.Error("a node is given up that is not heard of")
	}
}

// A rollback to a node that is gone for good ends: what it cannot be given back stays
// where it is.
func TestARollbackEndsWithoutWhoIsGone(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 2, 2)
	base := Layout(w.a.Replicas)
	base = base.clone()
	w.add("n2")
	goal, err := topology.Spread([]millrace.NodeID{"n0", "n2"}, 2)
	if err != nil {
		t.Fatal(err)
	}
	w.a.Replicas = goal.Replicas
	delete(w.alive, "n1")
	w.ready["n2"], w.disk["n2"] = topology.All(), topology.All()
	p := &Plan{ID: "p", Kind: Add, Status: Done, Wanted: 2, BaseWanted: 2, Base: base, Marks: map[millrace.NodeID]Mark{"n2": {}}}
	s := &Steered{State: &steering.State{Assignment: w.a, Map: w.evidence().nodes}, Plan: p, Intent: Intent{Nodes: map[millrace.NodeID]Mark{"n2": {Added: true}}}}
	if err := s.order(Rollback, w.evidence(), "me"); err != nil || p.left() != 720 {
		t.Fatalf("%d moves are left: %v", p.left(), err)
	}
	pr, err := Propose(s, nil, Request{Kind: Repair, Nodes: []millrace.NodeID{"n1"}, By: "me"}, w.now)
	if err != nil || pr.Err() != nil || pr.Goal.hosts("n1") || !pr.Goal.hosts("n2") || pr.Why != "n1 is given up" || !slices.ContainsFunc(pr.After.Nodes, func(n plan.NodeBalance) bool { return n.ID == "n2" && n.Replicas == 720 }) {
		t.Errorf("n1 is not given up: %v, %+v", err, pr)
	}
	pr, err = Propose(s, nil, Request{Kind: Add, Nodes: []millrace.NodeID{"n2"}, By: "me"}, w.now)
	if err == nil {
		err = pr.Err()
	}
	if err == nil || !strings.Contains(err.Error(), "plan p (add) is rolling back: wait for its end, or cancel it;") {
		t.Errorf("another plan: %v", err)
	}
	e := w.evidence()
	e.givenUp["n1"] = true
	c := &Coordinator{}
	if err := c.repair(s, e); err != nil {
		t.Fatal(err)
	}
	p.advance(&w.a, e, &pace{})
	if p.Status != RolledBack || w.a.Hosted("n2") != topology.All() || w.a.Hosted("n0") != topology.All() {
		t.Errorf("%s, %d moves are left", p.Status, p.left())
	}
}

// A rollback takes back what its plan has said of nodes, and nothing that was said
// of others, or before.
func TestRollbacksTakeBackTheirOwnMarks(t *testing.T) {
	drains := Mark{Draining: true, By: "ann", Since: time.Unix(1e9, 0).UTC()}
	for _, c := range []struct {
		kind  Kind
		nodes []millrace.NodeID
	}{{Add, []millrace.NodeID{"n4"}}, {Replace, []millrace.NodeID{"n0", "n3"}}, {Drain, []millrace.NodeID{"n0"}}, {Rebalance, nil}} {
		w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
		w.add("n3")
		w.add("n4")
		before := Intent{Nodes: map[millrace.NodeID]Mark{"n1": drains, "n3": drains}} // n1 hosts something yet
		s := &Steered{State: &steering.State{Assignment: w.a, Map: w.evidence().nodes}, Intent: before.clone()}
		pr, err := Propose(s, nil, Request{Kind: c.kind, Nodes: c.nodes, By: "me", Lossy: true}, w.now)
		if err != nil {
			t.Fatalf("%s: %v", c.kind, err)
		}
		s.Plan, s.Intent = pr.Plan, pr.intent
		if err := s.order(Rollback, w.evidence(), "me"); err != nil || !maps.Equal(s.Intent.Nodes, before.Nodes) {
			t.Errorf("%s: %+v, %v", c.kind, s.Intent.Nodes, err)
		}
	}
}

// A cancelled plan ends also where partitions have lost the replica already that they
// were to lose, and one that replaces another is under way, ready or not.
func TestACancelledShrinkEnds(t *testing.T) {
	for _, ready := range []bool{false, true} {
		w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 3)
		w.add("n3")
		p := &Plan{ID: "p", Kind: Resize, Status: Running, Wanted: 2, BaseWanted: 3, Base: Layout(w.a.Replicas), Limits: Limits{PerNode: 720}, Marks: map[millrace.NodeID]Mark{}}
		p.Base = p.Base.clone()
		p.Moves = []Move{{Partition: 0, From: "n0", State: Waiting}, {Partition: 0, From: "n1", To: "n3", State: Waiting}}
		w.step(t, p)
		w.step(t, p)
		p.Moves = append(p.Moves, Move{Partition: 1, From: "n0", State: Waiting})
		if ready {
			w.ready["n3"] = w.a.Hosted("n3")
		}
		s := &Steered{State: &steering.State{Assignment: w.a, Map: w.evidence().nodes}, Plan: p}
		if err := s.order(Cancel, w.evidence(), "me"); err != nil {
			t.Fatal(err)
		}
		w.ready["n3"] = w.a.Hosted("n3")
		w.step(t, p)
		if !p.Status.Ended() || len(w.a.Replicas[0]) != 3 || w.a.Wanted != 3 {
			t.Errorf("ready: %t: %s, %v, of %d that are wanted", ready, p.Status, w.a.Replicas[0], w.a.Wanted)
		}
	}
}

// replaces begins a plan that replaces a node by another one, with so many moves at a time.
func (w *world) replaces(t *testing.T, gives, takes millrace.NodeID, perNode int) (*Steered, *Coordinator) {
	t.Helper()
	s := &Steered{State: &steering.State{Assignment: w.a, Map: w.evidence().nodes}}
	pr, err := Propose(s, nil, Request{Kind: Replace, Nodes: []millrace.NodeID{gives, takes}, By: "me", Limits: Limits{PerNode: perNode}}, w.now)
	if err != nil {
		t.Fatal(err)
	}
	s.Plan, s.Intent = pr.Plan, pr.intent
	return s, &Coordinator{cfg: Config{}.withDefaults(), since: map[string]time.Time{}}
}

// A replacement in which another node is lost for good, and nobody can take what that
// hosted, ends when it is cancelled, before or after that node is given up: who was to give
// way serves in place of the lost one, and is not to host nothing any more. A node that
// comes then can be added.
func TestACancelledReplacementEndsWithoutWhoIsGone(t *testing.T) {
	for _, c := range []struct {
		name           string
		early, byHands bool // the node is given up after the plan is cancelled; by a person
	}{{"given up before", false, false}, {"given up after", true, false}, {"given up by hand", true, true}} {
		w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 3)
		w.add("n3")
		s, at := w.replaces(t, "n0", "n3", 720)
		look := func(givenUp bool) {
			w.live()
			e := w.evidence()
			e.givenUp["n1"] = givenUp
			if !givenUp {
				delete(e.givenUp, "n1")
			}
			s.Assignment, s.Map, s.Notes = w.a, e.nodes, Notes{GivenUp: slices.Collect(maps.Keys(e.givenUp))}
			at.do(s, e)
			w.a = s.Assignment
			s.Map = w.evidence().nodes
		}
		w.alive["n1"] = false
		for range 60 {
			look(!c.early)
		}
		if err := s.order(Cancel, w.evidence(), "me"); err != nil {
			t.Fatal(err)
		}
		if look(!c.early); c.byHands {
			pr, err := Propose(s, nil, Request{Kind: Repair, Nodes: []millrace.NodeID{"n1"}, By: "me", Lossy: true}, w.now)
			if err != nil || pr.Err() != nil || pr.intent.Nodes["n0"].Draining {
				t.Fatalf("%s: %v, %v, %+v", c.name, err, pr.Err(), pr.intent)
			}
			s.Plan, s.Intent = pr.Plan, pr.intent
		}
		for range 5 {
			look(true)
		}
		if s.Plan.Status != Cancelled {
			t.Fatalf("%s: %s, %d moves are left: %+v", c.name, s.Plan.Status, s.Plan.left(), s.Notes.Alarms)
		}
		for q, n := range w.counts() {
			if n != 3 || len(w.a.Replicas[q]) != 3 {
				t.Fatalf("%s: partition %d is on %v, of which %d serve", c.name, q, w.a.Replicas[q], n)
			}
		}
		if s.Intent.Nodes["n0"].Draining {
			t.Errorf("%s: n0 is to host nothing", c.name)
		}
		w.add("n4")
		s.Map = w.evidence().nodes
		pr, err := Propose(s, nil, Request{Kind: Add, Nodes: []millrace.NodeID{"n4"}, By: "me"}, w.now)
		if err != nil || pr.Err() != nil || !pr.Goal.hosts("n4") {
			t.Errorf("%s: n4 is not added: %v, %v", c.name, err, pr.Err())
		}
	}
}

// A replacement of which the node that was to take over is lost for good ends as cancelled:
// what lies safely on the node that was to give way stays there, and what was moved already
// is made elsewhere.
func TestAReplacementWithoutAnHeirIsCancelled(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 4, 2)
	w.add("n4")
	s, at := w.replaces(t, "n0", "n4", 40)
	look := func(givenUp bool) {
		w.live()
		e := w.evidence()
		if givenUp {
			e.givenUp["n4"] = true
		}
		s.Assignment, s.Map = w.a, e.nodes
		at.do(s, e)
		w.a = s.Assignment
		s.Map = w.evidence().nodes
	}
	for range 6 {
		look(false)
	}
	kept := w.a.Hosted("n0")
	w.alive["n4"] = false
	for range 300 {
		if look(true); s.Plan.Status.Ended() {
			break
		}
	}
	stayed := w.a.Hosted("n0")
	if left := kept.Minus(stayed); s.Plan.Status != Cancelled || kept.Len() == partition.Count/2 || kept.Len() == 0 || left.Len() != 0 {
		t.Errorf("%s: of %d that n0 kept, %d went", s.Plan.Status, kept.Len(), left.Len())
	}
	if lost := w.a.Hosted("n4"); lost.Len() != 0 || s.Intent.Nodes["n0"].Draining {
		t.Errorf("%d are left to the lost node, and n0 is drained: %t", lost.Len(), s.Intent.Nodes["n0"].Draining)
	}
	for q, n := range w.counts() {
		if n < 2 {
			t.Fatalf("partition %d has %d ready replicas", q, n)
		}
	}
	if !slices.ContainsFunc(s.Plan.Log, func(e Event) bool { return strings.Contains(e.What, "to take over is gone for good") }) {
		t.Errorf("nothing says why: %+v", s.Plan.Log)
	}
}
