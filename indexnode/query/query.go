// Package query answers one question over timelines that stand in memory as
// packed rows: filter, score, rank, cap, best N. It is the semantics of
// ARCHITECTURE.md, "Exact semantics", for the timelines of one node.
//
//	timelines ──gather──► batch ──filter──► selection ──score──► s < worst of the best? ──► rest
//	                                                                   │ no
//	                                                                   ▼
//	                                                         best, a heap, worst at its root
//
// A query is used by one goroutine. Its time goes to the rows it touches; its
// own bookkeeping is a comparison for most candidates. What it works with
// comes from a pool and goes back there, the bound filter and model included,
// so that a query like one before it allocates nothing.
package query

import (
	"context"
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
	Shadow          *relevance.Joint    // with Explain: Model and those that score the items beside it, or nil
	ShadowErr       error               // why it is nil though models are asked for
	Folds           *cache.Cache        // that the timelines come from; nil: what is folded is not kept
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
	asked    []asked
	segments []segment
	plans    []*plan // of the segments
	spare    []*plan // of earlier questions, the last used last
	top      top
	stages   Stages
	from     millrace.Time // of the window, of what is added now

	objects map[millrace.Entity]*cache.Timeline // features of objects, by who routes them
	parts   []column.Packed
	routed  []routed // of objects, by the entity of the segment at hand

	// Of the scan.
	unwatched int // rows since the context was looked at
	sel       []int32
	scores    []float64
	all       []int32 // 0, 1, 2, ...
	fold      column.Batch
	fresh     []float64     // what was folded last
	model     cache.ModelID // once it is needed

	// Of the answer.
	items     []Item
	perEntity map[millrace.Entity]int
	byObject  map[millrace.Object]int
}

// asked is a timeline that is asked for.
type asked struct {
	key      millrace.Timeline
	timeline *cache.Timeline
	features column.Packed // of the entity; none when it has none
	from     millrace.Time
}

// segment is the rows [lo, hi) of a part of a timeline.
type segment struct {
	rows     column.Packed
	of       *cache.Timeline // whose only part it is, or nil
	lo, hi   int32
	plan     int32 // in plans, once scanned
	timeline millrace.Timeline
	features column.Packed // of the entity; none when it has none
}

var pool = sync.Pool{New: func() any {
	return &Query{objects: make(map[millrace.Entity]*cache.Timeline), perEntity: make(map[millrace.Entity]int), byObject: make(map[millrace.Object]int)}
}}

// New starts a query. Release it when its answer is no longer needed.
func New(s Spec) *Query {
	q := pool.Get().(*Query)
	q.begin(s)
	return q
}

func (q *Query) begin(s Spec) {
	q.spec, q.from, q.unwatched = s, s.From, watchRows
	q.top.reset(s)
}

// Release ends the query, and with it its answer.
func (q *Query) Release() {
	q.reset()
	pool.Put(q)
}

// reset lets go of all but memory.
func (q *Query) reset() {
	q.releasePlans()
	clear(q.asked)
	clear(q.segments)
	for i := range q.items {
		it := &q.items[i]
		clear(it.Also)
		*it = Item{Also: it.Also[:0]}
	}
	clear(q.objects)
	clear(q.parts)
	clear(q.routed)
	clear(q.perEntity)
	clear(q.byObject)
	q.spec, q.stages, q.model = Spec{}, Stages{}, 0
	q.asked, q.segments, q.items = q.asked[:0], q.segments[:0], q.items[:0]
}

// Add adds the records of a timeline that are in the question's window.
// features is the entity's row, or none. They are looked at by Scan.
func (q *Query) Add(t millrace.Timeline, tl *cache.Timeline, features column.Packed) {
	q.asked = append(q.asked, asked{t, tl, features, q.from})
}

// NotBefore cuts the window of what is added next to t and later.
func (q *Query) NotBefore(t millrace.Time) { q.from = max(q.spec.From, t) }

// windows makes segments of what was asked for. It is told a little ahead
// where it will look, and so is the scan: a thousand timelines lie in a
// thousand places, and waiting for one after the other takes longer than all
// the rest.
func (q *Query) windows() {
	for i := range q.asked {
		if ahead := i + aheadWindows; ahead < len(q.asked) {
			q.asked[ahead].timeline.Prefetch()
		}
		a := &q.asked[i]
		for tl := a.timeline; tl != nil; tl = tl.Older() {
			if tl.Parts() == 1 {
				q.window(segment{rows: tl.First(), of: tl, timeline: a.key, features: a.features}, a.from)
				continue
			}
			for _, rows := range tl.Append(nil) {
				q.window(segment{rows: rows, timeline: a.key, features: a.features}, a.from)
			}
		}
	}
}

// How many timelines ahead memory is asked for.
const (
	aheadWindows = 8
	aheadRows    = 6
)

// window adds a segment of the rows with from <= time < To, of which the times
// ascend. Most windows hold a timeline whole, and nothing but its header is
// looked at.
func (q *Query) window(s segment, from millrace.Time) {
	hi := s.rows.FirstAt(int64(q.spec.To))
	lo := min(hi, s.rows.FirstAt(int64(from)))
	if lo < hi {
		s.lo, s.hi = int32(lo), int32(hi)
		q.segments = append(q.segments, s)
	}
}

// AddObjects adds the features of objects that an entity routes, for a model
// that reads them: parts in which subjects ascend.
func (q *Query) AddObjects(e millrace.Entity, tl *cache.Timeline) { q.objects[e] = tl }

// Scan filters and scores what was added. It stops within a few thousand rows
// of the end of ctx.
func (q *Query) Scan(ctx context.Context) error {
	q.windows()
	for i := range q.segments {
		if ahead := i + aheadRows; ahead < len(q.segments) && q.segments[ahead].of != nil {
			q.segments[ahead].of.PrefetchRows()
		}
		s := &q.segments[i]
		var err error
		if s.plan, err = q.plan(s.rows.Layout(), s.features); err != nil {
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
