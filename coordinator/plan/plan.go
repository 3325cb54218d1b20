// Package plan decides which nodes should host which partitions, and by which
// moves a cluster gets there. It is a pure function: equal problems have equal
// plans, and it neither reads nor writes anything.
//
// A usable node is one that may host partitions: it is known, is not gone or draining, and
// does not only back up. The planner works on a layout, which has the replicas on usable
// nodes as they are so far.
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
	// Gone: it is away for longer than the grace, the time that the coordinator waits for
	// it to come back. It is to host nothing, and what it hosted counts as lost.
	Gone bool
	// Away: it is not there, and may be back. What it hosts counts as if it were
	// there, and it is given nothing more.
	Away bool
	// Draining: it is to host nothing, and serves what it hosts until that is
	// elsewhere.
	Draining bool
	// BackupOnly: it reads and backs up partitions, and serves nobody.
	BackupOnly bool
	// Disk is the size of its disk in bytes, and Free how many are free. A tenth of the
	// disk stays free, or Keeps bytes if that is more. Disk 0: not known, which is no
	// limit.
	Disk, Free, Keeps int64
	// Weight is its capacity relative to the other nodes, 0.01 to 100. 0 is 1.
	Weight float64
}

// kept returns how many bytes of its disk stay free.
func (n *Node) kept() int64 { return max(n.Disk/keptFree, n.Keeps) }

// Room returns how many more bytes the node may get; below 0: too little is free already.
// Its Disk must be known.
func (n *Node) Room() int64 { return n.Free - n.kept() }

// Partition is what the planner knows of a partition.
type Partition struct {
	Bytes int64   // how many a replica takes on disk; 0: not known
	Load  float64 // the load of a replica, in any unit; 0: not known
}

// Limits bound a plan.
type Limits struct {
	// MovesPerNode is how many moves to or from a node are made at once. The plan orders
	// its moves so that all nodes are kept busy within it. 0: no limit.
	MovesPerNode int
	// Surplus: replicas beyond what is wanted stay where they are, on nodes that may
	// host anything, unless the zones want one elsewhere.
	Surplus bool
	// Gain is the least gain for which the plan moves anything that no hard rule makes it
	// move. A gain is by how much the distance between the fullest and the emptiest node
	// falls, as a share of the mean. 0: any.
	Gain float64
}

// Placement asks for a replica of a partition on a node.
type Placement struct {
	Partition millrace.Partition
	From      millrace.NodeID // the node whose replica it replaces; "": any that suits, see [Problem.Explain]
	To        millrace.NodeID
}

// Problem is a cluster as it is, and what is wanted of it.
type Problem struct {
	Nodes      []Node
	Partitions [partition.Count]Partition
	Wanted     int        // replicas of each partition
	Now        Assignment // may be empty: a cluster without an assignment
	Limits     Limits
	// Force, if not nil, is the only thing that the plan does. Make fails if a hard rule
	// refuses it.
	Force *Placement
}

// Move makes a replica on To, and removes the one on From once that is ready.
type Move struct {
	Partition millrace.Partition
	From, To  millrace.NodeID // From "": the replica is only added; To "": it is only removed
	Bytes     int64           // how many bytes To reads and writes
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
	Spared   float64  // a gain that the plan leaves since it is less than [Limits.Gain]; 0: none
	Before   Balance  // of the assignment as it is now
	After    Balance  // of Goal
}

// The bounds of a problem.
const (
	maxWanted = 15   // a partition may have 16 replicas, and has one more than wanted while one moves
	maxNodes  = 1000 // must be less than costUneven
	minWeight = 0.01
	maxWeight = 100
)

// Make plans. Of all goals that keep the hard rules and have the best balance
// of counts it takes one with the fewest moves, and of those one in which bytes,
// load and pairs of nodes are even. It fails with a [millrace.Error] for a problem that
// makes no sense, for a forced placement that a rule refuses, and if no node may host
// anything and a partition is on no node.
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

// settle finds the best layout. With calm it moves only what a hard rule makes it move.
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

// maxRoomRounds bounds how often the layout is improved. Each round but the first gives
// less to nodes whose disks are too small for what they were to have. What is still too
// much after the last one is not moved.
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

// apply makes a move on a. It makes a new list of the partition's nodes, so that an
// assignment that a was copied from stays as it is.
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

// validate returns an error for the first thing in a problem that makes no sense.
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

// sorted returns the nodes of the problem sorted by id, so that their order has no
// influence, and how many they are. Behind them come nodes that only the assignment names.
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
