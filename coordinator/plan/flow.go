package plan

import (
	"math"
	"slices"

	"github.com/millrace/millrace/internal/partition"
)

// begin keeps today's replicas as far as the zones allow, and gives each partition the
// replicas that it lacks. Its choice keeps the rules of the zones, and is not yet good.
func (l *layout) begin() {
	for part := range l.at {
		for _, n := range slices.Clone(l.at[part]) {
			l.take(part, n)
			if len(l.at[part]) < l.wanted && l.zoneFits(part, none, l.zone[n]) {
				l.put(part, n)
			}
		}
	}
	for i := range l.most {
		if l.room[i] < 0 || l.nodes[i].Away { // such a node gets nothing more
			l.most[i] = l.count[i]
		}
	}
	for part := range l.at {
		for len(l.at[part]) < l.wanted {
			l.put(part, l.emptiest(part))
		}
	}
}

// emptiest returns the node on which a further replica of a partition costs least; of
// several the one that shares the fewest partitions with the other replicas.
func (l *layout) emptiest(part int) int {
	best, cost, pairs := none, int64(math.MaxInt64), 0
	for n := range l.nodes {
		if l.standing(n) != "" || l.held[n][part] || !l.zoneFits(part, none, l.zone[n]) {
			continue
		}
		c := l.marginal(n, l.count[n]+1)
		if c > cost {
			continue
		}
		if shared := l.shares(part, none, n); c < cost || shared < pairs {
			best, cost, pairs = n, c, shared
		}
	}
	return best
}

// shares returns how many partitions node n shares with the nodes that have this
// partition, added up. The node from does not count.
func (l *layout) shares(part, from, n int) (shared int) {
	for _, other := range l.at[part] {
		if other != from {
			shared += int(l.pair[n][other])
		}
	}
	return shared
}

// The cost of a layout is one number: first how uneven the counts are, then how many
// replicas are not where they are today. Unevenness is the sum of c²/w over the nodes, for
// a node of weight w with c replicas. It is least where the counts are as even as the zones
// allow. So the c-th replica of a node costs (2c-1)/w, which is c²/w - (c-1)²/w. A replica
// beyond what a node may have costs more than everything else.
const (
	costUneven  = 1 << 12 // one unit of unevenness: more than the moves of any path, which has at most maxNodes arcs
	costScale   = 1 << 16 // units for 1/w, so that rounding does not make unequal weights equal
	costNoRoom  = 1 << 58 // a replica beyond what a node may have
	unreachable = 2       // in flow.cost: there is no arc; those that there are cost -1, 0 or 1
)

// marginal returns the cost of a node's c-th replica.
func (l *layout) marginal(n, c int) int64 {
	cost := int64(math.Round(costScale*float64(2*c-1)/l.nodes[n].Weight)) * costUneven
	if c > l.most[n] {
		cost += costNoRoom
	}
	return cost
}

// flow is the residual graph of a layout, as in a min-cost flow. An arc from node n to m
// is a replica that may go from n to m. Its cost is the moves that this adds: 1 if n has
// the replica today, -1 if m has it. An augmenting path takes a replica from its first
// node and gives one to its last.
type flow struct {
	*layout
	pinned bool         // replicas that are where they are today stay there
	ids    []int        // the usable nodes
	arcs   [3][][]int16 // [cost+1][n][m]: how many arcs of this cost there are
	cost   [][]int8     // [n][m]: the cost of the cheapest arc, or unreachable
	far    []int64      // by node: the least cost of a path to it that negative has found
	before []int        // by node: the one before it on that path, or none
	enter  []bool       // scratch of count, by zone: whether it may have one more replica
}

func newFlow(l *layout, pinned bool) *flow {
	n := len(l.nodes)
	f := &flow{layout: l, pinned: pinned, cost: grid[int8](n, n), far: make([]int64, n), before: make([]int, n), enter: make([]bool, len(l.zones))}
	for k := range f.arcs {
		f.arcs[k] = grid[int16](n, n)
	}
	for i := range l.nodes {
		for j := range f.cost[i] {
			f.cost[i][j] = unreachable
		}
		if l.standing(i) == "" {
			f.ids = append(f.ids, i)
		}
	}
	for part := range l.at {
		f.count(part, 1)
	}
	return f
}

// count adds the arcs of a partition's replicas if sign is 1, and removes them if it is -1.
func (f *flow) count(part int, sign int16) {
	for _, n := range f.at[part] {
		out := 1 // the index in arcs: the cost of the arc, plus 1
		if f.home[n][part] {
			if f.pinned {
				continue
			}
			out = 2
		}
		for z := range f.enter {
			f.enter[z] = f.zoneFits(part, n, z)
		}
		for _, m := range f.ids {
			if f.held[m][part] || !f.enter[f.zone[m]] || !f.takes(part, m) {
				continue
			}
			k := out
			if f.home[m][part] {
				k--
			}
			f.arcs[k][n][m] += sign
			f.cheapest(n, m)
		}
	}
}

// cheapest sets the cost from n to m to that of the cheapest arc.
func (f *flow) cheapest(n, m int) {
	f.cost[n][m] = unreachable
	for k := range f.arcs {
		if f.arcs[k][n][m] > 0 {
			f.cost[n][m] = int8(k - 1)
			return
		}
	}
}

// transfer moves a replica, and keeps the arcs right.
func (f *flow) transfer(part, from, to int) {
	f.count(part, -1)
	f.take(part, from)
	f.put(part, to)
	f.count(part, 1)
}

// improve augments along paths and cycles of negative cost until there is none. Then no
// layout is cheaper (cycle canceling, Klein 1967).
func (f *flow) improve() {
	for {
		nodes, closed := f.negative()
		if nodes == nil {
			return
		}
		f.augment(nodes, closed)
	}
}

// negative finds, by Bellman-Ford, a path or a cycle (closed) that makes the layout
// cheaper; nil if there is none.
func (f *flow) negative() (nodes []int, closed bool) {
	for _, n := range f.ids {
		f.far[n], f.before[n] = -f.marginal(n, f.layout.count[n]), none
	}
	for changed := true; changed; {
		changed = false
		for _, n := range f.ids {
			far, cost := f.far[n], f.cost[n]
			for _, m := range f.ids {
				if c := cost[m]; c != unreachable && far+int64(c) < f.far[m] {
					f.far[m], f.before[m], changed = far+int64(c), n, true
				}
			}
		}
		if changed {
			if c := f.circle(); c != nil {
				return c, true
			}
		}
	}
	best, least := none, int64(0)
	for _, n := range f.ids {
		if c := f.far[n] + f.marginal(n, f.layout.count[n]+1); c < least && f.before[n] != none {
			best, least = n, c
		}
	}
	for n := best; n != none; n = f.before[n] {
		nodes = append(nodes, n)
	}
	slices.Reverse(nodes)
	return nodes, false
}

// circle returns a cycle among the nodes' predecessors, or nil.
func (f *flow) circle() []int {
	seen := make([]int, len(f.nodes)) // the walk that first came to the node, from 1
	for walk, start := range f.ids {
		n := start
		for n != none && seen[n] == 0 {
			seen[n] = walk + 1
			n = f.before[n]
		}
		if n == none || seen[n] != walk+1 {
			continue
		}
		cycle := []int{n}
		for m := f.before[n]; m != n; m = f.before[m] {
			cycle = append(cycle, m)
		}
		slices.Reverse(cycle)
		return cycle
	}
	return nil
}

// step is one replica that goes from a node to another.
type step struct{ part, from, to int }

// augment makes the transfers of a path. If two of them are of one partition, they may
// want the same zone, and then only one of them is legal. legal then leaves out the part
// of the path between the two, and the rest costs no more.
func (f *flow) augment(nodes []int, closed bool) {
	if closed {
		nodes = append(nodes, nodes[0])
	}
	var steps []step
	for i := range nodes[1:] {
		steps = append(steps, f.arc(nodes[i], nodes[i+1]))
	}
	for _, s := range f.legal(steps, closed) {
		f.transfer(s.part, s.from, s.to)
	}
}

// legal returns the steps if all of them are legal together, or else those of a part of
// the path that is.
func (f *flow) legal(steps []step, closed bool) []step {
	for j := range steps {
		for i := range steps[:j] {
			a, b := steps[i], steps[j]
			if a.part != b.part || f.together(a, b) {
				continue
			}
			outer := append(append(slices.Clone(steps[:i]), step{a.part, a.from, b.to}), steps[j+1:]...)
			inner := append(slices.Clone(steps[i+1:j]), step{a.part, b.from, a.to})
			if a.from == b.to {
				outer = slices.Delete(outer, i, i+1)
			}
			if closed && f.price(inner) < 0 {
				outer = inner
			}
			return f.legal(outer, closed)
		}
	}
	return steps
}

// together reports whether the zones allow two steps of one partition together.
func (f *flow) together(a, b step) bool {
	f.take(a.part, a.from)
	f.put(a.part, a.to)
	ok := f.zoneFits(b.part, b.from, f.zone[b.to])
	f.take(a.part, a.to)
	f.put(a.part, a.from)
	return ok
}

// price returns how many moves the steps add, less those that they save.
func (f *flow) price(steps []step) (moves int) {
	for _, s := range steps {
		if f.home[s.from][s.part] {
			moves++
		}
		if f.home[s.to][s.part] {
			moves--
		}
	}
	return moves
}

// arc returns the replica that goes from n to m. Of the arcs of least cost it takes the
// partition whose other replicas are on nodes that share the fewest partitions with m.
func (f *flow) arc(n, m int) step {
	best, pairs := step{none, n, m}, 0
	for part := range partition.Count {
		if !f.held[n][part] || f.held[m][part] || !f.takes(part, m) || f.pinned && f.home[n][part] {
			continue
		}
		if f.price([]step{{part, n, m}}) != int(f.cost[n][m]) || !f.zoneFits(part, n, f.zone[m]) {
			continue
		}
		if shared := f.shares(part, n, m); best.part == none || shared < pairs {
			best.part, pairs = part, shared
		}
	}
	return best
}
