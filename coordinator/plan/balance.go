package plan

import (
	"math"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/partition"
)

// Balance says how evenly an assignment uses the nodes that may host anything.
type Balance struct {
	Nodes []NodeBalance // all that the problem or the assignment names
	// Imbalance is the most replicas on a node minus the fewest, each divided by
	// the node's weight.
	Imbalance float64
	// Bytes and Load are those of the node that has the most of them, each as a multiple
	// of its share by weight: 1 is even. 0: not known.
	Bytes, Load float64
	// PairMost is the most partitions that two nodes both host, and PairMean the mean
	// over all pairs. When one node of a pair is lost, the other may get the load of as
	// many partitions.
	PairMost int
	PairMean float64
	// Below is how many partitions have fewer replicas than wanted on nodes that may
	// host anything.
	Below int
}

// NodeBalance is a node's part of a [Balance].
type NodeBalance struct {
	ID       millrace.NodeID
	Replicas int
	Share    float64 // how many replicas it would have by its weight alone; 0 for a node that may host nothing
	Bytes    int64
	Load     float64
}

// share returns how many replicas a node would have if only weights counted.
func (l *layout) share(n int) float64 {
	if l.standing(n) != "" {
		return 0
	}
	return float64(partition.Count*l.wanted) * l.nodes[n].Weight / l.weight
}

// balance measures an assignment. Every node that it names must be in the layout.
func (l *layout) balance(a *Assignment) Balance {
	b := Balance{Nodes: make([]NodeBalance, len(l.nodes))}
	for i, n := range l.nodes {
		b.Nodes[i] = NodeBalance{ID: n.ID, Share: l.share(i)}
	}
	shared := grid[int](len(l.nodes), len(l.nodes))
	for part, owners := range a {
		usable := 0
		for k, id := range owners {
			i := l.index[id]
			x := &b.Nodes[i]
			x.Replicas++
			x.Bytes += l.problem.Partitions[part].Bytes
			x.Load += l.problem.Partitions[part].Load
			if l.standing(i) != "" {
				continue
			}
			usable++
			for _, before := range owners[:k] {
				if j := l.index[before]; l.standing(j) == "" {
					shared[min(i, j)][max(i, j)]++
				}
			}
		}
		if usable < l.problem.Wanted {
			b.Below++
		}
	}
	l.measure(&b, shared)
	return b
}

// measure works out the figures of a balance from its nodes and from shared. For i < j,
// shared[i][j] is how many partitions the nodes i and j both host.
func (l *layout) measure(b *Balance, shared [][]int) {
	most, least := 0.0, math.Inf(1)
	pairs, sum := 0, 0
	for i, n := range l.nodes {
		if l.standing(i) != "" {
			continue
		}
		per := float64(b.Nodes[i].Replicas) / n.Weight
		most, least = max(most, per), min(least, per)
		for k, mine := range [...]float64{float64(b.Nodes[i].Bytes), b.Nodes[i].Load} {
			if l.total[k] > 0 {
				whole := [...]*float64{&b.Bytes, &b.Load}[k]
				*whole = max(*whole, mine/(l.total[k]*n.Weight/l.weight))
			}
		}
		for j := range i {
			if l.standing(j) == "" {
				pairs++
				sum += shared[j][i]
				b.PairMost = max(b.PairMost, shared[j][i])
			}
		}
	}
	if l.usable > 0 {
		b.Imbalance = most - least
	}
	if pairs > 0 {
		b.PairMean = float64(sum) / float64(pairs)
	}
}

// uneven returns the distance between the fullest and the emptiest node, in replicas by
// weight, as a share of the mean.
func (l *layout) uneven() float64 {
	most, least := 0.0, math.Inf(1)
	for i, n := range l.nodes {
		if l.standing(i) == "" {
			per := float64(l.count[i]) / n.Weight
			most, least = max(most, per), min(least, per)
		}
	}
	return (most - least) / (float64(partition.Count*l.wanted) / l.weight)
}
