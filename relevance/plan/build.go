package plan

import (
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
)

// Source is the spec of a model, checked, in the form that a plan is built from.
type Source struct {
	Features []Feature
	Viewer   []Var    // sorted by name
	Tables   []Var    // sorted by name, and after these the tables that are weights
	Weights  []Weight // by feature; nil with trees
	Scorer   Scorer
	// Roles has each NAME for which record.NAME means the field with the role NAME, since
	// no schema of the spec has a field called NAME.
	Roles map[string]bool
}

// Feature is a feature of a spec.
type Feature struct {
	Name string
	Expr *expr.Node
}

// Weight is what makes a feature's contribution: a scalar parameter, by which the feature is
// multiplied, or a table, in which the feature is the key of the contribution.
type Weight struct {
	Table bool
	Index int // of the parameter or table
}

// Build plans src for records of the layout rows and entity features of the layout entity.
// entity is nil if there are none. The error reports every expression that cannot be planned.
func Build(src *Source, rows, entity *column.Layout) (*Plan, error) {
	return Join([]*Source{src}, rows, entity)
}

// builder builds a plan, model after model. Its methods that return an int return the index
// of a value in p.Values.
type builder struct {
	src          *Source // of the model that is being added
	rows, entity *column.Layout
	p            *Plan
	out          *Output        // of the model that is being added
	params       int            // how many parameters the models before it have
	tables       []int          // for each table of src, its place in p.Tables
	seen         map[string]int // values by their text; see add
	errs         []error
}

// model adds the features and the score of model i.
func (b *builder) model(i int, src *Source) Output {
	out := Output{Scorer: src.Scorer, Own: -1, Score: -1}
	b.src, b.out = src, &out
	b.inputs(i)
	for i, f := range src.Features {
		v := b.lower(f.Expr)
		if b.p.Values[v].Kind == Bool {
			v = b.add(Value{Op: ToNumber, Kind: Number, Args: []int{v}})
		}
		out.Terms = append(out.Terms, Term{Feature: f.Name, At: i, Value: v, Contribution: -1, Sum: -1})
	}
	if src.Scorer != Trees {
		b.sum()
	}
	b.params += src.params()
	return out
}

// sum adds up the terms of a linear score in its three parts; see [Part]. A linear score is
// defined as this sum in this order. So a part that is computed beforehand, for a record or
// a request, gives the same bits.
func (b *builder) sum() {
	var sums [3][Lanes]int
	for part := range sums {
		sums[part] = [Lanes]int{-1, -1, -1, -1}
	}
	sums[FixedPart][0] = b.param(0)
	var count [3]int
	for i := range b.out.Terms {
		t := &b.out.Terms[i]
		t.Contribution = b.contribution(t.Value, b.src.Weights[i])
		t.Part = PartOf(b.src.Features[i].Expr)
		if t.Part != FixedPart {
			t.Lane = count[t.Part] % Lanes
			count[t.Part]++
		}
		lane := &sums[t.Part][t.Lane]
		*lane = b.plus(*lane, t.Contribution)
		t.Sum = *lane
	}
	var parts [3]int
	for part, s := range sums {
		parts[part] = b.plus(b.plus(s[0], s[1]), b.plus(s[2], s[3]))
	}
	b.out.Own = parts[OwnPart]
	b.p.Weights = b.params + b.src.params()
	score := b.plus(b.plus(parts[OwnPart], parts[FixedPart]), parts[RestPart])
	if b.src.Scorer == Logistic {
		score = b.add(Value{Op: Call, Kind: Number, Name: "sigmoid", Args: []int{score}})
	}
	b.out.Score = score
}

// plus adds two sums; -1 is a sum without terms.
func (b *builder) plus(x, y int) int {
	switch {
	case x < 0:
		return y
	case y < 0:
		return x
	}
	return b.op(Add, Number, x, y)
}

// param returns parameter i of the model that is being added; 0 is its bias.
func (b *builder) param(i int) int {
	return b.add(Value{Op: Param, Kind: Number, Index: b.params + i, Deps: Request})
}

// PartOf returns the part of a linear score that a feature with this expression adds to.
func PartOf(n *expr.Node) Part {
	switch d := reads(n); {
	case d&(Record|Entity) == 0:
		return FixedPart
	case d == Record:
		return OwnPart
	}
	return RestPart
}

// reads returns what an expression names, including fields that the layout lacks, since the
// order of a sum must be the same for every layout. The features of an object count as the
// entity's: they change while the record stays, so that they cannot be in the own part.
func reads(n *expr.Node) Deps {
	var d Deps
	switch n.Op {
	case expr.Record:
		d = Record
	case expr.Entity, expr.Object:
		d = Entity
	case expr.Viewer, expr.AsOf, expr.Table:
		d = Request
	}
	if n.Op == expr.Call && n.Name == "age" && len(n.Args) == 1 {
		d = Request
	}
	for _, a := range n.Args {
		d |= reads(a)
	}
	if n.Op == expr.Call && n.Name == "lookup" {
		d &^= Request // a table is a parameter, as a weight is
		for _, a := range n.Args[1:] {
			d |= reads(a)
		}
	}
	return d
}

// contribution returns what a feature with weight w adds to the score.
func (b *builder) contribution(feature int, w Weight) int {
	if w.Table {
		return b.add(Value{Op: Lookup, Kind: Number, Index: b.tables[w.Index], Args: []int{feature}})
	}
	return b.op(Mul, Number, b.param(w.Index), feature)
}

func (b *builder) op(op Op, kind Kind, args ...int) int {
	return b.add(Value{Op: op, Kind: kind, Args: args})
}

func (b *builder) constant(c any) int {
	kind := Number
	switch c.(type) {
	case bool:
		kind = Bool
	case string:
		kind = String
	case []float64:
		kind = Numbers
	case []string:
		kind = Strings
	}
	return b.add(Value{Op: Const, Kind: kind, Const: c})
}

// add appends v, and returns its index. If there is a value already that computes the
// same, it returns that one. If all arguments are constants, it computes v now and adds
// the result as a constant.
func (b *builder) add(v Value) int {
	constant := len(v.Args) > 0 && v.Op != Lookup
	for _, a := range v.Args {
		v.Deps |= b.p.Values[a].Deps
		constant = constant && b.p.Values[a].Op == Const
	}
	if v.Op == Lookup {
		v.Deps |= Request
	}
	if constant {
		return b.constant(fold(b.p.Values, &v))
	}
	b.p.Values = append(b.p.Values, v)
	i := len(b.p.Values) - 1
	text := b.p.valueString(i)
	if j, ok := b.seen[text]; ok {
		b.p.Values = b.p.Values[:i]
		return j
	}
	b.seen[text] = i
	return i
}

// errorf notes that n cannot be planned, and returns a missing value in its place, so that
// more errors can be found.
func (b *builder) errorf(n *expr.Node, format string, args ...any) int {
	b.errs = append(b.errs, fmt.Errorf(format, args...))
	return b.zero(kindOf(n.Type))
}

// zero returns the missing value of a kind.
func (b *builder) zero(k Kind) int {
	switch k {
	case Bool:
		return b.constant(false)
	case String:
		return b.constant("")
	case Numbers:
		return b.constant([]float64(nil))
	case Strings:
		return b.constant([]string(nil))
	}
	return b.constant(math.NaN())
}

func kindOf(t expr.Type) Kind {
	switch t {
	case expr.Bool:
		return Bool
	case expr.String:
		return String
	case expr.Doubles:
		return Numbers
	case expr.Strings:
		return Strings
	}
	return Number
}

// fits reports whether a column can be read as a type. A column of any kind of number can be
// read as any type of number.
func fits(c column.Kind, t expr.Type) bool {
	switch c {
	case column.Bool:
		return t == expr.Bool
	case column.String:
		return t == expr.String
	case column.Doubles:
		return t == expr.Doubles
	case column.Strings:
		return t == expr.Strings
	}
	return kindOf(t) == Number
}

// binary is, for each operation of expressions that takes two operands, that of a plan.
var binary = map[expr.Op]Op{
	expr.And: And, expr.Or: Or, expr.Eq: Eq, expr.Ne: Ne, expr.Lt: Lt, expr.Le: Le, expr.Gt: Gt, expr.Ge: Ge,
	expr.Add: Add, expr.Sub: Sub, expr.Mul: Mul, expr.Div: Div,
}

// lower adds the values that compute an expression, and returns the last one.
func (b *builder) lower(n *expr.Node) int {
	switch n.Op {
	case expr.Const:
		return b.literal(n)
	case expr.Record, expr.Entity:
		return b.field(n, false)
	case expr.Object:
		return b.object(n, false)
	case expr.Viewer:
		return b.viewer(n, Input)
	case expr.AsOf:
		return b.add(Value{Op: AsOf, Kind: Number, Deps: Request})
	case expr.And, expr.Or:
		v := b.lower(n.Args[0])
		for _, a := range n.Args[1:] {
			v = b.op(binary[n.Op], Bool, v, b.lower(a))
		}
		return v
	case expr.Not:
		return b.op(Not, Bool, b.lower(n.Args[0]))
	case expr.Neg:
		return b.op(Neg, Number, b.lower(n.Args[0]))
	case expr.Cond:
		return b.op(Select, kindOf(n.Type), b.lower(n.Args[0]), b.lower(n.Args[1]), b.lower(n.Args[2]))
	case expr.In:
		return b.op(In, Bool, b.lower(n.Args[0]), b.lower(n.Args[1]))
	case expr.Has:
		return b.has(n.Args[0])
	case expr.Call:
		return b.call(n)
	}
	if op, ok := binary[n.Op]; ok {
		x, y := b.lower(n.Args[0]), b.lower(n.Args[1])
		if (op == Eq || op == Ne) && b.p.Values[y].Op == Field {
			x, y = y, x // the record's column first, where it is compared in place
		}
		return b.op(op, kindOf(n.Type), x, y)
	}
	return b.errorf(n, "%d:%d: models do not have this operation", n.Line, n.Col)
}

func (b *builder) lowerAll(args []*expr.Node) []int {
	out := make([]int, len(args))
	for i, a := range args {
		out[i] = b.lower(a)
	}
	return out
}

func (b *builder) literal(n *expr.Node) int {
	switch c := n.Value.(type) {
	case int64:
		return b.constant(float64(c))
	case nil:
		return b.constant(math.NaN())
	case bool, float64, string, []float64, []string:
		return b.constant(c)
	}
	return b.errorf(n, "%d:%d: a model cannot hold this constant", n.Line, n.Col)
}

// field loads a field of the record or the entity. If present is true, it asks instead
// whether the field is not null. A field that the layout lacks is missing.
func (b *builder) field(n *expr.Node, present bool) int {
	layout, loads, op, deps := b.rows, &b.p.Record, Field, Record
	if n.Op == expr.Entity {
		layout, loads, op, deps = b.entity, &b.p.Entity, EntField, Entity
	}
	kind := kindOf(n.Type)
	c := -1
	if layout != nil {
		if c = layout.Index(n.Name); n.Op == expr.Record && b.src.Roles[n.Name] {
			c = layout.Role(n.Name)
		}
	}
	if c < 0 || !fits(layout.Fields()[c].Kind, n.Type) { // a field of another type is missing, too
		if present {
			return b.constant(false)
		}
		return b.zero(kind)
	}
	f := layout.Fields()[c]
	v := Value{Op: op, Kind: kind, Index: load(loads, Load{n.Name, c, f.Kind, f.Nullable}), Deps: deps}
	if present {
		// An entity may have no features at all, so that any of its fields can be missing.
		if !f.Nullable && op == Field {
			return b.constant(true)
		}
		v.Op, v.Kind = op+1, Bool
	}
	return b.add(v)
}

// object loads a field of the features of the record's object. If present is true, it asks
// instead whether the field is not null. These features are read in a layout of the
// plan's own, in which every number is a double and any field may be null. So it does not
// matter by which schema they were written.
func (b *builder) object(n *expr.Node, present bool) int {
	kind := kindOf(n.Type)
	l := Load{Name: n.Name, Kind: columnOf[kind], Nullable: true}
	for _, x := range b.p.Object {
		if x.Name == l.Name && x.Kind != l.Kind {
			return b.errorf(n, "object.%s: one model reads a %s, another a %s", n.Name, x.Kind, l.Kind)
		}
	}
	v := Value{Op: ObjField, Kind: kind, Index: load(&b.p.Object, l), Deps: Record}
	if present {
		v.Op, v.Kind = HasObj, Bool
	}
	return b.add(v)
}

// columnOf is the kind of column in which a plan reads a field of objects of a kind.
var columnOf = [...]column.Kind{Number: column.Double, Bool: column.Bool, String: column.String, Numbers: column.Doubles, Strings: column.Strings}

// load returns the index of l in loads. It adds l if loads does not have it.
func load(loads *[]Load, l Load) int {
	for i, x := range *loads {
		if x == l {
			return i
		}
	}
	*loads = append(*loads, l)
	return len(*loads) - 1
}

func (b *builder) viewer(n *expr.Node, op Op) int {
	for _, v := range b.src.Viewer {
		if v.Name != n.Name {
			continue
		}
		kind := v.Kind
		if op == HasInput {
			kind = Bool
		}
		return b.add(Value{Op: op, Kind: kind, Index: slices.Index(b.p.Viewer, v), Deps: Request})
	}
	return b.errorf(n, "%d:%d: viewer.%s is not declared", n.Line, n.Col, n.Name)
}

func (b *builder) has(n *expr.Node) int {
	switch n.Op {
	case expr.Record, expr.Entity:
		return b.field(n, true)
	case expr.Object:
		return b.object(n, true)
	}
	return b.viewer(n, HasInput)
}

func (b *builder) call(n *expr.Node) int {
	switch n.Name {
	case "lookup":
		return b.lookup(n)
	case "coalesce":
		return b.coalesce(n.Args)
	case "item":
		i, _ := n.Args[1].Value.(float64)
		return b.add(Value{Op: Item, Kind: Number, Args: []int{b.lower(n.Args[0])}, Index: int(i)})
	case "cross":
		v := b.text(n.Args[0])
		for _, a := range n.Args[1:] {
			v = b.op(Cross, String, v, b.text(a))
		}
		return v
	case "size":
		return b.op(Size, Number, b.lower(n.Args[0]))
	case "age":
		if len(n.Args) == 1 {
			now := b.add(Value{Op: AsOf, Kind: Number, Deps: Request})
			return b.add(Value{Op: Call, Kind: Number, Name: "age", Args: []int{b.lower(n.Args[0]), now}})
		}
	}
	f, ok := Funcs[n.Name]
	if !ok {
		return b.errorf(n, "%d:%d: models do not have the function %s", n.Line, n.Col, n.Name)
	}
	args := b.lowerAll(n.Args)
	if f.folds() && len(args) > 2 {
		return b.reduce(n.Name, args)
	}
	if err := f.check(b.p, args); err != nil {
		return b.errorf(n, "%d:%d: %s: %v", n.Line, n.Col, n.Name, err)
	}
	return b.add(Value{Op: Call, Kind: f.Result, Name: n.Name, Args: args})
}

// text lowers a part of a cross, in which a number is written as its digits.
func (b *builder) text(n *expr.Node) int {
	v := b.lower(n)
	if b.p.Values[v].Kind == Number {
		return b.op(Text, String, v)
	}
	return v
}

// reduce makes min(min(a, b), c) of min(a, b, c).
func (b *builder) reduce(name string, args []int) int {
	v := args[0]
	for _, a := range args[1:] {
		v = b.add(Value{Op: Call, Kind: Number, Name: name, Args: []int{v, a}})
	}
	return v
}

func (b *builder) lookup(n *expr.Node) int {
	t := n.Args[0]
	name := t.Name
	if t.Op == expr.Const {
		name = LiteralTable(t)
	}
	for i, x := range b.src.Tables {
		if x.Name != name {
			continue
		}
		v := b.add(Value{Op: Lookup, Kind: Number, Index: b.tables[i], Args: []int{b.lower(n.Args[1])}})
		for _, a := range n.Args[2:] {
			v = b.add(Value{Op: Call, Kind: Number, Name: "coalesce", Args: []int{v, b.lower(a)}})
		}
		return v
	}
	return b.errorf(n, "%d:%d: no table %s", n.Line, n.Col, name)
}

// LiteralTable returns the name of the table that a map literal becomes. Equal literals
// have the same name.
func LiteralTable(n *expr.Node) string {
	m, _ := n.Value.(*expr.MapValue)
	return fmt.Sprintf("%q %v %v", m.Strings, m.Doubles, m.Values)
}

// coalesce lowers the function that returns the first value that is not missing.
func (b *builder) coalesce(args []*expr.Node) int {
	v := b.lower(args[0])
	if len(args) == 1 {
		return v
	}
	rest := b.coalesce(args[1:])
	if kind := b.p.Values[v].Kind; kind != Number {
		return b.op(Select, kind, b.op(Present, Bool, v), v, rest)
	}
	if b.always(v) {
		return v
	}
	return b.add(Value{Op: Call, Kind: Number, Name: "coalesce", Args: []int{v, rest}})
}

func (b *builder) always(v int) bool { return b.p.Always(v) }

// Always reports whether the number of value v is always whole, never missing and never -0,
// as integers are. It may report false although that is so.
func (p *Plan) Always(v int) bool {
	x := &p.Values[v]
	switch x.Op {
	case Field:
		l := &p.Record[x.Index]
		return !l.Nullable && l.Kind != column.Double
	case Const:
		c, ok := x.Const.(float64)
		return ok && c == math.Floor(c) && math.Abs(c) < 1<<53 && (c != 0 || !math.Signbit(c))
	case Call:
		return (x.Name == "max" || x.Name == "min") && p.Always(x.Args[0]) && p.Always(x.Args[1])
	}
	return false
}

// prune drops the values that nothing uses, such as the arguments of a value that was
// computed beforehand, and the loads that only such values read.
func (p *Plan) prune() *Plan {
	used := make([]bool, len(p.Values))
	var mark func(int)
	mark = func(i int) {
		if i < 0 || used[i] {
			return
		}
		used[i] = true
		for _, a := range p.Values[i].Args {
			mark(a)
		}
	}
	for _, o := range p.Outputs() {
		for _, t := range o.Terms {
			mark(t.Value)
			mark(t.Contribution)
		}
		mark(o.Score)
	}
	to := make([]int, len(p.Values))
	var values []Value
	for i, v := range p.Values {
		if !used[i] {
			continue
		}
		for k, a := range v.Args {
			v.Args[k] = to[a]
		}
		to[i] = len(values)
		values = append(values, v)
	}
	p.Values = values
	at := func(i *int) {
		if *i >= 0 {
			*i = to[*i]
		}
	}
	for _, o := range p.Outputs() {
		for i := range o.Terms {
			at(&o.Terms[i].Value)
			at(&o.Terms[i].Contribution)
			at(&o.Terms[i].Sum)
		}
		at(&o.Own)
		at(&o.Score)
	}
	p.Record = p.keep(p.Record, Field)
	p.Entity = p.keep(p.Entity, EntField)
	p.Object = p.keep(p.Object, ObjField)
	return p
}

// keep drops the loads that no value reads, and renumbers the rest.
func (p *Plan) keep(loads []Load, op Op) []Load {
	var out []Load
	to := map[int]int{}
	for i := range p.Values {
		v := &p.Values[i]
		if v.Op != op && v.Op != op+1 {
			continue
		}
		if _, ok := to[v.Index]; !ok {
			to[v.Index] = len(out)
			out = append(out, loads[v.Index])
		}
		v.Index = to[v.Index]
	}
	return out
}
