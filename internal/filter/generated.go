package filter

import (
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
)

// LoopOp is what a [Loop] does.
type LoopOp uint8

// The operations of loops.
const (
	And LoopOp = iota + 1
	Or
	Not
	Words   // the words from Lo to Lo + Span, as int64s
	Doubles // the doubles from Min to Max
	InSet   // the words and texts of a set
	NotNull // what is not null
	Since   // Words, of those that do not overflow: ValidLo to ValidLo + ValidSpan
)

// Loop is a term, or a part of one, that is made of loops over columns of the
// record and nothing that the viewer says: what codegen writes Go for.
type Loop struct {
	Op   LoopOp
	Args []*Loop // of And, Or and Not

	// Of a loop over a column:
	Column   int
	Field    column.Field
	Ordered  bool // of a null it is an error; otherwise null is no value
	Outside  bool // true for the values that are not found
	OfAsOf   bool // the instant decides the ranges
	Lo, Span uint64
	Min, Max float64
	Words    []uint64
	Texts    []string // longer than a word

	ValidLo, ValidSpan uint64

	node *expr.Node
}

// Term is a term of the outermost && as loops.
type Term struct {
	*Loop
	Source string // normalised
	CEL    string // for people: a term alone, as it might be written
}

// Loops returns the terms of the filter, in their order, as loops over columns
// of a layout. Loop is nil for a term that is more than that.
func (f *Filter) Loops(layout *column.Layout) []Term {
	bd := &binder{layout: layout, asOf: someInstant, patterns: f.patterns}
	terms := make([]Term, len(f.terms))
	for i, n := range f.terms {
		terms[i] = Term{bd.loop(n), n.String(), n.Source()}
	}
	return terms
}

// someInstant stands for the question's where loops are described: but for
// their ranges they are the same for all that are likely.
const someInstant = millrace.Time(1_500_000_000_000)

// loop describes a node, or returns nil.
func (bd *binder) loop(n *expr.Node) *Loop {
	var l Loop
	switch n.Op {
	case expr.And:
		l.Op = And
	case expr.Or:
		l.Op = Or
	case expr.Not:
		l.Op = Not
	default:
		return bd.leaf(n)
	}
	for _, a := range n.Args {
		arg := bd.loop(a)
		if arg == nil {
			return nil
		}
		l.Args = append(l.Args, arg)
	}
	return &l
}

// leaf describes what is one loop over a column.
func (bd *binder) leaf(n *expr.Node) *Loop {
	if !bd.fixed(n) {
		return nil
	}
	l := bd.described(n)
	if l != nil {
		l.node, l.OfAsOf = n, reads(n, expr.AsOf)
	}
	return l
}

func (bd *binder) described(n *expr.Node) *Loop {
	k := bd.build(n)
	if bd.err != nil || k.kind() != expr.Bool {
		return nil
	}
	switch t := fast(k).(type) {
	case *wordRange:
		return t.describe(bd.layout, Words)
	case *since:
		if t.none {
			return nil
		}
		l := t.describe(bd.layout, Since)
		l.ValidLo, l.ValidSpan = t.validLo, t.validRange
		return l
	case *doubleRange:
		l := t.loop.describe(bd.layout, Doubles)
		l.Min, l.Max = t.lo, t.hi
		return l
	case *wordSet:
		l := t.loop.describe(bd.layout, InSet)
		l.Words, l.Texts = t.words, slices.Compact(slices.Sorted(slices.Values(t.texts)))
		return l
	case *isNull:
		return t.loop.describe(bd.layout, NotNull)
	}
	return nil
}

func (k *loop) describe(layout *column.Layout, op LoopOp) *Loop {
	return &Loop{Op: op, Column: k.index, Field: layout.Fields()[k.index], Ordered: k.ordered, Outside: k.outside}
}

func (k *wordRange) describe(layout *column.Layout, op LoopOp) *Loop {
	l := k.loop.describe(layout, op)
	l.Lo, l.Span = k.lo, k.span
	return l
}

// fixed reports whether a node speaks of columns of the layout, constants and
// the instant alone.
func (bd *binder) fixed(n *expr.Node) bool {
	switch n.Op {
	case expr.Viewer, expr.Entity:
		return false
	case expr.Record:
		i := bd.layout.Index(n.Name)
		return i >= 0 && fits(n, bd.layout.Fields()[i])
	}
	return !slices.ContainsFunc(n.Args, func(a *expr.Node) bool { return !bd.fixed(a) })
}

// reads reports whether a node has an operation below it.
func reads(n *expr.Node, op expr.Op) bool {
	return n.Op == op || slices.ContainsFunc(n.Args, func(a *expr.Node) bool { return reads(a, op) })
}

// leaves appends the loops over columns that a loop is made of, in order.
func (l *Loop) leaves(dst []*Loop) []*Loop {
	if len(l.Args) == 0 {
		return append(dst, l)
	}
	for _, a := range l.Args {
		dst = a.leaves(dst)
	}
	return dst
}

// Leaves returns the loops over columns that terms are made of, in order.
func Leaves(terms []Term) (leaves []*Loop) {
	for _, t := range terms {
		leaves = t.leaves(leaves)
	}
	return leaves
}

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
