package reference

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
)

// Compare scores random records for random viewers by m, which may be
// generated, by the interpreter and by this package, and reports the first
// score whose bits differ.
func Compare(r *rand.Rand, m *relevance.Model, rows, entity *column.Layout) error {
	for range 4 {
		slab := Records(r, rows, 1+r.IntN(150))
		var one *column.Slab
		if entity != nil && r.IntN(4) > 0 {
			one = Records(r, entity, 1)
		}
		q := question{Viewer(r), millrace.Time(r.Int64N(int64(millrace.MaxTime))), nil}
		if r.IntN(3) > 0 {
			q.before = Viewer(r)
		}
		sel := make([]int32, 1+r.IntN(200))
		for i := range sel {
			sel[i] = int32(r.IntN(slab.Len()))
		}
		fast, err := scores(m, slab, entity, one, q, sel)
		if err != nil {
			return err
		}
		slow, err := scores(m.Interpreted(), slab, entity, one, q, sel)
		if err != nil {
			return err
		}
		folded, err := foldedScores(m, slab, entity, one, q, sel)
		if err != nil {
			return err
		}
		foldedSlow, err := foldedScores(m.Interpreted(), slab, entity, one, q, sel)
		if err != nil {
			return err
		}
		for i, row := range sel {
			want := Score(m, Question{Rows: slab, Row: int(row), Entity: one, Viewer: q.viewer, AsOf: q.asOf})
			if !same(fast[i], want) || !same(slow[i], want) || !same(folded[i], want) || !same(foldedSlow[i], want) {
				return fmt.Errorf("row %d of %d, entity %t: generated %v (folded %v), interpreted %v (folded %v), reference %v",
					row, slab.Len(), one != nil, fast[i], folded[i], slow[i], foldedSlow[i], want)
			}
		}
	}
	return nil
}

// CompareJoint scores random records by several models at once, generated if
// there is code, and interpreted, and by this package, each model alone.
func CompareJoint(r *rand.Rand, models []*relevance.Model, rows, entity *column.Layout) error {
	for range 4 {
		slab := Records(r, rows, 1+r.IntN(150))
		var one *column.Slab
		if entity != nil && r.IntN(4) > 0 {
			one = Records(r, entity, 1)
		}
		viewer, asOf := Viewer(r), millrace.Time(r.Int64N(int64(millrace.MaxTime)))
		sel := make([]int32, 1+r.IntN(200))
		for i := range sel {
			sel[i] = int32(r.IntN(slab.Len()))
		}
		for _, joint := range []*relevance.Joint{relevance.Join(models...), relevance.Join(models...).Interpreted()} {
			s, err := joint.Bind(rows, entity, viewer, asOf)
			if err != nil {
				return err
			}
			got := make([][]float64, len(models))
			for i := range got {
				got[i] = make([]float64, len(sel))
			}
			s.Score(slab, sel, one, got)
			for k, m := range models {
				for i, row := range sel {
					if want := Score(m, Question{Rows: slab, Row: int(row), Entity: one, Viewer: viewer, AsOf: asOf}); !same(got[k][i], want) {
						return fmt.Errorf("row %d of %d, entity %t: %s, %s with %d others, gives %v, reference %v",
							row, slab.Len(), one != nil, m.Name(), s.Execution(), len(models)-1, got[k][i], want)
					}
				}
			}
		}
	}
	return nil
}

// question is who asks and when. A scorer answered the viewer before first.
type question struct {
	viewer *millrace.Viewer
	asOf   millrace.Time
	before *millrace.Viewer // nil: the scorer is new
}

// bind binds a scorer for q, and gives it to score: before it is bound again,
// and after.
func (q question) bind(m *relevance.Model, rows *column.Slab, entity *column.Layout, score func(*relevance.Scorer)) error {
	first, asOf := q.viewer, q.asOf
	if q.before != nil {
		first, asOf = q.before, q.asOf/2
	}
	s, err := m.Bind(rows.Layout(), entity, first, asOf)
	if err != nil {
		return err
	}
	if score(s); q.before == nil {
		return nil
	}
	if err := s.Rebind(q.viewer, q.asOf); err != nil {
		return err
	}
	score(s)
	return nil
}

func scores(m *relevance.Model, rows *column.Slab, entity *column.Layout, one *column.Slab, q question, sel []int32) ([]float64, error) {
	out := make([]float64, len(sel))
	err := q.bind(m, rows, entity, func(s *relevance.Scorer) { s.Score(rows, sel, one, out) })
	return out, err
}

// foldedScores scores with what can be folded; without, it scores as a whole.
func foldedScores(m *relevance.Model, rows *column.Slab, entity *column.Layout, one *column.Slab, q question, sel []int32) ([]float64, error) {
	fold, err := m.BindFold(rows.Layout(), entity)
	if fold == nil || err != nil {
		out, _ := scores(m, rows, entity, one, q, sel)
		return out, err
	}
	all, own := make([]int32, rows.Len()), make([]float64, rows.Len())
	for i := range all {
		all[i] = int32(i)
	}
	fold.Score(rows, all, nil, own)
	out := make([]float64, len(sel))
	err = q.bind(m, rows, entity, func(s *relevance.Scorer) { s.ScoreFolded(own, rows, sel, one, out) })
	return out, err
}

func same(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }
