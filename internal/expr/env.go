package expr

import "github.com/millrace/millrace/internal/column"

// Mode is what an expression is for.
type Mode uint8

const (
	// Filter expressions have CEL's own types and give a bool.
	Filter Mode = iota
	// Model expressions know one kind of number, the double, and the functions
	// of ranking; see DESIGN.md.
	Model
)

// Env declares what an expression may refer to.
type Env struct {
	Mode Mode
	// Record, Entity and Object are the layouts of the known schemas of records, of
	// the features of entities, and of those of objects. A field that only some of
	// them have is null in records of the others.
	Record, Entity, Object []*column.Layout
	// Viewer has the types of the viewer's values in a model, by name: Bool, Double,
	// String, Doubles or Strings. In filters it is nil, and a value of any name is a
	// Dyn. viewer.id, a String, is always there.
	Viewer map[string]Type
	// Tables are a model's lookup tables by name, with the type of their keys: String
	// or Double.
	Tables map[string]Type
}

// The limits of an expression. They bound the time and the memory that a caller's
// expression can take.
const (
	MaxSourceBytes = 16 << 10
	MaxNodes       = 1000 // parts of the source, such as a field, a constant or an operator
	MaxDepth       = 64   // levels of nesting
	MaxCost        = 4000 // 1 for each node, and more for some calls; see DESIGN.md, "Cost"
)
