// A filter is a conjunction of terms. Its loops, interpreted or generated, evaluate a
// term for a block of 64 rows at a time. A Verdict holds what the term is for each of
// them, a bit a row. A State holds the rows for which no term was false so far.

package compute

import (
	"math"
	"math/bits"
)

// Chunk is the number of rows for which a term is evaluated before the next term is. It is
// small enough that the columns that a kernel, a loop over columns, works on stay in the
// first-level cache. Blocks is how many blocks of 64 rows a chunk has.
const (
	Chunk  = 1024
	Blocks = Chunk / 64
)

// Mask has a bit for each row of a chunk.
type Mask [Blocks]uint64

// Verdict is the result of a term for the 64 rows of a block, a bit a row. Hit has the rows
// for which the term is true. Unfit and Failed have those for which it is an error: Unfit
// for a null or a value of the wrong type, Failed for a computation that failed, such as an
// overflow. For all other rows the term is false; NaN has those of them where a NaN was
// compared.
type Verdict struct{ Hit, Unfit, Failed, NaN uint64 }

// State is the rows of a chunk for which no term was false so far. Live has those for
// which every term was true. Unfit and Failed have those for which some term was an error
// (see Verdict); a later term that is false still drops them.
type State struct {
	Live, Unfit, Failed Mask
	False, NaN          int64 // how many rows were dropped so far; those in NaN are not in False
}

// Begin starts block i, which has n rows, up to 64: all are live.
func (s *State) Begin(i, n int) {
	s.Live[i], s.Unfit[i], s.Failed[i] = firstBits(n), 0, 0
}

// firstBits returns the first n bits, at most 64.
func firstBits(n int) uint64 {
	if n >= 64 {
		return ^uint64(0)
	}
	return 1<<n - 1
}

// Keep applies the verdict of the next term to block i, and returns the rows that are
// left, live or with an error.
func (s *State) Keep(i int, v Verdict) (left uint64) {
	live, unfit, failed := s.Live[i], s.Unfit[i], s.Failed[i]
	errors := v.Unfit | v.Failed
	if errors|unfit|failed|v.NaN == 0 { // the usual case
		s.Live[i] = live & v.Hit
		s.False += int64(bits.OnesCount64(live &^ v.Hit))
		return s.Live[i]
	}
	isFalse := (live | unfit | failed) &^ (v.Hit | errors)
	nans := bits.OnesCount64(isFalse & v.NaN)
	s.NaN += int64(nans)
	s.False += int64(bits.OnesCount64(isFalse) - nans)
	s.Live[i] = live & v.Hit
	s.Unfit[i] = unfit&^isFalse | live&v.Unfit
	s.Failed[i] = failed&^isFalse | live&v.Failed
	return s.Live[i] | s.Unfit[i] | s.Failed[i]
}

// And returns the verdict of a && b. A row is false if either is false, and true if both
// are true. All other rows are errors; if both are errors, the row has that of a.
func And(a, b Verdict) Verdict {
	wrong := ^(a.Hit | a.Unfit | a.Failed) | ^(b.Hit | b.Unfit | b.Failed)
	return Verdict{
		Hit:    a.Hit & b.Hit,
		Unfit:  (a.Unfit | b.Unfit&^a.Failed) &^ wrong,
		Failed: (a.Failed | b.Failed&^a.Unfit) &^ wrong,
	}
}

// Or returns the verdict of a || b. A row is true if either is true, and an error if
// neither is and one of them is an error; if both are errors, the row has that of a.
func Or(a, b Verdict) Verdict {
	hit := a.Hit | b.Hit
	return Verdict{
		Hit:    hit,
		Unfit:  (a.Unfit | b.Unfit&^a.Failed) &^ hit,
		Failed: (a.Failed | b.Failed&^a.Unfit) &^ hit,
	}
}

// Not returns the verdict of !a.
func Not(a Verdict) Verdict {
	return Verdict{Hit: ^(a.Hit | a.Unfit | a.Failed), Unfit: a.Unfit, Failed: a.Failed}
}

// Without returns a with the rows of nulls made false: a null is not the value that is
// looked for.
func Without(a Verdict, nulls uint64) Verdict {
	a.Hit &^= nulls
	a.NaN &^= nulls
	return a
}

// Ordered returns a with the rows of nulls made errors: a null has no order.
func Ordered(a Verdict, nulls uint64) Verdict {
	a = Without(a, nulls)
	a.Unfit = nulls
	return a
}

// Outside returns a negated: its Hit has the rows that are neither in a.Hit nor in a.Unfit.
// a.Failed must be empty.
func Outside(a Verdict) Verdict {
	a.Hit = ^(a.Hit | a.Unfit)
	return a
}

// Valid returns a with all rows made Failed that are neither valid nor unfit: they
// overflow.
func Valid(a Verdict, valid uint64) Verdict {
	a.Failed = ^(valid | a.Unfit)
	a.Hit &^= a.Failed
	return a
}

// Bit returns 1 for true and 0 for false, without a branch.
func Bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// Between returns a bit for each word of a block that is from lo to lo+span, both
// included. The bits beyond the block are set. It works from the last word to the first.
// A word out of the range gives a borrow. Adding m to itself with the borrow shifts m and
// puts the borrow into its lowest bit. That takes four instructions a word.
func Between(block []uint64, lo, span uint64) uint64 {
	var m, out uint64
	i := len(block)
	for ; i >= 4; i -= 4 {
		w := block[i-4 : i : i]
		_, out = bits.Sub64(span, w[3]-lo, 0)
		m, _ = bits.Add64(m, m, out)
		_, out = bits.Sub64(span, w[2]-lo, 0)
		m, _ = bits.Add64(m, m, out)
		_, out = bits.Sub64(span, w[1]-lo, 0)
		m, _ = bits.Add64(m, m, out)
		_, out = bits.Sub64(span, w[0]-lo, 0)
		m, _ = bits.Add64(m, m, out)
	}
	for i--; i >= 0; i-- {
		_, out = bits.Sub64(span, block[i]-lo, 0)
		m, _ = bits.Add64(m, m, out)
	}
	return ^m
}

// Equal returns a bit for each word of a block that is w. The bits beyond the block are
// set.
func Equal(block []uint64, w uint64) uint64 { return Between(block, w, 0) }

// DoublesBetween returns the doubles of a block that are from lo to hi as Hit, and those
// that are NaN as NaN.
func DoublesBetween(block []uint64, lo, hi float64) Verdict {
	var v Verdict
	for r := len(block) - 1; r >= 0; r-- {
		x := math.Float64frombits(block[r])
		v.Hit = v.Hit<<1 | Bit(x >= lo)&Bit(x <= hi)
		v.NaN = v.NaN<<1 | Bit(x != x)
	}
	return v
}

// Nulls returns a bit for each word of a block that has the null bit of a column.
func Nulls(block []uint64, bit uint64) uint64 {
	var m uint64
	for r := len(block) - 1; r >= 0; r-- {
		m = m<<1 | Bit(block[r]&bit != 0)
	}
	return m
}
