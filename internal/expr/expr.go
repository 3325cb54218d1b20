// Package expr parses CEL (https://cel.dev). It checks an expression against the
// columns of schemas, and lowers it to a small typed tree. Package internal/filter
// makes kernels (loops over columns) of the tree, package relevance interprets it,
// and package codegen writes Go from it. No other package imports cel-go.
package expr

import "fmt"

// Type is the static type of an expression.
type Type uint8

// The types. A Dyn is a viewer value in a filter, whose type is known when a
// request binds it.
const (
	Null Type = iota + 1
	Bool
	Int
	Double
	String
	Time     // milliseconds since the epoch
	Duration // milliseconds
	Doubles  // list of double
	Strings  // list of string
	Map      // a lookup table
	Dyn
)

// typeNames has the name of each type as CEL writes it.
var typeNames = [...]string{
	Null: "null", Bool: "bool", Int: "int", Double: "double", String: "string", Time: "timestamp",
	Duration: "duration", Doubles: "list(double)", Strings: "list(string)", Map: "map", Dyn: "dyn",
}

// String returns a type as CEL writes it.
func (t Type) String() string {
	if int(t) < len(typeNames) && typeNames[t] != "" {
		return typeNames[t]
	}
	return fmt.Sprintf("type(%d)", uint8(t))
}

// Op is what a node does.
type Op uint8

// The operations. Arguments are in Args, in the order of the source.
const (
	Const  Op = iota + 1 // Value
	Record               // field Name of the record
	Entity               // field Name of the entity's features
	Object               // field Name of the object's features
	Viewer               // viewer.Name
	AsOf                 // the instant of the question
	Not                  // !a
	And                  // a && b
	Or                   // a || b
	Cond                 // a ? b : c
	Eq                   // a == b
	Ne                   // a != b
	Lt                   // a < b
	Le                   // a <= b
	Gt                   // a > b
	Ge                   // a >= b
	Add                  // a + b
	Sub                  // a - b
	Mul                  // a * b
	Div                  // a / b
	Mod                  // a % b
	Neg                  // -a
	In                   // a in b
	Has                  // has(a): a is not null
	Call                 // function Name
	List                 // [a, b, ...]
	Table                // the lookup table Name; first argument of lookup
)

// Node is one operation of a checked expression, with its operands. Nodes are immutable
// and may be shared.
//
// In a filter the types are CEL's. A literal list is a List of constants and
// viewer values. Calls are timestamp, double, int, size, startsWith, endsWith,
// contains and matches, whose pattern is a Const that compiles.
//
// In a model every number is a Double, a column of Int included. A Time is a
// double too, milliseconds since the epoch; a duration is a Double of seconds.
// A literal list is a Const of Doubles or Strings, and a map literal a Const with
// a *[MapValue]. x == null is a Not of a Has. Calls are those of DESIGN.md.
type Node struct {
	Op    Op
	Type  Type
	Name  string  // the name of the field, function or table; "" for all other operations
	Value any     // the value of a Const, by Type: nil, bool, int64, float64, string, int64 (Time and Duration, milliseconds), []float64, []string, *MapValue
	Args  []*Node // operands; a member call's target is the first
	Line  int     // where the source says it, from 1
	Col   int     // in characters, from 1
}

// Conjuncts returns the operands of the outermost &&, flattened. If the node is no &&, it
// returns the node itself.
func (n *Node) Conjuncts() []*Node { return n.conjuncts(nil) }

func (n *Node) conjuncts(dst []*Node) []*Node {
	if n.Op != And {
		return append(dst, n)
	}
	for _, a := range n.Args {
		dst = a.conjuncts(dst)
	}
	return dst
}

// MapValue is a map literal: the first argument of lookup. Its keys are all strings or
// all numbers, and ascend.
type MapValue struct {
	Strings []string  // the keys, if they are strings; else nil
	Doubles []float64 // the keys, if they are numbers; else nil
	Values  []float64 // one for each key
}
