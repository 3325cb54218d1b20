package query

import (
	"context"
	"math"
	"slices"

	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
)

// This file folds scores: it computes the part of a score that depends on the record alone
// once, for the rows that windows reach, and keeps it beside the timeline in the cache
// (cache.Folded). It does so only after scoring these rows whole has cost about as much as
// folding them. So it does not fold rows that few questions ask for, or that a filter
// drops nearly all of.

// folding is false only in tests and benchmarks that compare with and without folding.
var folding = true

// folder computes the record-only part of a plan's scores.
type folder struct {
	scorer     *relevance.Scorer // nil until it is needed
	unfoldable bool              // no part of the model's scores depends on the record alone
	batch      column.Batch      // the rows of wanted that are not computed yet
	wanted     []wanted
	own        []float64 // the numbers of the rows of wanted that were computed
	pieces     pieces    // how many rows are scored at a time
}

// wanted is a timeline whose last rows are to be folded. It has one part.
type wanted struct {
	timeline *cache.Timeline
	place    cache.Place // where the numbers are put
	rows     int         // how many of the last rows
}

// folds reports whether scores of a segment may be folded: it is a cached timeline's only
// part, and the model has a foldable part.
func (q *Query) folds(p *plan, s *segment) bool {
	return s.of != nil && q.spec.Folds != nil && !p.folder.unfoldable && folding
}

// owe counts that rows [lo, hi) of a segment are scored whole because nothing is folded for
// them. Once that has cost as much as folding, it folds all rows from lo on.
func (q *Query) owe(ctx context.Context, p *plan, s *segment, lo, hi int32) error {
	cost := p.share(hi - lo)
	rows := s.rows.Len() - int(lo)
	if owed := s.of.Owe(cost); int(owed)-int(cost) < rows {
		return nil
	}
	place, ok := s.of.Place(p.modelID)
	if !ok {
		return nil
	}
	return q.fold(ctx, p, wanted{s.of, place, rows})
}

// share estimates how many of the next rows the filter lets through to be scored, at least
// one, from what it has kept so far. Before the filter has run, the estimate is a quarter of
// the rows. rows is at least 1.
func (p *plan) share(rows int32) uint32 {
	if p.filter == nil {
		return uint32(rows)
	}
	return 1 + uint32(float64(rows-1)*float64(p.kept+batchRows/4)/float64(p.filtered+batchRows))
}

// tally counts how many rows the filter saw and kept. It halves both counts after about a
// million rows, so that recent rows count more.
func (p *plan) tally(rows, kept int) {
	if p.filtered, p.kept = p.filtered+int64(rows), p.kept+int64(kept); p.filtered > 1<<20 {
		p.filtered, p.kept = p.filtered/2, p.kept/2
	}
}

// fold adds the rows of w to those that wait to be computed, and computes them whenever the
// batch is full.
func (q *Query) fold(ctx context.Context, p *plan, w wanted) error {
	f := &p.folder
	if f.scorer == nil {
		if err := f.bind(p); f.unfoldable {
			return err
		}
	}
	if f.batch.Room() < w.rows {
		if err := q.keepFolded(ctx, p); err != nil {
			return err
		}
	}
	f.wanted = append(f.wanted, w)
	rows := w.timeline.First()
	for lo := rows.Len() - w.rows; lo < rows.Len(); {
		if f.batch.Room() == 0 {
			if err := f.score(ctx, q); err != nil {
				return err
			}
		}
		n := min(rows.Len()-lo, f.batch.Room())
		f.batch.Add(rows, lo, lo+n)
		lo += n
	}
	return nil
}

// bind binds the model's record-only part to the plan's layouts. It sets f.unfoldable if
// the model has none, or with an error.
func (f *folder) bind(p *plan) (err error) {
	f.scorer, err = p.model.BindFold(p.rows, p.entity)
	if f.unfoldable = f.scorer == nil; f.unfoldable {
		return err
	}
	columns, _ := f.scorer.Reads(nil, false)
	f.pieces.bind(f.scorer.Readings(false), p.model)
	f.batch.Reset(p.rows, slices.Compact(slices.Sorted(slices.Values(columns))), batchRows)
	return nil
}

// score computes the numbers of the rows in the batch into f.own, and empties the batch.
func (f *folder) score(ctx context.Context, q *Query) error {
	n, at := f.batch.Len(), len(f.own)
	f.own = slices.Grow(f.own, n)[:at+n]
	rows, sel := f.batch.Slab(), q.upTo(n)
	err := q.pieces(ctx, &q.spent, &f.pieces, slabs{rows: rows}, sel, func(lo, hi int) { f.scorer.Score(rows, sel[lo:hi], nil, f.own[at+lo:]) })
	f.batch.Clear()
	return err
}

// keepFolded computes what is left of wanted, and puts the numbers into the cache. Several
// queries may do so at the same time. They compute the same numbers, and the cache keeps
// those of one query.
func (q *Query) keepFolded(ctx context.Context, p *plan) error {
	f := &p.folder
	if len(f.wanted) == 0 {
		return nil
	}
	if err := f.score(ctx, q); err != nil {
		return err
	}
	own := f.own
	for _, w := range f.wanted {
		most := slices.Max(own[:w.rows])
		if most != most {
			most = math.Inf(1)
		}
		q.spec.Folds.Fold(w.timeline, w.place, p.modelID, own[:w.rows], most)
		own = own[w.rows:]
	}
	f.forget()
	return nil
}

// forget empties wanted and what was computed for it.
func (f *folder) forget() {
	clear(f.wanted)
	f.wanted, f.own = f.wanted[:0], f.own[:0]
	f.batch.Clear()
}
