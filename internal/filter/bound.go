package filter

import (
	"math/bits"
	"slices"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
)

// Bound is a filter ready to run. One goroutine at a time may use it. It keeps its
// buffers, so that Select does not allocate in the long run.
type Bound struct {
	filter               *Filter
	layout, entityLayout *column.Layout

	terms  []term
	reads  []int   // columns of the record that are read
	entity bool    // the entity's features are read
	counts Counts  // Null and Error; False and NaN are in state
	at     batch   // what Select works on now
	list   []int32 // the rows a kernel works on
	watch  watch

	state   compute.State // of the chunk; its False and NaN count since Bind
	verdict verdict       // of the term at hand
	clauses []clause      // nil: it does not count by clause
}

// term is one term of the outermost &&. fast, if not nil, does what kernel does in one
// loop. run, if not nil, is generated code for this term and some of those after it.
type term struct {
	kernel
	fast   tester
	run    *run
	at     int  // its place in Filter.terms
	varies bool // it reads the viewer or the instant
	isTrue bool // it is true of every row
}

// verdict is what a term says of the rows of a chunk, as masks. The term is true for the
// rows in hit. It has no value for those in unfit (null, or of a type that the operation
// does not take) and failed. It is false for all others; nan are those of them that
// compared a NaN.
type verdict struct {
	asked                   compute.Mask // the rows of which something is asked; of others a tester may say anything
	hit, unfit, failed, nan compute.Mask
}

// tester is a term that is one loop over a column.
type tester interface {
	// test writes the verdict on rows [lo, hi) of s into v, 64 rows a block from block 0
	// on. It always sets hit; the masks that it does not set must be zero before.
	test(s *column.Slab, lo, hi int, v *verdict)
}

// batch is the rows that kernels work on: those of rows at the indexes in sel.
type batch struct {
	rows, entity *column.Slab // entity has one row, or is nil
	sel          []int32
}

// Select appends to sel the rows of [lo, hi) that the filter keeps, ascending.
// rows must have the layout that was bound; entity is the row of the entity's
// features, or nil. After Watch, what it appended counts only if Over returns nil.
func (b *Bound) Select(rows *column.Slab, lo, hi int, entity *column.Slab, sel []int32) []int32 {
	b.at.rows, b.at.entity = rows, entity
	for lo < hi {
		end := min(hi, lo+compute.Chunk)
		b.selectChunk(lo, end)
		sel = b.collect(lo, end, sel)
		lo = end
	}
	b.at.rows, b.at.entity, b.at.sel = nil, nil, nil
	return sel
}

// selectChunk leaves in state the rows of [lo, hi) that no term is false for: in Live
// those that all terms are true for, in Unfit and Failed those that some term has no value
// for.
func (b *Bound) selectChunk(lo, hi int) {
	n := (hi - lo + 63) / 64
	for i := range n {
		b.state.Begin(i, hi-lo-64*i)
	}
	for i := range b.terms {
		t := &b.terms[i]
		if t.isTrue {
			continue
		}
		if t.run != nil {
			t.run.keep(&b.state, b.at.rows, lo, hi)
			continue
		}
		if t.fast != nil {
			for i := range n {
				b.verdict.asked[i] = b.state.Live[i] | b.state.Unfit[i] | b.state.Failed[i]
			}
			t.fast.test(b.at.rows, lo, hi, &b.verdict)
		} else {
			b.run(t.kernel, lo, n)
		}
		var left bool
		if b.clauses == nil {
			left = b.apply(n)
		} else {
			left = b.clauses[t.at].apply(b, n)
		}
		if !left {
			return
		}
	}
}

// apply takes the verdict of a term over into the first n blocks of state, and reports
// whether rows are left.
func (b *Bound) apply(n int) bool {
	v := &b.verdict
	var left uint64
	for i := range n {
		left |= b.state.Keep(i, compute.Verdict{Hit: v.hit[i], Unfit: v.unfit[i], Failed: v.failed[i], NaN: v.nan[i]})
		v.unfit[i], v.failed[i], v.nan[i] = 0, 0, 0
	}
	return left != 0
}

// run sets the verdict to what a kernel says of the rows that are left in the n blocks
// from row lo on.
func (b *Bound) run(k kernel, lo, n int) {
	b.list = b.list[:0]
	for i := range n {
		b.list = appendRows(b.list, lo+64*i, b.state.Live[i]|b.state.Unfit[i]|b.state.Failed[i])
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

// appendRows appends the rows of a mask whose bit 0 is the row first.
func appendRows(list []int32, first int, m uint64) []int32 {
	for ; m != 0; m &= m - 1 {
		list = append(list, int32(first+bits.TrailingZeros64(m)))
	}
	return list
}

// collect appends the rows that the filter keeps to sel, and counts those that are null or
// an error.
func (b *Bound) collect(lo, hi int, sel []int32) []int32 {
	sel = slices.Grow(sel, hi-lo)
	for i := range (hi - lo + 63) / 64 {
		sel = appendRows(sel, lo+64*i, b.state.Live[i])
		b.counts.Null += int64(bits.OnesCount64(b.state.Unfit[i]))
		b.counts.Error += int64(bits.OnesCount64(b.state.Failed[i]))
	}
	for i := range b.clauses {
		b.clauses[i].collect(&b.state, (hi-lo+63)/64)
	}
	return sel
}

// Reads appends the columns of the record that Select reads, and reports whether
// it reads the entity's features.
func (b *Bound) Reads(columns []int) ([]int, bool) { return append(columns, b.reads...), b.entity }

// Generated returns how many terms run by generated code.
func (b *Bound) Generated() (terms int) {
	for _, t := range b.terms {
		if t.run != nil {
			terms += t.run.terms
		}
	}
	return terms
}

// Counts returns how many rows were dropped since Bind, or the last Rebind.
func (b *Bound) Counts() Counts {
	c := b.counts
	c.False, c.NaN = b.state.False, b.state.NaN
	return c
}
