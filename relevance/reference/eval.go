// Package reference scores one record at a time by walking the expressions of
// a spec, as plainly as their definitions can be written, and makes random
// specs and records. Tests compare the scores of the interpreter and of generated code with
// its scores; nothing that serves imports it.
package reference

import (
	"math"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/trees"
)

// Question is what a record is scored for.
type Question struct {
	Rows   *column.Slab
	Row    int          // of Rows, the record
	Entity *column.Slab // the entity's features, one row; nil: there are none
	Object *column.Slab // the features of the record's object, likewise
	Viewer *millrace.Viewer
	AsOf   millrace.Time
	model  *relevance.Model
}

// score scores one row by a forest.
func score(f *trees.Forest, row []float64) float64 {
	var s trees.Scores
	m, out := f.Matrix(), [1]float64{}
	for c, x := range row {
		m[c*trees.Block] = x
	}
	f.Score(&s, m, 1, out[:])
	return out[0]
}

// Score returns the score of a record, the record that q.Row is.
func Score(m *relevance.Model, q Question) float64 {
	q.model = m
	params := m.Parameters()
	if params.Forest != nil {
		var row []float64
		for _, f := range m.Spec().Features {
			v := q.eval(f.Tree)
			if b, ok := v.(bool); ok {
				v = compute.Bool(b)
			}
			row = append(row, v.(float64))
		}
		return score(params.Forest, row)
	}
	// The terms that depend on the record alone take turns over four sums (own). Terms that
	// depend on neither the record nor features are one sum, with the bias (fixed). All other
	// terms take turns over four sums, too (rest).
	var own, rest [4][]float64
	fixed := []float64{params.Bias}
	owns, rests := 0, 0
	for _, f := range m.Spec().Features {
		x := q.contribution(params.Weights[f.Name], q.eval(f.Tree))
		switch record, request, entity := speaksOf(f.Tree); {
		case !record && !entity:
			fixed = append(fixed, x)
		case !request && !entity:
			own[owns%4] = append(own[owns%4], x)
			owns++
		default:
			rest[rests%4] = append(rest[rests%4], x)
			rests++
		}
	}
	score := total(total(fourSums(own), fixed), fourSums(rest))[0]
	if m.Spec().Scorer() == "logistic" {
		score = 1 / (1 + compute.Exp(-score))
	}
	return compute.Score(score)
}

// fourSums adds up four lists as a score does: (0 + 1) + (2 + 3). It returns one number, or
// none.
func fourSums(s [4][]float64) []float64 {
	return total(total(s[0], s[1]), total(s[2], s[3]))
}

// total adds up each list from its first element on, and then adds both sums. It returns a
// list of the result, so that an empty list does not count as 0; nil if both are empty.
func total(a, b []float64) []float64 {
	x, y := added(a), added(b)
	switch {
	case len(x) == 0:
		return y
	case len(y) == 0:
		return x
	}
	return []float64{x[0] + y[0]}
}

// added returns the sum of a list as a list of one number; nil if the list is empty.
func added(list []float64) []float64 {
	if len(list) == 0 {
		return nil
	}
	sum := list[0]
	for _, x := range list[1:] {
		sum += x
	}
	return []float64{sum}
}

// contribution returns what a feature of value v adds to the score: v times its weight, or
// what the weight's table has for v; 0 if the table has nothing.
func (q *Question) contribution(w relevance.Weight, v any) float64 {
	if b, ok := v.(bool); ok {
		v = compute.Bool(b)
	}
	if w.Table == nil {
		return float64(w.Scalar * v.(float64))
	}
	if x := inTable(*w.Table, v); !math.IsNaN(x) {
		return x
	}
	return 0
}

// inTable returns what a table has for a key; NaN if it has nothing.
func inTable(t relevance.Table, key any) float64 {
	switch key := key.(type) {
	case string:
		if x, ok := t.Strings[key]; ok {
			return x
		}
	case float64:
		for i, k := range t.Numbers {
			if k == key {
				return t.Values[i]
			}
		}
	}
	return math.NaN()
}

// speaksOf reports whether an expression reads the record, the request (viewer or instant),
// and features (of the entity or of the object, both as entity).
func speaksOf(n *expr.Node) (record, request, entity bool) {
	record = n.Op == expr.Record
	entity = n.Op == expr.Entity || n.Op == expr.Object
	request = n.Op == expr.Viewer || n.Op == expr.AsOf || n.Op == expr.Call && n.Name == "age"
	for _, a := range n.Args {
		r, v, e := speaksOf(a)
		record, request, entity = record || r, request || v, entity || e
	}
	return record, request, entity
}

// eval returns a float64, bool, string, []float64 or []string.
func (q *Question) eval(n *expr.Node) any {
	switch n.Op {
	case expr.Const:
		if i, ok := n.Value.(int64); ok {
			return float64(i)
		}
		return n.Value
	case expr.Record:
		return q.field(n, q.Rows, q.Row)
	case expr.Entity:
		return q.field(n, q.Entity, 0)
	case expr.Object:
		return q.field(n, q.Object, 0)
	case expr.Viewer:
		if x, ok := q.viewer(n.Name); ok {
			return x
		}
		return missing(n.Type)
	case expr.AsOf:
		return float64(q.AsOf)
	case expr.Not:
		return !q.bool(n.Args[0])
	case expr.And:
		for _, a := range n.Args {
			if !q.bool(a) {
				return false
			}
		}
		return true
	case expr.Or:
		for _, a := range n.Args {
			if q.bool(a) {
				return true
			}
		}
		return false
	case expr.Cond:
		if q.bool(n.Args[0]) {
			return q.eval(n.Args[1])
		}
		return q.eval(n.Args[2])
	case expr.Neg:
		return -q.num(n.Args[0])
	case expr.Add:
		return q.num(n.Args[0]) + q.num(n.Args[1])
	case expr.Sub:
		return q.num(n.Args[0]) - q.num(n.Args[1])
	case expr.Mul:
		return float64(q.num(n.Args[0]) * q.num(n.Args[1]))
	case expr.Div:
		return q.num(n.Args[0]) / q.num(n.Args[1])
	case expr.In:
		return contains(q.eval(n.Args[1]), q.eval(n.Args[0]))
	case expr.Has:
		return q.has(n.Args[0])
	case expr.Call:
		return q.call(n)
	}
	return compare(n.Op, q.eval(n.Args[0]), q.eval(n.Args[1]))
}

func (q *Question) num(n *expr.Node) float64 { return q.eval(n).(float64) }
func (q *Question) bool(n *expr.Node) bool   { return q.eval(n).(bool) }
func (q *Question) viewer(name string) (any, bool) {
	if q.Viewer == nil {
		return nil, false
	}
	return q.Viewer.Value(name)
}

// missing returns the value of a type that stands for a missing one.
func missing(t expr.Type) any {
	switch t {
	case expr.Bool:
		return false
	case expr.String:
		return ""
	case expr.Doubles:
		return []float64(nil)
	case expr.Strings:
		return []string(nil)
	}
	return math.NaN()
}

// column returns the column of a field, or of a role that records of any schema have; -1 if
// there is none.
func (q *Question) column(n *expr.Node, s *column.Slab) int {
	if s == nil {
		return -1
	}
	if c := s.Layout().Index(n.Name); c >= 0 && !holds(s.Layout().Fields()[c].Kind, n.Type) {
		return -1 // the field has another type in this schema
	} else if c >= 0 {
		return c
	}
	if n.Op == expr.Record {
		return s.Layout().Role(n.Name)
	}
	return -1
}

// holds reports whether a column has values of a type.
func holds(k column.Kind, t expr.Type) bool {
	switch t {
	case expr.Bool:
		return k == column.Bool
	case expr.String:
		return k == column.String
	case expr.Doubles:
		return k == column.Doubles
	case expr.Strings:
		return k == column.Strings
	}
	return k == column.Int || k == column.Time || k == column.Double
}

// field returns the value of a field in a row; missing if the slab has no such field of that
// type, or if it is null.
func (q *Question) field(n *expr.Node, s *column.Slab, row int) any {
	c := q.column(n, s)
	if c < 0 || s.Null(c, row) {
		return missing(n.Type)
	}
	w := s.Word(c, row)
	switch s.Layout().Fields()[c].Kind {
	case column.Bool:
		return w != 0
	case column.Double:
		return math.Float64frombits(w)
	case column.String:
		return s.String(w)
	case column.Doubles:
		return s.Doubles(nil, w)
	case column.Strings:
		return s.Strings(nil, w)
	}
	return float64(int64(w))
}

// has reports whether the viewer has a value, or whether a field is there and not null.
func (q *Question) has(n *expr.Node) bool {
	s, row := q.Rows, q.Row
	switch n.Op {
	case expr.Viewer:
		_, ok := q.viewer(n.Name)
		return ok
	case expr.Entity:
		s, row = q.Entity, 0
	case expr.Object:
		s, row = q.Object, 0
	}
	c := q.column(n, s)
	return c >= 0 && !s.Null(c, row)
}

func contains(list, x any) bool {
	if l, ok := list.([]string); ok {
		return slices.Contains(l, x.(string))
	}
	return slices.Contains(list.([]float64), x.(float64))
}

// compare returns the result of a comparison. Booleans can only be equal or not.
func compare(op expr.Op, a, b any) bool {
	switch a := a.(type) {
	case float64:
		return order(op, a, b.(float64))
	case string:
		return order(op, a, b.(string))
	}
	return (a == b) == (op == expr.Eq)
}

func order[T float64 | string](op expr.Op, a, b T) bool {
	switch op {
	case expr.Eq:
		return a == b
	case expr.Ne:
		return a != b
	case expr.Lt:
		return a < b
	case expr.Le:
		return a <= b
	case expr.Gt:
		return a > b
	}
	return a >= b
}

// call returns the result of a function of the expression language.
func (q *Question) call(n *expr.Node) any {
	a := func(i int) float64 { return q.num(n.Args[i]) }
	list := func(i int) []float64 { return q.eval(n.Args[i]).([]float64) }
	str := func(i int) string { return q.eval(n.Args[i]).(string) }
	switch n.Name {
	case "log1p":
		return compute.Log1p(a(0))
	case "exp":
		return compute.Exp(a(0))
	case "sqrt":
		return compute.Sqrt(a(0))
	case "abs":
		return compute.Abs(a(0))
	case "pow":
		return compute.Pow(a(0), a(1))
	case "min", "max":
		x := a(0)
		for i := range n.Args[1:] {
			if n.Name == "min" {
				x = compute.Min(x, a(i+1))
			} else {
				x = compute.Max(x, a(i+1))
			}
		}
		return x
	case "clamp":
		return compute.Clamp(a(0), a(1), a(2))
	case "bucketize":
		return compute.Bucketize(a(0), list(1))
	case "age":
		return compute.Age(a(0), float64(q.AsOf))
	case "decay":
		return compute.Decay(a(0), a(1))
	case "item":
		list, i := q.eval(n.Args[0]).([]float64), int(q.num(n.Args[1]))
		if i >= len(list) {
			return math.NaN()
		}
		return list[i]
	case "dot":
		return compute.Dot(list(0), list(1))
	case "cosine":
		return compute.Cosine(list(0), list(1))
	case "l2":
		return compute.L2(list(0), list(1))
	case "cross":
		joined := q.text(n.Args[0]) + "|" + q.text(n.Args[1])
		if len(joined) > 1538 { // compute.MaxCrossBytes
			return ""
		}
		return joined
	case "startsWith":
		return strings.HasPrefix(str(0), str(1))
	case "endsWith":
		return strings.HasSuffix(str(0), str(1))
	case "contains":
		return strings.Contains(str(0), str(1))
	case "size":
		return size(q.eval(n.Args[0]))
	case "coalesce":
		return q.coalesce(n)
	case "lookup":
		x := q.lookup(n.Args[0], q.eval(n.Args[1]))
		if math.IsNaN(x) {
			return a(2)
		}
		return x
	}
	panic("reference: no function " + n.Name)
}

// text returns an argument of cross as text.
func (q *Question) text(n *expr.Node) string {
	if s, ok := q.eval(n).(string); ok {
		return s
	}
	return string(compute.AppendNumber(nil, q.num(n)))
}

func size(v any) float64 {
	switch v := v.(type) {
	case string:
		return float64(len([]rune(v)))
	case []float64:
		return float64(len(v))
	}
	return float64(len(v.([]string)))
}

func (q *Question) coalesce(n *expr.Node) any {
	v := q.eval(n.Args[0])
	if x, ok := v.(float64); ok && math.IsNaN(x) || v == "" {
		return q.eval(n.Args[1])
	}
	return v
}

func (q *Question) lookup(t *expr.Node, key any) float64 {
	m, ok := t.Value.(*expr.MapValue)
	if !ok {
		return inTable(q.model.Parameters().Tables[t.Name], key)
	}
	table := relevance.Table{Numbers: m.Doubles, Values: m.Values}
	if m.Strings != nil {
		table.Strings = map[string]float64{}
		for i, k := range m.Strings {
			table.Strings[k] = m.Values[i]
		}
	}
	return inTable(table, key)
}
