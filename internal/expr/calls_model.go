package expr

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"cel.dev/cel-go/common/ast"
)

// contains makes contains(list, x) the same node as x in list.
func (c *checker) contains(e ast.Expr, args []*Node) *Node {
	return c.node(e, In, Bool, args[1], args[0])
}

// clamp checks the bounds of clamp(x, lo, hi).
func (c *checker) clamp(e ast.Expr, args []*Node) *Node {
	lo, okLo := args[1].Value.(float64)
	hi, okHi := args[2].Value.(float64)
	if okLo && okHi && !(lo <= hi) {
		return c.problem(args[1].Line, args[1].Col, "the lower bound of clamp is above the upper", "write clamp(x, lo, hi)")
	}
	return c.finish(e, Double, args...)
}

// bucketize checks the bounds of bucketize(x, bounds).
func (c *checker) bucketize(e ast.Expr, args []*Node) *Node {
	b := args[1]
	bounds, ok := b.Value.([]float64)
	if !ok || len(bounds) == 0 {
		return c.problem(b.Line, b.Col, "the bounds of bucketize are a literal list of numbers", "write bucketize(x, [1, 10, 100])")
	}
	for i := 1; i < len(bounds); i++ {
		if !(bounds[i-1] < bounds[i]) {
			return c.problem(b.Line, b.Col, fmt.Sprintf("the bounds of bucketize ascend, and %v stands before %v", bounds[i-1], bounds[i]), "")
		}
	}
	return c.finish(e, Double, args...)
}

// decay makes decay(t, h), where t is a time, the same nodes as decay(age(t), h).
func (c *checker) decay(e ast.Expr, args []*Node) *Node {
	age, halfLife := args[0], args[1]
	if h, ok := halfLife.Value.(float64); ok && !(h > 0) {
		return c.problem(halfLife.Line, halfLife.Col, "a half-life is above 0 seconds", "")
	}
	if age.Type == Time {
		t := age
		if age = c.node(e, Call, Double, t); age == nil {
			return nil
		}
		age.Name, age.Line, age.Col = "age", t.Line, t.Col
	}
	return c.finish(e, Double, age, halfLife)
}

// maxItem is the highest index of a list that an expression may name, 65,535.
const maxItem = 1<<16 - 1

// item makes list[i] a call of item. The index i must be a literal from 0 to maxItem, so
// that a scorer can read that one item.
func (c *checker) item(e ast.Expr) *Node {
	args, ok := c.args(e.AsCall().Args())
	if !ok {
		return nil
	}
	list, i := args[0], args[1]
	if list.Type != Doubles {
		return c.problem(list.Line, list.Col, "[] takes a list of numbers, and this is "+article(list.Type), "")
	}
	if x, ok := i.Value.(float64); !ok || x != math.Trunc(x) || x < 0 || x > maxItem {
		return c.problem(i.Line, i.Col, fmt.Sprintf("the place in a list is a literal from 0 to %d", maxItem), "write list[7]")
	}
	n := c.node(e, Call, Double, list, i)
	if n != nil {
		n.Name = "item"
	}
	return n
}

// lookup checks lookup(table, key, default). The table is a name under tables: in the
// model's spec, or a map literal.
func (c *checker) lookup(e ast.Expr) *Node {
	list := e.AsCall().Args()
	if len(list) != 3 {
		return c.fault(e, fmt.Sprintf("lookup takes 3 arguments, and here are %d", len(list)), "write lookup(TABLE, key, default)")
	}
	table, keyType := c.table(list[0])
	rest, ok := c.args(list[1:])
	if !ok || table == nil {
		return nil
	}
	key, otherwise := rest[0], rest[1]
	if key.Type != keyType {
		return c.problem(key.Line, key.Col, fmt.Sprintf("the table has keys of type %s, and this is %s", keyType, article(key.Type)), "")
	}
	if otherwise.Type != Double {
		return c.problem(otherwise.Line, otherwise.Col, fmt.Sprintf("the default of lookup is a number, and this is %s", article(otherwise.Type)), "")
	}
	return c.finish(e, Double, table, key, otherwise)
}

// table returns the node of a table, and the type of its keys; nil after a fault.
func (c *checker) table(e ast.Expr) (*Node, Type) {
	switch e.Kind() {
	case ast.MapKind:
		return c.mapLiteral(e)
	case ast.IdentKind:
		name := e.AsIdent()
		t, ok := c.env.Tables[name]
		if !ok {
			return c.fault(e, "no table "+name, didYouMean(name, slices.Collect(maps.Keys(c.env.Tables)), "the spec's tables are named under tables:")), 0
		}
		n := c.node(e, Table, Map)
		if n != nil {
			n.Name = name
		}
		return n, t
	}
	return c.fault(e, "the first argument of lookup is a table", `write a table's name, or {"en": 1.0}`), 0
}

// mapLiteral returns the node of a map literal, and the type of its keys; nil after a
// fault.
func (c *checker) mapLiteral(e ast.Expr) (*Node, Type) {
	entries := e.AsMap().Entries()
	if len(entries) == 0 {
		return c.fault(e, "the table is empty", ""), 0
	}
	strs, doubles := map[string]float64{}, map[float64]float64{}
	for _, en := range entries {
		k, v := c.expr(en.AsMapEntry().Key()), c.expr(en.AsMapEntry().Value())
		if k == nil || v == nil {
			return nil, 0
		}
		value, ok := v.Value.(float64)
		if !ok {
			return c.problem(v.Line, v.Col, "the values of a table are numbers", ""), 0
		}
		dup := false
		switch key := k.Value.(type) {
		case string:
			_, dup = strs[key]
			strs[key] = value
		case float64:
			_, dup = doubles[key]
			doubles[key] = value
		default:
			return c.problem(k.Line, k.Col, "the keys of a table are strings or numbers", ""), 0
		}
		switch {
		case dup:
			return c.problem(k.Line, k.Col, fmt.Sprintf("the key %v stands twice", k.Value), ""), 0
		case len(strs) > 0 && len(doubles) > 0:
			return c.problem(k.Line, k.Col, "the keys of a table are strings or numbers, and not both", ""), 0
		}
	}
	m := &MapValue{}
	t := String
	if len(doubles) > 0 {
		t = Double
	}
	m.Strings, m.Values = sorted(strs, m.Values)
	m.Doubles, m.Values = sorted(doubles, m.Values)
	return c.constant(e, Map, m), t
}

// sorted returns the keys of m, ascending, and values with the values of these keys
// appended.
func sorted[K cmp.Ordered](m map[K]float64, values []float64) ([]K, []float64) {
	keys := slices.Sorted(maps.Keys(m))
	for _, k := range keys {
		values = append(values, m[k])
	}
	return keys, values
}
