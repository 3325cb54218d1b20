package replica

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/streams"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// What the registry of schemas keeps is read back as it was, in its order; a row that is none
// is told.
func TestSchemasAreStored(t *testing.T) {
	f := newIdle(t, vfs.NewMem())
	of := StoredSchemas(f.store)
	want := []registry.StoredSchema{{Fingerprint: 7, Order: 1, JSON: `{"a":1}`}, {Fingerprint: 8, Order: 300, JSON: `{}`, Retired: true}, {Fingerprint: 9, Order: 2}}
	for _, x := range slices.Concat([]registry.StoredSchema{{Fingerprint: 8, Order: 5, JSON: "before"}}, want) {
		must(t, of.PutSchema(x))
	}
	got, err := of.Schemas()
	slices.SortFunc(got, func(a, b registry.StoredSchema) int { return int(a.Fingerprint) - int(b.Fingerprint) })
	if must(t, err); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	for _, row := range [][]byte{{}, {0}, {0x80}, slices.Repeat([]byte{0xff}, 11)} {
		must(t, f.store.ReplaceSchema(5, row))
		if _, err := of.Schemas(); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("%x is taken for a schema: %v", row, err)
		}
	}
	must(t, f.store.ReplaceSchema(5, SchemaRow(want[0])))
	f.disk.full.Store(true)
	if err := of.PutSchema(registry.StoredSchema{Fingerprint: 10, Order: 3}); !errors.Is(err, store.ErrDiskFull) || !strings.Contains(err.Error(), millrace.Fingerprint(10).String()) {
		t.Errorf("on a full disk: %v", err)
	}
	f.disk.full.Store(false)
}

// A commit ends at the next mark at the latest, and where the replica is to stand still.
func TestWhereCommitsEnd(t *testing.T) {
	for _, c := range []struct {
		applied, at millrace.Offset // at: where it stands still; -1: nowhere
		end         millrace.Offset
		stops       bool
	}{
		{0, -1, markEvery, false}, {markEvery - 1, -1, markEvery, false}, {markEvery, -1, 2 * markEvery, false},
		{5, 5, 5, true}, {5, 7, 7, true}, {5, markEvery, markEvery, true}, {5, markEvery + 1, markEvery, false},
	} {
		var r Replica
		if c.at >= 0 {
			r.stop.Store(&stop{[kafka.Streams]millrace.Offset{99_999, c.at}})
		}
		if end, stops := r.bound(kafka.Features, c.applied); end != c.end || stops != c.stops {
			t.Errorf("at %d, to stand still at %d: it ends at %d (%t), not at %d", c.applied, c.at, end, stops, c.end)
		}
	}
}

// A replica that stands still goes no further than it is told, forward alone, and for as long
// as it is asked to.
func TestAReplicaIsMoved(t *testing.T) {
	f := newFed(t)
	r := f.all.Of(partHere)
	must(t, f.bringTo(t, kafka.Timeline, partHere, recordOf(0, here, postOf(t, here, "a")), recordOf(1, here, postOf(t, here, "b"))))
	if _, err := f.all.Stop(t.Context(), partThere); err == nil {
		t.Error("one that does not answer stands still")
	}
	f.all.stopReading(r)
	if _, err := f.all.Stop(t.Context(), partHere); err == nil {
		t.Error("one that is not read stands still")
	}
	r.reading.Add(1)
	st, err := f.all.Stop(t.Context(), partHere)
	must(t, err)
	if st.At() != (offsets{2, 0}) {
		t.Errorf("it stands at %v", st.At())
	}
	held := func(n millrace.Offset) (err error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		f := streams.Fetched{TopicPartition: both(partHere)[0], Records: []streams.Record{recordOf(n, here, postOf(t, here, fmt.Sprint("r", n)))}, Next: n + 1}
		return st.all.Bring(ctx, f)
	}
	if err := held(2); !errors.Is(err, errStands) || r.Applied()[0] != 2 {
		t.Errorf("it goes on to %d: %v", r.Applied()[0], err)
	}
	for _, to := range []offsets{{1, 0}, {0, 5}} {
		if err := st.Move(to); err == nil || !strings.Contains(err.Error(), "cannot go back") {
			t.Errorf("from %v to %v: %v", st.At(), to, err)
		}
	}
	must(t, st.Move(st.At()))
	c, err := st.Contents()
	must(t, err)
	if c.Applied().Content != 2 {
		t.Errorf("its contents are of %+v", c.Applied())
	}
	must(t, c.Close())
	done := make(chan error, 1)
	go func() { done <- st.Move(offsets{3, 0}) }()
	for held(2) != nil {
		time.Sleep(time.Millisecond)
	}
	if err := <-done; err != nil || r.Applied()[0] != 3 {
		t.Errorf("it is moved to %v: %v", r.Applied(), err)
	}
	if err := held(3); !errors.Is(err, errStands) {
		t.Errorf("it goes beyond: %v", err)
	}
	st.Release()
	for r.stop.Load() != nil { // another goroutine lets it go
		time.Sleep(time.Millisecond)
	}
	must(t, held(3))
	if _, err := st.Contents(); !errors.Is(err, context.Canceled) {
		t.Errorf("its contents once it has gone on: %v", err)
	}
	if err := st.Move(offsets{9, 0}); err == nil || !strings.Contains(err.Error(), "not at [9 0] yet") || r.stop.Load() != nil {
		t.Errorf("it is moved once it has gone on: %v", err)
	}
	if _, err := f.all.Stop(t.Context(), partHere); err != nil {
		t.Errorf("again: %v", err)
	}
}

// An age is by the clock by which it is longer, and never negative; what is known of the input
// counts, too, and nothing is older than what is not known.
func TestAges(t *testing.T) {
	now := time.Now()
	ago := func(day, ran time.Duration) *moment {
		return &moment{now.Add(-day).UnixMilli(), now.Add(-ran).Sub(began)}
	}
	const second = time.Second
	for _, c := range []struct {
		fresh   *moment
		through time.Duration // ago; negative: not known
		want    time.Duration
	}{
		{nil, 0, UnknownAge}, {ago(0, 0), -1, UnknownAge}, {ago(0, 0), 0, 0}, {ago(3*second, second), 0, 3 * second}, {ago(second, 3*second), 0, 3 * second},
		{ago(-3*second, -second), 0, 0}, {ago(second, second), 5 * second, 5 * second}, {ago(5*second, 5*second), second, 5 * second}, {ago(0, 0), 2 * UnknownAge, UnknownAge},
	} {
		w := whole{fresh: c.fresh, through: now.Add(-c.through).UnixMilli()}
		if c.through < 0 {
			w.through = 0
		}
		if got := w.age(now).Round(10 * time.Millisecond); got != c.want {
			t.Errorf("%+v, through %s ago: %s old, want %s", c.fresh, c.through, got, c.want)
		}
	}
}

// A node is proven when partitioners have proven something, and the age of everything that it
// has is known.
func TestWhatIsProven(t *testing.T) {
	f := newFed(t)
	now := time.Now()
	r := f.all.Of(partHere)
	for _, c := range []struct {
		through, own int64 // of all, and of the replica
		want         bool
	}{{0, 0, false}, {1, 1, false}, {now.UnixMilli(), 0, false}, {now.UnixMilli(), now.UnixMilli(), true}} {
		f.all.through.Store(c.through)
		r.through.Store(c.own)
		if got := f.all.Proven(now); got != c.want {
			t.Errorf("through %d, and its own %d: %t", c.through, c.own, got)
		}
	}
	r.fresh.Store(nil)
	if f.all.Proven(now) {
		t.Error("one of which nothing is known is proven")
	}
	r.state.Store(int32(Absent))
	if !f.all.Proven(now) {
		t.Error("one that is elsewhere counts")
	}
	f.all.cfg.Limit = 5 * time.Second
	if f.all.beyond(5*time.Second) != 0 || f.all.beyond(5*time.Second+1) != 5*time.Second+1 {
		t.Error("an age at the limit is beyond it, or one beyond it is not")
	}
}

// The input that partitioners report is taken over, from the first proof on.
func TestTheInputIsTakenOver(t *testing.T) {
	f := newFed(t)
	proof := make(chan struct{})
	said := &input{moved: proof}
	if f.all.judgeInput(); f.all.through.Load() != 0 || f.all.firstProof() || f.all.awaitProof() != nil {
		t.Error("who has no input knows something of it")
	}
	f.all.cfg.Input = said
	for _, c := range []struct {
		says     int64
		unproven bool
		through  int64
		first    bool
	}{{0, false, 0, false}, {0, true, 1, false}, {1, false, 1, false}, {2, false, 2, true}, {77, false, 77, false}, {0, false, 0, false}} {
		said.through.Store(c.says)
		said.unproven.Store(c.unproven)
		if got := f.all.firstProof(); got != c.first {
			t.Errorf("%+v: the first proof: %t", c, got)
		}
		f.all.judgeInput()
		if got := f.all.through.Load(); got != c.through || (f.all.awaitProof() != nil) != (c.through <= 1) {
			t.Errorf("%+v: through %d, and a proof is awaited: %t", c, got, f.all.awaitProof() != nil)
		}
	}
	if w := f.all.whole(f.all.Of(partHere)); w.through != math.MaxInt64 {
		t.Errorf("where no partitioner has reported, all is there through %d", w.through)
	}
}

// A backup is searched for as long as its place may be silent, counted from when it was last
// heard, and a twelfth of that in any case.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := &Replicas{seekFor: time.Minute}
		since := time.Now()
		time.Sleep(20 * time.Second)
		if got := all.patience(since); got != 40*time.Second {
			t.Errorf("after 20 s: %s", got)
		}
		all.backupsAnswered()
		time.Sleep(15 * time.Second)
		if got := all.patience(since); got != 45*time.Second {
			t.Errorf("15 s after it was heard: %s", got)
		}
		if got := all.patience(time.Now()); got != time.Minute {
			t.Errorf("of who needs it since now: %s", got)
		}
		time.Sleep(time.Hour)
		if got := all.patience(since); got != 5*time.Second {
			t.Errorf("after an hour: %s", got)
		}
	})
}

// What the store cannot give of a partition is said, and mended by itself or by a renewal.
func TestAnOriginThatIsNone(t *testing.T) {
	f := newIdle(t, vfs.NewMem())
	f.has(t, partHere, 3, 2)
	var b store.Batch
	b.SetOrigin(partHere, []byte("{"))
	_, err := f.store.Apply(&b, nil)
	must(t, err)
	f.hosted(partHere)
	f.want(t, "with an origin that is none", partHere, Quarantined, Corrupt)
	f.has(t, partThere, 3, 2)
	f.hosted(partHere, partThere)
	b = store.Batch{}
	b.SetOrigin(partThere, []byte("{"))
	_, err = f.store.Apply(&b, nil)
	must(t, err)
	if at := f.attach(t, partThere, offsets{}, offsets{9, 9}); len(at) > 0 {
		t.Errorf("it is read at %v", at)
	}
	f.want(t, "whose origin is none by now", partThere, Quarantined, Corrupt)
}

// An error that says nothing of why a record is held back is one of the store.
func TestWhoHoldsBack(t *testing.T) {
	fault := errors.New("a fault")
	if h := heldBy(fault); h.Reason != StoreFailing || !errors.Is(h, fault) || h.Error() != "held back (store_failing): a fault" {
		t.Errorf("%v", h)
	}
	if h := heldBy(fmt.Errorf("read: %w", held(Paused, fault))); h.Reason != Paused || h.Err != fault {
		t.Errorf("%v", h)
	}
	if bad := refusedFor(fault); bad.Reason != "unreadable" || bad.Detail != "a fault" {
		t.Errorf("%v", bad)
	}
	if bad := refusedFor(fmt.Errorf("read: %w", &schemas.Error{Reason: schemas.KeyMismatch})); bad.Reason != schemas.KeyMismatch {
		t.Errorf("%v", bad)
	}
}
