package query

import (
	"context"
	"math"
	"slices"

	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
)

// This file folds: the part of a score that depends on a record alone is
// computed once, for the rows that windows reach, and kept beside the timeline.
// That is done once scoring these rows whole has cost as much: what few
// questions ask for, or a filter drops nearly all of, is not worth it.

// folding is false only in tests and benchmarks that tell what folding is worth.
var folding = true

// folder computes the record-only part of a plan's scores.
type folder struct {
	scorer     *relevance.Scorer // nil until it is needed
	unfoldable bool              // the model has no such part
	batch      column.Batch
	wanted     []wanted
	own        []float64 // of the rows of wanted that were computed
	pieces     pieces
}

// wanted is a timeline of which the last rows of the only part are folded.
type wanted struct {
	timeline *cache.Timeline
	place    cache.Place
	rows     int
}

// folds reports whether something may be folded for a segment.
func (q *Query) folds(p *plan, s *segment) bool {
	return s.of != nil && q.spec.Folds != nil && !p.folder.unfoldable && folding
}

// owe is told that rows [lo, hi) of a segment are scored whole, since nothing is
// folded for them. It has the rows from lo on folded when that has paid for it.
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

// share returns how many of so many rows are scored, as the filter went so far,
// but one at least. Of a filter that has not run a quarter is taken to pass.
func (p *plan) share(rows int32) uint32 {
	if p.filter == nil {
		return uint32(rows)
	}
	return 1 + uint32(float64(rows-1)*float64(p.kept+batchRows/4)/float64(p.filtered+batchRows))
}

// tally counts what the filter keeps, and forgets slowly.
func (p *plan) tally(rows, kept int) {
	if p.filtered, p.kept = p.filtered+int64(rows), p.kept+int64(kept); p.filtered > 1<<20 {
		p.filtered, p.kept = p.filtered/2, p.kept/2
	}
}

// fold has rows computed, with those of other timelines.
func (q *Query) fold(ctx context.Context, p *plan, w wanted) error {
	f := &p.folder
	if f.scorer == nil {
		if err := f.bind(p); f.unfoldable || err != nil {
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

// score computes what is in the batch, and empties it.
func (f *folder) score(ctx context.Context, q *Query) error {
	n, at := f.batch.Len(), len(f.own)
	f.own = slices.Grow(f.own, n)[:at+n]
	rows, sel := f.batch.Slab(), q.upTo(n)
	err := q.pieces(ctx, &q.spent, &f.pieces, slabs{rows: rows}, sel, func(lo, hi int) { f.scorer.Score(rows, sel[lo:hi], nil, f.own[at+lo:]) })
	f.batch.Clear()
	return err
}

// keepFolded computes what is wanted, and keeps it. Queries that do so at once
// compute the same, and one of them is kept.
func (q *Query) keepFolded(ctx context.Context, p *plan) error {
	f := &p.folder
	if len(f.wanted) == 0 {
		return nil
	}
	if err := f.score(ctx, q); err != nil {
		f.forget()
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

// forget lets go of what is wanted.
func (f *folder) forget() {
	clear(f.wanted)
	f.wanted, f.own = f.wanted[:0], f.own[:0]
	f.batch.Clear()
}
