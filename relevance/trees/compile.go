package trees

import (
	"math"
	"slices"
)

// splitWords is the size of a split, in words of 8 bytes.
const splitWords = 2

// compile lays the forest out for scoring: the folded trees, the splits of every tree that
// the fast walk can take, the columns of keys that they read, and the moves of sweeps. A walk
// by keys, the fast one, takes eight rows at a time; trees that keys cannot express are
// walked plainly, row by row. It replaces what an earlier call made.
func (f *Forest) compile() {
	f.trees = slices.Clone(f.trees)
	f.fold()
	n := len(f.nodes) // how many splits there are at most, and in most forests exactly
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

// fold adds up the first trees of each class as long as they are single leaves. The sum of
// a row begins with that, and these trees need not be walked. Single leaves after a tree
// with splits are not folded, since floating-point sums depend on the order.
func (f *Forest) fold() {
	f.begins = make([]float64, f.Classes)
	if !f.baseLast {
		copy(f.begins, f.base)
	}
	met := make([]bool, f.Classes) // by class: a tree before was not folded
	for i := range f.trees {
		t := &f.trees[i]
		t.folded = !met[t.class] && f.weights == nil && !t.linear && t.end-t.start == 1
		if met[t.class] = !t.folded; t.folded {
			f.begins[t.class] = f.plus(f.begins[t.class], f.nodes[t.start].threshold)
		}
	}
}

// plus adds a leaf to a sum in the arithmetic of the library.
func (f *Forest) plus(sum, leaf float64) float64 {
	if f.single {
		return float64(float32(sum) + float32(leaf))
	}
	return sum + leaf
}

// onlyComparisons reports whether every split compares a number with a finite threshold, so
// that the tree can be walked by keys (see [keyColumn]).
func onlyComparisons(nodes []node) bool {
	for i := range nodes {
		n := &nodes[i]
		if n.kind == inSet || n.kind == notInSet || n.kind == numeric && math.IsInf(n.threshold, 0) {
			return false
		}
	}
	return true
}

// lay appends a tree's splits, level by level, so that the two children of a split are
// neighbours. seen is as in column.
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

// keyColumn returns the column of keys that a split reads.
func (n *node) keyColumn() keyColumn { return keyColumn{n.feature, n.missing == 0, n.zero} }

// column returns the index of a column in f.keys, and adds it if it is not there. seen has,
// by keyColumn.index, the index of each column that is there plus 1; else 0.
func (f *Forest) column(c keyColumn, seen []int32) int32 {
	at := &seen[c.index()]
	if *at == 0 {
		f.keys = append(f.keys, c)
		*at = int32(len(f.keys))
	}
	return *at - 1
}

// The keys of missing values: below and above those of all numbers.
const (
	lowKey  = 0
	highKey = math.MaxUint64
)

// key returns an integer for a number, so that keys have the order of the numbers. Both
// zeros have the same key. Integers are compared in fewer steps than numbers.
func key(x float64) uint64 {
	b := math.Float64bits(x + 0)
	return b ^ (uint64(int64(b)>>63) | 1<<63)
}
