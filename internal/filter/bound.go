package filter

import (
	"math/bits"
	"slices"

	"github.com/millrace/millrace/internal/column"
)

// chunk is how many rows a term goes through before the next term does, so
// that the vectors of kernels stay in the cache next to the core.
const (
	chunk  = 1024
	blocks = chunk / 64
)

// mask is a bit a row of a chunk.
type mask [blocks]uint64

// Bound is a filter ready to run. It is used by one goroutine at a time; its
// buffers stay, so that Select does not allocate in the long run.
type Bound struct {
	terms  []term
	reads  []int // columns of the record
	entity bool
	counts Counts
	at     batch
	list   []int32 // the rows a kernel works on

	// The rows of the chunk that no term was false for: true in every term so
	// far, or with an error, which a later term that is false still decides.
	live, unfit, failed mask
	verdict             verdict
}

// term is one term of the outermost &&. fast, if any, does the same.
type term struct {
	kernel
	fast tester
}

// verdict is what a term says of the rows of a chunk. It is false for those in
// none of hit, unfit and failed; nan are those that compared a NaN.
type verdict struct {
	hit, unfit, failed, nan mask
}

// tester is a term that is one loop over a column.
type tester interface {
	// test sets the verdict of the first blocks of v, on rows [lo, hi) of s.
	// What it does not set is zero.
	test(s *column.Slab, lo, hi int, v *verdict)
}

// batch is the rows that kernels work on.
type batch struct {
	rows, entity *column.Slab
	sel          []int32
}

// Select appends to sel the rows of [lo, hi) that the filter keeps, ascending.
// rows must have the layout that was bound; entity is the row of the entity's
// features, or nil.
func (b *Bound) Select(rows *column.Slab, lo, hi int, entity *column.Slab, sel []int32) []int32 {
	b.at.rows, b.at.entity = rows, entity
	for lo < hi {
		end := min(hi, lo+chunk)
		b.selectChunk(lo, end)
		sel = b.collect(lo, end, sel)
		lo = end
	}
	b.at.rows, b.at.entity, b.at.sel = nil, nil, nil
	return sel
}

// selectChunk leaves in live, unfit and failed the rows that no term is false
// for.
func (b *Bound) selectChunk(lo, hi int) {
	n := (hi - lo + 63) / 64
	for i := range n {
		b.live[i], b.unfit[i], b.failed[i] = firstBits(hi-lo-64*i), 0, 0
	}
	for i := range b.terms {
		if t := &b.terms[i]; t.fast != nil {
			t.fast.test(b.at.rows, lo, hi, &b.verdict)
		} else {
			b.run(t.kernel, lo, n)
		}
		if !b.apply(n) {
			return
		}
	}
}

// firstBits has the first n bits set, or all 64.
func firstBits(n int) uint64 {
	if n >= 64 {
		return ^uint64(0)
	}
	return 1<<n - 1
}

// apply takes the verdict over, and reports whether rows are left.
func (b *Bound) apply(n int) bool {
	v := &b.verdict
	var left uint64
	for i := range n {
		live, unfit, failed := b.live[i], b.unfit[i], b.failed[i]
		errors := v.unfit[i] | v.failed[i]
		if errors|unfit|failed|v.nan[i] == 0 { // as a rule
			b.live[i] = live & v.hit[i]
			b.counts.False += int64(bits.OnesCount64(live &^ v.hit[i]))
			left |= b.live[i]
			continue
		}
		isFalse := (live | unfit | failed) &^ (v.hit[i] | errors)
		nans := bits.OnesCount64(isFalse & v.nan[i])
		b.counts.NaN += int64(nans)
		b.counts.False += int64(bits.OnesCount64(isFalse) - nans)
		b.live[i] = live & v.hit[i]
		b.unfit[i] = unfit&^isFalse | live&v.unfit[i]
		b.failed[i] = failed&^isFalse | live&v.failed[i]
		left |= b.live[i] | b.unfit[i] | b.failed[i]
		v.unfit[i], v.failed[i], v.nan[i] = 0, 0, 0
	}
	return left != 0
}

// run makes a verdict of what a kernel says of the rows left.
func (b *Bound) run(k kernel, lo, n int) {
	b.list = b.list[:0]
	for i := range n {
		b.list = appendRows(b.list, lo+64*i, b.live[i]|b.unfit[i]|b.failed[i])
		b.verdict.hit[i] = 0
	}
	b.at.sel = b.list
	values := k.eval(&b.at)
	c, isCompare := k.(*compare)
	for i, r := range b.list {
		at, bit := (int(r)-lo)/64, uint64(1)<<((int(r)-lo)%64)
		switch values.states[i] {
		case present:
			if values.words[i] != 0 {
				b.verdict.hit[at] |= bit
			} else if isCompare && c.comparedNaN(i) {
				b.verdict.nan[at] |= bit
			}
		case failed:
			b.verdict.failed[at] |= bit
		default:
			b.verdict.unfit[at] |= bit
		}
	}
}

func appendRows(list []int32, first int, m uint64) []int32 {
	for ; m != 0; m &= m - 1 {
		list = append(list, int32(first+bits.TrailingZeros64(m)))
	}
	return list
}

// collect appends the rows that stay, and counts those with an error.
func (b *Bound) collect(lo, hi int, sel []int32) []int32 {
	sel = slices.Grow(sel, hi-lo)
	for i := range (hi - lo + 63) / 64 {
		sel = appendRows(sel, lo+64*i, b.live[i])
		b.counts.Null += int64(bits.OnesCount64(b.unfit[i]))
		b.counts.Error += int64(bits.OnesCount64(b.failed[i]))
	}
	return sel
}

// Reads appends the columns of the record that Select reads, and tells whether
// it reads the entity.
func (b *Bound) Reads(columns []int) ([]int, bool) { return append(columns, b.reads...), b.entity }

// Counts returns how many rows were dropped since Bind.
func (b *Bound) Counts() Counts { return b.counts }
