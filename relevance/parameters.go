package relevance

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/internal/expr"
	"github.com/millrace/millrace/relevance/plan"
	"github.com/millrace/millrace/relevance/trees"
)

// Parameters are the numbers of a model that training decides. They are data: to change
// them needs no build of code.
type Parameters struct {
	Bias    float64
	Weights map[string]Weight // by the name of the feature
	Tables  map[string]Table  // the tables for lookup in expressions, by name
	Forest  *trees.Forest     // the trees of the scorer trees; nil: the model has another scorer
	at      map[string]pos    // where each weight stands in the spec, by the name of the feature
}

// Weight says what a feature adds to a linear score. It is a number, by which the
// feature's value is multiplied, or a table, which has what each value of the feature
// adds.
type Weight struct {
	Scalar float64
	Table  *Table // nil: Scalar is the weight
}

// Table maps strings or numbers to numbers.
type Table struct {
	Strings map[string]float64 // the values by string; nil: the keys are numbers
	Numbers []float64          // the keys that are numbers, ascending
	Values  []float64          // one for each of Numbers
}

func (t *Table) kind() plan.Kind {
	if t.Strings != nil {
		return plan.String
	}
	return plan.Number
}

// compile returns the table in the form for look-ups; missing is the value of an unknown
// key.
func (t *Table) compile(missing float64) *compute.Table {
	if t.Strings != nil {
		return compute.StringTable(t.Strings, missing)
	}
	return compute.NumberTable(t.Numbers, t.Values, missing)
}

// parameterKeys are the keys of the mapping of parameters.
var parameterKeys = []string{"bias", "weights", "tables"}

// readParameters reads the parameters in the spec, or in the file beside it
// that the spec names.
func (r *specReader) readParameters(n *document.Node) Parameters {
	if n == nil || n.Kind != document.String {
		return r.parameters(r.mapping(n, "parameters"))
	}
	name := r.text(n, "parameters")
	if r.open == nil {
		r.add(r.position(n), "read the spec from its directory", "the file %s cannot be read from here", name)
		return r.parameters(nil)
	}
	src, err := r.open(name)
	if err != nil {
		r.add(r.position(n), "name a file beside the spec", "%v", err)
		return r.parameters(nil)
	}
	other := *r
	other.specFile = specFile{r.problems, newSource(name, src), src}
	return other.parameters(other.specFile.read())
}

// parameters reads the entries of the mapping of parameters.
func (r *specReader) parameters(entries []entry) Parameters {
	p := Parameters{Weights: map[string]Weight{}, Tables: map[string]Table{}, at: map[string]pos{}}
	for _, e := range entries {
		switch e.key {
		case "bias":
			p.Bias = r.number(e.value, "the bias")
		case "weights":
			for _, w := range r.mapping(e.value, "weights") {
				p.at[w.key] = w.at
				p.Weights[w.key] = r.weight(w)
			}
		case "tables":
			for _, t := range r.mapping(e.value, "tables") {
				if !featureRule.MatchString(t.key) {
					r.add(t.at, "use letters, digits and _", "%q is not a table's name", t.key)
					continue
				}
				p.Tables[t.key] = r.table(t.value, "table "+t.key)
			}
		default:
			r.add(e.at, nearest(e.key, parameterKeys), "parameters have no %s", e.key)
		}
	}
	return p
}

func (r *specReader) weight(e entry) Weight {
	switch e.value.Kind {
	case document.List, document.Mapping:
		t := r.table(e.value, "the weight of "+e.key)
		return Weight{Table: &t}
	}
	return Weight{Scalar: r.number(e.value, "the weight of "+e.key)}
}

// table reads a table: a mapping with keys that are strings or numbers, or a list, for
// which the keys are 0, 1, 2 and so on. what is the table in messages.
func (r *specReader) table(n *document.Node, what string) Table {
	var t Table
	if n.Kind == document.List {
		for i, x := range r.list(n, what) {
			t.Numbers = append(t.Numbers, float64(i))
			t.Values = append(t.Values, r.number(x, what))
		}
		return t
	}
	entries := r.mapping(n, what)
	if len(entries) == 0 {
		r.add(r.position(n), "", "%s is empty", what)
		return t
	}
	if _, numeric := number(entries[0].key); !numeric {
		t.Strings = map[string]float64{}
	}
	var from []entry // the entries that t.Numbers come from, in the same order
	for _, e := range entries {
		v := r.number(e.value, what)
		if t.Strings != nil {
			t.Strings[e.key] = v
			continue
		}
		k, numeric := number(e.key)
		if !numeric {
			r.add(e.at, "keys are all numbers or all strings", "the key %q of %s is not a number as the first is", e.key, what)
			continue
		}
		t.Numbers, t.Values, from = append(t.Numbers, k), append(t.Values, v), append(from, e)
	}
	if t.Strings == nil {
		r.order(&t, from, what)
	}
	return t
}

// order sorts a table with number keys, and notes a problem for each key that stands
// twice. from has the entry of each key; what is the table in messages.
func (r *specReader) order(t *Table, from []entry, what string) {
	at := make([]int, len(t.Numbers))
	for i := range at {
		at[i] = i
	}
	slices.SortStableFunc(at, func(i, j int) int { return cmp.Compare(t.Numbers[i], t.Numbers[j]) })
	numbers, values := make([]float64, 0, len(at)), make([]float64, 0, len(at))
	for _, i := range at {
		if last := len(numbers) - 1; last >= 0 && numbers[last] == t.Numbers[i] {
			r.add(from[i].at, "remove one", "the key %s of %s stands twice", from[i].key, what)
			continue
		}
		numbers, values = append(numbers, t.Numbers[i]), append(values, t.Values[i])
	}
	t.Numbers, t.Values = numbers, values
}

// number reads a key as a finite number; false if the key is no such number.
func number(key string) (float64, bool) {
	x, err := strconv.ParseFloat(key, 64)
	return x, err == nil && !math.IsNaN(x) && !math.IsInf(x, 0)
}

// tableTypes returns the types of the keys of the named tables, which expressions are
// checked with.
func (p *Parameters) tableTypes() map[string]expr.Type {
	types := map[string]expr.Type{}
	for name, t := range p.Tables {
		types[name] = expr.Double
		if t.kind() == plan.String {
			types[name] = expr.String
		}
	}
	return types
}

// weights checks that each feature has a weight that fits. It sets, in the spec's source,
// the index of each weight in the lists that compile returns.
func (r *specReader) weights(p *Parameters) {
	s := r.spec
	src := &s.source
	r.namedTables(p)
	features := make([]string, len(s.Features))
	scalars := 1 // the bias is the first
	for i, f := range s.Features {
		features[i] = f.Name
		w, ok := p.Weights[f.Name]
		if !ok {
			r.add(f.at, "add it under parameters: weights:", "the feature %s has no weight", f.Name)
			continue
		}
		r.fits(&f, w, p.at[f.Name])
		pw := plan.Weight{Table: w.Table != nil, Index: scalars}
		if pw.Table {
			pw.Index = len(src.Tables)
			src.Tables = append(src.Tables, plan.Var{Name: "weight of " + f.Name, Kind: w.Table.kind()})
		} else {
			scalars++
		}
		src.Weights = append(src.Weights, pw)
	}
	for name := range p.Weights {
		if _, ok := r.byName[name]; !ok {
			r.add(p.at[name], nearest(name, features), "a weight for %s, which is not a feature", name)
		}
	}
}

// namedTables sets, in the spec's source, the order of the tables that expressions look
// into: the named ones by name, and then those written in the expressions.
func (r *specReader) namedTables(p *Parameters) {
	s, src := r.spec, &r.spec.source
	for name, t := range p.Tables {
		src.Tables = append(src.Tables, plan.Var{Name: name, Kind: t.kind()})
	}
	slices.SortFunc(src.Tables, func(a, b plan.Var) int { return strings.Compare(a.Name, b.Name) })
	for _, l := range s.tables {
		kind := plan.Number
		if l.value.Strings != nil {
			kind = plan.String
		}
		src.Tables = append(src.Tables, plan.Var{Name: l.name, Kind: kind})
	}
}

// fits notes a problem if a weight does not go with the type of its feature.
func (r *specReader) fits(f *Feature, w Weight, at pos) {
	if f.Tree == nil {
		return
	}
	kind, err := featureKind(f.Tree.Type)
	switch {
	case err != nil:
		r.add(f.at, "", "%s: %v", f.Name, err)
	case kind == plan.String && w.Table == nil:
		r.add(at, "write a weight for each value, such as {post: 1.0, share: 0.5}", "%s is a string, and its weight is one number", f.Name)
	case w.Table != nil && w.Table.kind() != kind:
		r.add(at, "", "%s is a %s, and its weights are by %s", f.Name, kind, w.Table.kind())
	}
}

// compile returns the parameters as the lists that plans of the spec index. weights[0] is
// the bias.
func (s *Spec) compile(p *Parameters) (weights []float64, tables []*compute.Table) {
	weights = []float64{p.Bias}
	if s.source.Scorer == plan.Trees {
		return weights, s.expressionTables(p)
	}
	for i, f := range s.Features {
		if !s.source.Weights[i].Table {
			weights = append(weights, p.Weights[f.Name].Scalar)
		}
	}
	tables = s.expressionTables(p)
	for i, f := range s.Features {
		if s.source.Weights[i].Table {
			tables = append(tables, p.Weights[f.Name].Table.compile(0))
		}
	}
	return weights, tables
}

// expressionTables returns the tables that expressions look into, in the order of
// namedTables.
func (s *Spec) expressionTables(p *Parameters) (tables []*compute.Table) {
	for _, v := range s.source.Tables {
		if t, ok := p.Tables[v.Name]; ok {
			tables = append(tables, t.compile(compute.Missing))
		}
	}
	for _, l := range s.tables {
		t := Table{Numbers: l.value.Doubles, Values: l.value.Values}
		if l.value.Strings != nil {
			t.Strings = map[string]float64{}
			for i, k := range l.value.Strings {
				t.Strings[k] = l.value.Values[i]
			}
		}
		tables = append(tables, t.compile(compute.Missing))
	}
	return tables
}

// String returns a weight as a spec writes it.
func (w Weight) String() string {
	if w.Table != nil {
		return w.Table.String()
	}
	return fmt.Sprint(w.Scalar)
}

// Number returns a weight for JSON: a float64, or, for a table, a map[string]float64 by
// its keys.
func (w Weight) Number() any {
	if w.Table == nil {
		return w.Scalar
	}
	all := maps.Clone(w.Table.Strings)
	if all == nil {
		all = map[string]float64{}
	}
	for i, k := range w.Table.Numbers {
		all[fmt.Sprint(k)] = w.Table.Values[i]
	}
	return all
}

// String returns a table as a spec writes it, with the keys ascending.
func (t Table) String() string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(t.Strings)) {
		parts = append(parts, fmt.Sprintf("%s: %v", k, t.Strings[k]))
	}
	for i, k := range t.Numbers {
		parts = append(parts, fmt.Sprintf("%v: %v", k, t.Values[i]))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}
