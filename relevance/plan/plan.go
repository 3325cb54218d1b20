// Package plan turns the checked expressions of a model into a plan for one
// layout of records: a list of operations, each computed once, in an order
// that both the interpreter and the generated Go follow. Both walk the same plan with
// the same scalar functions, so they give the same bits.
//
// Values in a model are numbers (float64), booleans, strings and lists of
// numbers or strings. There is no null: a missing number is NaN, a missing
// boolean false, a missing string empty, a missing list empty. has(record.x)
// tells whether a value is there, coalesce replaces what is missing.
// Comparisons are those of float64: with NaN only != is true.
package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/millrace/millrace/internal/column"
)

// Kind is what a value is at run time.
type Kind uint8

// The kinds of a value.
const (
	Number  Kind = iota + 1 // float64; missing is NaN
	Bool                    // missing is false
	String                  // missing is ""
	Numbers                 // list of float64; missing is empty
	Strings                 // list of string; missing is empty
)

var kindNames = [...]string{Number: "number", Bool: "bool", String: "string", Numbers: "list(number)", Strings: "list(string)"}

func (k Kind) String() string {
	if int(k) < len(kindNames) && kindNames[k] != "" {
		return kindNames[k]
	}
	return "kind(" + strconv.Itoa(int(k)) + ")"
}

// Deps is the set of what a value depends on.
type Deps uint8

// What a value can depend on. A value without any is a constant. The features of the record's
// object belong to Record here, but see [PartOf].
const (
	Request Deps = 1 << iota // the viewer, the instant, the parameters
	Entity                   // the timeline's entity
	Record                   // the record
)

// Op is what computes a value.
type Op uint8

// The operations.
const (
	Const    Op = iota + 1 // the constant Value.Const
	Field                  // record field Index of Plan.Record
	HasField               // that field is not null
	EntField               // entity field Index of Plan.Entity
	HasEnt                 // that field is not null
	ObjField               // field Index of Plan.Object, of the record's object
	HasObj                 // that field is not null
	Input                  // viewer value Index of Plan.Viewer
	HasInput               // the viewer has it
	AsOf                   // the instant, in milliseconds
	Param                  // parameter Index
	Not                    // !a
	And                    // a && b
	Or                     // a || b
	Select                 // a ? b : c; both are computed
	Eq                     // a == b, of numbers, booleans or strings
	Ne                     // a != b
	Lt                     // a < b, of numbers or strings
	Le                     // a <= b
	Gt                     // a > b
	Ge                     // a >= b
	Add                    // a + b
	Sub                    // a - b
	Mul                    // a * b
	Div                    // a / b
	Neg                    // -a
	In                     // a in b, of a number or string and a list
	Present                // a, a string, is not empty
	ToNumber               // a boolean as 0 or 1
	Lookup                 // table Index at a number or string
	Size                   // of a list or string
	Text                   // a number's digits
	Cross                  // two strings joined by "|"
	Call                   // function Name of [Funcs]
	Folded                 // the own part of a score, computed beforehand; see [Plan.Split]
	Item                   // item Index of a list of numbers
)

var opNames = [...]string{
	Const: "const", Field: "record", HasField: "has_record", EntField: "entity", HasEnt: "has_entity", ObjField: "object", HasObj: "has_object",
	Input: "viewer", HasInput: "has_viewer", AsOf: "as_of", Param: "param", Not: "not", And: "and", Or: "or",
	Select: "select", Eq: "eq", Ne: "ne", Lt: "lt", Le: "le", Gt: "gt", Ge: "ge", Add: "add", Sub: "sub",
	Mul: "mul", Div: "div", Neg: "neg", In: "in", Present: "present", ToNumber: "number", Lookup: "lookup",
	Size: "size", Text: "text", Cross: "cross", Call: "call", Item: "item", Folded: "folded",
}

func (o Op) String() string { return opNames[o] }

// Value is one operation. Its arguments come before it in Plan.Values.
type Value struct {
	Op    Op
	Kind  Kind
	Args  []int  // indices in Plan.Values
	Index int    // of a field, viewer value, parameter, table or item
	Name  string // of a function
	Const any    // float64, bool, string, []float64 or []string
	Deps  Deps
}

// Load is a field of the record, the entity or the record's object that a plan reads, with
// its kind in the layout that the plan is for.
type Load struct {
	Name     string
	Column   int // in that layout
	Kind     column.Kind
	Nullable bool
}

// Var is a viewer value, or a look-up table. Kind is the kind of the value, or of the table's
// keys.
type Var struct {
	Name string
	Kind Kind
}

// Term is a feature's part in the score. Value, Contribution and Sum are indices in
// Plan.Values.
type Term struct {
	Feature      string
	At           int // the index of the feature in the spec
	Value        int // the feature, as a number or a table's key
	Contribution int // what the feature adds to the score; -1 with trees
	Part         Part
	Lane         int // which of the part's sums it adds to; see Lanes
	Sum          int // the sum of its lane up to this term; -1 with trees
}

// Part is one of the three sums that make up a linear score. Only the expression of a feature
// decides its part, whichever fields a layout has, so that the order of the sum is the same
// for every layout.
type Part uint8

// Lanes is how many sums (lanes) the own and the rest part are made of. The terms go
// to the lanes in turn, and the part is (lane 0 + lane 1) + (lane 2 + lane 3). A
// processor adds four independent sums in the time of one. The fixed part is one sum.
const Lanes = 4

// The parts of a linear score, which is (own + fixed) + rest.
const (
	OwnPart   Part = iota // features that depend on the record alone
	FixedPart             // the bias, and features that depend on the request alone
	RestPart              // all other features: of record and request, of the entity, or of the record's object
)

// Plan is how to score the records of one layout.
type Plan struct {
	Values  []Value // in the order in which they are computed
	Record  []Load
	Entity  []Load
	Object  []Load // of the layout that Objects returns
	Viewer  []Var
	Weights int   // how many parameters there are: the bias, then the scalar weights; model after model
	Tables  []Var // look-up tables by name; Kind is that of their keys

	Output          // of the model, or of the first model of a joint plan
	More   []Output // of the further models of a joint plan; see [Join]

	tables  []tableOf    // for each of Tables, the model that it is from
	steps   *steps       // for a machine that does not keep every value
	request *steps       // for a machine that only computes what the request decides; see Preparer
	slots   Slots        // see Plan.Slots
	similar []Similarity // see Plan.Similarities

	similarAt []int          // by value, 1 + its place in similar; 0: it is no similarity
	objects   *column.Layout // see Plan.Objects
}

// Objects returns the layout in which the plan reads the features of records' objects.
// There is a row for each record; it is all null if the record's object has no features.
// Objects returns nil if the plan reads no features of objects.
func (p *Plan) Objects() *column.Layout { return p.objects }

// Output says how the values make the score of one model. Own and Score are indices in
// Plan.Values.
type Output struct {
	Terms  []Term // in the order of the spec
	Own    int    // the sum of the own part; -1 if that has no terms
	Score  int    // the score; -1 with trees
	Scorer Scorer
}

// Outputs returns the outputs of the plan's models, in their order.
func (p *Plan) Outputs() []*Output {
	all := []*Output{&p.Output}
	for i := range p.More {
		all = append(all, &p.More[i])
	}
	return all
}

// Scorer is how features become a score.
type Scorer uint8

// The scorers.
const (
	Linear   Scorer = iota + 1 // bias + the sum of weight × feature
	Logistic                   // 1 / (1 + exp(-linear))
	Trees                      // a forest of decision trees, which reads the features
)

var scorerNames = [...]string{Linear: "linear", Logistic: "logistic", Trees: "trees"}

func (s Scorer) String() string { return scorerNames[s] }

// Shape identifies what a plan computes, apart from its parameters and from
// where in the layout its columns are: 16 hexadecimal digits. Plans of equal
// shape share generated code.
func (p *Plan) Shape() string { return digest(p.String()) }

// Former returns the shape of generated code that computes the plan's similarities itself,
// list by list. Older releases generate such code, and it can still score. If the plan has no
// similarities, Former and Shape are equal.
func (p *Plan) Former() string { return digest(p.print(false)) }

// digest returns the first 8 bytes of the SHA-256 of a text, as 16 hexadecimal digits.
func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// String prints the plan, one value a line.
func (p *Plan) String() string { return p.print(true) }

// print prints the plan. If similar is true, it marks similarities; else they are calls like
// any others.
func (p *Plan) print(similar bool) string {
	var b strings.Builder
	loads := func(what string, loads []Load) {
		for i, l := range loads {
			fmt.Fprintf(&b, "%s %d %s %s null=%t\n", what, i, l.Name, l.Kind, l.Nullable)
		}
	}
	loads("record", p.Record)
	loads("entity", p.Entity)
	loads("object", p.Object)
	for i, v := range p.Viewer {
		fmt.Fprintf(&b, "viewer %d %s %s\n", i, v.Name, v.Kind)
	}
	for i, t := range p.Tables {
		fmt.Fprintf(&b, "table %d by %s\n", i, t.Kind)
	}
	for i := range p.Values {
		fmt.Fprintf(&b, "v%d = %s", i, p.valueString(i))
		if n := p.similarity(i); similar && n >= 0 {
			fmt.Fprintf(&b, " vector %d", n)
		}
		b.WriteString("\n")
	}
	for _, o := range p.Outputs() {
		for _, t := range o.Terms {
			fmt.Fprintf(&b, "term %s v%d v%d part %d\n", t.Feature, t.Value, t.Contribution, t.Part)
		}
		fmt.Fprintf(&b, "%s v%d v%d of %d weights\n", o.Scorer, o.Own, o.Score, p.Weights)
	}
	return b.String()
}

// valueString prints a value so that two values print alike only if they compute the same.
func (p *Plan) valueString(i int) string {
	v := &p.Values[i]
	var b strings.Builder
	fmt.Fprintf(&b, "%s:%s", v.Op, v.Kind)
	switch v.Op {
	case Const:
		b.WriteString(" " + constString(v.Const))
	case Call:
		b.WriteString(" " + v.Name)
	case Field, HasField, EntField, HasEnt, ObjField, HasObj, Input, HasInput, Param, Lookup, Item:
		fmt.Fprintf(&b, " %d", v.Index)
	}
	for _, a := range v.Args {
		fmt.Fprintf(&b, " v%d", a)
	}
	return b.String()
}

// constString prints a constant so that different constants print differently.
func constString(c any) string {
	switch c := c.(type) {
	case float64:
		if math.IsNaN(c) {
			return "NaN"
		}
		return strconv.FormatFloat(c, 'g', -1, 64)
	case []float64:
		s := make([]string, len(c))
		for i, x := range c {
			s[i] = constString(x)
		}
		return "[" + strings.Join(s, " ") + "]"
	}
	if c, ok := c.(bool); ok {
		return strconv.FormatBool(c)
	}
	return fmt.Sprintf("%q", c)
}
