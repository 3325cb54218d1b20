package trees

import (
	"math"
	"unsafe"

	"github.com/millrace/millrace/compute"
)

// Block is how many rows are walked together. A matrix is made of blocks of Block rows; in
// each block the values of a column are next to each other. See [Forest.Matrix].
const Block = compute.MatrixBlock

// Batch is the most rows that Score takes.
const Batch = compute.MatrixRows

// Scores is memory for Score; each goroutine needs its own.
type Scores struct {
	sums []float64    // by class, Batch each
	row  []float64    // the sums of one row, by class
	keys []uint64     // the keys of the matrix, by block and column of keys, Block each
	at   [Block]int32 // where the rows of a block are: the number of a node, or a split in words from the root

	ranks  []uint8        // the ranks of the matrix, by column of ranks, Batch each
	inputs [][Block]int32 // by input: the ranks of a block among all cuts of the input
	leaves [Batch]uint8   // where a sweep has brought the rows: the number of a leaf
}

// Matrix returns memory for Batch rows: value c of row r is at
// (r/Block*columns+c)*Block + r%Block.
func (f *Forest) Matrix() []float64 { return make([]float64, Batch*f.Columns()) }

// Score scores the first n rows of a matrix, at most [Batch], into out, which must have room
// for n scores. matrix is as [Forest.Matrix] returns it; a missing value is NaN. Score may
// overwrite it: if the library computes in float32, the inputs are rounded in place.
func (f *Forest) Score(s *Scores, matrix []float64, n int, out []float64) {
	if len(s.sums) < f.Classes*Batch {
		s.sums, s.row = make([]float64, f.Classes*Batch), make([]float64, f.Classes)
	}
	f.round(matrix[:(n+Block-1)/Block*Block*f.Columns()])
	swept := f.sweeps(n)
	if swept {
		f.rank(s, matrix, n)
	}
	if !swept || f.walks {
		f.prepare(s, matrix, n)
	}
	sums := s.sums[:f.Classes*Batch]
	for c := range f.Classes {
		for i := range sums[c*Batch : c*Batch+Batch] {
			sums[c*Batch+i] = f.begins[c]
		}
	}
	if f.weights != nil {
		f.linear(sums, matrix, n)
	}
	for i := range f.trees {
		t := &f.trees[i]
		if t.folded || !f.link.needsAllClasses() && int(t.class) != f.class {
			continue
		}
		if sums := sums[int(t.class)*Batch:]; swept && t.moves >= 0 {
			f.sweepTree(s, t, n, sums)
		} else {
			f.tree(s, t, matrix, n, sums)
		}
	}
	f.finish(s, n, out)
}

// prepare makes the keys that walks read.
func (f *Forest) prepare(s *Scores, matrix []float64, n int) {
	if n := Batch * max(len(f.keys), 1); len(s.keys) < n {
		s.keys = make([]uint64, n) // the walk of a tree without a split reads a column too
	}
	stride := f.Columns() * Block
	for b := range (n + Block - 1) / Block {
		block := matrix[b*stride : (b+1)*stride]
		keys := s.keys[b*len(f.keys)*Block:]
		for k, c := range f.keys {
			c.fill((*[Block]uint64)(keys[k*Block:]), (*[Block]float64)(block[int(c.input)*Block:]))
		}
	}
}

// round rounds the inputs to float32 if the library does.
func (f *Forest) round(matrix []float64) {
	if !f.single {
		return
	}
	for i, x := range matrix {
		matrix[i] = float64(float32(x))
	}
}

// fill makes the keys of one column in a block from the numbers of its input.
func (c keyColumn) fill(to *[Block]uint64, from *[Block]float64) {
	missing, zero := uint64(highKey), -1.0
	if c.low {
		missing = lowKey
	}
	if c.zero {
		zero = zeroThreshold
	}
	for i, x := range from {
		y := missing
		if math.Abs(x) > zero { // false for NaN
			y = key(x)
		}
		to[i] = y
	}
}

// tree walks the rows through one tree and adds its leaves to sums.
func (f *Forest) tree(s *Scores, t *tree, matrix []float64, n int, sums []float64) {
	stride := f.Columns() * Block
	for row := 0; row < n; row += Block {
		block := matrix[row/Block*stride:][:stride]
		if t.fast < 0 {
			f.walkPlainly(f.nodes[t.start:t.end], block, &s.at)
		} else {
			walk(f.splits[t.fast:t.fastEnd], s.keys[row*len(f.keys):], t.sure, &s.at)
		}
		sum := sums[row : row+Block]
		if t.fast >= 0 && !t.linear && !f.single {
			values := f.values[t.fast:t.fastEnd]
			for j, at := range s.at {
				sum[j] += values[at/splitWords]
			}
			continue
		}
		for j := range sum {
			sum[j] = f.plus(sum[j], f.leaf(t, s.at[j], block[j:]))
		}
	}
}

// leaf returns what a leaf gives. at is where a walk ended, as in Scores.at. x is the row:
// its values are Block apart.
func (f *Forest) leaf(t *tree, at int32, x []float64) float64 {
	switch {
	case t.linear && t.fast >= 0:
		return f.leafValue(&f.nodes[t.start+f.origins[t.fast+at/splitWords]], x)
	case t.linear:
		return f.leafValue(&f.nodes[t.start+at], x)
	case t.fast >= 0:
		return f.values[t.fast+at/splitWords]
	}
	return f.nodes[t.start+at].threshold
}

// walk takes eight rows to their leaves, one level a turn, until none moves. No branch
// depends on the values of a row, and the steps of the eight rows do not depend on each
// other, so that the processor can overlap them. No leaf is nearer to the root than sure
// levels, so for sure levels it need not look whether a row moves.
//
// Nothing is checked here, since compile made every place of a split: a child is within
// splits, and a column within a block of keys.
//
// Each step stores where its row is before the next one begins. Without that, the compiler
// would load for all eight rows first, into more registers than there are.
func walk(splits []split, keys []uint64, sure int32, at *[Block]int32) {
	s, x := unsafe.Pointer(unsafe.SliceData(splits)), unsafe.Pointer(unsafe.SliceData(keys))
	var a0, a1, a2, a3, a4, a5, a6, a7 uint64
	for ; sure > 0; sure-- {
		a0 = next(s, x, a0, 0)
		at[0] = int32(a0)
		a1 = next(s, x, a1, 1)
		at[1] = int32(a1)
		a2 = next(s, x, a2, 2)
		at[2] = int32(a2)
		a3 = next(s, x, a3, 3)
		at[3] = int32(a3)
		a4 = next(s, x, a4, 4)
		at[4] = int32(a4)
		a5 = next(s, x, a5, 5)
		at[5] = int32(a5)
		a6 = next(s, x, a6, 6)
		at[6] = int32(a6)
		a7 = next(s, x, a7, 7)
		at[7] = int32(a7)
	}
	for moved := uint64(1); moved != 0; {
		moved = 0
		b0 := next(s, x, a0, 0)
		moved |= a0 ^ b0
		a0 = b0
		at[0] = int32(b0)
		b1 := next(s, x, a1, 1)
		moved |= a1 ^ b1
		a1 = b1
		at[1] = int32(b1)
		b2 := next(s, x, a2, 2)
		moved |= a2 ^ b2
		a2 = b2
		at[2] = int32(b2)
		b3 := next(s, x, a3, 3)
		moved |= a3 ^ b3
		a3 = b3
		at[3] = int32(b3)
		b4 := next(s, x, a4, 4)
		moved |= a4 ^ b4
		a4 = b4
		at[4] = int32(b4)
		b5 := next(s, x, a5, 5)
		moved |= a5 ^ b5
		a5 = b5
		at[5] = int32(b5)
		b6 := next(s, x, a6, 6)
		moved |= a6 ^ b6
		a6 = b6
		at[6] = int32(b6)
		b7 := next(s, x, a7, 7)
		moved |= a7 ^ b7
		a7 = b7
		at[7] = int32(b7)
	}
}

// next returns the child to which row j of a block goes from the split at. Both are in
// words from the root.
func next(splits, keys unsafe.Pointer, at uint64, j uintptr) uint64 {
	n := (*split)(unsafe.Add(splits, at*8))
	place := n.place
	x := *(*uint64)(unsafe.Add(keys, uintptr(uint32(place))+j*8))
	right := uint64(0)
	if x > n.threshold {
		right = 1
	}
	return place>>32 + right*splitWords
}

// walkPlainly walks a tree that has splits other than comparisons with finite thresholds,
// row by row. It sets at to the numbers of the leaves.
func (f *Forest) walkPlainly(nodes []node, block []float64, at *[Block]int32) {
	for j := range Block {
		i := int32(0)
		for nodes[i].kind != leafNode {
			n := &nodes[i]
			i = n.child[f.side(n, block[int(n.feature)*Block+j])]
		}
		at[j] = i
	}
}

// side returns to which child of a split a value goes: 0 left, 1 right.
func (f *Forest) side(n *node, x float64) uint8 {
	if x != x || n.zero && math.Abs(x) <= zeroThreshold {
		return n.missing
	}
	if n.kind == numeric {
		if x > n.threshold {
			return 1
		}
		return 0
	}
	set := &f.sets[int(n.threshold)]
	// LightGBM truncates before it looks at the sign, so that -0.5 is category 0; XGBoost
	// looks first.
	if x <= -1 || x < 0 && n.kind == notInSet || x >= set.end {
		return n.stray
	}
	in := set.has(uint32(x))
	if n.kind == inSet {
		return 1 - in
	}
	return in
}

// leafValue returns what a linear leaf gives. x is a row: its values are Block apart. If a
// feature of the leaf is missing, that is the leaf's plain value.
func (f *Forest) leafValue(n *node, x []float64) float64 {
	m := &f.leaves[n.model]
	sum := m.constant
	for i, c := range m.features {
		v := x[int(c)*Block]
		if v != v {
			return n.threshold
		}
		sum += float64(m.factors[i] * v)
	}
	return sum
}

// linear adds what a linear booster gives to sums, in float32 as XGBoost does.
func (f *Forest) linear(sums, matrix []float64, n int) {
	stride := f.Columns() * Block
	for c := range f.Classes {
		for r := range n {
			row := matrix[r/Block*stride+r%Block:]
			sum := float32(sums[c*Batch+r]) + float32(f.weights[f.Inputs*f.Classes+c])
			for k := range f.Inputs {
				if x := row[k*Block]; x == x {
					sum += float32(float32(x) * float32(f.weights[k*f.Classes+c]))
				}
			}
			sums[c*Batch+r] = float64(sum)
		}
	}
}

// finish makes the scores of the sums: it adds a base that comes last or divides by average,
// and applies the link.
func (f *Forest) finish(s *Scores, n int, out []float64) {
	sums, row := s.sums, s.row[:f.Classes]
	for r := range n {
		if !f.link.needsAllClasses() {
			out[r] = f.linked(f.sum(sums[f.class*Batch+r], f.class))
			continue
		}
		for c := range row {
			row[c] = f.sum(sums[c*Batch+r], c)
		}
		out[r] = f.linkedAll(row)
	}
}

// sum returns the sum of a class with the base if that comes last, else divided by average.
func (f *Forest) sum(x float64, class int) float64 {
	if f.baseLast {
		return float64(float32(x) + float32(f.base[class]))
	}
	return x / f.average
}

// row returns a matrix of one row, rounded as the library does.
func (f *Forest) row(values []float64) []float64 {
	block := make([]float64, f.Columns()*Block)
	for c, x := range values {
		block[c*Block] = x
	}
	f.round(block)
	return block
}
