package query

import (
	"context"
	"math"
	"slices"

	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
)

const (
	// batchRows is how many rows are filtered and scored at a time: few enough
	// that what is read of them stays beside the core, and enough that what a
	// batch costs is spread over many timelines.
	batchRows = 1024
	// firstRows is how many are scanned first where bounds may leave out some
	// of those after them: few, so that the worst of the best is soon known.
	firstRows = 128
	// watchRows is after how many rows the deadline is looked at.
	watchRows = 4096
)

// batch is rows of several segments that a plan scans together: one timeline
// has too few to be worth the set-up of a filter and a model.
type batch struct {
	column.Batch
	kind     kind
	full     int       // how many rows are scanned at a time; 0 until the question has some
	own      []float64 // of each row what is folded, if it is
	spans    []span    // ascending
	columns  []int     // that the scan reads
	entity   bool      // the scan reads features of the entity
	features column.Packed
	row      column.Batch       // of features; empty until the scan reads it
	layout   *column.Layout     // of row
	objects  *relevance.Objects // of each row; nil if the scan reads none
	pieces   pieces

	oldest, newest int64 // no time of a row is before or after
}

// kind is what is done with the rows of a batch that the filter keeps.
type kind uint8

const (
	unready kind = iota
	whole        // scored
	folded       // scored with what is folded, unless bounds leave them out
	passed       // nothing: bounds leave all of their timelines out
)

// span is where rows of a segment stand in a batch.
type span struct {
	segment int32
	at, row int32 // row row of the segment is row at of the batch
}

// ready tells what scans of the batch read, and empties it. It stays so for the
// questions after this one.
func (b *batch) ready(p *plan, k kind) {
	b.kind, b.columns, b.entity, b.objects = k, b.columns[:0], false, nil
	var objects *column.Layout
	if k != passed {
		b.columns, b.entity = p.scorer.Reads(append(b.columns, p.time), k == folded)
		b.pieces.bind(p.scorer.Readings(k == folded), p.model)
		objects = p.scorer.ObjectLayout()
	}
	b.reads(p, objects)
}

// reads prepares for what scorers read, features of objects too if there is a
// layout of them, and for what the filter does.
func (b *batch) reads(p *plan, objects *column.Layout) {
	if objects != nil {
		b.objects = relevance.NewObjects(objects)
	}
	if p.filter != nil {
		columns, entity := p.filter.Reads(b.columns)
		b.columns, b.entity = columns, b.entity || entity
	}
	slices.Sort(b.columns)
	b.columns = slices.Compact(b.columns)
	b.Reset(p.rows, b.columns, batchRows)
	b.clear()
}

// clear empties the batch.
func (b *batch) clear() {
	b.Clear()
	b.row.Clear()
	b.own, b.spans, b.features = b.own[:0], b.spans[:0], column.Packed{}
	b.oldest, b.newest = math.MaxInt64, math.MinInt64
	if b.objects != nil {
		b.objects.Reset()
	}
}

// widened returns the entity's row, if the scan reads it and there is one. Its lists and
// long texts stay where they are.
func (b *batch) widened() *column.Slab {
	if !b.entity || b.features.None() {
		return nil
	}
	if l := b.features.Layout(); l != b.layout {
		fields := make([]int, len(l.Fields()))
		for f := range fields {
			fields[f] = f
		}
		b.row.Reset(l, fields, 1)
		b.layout = l
	}
	b.row.Clear()
	b.row.Add(b.features, 0, 1)
	return b.row.Slab()
}

// filled reports whether no row with such features of its entity can be added.
func (b *batch) filled(features column.Packed) bool {
	return b.Room() == 0 || b.Len() >= b.full || b.entity && b.features != features
}

// add adds rows [lo, hi) of the i-th segment, as many as there is room for, and
// returns how many.
func (q *Query) add(p *plan, b *batch, i int32, s *segment, lo, hi int32) (n int32, err error) {
	n = min(int32(min(b.Room(), b.full-b.Len())), hi-lo)
	b.features = s.features
	b.spans = append(b.spans, span{i, int32(b.Len()), lo})
	b.Add(s.rows, int(lo), int(lo+n))
	if b.objects != nil {
		err = q.join(b.objects, &p.columns, s, int(lo), int(lo+n))
	}
	return n, err
}

// gather adds the rows of the i-th segment to batches of its plan: those for
// which something is folded to one, and those before it to another.
func (q *Query) gather(ctx context.Context, i int32, s *segment) error {
	p := q.plans[s.plan]
	var f *cache.Folded
	if q.folds(p, s) {
		f = s.of.Folded(p.modelID)
	}
	lo := s.hi
	if f != nil {
		lo = min(s.hi, max(s.lo, int32(f.First)))
	}
	if s.lo < lo {
		if q.folds(p, s) && !q.again {
			if err := q.owe(ctx, p, s, s.lo, lo); err != nil {
				return err
			}
		}
		if err := q.gatherRows(ctx, p, whole, i, s, s.lo, lo, nil); err != nil {
			return err
		}
	}
	if lo == s.hi {
		return nil
	}
	if !q.beyond(p, s, f.Most) {
		return q.gatherRows(ctx, p, folded, i, s, lo, s.hi, f.Own()[lo-int32(f.First):])
	}
	q.beyonds++
	if p.filter != nil {
		return q.gatherRows(ctx, p, passed, i, s, lo, s.hi, nil)
	}
	q.stages.Candidates += int64(s.hi - lo)
	q.passOver(int(s.hi - lo))
	return nil
}

// gatherRows adds rows [lo, hi) of the i-th segment to the plan's batch of a
// kind, with what is folded of them, and scans it whenever it is full.
func (q *Query) gatherRows(ctx context.Context, p *plan, k kind, i int32, s *segment, lo, hi int32, own []float64) error {
	b := p.batchOf(k)
	if b.full == 0 {
		p.begin(b, k)
	}
	for lo < hi {
		if b.filled(s.features) {
			if err := q.scan(ctx, p, b); err != nil {
				return err
			}
		}
		n, err := q.add(p, b, i, s, lo, hi)
		if err != nil {
			return err
		}
		if own != nil {
			b.own, own = append(b.own, own[:n]...), own[n:]
			oldest, newest := s.rows.Times()
			b.oldest, b.newest = min(b.oldest, max(oldest, int64(s.from))), max(b.newest, min(newest, int64(q.spec.To)))
		}
		lo += n
	}
	return nil
}

// begin prepares a batch for a question.
func (p *plan) begin(b *batch, k kind) {
	if b.kind == unready {
		b.ready(p, k)
	}
	if b.full = batchRows; k == folded {
		b.full = firstRows
		p.ceilings.bound(p.scorer.Ceilings(p.rows), b)
	}
}

// end lets go of what a question put into a batch.
func (b *batch) end() {
	b.clear()
	b.full = 0
}

func (p *plan) batchOf(k kind) *batch {
	switch k {
	case whole:
		return &p.full
	case folded:
		return &p.folded
	}
	return &p.passed
}

// scan takes the rows of a batch into the ranking, and empties it.
func (q *Query) scan(ctx context.Context, p *plan, b *batch) error {
	n := b.Len()
	if n == 0 {
		return nil
	}
	defer b.clear()
	b.full = min(2*b.full, batchRows)
	if err := q.watch(ctx, n); err != nil {
		return err
	}
	q.stages.Candidates += int64(n)
	rows, features := b.Slab(), b.widened()
	q.prefetch(q.prefetched + whileScanned)
	sel, err := q.filter(ctx, p, rows, features)
	if err != nil {
		return err
	}
	p.tally(n, len(sel))
	q.prefetch(q.prefetched + whileScanned)
	if b.kind == passed {
		q.passOver(len(sel))
		return nil
	}
	q.stages.Scored += int64(len(sel))
	if b.kind == folded {
		sel = q.prune(p, b, sel)
		q.prefetch(q.prefetched + whileScanned)
	}
	if len(sel) == 0 {
		return nil
	}
	if len(q.scores) < len(sel) {
		q.scores = make([]float64, batchRows)
	}
	scores := q.scores[:len(sel)]
	of := slabs{rows: rows, entity: features}
	if b.objects != nil {
		of.objects = b.objects.Slab()
		p.scorer.SetObjects(of.objects)
	}
	if err := q.pieces(ctx, &q.spent, &b.pieces, of, sel, func(lo, hi int) {
		if b.kind == folded {
			p.scorer.ScoreFolded(b.own, rows, sel[lo:hi], features, scores[lo:hi])
		} else {
			p.scorer.Score(rows, sel[lo:hi], features, scores[lo:hi])
		}
	}); err != nil {
		return err
	}
	q.prefetch(q.prefetched + whileScanned)
	q.take(b.spans, sel, rows.Column(p.time), scores)
	return nil
}

// watch counts rows, and looks at the deadline every few thousand of them: where a
// row may take long, pieces and the filter look more often.
func (q *Query) watch(ctx context.Context, rows int) error {
	if q.unwatched += rows; q.unwatched <= watchRows {
		return nil
	}
	q.unwatched = 0
	return ctx.Err()
}

// filter returns which rows the plan's filter keeps, until the next call.
func (q *Query) filter(ctx context.Context, p *plan, rows, features *column.Slab) ([]int32, error) {
	if p.filter == nil {
		return q.upTo(rows.Len()), nil
	}
	p.filter.Watch(ctx)
	q.sel = p.filter.Select(rows, 0, rows.Len(), features, q.sel[:0])
	return q.sel, p.filter.Over()
}

// passOver counts candidates that bounds leave out.
func (q *Query) passOver(n int) {
	q.stages.Scored += int64(n)
	q.unscored += int64(n)
}

// upTo returns 0, 1, ..., n-1.
func (q *Query) upTo(n int) []int32 {
	for len(q.all) < n {
		q.all = append(q.all, int32(len(q.all)))
	}
	return q.all[:n]
}
