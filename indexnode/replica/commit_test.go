package replica

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/streams"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
)

// recordOf is a record of a log at an offset, as a partitioner writes it.
func recordOf(at millrace.Offset, key millrace.Entity, value []byte) streams.Record {
	r := streams.Record{Offset: at, Key: []byte(key), Value: value}
	for _, h := range kafka.ToStream("", key, value, kafka.Source{Topic: "in", Offset: at}).Headers {
		if h.Key == kafka.HeaderCRC {
			r.CRC = h.Value
		}
	}
	return r
}

// postOf is the value of a post of an entity, also for the timelines of others.
func postOf(t testing.TB, e millrace.Entity, id string, about ...millrace.Entity) []byte {
	t.Helper()
	list := ""
	for i, a := range about {
		list += fmt.Sprintf("%s%q", strings.Repeat(",", min(i, 1)), a)
	}
	body, err := schemas.Activity().EncodeJSON(fmt.Appendf(nil, `{"id":%q,"actor":%q,"verb":"post","created_at":1700000000000,"about":[%s]}`, id, e, list))
	must(t, err)
	return schemas.Frame(schemas.Activity().Fingerprint(), body)
}

// featuresOf is the value of features of an entity.
func featuresOf(t testing.TB, e millrace.Entity) []byte {
	t.Helper()
	body, err := schemas.Features().EncodeJSON(fmt.Appendf(nil, `{"entity":%q,"updated_at":1700000000000,"followers":7}`, e))
	must(t, err)
	return schemas.Frame(schemas.Features().Fingerprint(), body)
}

// bringTo applies records of a stream as one fetch that has them does.
func (f *fed) bringTo(t testing.TB, s kafka.Stream, p millrace.Partition, records ...streams.Record) error {
	t.Helper()
	return f.all.Bring(t.Context(), streams.Fetched{TopicPartition: kafka.TopicPartition{Stream: s, Partition: p}, Records: records, Next: records[len(records)-1].Offset + 1})
}

// ids are those of the records of an entity's posts.
func (f *fed) ids(t testing.TB, p millrace.Partition, e millrace.Entity) (ids []string) {
	t.Helper()
	all, err := f.store.Read(nil, p, millrace.Timeline{Entity: e, Type: "post"}, millrace.MinTime, millrace.MaxTime)
	must(t, err)
	for _, r := range all {
		ids = append(ids, string(r.ID))
	}
	slices.Sort(ids)
	return ids
}

// A commit keeps readers out until store, caches and offset are of one state, and
// who reads without a lock sees that it is under way, and that it was.
func TestACommitIsOneStep(t *testing.T) {
	f := newFed(t)
	r := f.all.Of(partHere)
	before := f.all.Look(partHere)
	commits := 0
	var routes []millrace.Entity
	f.host.written = func(of []millrace.Entity) {
		commits++
		routes = slices.Clone(of)
		if r.mu.TryRLock() {
			t.Error("a reader gets in while the caches are written")
			r.mu.RUnlock()
		}
		if r.commits.Load()%2 == 0 {
			t.Error("a look does not see that a commit is under way")
		}
	}
	must(t, f.bringTo(t, kafka.Timeline, partHere, recordOf(0, here, postOf(t, here, "a"))))
	after := f.all.Look(partHere)
	if commits != 1 || after.Commits%2 != 0 || r.Unmoved(&before) || after.Applied != [kafka.Streams]int64{1, 0} || len(routes) > 0 {
		t.Errorf("%d commits; from %+v to %+v, features of %v", commits, before, after, routes)
	}
	must(t, f.bringTo(t, kafka.Features, partHere, recordOf(0, here, featuresOf(t, here))))
	if !slices.Equal(routes, []millrace.Entity{here}) || r.Applied() != [kafka.Streams]millrace.Offset{1, 1} {
		t.Errorf("features of %v, at %v", routes, r.Applied())
	}
	if at := f.store.Applied(partHere); at != (store.Offsets{Content: 1, Features: 1}) {
		t.Errorf("the store is at %+v", at)
	}
	if n := f.host.applied.Load(); n != 2 {
		t.Errorf("%d records are counted", n)
	}
	for s, trail := range r.Trail() {
		if end := trail[len(trail)-1]; end.At != 1 || end.Digest == 0 {
			t.Errorf("the trail of %s ends at %+v", kafka.Stream(s), end)
		}
	}
	if !r.mu.TryLock() {
		t.Fatal("the lock is kept")
	}
	r.mu.Unlock()
}

// What was fetched before reading ended is not applied after.
func TestWhatWasFetchedBeforeReadingEndedIsNotApplied(t *testing.T) {
	f := newFed(t)
	r := f.all.Of(partHere)
	b := backlog{reading: r.reading.Load(), fetched: []streams.Fetched{{TopicPartition: both(partHere)[0], Records: []streams.Record{recordOf(0, here, postOf(t, here, "a"))}, Next: 1, Epoch: -1}}}
	f.all.stopReading(r)
	if err := f.all.ingest.apply(t.Context(), r, &b); !errors.Is(err, errDetach) {
		t.Errorf("it says %v", err)
	}
	if got := f.ids(t, partHere, here); len(got) > 0 || r.Applied()[0] != 0 || r.commits.Load() != 0 {
		t.Errorf("applied %v, at %v", got, r.Applied())
	}
	if !r.mu.TryLock() {
		t.Fatal("the lock is kept")
	}
	r.mu.Unlock()
}

// Corruption that a write finds takes the partition out of service, at once and
// without a record more, and no other.
func TestCorruptionFoundOnWrite(t *testing.T) {
	f := newFed(t)
	f.all.Serve(partThere, time.Now())
	r := f.all.Of(partHere)
	must(t, f.store.Quarantine(partHere, errors.New("a flipped bit"))) // as the store finds it
	if err := f.bringTo(t, kafka.Timeline, partHere, recordOf(0, here, postOf(t, here, "a"))); !errors.Is(err, ErrHeld) {
		t.Errorf("it says %v", err)
	}
	why, _ := r.Why()
	if r.State() != Quarantined || why.Reason != Corrupt || !strings.Contains(why.Detail, "a flipped bit") || r.Applied()[0] != 0 {
		t.Errorf("it is %s at %v: %+v", r.State(), r.Applied(), why)
	}
	if r.reading.Load()%2 != 0 || r.commits.Load()%2 != 0 || !r.mu.TryLock() {
		t.Error("it is still read, or written")
	} else {
		r.mu.Unlock()
	}
	if r.Holds() || f.all.Look(partHere).State.Answers() {
		t.Error("it answers")
	}
	must(t, f.bringTo(t, kafka.Timeline, partThere, recordOf(0, there, postOf(t, there, "b"))))
	answering, old, _ := f.all.Answering(time.Now())
	if answering != setOf(partThere) || old.Len() > 0 || len(f.ids(t, partThere, there)) != 1 {
		t.Errorf("%d answer, and %d of them are old", answering.Len(), old.Len())
	}
}

// One corrupt partition fails no other of the same node, though what one poll
// brings is of both.
func TestACorruptPartitionFailsNoOther(t *testing.T) {
	w := newWorld(t)
	w.post(here)
	w.start(partHere, partThere)
	w.until("both are ready", func() bool { return w.is(partHere, Ready, "")() && w.is(partThere, Ready, "")() && w.count(here) == 1 })
	w.trim(partHere, 1) // it stays out of service
	w.replicas.Pause(time.Now().Add(time.Hour))
	w.posts(3, here, there)
	w.until("both wait", func() bool {
		return w.is(partHere, Stale, Paused)() && w.is(partThere, Stale, Paused)()
	})
	must(t, w.store.Quarantine(partHere, errors.New("a flipped bit")))
	w.replicas.Pause(time.Time{})
	w.until("the one is out of service", w.is(partHere, Quarantined, Corrupt))
	w.until("the other goes on", func() bool { return w.count(there) == 3 && w.is(partThere, Ready, "")() })
	if answering, _, _ := w.replicas.Answering(time.Now()); answering != setOf(partThere) {
		t.Errorf("%v answer", answering)
	}
}

// Where the store loses what was not flushed, memory has more than it: the
// replica answers no more, the caches are emptied, and the log is read again from
// where the store is.
func TestARewoundStoreEmptiesTheCaches(t *testing.T) {
	var broken atomic.Bool
	mem := vfs.NewMem()
	must(t, newFlushed(t, mem))
	f := newIdle(t, unreadable(mem, &broken))
	f.all.Serve(partHere, time.Now())
	r := f.all.Of(partHere)
	if r.Applied()[0] != 1 {
		t.Fatalf("at %v", r.Applied())
	}
	broken.Store(true)
	err := f.bringTo(t, kafka.Timeline, partHere, recordOf(1, here, postOf(t, here, "b")))
	if !errors.Is(err, ErrHeld) || !errors.Is(err, errDetach) {
		t.Errorf("it says %v", err)
	}
	if n := f.host.forgotten.Load(); n != 1 {
		t.Errorf("the caches were emptied %d times", n)
	}
	if r.State() != CatchingUp || r.reading.Load()%2 != 0 || r.Holds() || r.commits.Load()%2 != 0 || r.Applied()[0] != 1 {
		t.Errorf("it is %s at %v, and read: %v", r.State(), r.Applied(), r.reading.Load()%2 != 0)
	}
	if answering, _, _ := f.all.Answering(time.Now()); answering.Len() > 0 {
		t.Error("it is announced")
	}
	broken.Store(false)
	if !r.mu.TryLock() {
		t.Fatal("the lock is kept")
	}
	r.mu.Unlock()
}

// Which log a replica was read from may be lost with what was not flushed. When
// the disk is there again that is written anew, before the log is read.
func TestARewoundStoreSaysWhichLogItIsOf(t *testing.T) {
	var broken atomic.Bool
	mem := vfs.NewMem()
	must(t, newFlushed(t, mem))
	f := newIdle(t, unreadable(mem, &broken))
	f.hosted(partHere)
	f.attach(t, partHere, offsets{}, offsets{1, 0})
	r := f.all.Of(partHere)
	broken.Store(true)
	if err := f.bringTo(t, kafka.Timeline, partHere, recordOf(1, here, postOf(t, here, "b"))); !errors.Is(err, errDetach) {
		t.Errorf("it says %v", err)
	}
	if at := f.attach(t, partHere, offsets{}, offsets{2, 0}); len(at) > 0 {
		t.Errorf("it is read at %v from a disk that cannot be read", at)
	}
	f.want(t, "while the disk fails", partHere, CatchingUp, StoreFailing)
	broken.Store(false)
	var at map[kafka.TopicPartition]kafka.Position
	for range 2 { // the first reads the disk again
		at = f.attach(t, partHere, offsets{}, offsets{2, 0})
	}
	if next := at[kafka.TopicPartition{Stream: kafka.Timeline, Partition: partHere}].Next; next != 1 || r.Applied()[0] != 1 {
		t.Errorf("it is read at %v", at)
	}
	if row, err := f.store.Origin(partHere); err != nil || LogOf(row) != logOne.String() || r.Log() != logOne.String() {
		t.Errorf("the store is of the log %q: %v; the replica of %q", LogOf(row), err, r.Log())
	}
	must(t, f.store.Quarantine(partHere, errors.New("a flipped bit")))
	f.all.detach(r)
	f.attach(t, partHere, offsets{}, offsets{2, 0})
	f.want(t, "when that is corrupt,", partHere, Quarantined, Corrupt)
}

// A store that cannot be read when a replica begins has not been damaged by that.
func TestAReplicaThatBeginsOnAFailingDisk(t *testing.T) {
	var broken atomic.Bool
	mem := vfs.NewMem()
	must(t, newFlushed(t, mem))
	f := newIdle(t, unreadable(mem, &broken))
	f.all.Serve(partHere, time.Now())
	broken.Store(true)
	if err := f.bringTo(t, kafka.Timeline, partHere, recordOf(1, here, postOf(t, here, "b"))); !errors.Is(err, errDetach) {
		t.Errorf("it says %v", err)
	}
	f.all.Of(partHere).state.Store(int32(Absent))
	f.hosted(partHere)
	f.want(t, "while the disk fails", partHere, CatchingUp, StoreFailing)
	broken.Store(false)
	var at map[kafka.TopicPartition]kafka.Position
	for range 2 { // the first reads the disk again
		at = f.attach(t, partHere, offsets{}, offsets{2, 0})
	}
	if next := at[kafka.TopicPartition{Stream: kafka.Timeline, Partition: partHere}].Next; next != 1 {
		t.Errorf("it is read at %v", at)
	}
}

// Where it is the note that a replica is whole that finds the store rewound, memory
// has more than that, too: the log is read again.
func TestANoteThatFindsTheStoreRewound(t *testing.T) {
	var broken atomic.Bool
	mem := vfs.NewMem()
	must(t, newFlushed(t, mem))
	f := newIdle(t, unreadable(mem, &broken))
	f.all.Serve(partHere, time.Now())
	r := f.all.Of(partHere)
	broken.Store(true)
	var b store.Batch
	b.Put(partHere, millrace.Timeline{Entity: here, Type: "post"}, millrace.Record{ID: "b", Time: 2, Version: 1})
	if _, err := f.store.Apply(&b, nil); !errors.Is(err, store.ErrRewound) {
		t.Errorf("it says %v", err)
	}
	if f.all.rememberWhole(r, r.reading.Load()) || r.reading.Load()%2 == 1 || f.host.forgotten.Load() != 1 {
		t.Errorf("it is read on; the caches were emptied %d times", f.host.forgotten.Load())
	}
}

// Where nobody who writes finds that the store lost what was not flushed, the
// replica is taken out all the same, once, and read again from where the store is.
func TestARewoundStoreIsFoundWithoutAWriter(t *testing.T) {
	for what, c := range map[string]struct {
		before func(f *fed, r *Replica)
		find   func(f *fed, r *Replica)
		want   State
	}{
		"ready":                       {nil, func(f *fed, _ *Replica) { f.all.takeOutRewound() }, CatchingUp},
		"draining":                    {func(_ *fed, r *Replica) { r.state.Store(int32(Draining)) }, func(f *fed, _ *Replica) { f.all.takeOutRewound() }, Absent},
		"stale, without a log":        {func(f *fed, r *Replica) { r.state.Store(int32(Stale)); f.all.stopReading(r) }, func(f *fed, _ *Replica) { f.all.takeOutRewound() }, CatchingUp},
		"before it is read again":     {func(f *fed, r *Replica) { f.all.stopReading(r) }, func(f *fed, _ *Replica) { f.attach(t, partHere, offsets{}, offsets{2, 0}) }, CatchingUp},
		"before it is here once more": {func(f *fed, r *Replica) { f.all.stopReading(r); r.state.Store(int32(Absent)) }, func(f *fed, r *Replica) { f.hosted(partHere) }, CatchingUp},
	} {
		t.Run(what, func(t *testing.T) {
			var broken atomic.Bool
			mem := vfs.NewMem()
			must(t, newFlushed(t, mem))
			f := newIdle(t, unreadable(mem, &broken))
			f.all.Serve(partHere, time.Now())
			r := f.all.Of(partHere)
			must(t, f.bringTo(t, kafka.Timeline, partHere, recordOf(1, here, postOf(t, here, "b"))))
			f.all.takeOutRewound()
			if r.State() != Ready || r.reading.Load()%2 == 0 || f.host.forgotten.Load() != 0 || r.Applied()[0] != 2 {
				t.Fatalf("one that has what the store has is %s at %v", r.State(), r.Applied())
			}
			if c.before != nil {
				c.before(f, r)
			}
			broken.Store(true)
			var b store.Batch
			b.PutFeatures(partHere, here, store.Features{Subject: string(here), Version: 1})
			if _, err := f.store.Apply(&b, nil); !errors.Is(err, store.ErrRewound) {
				t.Fatalf("the store says %v", err)
			}
			broken.Store(false)
			if _, err := f.store.Origin(partHere); err == nil {
				t.Error("it was read already")
			}
			c.find(f, r)
			if r.State() != c.want || f.host.forgotten.Load() != 1 || r.Applied()[0] != 1 {
				t.Errorf("it is %s at %v; the caches were emptied %d times", r.State(), r.Applied(), f.host.forgotten.Load())
			}
			if f.all.takeOutRewound(); f.host.forgotten.Load() != 1 {
				t.Error("it is found twice")
			}
			if c.want == Absent {
				return
			}
			if r.reading.Load()%2 == 0 {
				f.attach(t, partHere, offsets{}, offsets{2, 0})
			}
			must(t, f.bringTo(t, kafka.Timeline, partHere, recordOf(1, here, postOf(t, here, "b"))))
			if n := len(f.ids(t, partHere, here)); n != 2 || r.Applied()[0] != 2 {
				t.Errorf("it has %d records, at %v", n, r.Applied())
			}
		})
	}
}

// A commit is not taken for a store that was rewound.
func TestACommitIsNoRewind(t *testing.T) {
	f := newFed(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := range 500 {
			at := millrace.Offset(n)
			if err := f.bringTo(t, kafka.Timeline, partHere, recordOf(at, here, postOf(t, here, fmt.Sprint(n)))); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for {
		f.all.takeOutRewound()
		select {
		case <-done:
			if r := f.all.Of(partHere); r.State() != Ready || f.host.forgotten.Load() != 0 {
				t.Errorf("it is %s; the caches were emptied %d times", r.State(), f.host.forgotten.Load())
			}
			return
		default:
		}
	}
}

// unreadable is a disk whose tables cannot be read while it is broken.
func unreadable(fs vfs.FS, broken *atomic.Bool) vfs.FS {
	return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsRead && strings.HasSuffix(op.Path, ".sst") {
			return syscall.EIO
		}
		return nil
	}))
}

// newFlushed leaves a store on a disk that has one record of a partition.
func newFlushed(t testing.TB, fs vfs.FS) error {
	t.Helper()
	s, err := store.Open("", store.Options{FS: fs, FlushEvery: -1})
	must(t, err)
	var b store.Batch
	b.Put(partHere, millrace.Timeline{Entity: here, Type: "post"}, millrace.Record{ID: "a", Time: 1, Version: 1})
	b.SetApplied(partHere, store.Content, 1)
	_, err = s.Apply(&b, nil)
	return errors.Join(err, s.Close())
}

// What was polled when the disk was full is kept: it is applied though Kafka is
// not there to bring it again.
func TestAFullDiskKeepsWhatWasPolled(t *testing.T) {
	w := newWorld(t)
	w.start(partHere)
	w.until("it is ready", w.is(partHere, Ready, ""))
	w.disk.full.Store(true)
	w.post(here)
	w.until("it is held back", w.is(partHere, Stale, DiskFull))
	w.away()
	w.disk.full.Store(false)
	w.until("what was polled is applied", func() bool { return w.count(here) == 1 })
}

// A quarantine that a full disk does not take counts all the same, and its author is told both.
func TestAFullDiskTakesNoQuarantine(t *testing.T) {
	w := newWorld(t)
	w.start(partHere)
	w.until("it is ready", w.is(partHere, Ready, ""))
	w.disk.full.Store(true)
	err := w.replicas.Quarantine(partHere, "doubt")
	if e := (*millrace.Error)(nil); !errors.As(err, &e) || !strings.Contains(e.Detail, "quarantined from now on, and that is not on the disk") {
		t.Errorf("on a full disk: %v", err)
	}
	if !w.is(partHere, Quarantined, ByOperator)() {
		t.Errorf("it is %v", w.replicas.Of(partHere).State())
	}
	w.disk.full.Store(false)
	must(t, w.store.Flush())
}

// What the store says is found again in what is told.
func TestHeldBackSaysBy(t *testing.T) {
	f := newFed(t)
	f.disk.full.Store(true)
	err := f.bringTo(t, kafka.Timeline, partHere, recordOf(0, here, postOf(t, here, "a")))
	var h *Held
	if !errors.Is(err, ErrHeld) || !errors.Is(err, store.ErrDiskFull) || !errors.As(err, &h) || h.Reason != DiskFull {
		t.Errorf("it says %v", err)
	}
	if r := f.all.Of(partHere); r.Applied()[0] != 0 || r.commits.Load() != 0 || r.State() != Ready {
		t.Errorf("it is %s at %v", r.State(), r.Applied())
	}
	f.disk.full.Store(false)
	must(t, f.bringTo(t, kafka.Timeline, partHere, recordOf(0, here, postOf(t, here, "a"))))
}

// The offset goes past a refused record only when that is in the dead letters,
// however often it is tried meanwhile, and it is handed over once.
func TestTheOffsetWaitsForTheDeadLetter(t *testing.T) {
	f := newFed(t)
	f.letters.slow.Store(true)
	r, in := f.all.Of(partHere), &f.all.ingest
	b := backlog{reading: r.reading.Load(), fetched: []streams.Fetched{{TopicPartition: both(partHere)[0], Records: []streams.Record{recordOf(0, here, []byte("poison")), recordOf(1, here, postOf(t, here, "a"))}, Next: 2, Epoch: -1}}}
	waits := func(when string, sent int64) {
		t.Helper()
		var h *Held
		if err := in.apply(t.Context(), r, &b); !errors.As(err, &h) || h.Reason != DeadLetters {
			t.Fatalf("%s it says %v", when, err)
		}
		if at := f.store.Applied(partHere).Content; at > 0 || r.Applied()[0] > 0 {
			t.Fatalf("%s the offset is %d", when, at)
		}
		if n := f.letters.tried.Load(); n != sent {
			t.Errorf("%s it was handed over %d times", when, n)
		}
	}
	in.letterBytes.Store(maxLetterBytes)
	waits("while much is on its way", 0)
	in.letterBytes.Store(0)
	waits("handed over,", 1)
	waits("on its way,", 1)
	f.letters.sent[0](errors.New("no"))
	waits("after a failure", 2)
	in.mu.woken = false
	f.letters.sent[1](nil)
	if !in.mu.woken {
		t.Error("nothing wakes who waits for it")
	}
	must(t, in.apply(t.Context(), r, &b))
	if n := in.letterBytes.Load(); n != 0 {
		t.Errorf("%d bytes count as on their way", n)
	}
	if f.store.Applied(partHere).Content != 2 || len(f.ids(t, partHere, here)) != 1 || f.letters.tried.Load() != 2 || f.host.refused.Load() != 1 || len(b.letters) > 0 {
		t.Errorf("at %v, %d handed over, %d refused, %d remembered", f.store.Applied(partHere), f.letters.tried.Load(), f.host.refused.Load(), len(b.letters))
	}
}

// What a record's bytes say decides what becomes of it: none gets to where it
// does not belong, and the dead letter says why, and is the record.
func TestWhatIsRefused(t *testing.T) {
	var other millrace.Entity // of the same partition
	for i := 0; other == ""; i++ {
		if e := millrace.Entity(fmt.Sprint("company:", i)); partition.Of(e) == partHere {
			other = e
		}
	}
	says := map[string]string{ // the details of some
		"features under another entity": fmt.Sprintf("key %q, entity %q", here, other),
		"a post in another's timeline":  fmt.Sprintf("key %q is neither the entity %q nor in about", here, other),
		"a post of another partition":   fmt.Sprintf("key %q belongs to partition %d", there, partThere),
		"features in the timeline":      fmt.Sprintf("schema %s on %s", schemas.Features().Name(), kafka.Timeline),
		"a post among features":         fmt.Sprintf("schema %s on %s", schemas.Activity().Name(), kafka.Features),
	}
	damaged := recordOf(0, here, postOf(t, here, "a"))
	damaged.CRC = recordOf(0, here, postOf(t, here, "b")).CRC
	for what, c := range map[string]struct {
		stream kafka.Stream
		record streams.Record
		want   schemas.Reason // empty: it is applied
	}{
		"a post":                        {kafka.Timeline, recordOf(0, here, postOf(t, here, "a")), ""},
		"a post about the entity":       {kafka.Timeline, recordOf(0, here, postOf(t, other, "a", "nobody", here)), ""},
		"features":                      {kafka.Features, recordOf(0, here, featuresOf(t, here)), ""},
		"features under another entity": {kafka.Features, recordOf(0, here, featuresOf(t, other)), schemas.KeyMismatch},
		"a post in another's timeline":  {kafka.Timeline, recordOf(0, here, postOf(t, other, "a", "nobody")), schemas.KeyMismatch},
		"a post of another partition":   {kafka.Timeline, recordOf(0, there, postOf(t, there, "a")), "wrong-partition"},
		"features of another partition": {kafka.Features, recordOf(0, there, featuresOf(t, there)), "wrong-partition"},
		"features in the timeline":      {kafka.Timeline, recordOf(0, here, featuresOf(t, here)), "wrong-stream"},
		"a post among features":         {kafka.Features, recordOf(0, here, postOf(t, here, "a")), "wrong-stream"},
		"another's checksum":            {kafka.Timeline, damaged, "bad-checksum"},
		"no framing":                    {kafka.Timeline, recordOf(0, here, []byte("poison")), schemas.BadFraming},
		"a registry's framing":          {kafka.Timeline, recordOf(0, here, []byte{0, 0, 0, 0, 1, 2}), schemas.BadFraming},
		"a body that ends within":       {kafka.Timeline, recordOf(0, here, postOf(t, here, "a")[:12]), schemas.Truncated},
		"nothing":                       {kafka.Timeline, recordOf(0, here, nil), schemas.EmptyValue},
	} {
		f := newFed(t)
		must(t, f.bringTo(t, c.stream, partHere, c.record))
		if at := f.all.Of(partHere).Applied()[c.stream]; at != 1 {
			t.Errorf("%s: at %d", what, at)
		}
		features, err := f.store.Features(partHere, here)
		must(t, err)
		others, err := f.store.Features(partHere, other)
		must(t, err)
		has := len(f.ids(t, partHere, here)) + len(f.ids(t, partHere, other)) + len(features) + len(others)
		if c.want == "" {
			if has != 1 || f.letters.count() != 0 || len(others) > 0 || len(f.ids(t, partHere, other)) > 0 {
				t.Errorf("%s: %d applied, %d refused", what, has, f.letters.count())
			}
			continue
		}
		if has != 0 || f.letters.count() != 1 {
			t.Errorf("%s: %d applied, %d refused", what, has, f.letters.count())
			continue
		}
		letter := f.letters.kept[0]
		from := string(kafka.Source{Topic: f.all.cfg.Topics.Of(c.stream), Partition: int32(partHere)}.Append(nil))
		headers := map[string]string{}
		for _, h := range letter.Headers {
			headers[h.Key] = string(h.Value)
		}
		if headers[kafka.HeaderReason] != string(c.want) || headers[kafka.HeaderSource] != from || headers[kafka.HeaderDetail] == "" || !strings.Contains(headers[kafka.HeaderDetail], says[what]) {
			t.Errorf("%s: the letter says %q; want %s, %s", what, headers, c.want, from)
		}
		if letter.Topic != f.all.cfg.Topics.DeadLetters || string(letter.Key) != string(c.record.Key) || string(letter.Value) != string(c.record.Value) {
			t.Errorf("%s: the letter is to %s, %q: %q", what, letter.Topic, letter.Key, letter.Value)
		}
	}
}

// The leader's epoch of what was applied is kept with it, and not written again
// while it is the same.
func TestTheEpochIsKept(t *testing.T) {
	f := newFed(t)
	r := f.all.Of(partHere)
	for at, epoch := range []int32{5, 5, -1, 6} {
		b := backlog{reading: r.reading.Load(), fetched: []streams.Fetched{{
			TopicPartition: both(partHere)[0], Epoch: epoch, From: millrace.Offset(at), Next: millrace.Offset(at + 1),
			Records: []streams.Record{recordOf(millrace.Offset(at), here, postOf(t, here, fmt.Sprint(at)))},
		}}}
		must(t, f.all.ingest.apply(t.Context(), r, &b))
		row, err := f.store.Origin(partHere)
		must(t, err)
		o, known, err := decodeOrigin(row)
		if want := []int32{5, 5, 5, 6}[at]; err != nil || !known || o.Epochs[0] != want || r.origin() != o {
			t.Errorf("after a record of epoch %d the store has %+v, and memory %+v: %v", epoch, o, r.origin(), err)
		}
	}
}

// What a commit and the reconciler change of the origin at the same time is both
// kept.
func TestTheEpochAndTheEndAreBothKept(t *testing.T) {
	f := newFed(t)
	r := f.all.Of(partHere)
	bring := func(at millrace.Offset, epoch int32) error {
		b := backlog{reading: r.reading.Load(), fetched: []streams.Fetched{{
			TopicPartition: both(partHere)[0], Epoch: epoch, From: at, Next: at + 1,
			Records: []streams.Record{recordOf(at, here, postOf(t, here, fmt.Sprint(at)))},
		}}}
		return f.all.ingest.apply(t.Context(), r, &b)
	}
	r.mu.Lock() // both wait
	done, remembered := make(chan error, 1), make(chan bool, 1)
	go func() { done <- bring(0, 5) }()
	go func() { remembered <- f.all.rememberWhole(r, r.reading.Load()) }()
	time.Sleep(50 * time.Millisecond)
	r.mu.Unlock()
	must(t, <-done)
	if !<-remembered {
		t.Error("it is not remembered as whole")
	}
	row, err := f.store.Origin(partHere)
	must(t, err)
	if o, _, err := decodeOrigin(row); err != nil || o.Epochs[0] != 5 || !o.Whole || r.origin() != o {
		t.Errorf("the store has %+v, and memory %+v: %v", o, r.origin(), err)
	}
}

// A look holds no longer when the state changed, though nothing was committed.
func TestALookEndsWithTheState(t *testing.T) {
	f := newFed(t)
	r := f.all.Of(partHere)
	look := f.all.Look(partHere)
	if !r.Unmoved(&look) {
		t.Error("nothing happened, and it moved")
	}
	f.all.Condemn(partHere, Why{Corrupt, "a flipped bit"})
	if r.Unmoved(&look) {
		t.Error("what is condemned counts as unmoved")
	}
}

// What is no refusal by its own word is one all the same, and says what went
// wrong.
func TestAnyOtherErrorIsARefusal(t *testing.T) {
	if why := refusedFor(errors.New("odd")); why.Reason != "unreadable" || why.Detail != "odd" {
		t.Errorf("%+v", why)
	}
	bad := &schemas.Error{Reason: schemas.Truncated}
	if why := refusedFor(fmt.Errorf("at 5: %w", bad)); why != bad {
		t.Errorf("%+v", why)
	}
}
