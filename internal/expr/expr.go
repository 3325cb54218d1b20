// Package expr is the home of CEL (https://cel.dev): it parses and checks an
// expression against the columns of schemas and lowers it to a small typed
// tree, from which internal/filter makes kernels, relevance interprets and
// codegen writes Go. Nothing outside this package imports cel-go.
package expr

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
	Dyn
)

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
)

// Node is one operation of a checked expression. Nodes are immutable and may
// be shared.
type Node struct {
	Op    Op
	Type  Type
	Name  string  // of a field or function
	Value any     // of a Const: nil, bool, int64, float64, string, []float64 or []string
	Args  []*Node // operands
	Line  int     // where the source says it, from 1
	Col   int     // in characters, from 1
}
