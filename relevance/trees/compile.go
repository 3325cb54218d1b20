package trees

import (
	"math"
	"unsafe"
)

const splitBytes = int(unsafe.Sizeof(split{}))

// compile makes the splits of every tree that the fast walk can take, and the
// copies of columns that they read. It begins anew each time.
func (f *Forest) compile() {
	f.copies, f.splits, f.origins, f.values = nil, nil, nil, nil
	f.trees = append([]tree(nil), f.trees...)
	seen := map[inputCopy]int32{}
	for i := range f.trees {
		t := &f.trees[i]
		t.fast = -1
		if nodes := f.nodes[t.start:t.end]; comparable(nodes) {
			t.fast = int32(len(f.splits))
			f.lay(nodes, seen)
			t.fastEnd = int32(len(f.splits))
		}
	}
}

// comparable reports whether every split is one comparison that an infinity
// decides.
func comparable(nodes []node) bool {
	for i := range nodes {
		n := &nodes[i]
		if n.kind == inSet || n.kind == notInSet || n.kind == numeric && math.IsInf(n.threshold, 0) {
			return false
		}
	}
	return true
}

// lay appends a tree's splits, level by level, so that children are neighbours.
func (f *Forest) lay(nodes []node, seen map[inputCopy]int32) {
	order := []int32{0}
	for at := 0; at < len(order); at++ {
		n := &nodes[order[at]]
		s := split{threshold: math.Inf(1), left: uint32(at * splitBytes)}
		value := n.threshold
		if n.kind == numeric {
			s = split{threshold: n.threshold, left: uint32(len(order) * splitBytes), column: uint32(f.copyOf(n, seen)) * Block * 8}
			order = append(order, n.child[0], n.child[1])
			value = 0
		}
		f.splits, f.values = append(f.splits, s), append(f.values, value)
	}
	f.origins = append(f.origins, order...)
}

// copyOf returns the column that a split reads. NaN is not above anything: a
// split that sends it to the left reads the input itself.
func (f *Forest) copyOf(n *node, seen map[inputCopy]int32) int32 {
	if n.missing == 0 && !n.zero {
		return n.feature
	}
	c := inputCopy{n.feature, n.missing == 0, n.zero}
	at, ok := seen[c]
	if !ok {
		at = int32(f.Inputs + len(f.copies))
		seen[c], f.copies = at, append(f.copies, c)
	}
	return at
}
