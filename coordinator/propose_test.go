package coordinator

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// A proposal tells how many partitions nodes have now, also where it gives a plan another
// end that began with others.
func TestAProposalCountsWhatIsHostedNow(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 4, 2)
	p := w.to([]millrace.NodeID{"n0", "n1", "n2"}, 2)
	for n := 0; p.left() > 100; n++ {
		w.live()
		w.step(t, p)
	}
	w.alive["n1"] = false
	s := &Steered{State: &steering.State{Assignment: w.a, Map: w.evidence().nodes}, Plan: p}
	pr, err := Propose(s, nil, Request{Kind: Repair, Nodes: []millrace.NodeID{"n1"}, By: "me", Lossy: true}, w.now)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range pr.Nodes() {
		if hosted := w.a.Hosted(n.ID); n.Before != hosted.Len() {
			t.Errorf("%s has %d partitions, and is said to have %d", n.ID, hosted.Len(), n.Before)
		}
	}
}

// What a node keeps free of its disk is not given to it.
func TestWhatNodesKeepFreeIsNotGiven(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
	w.add("n3")
	e := w.evidence()
	e.stats["n3"] = members.NodeStats{DiskBytes: 100 << 20, FreeBytes: 40 << 20, KeptBytes: 64 << 20}
	s := &Steered{State: &steering.State{Assignment: w.a, Map: e.nodes}}
	s.Intent.Nodes = map[millrace.NodeID]Mark{"n3": {Added: true}}
	x, err := s.Explain(e.stats, 0, "n3", w.now)
	if err != nil || len(x.Elsewhere) != 1 || x.Elsewhere[0].Rule != "no_room" {
		t.Errorf("%+v, %v", x.Elsewhere, err)
	}
	made, err := s.replaced(e, 2, []millrace.NodeID{"n0", "n3"})
	if want := "n3 has 40 MiB free, of which 64 stay so, and would take 0"; err != nil || len(made.Warnings) != 1 || made.Warnings[0] != want {
		t.Errorf("%q, %v; want %q", made.Warnings, err, want)
	}
}

// A move back to a node that has the data takes no room: it begins though the disk is
// nearly full, and keeps no room from others; but not below what stays free, where the node
// takes nothing in. One that is larger meanwhile, or of which the node tells nothing, has to
// fit.
func TestWhatANodeHasTakesNoRoom(t *testing.T) {
	for _, c := range []struct {
		name  string
		has   int64 // MiB of partition 0 that n3 has; -1: it is not there
		free  int64 // MiB besides what is kept free
		bytes int64 // of each move
		begin int   // moves
	}{
		{"all of it", 5, 1, 5 << 20, 1},
		{"all of it, less than is kept free", 5, -1, 5 << 20, 0},
		{"all of it, and the others fit", 5, 5, 5 << 20, 2},
		{"some of it", 2, 1, 5 << 20, 0},
		{"some of it, the rest fits", 2, 3, 5 << 20, 1},
		{"nothing", -1, 1, 5 << 20, 0},
		{"nobody knows how large it is", -1, -1, 0, 0},
	} {
		w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
		w.add("n3")
		e := w.evidence()
		st := members.NodeStats{DiskBytes: 100 << 20, FreeBytes: (10 + c.free) << 20, KeptBytes: 10 << 20, Partitions: map[millrace.Partition]members.PartitionStats{}}
		if c.has >= 0 {
			st.Partitions[0] = members.PartitionStats{Bytes: c.has << 20}
		}
		e.stats["n3"] = st
		p := &Plan{ID: "p", Status: RollingBack, Wanted: 2, BaseWanted: 2, Base: Layout(w.a.Replicas), Limits: Limits{PerNode: 20}}
		for q := range millrace.Partition(3) {
			p.Moves = append(p.Moves, Move{Partition: q, From: w.a.Replicas[q][0], To: "n3", State: Waiting, Bytes: c.bytes})
		}
		for range 2 { // what is begun is counted anew
			p.advance(&w.a, e, &pace{})
		}
		begun := 0
		for _, m := range p.Moves {
			if m.State == Building {
				begun++
			}
		}
		if begun != c.begin {
			t.Errorf("%s: %d moves are begun, want %d", c.name, begun, c.begin)
		}
	}
}

// A node's weight, as it is registered, is its share of what is planned, and
// nothing moves for less than the gain that is wanted.
func TestWeightsAndGains(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
	alive := []topology.Node{{ID: "n0", Addr: "a:1"}, {ID: "n1", Addr: "a:1"}, {ID: "n2", Addr: "a:1", Weight: 1.1}}
	ready := map[millrace.NodeID]topology.Set{}
	for _, n := range alive {
		ready[n.ID] = w.a.Hosted(n.ID)
	}
	s := &Steered{State: &steering.State{Assignment: w.a, Map: topology.NewMap(w.a, alive, ready)}}
	for _, c := range []struct {
		gain  float64
		moves int
		says  string
	}{
		{0, 31, ""}, // 1440 by 1, 1 and 1.1 are 465, 464 and 511, and it has 480
		{0.05, 31, ""},
		{0.1, 0, "it would bring the fullest and the emptiest node nearer by 9."},
	} {
		pr, err := Propose(s, nil, Request{Kind: Rebalance, By: "me", Gain: c.gain}, w.now)
		if err != nil {
			t.Fatal(err)
		}
		said := slices.ContainsFunc(pr.Checks, func(k Check) bool { return c.says != "" && strings.Contains(k.What, c.says) })
		if len(pr.Plan.Moves) != c.moves || said != (c.says != "") {
			t.Errorf("for a gain of %v: %d moves, want %d; %+v", c.gain, len(pr.Plan.Moves), c.moves, pr.Checks)
		}
	}
	wrong := map[millrace.NodeID]members.NodeStats{"n0": {DiskBytes: 1 << 30, FreeBytes: 1<<30 + 1}, "n1": {FreeBytes: 1}} // which counts as all of it, and as not known
	if pr, err := Propose(s, wrong, Request{Kind: Rebalance, By: "me"}, w.now); err != nil || len(pr.Plan.Moves) != 31 {
		t.Errorf("with more free than there is: %v", err)
	}
	first, err := First(s, wrong, []millrace.NodeID{"n0", "n1", "n2"}, 2)
	if n := first.Hosted("n2"); err != nil || n.Len() != 511 {
		t.Errorf("the first assignment gives n2 %d, %v", n.Len(), err)
	}
}

// A node that is away for less than the grace counts as it last registered: nothing
// moves since its zone or weight were forgotten.
func TestWhoIsAwayKeepsItsZoneAndWeight(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 4, 2)
	zones := map[millrace.NodeID]string{"n0": "x", "n1": "x", "n2": "y", "n3": "y"}
	found := &keyspace.Snapshot{Cluster: 1, Revision: 1, Count: "720", Values: map[string]keyspace.Value{}}
	for id, zone := range zones {
		body := keyspace.Value{Data: fmt.Appendf(nil, `{"id":%q,"addr":"a:1","zone":%q,"weight":2}`, id, zone)}
		if found.Values["known/"+string(id)] = body; id != "n3" {
			found.Values["nodes/"+string(id)] = body
		}
	}
	for p := range w.a.Replicas { // in both zones
		w.a.Replicas[p] = []millrace.NodeID{[]millrace.NodeID{"n0", "n1"}[p%2], []millrace.NodeID{"n2", "n3"}[p/2%2]}
	}
	m, _ := topology.NewMap(w.a, nil, nil).Next(found) // etcd has no assignment here
	s := &Steered{State: &steering.State{Assignment: w.a, Map: m}}
	e := &evidence{now: w.now, nodes: m}
	for _, n := range s.problem(e, 2, Layout(w.a.Replicas), assignedOrAdded).Nodes {
		if n.Zone != zones[n.ID] || n.Weight != 2 || n.Gone {
			t.Errorf("%+v", n)
		}
	}
	made, err := s.solve(e, 2, Layout(w.a.Replicas), assignedOrAdded, noGain)
	if err != nil || len(made.Moves) > 0 {
		t.Errorf("%d moves, and nothing is lost: %v", len(made.Moves), err)
	}
}

// When most is lost during a drain, whoever gives up what is gone hears what that costs, and
// what brings replicas a place.
func TestWhatALossCostsIsTold(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 4, 2)
	w.alive["n0"], w.alive["n1"] = false, false
	s := &Steered{State: &steering.State{Assignment: w.a, Map: w.evidence().nodes}}
	s.Intent.Nodes = map[millrace.NodeID]Mark{"n3": {Draining: true}}
	r := Request{Kind: Repair, Nodes: []millrace.NodeID{"n0", "n1"}, By: "me"}
	pr, err := Propose(s, nil, r, w.now)
	if err != nil {
		t.Fatal(err)
	}
	var e *millrace.Error
	if err := pr.Err(); !errors.As(err, &e) || !strings.Contains(e.WayOut, "--override") {
		t.Errorf("%+v", e)
	}
	text := fmt.Sprint(pr.Checks)
	for _, want := range []string{"120 partitions have no ready replica: ", "n3 is drained, and takes nothing: millrace cluster cancel ends"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s does not say %q", text, want)
		}
	}
	r.Lossy = true
	if pr, err = Propose(s, nil, r, w.now); err != nil || pr.Err() != nil {
		t.Errorf("%v, %v", err, pr.Err())
	}
}
