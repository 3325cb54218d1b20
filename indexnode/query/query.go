// Package query answers one question over timelines that stand in memory as
// packed rows: filter, score, rank, cap, best N. It is the semantics of
// ARCHITECTURE.md, "Exact semantics", for the timelines of one node.
//
//	timelines ──gather──► batch ──filter──► selection ──bounds──► may be among the best ──score──► best,
//	                                                     │                                         a heap
//	                                                     ▼ no: forgotten, and counted
//
// A query is used by one goroutine. Its time goes to the rows it touches; its
// own bookkeeping is a comparison for most candidates. What it works with
// comes from queries before it, the bound filter and model included, so that a
// query like one of them allocates nothing.
package query

import (
	"context"
	"runtime"
	"time"

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
	Exclude         map[uint64]struct{} // by millrace.ServedHash, under
	ServedKey       millrace.ServedKey
	Explain         bool             // account for the score of each item
	Features        bool             // tell the features of each item
	Measure         bool             // count the features that items lack, and score them by Shadow
	Shadow          *relevance.Joint // with Explain: Model and those that score the items beside it, or nil
	ShadowErr       error            // why it is nil though models are asked for
	Folds           *cache.Cache     // that the timelines come from; nil: what is folded is not kept
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
	spec   Spec
	asked  []asked
	places []place // of segments
	plans  []*plan // of the segments
	spare  []*plan // of earlier questions, the last used last
	top    top
	stages Stages
	from   millrace.Time // of the window, of what is added now

	objects map[millrace.Entity]*cache.Timeline // features of objects, by who routes them
	parts   []column.Packed
	routed  []routed // of objects, by the entity of the segment at hand

	// Of the scan.
	prefetched int   // how many of asked, and some that are not there
	unwatched  int   // rows since the context was looked at
	unscored   int64 // candidates left out by bounds
	beyonds    int   // timelines of which all are
	sel        []int32
	scores     []float64
	all        []int32       // 0, 1, 2, ...
	again      bool          // what is scanned was scanned before
	finite     bool          // a candidate has a score that is a finite number
	model      cache.ModelID // of the plans, once there is one

	clauses []filter.Counts // with Explain: of each clause of the filter

	// Of the answer.
	items     []Item
	perEntity map[millrace.Entity]int
	byObject  map[millrace.Object]int

	beside []*Query // that rank by other models; see Beside
	ranked int      // of them have a ranking of this question

	// Of the models' code.
	scoring bool // it is at work
	spent   spent

	// Of what is measured.
	measures    *relevance.Model // that ranks, where it is not the plans'
	besideSpent spent            // by the models that ranked beside it at last
	lacking     map[string]int64
	looked      int
}

// asked is a timeline that is asked for.
type asked struct {
	timeline millrace.Timeline
	held     *cache.Timeline
	features column.Packed // of the entity; none when it has none
	from     millrace.Time
}

// spent is what scoring took.
type spent struct {
	time    time.Duration
	grown   int     // how many times pieces have
	watcher Watcher // nil: nobody
}

// Watcher looks at what scoring takes while it goes on.
type Watcher interface {
	// Scored is told of each piece of rows how many bytes of texts and items of lists
	// were read for it, and what it took, of a processor where Processor says so. An
	// error ends the scan, and is its error.
	Scored(rows, read int, took time.Duration) error
	// Processor reports whether the time of a processor is to be told of the next
	// piece, not that which passes: a model is not to blame for a process that was
	// stopped, or a machine that had others to run. It costs some microseconds.
	Processor() bool
}

// Watch has w look at what [Query.Scan] does.
func (q *Query) Watch(w Watcher) { q.spent.watcher = w }

// WatchBeside has w look at what [Query.Beside] does; nil: nobody.
func (q *Query) WatchBeside(w Watcher) { q.besideSpent.watcher = w }

// Scoring reports whether a model's code is at work, or was when it panicked,
// and forgets it.
func (q *Query) Scoring() bool {
	is := q.scoring
	q.scoring = false
	return is
}

// count has models score, and returns what that takes.
func (q *Query) count(s *spent, by func()) (took time.Duration) {
	q.scoring = true
	if s.watcher != nil && s.watcher.Processor() {
		took = ofProcessor(by)
	} else {
		began := time.Now()
		by()
		took = time.Since(began)
	}
	q.scoring = false
	s.time += took
	return took
}

// ofProcessor returns what f takes of a processor.
func ofProcessor(f func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := threadTime()
	f()
	return threadTime() - began
}

// segment is the rows [lo, hi) of a part of a timeline.
type segment struct {
	*asked
	place
	rows column.Packed
	of   *cache.Timeline // whose only part it is, or nil
}

// place tells where a segment is, without pointers: each that a query wrote
// down would go past the collector while it marks, and again when it is cleared.
type place struct {
	asked  int32 // in asked
	part   int32 // of its timeline
	lo, hi int32
	plan   int32 // in plans
}

// segment returns the i-th segment.
func (q *Query) segment(i int32) segment {
	p := q.places[i]
	a := &q.asked[p.asked]
	if a.held.Parts() == 1 {
		return segment{a, p, a.held.First(), a.held}
	}
	return segment{a, p, a.held.Append(nil)[p.part], nil}
}

// New starts a query. Release it when its answer is no longer needed.
func New(s Spec) *Query {
	q := spare.get()
	q.begin(s)
	return q
}

func (q *Query) begin(s Spec) {
	q.spec, q.from, q.unwatched = s, s.From, watchRows
	q.top.reset(&q.spec)
}

// Release ends the query, and with it its answer.
func (q *Query) Release() {
	q.reset()
	spare.put(q, time.Now())
}

// reset lets go of all but memory.
func (q *Query) reset() {
	q.releasePlans()
	clear(q.asked)
	q.dropItems()
	clear(q.objects)
	clear(q.parts)
	clear(q.routed)
	clear(q.perEntity)
	clear(q.byObject)
	q.spec, q.stages, q.model, q.again, q.clauses, q.unscored, q.beyonds, q.prefetched = Spec{}, Stages{}, 0, false, nil, 0, 0, 0
	q.scoring, q.spent, q.finite = false, spent{}, false
	q.measures, q.besideSpent, q.ranked, q.lacking, q.looked = nil, spent{}, 0, nil, 0
	q.asked, q.places = q.asked[:0], q.places[:0]
	for _, r := range q.beside {
		r.asked, r.places, r.plans = nil, nil, nil // which are this query's
		r.reset()
	}
}

// Add adds the records of a timeline that are in the question's window.
// features is the entity's row, or none. They are looked at by Scan.
func (q *Query) Add(t millrace.Timeline, tl *cache.Timeline, features column.Packed) {
	q.asked = append(q.asked, asked{t, tl, features, q.from})
}

// NotBefore cuts the window of what is added next to t and later.
func (q *Query) NotBefore(t millrace.Time) { q.from = max(q.spec.From, t) }

// gatherAsked makes segments of what was asked for, and gathers their rows. It
// is told a little ahead where it will look: a thousand timelines lie in a
// thousand places, and waiting for one after the other takes longer than all
// the rest.
func (q *Query) gatherAsked(ctx context.Context) error {
	for i := 0; i < len(q.asked); i++ {
		q.prefetch(i + aheadHeaders + 1)
		if older := q.asked[i]; older.held.Older() != nil {
			older.held = older.held.Older()
			q.asked = append(q.asked, older)
		}
		a := &q.asked[i]
		if a.held.Parts() == 1 {
			if err := q.gatherWindow(ctx, segment{a, place{asked: int32(i)}, a.held.First(), a.held}); err != nil {
				return err
			}
			continue
		}
		for part, rows := range a.held.Append(nil) {
			if err := q.gatherWindow(ctx, segment{a, place{asked: int32(i), part: int32(part)}, rows, nil}); err != nil {
				return err
			}
		}
	}
	return nil
}

// How many timelines ahead memory is asked for: first what tells whether there
// are rows in the window, then the rows. It may be further: a core has only so
// many lines on their way, and while rows are scanned there is room for some.
const (
	aheadHeaders = 14
	aheadRows    = 6
	whileScanned = 2 // at each step of a scan
)

// prefetch asks for memory up to the headers of the timeline before the end-th.
func (q *Query) prefetch(end int) {
	for ; q.prefetched < end; q.prefetched++ {
		if i := q.prefetched; i < len(q.asked) {
			q.asked[i].held.Prefetch()
		}
		if i := q.prefetched - (aheadHeaders - aheadRows); 0 <= i && i < len(q.asked) {
			a := &q.asked[i]
			a.held.PrefetchRows(a.from, q.spec.To, q.model)
		}
	}
}

// gatherWindow gathers the rows of a part that are in the window, if there are
// any.
func (q *Query) gatherWindow(ctx context.Context, s segment) (err error) {
	if s.lo, s.hi = q.window(s.rows, s.from); s.lo == s.hi {
		return nil
	}
	if s.plan, err = q.plan(s.rows.Layout(), s.features); err != nil {
		return err
	}
	q.places = append(q.places, s.place)
	return q.gather(ctx, int32(len(q.places)-1), &s)
}

// window returns the rows [lo, hi) with from <= time < To, of which the times
// ascend. Most windows hold a timeline whole, and nothing but its header is
// looked at to know it.
func (q *Query) window(rows column.Packed, from millrace.Time) (lo, hi int32) {
	hi = int32(rows.FirstAt(int64(q.spec.To)))
	return min(hi, int32(rows.FirstAt(int64(from)))), hi
}

// AddObjects adds the features of objects that an entity routes, for a model
// that reads them: parts in which subjects ascend.
func (q *Query) AddObjects(e millrace.Entity, tl *cache.Timeline) { q.objects[e] = tl }

// Scan filters, scores and ranks what was added. It stops within a few thousand
// rows of the end of ctx, and within some megabytes of what models and filters read.
func (q *Query) Scan(ctx context.Context) error {
	if err := q.gatherAsked(ctx); err != nil {
		return err
	}
	for _, p := range q.plans {
		if err := q.keepFolded(ctx, p); err != nil {
			return err
		}
	}
	if err := q.scanGathered(ctx); err != nil {
		return err
	}
	q.countFiltered()
	for !q.rank() {
		q.unrank()
		if err := q.scanAgain(ctx); err != nil {
			return err
		}
	}
	return nil
}

// scanGathered scans what is left in batches.
func (q *Query) scanGathered(ctx context.Context) error {
	for _, p := range q.plans {
		for _, b := range []*batch{&p.full, &p.folded, &p.passed} {
			if err := q.scan(ctx, p, b); err != nil {
				return err
			}
		}
	}
	return nil
}

// scanAgain scans all segments once more, to keep more of the best. Nothing is
// counted twice.
func (q *Query) scanAgain(ctx context.Context) error {
	counted := q.stages
	q.again = true
	q.top.keep(moreTimes * q.top.size)
	for i := range q.places {
		s := q.segment(int32(i))
		if err := q.gather(ctx, int32(i), &s); err != nil {
			return err
		}
	}
	err := q.scanGathered(ctx)
	q.stages = counted
	return err
}

// countFiltered counts what the filters dropped so far.
func (q *Query) countFiltered() {
	f := &q.stages.Filtered
	if q.spec.Filter != nil && q.spec.Explain {
		q.clauses = make([]filter.Counts, q.spec.Filter.Clauses())
	}
	for _, p := range q.plans {
		if p.filter != nil {
			f.AddAll(p.filter.Counts())
			for i := range q.clauses {
				q.clauses[i].AddAll(p.filter.ClauseCounts(i))
			}
		}
	}
}

// Clauses returns what each clause of the filter dropped, in the order of its
// sources, for a question that asks to explain.
func (q *Query) Clauses() []filter.Counts { return q.clauses }
