// The loops of filters, interpreted and generated, say of 64 rows at a time which
// are wanted, and what becomes of rows as one term after the other is false for
// them.

package compute

import (
	"math"
	"math/bits"
)

// Chunk is how many rows a term goes through before the next term does, so that
// the vectors of kernels stay in the cache next to the core.
const (
	Chunk  = 1024
	Blocks = Chunk / 64
)

// Mask is a bit a row of a chunk.
type Mask [Blocks]uint64

// Verdict is what a term says of the 64 rows of a block. It is false for those
// in none of Hit, Unfit and Failed; NaN are those that compared a NaN.
type Verdict struct{ Hit, Unfit, Failed, NaN uint64 }

// State is the rows of a chunk that no term was false for: true in every term
// so far, or with an error, which a later term that is false still decides.
type State struct {
	Live, Unfit, Failed Mask
	False, NaN          int64 // rows dropped so far; NaN apart from False
}

// Begin starts block i, of n rows.
func (s *State) Begin(i, n int) {
	s.Live[i], s.Unfit[i], s.Failed[i] = firstBits(n), 0, 0
}

// firstBits has the first n bits set, or all 64.
func firstBits(n int) uint64 {
	if n >= 64 {
		return ^uint64(0)
	}
	return 1<<n - 1
}

// Keep takes over what the next term says of block i, and returns the rows that
// are left.
func (s *State) Keep(i int, v Verdict) (left uint64) {
	live, unfit, failed := s.Live[i], s.Unfit[i], s.Failed[i]
	errors := v.Unfit | v.Failed
	if errors|unfit|failed|v.NaN == 0 { // as a rule
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

// And is a && b: rows that one is false for are false, rows that both are true
// for are true, and the rest met an error, of which the first stays.
func And(a, b Verdict) Verdict {
	wrong := ^(a.Hit | a.Unfit | a.Failed) | ^(b.Hit | b.Unfit | b.Failed)
	return Verdict{
		Hit:    a.Hit & b.Hit,
		Unfit:  (a.Unfit | b.Unfit&^a.Failed) &^ wrong,
		Failed: (a.Failed | b.Failed&^a.Unfit) &^ wrong,
	}
}

// Or is a || b.
func Or(a, b Verdict) Verdict {
	hit := a.Hit | b.Hit
	return Verdict{
		Hit:    hit,
		Unfit:  (a.Unfit | b.Unfit&^a.Failed) &^ hit,
		Failed: (a.Failed | b.Failed&^a.Unfit) &^ hit,
	}
}

// Not is !a.
func Not(a Verdict) Verdict {
	return Verdict{Hit: ^(a.Hit | a.Unfit | a.Failed), Unfit: a.Unfit, Failed: a.Failed}
}

// Without is a where nulls are no values: what is asked for is not found there.
func Without(a Verdict, nulls uint64) Verdict {
	a.Hit &^= nulls
	a.NaN &^= nulls
	return a
}

// Ordered is a where nulls have no order: they are errors.
func Ordered(a Verdict, nulls uint64) Verdict {
	a = Without(a, nulls)
	a.Unfit = nulls
	return a
}

// Outside is the rows that a does not find.
func Outside(a Verdict) Verdict {
	a.Hit = ^(a.Hit | a.Unfit)
	return a
}

// Valid is a where all but valid rows overflow.
func Valid(a Verdict, valid uint64) Verdict {
	a.Failed = ^(valid | a.Unfit)
	a.Hit &^= a.Failed
	return a
}

// Bit is 1 for true, without a branch.
func Bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// Between has a bit for each word of a block that is in a range, lo to lo+span;
// the bits behind the block are set. It works from the last word to the first:
// a word out of range borrows, and adding m to itself with the borrow shifts it
// in, which is four instructions a word.
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

// Equal has a bit for each word of a block that is w.
func Equal(block []uint64, w uint64) uint64 { return Between(block, w, 0) }

// DoublesBetween tells the doubles of a block that are in a range, and those that are
// NaN and in none.
func DoublesBetween(block []uint64, lo, hi float64) Verdict {
	var v Verdict
	for r := len(block) - 1; r >= 0; r-- {
		x := math.Float64frombits(block[r])
		v.Hit = v.Hit<<1 | Bit(x >= lo)&Bit(x <= hi)
		v.NaN = v.NaN<<1 | Bit(x != x)
	}
	return v
}

// Nulls has a bit for each word of a block that has the bit of a null.
func Nulls(block []uint64, bit uint64) uint64 {
	var m uint64
	for r := len(block) - 1; r >= 0; r-- {
		m = m<<1 | Bit(block[r]&bit != 0)
	}
	return m
}
