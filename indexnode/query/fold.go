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
func (q *Query) own(p *plan, s *segment) []float64 {
	if s.of == nil || p.unfoldable || !folding {
		return nil
	}
	kept := s.of.Folded.Load()
	switch {
	case kept == nil:
	case kept.Model == q.spec.Model:
		if kept.Others.Load() != 0 {
			kept.Others.Store(0)
		}
		if len(kept.Own) == s.slab.Len() {
			return kept.Own
		}
	case kept.Others.Add(1) < maxOthers:
		return nil
	default:
		kept = nil
	}
	if int(s.hi-s.lo) < s.slab.Len()/2 {
		return nil
	}
	return q.fold(p, s, kept)
}

// fold computes the record-only part of the rows that kept, if any, lacks.
// Queries that do so at once compute the same, and one of them is kept.
func (q *Query) fold(p *plan, s *segment, kept *cache.Folded) []float64 {
	if p.folder == nil {
		p.folder, q.err = q.spec.Model.BindFold(p.rows, p.entity)
		if p.unfoldable = p.folder == nil; p.unfoldable {
			return nil
		}
	}
	next := &cache.Folded{Model: q.spec.Model, Own: make([]float64, s.slab.Len())}
	done := 0
	if kept != nil {
		done = copy(next.Own, kept.Own)
	}
	for len(q.all) < s.slab.Len() {
		q.all = append(q.all, int32(len(q.all)))
	}
	p.folder.Score(s.slab, q.all[done:s.slab.Len()], nil, next.Own[done:])
	s.of.Folded.Store(next)
	return next.Own
}
