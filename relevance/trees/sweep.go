package trees

import (
	"math"
	"slices"

	"github.com/millrace/millrace/compute"
)

// If the processor can compare many bytes at once, a tree is swept: its splits are taken
// one after the other, each for all rows of a batch. A split costs a few instructions for
// all rows together. So all splits of a tree of 64 leaves cost less than walking each row
// from the root to its leaf.
//
// The position of a row is the number of the first leaf of the subtree that the row is in.
// Leaves are counted from the left. So each row begins at 0 and ends at the number of its
// leaf. A split moves the rows whose position is its own first leaf, and which go right, to
// the first leaf of its right child. Parents come before their children, so that no other
// rows have a split's first leaf as their position when its turn comes.
//
// What is compared are bytes: not an input itself, but its rank among the numbers that
// splits compare it with (its cuts). An input with more cuts than a byte can count has a
// column of ranks for each maxCuts of them, called a page.

const (
	maxCuts   = math.MaxUint8     // the most cuts of a column of ranks, so that a rank is a byte
	maxLeaves = math.MaxUint8 + 1 // the most leaves of a tree, so that the number of a leaf is a byte
	// leastSwept is the least number of rows that are swept. A sweep of one row takes as
	// long as one of a whole batch.
	leastSwept = 16
)

// move is a split as a sweep applies it. The last three fields have a byte four times, as
// the processor's instructions take it.
type move struct {
	column   uint32 // where the split's column of ranks begins in Scores.ranks
	least    uint32 // the least rank that goes right
	from, to uint32 // the number of the first leaf of the split, and of that of its right child
}

// four returns a number below 256 as a byte four times.
func four(x int) uint32 { return uint32(x) * 0x01010101 }

// rankColumn is an input as ranks among maxCuts of its cuts.
type rankColumn struct {
	keyColumn
	page int32 // the cuts from page*maxCuts on
}

// sweeper makes the moves of a forest.
type sweeper struct {
	f       *Forest
	cuts    []int32   // by node: the index of a split's threshold among the cuts of its input
	columns [][]int32 // by keyColumn.index and page: the index of the column in f.ranks plus 1; 0 if there is none
}

// canBeSwept reports whether a tree can be swept, once its splits have been laid out by
// compile.
func (t *tree) canBeSwept() bool {
	return t.fast >= 0 && !t.linear && (t.fastEnd-t.fast+1)/2 <= maxLeaves
}

// layMoves makes the moves of every tree that can be swept.
func (f *Forest) layMoves() {
	f.ranks, f.moves, f.gains, f.walks = nil, nil, nil, false
	s := sweeper{f, make([]int32, len(f.nodes)), make([][]int32, keyColumns*f.Inputs)}
	splits := s.cut()
	f.moves, f.gains = make([]move, 0, splits), make([]float64, 0, splits+len(f.trees)+maxLeaves)
	for i := range f.trees {
		t := &f.trees[i]
		if t.moves = -1; t.canBeSwept() {
			t.moves, t.gains = int32(len(f.moves)), int32(len(f.gains))
			s.lay(t.start, 0, 0)
			t.movesEnd = int32(len(f.moves))
		}
	}
	f.gains = append(f.gains, make([]float64, maxLeaves)...) // sweepTree reads maxLeaves gains of each tree
}

// cut makes the cuts of every input, and returns how many splits there are in the trees that
// can be swept.
func (s *sweeper) cut() (splits int) {
	f := s.f
	of := make([][]placed, f.Inputs)
	for _, t := range f.trees {
		if !t.canBeSwept() {
			f.walks = f.walks || t.fast >= 0
			continue
		}
		for i, n := range f.nodes[t.start:t.end] {
			if n.kind == numeric {
				of[n.feature] = append(of[n.feature], placed{key(n.threshold), t.start + int32(i)})
				splits++
			}
		}
	}
	f.cuts = make([][]float64, f.Inputs)
	var spare []placed
	for c, at := range of {
		var cuts []float64
		var last uint64
		spare = slices.Grow(spare[:0], len(at))[:len(at)]
		for i, p := range sorted(at, spare) {
			if i == 0 || p.key != last {
				cuts, last = append(cuts, f.nodes[p.node].threshold), p.key
			}
			s.cuts[p.node] = int32(len(cuts) - 1)
		}
		f.cuts[c] = padded(cuts)
	}
	return splits
}

// placed is a split, with the key of its threshold.
type placed struct {
	key  uint64
	node int32 // the index in Model.nodes
}

// sorted returns list sorted by key. It is a radix sort, since a large model may have a
// hundred thousand splits of one input. It writes to list and to spare, which must be as
// long, and returns one of them.
func sorted(list, spare []placed) []placed {
	const bits = 11
	for shift := 0; shift < 64; shift += bits {
		var ends [1 << bits]int32
		for _, p := range list {
			ends[p.key>>shift%(1<<bits)]++
		}
		sum := int32(0)
		for i, n := range ends {
			ends[i], sum = sum, sum+n
		}
		for _, p := range list {
			at := &ends[p.key>>shift%(1<<bits)]
			spare[*at] = p
			*at++
		}
		list, spare = spare, list
	}
	return list
}

// lay appends the moves of a subtree to f.moves, and what its leaves give to f.gains. start
// is where the tree begins in Model.nodes, i the number of the subtree's root in the tree,
// and first the number of its first leaf. It returns how many leaves the subtree has.
func (s *sweeper) lay(start, i int32, first int) int {
	f := s.f
	n := &f.nodes[start+i]
	if n.kind == leafNode {
		f.gains = append(f.gains, n.threshold)
		return 1
	}
	cut := int(s.cuts[start+i])
	at := len(f.moves)
	f.moves = append(f.moves, move{column: s.column(n.keyColumn(), cut/maxCuts), least: four(cut%maxCuts + 1), from: four(first)})
	left := s.lay(start, n.child[0], first)
	f.moves[at].to = four(first + left)
	return left + s.lay(start, n.child[1], first+left)
}

// column returns where the column of a page begins in Scores.ranks, and adds the column if
// it is not there.
func (s *sweeper) column(c keyColumn, page int) uint32 {
	pages := &s.columns[c.index()]
	if *pages == nil {
		*pages = make([]int32, len(s.f.cuts[c.input])/maxCuts+1)
	}
	at := &(*pages)[page]
	if *at == 0 {
		s.f.ranks = append(s.f.ranks, rankColumn{c, int32(page)})
		*at = int32(len(s.f.ranks))
	}
	return uint32(*at-1) * Batch
}

// padded appends infinite cuts, which no number is above, until there are 2^n-1 cuts. The
// binary search of rank needs as many.
func padded(cuts []float64) []float64 {
	n := 0
	for n < len(cuts) {
		n = 2*n + 1
	}
	for len(cuts) < n {
		cuts = append(cuts, math.Inf(1))
	}
	return cuts
}

// sweeps reports whether n rows are swept.
func (f *Forest) sweeps(n int) bool { return canSweep && n >= leastSwept && len(f.moves) > 0 }

// rank computes the ranks of n rows that sweeps read.
func (f *Forest) rank(s *Scores, matrix []float64, n int) {
	if n := Batch * len(f.ranks); len(s.ranks) < n {
		s.ranks = make([]uint8, n)
	}
	if len(s.inputs) < f.Inputs {
		s.inputs = make([][Block]int32, f.Inputs)
	}
	stride := f.Columns() * Block
	for row := 0; row < n; row += Block {
		block := matrix[row/Block*stride:][:stride]
		for c, cuts := range f.cuts {
			rank(&s.inputs[c], (*[Block]float64)(block[c*Block:]), cuts)
		}
		for k, c := range f.ranks {
			c.fill((*[Block]uint8)(s.ranks[k*Batch+row:]), &s.inputs[c.input], (*[Block]float64)(block[int(c.input)*Block:]))
		}
	}
}

// rank writes to to, for each of eight numbers, how many cuts are below it; 0 for NaN. The
// eight binary searches are written side by side, so that the processor can overlap them,
// as in walk.
func rank(to *[Block]int32, from *[Block]float64, cuts []float64) {
	var a0, a1, a2, a3, a4, a5, a6, a7 int
	for step := (len(cuts) + 1) / 2; step > 0; step /= 2 {
		half := cuts[step-1:]
		a0 += step & -compute.One(from[0] > half[a0])
		a1 += step & -compute.One(from[1] > half[a1])
		a2 += step & -compute.One(from[2] > half[a2])
		a3 += step & -compute.One(from[3] > half[a3])
		a4 += step & -compute.One(from[4] > half[a4])
		a5 += step & -compute.One(from[5] > half[a5])
		a6 += step & -compute.One(from[6] > half[a6])
		a7 += step & -compute.One(from[7] > half[a7])
	}
	*to = [Block]int32{int32(a0), int32(a1), int32(a2), int32(a3), int32(a4), int32(a5), int32(a6), int32(a7)}
}

// fill makes the ranks of one column in a block from the ranks of its input among all cuts.
func (c rankColumn) fill(to *[Block]uint8, ranks *[Block]int32, from *[Block]float64) {
	missing, zero := int32(maxCuts), -1.0
	if c.low {
		missing = 0
	}
	if c.zero {
		zero = zeroThreshold
	}
	before := c.page * maxCuts
	for i, x := range from {
		y := missing
		if math.Abs(x) > zero { // false for NaN
			y = min(max(ranks[i]-before, 0), maxCuts)
		}
		to[i] = uint8(y)
	}
}

// sweepTree sweeps n rows through one tree and adds its leaves to sums.
func (f *Forest) sweepTree(s *Scores, t *tree, n int, sums []float64) {
	sweep(f.moves[t.moves:t.movesEnd], s.ranks, &s.leaves)
	gains, leaves, sums := (*[maxLeaves]float64)(f.gains[t.gains:]), s.leaves[:n], sums[:n]
	if f.single {
		for r, leaf := range leaves {
			sums[r] = float64(float32(sums[r]) + float32(gains[leaf]))
		}
		return
	}
	for r, leaf := range leaves {
		sums[r] += gains[leaf]
	}
}

// sweepPortably does what sweep does in plain Go: it takes all rows of a batch through the
// tree with these moves, and sets leaves to the number of the leaf of each.
func sweepPortably(moves []move, ranks []uint8, leaves *[Batch]uint8) {
	clear(leaves[:])
	for _, m := range moves {
		for r, x := range ranks[m.column:][:Batch] {
			if leaves[r] == uint8(m.from) && x >= uint8(m.least) {
				leaves[r] = uint8(m.to)
			}
		}
	}
}
