package expr

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"

	"github.com/millrace/millrace/internal/column"
)

// expr makes the node of a part of the syntax tree, or nil after a fault; see checker.
func (c *checker) expr(e ast.Expr) *Node {
	switch e.Kind() {
	case ast.LiteralKind:
		return c.literal(e)
	case ast.IdentKind:
		return c.ident(e)
	case ast.SelectKind:
		return c.selection(e)
	case ast.CallKind:
		if op, ok := opOf[e.AsCall().FunctionName()]; ok {
			return c.operator(e, op)
		}
		return c.call(e)
	case ast.ListKind:
		return c.list(e)
	case ast.MapKind:
		return c.fault(e, "a map literal stands only as the first argument of lookup", "")
	case ast.StructKind:
		return c.fault(e, "messages are not supported", "")
	}
	return c.fault(e, "this is not supported", "")
}

func (c *checker) literal(e ast.Expr) *Node {
	switch v := e.AsLiteral().(type) {
	case types.Bool:
		return c.constant(e, Bool, bool(v))
	case types.Int:
		if c.env.Mode == Model {
			return c.constant(e, Double, float64(v))
		}
		return c.constant(e, Int, int64(v))
	case types.Double:
		return c.constant(e, Double, float64(v))
	case types.String:
		return c.constant(e, String, string(v))
	case types.Null:
		return c.constant(e, Null, nil)
	case types.Uint:
		return c.fault(e, "unsigned literals are not supported", "write it without the u")
	}
	return c.fault(e, "bytes are not supported", "write a string")
}

// roots are the names from which an expression reads values.
var roots = map[string]Op{"record": Record, "entity": Entity, "object": Object, "viewer": Viewer, "as_of": AsOf}

func (c *checker) ident(e ast.Expr) *Node {
	name := e.AsIdent()
	op, ok := roots[name]
	switch {
	case ok && op == AsOf:
		return c.node(e, AsOf, Time)
	case ok:
		return c.fault(e, name+" is not a value", "write "+name+".FIELD")
	}
	if _, ok := c.scope(Record)[name]; ok {
		return c.fault(e, "unknown name "+name, "did you mean record."+name+"?")
	}
	return c.fault(e, "unknown name "+name, didYouMean(name, slices.Collect(maps.Keys(roots)), "an expression starts from record, entity, viewer or as_of, and in models also from object"))
}

// selection makes the node of record.a.b or has(record.a.b). a.b is the name of one column:
// a schema's field b in a nested record a.
func (c *checker) selection(e ast.Expr) *Node {
	var steps []ast.Expr // outermost first
	root := e
	for root.Kind() == ast.SelectKind {
		steps = append(steps, root)
		root = root.AsSelect().Operand()
	}
	slices.Reverse(steps)
	op, ok := Op(0), false
	if root.Kind() == ast.IdentKind {
		op, ok = roots[root.AsIdent()]
	}
	switch {
	case root.Kind() == ast.IdentKind && !ok:
		return c.ident(root)
	case !ok:
		c.expr(root)
		return c.fault(e, "only record, entity, object and viewer have fields", "")
	case op == AsOf:
		return c.fault(e, "as_of has no fields", "")
	case op == Object && c.env.Mode == Filter:
		return c.fault(root, "filters do not see the object's features", "use record or entity")
	}
	path := make([]string, len(steps))
	for i, s := range steps {
		path[i] = s.AsSelect().FieldName()
	}
	t := c.field(op, root.AsIdent(), steps, path)
	if t == 0 {
		return nil
	}
	n := c.node(root, op, t)
	if n == nil {
		return nil
	}
	n.Name = strings.Join(path, ".")
	switch {
	case e.AsSelect().IsTestOnly():
		return c.node(e, Has, Bool, n)
	case c.whole && op < Viewer && c.mixed[op][n.Name]:
		if n = c.node(root, Call, Int, n); n != nil {
			n.Name = "int"
		}
	}
	return n
}

// field returns the type of a field below a root (record, entity, object or viewer). If
// there is no such field, it notes a problem at the first step of the path that does not
// exist, and returns 0.
func (c *checker) field(op Op, root string, steps []ast.Expr, path []string) Type {
	scope := c.scope(op)
	full := strings.Join(path, ".")
	if t, ok := scope[full]; ok {
		if op < Viewer && c.torn[op][full] {
			c.doubted = append(c.doubted, fmt.Sprintf("%s.%s is %s, as the first schema with it says, and null in records of those that say otherwise", root, full, article(t)))
		}
		return t
	}
	if op == Viewer && c.env.Mode == Filter {
		if len(path) == 1 {
			return Dyn
		}
		c.fieldFault(steps[1], "viewer."+path[0]+" has no fields", "")
		return 0
	}
	names := slices.Sorted(maps.Keys(scope))
	for i := range path {
		prefix := strings.Join(path[:i+1], ".")
		if t, ok := scope[prefix]; ok {
			c.fieldFault(steps[i+1], fmt.Sprintf("%s.%s is %s and has no fields", root, prefix, article(t)), "")
			return 0
		}
		if t := c.carried(op, prefix); t != "" {
			c.fieldFault(steps[i], fmt.Sprintf("%s.%s is of the type %s, which no expression reads", root, prefix, t), "an expression reads numbers, booleans, strings, enums, and lists of numbers or strings")
			return 0
		}
		if !slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, prefix+".") }) {
			c.fieldFault(steps[i], fmt.Sprintf("no field %s in %s", prefix, root), didYouMean(full, names, listed(names)))
			return 0
		}
	}
	c.fieldFault(steps[len(steps)-1], fmt.Sprintf("%s.%s is a record", root, full), "name one of its fields")
	return 0
}

// layouts returns the layouts that have the fields of a root.
func (c *checker) layouts(op Op) []*column.Layout {
	return map[Op][]*column.Layout{Record: c.env.Record, Entity: c.env.Entity, Object: c.env.Object}[op]
}

// carried returns the Avro type of a field that schemas have but that has no column, such
// as a map, or "" if there is no such field.
func (c *checker) carried(op Op, name string) string {
	for _, l := range c.layouts(op) {
		if t := l.Carried()[name]; t != "" {
			return t
		}
	}
	return ""
}

func (c *checker) fieldFault(step ast.Expr, message, suggestion string) {
	line, col := c.at(c.fieldOffset(step))
	c.problem(line, col, message, suggestion)
}

// scope returns the fields of a root with their types.
func (c *checker) scope(op Op) map[string]Type {
	if op == Viewer {
		s := map[string]Type{"id": String}
		maps.Copy(s, c.env.Viewer)
		return s
	}
	if c.fields[op] == nil {
		c.fields[op], c.mixed[op], c.torn[op] = fieldTypes(c.layouts(op), c.env.Mode)
	}
	return c.fields[op]
}

// fieldTypes merges the fields of layouts. The first layout that has a field decides its
// type. If one layout has the field as an int and another as a double, it is a double, and
// in mixed. If a later layout gives it any other type, the field is in torn: it is null in
// the records of that layout.
func fieldTypes(layouts []*column.Layout, mode Mode) (all map[string]Type, mixed, torn map[string]bool) {
	all, mixed, torn = map[string]Type{}, map[string]bool{}, map[string]bool{}
	for _, l := range layouts {
		for _, f := range l.Fields() {
			if strings.HasPrefix(f.Name, "$") {
				continue
			}
			t := typeOfKind[f.Kind]
			if mode == Model && t == Int {
				t = Double
			}
			old, met := all[f.Name]
			switch {
			case !met:
				all[f.Name] = t
			case old != t && isNumber(old) && isNumber(t):
				all[f.Name], mixed[f.Name] = Double, true
			case old != t:
				torn[f.Name] = true
			}
			if f.Widened && all[f.Name] == Double {
				mixed[f.Name] = true
			}
		}
	}
	return all, mixed, torn
}

// Mixed returns the fields of records and of entities' features that are an int in some
// schema and a double in another, such as record.likes; sorted. A filter reads them as
// doubles. A filter that does not type-check with doubles reads them as ints, as if it said
// int(record.likes).
func (env Env) Mixed() (names []string) {
	for root, layouts := range map[string][]*column.Layout{"record.": env.Record, "entity.": env.Entity} {
		_, mixed, _ := fieldTypes(layouts, env.Mode)
		for name := range mixed {
			names = append(names, root+name)
		}
	}
	slices.Sort(names)
	return names
}

// typeOfKind has the type of the values of each kind of column.
var typeOfKind = [...]Type{
	column.Bool: Bool, column.Int: Int, column.Time: Time, column.Double: Double,
	column.String: String, column.Doubles: Doubles, column.Strings: Strings,
}

// opOf has the operation of each of CEL's operators.
var opOf = map[string]Op{
	operators.LogicalNot: Not, operators.LogicalAnd: And, operators.LogicalOr: Or, operators.Conditional: Cond,
	operators.Equals: Eq, operators.NotEquals: Ne, operators.Less: Lt, operators.LessEquals: Le,
	operators.Greater: Gt, operators.GreaterEquals: Ge, operators.Add: Add, operators.Subtract: Sub,
	operators.Multiply: Mul, operators.Divide: Div, operators.Modulo: Mod, operators.Negate: Neg, operators.In: In,
}
