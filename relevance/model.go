// Package relevance scores records. It reads model specs and their parameters, and has
// the registry of the models that a process can score by. A model is interpreted (package
// plan), or scored by generated Go, which package codegen writes and which gives the same
// bits.
package relevance

import (
	"fmt"
	"io"
	"io/fs"
	"path"
	"sync"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/relevance/plan"
)

// Model is a checked model spec with its parameters. It is immutable and safe
// for concurrent use; each goroutine scores through a [Scorer] of its own.
type Model struct {
	spec    *Spec
	params  Parameters
	weights []float64        // the parameters that are numbers, as plans index them; the bias is first
	tables  []*compute.Table // the parameters that are tables, likewise
	plans   *sync.Map        // by layouts, each a *planned; shared with models that differ only in weights
	slow    bool             // never uses generated code
	own     *Model           // the model from which [Model.Weighted] made this one; nil: it did not

	readings int              // see the method Readings
	viewers  []map[string]any // see the method Viewers
}

// layouts are those for which a plan is made: of the records, and of the entity's features.
type layouts struct{ rows, entity *column.Layout }

// planned is a plan (how a model's features are computed for records of some layouts) and
// the generated code for it, if there is any.
type planned struct {
	plan    *plan.Plan
	score   compute.ModelFunc // nil: there is no generated code
	similar bool              // the generated code expects its caller to compute the similarities of lists
	err     error             // why there is no plan

	// The plan in two parts: fold computes the part of the score that depends on the
	// record alone, and rest the remainder. Both are nil if nothing depends on the
	// record alone.
	fold, rest *planned
}

// Parse reads a spec with its parameters. file is its name in messages, and schemas has
// the schemas that it may name. The spec may not name other files. The error, a
// [*SpecError], has every fault, up to a hundred.
func Parse(file string, src []byte, schemas Schemas) (*Model, error) {
	return SpecText{Name: file, Text: src}.Parse(schemas)
}

// MaxFileBytes bounds each file that a spec names, and so each file of a pack (a model with
// its files and a manifest).
const MaxFileBytes = 48 << 20

// ParseFile reads the spec name of fsys, and the files beside it that it names.
func ParseFile(fsys fs.FS, name string, schemas Schemas) (*Model, error) {
	src, err := readBounded(fsys, name, document.MaxBytes)
	if err != nil {
		return nil, fmt.Errorf("relevance: %w", err)
	}
	return SpecText{name, src, func(file string) ([]byte, error) {
		return readBounded(fsys, path.Join(path.Dir(name), file), MaxFileBytes)
	}}.Parse(schemas)
}

// readBounded reads a file of at most that many bytes. If the file is larger, it fails after
// one byte more.
func readBounded(fsys fs.FS, name string, most int64) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	src, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(src)) > most {
		err = fmt.Errorf("%s: more than %d bytes", name, most)
	}
	return src, err
}

// SpecText is a spec as it is written.
type SpecText struct {
	Name string // the name of its file, for messages
	Text []byte
	Open func(name string) ([]byte, error) // reads a file that the spec names; nil: it may name none
}

// reader returns a reader of the spec that has read nothing yet.
func (t SpecText) reader(schemas Schemas) *specReader {
	return &specReader{specFile: specFile{&problems{}, newSource(t.Name, t.Text), t.Text}, schemas: schemas, open: t.Open}
}

// Parse is like the function [Parse], but the spec may name files that Open reads.
func (t SpecText) Parse(schemas Schemas) (*Model, error) {
	r := t.reader(schemas)
	params := r.untilFull(r.read)
	if err := r.err(); err != nil {
		return nil, err
	}
	r.spec.types = featureTypes(r.spec.Features)
	m := &Model{spec: r.spec, params: params, plans: &sync.Map{}, readings: readings(r.spec)}
	m.weights, m.tables = r.spec.compile(&params)
	return m, nil
}

// Name returns the model's name, by which requests and feed definitions refer to it.
func (m *Model) Name() string { return m.spec.Name }

// Version returns the version of the model's spec.
func (m *Model) Version() string { return m.spec.Version }

// ReadsObjects reports whether the spec names a schema for the features of objects, which
// are what records are about.
func (m *Model) ReadsObjects() bool { return m.spec.Object != "" }

// Spec returns what the model computes.
func (m *Model) Spec() *Spec { return m.spec }

// Parameters returns the numbers that training decided. The caller must not change them.
func (m *Model) Parameters() *Parameters { return &m.params }

// Interpreted returns the model without generated code: the reference to compare
// generated code with.
func (m *Model) Interpreted() *Model {
	return &Model{spec: m.spec, params: m.params, weights: m.weights, tables: m.tables, plans: &sync.Map{}, slow: true, readings: m.readings}
}

// Bind prepares a scorer for records of one layout, one viewer and one instant. entity is
// the layout of the entity's features, nil if there are none. viewer may be nil. A field
// that a layout lacks reads as missing. A viewer value of another type than the spec
// declares is refused with a [*millrace.Error].
func (m *Model) Bind(rows, entity *column.Layout, viewer *millrace.Viewer, asOf millrace.Time) (*Scorer, error) {
	p := m.plan(layouts{rows, entity})
	if p.err != nil {
		return nil, fmt.Errorf("relevance: bind %s: %w", m.Name(), p.err)
	}
	in := plan.Inputs{Weights: m.weights, Tables: m.tables, AsOf: float64(asOf), Forest: m.params.Forest}
	var err error
	if in.Viewer, err = viewerValues(nil, viewer, p.plan.Viewer); err != nil {
		return nil, err
	}
	return newScorer(p, in), nil
}

// plan returns the plan for a pair of layouts, which it makes once and then keeps.
func (m *Model) plan(l layouts) *planned {
	if p, ok := m.plans.Load(l); ok {
		return p.(*planned)
	}
	p := &planned{}
	p.plan, p.err = plan.Build(&m.spec.source, l.rows, l.entity)
	if p.err == nil {
		p.find(!m.slow)
		if fold, rest := p.plan.Split(); fold != nil {
			p.fold, p.rest = &planned{plan: fold}, &planned{plan: rest}
			p.fold.find(!m.slow)
			p.rest.find(!m.slow)
		}
	}
	kept, _ := m.plans.LoadOrStore(l, p)
	return kept.(*planned)
}

// find looks for generated code of the plan, if generated is set. An older release
// generated code that computes the similarities of lists itself. That code has another
// shape, the plan's Former.
func (p *planned) find(generated bool) {
	if !generated {
		return
	}
	g, ok := compute.FindModel(p.plan.Shape())
	if p.similar = ok && len(p.plan.Similarities()) > 0; !ok {
		g, _ = compute.FindModel(p.plan.Former())
	}
	p.score = g.Score
}

// BindFold prepares a scorer for the part of the score that depends on the record alone.
// A cache computes that part when a record enters it, and [Scorer.ScoreFolded] uses the
// number for every request. BindFold returns nil if the model has no such part; a model
// of trees has none.
func (m *Model) BindFold(rows, entity *column.Layout) (*Scorer, error) {
	p := m.plan(layouts{rows, entity})
	if p.err != nil {
		return nil, fmt.Errorf("relevance: bind %s: %w", m.Name(), p.err)
	}
	if p.fold == nil {
		return nil, nil
	}
	in := plan.Inputs{Weights: m.weights, Tables: m.tables, Viewer: make([]any, len(p.plan.Viewer))}
	return newScorer(p.fold, in), nil
}

// viewerValues appends the viewer's values of vars to dst; see viewerValue.
func viewerValues(dst []any, viewer *millrace.Viewer, vars []plan.Var) ([]any, error) {
	for _, v := range vars {
		x, err := viewerValue(viewer, v)
		if err != nil {
			return dst, err
		}
		dst = append(dst, x)
	}
	return dst, nil
}

// viewerValue returns a value of the viewer, of the kind that the spec declares; nil if
// the viewer does not have it. The viewer's id comes as a *string.
func viewerValue(viewer *millrace.Viewer, v plan.Var) (any, error) {
	if viewer == nil {
		return nil, nil
	}
	if v.Name == "id" && v.Kind == plan.String {
		return &viewer.ID, nil // as a string in an any it would be allocated
	}
	x, ok := viewer.Value(v.Name)
	if !ok || x == nil {
		return nil, nil
	}
	var got plan.Kind
	switch x.(type) {
	case bool:
		got = plan.Bool
	case float64:
		got = plan.Number
	case string:
		got = plan.String
	case []float64:
		got = plan.Numbers
	case []string:
		got = plan.Strings
	}
	if list, is := x.([]string); is && len(list) == 0 && v.Kind == plan.Numbers {
		return []float64{}, nil // an empty list of JSON has no type of its items
	}
	if list, is := x.([]float64); is && len(list) == 0 && v.Kind == plan.Strings {
		return []string{}, nil
	}
	if got != v.Kind {
		return nil, &millrace.Error{
			Reason: millrace.ReasonInvalid,
			Field:  "viewer." + v.Name,
			Detail: fmt.Sprintf("is a %T", x),
			WayOut: "send a " + v.Kind.String() + ", or leave it out",
		}
	}
	return x, nil
}

// Viewers returns the values of a few viewers from the golden rows of the model's pack.
// By these rows the author says that the model gives such viewers a score.
func (m *Model) Viewers() []map[string]any { return m.viewers }

// WithViewers returns a copy of the model with these Viewers.
func (m *Model) WithViewers(all []map[string]any) *Model {
	with := *m
	with.viewers = all
	return &with
}
