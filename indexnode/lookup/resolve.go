package lookup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/panics"
	"github.com/millrace/millrace/indexnode/query"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/memory"
)

const (
	maxCached = 1000 // the default of Config.Cached
	// maxReads is how many partitions one request reads from the store at a time, and
	// maxNodeReads how many all requests do. On a slow disk each such read blocks a thread,
	// and a Go process may have ten thousand.
	maxReads     = 8
	maxNodeReads = 512
)

// Resolution finds the rows of a request, in each partition as of one applied offset. There
// are two ways.
//
// The cache alone answers most partitions. All keys of a request are looked up at once,
// without a lock. Each partition's count of commits is read before and after. If it is even
// and the same, no commit came between, so that what was found is the state at the offset
// that was read with the count. A commit makes the count odd while it is under way.
//
// A partition is resolved again under its lock if the cache does not have all of it, or if
// it was written meanwhile. Under the lock the store and the cache agree and do not change.
// If a model reads the features of objects, which most models do not, every partition is
// resolved under its lock.
//
// Its memory is used again by the next request.
type Resolution struct {
	lookup *Lookup
	loan   *memory.Loan
	asked  Asked
	keys
	types []millrace.ContentType // those that are looked up; see [Lookup.types]
	found []*cache.Timeline      // for each entity, for each of types; nil: not cached
	views []view                 // by group of keys
	cache cache.Reader           // since Run, until Release
	warms *cache.Warming         // takes what is read; nil: the cache takes it
}

// Asked is what is asked of timelines.
type Asked struct {
	Types    []millrace.ContentType // none: every type the node knows
	From, To millrace.Time
	Objects  bool // some model reads the features of objects
	Explain  bool // what is read from the store is noted
}

// view is a partition's part of a resolution.
type view struct {
	group
	replica.Look
	missing string            // why the partition does not answer; "": it does
	rows    []resolved        // of a partition resolved under its lock
	objects []*cache.Timeline // likewise, of each entity, for a model that reads them
	misses  []Miss            // only where the question asks to explain
	locked  bool              // it is resolved under its lock
}

// resolved is a timeline's rows and what goes with them.
type resolved struct {
	key      millrace.Timeline
	timeline *cache.Timeline
	features column.Packed
}

var resolutions = sync.Pool{New: func() any { return new(Resolution) }}

// Resolve returns a resolution. The caller decodes entities into it (Decode), runs it and
// releases it. The memory for what it reads is a loan from the budget for questions.
func (l *Lookup) Resolve() *Resolution {
	r := resolutions.Get().(*Resolution)
	r.lookup, r.loan = l, l.memory.Borrow()
	return r
}

// More borrows so many more bytes of the memory for questions, until Release. It returns an
// error if they are not free.
func (r *Resolution) More(bytes int64) error { return r.loan.More(bytes) }

// Release gives the memory back. What was resolved must not be used after it.
func (r *Resolution) Release() {
	if r.cache != (cache.Reader{}) {
		r.cache.Leave()
		r.cache = cache.Reader{}
	}
	r.keys.reset()
	clear(r.types)
	clear(r.found)
	for i := range r.views {
		clear(r.views[i].rows)
		r.views[i] = view{rows: r.views[i].rows[:0]}
	}
	r.loan.Return()
	r.lookup, r.loan, r.asked, r.warms, r.types, r.found, r.views = nil, nil, Asked{}, nil, r.types[:0], r.found[:0], r.views[:0]
	resolutions.Put(r)
}

// Run resolves every key.
func (r *Resolution) Run(ctx context.Context, asked Asked) error {
	if err := r.look(asked); err != nil {
		return err
	}
	return r.find(ctx)
}

// look notes at which offsets all partitions are, and which types are looked up.
func (r *Resolution) look(asked Asked) error {
	l := r.lookup
	r.asked = asked
	r.cache = l.cache.Reader()
	for _, g := range r.groups {
		r.begin(g)
	}
	// This comes after begin: a type that a commit brings is known before the commit, so that
	// no type is missing which the noted offsets include.
	var err error
	if r.types, err = l.types(r.types, r.asked.Types); err != nil {
		return err
	}
	if err := r.Affordable(len(r.types), maxTimelines); err != nil {
		return err
	}
	return r.loan.More(timelineBytes * int64(len(r.entities)*len(r.types)))
}

// find looks all keys up at once. Then it resolves, under their locks, the partitions that
// changed since look or that the cache does not answer.
func (r *Resolution) find(ctx context.Context) error {
	l := r.lookup
	r.found = r.cache.Lookup(r.found, r.entities, r.types)
	behind := 0
	for i := range r.views {
		v := &r.views[i]
		if !l.replicas.Of(v.partition).Unmoved(&v.Look) {
			v.locked = true
		}
		if v.locked = v.locked || r.readsObjects() || !r.answers(v); v.locked {
			behind++
		}
	}
	if behind == 0 {
		return ctx.Err()
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxReads)
	for i := range r.views {
		if v := &r.views[i]; v.locked {
			g.Go(func() (err error) {
				defer panics.Contain(&err)
				return r.resolveLocked(ctx, v)
			})
		}
	}
	return g.Wait()
}

// begin notes at which offsets a partition is, before its keys are looked up. An odd count of
// commits means that one is under way, so that the partition is resolved under its lock.
func (r *Resolution) begin(g group) {
	if len(r.views) < cap(r.views) {
		r.views = r.views[:len(r.views)+1]
	} else {
		r.views = append(r.views, view{})
	}
	v := &r.views[len(r.views)-1]
	*v = view{group: g, rows: v.rows[:0], Look: r.lookup.replicas.Look(g.partition)}
	v.missing = v.State.Missing()
	v.locked = v.Commits%2 != 0
}

// answers reports whether the cache has all that is asked of a partition. A partition that is
// missing needs nothing.
func (r *Resolution) answers(v *view) bool {
	if v.missing != "" {
		return true
	}
	from := max(r.asked.From, millrace.MinTime)
	for _, tl := range r.found[v.lo*len(r.types) : v.hi*len(r.types)] {
		if tl == nil || from < tl.From() {
			return false
		}
	}
	return true
}

// Add adds what was resolved to q.
func (r *Resolution) Add(q *query.Query) {
	for i := range r.views {
		v := &r.views[i]
		switch {
		case v.missing != "":
		case v.locked:
			for j := range v.rows {
				r.lookup.keeps(q, v.rows[j].key.Type, v)
				q.Add(v.rows[j].key, v.rows[j].timeline, v.rows[j].features)
			}
			for j, tl := range v.objects {
				q.AddObjects(r.entities[v.lo+j], tl)
			}
		default:
			r.addFound(q, v)
		}
	}
}

// addFound adds what the cache had of a partition.
func (r *Resolution) addFound(q *query.Query, v *view) {
	width := len(r.types)
	contents := width
	if width > 0 && r.types[width-1] == cache.Features {
		contents--
	}
	for e := v.lo; e < v.hi; e++ {
		found := r.found[e*width : (e+1)*width]
		var features column.Packed
		if contents < width {
			features = rowOf(found[contents])
		}
		for i, tl := range found[:contents] {
			if tl != cache.Empty {
				r.lookup.keeps(q, r.types[i], v)
				q.Add(millrace.Timeline{Entity: r.entities[e], Type: r.types[i]}, tl, features)
			}
		}
	}
}

// rowOf returns the one row of an entity's features, or none.
func rowOf(features *cache.Timeline) column.Packed {
	if features.Len() == 0 {
		return column.Packed{}
	}
	return features.First()
}

// readsObjects reports whether a model reads the features of objects, and any entity has
// features.
func (r *Resolution) readsObjects() bool {
	return r.asked.Objects && r.lookup.features.Load()
}

// types returns the types to look up, in the memory of dst: those asked, or all types of the
// store if none are; then cache.Features, if any entity has features.
func (l *Lookup) types(dst, asked []millrace.ContentType) ([]millrace.ContentType, error) {
	dst = append(dst[:0], asked...)
	if len(asked) == 0 {
		known, all := l.store.Types()
		if !all {
			return dst, &millrace.Error{
				Reason: millrace.ReasonTooLarge, Field: "types", Detail: fmt.Sprintf("records have more than %d content types, too many to read all", store.MaxTypes),
				WayOut: fmt.Sprintf("name the types that are wanted, %d at most", MaxTypes),
			}
		}
		dst = append(dst, known...)
	}
	if l.features.Load() {
		dst = append(dst, cache.Features)
	}
	return dst, nil
}

// resolveLocked resolves a partition under its lock, reading from the store
// what the cache does not have.
func (r *Resolution) resolveLocked(ctx context.Context, v *view) error {
	l := r.lookup
	select { // before the lock: ingest waits while it is held
	case l.readers <- struct{}{}:
		defer func() { <-l.readers }()
	case <-ctx.Done():
		return ctx.Err()
	}
	part := l.replicas.Of(v.partition)
	part.RLock()
	defer part.RUnlock()
	v.rows, v.objects = v.rows[:0], nil
	v.Look = l.replicas.Look(v.partition)
	if v.missing = v.State.Missing(); v.missing != "" {
		return nil
	}
	err := r.readPartition(ctx, v)
	if errors.Is(err, store.ErrCorrupt) {
		l.replicas.Condemn(v.partition, replica.Why{Reason: replica.Corrupt, Detail: err.Error()})
		v.missing = replica.Quarantined.Missing()
		return nil
	}
	return err
}

// readPartition fills in the rows of a partition. The caller holds its lock.
func (r *Resolution) readPartition(ctx context.Context, v *view) error {
	l := r.lookup
	types, err := l.types(nil, r.asked.Types)
	if err != nil {
		return err
	}
	for _, e := range r.entities[v.lo:v.hi] {
		if err := ctx.Err(); err != nil {
			return err
		}
		var features column.Packed
		if last := len(types) - 1; last >= 0 && types[last] == cache.Features {
			tl, err := r.timeline(v.partition, millrace.Timeline{Entity: e, Type: cache.Features})
			if err != nil {
				return err
			}
			features = rowOf(tl)
		}
		if r.readsObjects() {
			tl, err := r.timeline(v.partition, millrace.Timeline{Entity: e, Type: cache.Objects})
			if err != nil {
				return err
			}
			v.objects = append(v.objects, tl)
		}
		for _, t := range types {
			if t == cache.Features {
				continue
			}
			tl := millrace.Timeline{Entity: e, Type: t}
			rows, err := r.explained(v, tl, features)
			if err != nil {
				return err
			}
			v.rows = rows
		}
	}
	return nil
}

// rows appends to the rows of v a timeline, and before it the records of the window that are
// older than what the cache holds. It returns the rows, and does not change v. The caller
// holds the partition's lock for reading.
func (r *Resolution) rows(v *view, key millrace.Timeline, features column.Packed) ([]resolved, error) {
	tl, err := r.timeline(v.partition, key)
	if err != nil {
		return nil, err
	}
	rows := v.rows
	if max(r.asked.From, millrace.MinTime) < tl.From() {
		older, err := r.readOlder(v.partition, key, r.asked.From, min(r.asked.To, tl.From()))
		if err != nil {
			return nil, err
		}
		for _, rest := range older {
			rows = append(rows, resolved{key, rest, features})
		}
	}
	return append(rows, resolved{key, tl, features}), nil
}

// readOlder reads the records of a timeline in a window from the store, as a list of runs. If
// several requests want the same at the same time, one reads for all, as in
// [Resolution.timeline].
func (r *Resolution) readOlder(p millrace.Partition, t millrace.Timeline, from, to millrace.Time) ([]*cache.Timeline, error) {
	l := r.lookup
	runs, err := l.once(fmt.Sprintf("%d to %d of %s", from, to, flight(t)), func() (any, error) {
		l.Reads.Inc()
		older, err := l.store.ReadGranted(nil, p, t, from, to, r.grant(t))
		if err != nil {
			return nil, err
		}
		var runs []*cache.Timeline
		for len(older) > 0 {
			some := run(older, l.maxRun)
			slabs, err := Slabs(l.schemas.Snapshot(), older[:some])
			if err != nil {
				return nil, err
			}
			tl, err := cache.NewTimeline(from, slabs...)
			if err != nil {
				return nil, err
			}
			runs, older = append(runs, tl), older[some:]
		}
		return runs, nil
	})
	if err != nil {
		return nil, err
	}
	return runs.([]*cache.Timeline), nil
}

// maxRunBytes is Config.RunBytes's default.
const maxRunBytes = 8 << 20

// run returns how many of the first records have at most most bytes of bodies together, but
// at least one.
func run(records []millrace.Record, most int) int {
	bytes := 0
	for i := range records {
		if bytes += len(records[i].Body); bytes > most && i > 0 {
			return i
		}
	}
	return len(records)
}

// timeline returns what is cached of a timeline, or of an entity's features. If nothing is,
// it reads it from the store and has it cached. If several requests miss it at the same
// time, one reads for all: they all hold the partition's lock for reading, so that they see
// one state. The caller holds that lock.
func (r *Resolution) timeline(p millrace.Partition, t millrace.Timeline) (*cache.Timeline, error) {
	if tl := r.cache.Get(t); tl != nil {
		return tl, nil
	}
	// If the request names a wrong partition, the store has nothing of the timeline there,
	// and the cache would tell all later requests that it is empty.
	if err := inPartition(t.Entity, p); err != nil {
		return nil, err
	}
	l := r.lookup
	tl, err := l.once(flight(t), func() (any, error) {
		// Another request may have read it after this one missed it.
		if tl := r.cache.Peek(t); tl != nil {
			return tl, nil
		}
		l.Reads.Inc()
		read := r.readTimeline
		switch t.Type {
		case cache.Features:
			read = l.readFeatures
		case cache.Objects:
			read = l.readObjects
		}
		tl, err := read(p, t)
		switch {
		case err != nil:
		case r.warms != nil:
			r.warms.Put(t, tl)
		default:
			l.cache.Fill(t, tl)
		}
		return tl, err
	})
	if err != nil {
		return nil, err
	}
	return tl.(*cache.Timeline), nil
}

// once calls read, or waits for a call under the same name and returns its result. A panic of
// read becomes an error for all of them.
func (l *Lookup) once(name string, read func() (any, error)) (any, error) {
	v, err, _ := l.reads.Do(name, func() (_ any, err error) {
		defer panics.Contain(&err)
		return read()
	})
	return v, err
}

// flight returns a name for the read of a timeline. It begins with the length of the entity,
// since an entity may have any byte, a separator too.
func flight(t millrace.Timeline) string {
	return strconv.Itoa(len(t.Entity)) + ":" + string(t.Entity) + string(t.Type)
}

// fromStore is memory for what the store reads, until it is decoded.
var fromStore = sync.Pool{New: func() any { return new(store.Newest) }}

// readTimeline reads a timeline's newest records.
func (r *Resolution) readTimeline(p millrace.Partition, t millrace.Timeline) (*cache.Timeline, error) {
	l := r.lookup
	newest := fromStore.Get().(*store.Newest)
	defer fromStore.Put(newest)
	newest.EnoughBytes, newest.Grant = maxCachedBytes, r.grant(t)
	defer func() { newest.Grant = nil }()
	if err := l.store.ReadNewestInto(newest, p, t, l.maxCached); err != nil {
		return nil, err
	}
	slabs, err := Slabs(l.schemas.Snapshot(), newest.Records)
	if err != nil {
		return nil, err
	}
	if len(slabs) == 0 && newest.From <= millrace.MinTime {
		return cache.Empty, nil
	}
	return cache.NewTimeline(newest.From, slabs...)
}

// readFeatures reads an entity's features of itself, as a timeline of one row; cache.Empty if
// it has none.
func (l *Lookup) readFeatures(p millrace.Partition, t millrace.Timeline) (*cache.Timeline, error) {
	subjects, err := l.store.Features(p, t.Entity)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(subjects, func(f store.Features) bool { return f.Subject == string(t.Entity) })
	if i < 0 {
		return cache.Empty, nil
	}
	f := subjects[i]
	slabs, err := Slabs(l.schemas.Snapshot(), []millrace.Record{{ID: millrace.RecordID(t.Entity), Schema: f.Schema, Body: f.Body}})
	if err != nil {
		return nil, fmt.Errorf("features: %w", err)
	}
	return cache.NewTimeline(millrace.MinTime, slabs...)
}

// readObjects reads the features of objects that are stored under an entity, as rows by
// subject ascending; cache.Empty if there are none.
func (l *Lookup) readObjects(p millrace.Partition, t millrace.Timeline) (*cache.Timeline, error) {
	subjects, err := l.store.Features(p, t.Entity)
	if err != nil {
		return nil, err
	}
	var rows []millrace.Record
	for _, f := range slices.Backward(subjects) { // Slabs reverses the order
		if f.Subject != string(t.Entity) {
			rows = append(rows, millrace.Record{ID: millrace.RecordID(f.Subject), Schema: f.Schema, Body: f.Body})
		}
	}
	if len(rows) == 0 {
		return cache.Empty, nil
	}
	slabs, err := Slabs(l.schemas.Snapshot(), rows)
	if err != nil {
		return nil, fmt.Errorf("features of objects: %w", err)
	}
	return cache.NewTimeline(millrace.MinTime, slabs...)
}
