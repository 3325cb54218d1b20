package filter

import (
	"fmt"
	"math"
	"regexp"
	"unicode/utf8"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
)

// Bind prepares the filter for the rows of one layout and one question. A
// field that layout does not have reads as null, and so does a viewer value
// that viewer does not have; entity and viewer may be nil.
func (f *Filter) Bind(layout, entity *column.Layout, viewer *millrace.Viewer, asOf millrace.Time) (*Bound, error) {
	bd := &binder{layout: layout, entity: entity, viewer: viewer, asOf: asOf, patterns: f.patterns}
	b := &Bound{}
	for _, n := range f.terms {
		k := boolean(bd.build(n))
		if c, ok := k.(*constant); ok && c.state == present && c.word != 0 {
			continue // true
		}
		b.terms = append(b.terms, term{k, fast(k)})
	}
	if bd.err != nil {
		return nil, bd.err
	}
	return b, nil
}

// binder makes kernels of nodes and keeps the first error.
type binder struct {
	layout, entity *column.Layout
	viewer         *millrace.Viewer
	asOf           millrace.Time
	patterns       map[string]*regexp.Regexp
	err            error
}

// build makes the kernel of a node. What depends on no row is computed now.
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
			return &field{out: o, index: i, nullable: f.Nullable}
		})
	case expr.Entity:
		return bd.column(n, bd.entity, func(i int, _ column.Field, o out) kernel {
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

// fold computes an operation whose operands are all constants.
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
		return k // for Counts to tell
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
		c.word = one(v)
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

var typeOfKind = [...]expr.Type{
	column.Bool: expr.Bool, column.Int: expr.Int, column.Time: expr.Time, column.Double: expr.Double,
	column.String: expr.String, column.Doubles: expr.Doubles, column.Strings: expr.Strings,
}

// column makes the kernel of a field, null where the layout does not have it.
func (bd *binder) column(n *expr.Node, l *column.Layout, load func(int, column.Field, out) kernel) kernel {
	index := -1
	if l != nil {
		index = l.Index(n.Name)
	}
	if index < 0 {
		return &constant{out: out{typ: n.Type}, state: null}
	}
	f := l.Fields()[index]
	k := load(index, f, out{typ: typeOfKind[f.Kind]})
	switch {
	case k.kind() == n.Type:
		return k
	case k.kind() == expr.Int && n.Type == expr.Double:
		return &asDouble{out: out{typ: expr.Double}, a: k}
	}
	bd.fail(fmt.Errorf("filter: field %s is a %s in this layout, and was checked as a %s", n.Name, f.Kind, n.Type))
	return k
}

// boolean returns k where a bool is wanted.
func boolean(k kernel) kernel {
	if k.kind() == expr.Bool {
		return k
	}
	return misfits(expr.Bool, k)
}

func misfits(t expr.Type, args ...kernel) kernel {
	return fold(&misfit{out{typ: t}, args}, args)
}

// operation makes the kernel of an operation on args.
func (bd *binder) operation(n *expr.Node, args []kernel) kernel {
	o := out{typ: n.Type}
	switch n.Op {
	case expr.Not:
		return &not{o, boolean(args[0])}
	case expr.And:
		return &junction{o, 0, args}
	case expr.Or:
		return &junction{o, 1, args}
	case expr.Cond:
		return &cond{o, boolean(args[0]), args[1], args[2]}
	case expr.Eq, expr.Ne, expr.Lt, expr.Le, expr.Gt, expr.Ge:
		return &compare{out: o, op: n.Op, a: args[0], b: args[1], class: classOf(args[0].kind(), args[1].kind())}
	case expr.Has:
		return &has{o, args[0]}
	case expr.In:
		return bd.in(n, args)
	case expr.Neg:
		return negation(args[0])
	case expr.Call:
		return bd.call(n, args)
	}
	return arithmeticOf(n.Op, args[0], args[1])
}

func negation(a kernel) kernel {
	apply, ok := map[expr.Type]func(uint64) (uint64, state){expr.Int: negateInt, expr.Double: negateDouble, expr.Duration: negateDuration}[a.kind()]
	if !ok {
		return misfits(expr.Double, a)
	}
	return &unary{out{typ: a.kind()}, a, apply}
}

func arithmeticOf(op expr.Op, a, b kernel) kernel {
	at, bt := a.kind(), b.kind()
	make := func(t expr.Type, f func(a, b uint64) (uint64, state)) kernel {
		return &arithmetic{out{typ: t}, a, b, f}
	}
	switch {
	case at == expr.Int && bt == expr.Int:
		return make(expr.Int, intArithmetic(op))
	case at == expr.Double && bt == expr.Double:
		return make(expr.Double, doubleArithmetic(op))
	case at == expr.Time && bt == expr.Time:
		return make(expr.Duration, timeBetween)
	case at == expr.Time && bt == expr.Duration && op == expr.Add:
		return make(expr.Time, addTime)
	case at == expr.Time && bt == expr.Duration:
		return make(expr.Time, subTime)
	case at == expr.Duration && bt == expr.Time:
		return make(expr.Time, func(a, b uint64) (uint64, state) { return addTime(b, a) })
	case at == expr.Duration && bt == expr.Duration && op == expr.Add:
		return make(expr.Duration, addDuration)
	case at == expr.Duration && bt == expr.Duration:
		return make(expr.Duration, subDuration)
	}
	if sum := addConstants(a, b); op == expr.Add && sum != nil {
		return sum
	}
	return misfits(expr.Double, a, b)
}

// addConstants is CEL's + of two viewer values that are strings or lists.
func addConstants(a, b kernel) kernel {
	x, okA := a.(*constant)
	y, okB := b.(*constant)
	if !okA || !okB || x.typ != y.typ || x.state != present || y.state != present {
		return nil
	}
	c := &constant{out: out{typ: x.typ}}
	switch x.typ {
	case expr.String:
		c.text = x.text + y.text
	case expr.Strings:
		c.list = append(append(c.list, x.list...), y.list...)
	case expr.Doubles:
		c.doubles = append(append(c.doubles, x.doubles...), y.doubles...)
	default:
		return nil
	}
	return c
}

func (bd *binder) in(n *expr.Node, args []kernel) kernel {
	x, list := args[0], n.Args[1]
	if list.Op == expr.List {
		elements := make([]*constant, len(list.Args))
		for i, e := range list.Args {
			elements[i] = bd.build(e).(*constant)
		}
		return newInConstants(x, elements)
	}
	if c, ok := args[1].(*constant); ok && c.state == present && isList(c.typ) {
		return newInConstants(x, elementsOf(c))
	}
	if !isList(args[1].kind()) {
		return misfits(expr.Bool, args...)
	}
	return &inColumn{out: out{typ: expr.Bool}, x: x, list: args[1], entity: list.Op == expr.Entity}
}

func elementsOf(c *constant) (elements []*constant) {
	for _, s := range c.list {
		elements = append(elements, &constant{out: out{typ: expr.String}, text: s})
	}
	for _, x := range c.doubles {
		elements = append(elements, &constant{out: out{typ: expr.Double}, word: math.Float64bits(x)})
	}
	return elements
}

func (bd *binder) call(n *expr.Node, args []kernel) kernel {
	o := out{typ: n.Type}
	a := args[0]
	switch n.Name {
	case "size":
		return bd.size(n, a)
	case "double", "int":
		return conversion(n.Type, a)
	case "matches":
		if a.kind() != expr.String {
			return misfits(expr.Bool, a)
		}
		return &matches{o, a, bd.patterns[n.Args[1].Value.(string)]}
	}
	if a.kind() != expr.String || args[1].kind() != expr.String {
		return misfits(expr.Bool, args...)
	}
	return &text{o, a, args[1], textTests[n.Name]}
}

func (bd *binder) size(n *expr.Node, a kernel) kernel {
	if c, ok := a.(*constant); ok && c.state == present {
		switch c.typ {
		case expr.String:
			return literal(&expr.Node{Type: expr.Int, Value: int64(utf8.RuneCountInString(c.text))})
		case expr.Strings, expr.Doubles:
			return literal(&expr.Node{Type: expr.Int, Value: int64(len(c.list) + len(c.doubles))})
		}
	}
	switch {
	case a.kind() == expr.String:
		return &textSize{out{typ: expr.Int}, a}
	case isList(a.kind()):
		return &size{out: out{typ: expr.Int}, list: a, entity: n.Args[0].Op == expr.Entity}
	}
	return misfits(expr.Int, a)
}

func conversion(to expr.Type, a kernel) kernel {
	var apply func(uint64) (uint64, state)
	switch {
	case a.kind() == to:
		apply = identity
	case to == expr.Double:
		apply = intToDouble
	default:
		apply = doubleToInt
	}
	return &unary{out{typ: to}, a, apply}
}
