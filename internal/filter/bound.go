package filter

import (
	"github.com/millrace/millrace/internal/column"
)

// chunk is how many rows go through the kernels at once, so that their
// vectors stay in the cache next to the core.
const chunk = 1024

// Bound is a filter ready to run. It is used by one goroutine at a time; its
// buffers stay, so that Select does not allocate in the long run.
type Bound struct {
	terms  []term
	counts Counts
	at     batch

	// undecided are the rows of the chunk that met an error: false in a later
	// term still decides them.
	undecided []int32
	why       []state
}

// term is one term of the outermost &&. fast, if any, does the same.
type term struct {
	kernel
	fast narrower
}

// narrower is a term that is one loop over a column. It keeps, in place, the
// rows for which the term is true, and gives the others to drop.
type narrower interface {
	narrow(b *Bound, live []int32) []int32
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
		sel = b.selectChunk(lo, end, sel)
		lo = end
	}
	b.at.rows, b.at.entity, b.at.sel = nil, nil, nil
	return sel
}

func (b *Bound) selectChunk(lo, hi int, sel []int32) []int32 {
	kept := len(sel)
	for r := lo; r < hi; r++ {
		sel = append(sel, int32(r))
	}
	live := sel[kept:]
	b.undecided, b.why = b.undecided[:0], b.why[:0]
	for i := range b.terms {
		t := &b.terms[i]
		earlier := len(b.undecided)
		if t.fast != nil {
			live = t.fast.narrow(b, live)
		} else {
			live = b.narrow(t.kernel, live)
		}
		if earlier > 0 {
			b.decide(t.kernel, earlier)
		}
		if len(live)+len(b.undecided) == 0 {
			break
		}
	}
	for _, s := range b.why {
		b.countError(s)
	}
	return sel[:kept+len(live)]
}

func (b *Bound) countError(s state) {
	if s == failed {
		b.counts.Error++
		return
	}
	b.counts.Null++
}

// narrow keeps in place the rows for which k is true, drops those for which it
// is false, and sets aside the others.
func (b *Bound) narrow(k kernel, live []int32) []int32 {
	b.at.sel = live
	v := k.eval(&b.at)
	n := 0
	for i, r := range live {
		switch {
		case v.states[i] != present:
			b.setAside(r, v.states[i])
		case v.words[i] != 0:
			live[n] = r
			n++
		default:
			b.drop(k, i)
		}
	}
	return live[:n]
}

// decide drops those of the first n undecided rows for which k is false.
func (b *Bound) decide(k kernel, n int) {
	b.at.sel = b.undecided[:n]
	v := k.eval(&b.at)
	kept := 0
	for i, r := range b.undecided {
		if i < n && v.states[i] == present && v.words[i] == 0 {
			b.drop(k, i)
			continue
		}
		b.undecided[kept], b.why[kept] = r, b.why[i]
		kept++
	}
	b.undecided, b.why = b.undecided[:kept], b.why[:kept]
}

func (b *Bound) setAside(row int32, s state) {
	b.undecided = append(b.undecided, row)
	b.why = append(b.why, s)
}

// drop counts a row for which k was false at position i of its last vector.
func (b *Bound) drop(k kernel, i int) {
	if c, ok := k.(*compare); ok && c.comparedNaN(i) {
		b.counts.NaN++
		return
	}
	b.counts.False++
}

// Counts returns how many rows were dropped since Bind.
func (b *Bound) Counts() Counts { return b.counts }
