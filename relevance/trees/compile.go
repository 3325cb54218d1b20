package trees

import (
	"math"
	"slices"
)

// splitWords is the size of a split.
const splitWords = 2

// compile makes the splits of every tree that the fast walk can take, and the
// columns of keys that they read. It begins anew each time.
func (f *Forest) compile() {
	f.trees = slices.Clone(f.trees)
	f.fold()
	n := len(f.nodes) // at most, and of most forests exactly
	f.keys, f.splits, f.origins, f.values = nil, make([]split, 0, n), make([]int32, 0, n), make([]float64, 0, n)
	seen := make([]int32, keyColumns*f.Inputs)
	for i := range f.trees {
		t := &f.trees[i]
		t.fast = -1
		if nodes := f.nodes[t.start:t.end]; !t.folded && onlyComparisons(nodes) {
			t.fast = int32(len(f.splits))
			f.lay(nodes, seen)
			t.fastEnd = int32(len(f.splits))
		}
	}
	f.layMoves()
}

// fold adds up what the first trees of each class give as long as they are single
// leaves, in their order and as rows would: these begin at the sum. A leaf behind a split
// is added after what the split gives, and in floating point no earlier.
func (f *Forest) fold() {
	f.begins = make([]float64, f.Classes)
	if !f.baseLast {
		copy(f.begins, f.base)
	}
	met := make([]bool, f.Classes) // a tree that is not folded
	for i := range f.trees {
		t := &f.trees[i]
		t.folded = !met[t.class] && f.weights == nil && !t.linear && t.end-t.start == 1
		if met[t.class] = !t.folded; t.folded {
			f.begins[t.class] = f.plus(f.begins[t.class], f.nodes[t.start].threshold)
		}
	}
}

// plus adds what a leaf gives to a sum, as the library does.
func (f *Forest) plus(sum, leaf float64) float64 {
	if f.single {
		return float64(float32(sum) + float32(leaf))
	}
	return sum + leaf
}

// onlyComparisons reports whether every split is one comparison with a finite threshold, so
// that the tree can be walked by keys.
func onlyComparisons(nodes []node) bool {
	for i := range nodes {
		n := &nodes[i]
		if n.kind == inSet || n.kind == notInSet || n.kind == numeric && math.IsInf(n.threshold, 0) {
			return false
		}
	}
	return true
}

// lay appends a tree's splits, level by level, so that children are neighbours.
func (f *Forest) lay(nodes []node, seen []int32) {
	order := []int32{0}
	for at := 0; at < len(order); at++ {
		n := &nodes[order[at]]
		s, left, value := split{threshold: highKey}, at, n.threshold
		if n.kind == numeric {
			left, value = len(order), 0
			s = split{key(n.threshold), uint64(f.column(n.keyColumn(), seen)) * Block * 8}
			order = append(order, n.child[0], n.child[1])
		}
		s.place |= uint64(left*splitWords) << 32
		f.splits, f.values = append(f.splits, s), append(f.values, value)
	}
	f.origins = append(f.origins, order...)
}

// keyColumn is what a split reads.
func (n *node) keyColumn() keyColumn { return keyColumn{n.feature, n.missing == 0, n.zero} }

// column returns the place of a column, which it makes if there is none. In seen
// places begin at 1.
func (f *Forest) column(c keyColumn, seen []int32) int32 {
	at := &seen[c.index()]
	if *at == 0 {
		f.keys = append(f.keys, c)
		*at = int32(len(f.keys))
	}
	return *at - 1
}

// The keys of what is missing, below and above those of all numbers.
const (
	lowKey  = 0
	highKey = math.MaxUint64
)

// key returns a number's place in the order of numbers, in which both zeros are
// one. Integers are compared in fewer steps.
func key(x float64) uint64 {
	b := math.Float64bits(x + 0)
	return b ^ (uint64(int64(b)>>63) | 1<<63)
}
