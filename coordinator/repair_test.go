package coordinator

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/partition"
)

// A repair gives no node more than it has room for beside what the plan under way is
// to bring there, begun or not: what others have room for they take.
func TestARepairKeepsTheRoomThatIsSpokenFor(t *testing.T) {
	for _, begun := range []bool{false, true} {
		w := newWorld(rand.New(rand.NewPCG(1, 1)), 4, 2)
		w.add("n4")
		evidence := func() *evidence {
			e := w.evidence()
			for id, st := range e.stats {
				st.Partitions = map[millrace.Partition]members.PartitionStats{}
				has := w.ready[id]
				for p := range has.All() {
					st.Partitions[p] = members.PartitionStats{Bytes: 1 << 20}
				}
				if st.DiskBytes, st.FreeBytes = 2000<<20, 1000<<20; id == "n4" {
					st.FreeBytes = 400 << 20
				}
				e.stats[id] = st
			}
			return e
		}
		e := evidence()
		s := &Steered{State: &steering.State{Assignment: w.a, Map: e.nodes}}
		pr, err := Propose(s, e.stats, Request{Kind: Rebalance, By: "me", Limits: Limits{PerNode: 50}}, w.now)
		if err != nil {
			t.Fatal(err)
		}
		if s.Plan, s.Intent = pr.Plan, pr.intent; begun {
			w.step(t, s.Plan)
		}
		delete(w.alive, "n0")
		e = evidence()
		e.givenUp["n0"] = true
		s.Assignment, s.Map = w.a, e.nodes
		for range 2 { // the planner may leave some for the next look
			if err := (&Coordinator{}).repair(s, e); err != nil {
				t.Fatal(err)
			}
		}
		comes := 0
		for _, m := range s.Plan.Moves {
			if m.To == "n4" {
				comes++
			}
		}
		if now := s.Plan.goal(&w.a); comes > 200 || now.hosts("n0") {
			t.Errorf("begun: %t: %d partitions are to come to n4, which has room for 200; all of the lost node's are made elsewhere: %t", begun, comes, !now.hosts("n0"))
		}
	}
}

// Where more replicas go than come, what comes is in place of those that are lost, and
// begins at once: that others go besides may wait.
func TestWhatIsLostIsMadeBeforeAnythingGoes(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 3)
	w.add("n3")
	p := &Plan{ID: "p", Kind: Drain, Status: Running, Wanted: 2, BaseWanted: 2, Base: Layout(w.a.Replicas), Limits: Limits{PerNode: partition.Count, PerSecond: 1}}
	delete(w.alive, "n2")
	e := w.evidence()
	e.givenUp["n2"] = true
	goal := Layout{}
	for q := range goal {
		goal[q] = []millrace.NodeID{"n0", "n3"}
	}
	p.retarget(&w.a, &goal, e)
	p.advance(&w.a, e, &pace{limits: Limits{PerNode: partition.Count}})
	n := 0
	for _, m := range p.Moves {
		if m.To != "" && m.State == Building {
			n++
		}
	}
	if n != partition.Count {
		t.Errorf("%d of %d replicas that are lost are being made", n, partition.Count)
	}
}

// What is lost while a plan is under way is made elsewhere at once, whatever the
// limits of the plan are.
func TestRepairsOfPlansBeginAtOnce(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 4, 2)
	w.add("n4")
	p := w.to([]millrace.NodeID{"n1", "n2", "n3", "n4"}, 2)
	p.Kind, p.Limits = Replace, Limits{PerNode: 1, PerSecond: 1, BytesPerSecond: 1}
	lost, ofLost, others := millrace.NodeID("n0"), 0, 0
	delete(w.alive, lost)
	e := w.evidence()
	e.givenUp[lost] = true
	p.advance(&w.a, e, &pace{limits: Limits{PerNode: partition.Count, PerSecond: 1}})
	waits := 0
	for _, m := range p.Moves {
		switch {
		case m.From == lost && m.State == Waiting:
			waits++
		case m.From == lost:
			ofLost++
		case m.State != Waiting:
			others++
		}
	}
	if waits > 0 || ofLost == 0 || others > 2 {
		t.Errorf("%d moves from the lost node are begun and %d wait, and %d others are begun", ofLost, waits, others)
	}
}

// A repair takes from a node that is drained besides what the rules demand: by the
// pace of what somebody planned, and also when the node is back that was given up. A
// drain that gets another end by a repair goes on in the same way. What is not begun
// of what was lost is not needed then; but of a node that is drained, it is.
func TestARepairGoesOnWithADrain(t *testing.T) {
	for _, c := range []struct {
		name  string
		drain bool // is under way when nodes are gone
		gone  []millrace.NodeID
	}{
		{"a repair", false, []millrace.NodeID{"n0"}},
		{"a drain", true, []millrace.NodeID{"n0"}},
		{"a repair, the drained node gone too", false, []millrace.NodeID{"n0", "n1"}},
		{"a drain, the drained node gone too", true, []millrace.NodeID{"n0", "n1"}},
	} {
		w := newWorld(rand.New(rand.NewPCG(1, 1)), 5, 2)
		s := &Steered{State: &steering.State{Assignment: w.a, Map: w.evidence().nodes}, Intent: Intent{Nodes: map[millrace.NodeID]Mark{"n1": {Draining: true}}}}
		kind := Repair
		if c.drain {
			pr, err := Propose(s, nil, Request{Kind: Drain, Nodes: []millrace.NodeID{"n1"}, By: "me"}, w.now)
			if err != nil {
				t.Fatal(err)
			}
			s.Plan, s.Intent, kind = pr.Plan, pr.intent, Drain
		}
		at := &Coordinator{cfg: Config{}.withDefaults(), pace: pace{limits: Limits{PerNode: 20, PerSecond: 1}}}
		look := func(givenUp bool) {
			t.Helper()
			for _, id := range c.gone {
				w.alive[id] = !givenUp
			}
			e := w.evidence()
			for _, id := range c.gone {
				if givenUp {
					e.givenUp[id] = true
				}
			}
			s.Assignment, s.Map = w.a, e.nodes
			if err := at.repair(s, e); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			s.Plan.advance(&s.Assignment, e, &at.pace)
			w.a = s.Assignment
		}
		count := func(from millrace.NodeID, state MoveState) (n int) {
			for _, m := range s.Plan.Moves {
				if m.From == from && m.State == state {
					n++
				}
			}
			return n
		}
		look(true)
		drained, begun, lost := count("n1", Waiting)+count("n1", Building), count("n1", Building), count("n0", Building)
		if s.Plan.Kind != kind || drained == 0 || len(c.gone) == 1 && (lost < 3*20-2 || begun > 2) {
			t.Fatalf("%s: %s: %d moves from the lost node are begun, and %d of %d from the drained one", c.name, s.Plan.Kind, lost, begun, drained)
		}
		look(false)
		if n := count("n1", Waiting) + count("n1", Building); n != drained || count("n0", Waiting) != 0 {
			t.Errorf("%s: who was lost is back: %d moves from the drained one are left of %d, and %d from the lost one wait", c.name, n, drained, count("n0", Waiting))
		}
	}
}

// What a plan was to move from a node anyway it moves though the node was given up
// and is back meanwhile.
func TestWhoIsBackGivesAwayWhatWasPlanned(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
	w.add("n3")
	p := w.to([]millrace.NodeID{"n0", "n1", "n2", "n3"}, 2)
	planned := slices.DeleteFunc(slices.Clone(p.Moves), func(m Move) bool { return m.From != "n0" })
	s := &Steered{State: &steering.State{Assignment: w.a}, Plan: p}
	for _, alive := range []bool{false, true} {
		w.alive["n0"] = alive
		e := w.evidence()
		if s.Map = e.nodes; !alive {
			e.givenUp["n0"] = true
		}
		if err := (&Coordinator{}).repair(s, e); err != nil {
			t.Fatal(err)
		}
		if now := p.goal(&w.a); now.hosts("n0") != alive {
			t.Errorf("n0 is there: %t: it is to host something: %t", alive, now.hosts("n0"))
		}
	}
	if len(planned) == 0 {
		t.Error("nothing is planned")
	}
	for _, m := range planned {
		if !slices.Contains(p.Moves, m) {
			t.Errorf("%s is not to be moved any more", m)
		}
	}
}

// What people's plans move from a node because it is given up is not needed any more when
// that is back; but what it was to lose anyway is.
func TestWhoIsBackKeepsWhatNobodyTook(t *testing.T) {
	for _, c := range []struct {
		kind  Kind
		nodes []millrace.NodeID
		keeps bool
	}{{Rebalance, nil, true}, {Add, []millrace.NodeID{"n4"}, true}, {Drain, []millrace.NodeID{"n0"}, false}, {Replace, []millrace.NodeID{"n0", "n4"}, false}} {
		w := newWorld(rand.New(rand.NewPCG(1, 1)), 4, 2)
		w.add("n4")
		w.alive["n0"] = false
		s := &Steered{State: &steering.State{Assignment: w.a, Map: w.evidence().nodes}, Notes: Notes{GivenUp: []millrace.NodeID{"n0"}}}
		pr, err := Propose(s, nil, Request{Kind: c.kind, Nodes: c.nodes, Gain: 1, By: "me", Lossy: true}, w.now)
		if err != nil {
			t.Fatalf("%s: %v", c.kind, err)
		}
		s.Plan, s.Intent, w.alive["n0"] = pr.Plan, pr.intent, true
		from := func() (n int) {
			for _, m := range s.Plan.Moves {
				if m.From == "n0" {
					n++
				}
			}
			return n
		}
		before := from()
		s.Plan.spare(w.evidence(), &s.Intent)
		if after := from(); before == 0 || c.keeps != (after == 0) {
			t.Errorf("%s: of %d moves from n0 %d are left", c.kind, before, after)
		}
	}
}

// Who is given up stays so while it is gone, also when others are away for a moment, by
// whom too many are gone to give up more. Only nodes that are gone for longer than the
// grace raise the alarm, and it names all that are gone: to give up but some is refused.
func TestWhoIsGivenUpStaysSo(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 5, 2)
	s := &Steered{State: &steering.State{Assignment: w.a}}
	at := &Coordinator{cfg: Config{}.withDefaults(), since: map[string]time.Time{}}
	look := func(after time.Duration) (givenUp, alarms string) {
		w.now = w.now.Add(after)
		e := w.evidence()
		s.Map = e.nodes
		at.look(s, e)
		for _, a := range s.Notes.Alarms {
			alarms += a.What + ": " + a.Detail
		}
		return fmt.Sprint(slices.Sorted(maps.Keys(e.givenUp))), alarms
	}
	w.alive["n0"] = false
	look(0)
	if givenUp, alarms := look(DefaultGrace); givenUp != "[n0]" || alarms != "" {
		t.Fatalf("given up: %s; %s", givenUp, alarms)
	}
	w.alive["n1"] = false
	for range 2 {
		if givenUp, alarms := look(5 * time.Second); givenUp != "[n0]" || alarms != "" {
			t.Errorf("n1 is away for seconds: given up: %s; %s", givenUp, alarms)
		}
	}
	w.alive["n2"] = false
	if givenUp, alarms := look(DefaultGrace - 2*time.Second); givenUp != "[n0]" || !strings.Contains(alarms, "mass_loss: 3 of 5 nodes that host something are gone at once") || !strings.Contains(alarms, "node remove n0 n1 n2 --apply") {
		t.Errorf("n1 is gone for good, and n2 away: given up: %s; %s", givenUp, alarms)
	}
	w.alive["n1"], w.alive["n2"] = true, true
	if givenUp, alarms := look(time.Second); givenUp != "[n0]" || alarms != "" {
		t.Errorf("n1 and n2 are back: given up: %s; %s", givenUp, alarms)
	}
	w.alive["n0"] = true
	if givenUp, _ := look(time.Second); givenUp != "[]" {
		t.Errorf("n0 is back: given up: %s", givenUp)
	}
}

// What was cancelled no repair carries out or takes back: a node that was drained keeps
// what has not moved, one that was added and got nothing gets nothing, and no partition
// loses the replica that it was to lose, or that it got.
func TestNoRepairDoesWhatWasCancelled(t *testing.T) {
	for _, c := range []struct {
		kind             Kind
		nodes            []millrace.NodeID
		replicas, wanted int
		seconds          int // until it is cancelled
		undone           func(Move) bool
	}{
		{Drain, []millrace.NodeID{"n1"}, 2, 0, 5, func(m Move) bool { return m.From == "n1" }},
		{Add, []millrace.NodeID{"n4"}, 2, 0, 0, func(m Move) bool { return m.To == "n4" }},
		{Resize, nil, 3, 2, 5, func(m Move) bool { return m.To == "" }},
		{Resize, nil, 2, 3, 5, func(m Move) bool { return m.To == "" && m.From != "n0" }},
	} {
		w := newWorld(rand.New(rand.NewPCG(1, 1)), 4, c.replicas)
		if c.kind == Add {
			w.add("n4")
		}
		s := &Steered{State: &steering.State{Assignment: w.a, Map: w.evidence().nodes}}
		pr, err := Propose(s, nil, Request{Kind: c.kind, Nodes: c.nodes, Replicas: c.wanted, By: "me", Limits: Limits{PerNode: 20, PerSecond: 20}}, w.now)
		if err != nil {
			t.Fatalf("%s: %v", c.kind, err)
		}
		s.Plan, s.Intent = pr.Plan, pr.intent
		for n := 0; !s.Plan.Status.Ended(); n++ {
			if n > 1000 {
				t.Fatalf("%s: %s, %d moves are left", c.kind, s.Plan.Status, s.Plan.left())
			}
			if s.Assignment, s.Map = w.a, w.evidence().nodes; n == c.seconds {
				if err := s.order(Cancel, w.evidence(), "me"); err != nil {
					t.Fatal(err)
				}
			}
			w.step(t, s.Plan)
			w.live()
		}
		delete(w.alive, "n0")
		e := w.evidence()
		e.givenUp["n0"] = true
		s.Assignment, s.Map = w.a, e.nodes
		if err := (&Coordinator{}).repair(s, e); err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, m := range s.Plan.Moves {
			if c.undone(m) {
				n++
			}
		}
		if s.Plan.Kind != Repair || n > 0 {
			t.Errorf("%s: %d of %d moves of the %s do what was cancelled", c.kind, n, len(s.Plan.Moves), s.Plan.Kind)
		}
	}
}

// After a shrink that was cancelled a repair brings back what went: at once where a
// partition has lost a node, too, and else by the pace of what somebody planned.
func TestARepairBringsByAndByWhatNobodyLost(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 6, 3)
	for q := 0; q < partition.Count; q += 2 { // these are shrunk
		w.a.Replicas[q] = w.a.Replicas[q][:2]
	}
	w.live()
	delete(w.alive, "n0")
	e := w.evidence()
	e.givenUp["n0"] = true
	s := &Steered{State: &steering.State{Assignment: w.a, Map: e.nodes}}
	at := &Coordinator{cfg: Config{}.withDefaults(), pace: pace{limits: Limits{PerNode: partition.Count, PerSecond: 5}}}
	if err := at.repair(s, e); err != nil {
		t.Fatal(err)
	}
	s.Plan.advance(&s.Assignment, e, &at.pace)
	begun, waits, lost := 0, 0, 0
	for _, m := range s.Plan.Moves {
		switch {
		case slices.Contains(s.Plan.Base[m.Partition], "n0"):
			if m.State == Waiting {
				lost++
			}
		case m.State == Waiting:
			waits++
		default:
			begun++
		}
	}
	if lost > 0 || begun > 6 || waits < 100 {
		t.Errorf("%d moves of partitions that lost a node wait; of the others %d are begun and %d wait", lost, begun, waits)
	}
}

// Of several nodes that are gone one is given up by hand: what it hosted is made on those
// that are there, and the others keep what they have and get nothing more, also of a plan
// under way that waits for them.
func TestOneOfSeveralLostNodesIsGivenUp(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 10, 2)
	for _, id := range []millrace.NodeID{"n0", "n1", "n2", "n3"} {
		delete(w.alive, id)
	}
	e := w.evidence()
	s := &Steered{State: &steering.State{Assignment: w.a, Map: e.nodes}}
	pr, err := Propose(s, e.stats, Request{Kind: Repair, Nodes: []millrace.NodeID{"n0"}, By: "me", Lossy: true}, w.now)
	if err != nil {
		t.Fatal(err)
	}
	if err := pr.Err(); err != nil {
		t.Error(err)
	}
	if pr.Goal.hosts("n0") || len(pr.Plan.Moves) != 144 {
		t.Errorf("n0 hosts something: %t; %d moves, want 144", pr.Goal.hosts("n0"), len(pr.Plan.Moves))
	}
	for _, m := range pr.Plan.Moves {
		if m.From != "n0" || !w.alive[m.To] {
			t.Fatalf("%s is to be moved", m)
		}
	}
	s.Plan = &Plan{ID: "p", Kind: Add, Status: Running, Wanted: 2, BaseWanted: 2, Base: pr.Plan.Base, Moves: []Move{{Partition: 7, From: w.a.Replicas[7][0], To: "n10", State: Waiting}}}
	pr, err = Propose(s, e.stats, Request{Kind: Repair, Nodes: []millrace.NodeID{"n0"}, By: "me", Lossy: true}, w.now)
	if err != nil {
		t.Fatal(err)
	}
	if err := pr.Err(); err != nil || pr.Goal.hosts("n0") {
		t.Errorf("a plan waits for n10: n0 hosts something: %t; %v", pr.Goal.hosts("n0"), err)
	}
	for _, m := range pr.Plan.Moves {
		if m.Partition != 7 && !w.alive[m.To] {
			t.Fatalf("a plan waits for n10: %s is to be moved", m)
		}
	}
}
