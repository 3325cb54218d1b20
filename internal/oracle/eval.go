package oracle

import (
	"fmt"
	"math"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
	"github.com/millrace/millrace/internal/expr/celref"
	"github.com/millrace/millrace/internal/filter"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/modelpack"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// Eval makes filters and scores for records of the schemas it knows. A filter
// runs in cel-go's own interpreter, and a model scores a slab of one row.
// Eval panics on a record that no correct test has: one whose schema was not
// admitted, or whose body does not decode.
type Eval struct {
	registry *registry.Registry
	builtin  *relevance.Registry
	models   map[string]*relevance.Model // from Admit, by name
}

// NewEval returns an Eval that knows the built-in models and the schemas of
// known, admitted in this order.
func NewEval(known ...*schemas.Schema) (*Eval, error) {
	r, err := registry.New(nil, nil)
	if err != nil {
		return nil, err
	}
	for _, s := range known {
		if _, err := r.Admit(s); err != nil {
			return nil, err
		}
	}
	return &Eval{r, relevance.Builtin(), map[string]*relevance.Model{}}, nil
}

// Admit makes a pack's model known, in place of one of the same name.
func (e *Eval) Admit(p *modelpack.Pack) error {
	m, err := modelpack.Validate(p, relevance.ShippedSchemas())
	if err == nil {
		e.models[m.Name()] = m
	}
	return err
}

// model returns a model by name.
func (e *Eval) model(name string) (*relevance.Model, error) {
	if m, ok := e.models[name]; ok {
		return m, nil
	}
	return e.builtin.Get(name)
}

// Filter compiles a filter. For an empty one it returns nil, which keeps everything.
func (e *Eval) Filter(src string) (Filter, error) {
	if src == "" {
		return nil, nil
	}
	if env := filter.EnvOf(e.registry.Snapshot()); len(env.Mixed()) > 0 {
		n, err := expr.Parse(src, env) // its source says which of the mixed fields are read as ints
		if err != nil {
			return nil, err
		}
		src = n.Source()
	}
	p, err := celref.Compile(src)
	if err != nil {
		return nil, err
	}
	return func(c *Candidate, v *millrace.Viewer, asOf millrace.Time) celref.Outcome {
		in := celref.Input{Record: e.typed(e.row(&c.Record), false), Viewer: v, AsOf: asOf}
		if c.Features != nil {
			in.Entity = e.typed(e.row(c.Features), true)
		}
		return p.Eval(&in)
	}, nil
}

// typed returns the values of a row by field, as a filter reads them. The first family
// that has a field decides its type; a value of another type is null.
func (e *Eval) typed(row *column.Slab, features bool) map[string]any {
	all := values(row)
	for i, f := range row.Layout().Fields() {
		for _, family := range e.registry.Snapshot().Families() {
			at := family.Layout().Index(f.Name)
			if family.Features() != features || at < 0 {
				continue
			}
			first := family.Layout().Fields()[at].Kind
			number := func(k column.Kind) bool { return k == column.Int || k == column.Double }
			if kind := row.Layout().Fields()[i].Kind; kind != first && !(number(kind) && number(first)) {
				all[f.Name] = nil
			}
			break
		}
	}
	return all
}

// Score returns the score of a model, one record at a time. It uses the interpreter, even
// if m has generated code, so that tests compare the two.
func (e *Eval) Score(m *relevance.Model) Score {
	m = m.Interpreted()
	type question struct {
		rows, entity *column.Layout
		viewer       *millrace.Viewer
		asOf         millrace.Time
	}
	var bound question // what scorer was bound to last
	var scorer *relevance.Scorer
	return func(c *Candidate, v *millrace.Viewer, asOf millrace.Time) float64 {
		rows, entity := e.row(&c.Record), (*column.Slab)(nil)
		q := question{rows: rows.Layout(), viewer: v, asOf: asOf}
		if c.Features != nil {
			entity = e.row(c.Features)
			q.entity = entity.Layout()
		}
		if q != bound {
			s, err := m.Bind(q.rows, q.entity, v, asOf)
			if err != nil {
				panic(fmt.Errorf("oracle: bind %s to %s: %w", m.Name(), c.ID, err))
			}
			bound, scorer = q, s
		}
		scorer.SetObjects(e.objects(scorer, c))
		out := [1]float64{math.NaN()}
		scorer.Score(rows, []int32{0}, entity, out[:])
		return out[0]
	}
}

// objects returns the features of the candidate's object for a scorer; nil if the scorer
// reads none or there are none.
func (e *Eval) objects(s *relevance.Scorer, c *Candidate) *column.Slab {
	if s.ObjectLayout() == nil || c.About == nil {
		return nil
	}
	o := relevance.NewObjects(s.ObjectLayout())
	if err := o.Add(e.row(c.About), 0); err != nil {
		panic(fmt.Errorf("oracle: object %s: %w", c.Record.Object, err))
	}
	return o.Slab()
}

// row decodes a record into a slab of one row, in the layout of its schema's
// family.
func (e *Eval) row(r *millrace.Record) *column.Slab {
	d := e.registry.Snapshot().Decoder(r.Schema)
	if d == nil {
		panic(fmt.Errorf("oracle: record %s has the unknown schema %s", r.ID, r.Schema))
	}
	a := column.New(d.Layout(), 1, 0).Append()
	if err := d.Append(a, r.Body); err != nil {
		panic(fmt.Errorf("oracle: record %s: %w", r.ID, err))
	}
	return a.Slab()
}

// values returns the row of a slab as Go's own types by field name.
func values(s *column.Slab) map[string]any {
	m := map[string]any{}
	for i, f := range s.Layout().Fields() {
		w := s.Word(i, 0)
		switch {
		case s.Null(i, 0):
			m[f.Name] = nil
		case f.Kind == column.Bool:
			m[f.Name] = w != 0
		case f.Kind == column.Int:
			m[f.Name] = int64(w)
		case f.Kind == column.Time:
			m[f.Name] = millrace.Time(w)
		case f.Kind == column.Double:
			m[f.Name] = math.Float64frombits(w)
		case f.Kind == column.String:
			m[f.Name] = s.String(w)
		case f.Kind == column.Doubles:
			m[f.Name] = s.Doubles([]float64{}, w)
		case f.Kind == column.Strings:
			m[f.Name] = s.Strings([]string{}, w)
		}
	}
	return m
}
