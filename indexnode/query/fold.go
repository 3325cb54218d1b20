package query

import (
	"math"
	"slices"

	"github.com/millrace/millrace/indexnode/cache"
)

// maxOthers is how many questions with other models pass before what is folded
// for one is given up. Of several models that serve at once the first to ask
// keeps its place.
const maxOthers = 8

// folding is false only in the benchmark that tells what folding is worth.
var folding = true

// own returns the record-only part of the model's scores for the rows of a
// segment's part, until the next call, and what none of them exceeds, or nil
// where it is not kept. If nothing is kept it is computed and kept, unless the
// window has few of the rows.
func (q *Query) own(p *plan, s *segment) (own []float64, most float64, err error) {
	if s.of == nil || q.spec.Folds == nil || p.unfoldable || !folding {
		return nil, 0, nil
	}
	if q.model == 0 {
		q.model = cache.IDOf(q.spec.Model)
	}
	kept := s.of.Folded()
	switch {
	case kept == nil:
	case kept.Model == q.model:
		if kept.Others.Load() != 0 {
			kept.Others.Store(0)
		}
		return kept.Own(), kept.Most, nil
	case kept.Others.Add(1) < maxOthers:
		return nil, 0, nil
	}
	if int(s.hi-s.lo) < s.rows.Len()/2 {
		return nil, 0, nil
	}
	return q.foldAll(p, s, kept)
}

// foldAll computes the record-only part of all rows, and keeps it in the place
// of what was kept for another model. Queries that do so at once compute the
// same, and one of them is kept.
func (q *Query) foldAll(p *plan, s *segment, was *cache.Folded) (own []float64, most float64, err error) {
	if p.folder == nil {
		p.folder, err = q.spec.Model.BindFold(p.rows, p.entity)
		if p.unfoldable = p.folder == nil; p.unfoldable {
			return nil, 0, err
		}
		p.foldColumns, _ = p.folder.Reads(p.foldColumns[:0], false)
	}
	rows := s.rows.Len()
	q.fresh = slices.Grow(q.fresh[:0], rows)[:rows]
	for done := 0; done < rows; {
		q.fold.Reset(p.rows, p.foldColumns, batchRows)
		n := min(rows-done, q.fold.Room())
		q.fold.Add(s.rows, done, done+n)
		began := q.begins()
		p.folder.Score(q.fold.Slab(), q.upTo(n), nil, q.fresh[done:])
		q.ends(began, n)
		done += n
	}
	if most = slices.Max(q.fresh); most != most {
		most = math.Inf(1)
	}
	q.spec.Folds.Fold(s.of, was, q.model, q.fresh, most)
	return q.fresh, most, nil
}
