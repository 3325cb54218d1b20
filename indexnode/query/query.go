// Package query answers one question over timelines that stand in memory as
// slabs: filter, score, rank, cap, best N. It is the semantics of
// ARCHITECTURE.md, "Exact semantics", for the timelines of one node.
//
//	rows ──filter──► selection ──score──► s < worst of the best? ──► rest
//	                                            │ no
//	                                            ▼
//	                                  best, a heap, worst at its root
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
}

// Segment is consecutive rows of one timeline under one layout, with times
// ascending: those of the query's window.
type Segment struct {
	Slab   *column.Slab
	Lo, Hi int
}

// Window returns the segment of a slab with from <= time < to.
func Window(slab *column.Slab, from, to millrace.Time) Segment {
	times := slab.Column(slab.Layout().Time())
	s := Segment{slab, 0, len(times)}
	if s.Hi == 0 {
		return s
	}
	// Most windows hold a timeline whole.
	if millrace.Time(times[s.Hi-1]) >= to {
		s.Hi = firstAt(times, to)
	}
	if millrace.Time(times[0]) < from {
		s.Lo = min(s.Hi, firstAt(times, from))
	}
	return s
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
	spec      Spec
	plans     []plan
	segments  []source
	top       top
	sel       []int32
	scores    []float64
	stages    Stages
	unwatched int // rows since the context was looked at

	// Of the answer.
	items     []Item
	perEntity map[millrace.Entity]int
	byObject  map[millrace.Object]int
}

// source is where candidates come from.
type source struct {
	slab     *column.Slab
	timeline millrace.Timeline
	columns  columns
}

var pool = sync.Pool{New: func() any {
	return &Query{perEntity: make(map[millrace.Entity]int), byObject: make(map[millrace.Object]int)}
}}

// New starts a query. Release it when its answer is no longer needed.
func New(s Spec) *Query {
	q := pool.Get().(*Query)
	q.spec = s
	q.top.reset(s)
	return q
}

// Release ends the query, and with it its answer.
func (q *Query) Release() {
	clear(q.plans)
	clear(q.segments)
	for i := range q.items {
		it := &q.items[i]
		clear(it.Also)
		*it = Item{Also: it.Also[:0]}
	}
	clear(q.perEntity)
	clear(q.byObject)
	q.spec, q.stages, q.unwatched = Spec{}, Stages{}, 0
	q.plans, q.segments, q.items = q.plans[:0], q.segments[:0], q.items[:0]
	pool.Put(q)
}

const (
	// batchRows is how many rows are filtered and scored at a time.
	batchRows = 2048
	// watchRows is after how many rows the deadline is looked at.
	watchRows = 4096
)

// Add filters and scores the rows of a segment. features is the entity's row,
// or nil. It stops within a few thousand rows of the end of ctx.
func (q *Query) Add(ctx context.Context, t millrace.Timeline, s Segment, features *column.Slab) error {
	if s.Lo >= s.Hi {
		return nil
	}
	p, err := q.plan(s.Slab.Layout(), features)
	if err != nil {
		return err
	}
	segment := int32(len(q.segments))
	q.segments = append(q.segments, source{s.Slab, t, p.columns})
	for lo := s.Lo; lo < s.Hi; lo += batchRows {
		hi := min(s.Hi, lo+batchRows)
		if q.unwatched += hi - lo; q.unwatched > watchRows {
			q.unwatched = 0
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		q.scan(p, segment, Segment{s.Slab, lo, hi}, features)
	}
	return nil
}

// scan takes rows into the ranking.
func (q *Query) scan(p *plan, segment int32, s Segment, features *column.Slab) {
	q.stages.Candidates += int64(s.Hi - s.Lo)
	q.sel = q.sel[:0]
	if p.filter != nil {
		q.sel = p.filter.Select(s.Slab, s.Lo, s.Hi, features, q.sel)
	} else {
		for row := s.Lo; row < s.Hi; row++ {
			q.sel = append(q.sel, int32(row))
		}
	}
	if len(q.sel) == 0 {
		return
	}
	if cap(q.scores) < len(q.sel) {
		q.scores = make([]float64, batchRows)
	}
	scores := q.scores[:len(q.sel)]
	p.scorer.Score(s.Slab, q.sel, features, scores)
	q.stages.Scored += int64(len(q.sel))
	q.take(segment, s.Slab.Column(p.time), scores)
}
