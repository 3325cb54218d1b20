package codegen

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance/plan"
)

var operators = map[plan.Op]string{
	plan.And: "&&", plan.Or: "||", plan.Eq: "==", plan.Ne: "!=", plan.Lt: "<", plan.Le: "<=", plan.Gt: ">",
	plan.Ge: ">=", plan.Add: "+", plan.Sub: "-", plan.Mul: "*", plan.Div: "/",
}

var goTypes = map[plan.Kind]string{
	plan.Number: "float64", plan.Bool: "bool", plan.String: "string", plan.Numbers: "[]float64", plan.Strings: "[]string",
}

// expr returns the text of value i of the plan: its variable, its slot, or its operation.
func (f *function) expr(i int) string {
	v := &f.p.Values[i]
	switch {
	case f.vars[i] != "":
		return f.vars[i]
	case v.Op == plan.Const:
		return f.literal(v)
	case v.Op == plan.Param:
		f.weights = true
		return fmt.Sprintf("w[%d]", v.Index)
	case v.Deps&(plan.Record|plan.Entity) == 0:
		return f.slot(i)
	case f.p.Direct(i):
		return f.direct(v)
	}
	a := func(k int) string { return f.expr(v.Args[k]) }
	switch v.Op {
	case plan.Folded:
		f.folded = true
		return "folded[r]"
	case plan.HasField:
		return f.nulls(v.Index) + " == 0"
	case plan.HasObj:
		return f.objectNulls(v.Index) + " == 0"
	case plan.HasEnt:
		f.entity = true
		return fmt.Sprintf("(entity != nil && !entity.Null(k.EntCols[%d], 0))", v.Index)
	case plan.Not:
		return "!(" + a(0) + ")"
	case plan.Neg:
		return "-(" + a(0) + ")"
	case plan.Mul:
		// The conversion keeps the compiler from fusing the product into a sum.
		return "float64(" + f.operand(v.Args[0]) + " * " + f.operand(v.Args[1]) + ")"
	case plan.Select:
		return fmt.Sprintf("compute.If[%s](%s, %s, %s)", goTypes[v.Kind], a(0), a(1), a(2))
	case plan.ToNumber:
		return "compute.Bool(" + a(0) + ")"
	case plan.Text:
		return f.arenaOf(v) + ".Text(" + a(0) + ")"
	case plan.Cross:
		return f.arenaOf(v) + ".Cross(" + a(0) + ", " + a(1) + ")"
	case plan.In:
		return f.contains(v)
	case plan.Present:
		return f.expr(v.Args[0]) + ` != ""`
	case plan.Lookup:
		return fmt.Sprintf("k.Tables[%d].%s(%s)", v.Index, tableKind(f.p.Values[v.Args[0]].Kind), a(0))
	case plan.Size:
		if f.p.Values[v.Args[0]].Kind == plan.String {
			return "compute.Size(" + a(0) + ")"
		}
		return "float64(len(" + a(0) + "))"
	case plan.Item:
		if f.p.Picked(v.Args[0]) {
			return fmt.Sprintf("%s.At(%d)", a(0), v.Index)
		}
		return fmt.Sprintf("compute.Item(%s, %d)", a(0), v.Index)
	case plan.Call:
		return f.call(v)
	}
	return f.operand(v.Args[0]) + " " + operators[v.Op] + " " + f.operand(v.Args[1])
}

// operand returns the text of a value as an operand of a binary operation, in parentheses
// where Go's precedence requires them.
func (f *function) operand(i int) string {
	text := f.expr(i)
	v := &f.p.Values[i]
	binary := operators[v.Op] != "" && v.Op != plan.Mul || v.Op == plan.HasField || v.Op == plan.HasObj || v.Op == plan.In || v.Op == plan.Present
	if f.vars[i] == "" && binary && v.Deps&(plan.Record|plan.Entity) != 0 || strings.HasPrefix(text, "-") {
		return "(" + text + ")"
	}
	return text
}

// arenaOf returns the arena, memory for texts and lists, that a value is made in: that of the
// call if the value does not depend on the record, else that of the row.
func (f *function) arenaOf(v *plan.Value) string {
	if v.Deps&plan.Record == 0 {
		return "k.EntityArena"
	}
	f.arena = true
	return "k.Arena"
}

// tableKind returns the name of the method that looks a value of a kind up in a table or set.
func tableKind(k plan.Kind) string {
	if k == plan.String {
		return "String"
	}
	return "Number"
}

// direct returns the text of an operation on a record's string that compares the word which
// stands for the string in its column, mostly without reading the string's text.
func (f *function) direct(v *plan.Value) string {
	word := f.column(f.p.Values[v.Args[0]].Index) + "[r]"
	switch v.Op {
	case plan.Present:
		return word + " != 0"
	}
	other := &f.p.Values[v.Args[1]]
	if s, ok := other.Const.(string); ok && other.Op == plan.Const {
		if w, short := column.InlineWord(s); short {
			return fmt.Sprintf("%s %s %#x /* %s */", word, operators[v.Op], w, strings.ReplaceAll(strconv.Quote(s), "*/", "* /"))
		}
	}
	equal := "rows.EqualString(" + word + ", " + f.expr(v.Args[1]) + ")"
	if v.Op == plan.Ne {
		return "!" + equal
	}
	return equal
}

// contains returns the text of an In: a look-up in a set of the request if the list has one,
// else a search through the list.
func (f *function) contains(v *plan.Value) string {
	x, list := f.expr(v.Args[0]), v.Args[1]
	if set, ok := f.sets[list]; ok {
		return fmt.Sprintf("%s.%s(%s) != 0", set, tableKind(f.p.Values[v.Args[0]].Kind), x)
	}
	f.w.imports["slices"] = true
	return "slices.Contains(" + f.expr(list) + ", " + x + ")"
}

// call returns the text of a call of a function. If the argument is always a whole number,
// log1p and bucketize have a cheaper form that gives the same bits.
func (f *function) call(v *plan.Value) string {
	if v.Name == "bucketize" && f.p.Always(v.Args[0]) {
		return f.buckets(v)
	}
	name := plan.Funcs[v.Name].Go
	if v.Name == "log1p" && f.p.Always(v.Args[0]) {
		name = "compute.Log1pWhole"
	}
	if pkg, _, _ := strings.Cut(name, "."); pkg != "compute" {
		f.w.imports[pkg] = true
	}
	args := make([]string, len(v.Args))
	for k, a := range v.Args {
		args[k] = f.expr(a)
	}
	return name + "(" + strings.Join(args, ", ") + ")"
}

// buckets returns the text of a bucketize of a number that is never missing: a sum of
// comparisons, each 0 or 1.
func (f *function) buckets(v *plan.Value) string {
	x := f.expr(v.Args[0])
	bounds, _ := f.p.Values[v.Args[1]].Const.([]float64)
	parts := make([]string, len(bounds))
	for i, b := range bounds {
		parts[i] = fmt.Sprintf("compute.One(%s >= %s)", x, f.float(b))
	}
	return "float64(" + strings.Join(parts, " + ") + ")"
}

// literal returns the text of a constant. For a list, that is the name of a package variable.
func (f *function) literal(v *plan.Value) string {
	switch c := v.Const.(type) {
	case bool:
		return strconv.FormatBool(c)
	case string:
		return strconv.Quote(c)
	case float64:
		return f.float(c)
	case []float64:
		s := make([]string, len(c))
		for i, x := range c {
			s[i] = f.float(x)
		}
		return f.w.list("[]float64{" + strings.Join(s, ", ") + "}")
	case []string:
		s := make([]string, len(c))
		for i, x := range c {
			s[i] = strconv.Quote(x)
		}
		return f.w.list("[]string{" + strings.Join(s, ", ") + "}")
	}
	return "nil"
}

// float returns the text of a number from which Go makes the same bits, in any expression.
func (f *function) float(x float64) string {
	switch {
	case math.IsNaN(x):
		return "compute.Missing"
	case math.IsInf(x, 0):
		f.w.imports["math"] = true
		return fmt.Sprintf("math.Inf(%+d)", int(math.Copysign(1, x)))
	case x == 0 && math.Signbit(x):
		f.w.imports["math"] = true
		return "math.Copysign(0, -1)"
	}
	return strconv.FormatFloat(x, 'g', -1, 64)
}

// list returns the name of the package variable that is initialised with text, and declares
// it if there is none yet.
func (w *writer) list(text string) string {
	if name, ok := w.literals[text]; ok {
		return name
	}
	if w.literals == nil {
		w.literals = map[string]string{}
	}
	name := fmt.Sprintf("%s%s%d", camel(w.name, false), w.listName, len(w.literals)+1)
	w.literals[text] = name
	fmt.Fprintf(&w.lists, "var %s = %s\n\n", name, text)
	return name
}
