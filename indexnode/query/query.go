// Package query answers one question over timelines that are in memory as packed rows:
// filter, score, rank, cap, best N. It does for the timelines of one node what
// ARCHITECTURE.md describes under "Exact semantics".
//
//	timelines ──gather──► batch ──filter──► selection ──bounds──► may be among the best ──score──► best,
//	                                                     │                                         a heap
//	                                                     ▼ no: forgotten, and counted
//
// A query is used by one goroutine. Nearly all of its time goes to the rows it reads; for
// most candidates its own bookkeeping is one comparison. It reuses the memory of earlier
// queries, with their bound filters and models, so that a query like an earlier one
// allocates nothing.
//
// Some terms: a segment is the rows of a timeline's part that are in the window. A plan is
// the filter and the model bound to the layouts of such rows. A batch is rows of segments
// of one plan that are filtered and scored together. Folding computes the part of a score
// that depends on the record alone once, and keeps this number in the cache. Bounds tell
// from it that a candidate cannot be among the best, so that it is not scored. The floor is
// the score that a candidate must reach to be among the best so far.
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
	From, To        millrace.Time       // window of record times, To exclusive
	AsOf            millrace.Time       // the time that filter and model take for now, so that ages count from it
	Filter          *filter.Filter      // nil: every candidate stays
	Model           *relevance.Model    // scores the candidates
	Viewer          *millrace.Viewer    // whose values filter and model read
	Limit           int                 // items wanted, at least 1
	Cap             int                 // best candidates of an entity that remain; 0: all
	DistinctObjects bool                // one item for each object; further candidates of it go to Item.Also
	Exclude         map[uint64]struct{} // what earlier pages served, by millrace.ServedHash under ServedKey
	ServedKey       millrace.ServedKey  // the key of the hashes in Exclude
	Explain         bool                // explain the score of each item
	Features        bool                // tell the features of each item
	Measure         bool                // count which features the first items lack
	Shadow          *relevance.Joint    // Model, then the shadow models, whose scores of each item are returned too; nil: none
	ShadowErr       error               // why Shadow is nil though models were asked for
	Folds           *cache.Cache        // the cache of the timelines, which keeps folded numbers; nil: nothing is folded
}

// Stages counts candidates by what became of them.
type Stages struct {
	Candidates int64         // records in the window
	Filtered   filter.Counts // what the filter dropped, by why
	Scored     int64         // what the filter kept, with what bounds left out
	Capped     int64         // what the cap dropped before the answer was full
}

// Query accumulates the candidates of one question.
type Query struct {
	spec   Spec          // the question
	asked  []asked       // the timelines, each with those that it continues
	places []place       // where the segments are
	plans  []*plan       // the plans of the segments, one for each pair of layouts
	spare  []*plan       // plans of earlier questions, the last used last
	top    top           // the best candidates so far
	stages Stages        // the counts of the answer
	from   millrace.Time // where the window begins for what is added now: see NotBefore

	objects map[millrace.Entity]*cache.Timeline // features of objects, by the entity that routes them
	parts   []column.Packed                     // scratch of route
	routed  []routed                            // features of objects that the entity of the current segment routes

	// Of the scan.
	prefetched int           // how many of asked were prefetched; it may be more than there are
	unwatched  int           // rows since the context was looked at
	unscored   int64         // candidates that bounds left out
	beyonds    int           // segments whose folded rows bounds left out all at once
	sel        []int32       // the rows of a batch that the filter keeps
	scores     []float64     // the scores of those rows
	all        []int32       // 0, 1, 2, ...
	again      bool          // the segments are scanned once more: see scanAgain
	finite     bool          // a candidate has a score that is a finite number
	model      cache.ModelID // the id of the plans' model, once there is a plan; prefetch needs it

	clauses []filter.Counts // with Explain: what each clause of the filter dropped

	// Of the answer.
	items     []Item
	perEntity map[millrace.Entity]int // with Cap: how many candidates of the entity were taken
	byObject  map[millrace.Object]int // with DistinctObjects: the index of the object's item, or excluded

	beside []*Query // queries that rank by other models; see Beside
	ranked int      // the first ones of beside that have a ranking of this question

	// Of the models' code.
	scoring bool  // a model's code is running
	spent   spent // what scoring by Spec.Model took

	// Of what is measured.
	measures    *relevance.Model // the model that ranks, if it is not the plans'
	besideSpent spent            // what scoring by the last call of Beside took
	lacking     map[string]int64 // see Measured.Lacking
	looked      int              // see Measured.Looked
}

// asked is a timeline that the question asks for.
type asked struct {
	timeline millrace.Timeline
	held     *cache.Timeline // its rows, in memory
	features column.Packed   // the entity's features; it may be none
	from     millrace.Time   // where the window begins for it
}

// spent is what scoring took.
type spent struct {
	time    time.Duration // CPU time or wall time, see Watcher
	grown   int           // how many times the bound on the rows of a piece has doubled: see beginRows
	watcher Watcher       // nil: nobody watches
}

// Watcher watches how long scoring takes while it goes on.
type Watcher interface {
	// Scored is called after each piece of rows, with how many bytes of texts and items
	// of lists were read for it, and how long it took. That is CPU time if Processor
	// returned true before the piece, else wall time. An error ends the scan, which
	// returns that error.
	Scored(rows, read int, took time.Duration) error
	// Processor reports whether the CPU time of the next piece is to be measured
	// instead of wall time. CPU time is the model's alone: it does not grow when the process
	// is stopped or the machine is busy. Measuring it costs some microseconds.
	Processor() bool
}

// Watch sets the watcher of [Query.Scan]; nil: none.
func (q *Query) Watch(w Watcher) { q.spent.watcher = w }

// WatchBeside sets the watcher of [Query.Beside]; nil: none.
func (q *Query) WatchBeside(w Watcher) { q.besideSpent.watcher = w }

// Scoring reports whether a model's code was running when the query panicked. It resets
// that, so that a second call returns false.
func (q *Query) Scoring() bool {
	is := q.scoring
	q.scoring = false
	return is
}

// count calls by, which scores rows, and returns how long it took: CPU time if the watcher
// wants it, else wall time. It adds that to s.
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

// ofProcessor calls f, and returns how much CPU time it took.
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
	of   *cache.Timeline // the timeline, if the part is its only one; else nil
}

// place tells where a segment is by indexes. It has no pointers, since each write of a
// pointer costs more while the garbage collector marks.
type place struct {
	asked  int32 // the index in Query.asked
	part   int32 // the number of the part in its timeline
	lo, hi int32 // the rows of the part
	plan   int32 // the index in Query.plans
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

// New starts a query. The caller must call Release when it no longer needs the answer.
func New(s Spec) *Query {
	q := spare.get()
	q.begin(s)
	return q
}

// begin prepares an empty query for a question. unwatched begins at watchRows, so that the
// first batch looks at the context.
func (q *Query) begin(s Spec) {
	q.spec, q.from, q.unwatched = s, s.From, watchRows
	q.top.reset(&q.spec)
}

// Release ends the query. Neither it nor its answer may be used after that.
func (q *Query) Release() {
	q.reset()
	spare.put(q, time.Now())
}

// reset empties the query, and keeps its memory and plans for later questions.
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
		r.asked, r.places, r.plans = nil, nil, nil // they are q's, which resets them itself
		r.reset()
	}
}

// Add adds a timeline to the question. features is the entity's row of features, or none.
// Scan then takes the records that are in the window.
func (q *Query) Add(t millrace.Timeline, tl *cache.Timeline, features column.Packed) {
	q.asked = append(q.asked, asked{t, tl, features, q.from})
}

// NotBefore makes the window of the timelines that are added next begin at t, but not
// before Spec.From.
func (q *Query) NotBefore(t millrace.Time) { q.from = max(q.spec.From, t) }

// gatherAsked makes segments of the timelines that were added, and gathers their rows. It
// has the processor load the memory of timelines a little before it reads them. A thousand
// timelines are in a thousand places, and waiting for each in turn would take longer than
// all the rest.
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

// How many timelines ahead memory is prefetched: first the header, which tells whether
// there are rows in the window, then the rows. A core can load only so many cache lines at
// once. While rows are scanned it has room for some more, so each step of a scan
// prefetches further.
const (
	aheadHeaders = 14
	aheadRows    = 6
	whileScanned = 2 // timelines more at each step of a scan
)

// prefetch prefetches the headers of timelines up to the end-th, excluded, and the rows of
// those some places before.
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

// gatherWindow makes a segment of the rows of a part that are in the window, if there are
// any, and gathers them.
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

// window returns the rows [lo, hi) with from <= time < To. The times of rows ascend. Most
// windows hold all rows, which the header of the part tells alone.
func (q *Query) window(rows column.Packed, from millrace.Time) (lo, hi int32) {
	hi = int32(rows.FirstAt(int64(q.spec.To)))
	return min(hi, int32(rows.FirstAt(int64(from)))), hi
}

// AddObjects adds the features of objects that an entity routes, for a model that reads
// them: see cache.Objects.
func (q *Query) AddObjects(e millrace.Entity, tl *cache.Timeline) { q.objects[e] = tl }

// Scan filters, scores and ranks what was added. When ctx ends, it stops before it has
// scanned a few thousand rows more, or read some megabytes of texts and lists more. The
// error is that of ctx, of the watcher, of binding the filter or a model, or of joining
// features of objects: a value may be too long for a row.
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

// scanGathered scans the rows that are left in the batches of all plans.
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

// scanAgain scans all segments once more with a top that keeps more candidates. It counts
// nothing again in the stages.
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

// countFiltered adds what the filters of all plans dropped to the stages, and with Explain
// to the counts of each clause.
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

// Clauses returns what each clause of the filter dropped, in the order in which the filter
// has them. It is nil without a filter or without Spec.Explain.
func (q *Query) Clauses() []filter.Counts { return q.clauses }
