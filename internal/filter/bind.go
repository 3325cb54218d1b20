package filter

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
)

// Bind prepares the filter for the rows of one layout and one question; entity is the
// layout of the entity's features. A field that its layout does not have reads as null,
// and so does a viewer value that viewer does not have; entity and viewer may be nil. The
// error is a [millrace.Error] about a viewer value of a type that no value may have.
func (f *Filter) Bind(layout, entity *column.Layout, viewer *millrace.Viewer, asOf millrace.Time) (*Bound, error) {
	b := &Bound{filter: f, layout: layout, entityLayout: entity}
	if err := b.bind(viewer, asOf); err != nil {
		return nil, err
	}
	return b, nil
}

// Rebind prepares the filter for another question about the same layouts, and
// sets its counts to 0. Only terms that read the viewer or the instant are
// bound again. After an error b must not be used.
func (b *Bound) Rebind(viewer *millrace.Viewer, asOf millrace.Time) error {
	b.counts, b.state.False, b.state.NaN = Counts{}, 0, 0
	clear(b.clauses)
	var bd *binder
	for i := range b.terms {
		t := &b.terms[i]
		if !t.varies {
			continue
		}
		if bd == nil {
			bd = b.binder(viewer, asOf)
		}
		if t.run != nil {
			if !bd.ranges(t.run) {
				return b.bind(viewer, asOf)
			}
			continue
		}
		t.bind(bd, b.filter.terms[t.at])
	}
	if bd == nil {
		return nil
	}
	return bd.err
}

// Watch has Select end soon after ctx does while it searches texts: a pattern on a long
// text takes time in proportion to the length of the text times that of the pattern. What
// Select returns then is of no use.
func (b *Bound) Watch(ctx context.Context) { b.watch.ctx, b.watch.err = ctx, nil }

// Over returns why Select ended early since Watch; nil if it did not.
func (b *Bound) Over() error { return b.watch.err }

// watch knows whether somebody still waits for what is selected.
type watch struct {
	ctx     context.Context // of the question; nil: text is never cut short
	matched int             // bytes of text since ctx was looked at
	err     error           // of ctx, once it has ended
}

// watchBytes is how many bytes of text are matched between two looks at the
// question's context.
const watchBytes = 16 << 10

// over reports whether the question's context has ended. bytes is how much text is to be
// matched next; over looks at the context only every watchBytes.
func (w *watch) over(bytes int) bool {
	if w == nil || w.ctx == nil {
		return false
	}
	if w.matched += bytes; w.matched >= watchBytes && w.err == nil {
		w.matched, w.err = 0, w.ctx.Err()
	}
	return w.err != nil
}

func (b *Bound) binder(viewer *millrace.Viewer, asOf millrace.Time) *binder {
	return &binder{layout: b.layout, entity: b.entityLayout, viewer: viewer, asOf: asOf, patterns: b.filter.patterns, watch: &b.watch}
}

func (b *Bound) bind(viewer *millrace.Viewer, asOf millrace.Time) error {
	f, bd := b.filter, b.binder(viewer, asOf)
	b.terms = nil
	matched := f.match(b.layout)
	for i := 0; i < len(f.terms); i++ {
		if m := matched[i]; m.code != nil && b.clauses == nil { // generated code runs several clauses at once, so it cannot count by clause
			if r := bd.run(&m); r != nil {
				b.terms = append(b.terms, term{run: r, at: i, varies: len(m.instant) > 0})
				i += len(m.loops) - 1
				continue
			}
		}
		t := term{at: i, varies: reads(f.terms[i], expr.Viewer) || reads(f.terms[i], expr.AsOf)}
		if t.bind(bd, f.terms[i]); t.varies || !t.isTrue {
			b.terms = append(b.terms, t)
		}
	}
	b.reads, b.entity = bd.reads, bd.readsEntity
	return bd.err
}

// bind makes the kernel of a term, and its tester if there is one.
func (t *term) bind(bd *binder, n *expr.Node) {
	k := boolean(bd.build(n))
	c, ok := k.(*constant)
	t.isTrue = ok && c.state == present && c.word != 0
	t.kernel, t.fast = k, fast(k)
}

// binder makes kernels of nodes and keeps the first error.
type binder struct {
	layout, entity *column.Layout
	viewer         *millrace.Viewer
	asOf           millrace.Time
	patterns       map[string]*regexp.Regexp
	watch          *watch // nil: nobody waits
	reads          []int  // columns of layout
	readsEntity    bool
	err            error
}

// build makes the kernel of a node. A node that depends on no row becomes a constant.
func (bd *binder) build(n *expr.Node) kernel {
	switch n.Op {
	case expr.Const:
		return literal(n)
	case expr.AsOf:
		return &constant{out: out{typ: expr.Time}, word: uint64(bd.asOf)}
	case expr.Viewer:
		return bd.viewerValue(n.Name)
	case expr.Record:
		return bd.column(n, bd.layout, func(i int, f column.Field, o out) kernel {
			if !slices.Contains(bd.reads, i) {
				bd.reads = append(bd.reads, i)
			}
			return &field{out: o, index: i, nullable: f.Nullable}
		})
	case expr.Entity:
		return bd.column(n, bd.entity, func(i int, _ column.Field, o out) kernel {
			bd.readsEntity = true
			return &entityField{out: o, index: i}
		})
	}
	args := make([]kernel, len(n.Args))
	for i, a := range n.Args {
		if a.Op != expr.List {
			args[i] = bd.build(a)
		}
	}
	return fold(bd.operation(n, args), args)
}

// fold returns an operation whose operands are all constants as a constant, and any other
// as it is.
func fold(k kernel, args []kernel) kernel {
	for _, a := range args {
		if _, ok := a.(*constant); a != nil && !ok {
			return k
		}
	}
	if _, ok := k.(*constant); ok {
		return k
	}
	v := k.eval(&batch{sel: make([]int32, 1)})
	if c, ok := k.(*compare); ok && c.comparedNaN(0) {
		return k // stays a comparison, so that its rows count as NaN
	}
	c := &constant{out: out{typ: k.kind()}, word: v.words[0], state: v.states[0]}
	if c.typ == expr.String {
		c.text = v.strings[0]
	}
	return c
}

func literal(n *expr.Node) *constant {
	c := &constant{out: out{typ: n.Type}}
	switch v := n.Value.(type) {
	case nil:
		c.state = null
	case bool:
		c.word = compute.Bit(v)
	case int64:
		c.word = uint64(v)
	case float64:
		c.word = math.Float64bits(v)
	case string:
		c.text = v
	}
	return c
}

func (bd *binder) viewerValue(name string) *constant {
	var v any
	if bd.viewer != nil {
		if x, ok := bd.viewer.Value(name); ok {
			v = x
		}
	}
	switch v := v.(type) {
	case []float64:
		return &constant{out: out{typ: expr.Doubles}, doubles: v}
	case []string:
		return &constant{out: out{typ: expr.Strings}, list: v}
	case nil:
		return &constant{out: out{typ: expr.Null}, state: null}
	case bool:
		return literal(&expr.Node{Type: expr.Bool, Value: v})
	case float64:
		return literal(&expr.Node{Type: expr.Double, Value: v})
	case string:
		return literal(&expr.Node{Type: expr.String, Value: v})
	}
	bd.fail(&millrace.Error{
		Reason: millrace.ReasonInvalid, Field: "viewer." + name, Detail: fmt.Sprintf("a viewer value cannot be a %T", v),
		WayOut: "give a bool, number, string, or list of numbers or strings",
	})
	return &constant{out: out{typ: expr.Null}, state: null}
}

func (bd *binder) fail(err error) {
	if bd.err == nil {
		bd.err = err
	}
}

// typeOfKind is the type of a column's values, by the column's kind.
var typeOfKind = [...]expr.Type{
	column.Bool: expr.Bool, column.Int: expr.Int, column.Time: expr.Time, column.Double: expr.Double,
	column.String: expr.String, column.Doubles: expr.Doubles, column.Strings: expr.Strings,
}

// column makes the kernel of a field by load, or a null if the layout does not have the
// field or gives it another type. An int is read as a double where the field was checked
// as one.
func (bd *binder) column(n *expr.Node, l *column.Layout, load func(int, column.Field, out) kernel) kernel {
	index := -1
	if l != nil {
		index = l.Index(n.Name)
	}
	if index < 0 || !fits(n, l.Fields()[index]) {
		return &constant{out: out{typ: n.Type}, state: null}
	}
	f := l.Fields()[index]
	k := load(index, f, out{typ: typeOfKind[f.Kind]})
	if k.kind() != n.Type {
		return &asDouble{out: out{typ: expr.Double}, a: k}
	}
	return k
}

// fits reports whether a column has the type that a field was checked with, or is an int
// to be read as a double.
func fits(n *expr.Node, f column.Field) bool {
	t := typeOfKind[f.Kind]
	return t == n.Type || t == expr.Int && n.Type == expr.Double
}
