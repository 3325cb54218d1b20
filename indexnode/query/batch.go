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
	// that what is read of them stays in the core's caches, and enough that the cost
	// of a batch is spread over many timelines.
	batchRows = 1024
	// firstRows is the size of the first batch of folded rows. It is small, so that
	// the worst score of the best candidates is known soon: rows that cannot reach it
	// are not scored.
	firstRows = 128
	// watchRows is how many rows are scanned between two looks at the context.
	watchRows = 4096
)

// batch is rows of several segments that a plan scans together, since one timeline
// has too few to be worth the set-up of a filter and a model.
type batch struct {
	column.Batch
	kind     kind
	full     int                // how many rows are scanned at a time; 0 until the question adds rows
	own      []float64          // kind folded: the folded number of each row (see cache.Folded)
	spans    []span             // where the rows are from, ascending by span.at
	columns  []int              // the columns that the scan reads, ascending
	entity   bool               // the scan reads features of the entity
	features column.Packed      // the features of the rows' entity: of the last rows' if entity is false
	row      column.Batch       // features, unpacked; empty until the scan reads it
	layout   *column.Layout     // the layout of row
	objects  *relevance.Objects // features of the object of each row; nil if the scan reads none
	pieces   pieces             // how many rows are scored at a time

	oldest, newest int64 // kind folded: no time of a row is before oldest or after newest
}

// kind is what is done with the rows of a batch that the filter keeps.
type kind uint8

const (
	unready kind = iota // the batch was not set up yet
	whole               // they are scored whole, since they have no folded numbers
	folded              // they are scored with their folded numbers, unless bounds leave them out
	passed              // they are only counted, since bounds leave out all rows of their timelines that have folded numbers
)

// span is where rows of a segment are in a batch.
type span struct {
	segment int32 // the index in Query.places
	at, row int32 // the rows from row on of the segment are the rows from at on of the batch
}

// ready sets up an empty batch of a kind: which columns and features its scans read. The
// set-up stays for later questions that use the same plan.
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

// reads adds the columns that the filter reads to those of the scorer, and empties the
// batch for them. objects is the layout of the features of objects that the scorer reads;
// nil if it reads none.
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

// widened returns the entity's features as a slab of one row; nil if the scan reads none or
// the entity has none. Lists and long texts stay in the packed row.
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

// filled reports whether the batch cannot take a row of an entity with these features. A
// batch whose scan reads features of the entity has rows of one entity only.
func (b *batch) filled(features column.Packed) bool {
	return b.Room() == 0 || b.Len() >= b.full || b.entity && b.features != features
}

// add adds rows of the i-th segment, from lo up to hi, as many as there is room for. It
// returns how many it added.
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

// gather adds the rows of the i-th segment to batches of its plan. Rows without a folded
// number go to the batch of kind whole. Rows with one go to the batch of kind folded; if
// bounds leave all of them out, they go to passed if there is a filter, and are only
// counted if there is none.
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

// gatherRows adds rows [lo, hi) of the i-th segment to the plan's batch of a kind, and
// scans the batch whenever it is full. own has the folded numbers of the rows; nil if they
// have none.
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

// begin prepares b, the plan's batch of kind k, for the first rows of a question.
func (p *plan) begin(b *batch, k kind) {
	if b.kind == unready {
		b.ready(p, k)
	}
	if b.full = batchRows; k == folded {
		b.full = firstRows
		p.ceilings.bound(p.scorer.Ceilings(p.rows), b)
	}
}

// end empties a batch at the end of a question.
func (b *batch) end() {
	b.clear()
	b.full = 0
}

// batchOf returns the plan's batch of a kind.
func (p *plan) batchOf(k kind) *batch {
	switch k {
	case whole:
		return &p.full
	case folded:
		return &p.folded
	}
	return &p.passed
}

// scan filters and scores the rows of a batch, takes them into the ranking, and empties the
// batch. Later batches of the plan may be twice as large, up to batchRows.
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

// watch counts rows, and returns the error of ctx every [watchRows] of them. Where a row
// may take long, pieces and the filter look at ctx more often.
func (q *Query) watch(ctx context.Context, rows int) error {
	if q.unwatched += rows; q.unwatched <= watchRows {
		return nil
	}
	q.unwatched = 0
	return ctx.Err()
}

// filter returns which rows the plan's filter keeps. The result is valid until the next
// call.
func (q *Query) filter(ctx context.Context, p *plan, rows, features *column.Slab) ([]int32, error) {
	if p.filter == nil {
		return q.upTo(rows.Len()), nil
	}
	p.filter.Watch(ctx)
	q.sel = p.filter.Select(rows, 0, rows.Len(), features, q.sel[:0])
	return q.sel, p.filter.Over()
}

// passOver counts n candidates that bounds leave out as scored.
func (q *Query) passOver(n int) {
	q.stages.Scored += int64(n)
	q.unscored += int64(n)
}

// upTo returns 0, 1, ..., n-1. The result must not be changed.
func (q *Query) upTo(n int) []int32 {
	for len(q.all) < n {
		q.all = append(q.all, int32(len(q.all)))
	}
	return q.all[:n]
}
