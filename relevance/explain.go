package relevance

import (
	"slices"
	"strings"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance/plan"
	"github.com/millrace/millrace/relevance/trees"
)

// Explanation says why a record has its score. For linear and logistic models Base and
// the contributions add up to the linear score, before the logistic function. For trees
// they add up to the sum of the leaves, before the trees' link (the function that turns
// this sum into a score); the difference that each split makes counts as a contribution of
// its feature.
type Explanation struct {
	Score    float64     // as Scorer.Score gives it, after the logistic function or the trees' link
	Base     float64     // the bias; for trees, the sum of their values before the first split
	Features []Explained // in the order of the spec
}

// Explained is what one feature contributes to a score.
type Explained struct {
	Name         string
	Value        any // float64 or string
	Contribution float64
}

// Explain explains the score of one row. entity has one row, the entity's features, or is
// nil. Explain allocates memory, since it is for people and not for every request.
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

// Features is like Explain, but leaves out Base and, for trees, the contributions, which
// take the most time. For trees, inputs has the values of the features, in the order of the
// spec; for other models it is nil.
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
			x.Value = strings.Clone(text) // the machine overwrites this memory with the next row
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

// keeping returns an interpreter that keeps the value of every operation, bound to the
// request.
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

// ScoreFeatures returns the scores of records from the values of their features. A record
// has a value for each feature, in the order of the spec: a float64, a bool or a string;
// a missing number is NaN. It serves to check the golden rows of a pack, which are records
// with the scores that they must have. Trees score records in batches, as they do for
// requests.
func (m *Model) ScoreFeatures(records ...[]any) []float64 {
	scores := make([]float64, 0, len(records))
	if f := m.params.Forest; f != nil {
		for some := range slices.Chunk(records, trees.Batch) {
			scores = append(scores, scoreTrees(f, some)...)
		}
		return scores
	}
	for _, values := range records {
		scores = append(scores, m.scoreSum(values))
	}
	return scores
}

// scoreTrees scores at most trees.Batch records.
func scoreTrees(f *trees.Forest, records [][]any) []float64 {
	var s trees.Scores
	matrix, scores := f.Matrix(), make([]float64, len(records))
	for r, values := range records {
		for c, v := range values {
			x, _ := asNumber(v).(float64)
			matrix[(r/trees.Block*f.Columns()+c)*trees.Block+r%trees.Block] = x
		}
	}
	f.Score(&s, matrix, len(records), scores)
	for i, x := range scores {
		scores[i] = compute.Score(x)
	}
	return scores
}

// scoreSum scores a record by a linear or logistic scorer.
func (m *Model) scoreSum(values []any) float64 {
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

// asNumber returns a bool as 0 or 1, and any other value as it is.
func asNumber(v any) any {
	if b, ok := v.(bool); ok {
		return compute.Bool(b)
	}
	return v
}

// contribution returns what a feature with the weight w and the value v adds to the
// linear score.
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
