// Package plan decides which nodes should host which partitions, and by which
// moves a cluster gets there. It is a pure function: equal problems have equal
// plans, and it neither reads nor writes anything.
package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/partition"
)

// Assignment says which nodes host a replica of each partition.
type Assignment [partition.Count][]millrace.NodeID

// Node is what the planner knows of a node.
type Node struct {
	ID   millrace.NodeID
	Zone string // nodes without one are in one zone together
	// Gone: it is away for longer than the grace. It hosts nothing, and what it
	// hosted counts as lost.
	Gone bool
	// Away: it is not there, and may be back. What it hosts counts as if it were
	// there, and it is given nothing more.
	Away bool
	// Draining: it is to host nothing, and serves what it hosts until that is
	// elsewhere.
	Draining bool
	// BackupOnly: it reads and backs up partitions, and serves nobody.
	BackupOnly bool
	// Disk and Free are bytes of its disk. A tenth of the disk stays free, or Keeps
	// if that is more. 0 Disk: not known, which is no limit.
	Disk, Free, Keeps int64
	// Weight is its capacity relative to the other nodes, 0.01 to 100. 0 is 1.
	Weight float64
}

// kept is how much of its disk stays free.
func (n *Node) kept() int64 { return max(n.Disk/keptFree, n.Keeps) }

// Room is how many bytes may be given to it, below 0 where too little is free already;
// of a disk that is known.
func (n *Node) Room() int64 { return n.Free - n.kept() }

// Partition is what the planner knows of a partition.
type Partition struct {
	Bytes int64   // that a replica takes on disk; 0: not known
	Load  float64 // that a replica makes, in any unit; 0: not known
}

// Limits bound a plan.
type Limits struct {
	// MovesPerNode is how many moves to or from a node are made at once. The
	// moves are in an order in which all nodes are busy. 0: no limit.
	MovesPerNode int
	// Surplus: replicas beyond what is wanted stay where they are, on nodes that may
	// host anything, unless the zones want one elsewhere.
	Surplus bool
	// Gain is the least gain for which anything moves that no hard rule moves:
	// by how much the distance between the fullest and the emptiest node falls,
	// as a share of the mean. 0: any.
	Gain float64
}

// Placement is a partition's replica that is to be on a node.
type Placement struct {
	Partition millrace.Partition
	From      millrace.NodeID // whose replica it takes the place of; "": whichever suits, see [Problem.Explain]
	To        millrace.NodeID
}

// Problem is a cluster as it is, and what is wanted of it.
type Problem struct {
	Nodes      []Node
	Partitions [partition.Count]Partition
	Wanted     int        // replicas of each partition
	Now        Assignment // may be empty: a cluster without an assignment
	Limits     Limits
	// Force, if given, is the only thing that the plan does, if the hard rules
	// allow it.
	Force *Placement
}

// Move makes a replica on To, and removes the one on From once that is ready.
type Move struct {
	Partition millrace.Partition
	From, To  millrace.NodeID // "": only added, only removed
	Bytes     int64           // that To reads and writes
	Why       Why
}

// Why is the cause of a move, a stable word.
type Why string

// The causes of moves, the most urgent first.
const (
	WhyMissing Why = "missing" // the partition has fewer replicas than wanted that live
	WhyDrain   Why = "drain"   // From is to host nothing
	WhyZone    Why = "zone"    // the partition's replicas are in fewer zones than they could be
	WhySurplus Why = "surplus" // the partition has more replicas than wanted
	WhyBalance Why = "balance" // From hosts more than its share, or To less
	WhyForced  Why = "forced"  // somebody asked for it
)

// Plan is where a cluster should get to, and how.
type Plan struct {
	Goal     Assignment
	Moves    []Move   // in their order; those of one partition one after the other
	Warnings []string // what the goal lacks, and why
	Notes    []string // what any goal of this cluster would lack, as today's does
	Spared   float64  // a gain that is less than [Limits.Gain], for which nothing moves; 0: none
	Before   Balance
	After    Balance
}

// Most that a problem may have.
const (
	maxWanted = 15 // a partition has at most 16, and one more than wanted while it moves
	maxNodes  = 1000
	minWeight = 0.01
	maxWeight = 100
)

// Make plans. Of all goals that keep the hard rules and have the best balance
// of counts it takes one with the fewest moves, and of those one in which bytes,
// load and pairs of nodes are even. It fails with a [millrace.Error] for a
// problem that makes no sense, and for a forced placement that a rule refuses.
func Make(p Problem) (Plan, error) {
	if err := p.validate(); err != nil {
		return Plan{}, err
	}
	l := newLayout(&p)
	if p.Force != nil {
		return l.forced(*p.Force)
	}
	if l.usable == 0 {
		return l.unplaced()
	}
	l.settle(false)
	if p.Limits.Gain > 0 {
		calm := newLayout(&p)
		calm.settle(true)
		if gain := calm.uneven() - l.uneven(); gain < p.Limits.Gain {
			pl := calm.plan()
			pl.Spared = max(gain, 0)
			return pl, nil
		}
	}
	return l.plan(), nil
}

// settle finds the best layout. calm moves only what a hard rule moves.
func (l *layout) settle(calm bool) {
	l.begin()
	for range maxRoomRounds {
		newFlow(l, calm).improve()
		l.swap()
		if !l.overfull() {
			return
		}
	}
}

// maxRoomRounds bounds how often the layout is made anew with less on nodes
// whose disks are too small for what they were to have. What is too much even
// then is not moved.
const maxRoomRounds = 8

// forced returns the plan that makes one placement and nothing else.
func (l *layout) forced(f Placement) (Plan, error) {
	v := l.explain(f)
	if !v.OK {
		return Plan{}, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "force", Detail: v.String(), WayOut: "name another node, or change what the rule goes by"}
	}
	pl := Plan{Goal: l.problem.Now, Before: l.balance(&l.problem.Now)}
	pl.Moves = []Move{{Partition: v.Partition, From: v.From, To: v.Node, Bytes: l.problem.Partitions[v.Partition].Bytes, Why: WhyForced}}
	pl.Goal.apply(pl.Moves[0])
	pl.After = l.balance(&pl.Goal)
	return pl, nil
}

// unplaced returns the plan of a cluster in which no node may host anything.
func (l *layout) unplaced() (Plan, error) {
	for part := range l.problem.Now {
		if len(l.problem.Now[part]) == 0 {
			return Plan{}, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "nodes", Detail: fmt.Sprintf("none of %d may host partition %d", len(l.problem.Nodes), part), WayOut: "add a node, or end the draining of one"}
		}
	}
	b := l.balance(&l.problem.Now)
	return Plan{Goal: l.problem.Now, Before: b, After: b, Warnings: []string{"no node may host anything: all stays where it is"}}, nil
}

// apply makes a move. It shares no list of nodes with what a was copied from.
func (a *Assignment) apply(m Move) {
	owners := make([]millrace.NodeID, 0, len(a[m.Partition])+1)
	for _, id := range a[m.Partition] {
		if id != m.From {
			owners = append(owners, id)
		}
	}
	if m.To != "" {
		owners = append(owners, m.To)
	}
	a[m.Partition] = owners
}

// validate reports what makes no sense.
func (p *Problem) validate() error {
	bad := func(field, wayOut, format string, args ...any) error {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: field, Detail: fmt.Sprintf(format, args...), WayOut: wayOut}
	}
	switch {
	case p.Wanted < 1 || p.Wanted > maxWanted:
		return bad("wanted", fmt.Sprintf("want 1 to %d", maxWanted), "%d replicas", p.Wanted)
	case len(p.Nodes) > maxNodes:
		return bad("nodes", fmt.Sprintf("have at most %d", maxNodes), "%d of them", len(p.Nodes))
	case p.Limits.MovesPerNode < 0:
		return bad("moves_per_node", "give 0 for no limit", "%d is below 0", p.Limits.MovesPerNode)
	case !(p.Limits.Gain >= 0) || math.IsInf(p.Limits.Gain, 0):
		return bad("gain", "give 0 for any gain", "%v is not a share", p.Limits.Gain)
	}
	seen := map[millrace.NodeID]bool{}
	for _, n := range p.Nodes {
		switch {
		case n.ID == "":
			return bad("nodes", "give every node an id", "a node without an id")
		case seen[n.ID]:
			return bad("nodes", "name every node once", "%q is there twice", n.ID)
		case n.Disk < 0 || n.Free < 0 || n.Free > n.Disk || n.Keeps < 0:
			return bad("nodes", "give 0 for a disk that is not known", "%q has %d bytes free of %d, and keeps %d", n.ID, n.Free, n.Disk, n.Keeps)
		case n.Weight != 0 && !(n.Weight >= minWeight && n.Weight <= maxWeight):
			return bad("nodes", fmt.Sprintf("give %v to %v", minWeight, maxWeight), "%q has weight %v", n.ID, n.Weight)
		}
		seen[n.ID] = true
	}
	for i, x := range p.Partitions {
		if x.Bytes < 0 || !(x.Load >= 0) || math.IsInf(x.Load, 0) {
			return bad("partitions", "give 0 for what is not known", "partition %d has %d bytes and load %v", i, x.Bytes, x.Load)
		}
		if owners := p.Now[i]; len(owners) > maxNodes || twice(owners) {
			return bad("now", "name every node once", "partition %d has a node twice", i)
		}
	}
	return nil
}

func twice(ids []millrace.NodeID) bool {
	for i, id := range ids {
		if slices.Contains(ids[:i], id) {
			return true
		}
	}
	return false
}

// sorted returns the nodes by id, so that their order has no influence, and
// behind them those that the assignment names and nobody knows.
func (p *Problem) sorted() (nodes []Node, known int) {
	nodes = slices.Clone(p.Nodes)
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
	known = len(nodes)
	seen := map[millrace.NodeID]bool{}
	for _, n := range nodes {
		seen[n.ID] = true
	}
	for _, owners := range p.Now {
		for _, id := range owners {
			if !seen[id] {
				seen[id] = true
				nodes = append(nodes, Node{ID: id, Gone: true})
			}
		}
	}
	return nodes, known
}
