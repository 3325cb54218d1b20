// Package query answers one question over timelines that stand in memory as
// slabs: filter, score, rank, cap, best N. It is the semantics of
// ARCHITECTURE.md, "Exact semantics", for the timelines of one node.
//
// A query is used by one goroutine. Its time goes to the rows it touches; its
// own bookkeeping is a word or two a candidate.
package query

import (
	"context"
	"sort"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/filter"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/schemas"
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
	times := slab.Column(slab.Layout().Role("time"))
	at := func(t millrace.Time) int {
		return sort.Search(len(times), func(i int) bool { return millrace.Time(times[i]) >= t })
	}
	lo := at(from)
	return Segment{slab, lo, max(lo, at(to))}
}

// Item is one ranked candidate. Its strings may share a slab's memory.
type Item struct {
	millrace.Rank
	Object millrace.Object
	Schema millrace.Fingerprint
	Body   []byte
	Also   []Item // further candidates of the object, without bodies
}

// Stages counts candidates by what became of them.
type Stages struct {
	Candidates int64
	Filtered   filter.Counts
	Scored     int64
	Capped     int64
}

// Answer is what a node contributes.
type Answer struct {
	Items     []Item
	Stages    Stages
	Execution string // of the model: generated or interpreted
}

// maxAlso is how many further candidates an item names.
const maxAlso = 3

// Query accumulates the candidates of one question.
type Query struct {
	spec     Spec
	plans    []plan
	segments []source
	found    []candidate
	sel      []int32
	scores   []float64
	stages   Stages
}

// plan is a spec bound to one pair of layouts.
type plan struct {
	rows, entity *column.Layout
	filter       *filter.Bound
	scorer       *relevance.Scorer
	columns
}

// columns tells where a layout keeps what ranks and identifies a row.
type columns struct {
	id, time, object, body, schema int // object is -1 when the schema has none
}

// source is where candidates come from.
type source struct {
	slab     *column.Slab
	timeline millrace.Timeline
	columns  columns
}

// candidate is a row that passed the filter, with what decides most
// comparisons beside it.
type candidate struct {
	score   float64
	time    millrace.Time
	segment int32
	row     int32
}

// New starts a query.
func New(s Spec) *Query { return &Query{spec: s} }

// Add filters and scores the rows of a segment. features is the entity's row,
// or nil.
func (q *Query) Add(ctx context.Context, t millrace.Timeline, s Segment, features *column.Slab) error {
	if s.Lo >= s.Hi {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	p, err := q.plan(s.Slab.Layout(), features)
	if err != nil {
		return err
	}
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
		return nil
	}
	if cap(q.scores) < len(q.sel) {
		q.scores = make([]float64, 2*len(q.sel))
	}
	scores := q.scores[:len(q.sel)]
	p.scorer.Score(s.Slab, q.sel, features, scores)
	q.stages.Scored += int64(len(q.sel))

	segment := int32(len(q.segments))
	q.segments = append(q.segments, source{s.Slab, t, p.columns})
	times := s.Slab.Column(p.time)
	for i, row := range q.sel {
		q.found = append(q.found, candidate{scores[i], millrace.Time(times[row]), segment, row})
	}
	return nil
}

func (q *Query) plan(rows *column.Layout, features *column.Slab) (*plan, error) {
	var entity *column.Layout
	if features != nil {
		entity = features.Layout()
	}
	for i := range q.plans {
		if p := &q.plans[i]; p.rows == rows && p.entity == entity {
			return p, nil
		}
	}
	p := plan{rows: rows, entity: entity, columns: columns{
		id: rows.Role("id"), time: rows.Role("time"), object: rows.Role("object"),
		body: rows.Index(schemas.BodyColumn), schema: rows.Index(schemas.SchemaColumn),
	}}
	var err error
	if q.spec.Filter != nil {
		if p.filter, err = q.spec.Filter.Bind(rows, entity, q.spec.Viewer, q.spec.AsOf); err != nil {
			return nil, err
		}
	}
	if p.scorer, err = q.spec.Model.Bind(rows, entity, q.spec.Viewer, q.spec.AsOf); err != nil {
		return nil, err
	}
	q.plans = append(q.plans, p)
	return &q.plans[len(q.plans)-1], nil
}

// Answer ranks what was added. The query is spent.
func (q *Query) Answer() Answer {
	a := Answer{Stages: q.stages}
	for i := range q.plans {
		p := &q.plans[i]
		a.Execution = p.scorer.Execution()
		if p.filter != nil {
			c := p.filter.Counts()
			f := &a.Stages.Filtered
			f.False, f.Null, f.Error, f.NaN = f.False+c.False, f.Null+c.Null, f.Error+c.Error, f.NaN+c.NaN
		}
	}
	a.Items, a.Stages.Capped = q.rank()
	return a
}

// rank takes candidates from a heap, best first, until it has the items
// wanted: building the heap costs one pass, and few are taken.
func (q *Query) rank() (items []Item, capped int64) {
	h := heap{q: q, c: q.found}
	h.init()
	var (
		perEntity map[millrace.Entity]int
		byObject  map[millrace.Object]int // index in items, or -1 when excluded
	)
	if q.spec.Cap > 0 {
		perEntity = make(map[millrace.Entity]int)
	}
	if q.spec.DistinctObjects {
		byObject = make(map[millrace.Object]int)
	}
	for len(h.c) > 0 && len(items) < q.spec.Limit {
		c := h.pop()
		entity := q.segments[c.segment].timeline.Entity
		if perEntity != nil {
			if perEntity[entity]++; perEntity[entity] > q.spec.Cap {
				capped++
				continue
			}
		}
		it := q.item(c)
		if q.spec.DistinctObjects {
			if i, seen := byObject[it.Object]; seen {
				if i >= 0 && len(items[i].Also) < maxAlso {
					it.Body = nil
					items[i].Also = append(items[i].Also, it)
				}
				continue
			}
		}
		if len(q.spec.Exclude) > 0 {
			if _, served := q.spec.Exclude[millrace.ServedHash(q.spec.DistinctObjects, it.Object, it.Timeline, it.ID)]; served {
				if byObject != nil {
					byObject[it.Object] = -1
				}
				continue
			}
		}
		if byObject != nil {
			byObject[it.Object] = len(items)
		}
		items = append(items, it)
	}
	return items, capped
}

func (q *Query) item(c candidate) Item {
	s := &q.segments[c.segment]
	row, slab := int(c.row), s.slab
	it := Item{
		Rank:   millrace.Rank{Score: c.score, Time: c.time, ID: q.id(c), Timeline: s.timeline},
		Schema: millrace.Fingerprint(slab.Word(s.columns.schema, row)),
		Body:   []byte(slab.String(slab.Word(s.columns.body, row))),
	}
	if o := s.columns.object; o >= 0 {
		it.Object = millrace.Object(slab.String(slab.Word(o, row)))
	}
	if it.Object == "" {
		it.Object = millrace.Object(it.ID)
	}
	return it
}

func (q *Query) id(c candidate) millrace.RecordID {
	s := &q.segments[c.segment]
	return millrace.RecordID(s.slab.String(s.slab.Word(s.columns.id, int(c.row))))
}

// before reports whether a ranks above b. Ids and timelines are looked at only
// when score and time tie.
func (q *Query) before(a, b candidate) bool {
	if c := millrace.CompareScores(a.score, b.score); c != 0 {
		return c < 0
	}
	if a.time != b.time {
		return a.time > b.time
	}
	ra := millrace.Rank{Score: a.score, Time: a.time, ID: q.id(a), Timeline: q.segments[a.segment].timeline}
	rb := millrace.Rank{Score: b.score, Time: b.time, ID: q.id(b), Timeline: q.segments[b.segment].timeline}
	return ra.Compare(rb) < 0
}
