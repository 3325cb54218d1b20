package relevance

import (
	"fmt"
	"math"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance/plan"
)

const (
	maxCost = 100_000 // operations a record, see Cost
	// maxTime is what a record may take: with it a question of 20,000
	// candidates keeps a core busy for a second. Models of ten features take
	// a hundredth of a microsecond, a hundred trees of 255 leaves three.
	maxTime = 50 * time.Microsecond

	// maxSlower is how many times longer a version may take than the one
	// before, if it takes more than minSlow.
	maxSlower = 50
	minSlow   = 5 * time.Microsecond

	sampleRows = 64
	minTrials  = 8
	maxTrial   = time.Second // a busy machine is no slow model: it is tried again until then
)

// Cost estimates what scoring a record costs, in simple operations: a
// function counts for ten, a step of a tree for one.
func (m *Model) Cost() int {
	cost := 0
	for _, f := range m.spec.Features {
		cost += exprCost(f.Tree)
	}
	if f := m.params.Forest; f != nil {
		cost += f.Steps()
	}
	return cost
}

// affordable reports a model that costs too much, estimated and measured.
func (m *Model) affordable(schemas Schemas) error {
	if c := m.Cost(); c > maxCost {
		return fmt.Errorf("a record costs %d operations; at most %d are allowed", c, maxCost)
	}
	took, err := m.measure(schemas)
	if err == nil && took > maxTime {
		err = fmt.Errorf("a record takes %v; at most %v are allowed", took, maxTime)
	}
	return err
}

// slower reports a model that takes far longer than the one it replaces.
func (m *Model) slower(than *Model, schemas Schemas) error {
	took, err := m.measure(schemas)
	if err != nil || took <= minSlow {
		return err
	}
	before, err := than.measure(schemas)
	if err == nil && took > maxSlower*before {
		err = fmt.Errorf("a record takes %v, more than %d times the %v of version %s; give a model that may take it another name", took, maxSlower, before, than.Version())
	}
	return err
}

// measure scores sample records again and again, and returns what a record
// took at the best: whatever else the machine does only adds to it.
func (m *Model) measure(schemas Schemas) (time.Duration, error) {
	rows, err := sampleSlab(m.sampleLayout(schemas))
	if err != nil {
		return 0, err
	}
	var entity *column.Slab
	var entityLayout *column.Layout
	if l := schemas[m.spec.Entity]; l != nil {
		if entity, err = sampleSlab(l); err != nil {
			return 0, err
		}
		entityLayout = l
	}
	s, err := m.Bind(rows.Layout(), entityLayout, m.sampleViewer(), 1_700_000_000_000)
	if err != nil {
		return 0, err
	}
	if l := s.ObjectLayout(); l != nil {
		objects, err := sampleSlab(l)
		if err != nil {
			return 0, err
		}
		s.SetObjects(objects)
	}
	sel, out := make([]int32, sampleRows), make([]float64, sampleRows)
	for i := range sel {
		sel[i] = int32(i)
	}
	best, start := time.Duration(math.MaxInt64), time.Now()
	for n := 0; n < minTrials || best > maxTime*sampleRows && time.Since(start) < maxTrial; n++ {
		began := time.Now()
		s.Score(rows, sel, entity, out)
		best = min(best, time.Since(began))
	}
	return best / sampleRows, nil
}

// sampleLayout returns the layout of the first schema that the spec names.
func (m *Model) sampleLayout(schemas Schemas) *column.Layout {
	for _, name := range m.spec.Schemas {
		if l := schemas[name]; l != nil {
			return l
		}
	}
	return ShippedSchemas()["millrace.Activity"]
}

// sampleList is how long the lists of samples are.
const sampleList = 64

// sampleSlab returns records with a spread of values in every field.
func sampleSlab(l *column.Layout) (*column.Slab, error) {
	a := column.New(l, sampleRows, 0).Append()
	for i := range sampleRows {
		r := a.Begin()
		for f, field := range l.Fields() {
			sampleValue(&r, f, field.Kind, i*7+f)
		}
		if err := a.End(r); err != nil {
			return nil, err
		}
	}
	return a.Slab(), nil
}

func sampleValue(r *column.Row, field int, kind column.Kind, n int) {
	switch kind {
	case column.Bool:
		r.SetBool(field, n%2 == 0)
	case column.Int:
		r.SetInt(field, int64(n*n%1009))
	case column.Time:
		r.SetInt(field, 1_700_000_000_000-int64(n)*977_000)
	case column.Double:
		r.SetDouble(field, float64(n%13)-6)
	case column.String:
		r.SetString(field, fmt.Appendf(nil, "value %d", n%17))
	case column.Doubles:
		r.SetDoubles(field, sampleNumbers())
	case column.Strings:
		r.SetStrings(field, sampleStrings())
	}
}

func sampleNumbers() []float64 {
	x := make([]float64, sampleList)
	for i := range x {
		x[i] = float64(i%7) - 3
	}
	return x
}

func sampleStrings() []string {
	x := make([]string, sampleList)
	for i := range x {
		x[i] = fmt.Sprintf("value %d", i)
	}
	return x
}

// sampleViewer returns a viewer with everything that the spec declares.
func (m *Model) sampleViewer() *millrace.Viewer {
	v := &millrace.Viewer{ID: "sample", Attributes: map[string]any{}}
	values := map[plan.Kind]any{plan.Bool: true, plan.Number: 0.5, plan.String: "sample", plan.Numbers: sampleNumbers(), plan.Strings: sampleStrings()}
	for _, x := range m.spec.source.Viewer {
		if x.Name != "id" {
			v.Attributes[x.Name] = values[x.Kind]
		}
	}
	return v
}
