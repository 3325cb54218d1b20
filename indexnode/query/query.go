// Package query answers one question over timelines that stand in memory as
// slabs: filter, score, rank, cap, best N. It is the semantics of
// ARCHITECTURE.md, "Exact semantics", for the timelines of one node.
//
//	timelines ──gather──► batch ──filter──► selection ──score──► s < worst of the best? ──► rest
//	                                                                   │ no
//	                                                                   ▼
//	                                                         best, a heap, worst at its root
//
// A query is used by one goroutine. Its time goes to the rows it touches; its
// own bookkeeping is a comparison for most candidates. What it works with
// comes from a pool and goes back there, so that, but for what binding the
// filter and the model takes, a query allocates nothing.
package query

import (
	"context"
	"sort"
	"sync"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/filter"
	"github.com/millrace/millrace/relevance"
)

// Spec is the question.
type Spec struct {
	From, To        millrace.Time // window of record times, To exclusive
	AsOf            millrace.Time
	Filter          *filter.Filter // nil: every candidate stays
	Model           *relevance.Model
	Viewer          *millrace.Viewer
	Limit           int // items wanted, at least 1
	Cap             int // best candidates of an entity that remain; 0: all
	DistinctObjects bool
	Exclude         map[uint64]struct{} // by millrace.ServedHash
	Explain         bool                // account for the score of each item
}

// window returns the rows of a slab with from <= time < to, of which the times
// ascend: [lo, hi).
func window(slab *column.Slab, from, to millrace.Time) (lo, hi int) {
	times := slab.Column(slab.Layout().Time())
	hi = len(times)
	if hi == 0 {
		return 0, 0
	}
	// Most windows hold a timeline whole.
	if millrace.Time(times[hi-1]) >= to {
		hi = firstAt(times, to)
	}
	if millrace.Time(times[0]) < from {
		lo = min(hi, firstAt(times, from))
	}
	return lo, hi
}

// firstAt returns the first row at t or later.
func firstAt(times []uint64, t millrace.Time) int {
	return sort.Search(len(times), func(i int) bool { return millrace.Time(times[i]) >= t })
}

// Stages counts candidates by what became of them.
type Stages struct {
	Candidates int64
	Filtered   filter.Counts
	Scored     int64
	Capped     int64 // of those that ranked above the answer's last item
}

// Query accumulates the candidates of one question.
type Query struct {
	spec     Spec
	plans    []*plan
	segments []segment
	top      top
	stages   Stages

	// Of the scan.
	unwatched int // rows since the context was looked at
	sel       []int32
	scores    []float64
	all       []int32 // 0, 1, 2, ...
	fold      column.Batch

	// Of the answer.
	items     []Item
	perEntity map[millrace.Entity]int
	byObject  map[millrace.Object]int
}

// segment is the rows [lo, hi) of a slab of a timeline.
type segment struct {
	slab     *column.Slab
	of       *cache.Timeline // whose only segment it is, or nil
	lo, hi   int32
	plan     int32 // in plans, once scanned
	timeline millrace.Timeline
	features *column.Slab // of the entity; nil when it has none
}

var pool = sync.Pool{New: func() any {
	return &Query{perEntity: make(map[millrace.Entity]int), byObject: make(map[millrace.Object]int)}
}}

// New starts a query. Release it when its answer is no longer needed.
func New(s Spec) *Query {
	q := pool.Get().(*Query)
	q.spec, q.unwatched = s, watchRows
	q.top.reset(s)
	return q
}

// Release ends the query, and with it its answer.
func (q *Query) Release() {
	for _, p := range q.plans {
		p.release()
	}
	clear(q.segments)
	for i := range q.items {
		it := &q.items[i]
		clear(it.Also)
		*it = Item{Also: it.Also[:0]}
	}
	clear(q.perEntity)
	clear(q.byObject)
	q.spec, q.stages = Spec{}, Stages{}
	q.plans, q.segments, q.items = q.plans[:0], q.segments[:0], q.items[:0]
	pool.Put(q)
}

// Add adds the records of a timeline that are in the question's window.
// features is the entity's row, or nil.
//
// All are added before any is scanned: what Add touches of one slab is in
// memory by itself, and the misses of a thousand short calls overlap.
func (q *Query) Add(t millrace.Timeline, tl *cache.Timeline, features *column.Slab) {
	of := tl
	if len(tl.Segments) != 1 {
		of = nil
	}
	for _, slab := range tl.Segments {
		if lo, hi := window(slab, q.spec.From, q.spec.To); lo < hi {
			q.segments = append(q.segments, segment{slab: slab, of: of, lo: int32(lo), hi: int32(hi), timeline: t, features: features})
		}
	}
}

// Scan filters and scores what was added. It stops within a few thousand rows
// of the end of ctx.
func (q *Query) Scan(ctx context.Context) error {
	for i := range q.segments {
		s := &q.segments[i]
		var err error
		if s.plan, err = q.plan(s.slab.Layout(), s.features); err != nil {
			return err
		}
		if err := q.gather(ctx, int32(i)); err != nil {
			return err
		}
	}
	for _, p := range q.plans {
		if err := q.scan(ctx, p, &p.full); err != nil {
			return err
		}
		if err := q.scan(ctx, p, &p.folded); err != nil {
			return err
		}
	}
	return nil
}
