package relevance

import (
	"strings"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance/plan"
)

// Explanation is why a record scores what it does. For linear and logistic
// models Base and the contributions add up to the linear score; for trees to
// the sum of the leaves, each split's step counted for its feature.
type Explanation struct {
	Score    float64 // as Score gives it, behind the link
	Base     float64 // the bias; what trees give before the first split
	Features []Explained
}

// Explained is a feature's part in a score.
type Explained struct {
	Name         string
	Value        any // float64 or string
	Contribution float64
}

// Explain explains the score of one row. It allocates: it is for people.
func (s *Scorer) Explain(rows *column.Slab, row int, entity *column.Slab) Explanation {
	e, inputs := s.Features(rows, row, entity)
	if s.planned.plan.Scorer != plan.Trees {
		e.Base = s.in.Weights[0]
		return e
	}
	base, contributions := s.in.Forest.Explain(inputs)
	e.Base = base
	for i := range e.Features {
		e.Features[i].Contribution = contributions[i]
	}
	return e
}

// Features is Explain without a base, and without contributions where trees
// score, which cost the most; it returns the inputs of these.
func (s *Scorer) Features(rows *column.Slab, row int, entity *column.Slab) (e Explanation, inputs []float64) {
	p, m := s.planned.plan, s.keeping()
	m.BindEntity(entity)
	m.SetObjects(s.objects.of(p, rows))
	var out [1]float64
	m.Score(rows, []int32{int32(row)}, out[:])
	e = Explanation{Score: out[0], Features: make([]Explained, 0, len(p.Terms))}
	for _, t := range p.Terms {
		x := Explained{Name: t.Feature, Value: m.Value(t.Value)}
		if text, ok := x.Value.(string); ok {
			x.Value = strings.Clone(text) // the machine writes the next row's there
		}
		if t.Contribution >= 0 {
			x.Contribution = m.Value(t.Contribution).(float64)
		} else {
			inputs = append(inputs, x.Value.(float64))
		}
		e.Features = append(e.Features, x)
	}
	return e, inputs
}

// keeping returns the machine that keeps every value, bound to the request.
func (s *Scorer) keeping() *plan.Machine {
	if s.explainer == nil {
		s.explainer = s.planned.plan.Machine(true)
	}
	if s.unbound {
		s.explainer.Bind(s.in)
		s.unbound = false
	}
	return s.explainer
}

// ScoreFeatures returns the score of a record whose features are given, in the
// order of the spec, as float64, bool or string; a missing number is NaN. It
// is how golden rows are checked.
func (m *Model) ScoreFeatures(values []any) float64 {
	if f := m.params.Forest; f != nil {
		row := make([]float64, len(values))
		for i, v := range values {
			row[i], _ = asNumber(v).(float64)
		}
		return compute.Score(f.Score1(row))
	}
	score := plan.Sum(m.weights[0], func(add func(plan.Part, float64)) {
		for i, v := range values {
			add(plan.PartOf(m.spec.Features[i].Tree), m.contribution(m.spec.source.Weights[i], asNumber(v)))
		}
	})
	if m.spec.source.Scorer == plan.Logistic {
		score = compute.Sigmoid(score)
	}
	return compute.Score(score)
}

func asNumber(v any) any {
	if b, ok := v.(bool); ok {
		return compute.Bool(b)
	}
	return v
}

func (m *Model) contribution(w plan.Weight, v any) float64 {
	switch v := v.(type) {
	case string:
		return m.tables[w.Index].String(v)
	case float64:
		if w.Table {
			return m.tables[w.Index].Number(v)
		}
		return float64(m.weights[w.Index] * v)
	}
	return compute.Missing
}
