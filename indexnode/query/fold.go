package query

import (
	"github.com/millrace/millrace/indexnode/cache"
)

// maxOthers is how many questions with other models pass before what is folded
// for one is given up. Of several models that serve at once the first to ask
// keeps its place.
const maxOthers = 8

// folding is false only in the benchmark that tells what folding is worth.
var folding = true

// own returns the record-only part of the model's scores for the rows of a
// segment, nil where it is not kept. What is missing of it is computed and
// kept, unless the window has few of the rows.
func (q *Query) own(p *plan, s *segment) ([]float64, error) {
	if s.of == nil || p.unfoldable || !folding {
		return nil, nil
	}
	kept := s.of.Folded.Load()
	switch {
	case kept == nil:
	case kept.Model == q.spec.Model:
		if kept.Others.Load() != 0 {
			kept.Others.Store(0)
		}
		if len(kept.Own) == s.slab.Len() {
			return kept.Own, nil
		}
	case kept.Others.Add(1) < maxOthers:
		return nil, nil
	default:
		kept = nil
	}
	if int(s.hi-s.lo) < s.slab.Len()/2 {
		return nil, nil
	}
	return q.foldRest(p, s, kept)
}

// foldRest computes the record-only part of the rows that kept, if any, lacks.
// Queries that do so at once compute the same, and one of them is kept.
func (q *Query) foldRest(p *plan, s *segment, kept *cache.Folded) ([]float64, error) {
	if p.folder == nil {
		var err error
		p.folder, err = q.spec.Model.BindFold(p.rows, p.entity)
		if p.unfoldable = p.folder == nil; p.unfoldable {
			return nil, err
		}
		p.foldColumns, _ = p.folder.Reads(p.foldColumns[:0], false)
	}
	rows := s.slab.Len()
	next := &cache.Folded{Model: q.spec.Model, Own: make([]float64, rows)}
	done := 0
	if kept != nil {
		done = copy(next.Own, kept.Own)
	}
	for done < rows {
		n := min(rows-done, batchRows)
		q.fold.Reset(p.rows, p.foldColumns, batchRows)
		q.fold.Add(s.slab, done, done+n)
		p.folder.Score(q.fold.Slab(), q.upTo(n), nil, next.Own[done:])
		done += n
	}
	s.of.Folded.Store(next)
	return next.Own, nil
}
