package modelpack

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
)

// Workload has a model score the records of golden rows, to measure what that costs. Rows
// with the same schema, viewer and entity are scored together, each several times.
type Workload struct {
	Records int // how many records a call of Score scores
	parts   []part
}

// part is what one call of the scorer scores.
type part struct {
	scorer *relevance.Scorer
	rows   *column.Slab
	entity *column.Slab
	sel    []int32
	out    []float64
}

// leastOfPart is how many records a part has at least: as many as the interpreter
// takes at a time.
const leastOfPart = 64

// NewWorkload returns a Workload of about as many records as wanted, and of all rows that
// have a record, which must be at least one. m scores by its generated code if it has any.
func NewWorkload(m *relevance.Model, rows []Golden, schemas relevance.Schemas, wanted int) (*Workload, error) {
	x := newExplainer(m)
	together := map[string][]Golden{}
	var order []string
	for i, row := range rows {
		if row.Record == nil {
			continue
		}
		key, err := json.Marshal([]any{row.Schema, row.Viewer, row.Entity})
		if err != nil {
			return nil, fmt.Errorf("row %d: %w", i+1, err)
		}
		if together[string(key)] == nil {
			order = append(order, string(key))
		}
		together[string(key)] = append(together[string(key)], row)
	}
	w := new(Workload)
	for _, key := range order {
		p, err := x.part(m, together[key], schemas, max(leastOfPart, wanted/len(order)))
		if err != nil {
			return nil, err
		}
		w.parts = append(w.parts, p)
		w.Records += len(p.sel)
	}
	return w, nil
}

// part makes a part of at least least records from rows that differ only in record, object
// and instant. All are scored at the instant of the first row.
func (x *explainer) part(m *relevance.Model, rows []Golden, schemas relevance.Schemas, least int) (p part, err error) {
	var batch column.Batch
	var all []Golden
	var packed []column.Packed
	var first question
	for i := range rows {
		q, err := x.question(&rows[i], schemas, typed)
		if err != nil {
			return p, err
		}
		if i == 0 {
			first = q
		}
		text, err := column.Pack(nil, q.rows)
		if err != nil {
			return p, err
		}
		packed = append(packed, column.PackedAt(text))
	}
	for len(all) < least {
		all = append(all, rows...)
	}
	fields := make([]int, len(first.layouts.rows.Fields()))
	for i := range fields {
		fields[i] = i
	}
	batch.Reset(first.layouts.rows, fields, len(all))
	for i := range all {
		batch.Add(packed[i%len(packed)], 0, 1)
		p.sel = append(p.sel, int32(i))
	}
	p.rows, p.entity, p.out = batch.Slab(), first.entity, make([]float64, len(all))
	if p.scorer, err = m.Bind(first.layouts.rows, first.layouts.entity, first.viewer, first.asOf); err != nil {
		return p, err
	}
	if slices.ContainsFunc(all, func(g Golden) bool { return g.Object != nil }) {
		objects, err := x.objects(p.scorer, all, schemas, typed)
		if err != nil {
			return p, err
		}
		if objects != nil {
			p.scorer.SetObjects(objects.Slab())
		}
	}
	return p, nil
}

// Score scores all records once.
func (w *Workload) Score() {
	for i := range w.parts {
		p := &w.parts[i]
		p.scorer.Score(p.rows, p.sel, p.entity, p.out)
	}
}

// Execution returns how the records are scored: "generated", or "interpreted" if that is so
// for any of them.
func (w *Workload) Execution() string {
	for _, p := range w.parts {
		if e := p.scorer.Execution(); e != "generated" {
			return e
		}
	}
	return "generated"
}

// How much [MadeUp] makes up.
const (
	madeUpRows  = 64 // rows of a schema
	madeUpItems = 32 // items of a list; lists of record and viewer have the same length, as vectors need
)

// MadeUp returns made-up golden rows of the schemas that a model's spec names. Every field
// has a value, and the viewer has all values that the spec reads. It also returns the
// schemas by which [NewWorkload] is to read the rows.
func MadeUp(m *relevance.Model, all relevance.Schemas) ([]Golden, relevance.Schemas) {
	spec, known := m.Spec(), relevance.Schemas{}
	for name, of := range all {
		known[name] = relevance.Records{Layout: of.Layout} // without a family, a field takes any value of its column's kind
	}
	viewer := map[string]any{"id": "viewer:1"}
	for name, kind := range m.ViewerValues() {
		viewer[name] = madeUp(viewerKinds[kind], 1)
	}
	const asOf = 1_700_000_000_000.0
	names := spec.Schemas
	if len(names) == 0 {
		names = []string{""}
	}
	var rows []Golden
	for _, name := range names {
		l := known[name].Layout
		if name == "" {
			l = relevance.RoleLayout()
		}
		for i := range madeUpRows {
			row := Golden{Schema: name, Record: madeUpValues(l, i), Viewer: viewer, AsOf: asOf}
			if e := known[spec.Entity].Layout; e != nil {
				row.Entity = madeUpValues(e, 0)
			}
			if o := known[spec.Object].Layout; o != nil {
				row.Object = madeUpValues(o, i)
			}
			rows = append(rows, row)
		}
	}
	return rows, known
}

func madeUpValues(l *column.Layout, i int) Values {
	values := Values{}
	for at, f := range l.Fields() {
		if !strings.HasPrefix(f.Name, "$") {
			values[f.Name] = madeUp(f.Kind, i*7+at)
		}
	}
	return values
}

// viewerKinds gives for each type of a viewer's value the kind of column that is like it.
var viewerKinds = map[string]column.Kind{
	"bool": column.Bool, "number": column.Double, "string": column.String, "list(number)": column.Doubles, "list(string)": column.Strings,
}

// madeUp returns a value of a kind, as JSON has it; another one for most other n.
func madeUp(k column.Kind, n int) any {
	switch k {
	case column.Bool:
		return n%2 == 0
	case column.Int:
		return float64(n % 97)
	case column.Time:
		return 1_699_000_000_000 + float64(n)*977_000
	case column.Double:
		return float64(n%97) / 8
	case column.Doubles, column.Strings:
		list, of := make([]any, madeUpItems), map[column.Kind]column.Kind{column.Doubles: column.Double, column.Strings: column.String}
		for i := range list {
			list[i] = madeUp(of[k], n+i)
		}
		return list
	}
	return []string{"en", "post", "India", "member:17", "a text of a few words"}[n%5]
}
