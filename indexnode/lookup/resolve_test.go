package lookup

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	dto "github.com/prometheus/client_model/go"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/indexnode/panics"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
)

// Of a hundred who ask the same of a cold node at once, one reads each
// timeline, and all are answered.
func TestNoStampede(t *testing.T) {
	l, h := open(t)
	names := members(t, l, h, 60, 3)
	want := 3 * len(names)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			<-start
			if found, err := find(t.Context(), l, 0, names...); err != nil || found != want {
				t.Errorf("%d records, %v; want %d", found, err, want)
			}
		})
	}
	close(start)
	wg.Wait()
	var m dto.Metric
	if err := l.Reads.Write(&m); err != nil || int(m.Counter.GetValue()) != len(names) {
		t.Errorf("%v reads of %d timelines, %v", m.Counter.GetValue(), len(names), err)
	}
}

// Nor where a window reaches behind what is cached.
func TestNoStampedeBehindTheCache(t *testing.T) {
	l, h := open(t)
	const records, readers = 20_000, 32
	names := members(t, l, h, 1, records)
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			if found, err := find(t.Context(), l, 0, names...); err != nil || found != records {
				t.Errorf("%d records, %v", found, err)
			}
		})
	}
	wg.Wait()
	var m dto.Metric
	if err := l.Reads.Write(&m); err != nil || m.Counter.GetValue() > readers/2 {
		t.Errorf("%v reads for %d readers at once, %v", m.Counter.GetValue(), readers, err)
	}
}

// One whose question is over while it reads for others does not fail them.
func TestACancelledReaderFailsNobodyElse(t *testing.T) {
	l, h := open(t)
	names := members(t, l, h, 60, 3)
	for range 50 {
		l.cache.Purge()
		gone, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				ctx := t.Context()
				if i%2 == 0 {
					ctx = gone
				}
				_, err := find(ctx, l, 0, names...)
				if err != nil && (ctx != gone || !errors.Is(err, context.Canceled)) {
					t.Errorf("reader %d: %v", i, err)
				}
			})
		}
		cancel()
		wg.Wait()
	}
}

// While as many partitions are read as may be, a question that the cache
// answers is answered, and another waits until its time is over.
func TestReadsAreBounded(t *testing.T) {
	l, h := open(t)
	names := members(t, l, h, 2, 3)
	if _, err := find(t.Context(), l, 0, names[:1]...); err != nil {
		t.Fatal(err)
	}
	for range maxNodeReads {
		l.readers <- struct{}{}
	}
	if _, err := find(t.Context(), l, 0, names[:1]...); err != nil {
		t.Errorf("what is cached: %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := find(short, l, 0, names...); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("what is not cached: %v", err)
	}
	for range maxNodeReads {
		<-l.readers
	}
	if _, err := find(t.Context(), l, 0, names...); err != nil || len(l.readers) != 0 {
		t.Errorf("%v, and %d read", err, len(l.readers))
	}
}

func TestRun(t *testing.T) {
	records := make([]millrace.Record, 7)
	for i, size := range []int{100, 1, 2, 3, 4, 200, 0} {
		records[i].Body = make([]byte, size)
	}
	var runs []int
	for rest := records; len(rest) > 0; {
		n := run(rest, 6)
		runs, rest = append(runs, n), rest[n:]
	}
	if fmt.Sprint(runs) != "[1 3 1 1 1]" {
		t.Errorf("%v", runs)
	}
}

// slowDisk writes nothing while it is stuck.
type slowDisk struct {
	stuck atomic.Bool
	free  chan struct{} // closed once it is not
}

func (d *slowDisk) String() string { return "a slow disk" }

func (d *slowDisk) MaybeError(op errorfs.Op) error {
	if d.stuck.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
		<-d.free
	}
	return nil
}

// While ingest waits for the disk, since too much is not on it yet, readers go
// on with what is applied.
func TestReadersDoNotWaitForTheDisk(t *testing.T) {
	disk := &slowDisk{free: make(chan struct{})}
	l, h := openStored(t, store.Options{FS: errorfs.Wrap(vfs.NewMem(), disk), FlushEvery: -1, MaxDirtyBytes: 1})
	post := func(i int) error {
		body, err := schemas.Activity().EncodeJSON(fmt.Appendf(nil, `{"id":"r%d","actor":"member:1","verb":"post","created_at":%d}`, i, 1_700_000_000_000+int64(i)))
		if err != nil {
			return err
		}
		return nodetest.Bring(t.Context(), h, []nodetest.Event{{Stream: kafka.Timeline, Entity: "member:1", Schema: schemas.Activity(), Body: body}}, millrace.Offset(i))
	}
	err := errors.Join(post(1), l.store.Flush())
	if err != nil {
		t.Fatal(err)
	}
	disk.stuck.Store(true)
	const last = 8
	brought, asked := make(chan error, 1), make(chan error, 1)
	go func() {
		var err error
		for i := 2; i <= last && err == nil; i++ {
			err = post(i)
		}
		brought <- err
	}()
	go func() {
		var err error
		for began := time.Now(); time.Since(began) < 100*time.Millisecond && err == nil; l.cache.Purge() {
			_, err = find(t.Context(), l, 0, "member:1")
		}
		asked <- err
	}()
	select {
	case err = <-asked:
	case <-time.After(10 * time.Second):
		err = errors.New("a reader waits for the disk")
	}
	if len(brought) > 0 {
		t.Error("ingest did not wait for the disk: the test shows nothing")
	}
	disk.stuck.Store(false)
	close(disk.free)
	if err := errors.Join(err, <-brought); err != nil {
		t.Fatal(err)
	}
	if found, err := find(t.Context(), l, 0, "member:1"); err != nil || found != last {
		t.Errorf("%d records, %v", found, err)
	}
}

// An answer is as old as what it has read, also where the replica catches up
// before the answer is told: from the cache, and from the store.
func TestAnAnswerIsAsOldAsWhatItRead(t *testing.T) {
	l, h := open(t)
	names := members(t, l, h, 2, 3)
	for i, late := range []bool{false, true} {
		for _, cached := range []bool{false, true} {
			before, after := time.Now(), time.Now().Add(-time.Hour)
			if late {
				before, after = after, before
			}
			r := l.Resolve()
			if err := r.Decode(nodetest.Pack(names[i])); err != nil {
				t.Fatal(err)
			}
			p := partition.Of(millrace.Entity(names[i]))
			h.Serve(p, before)
			if err := r.Run(t.Context(), Asked{To: millrace.MaxTime}); err != nil {
				t.Fatal(err)
			}
			if len(r.views) != 1 || r.views[0].locked == cached {
				t.Fatalf("cached %v: %d views, from the store %v", cached, len(r.views), r.views[0].locked)
			}
			h.Serve(p, after)
			if got := r.Answered(); (len(got.LagMs) > 0) != late {
				t.Errorf("cached %v: read late %v, and told %v", cached, late, got.LagMs)
			}
			r.Release()
		}
	}
}

// A partition that is found corrupt is missing from an answer, and all others are in it.
func TestACorruptPartitionIsMissingAlone(t *testing.T) {
	l, h := open(t)
	names := members(t, l, h, 2, 3)
	p := partition.Of(millrace.Entity(names[0]))
	if err := l.store.Quarantine(p, errors.New("a flipped bit")); err != nil {
		t.Fatal(err)
	}
	for round := range 3 { // found, and known, and though the cache would answer
		if round == 2 {
			l.cache.Fill(millrace.Timeline{Entity: millrace.Entity(names[0]), Type: "post"}, cache.Empty)
		}
		r := l.Resolve()
		if err := errors.Join(r.Decode(nodetest.Pack(names...)), r.Run(t.Context(), Asked{Types: []millrace.ContentType{"post"}, To: millrace.MaxTime})); err != nil {
			t.Fatal(err)
		}
		got := r.Answered()
		if len(got.Answered) != 1 || len(got.Missing) != 1 || got.Missing[int32(p)] != replica.Quarantined.Missing() {
			t.Errorf("answered %v, missing %v", got.Answered, got.Missing)
		}
		r.Release()
	}
	if s := h.Of(p).State(); s != replica.Quarantined {
		t.Errorf("the replica is %s", s)
	}
	if found, err := find(t.Context(), l, 0, names...); err != nil || found != 3 {
		t.Errorf("%d records, %v", found, err)
	}
}

// postOne applies the post of an offset of member:1.
func postOne(t testing.TB, h *replica.Replicas, next millrace.Offset) {
	t.Helper()
	nodetest.BringLine(t, h, kafka.Timeline, fmt.Sprintf(`{"id":"r%d","actor":"member:1","verb":"post","created_at":%d}`, next, 1_700_000_000_000+int64(next)), next)
}

// looked begins to resolve the posts of member:1, of which the cache has all.
func looked(t testing.TB, l *Lookup) *Resolution {
	t.Helper()
	r := l.Resolve()
	if err := errors.Join(r.Decode(nodetest.Pack("member:1")), r.look(Asked{Types: []millrace.ContentType{"post"}, To: millrace.MaxTime})); err != nil {
		t.Fatal(err)
	}
	return r
}

// oneState fails where a resolution found other records than were applied at the offset
// that it tells: each offset has one.
func oneState(t testing.TB, r *Resolution, next int64) {
	t.Helper()
	if v := &r.views[0]; v.Applied[kafka.Timeline] != next || r.records(v) != int(next) {
		t.Errorf("%d records at offset %d, want those at %d", r.records(v), v.Applied[kafka.Timeline], next)
	}
}

// A commit between the look at a partition and the one into the cache is seen.
func TestACommitBetweenTwoLooksIsSeen(t *testing.T) {
	l, h := open(t)
	postOne(t, h, 1)
	if _, err := find(t.Context(), l, 0, "member:1"); err != nil {
		t.Fatal(err)
	}
	r := looked(t, l)
	defer r.Release()
	postOne(t, h, 2)
	if err := r.find(t.Context()); err != nil {
		t.Fatal(err)
	}
	oneState(t, r, 2)
}

// halfway is a cache that is written, and then has its commit wait.
type halfway struct {
	*Lookup
	inside, goOn chan struct{}
}

func (c *halfway) Written(s kafka.Stream, changes []store.Change, routes []millrace.Entity) {
	c.Lookup.Written(s, changes, routes)
	if c.inside != nil {
		close(c.inside)
		<-c.goOn
	}
}

// Who looks while a commit is under way, which has written the cache and not yet told
// its offset, waits for it.
func TestACommitUnderWayIsWaitedFor(t *testing.T) {
	l, _ := open(t)
	c := &halfway{Lookup: l}
	h := nodetest.Replicas(l.store, l.schemas, c, false)
	l.Over(h)
	postOne(t, h, 1)
	if _, err := find(t.Context(), l, 0, "member:1"); err != nil {
		t.Fatal(err)
	}
	c.inside, c.goOn = make(chan struct{}), make(chan struct{})
	var commit sync.WaitGroup
	commit.Go(func() { postOne(t, h, 2) })
	<-c.inside
	r := looked(t, l)
	defer r.Release()
	found := make(chan error, 1)
	go func() { found <- r.find(t.Context()) }()
	for len(found)+len(l.readers) == 0 { // until it waits, or does not
		runtime.Gosched()
	}
	close(c.goOn)
	commit.Wait()
	if err := <-found; err != nil {
		t.Fatal(err)
	}
	oneState(t, r, 2)
}

// Names of entities may have any byte, digits and NULs among them: no two
// timelines are read as one.
func TestFlightsAreOfOneTimeline(t *testing.T) {
	of := map[string]millrace.Timeline{}
	for _, e := range []millrace.Entity{"a", "a\x00", "a\x00\x00", "1:a", "11:a", "2:a\x00", "1", "11", "abcdefghijk"} {
		for _, typ := range []millrace.ContentType{cache.Features, cache.Objects, "a", ":a", "post", "abcdefghijka"} {
			k := millrace.Timeline{Entity: e, Type: typ}
			if other, taken := of[flight(k)]; taken {
				t.Errorf("%q and %q are read as one", k, other)
			}
			of[flight(k)] = k
		}
	}
}

// Who reads what the cache misses, for itself and for those who wait, may
// panic: all of them have an error, and nothing is held that the next needs.
func TestAPanicOfAReaderEndsQuestionsOnly(t *testing.T) {
	l, h := open(t)
	names := members(t, l, h, 20, 3)
	long := members(t, l, h, 1, 2*maxCached) // names[0], whose older records are read apart
	fill := func() {
		if _, err := find(t.Context(), l, millrace.MaxTime-1, long...); err != nil {
			t.Fatal(err)
		}
	}
	fill()
	known := l.schemas
	decoding, goroutine := func() { l.schemas = nil }, func() { close(l.readers) }
	const askers = 16
	for _, c := range []struct {
		what  string
		names []string
		found int
		spoil func()
	}{
		{"who reads for others", names, 2*maxCached + 19*3, decoding},
		{"who reads older records for others", long, 2 * maxCached, decoding},
		{"who reads a partition", names, 2*maxCached + 19*3, goroutine},
	} {
		c.spoil()
		var wg sync.WaitGroup
		for range askers {
			wg.Go(func() {
				if _, err := find(t.Context(), l, 0, c.names...); !panics.In(err) || strings.Contains(err.Error(), "\n") {
					t.Errorf("%s: %v", c.what, err)
				}
			})
		}
		wg.Wait()
		if l.schemas = known; len(l.readers) > 0 {
			t.Errorf("%s: %d read for ever", c.what, len(l.readers))
		}
		l.readers = make(chan struct{}, maxNodeReads)
		for p := range partition.All() {
			h.Of(p).Barrier() // for ever, if a reader kept a partition's lock
		}
		if found, err := find(t.Context(), l, 0, c.names...); err != nil || found != c.found {
			t.Errorf("%s, after it: %d records, %v", c.what, found, err)
		}
		l.cache.Purge()
		fill()
	}
}
