package filter

import (
	"slices"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
)

// match is generated code for terms of a filter over one layout.
type match struct {
	code    *compute.Filter
	loops   []Term
	columns []int
	instant []*Loop // of loops, those whose ranges it decides
}

// match finds, for each term, the generated code that begins with it.
func (f *Filter) match(layout *column.Layout) []match {
	if m, ok := f.matched.Load(layout); ok {
		return m.([]match)
	}
	all := make([]match, len(f.terms))
	terms := f.Loops(layout)
	sources := make([]string, len(terms))
	for i, t := range terms {
		if t.Loop != nil { // what is more has no code
			sources[i] = t.Source
		}
	}
	for i := range terms {
		if f.slow {
			break
		}
		g := compute.FindFilter(sources[i:], layout)
		if g == nil {
			continue
		}
		m := match{code: g, loops: terms[i : i+len(g.Terms)]}
		for _, c := range g.Columns {
			m.columns = append(m.columns, layout.Index(c.Name))
		}
		for _, l := range Leaves(m.loops) {
			if l.OfAsOf {
				m.instant = append(m.instant, l)
			}
		}
		all[i] = m
	}
	kept, _ := f.matched.LoadOrStore(layout, all)
	return kept.([]match)
}

// run is generated code for several terms, bound to a question.
type run struct {
	code    compute.FilterFunc
	args    compute.FilterArgs
	terms   int
	instant []*Loop // those whose ranges the instant decides
}

// run binds generated code, or returns nil where the instant makes a term
// another one than it was generated for: near the ends of time.
func (bd *binder) run(m *match) *run {
	r := &run{code: m.code.Keep, terms: len(m.loops), args: compute.FilterArgs{Columns: m.columns}, instant: m.instant}
	if !bd.ranges(r) {
		return nil
	}
	for _, c := range m.columns {
		if !slices.Contains(bd.reads, c) {
			bd.reads = append(bd.reads, c)
		}
	}
	return r
}

// ranges sets what the instant decides. It is false where that makes a term
// another one.
func (bd *binder) ranges(r *run) bool {
	r.args.Ranges = r.args.Ranges[:0]
	for _, l := range r.instant {
		now := bd.described(l.node)
		if now == nil || now.Op != l.Op || now.Ordered != l.Ordered || now.Outside != l.Outside {
			return false
		}
		r.args.Ranges = append(r.args.Ranges, compute.Range{Lo: now.Lo, Span: now.Span})
		if now.Op == Since {
			r.args.Ranges = append(r.args.Ranges, compute.Range{Lo: now.ValidLo, Span: now.ValidSpan})
		}
	}
	return true
}

func (r *run) keep(s *compute.State, rows *column.Slab, lo, hi int) {
	r.args.State, r.args.Rows, r.args.Lo, r.args.Hi = s, rows, lo, hi
	r.code(&r.args)
	r.args.Rows = nil
}
