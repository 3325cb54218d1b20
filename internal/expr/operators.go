package expr

import (
	"fmt"

	"cel.dev/cel-go/common/ast"
)

// opNames has how the source writes each operator.
var opNames = [...]string{
	Not: "!", And: "&&", Or: "||", Cond: "?:", Eq: "==", Ne: "!=", Lt: "<", Le: "<=", Gt: ">", Ge: ">=",
	Add: "+", Sub: "-", Mul: "*", Div: "/", Mod: "%", Neg: "-", In: "in",
}

func isNumber(t Type) bool { return t == Int || t == Double }
func isList(t Type) bool   { return t == Doubles || t == Strings || t == Map }

// operator makes the node of an operator with its operands.
func (c *checker) operator(e ast.Expr, op Op) *Node {
	if op == In {
		return c.in(e)
	}
	args, ok := c.args(e.AsCall().Args())
	if !ok {
		return nil
	}
	switch op {
	case Not, And, Or:
		return c.logic(e, op, args)
	case Cond:
		return c.cond(e, args)
	case Eq, Ne, Lt, Le, Gt, Ge:
		return c.comparison(e, op, args[0], args[1])
	case Neg:
		return c.negation(e, args[0])
	}
	t := c.arithmetic(op, args[0].Type, args[1].Type)
	if t == 0 {
		return c.mismatch(e, op, args[0].Type, args[1].Type)
	}
	return c.node(e, op, t, args...)
}

// args makes the nodes of all of list, so that every fault is found. ok is false after a
// fault.
func (c *checker) args(list []ast.Expr) (nodes []*Node, ok bool) {
	ok = true
	for _, a := range list {
		n := c.expr(a)
		nodes = append(nodes, n)
		ok = ok && n != nil
	}
	return nodes, ok
}

func (c *checker) logic(e ast.Expr, op Op, args []*Node) *Node {
	ok := true
	for _, a := range args {
		if a.Type != Bool && a.Type != Dyn {
			c.problem(a.Line, a.Col, fmt.Sprintf("%s takes bools, and this is %s", opNames[op], article(a.Type)), "compare it with something")
			ok = false
		}
	}
	if !ok {
		return nil
	}
	return c.node(e, op, Bool, args...)
}

// cond checks a ? b : c. A branch cannot be a viewer value, whose type depends on the
// request: a column of results has one type.
func (c *checker) cond(e ast.Expr, args []*Node) *Node {
	test, yes, no := args[0], args[1], args[2]
	if test.Type != Bool && test.Type != Dyn {
		return c.problem(test.Line, test.Col, fmt.Sprintf("the condition before ? is %s, not a bool", article(test.Type)), "")
	}
	t := yes.Type
	if t == Null {
		t = no.Type
	}
	for _, b := range args[1:] {
		switch {
		case b.Type == Null && c.env.Mode == Model:
			return c.problem(b.Line, b.Col, "a branch of ?: cannot be null in a model", "")
		case isList(b.Type):
			return c.problem(b.Line, b.Col, "a branch of ?: cannot be a list", "put the condition around the operation on the list")
		case b.Type == Dyn:
			return c.problem(b.Line, b.Col, "a branch of ?: cannot be a viewer value, whose type is not known", "compare it inside the branch")
		}
	}
	if no.Type != t && no.Type != Null {
		return c.fault(e, fmt.Sprintf("the branches of ?: are %s and %s", article(yes.Type), article(no.Type)), c.castHint(yes.Type, no.Type))
	}
	return c.node(e, Cond, t, args...)
}

func (c *checker) negation(e ast.Expr, a *Node) *Node {
	t := a.Type
	switch {
	case t == Dyn:
		t = Double
	case !isNumber(t) && t != Duration:
		return c.problem(a.Line, a.Col, fmt.Sprintf("- takes a number, and this is %s", article(t)), "")
	}
	return c.node(e, Neg, t, a)
}

func (c *checker) comparison(e ast.Expr, op Op, a, b *Node) *Node {
	equality := op == Eq || op == Ne
	if b.Type == Null {
		a = c.bare(a)
	} else if a.Type == Null {
		b = c.bare(b)
	}
	if a.Type == Null || b.Type == Null {
		if !equality {
			return c.fault(e, "null has no order", "use == null, != null or has()")
		}
		if c.env.Mode == Model {
			return c.nullTest(e, op, a, b)
		}
	} else if !comparable(a.Type, b.Type) {
		return c.mismatch(e, op, a.Type, b.Type)
	}
	if isList(a.Type) && b.Type != Null || isList(b.Type) && a.Type != Null {
		return c.fault(e, fmt.Sprintf("%s does not compare lists", opNames[op]), "use in or size()")
	}
	return c.node(e, op, Bool, a, b)
}

// bare removes the int() that selection puts around a mixed field, so that the field can
// be compared with null.
func (c *checker) bare(n *Node) *Node {
	if c.whole && n.Op == Call && n.Name == "int" && n.Args[0].Type == Double && n.Line == n.Args[0].Line && n.Col == n.Args[0].Col {
		return n.Args[0]
	}
	return n
}

// nullTest makes x == null and x != null in a model a test by has(): null has no other
// use there.
func (c *checker) nullTest(e ast.Expr, op Op, a, b *Node) *Node {
	if a.Type == Null {
		a = b
	}
	switch a.Op {
	case Record, Entity, Object, Viewer:
	default:
		return c.problem(a.Line, a.Col, "only fields and viewer values can be null in a model", "")
	}
	has := c.node(e, Has, Bool, a)
	if op == Ne || has == nil {
		return has
	}
	return c.node(e, Not, Bool, has)
}

// comparable reports whether values of two types can be compared. A Dyn may be a bool, a
// double, a string or a list.
func comparable(a, b Type) bool {
	if b == Dyn {
		a, b = b, a
	}
	if a == Dyn {
		return b == Dyn || b == Bool || b == String || isNumber(b)
	}
	return a == b || isNumber(a) && isNumber(b)
}

// arithmetic returns the type of the result of a op b, or 0 if there is no such operation.
func (c *checker) arithmetic(op Op, a, b Type) Type {
	double := func(t Type) bool { return t == Double || t == Dyn }
	switch {
	case op == Mod:
		if a == Int && b == Int {
			return Int
		}
		return 0
	case a == Int && b == Int:
		return Int
	case a == Dyn && b == Dyn && op == Add:
		return Dyn
	case double(a) && double(b):
		return Double
	case c.env.Mode == Model:
		return 0
	case a == Time && b == Time && op == Sub:
		return Duration
	case a == Time && b == Duration && (op == Add || op == Sub), a == Duration && b == Time && op == Add:
		return Time
	case a == Duration && b == Duration && (op == Add || op == Sub):
		return Duration
	}
	return 0
}

// mismatch notes that an operator does not take operands of these types.
func (c *checker) mismatch(e ast.Expr, op Op, a, b Type) *Node {
	if c.env.Mode == Model && (a == Time || b == Time) && op == Sub {
		return c.fault(e, "- does not take timestamps in a model", "use age(t), the seconds from t to as_of")
	}
	if c.env.Mode == Model && op == Mod {
		return c.fault(e, "% is not supported in a model", "")
	}
	return c.fault(e, fmt.Sprintf("%s does not take %s and %s", opNames[op], article(a), article(b)), c.castHint(a, b))
}

// castHint returns a hint how to convert one of two values so that their types go together;
// "" if there is none.
func (c *checker) castHint(a, b Type) string {
	switch {
	case c.env.Mode == Model && (a == Bool || b == Bool):
		return "write x ? 1 : 0 for a bool as a number"
	case a == Int && (b == Double || b == Dyn), b == Int && (a == Double || a == Dyn):
		return "write double(x) around the int"
	case a == Time && (b == String || isNumber(b)), b == Time && (a == String || isNumber(a)):
		return `write timestamp("2026-01-31T00:00:00Z")`
	case a == Duration && b == String, a == String && b == Duration, a == Duration && isNumber(b), isNumber(a) && b == Duration:
		return `write duration("24h")`
	}
	return ""
}

// in checks x in list, where list is a literal, a list field or, in a filter,
// a viewer value.
func (c *checker) in(e ast.Expr) *Node {
	sides := e.AsCall().Args()
	x := c.expr(sides[0])
	list := c.expr(sides[1])
	if x == nil || list == nil {
		return nil
	}
	return c.membership(e, x, list)
}

func (c *checker) membership(e ast.Expr, x, list *Node) *Node {
	if x.Type == Null || isList(x.Type) {
		return c.problem(x.Line, x.Col, fmt.Sprintf("in looks for a single value, and this is %s", article(x.Type)), "")
	}
	switch {
	case list.Op == List:
		ok := true
		for _, el := range list.Args {
			if el.Type != Null && !comparable(x.Type, el.Type) {
				c.problem(el.Line, el.Col, fmt.Sprintf("the list is searched for %s, and this is %s", article(x.Type), article(el.Type)), c.castHint(x.Type, el.Type))
				ok = false
			}
		}
		if !ok {
			return nil
		}
	case list.Type == Dyn && c.env.Mode == Filter:
		if !comparable(x.Type, Dyn) {
			return c.mismatch(e, In, x.Type, list.Type)
		}
	case list.Type == Strings && (x.Type == String || x.Type == Dyn):
	case list.Type == Doubles && (isNumber(x.Type) || x.Type == Dyn):
	case list.Type == Doubles && list.Op == Const && len(list.Value.([]float64)) == 0:
	default:
		return c.mismatch(e, In, x.Type, list.Type)
	}
	return c.node(e, In, Bool, x, list)
}

// list checks a literal list. In a filter it may hold viewer values, and stands only on the
// right of in. In a model all its elements are constants.
func (c *checker) list(e ast.Expr) *Node {
	elements, ok := c.args(e.AsList().Elements())
	if !ok {
		return nil
	}
	for _, el := range elements {
		switch {
		case el.Op == Const, el.Op == Viewer && c.env.Mode == Filter:
		case c.env.Mode == Model:
			return c.problem(el.Line, el.Col, "a literal list holds constants", "")
		default:
			return c.problem(el.Line, el.Col, "a literal list holds constants and viewer values", "compare with == and ||")
		}
	}
	if c.env.Mode == Filter {
		return c.node(e, List, listType(elements), elements...)
	}
	return c.constantList(e, elements)
}

// listType returns the type of a filter's literal list, by its first element. If its
// elements have several types, the type does not matter: membership checks them one by
// one.
func listType(elements []*Node) Type {
	if len(elements) > 0 && elements[0].Type == String {
		return Strings
	}
	return Doubles
}

func (c *checker) constantList(e ast.Expr, elements []*Node) *Node {
	doubles, strs := []float64{}, []string{}
	for _, el := range elements {
		switch {
		case el.Type == Double && len(strs) == 0:
			doubles = append(doubles, el.Value.(float64))
		case el.Type == String && len(doubles) == 0:
			strs = append(strs, el.Value.(string))
		default:
			return c.problem(el.Line, el.Col, "a list holds numbers or strings, and not both", "")
		}
	}
	if len(strs) > 0 {
		return c.constant(e, Strings, strs)
	}
	return c.constant(e, Doubles, doubles)
}
