package filter

import (
	"math"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/expr"
)

// boolean returns k, which must be a bool; a misfit if it is not.
func boolean(k kernel) kernel {
	if k.kind() == expr.Bool {
		return k
	}
	return misfits(expr.Bool, k)
}

// misfits returns a misfit with a result of type t.
func misfits(t expr.Type, args ...kernel) kernel {
	return fold(&misfit{out{typ: t}, args}, args)
}

// operation makes the kernel of an operation on args. An argument that is a list literal is
// nil there.
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
		return &arithmetic{out{typ: t}, op, a, b, f}
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

// addConstants returns CEL's + of two constants that are strings or lists of one type; nil
// for any other operands.
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
		return &matches{o, a, bd.patterns[n.Args[1].Value.(string)], bd.watch}
	}
	test, ok := textTests[n.Name]
	if !ok {
		panic("filter: no kernel for the function " + n.Name)
	}
	if a.kind() != expr.String || args[1].kind() != expr.String {
		return misfits(expr.Bool, args...)
	}
	return &text{o, a, args[1], test, bd.watch}
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
