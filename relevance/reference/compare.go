package reference

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
)

// world is random records and what they are scored for.
type world struct {
	slab    *column.Slab   // the records
	entity  *column.Layout // of the entity's features; nil: the model has none
	one     *column.Slab   // the entity's features, one row; nil: there are none
	objects []*column.Slab // by record, the features of its object; nil: no record has any
	viewer  *millrace.Viewer
	asOf    millrace.Time
	before  *millrace.Viewer // for whom the scorer scores first; nil: nobody
	sel     []int32          // the rows to score, in any order, some of them twice
}

// newWorld draws a world with records and features of these layouts.
func newWorld(r *rand.Rand, rows, entity *column.Layout) *world {
	w := &world{slab: Records(r, rows, 1+r.IntN(150)), entity: entity}
	if r.IntN(2) == 0 {
		w.slab = batched(w.slab)
	}
	if entity != nil && r.IntN(4) > 0 {
		if w.one = Records(r, entity, 1); r.IntN(2) == 0 {
			w.one = batched(w.one)
		}
	}
	if r.IntN(8) > 0 {
		w.objects = Objects(r, w.slab.Len())
	}
	w.viewer, w.asOf = Viewer(r), millrace.Time(r.Int64N(int64(millrace.MaxTime)))
	if r.IntN(3) > 0 {
		w.before = Viewer(r)
	}
	w.sel = make([]int32, 1+r.IntN(200))
	for i := range w.sel {
		w.sel[i] = int32(r.IntN(w.slab.Len()))
	}
	return w
}

// batched returns the same rows in the form in which a query has them: a batch that refers to
// packed rows, so that lists are read where they are packed.
func batched(s *column.Slab) *column.Slab {
	var b column.Batch
	var fields []int
	for f := range s.Layout().Fields() {
		fields = append(fields, f)
	}
	b.Reset(s.Layout(), fields, s.Len())
	for lo, n := 0, s.Len(); lo < n; {
		hi := min(lo+1+lo/2, n)
		packed, err := column.Pack(nil, s.Rows(lo, hi))
		if err != nil {
			panic(err)
		}
		p := column.PackedAt(packed)
		b.Add(p, 0, p.Len())
		lo = hi
	}
	return b.Slab()
}

// question returns what a row is scored for.
func (w *world) question(row int32) Question {
	q := Question{Rows: w.slab, Row: int(row), Entity: w.one, Viewer: w.viewer, AsOf: w.asOf}
	if w.objects != nil {
		q.Object = w.objects[row]
	}
	return q
}

// Compare scores random records for random viewers in five ways: by m, which may have
// generated code, and by its interpreter, each as a whole and with a part folded (computed
// before, from the record alone), and by this package. It returns an error for the first
// score whose bits differ. Rows and entity are the layouts of records and of the entity's
// features.
func Compare(r *rand.Rand, m *relevance.Model, rows, entity *column.Layout) error {
	for range 4 {
		w := newWorld(r, rows, entity)
		var got [4][]float64
		for i, score := range []func() ([]float64, error){
			func() ([]float64, error) { return w.scores(m) },
			func() ([]float64, error) { return w.scores(m.Interpreted()) },
			func() ([]float64, error) { return w.foldedScores(m) },
			func() ([]float64, error) { return w.foldedScores(m.Interpreted()) },
		} {
			var err error
			if got[i], err = score(); err != nil {
				return err
			}
		}
		for i, row := range w.sel {
			want := Score(m, w.question(row))
			if !same(got[0][i], want) || !same(got[1][i], want) || !same(got[2][i], want) || !same(got[3][i], want) {
				return fmt.Errorf("row %d of %d, entity %t, objects %t: generated %v (folded %v), interpreted %v (folded %v), reference %v",
					row, w.slab.Len(), w.one != nil, w.objects != nil, got[0][i], got[2][i], got[1][i], got[3][i], want)
			}
		}
	}
	return nil
}

// CompareJoint scores random records by several models at once, with generated code if
// there is some and by the interpreter, and by this package, each model alone. It returns
// an error for the first score whose bits differ.
func CompareJoint(r *rand.Rand, models []*relevance.Model, rows, entity *column.Layout) error {
	interpreted := make([]*relevance.Model, len(models))
	for i, m := range models {
		interpreted[i] = m.Interpreted()
	}
	for range 4 {
		w := newWorld(r, rows, entity)
		for _, joint := range []*relevance.Joint{relevance.Join(models...), relevance.Join(interpreted...)} {
			s, err := joint.Bind(rows, entity, w.viewer, w.asOf)
			if err != nil {
				return err
			}
			if err := w.setObjects(s); err != nil {
				return err
			}
			got := make([][]float64, len(models))
			for i := range got {
				got[i] = make([]float64, len(w.sel))
			}
			s.Score(w.slab, w.sel, w.one, got)
			for k, m := range models {
				for i, row := range w.sel {
					if want := Score(m, w.question(row)); !same(got[k][i], want) {
						return fmt.Errorf("row %d of %d, entity %t: %s, %s with %d others, gives %v, reference %v",
							row, w.slab.Len(), w.one != nil, m.Name(), s.Execution(), len(models)-1, got[k][i], want)
					}
				}
			}
		}
	}
	return nil
}

// setObjects gives a scorer the features of objects that it reads.
func (w *world) setObjects(s interface {
	ObjectLayout() *column.Layout
	SetObjects(*column.Slab)
}) error {
	l := s.ObjectLayout()
	if l == nil || w.objects == nil {
		return nil
	}
	all := relevance.NewObjects(l)
	for _, o := range w.objects {
		if o == nil {
			all.AddNone()
		} else if err := all.Add(o, 0); err != nil {
			return err
		}
	}
	s.SetObjects(all.Slab())
	return nil
}

// bind binds a scorer and calls score with it. If there is a viewer before, the scorer is
// first bound to that one, and then bound again, and score is called each time.
func (w *world) bind(m *relevance.Model, score func(*relevance.Scorer)) error {
	first, asOf := w.viewer, w.asOf
	if w.before != nil {
		first, asOf = w.before, w.asOf/2
	}
	s, err := m.Bind(w.slab.Layout(), w.entity, first, asOf)
	if err == nil {
		err = w.setObjects(s)
	}
	if err != nil {
		return err
	}
	if score(s); w.before == nil {
		return nil
	}
	if err := s.Rebind(w.viewer, w.asOf); err != nil {
		return err
	}
	score(s)
	return nil
}

// scores scores the rows of sel as a whole.
func (w *world) scores(m *relevance.Model) ([]float64, error) {
	out := make([]float64, len(w.sel))
	err := w.bind(m, func(s *relevance.Scorer) { s.Score(w.slab, w.sel, w.one, out) })
	return out, err
}

// foldedScores scores with the part that depends on the record alone computed before
// (folded). If the model has no such part, it scores as a whole.
func (w *world) foldedScores(m *relevance.Model) ([]float64, error) {
	fold, err := m.BindFold(w.slab.Layout(), w.entity)
	if fold == nil || err != nil {
		out, _ := w.scores(m)
		return out, err
	}
	all, own := make([]int32, w.slab.Len()), make([]float64, w.slab.Len())
	for i := range all {
		all[i] = int32(i)
	}
	fold.Score(w.slab, all, nil, own)
	out := make([]float64, len(w.sel))
	var below error
	err = w.bind(m, func(s *relevance.Scorer) {
		s.ScoreFolded(own, w.slab, w.sel, w.one, out)
		if err := w.checkCeilings(s, own, out); err != nil {
			below = err
		}
	})
	return out, cmp.Or(err, below)
}

// checkCeilings returns an error if a score is higher than the scorer's ceilings allow. These
// are bounds by which a query leaves out rows that cannot be among the best.
func (w *world) checkCeilings(s *relevance.Scorer, own, scores []float64) error {
	c := s.Ceilings(w.slab.Layout())
	if c == nil {
		return nil
	}
	c.Limits(func(column int) uint64 { return slices.Max(w.slab.Column(column)) })
	for i, row := range w.sel {
		from, to := math.Inf(-1), math.Inf(1)
		if at := w.slab.Layout().Time(); at >= 0 {
			t := float64(int64(w.slab.Word(at, int(row))))
			from, to = t-float64(i%3)*1e7, t+float64(i%2)*1e8
		}
		if sum := own[row] + c.Of(from, to); sum < c.Threshold(scores[i]) {
			return fmt.Errorf("row %d: the score is %v, and was to be less: folded %v, at most %v more", row, scores[i], own[row], c.Of(from, to))
		}
	}
	return nil
}

// same reports whether two scores have the same bits.
func same(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }
