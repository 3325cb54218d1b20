package replica

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/partition"
)

func setOf(parts ...millrace.Partition) (set topology.Set) {
	for _, p := range parts {
		set.Add(p)
	}
	return set
}

// empty reports whether the disk has nothing of a partition.
func (w *world) empty(p millrace.Partition) func() bool {
	return func() bool {
		held := w.replicas.Held()
		return w.store.Applied(p) == store.Offsets{Content: -1, Features: -1} && !held.Has(p)
	}
}

// What is assigned elsewhere stays on disk until the node is ordered to delete
// it. Then it is gone, once it is drained, and nothing else is.
func TestDropOnOrder(t *testing.T) {
	w := newWorld(t)
	k := newKept(w)
	w.post(here)
	w.post(there)
	w.start(partHere, partThere)
	w.until("both are ready", func() bool {
		return w.is(partHere, Ready, "")() && w.is(partThere, Ready, "")() && w.count(here) == 1 && w.count(there) == 1
	})

	k.set(func() { k.left = nil }) // by the renewals

	// An order beside an assignment, as a mistaken document has it, does nothing.
	w.replicas.Drop(setOf(partHere))
	w.want(partThere)
	w.until("it drains", w.is(partHere, Draining, Moved))
	if w.count(here) != 1 {
		t.Error("it was deleted while it answered")
	}
	w.until("it is deleted", w.empty(partHere))
	one := []millrace.Partition{partHere}
	w.until("the backups forget it", func() bool { return slices.Equal(k.forgotten(), one) })
	if got := w.host.uncached(); !slices.Equal(got, one) {
		t.Errorf("the caches forgot %v", got)
	}

	// Without an order it is held, and a replica that comes back has it.
	w.want()
	w.until("the other is held", func() bool { return w.replicas.Held() == setOf(partThere) })
	if w.count(there) != 1 {
		t.Error("it was deleted without an order")
	}

	// A dropped one that comes back begins from nothing.
	w.replicas.Drop(topology.Set{})
	w.want(partHere, partThere)
	w.until("both are ready again", func() bool { return w.is(partHere, Ready, "")() && w.is(partThere, Ready, "")() })
	if w.count(here) != 1 || w.count(there) != 1 || w.replicas.Held() != (topology.Set{}) {
		t.Errorf("%d and %d records, held %v", w.count(here), w.count(there), w.replicas.Held())
	}
}

// A partition that is given back while it is deleted begins when that is done,
// as from nothing: it looks for a backup, and what the caches know of it gives
// way to what the backup has.
func TestDroppedComesFromItsBackup(t *testing.T) {
	w := newWorld(t)
	w.posts(3, here)
	k := newKept(w)
	w.start(partHere)
	w.until("it is ready", func() bool { return w.is(partHere, Ready, "")() && w.count(here) == 3 })
	k.add(partHere, "new", 2, "")
	w.replicas.Drop(setOf(partHere))
	w.want()
	w.until("it is deleted", w.empty(partHere))
	w.want(partHere)
	w.until("it is ready again", w.is(partHere, Ready, ""))
	if got := k.names(); got != "new" || w.count(here) != 2 {
		t.Errorf("restored %q, %d records", got, w.count(here))
	}
	if got := w.host.uncached(); !slices.Equal(got, []millrace.Partition{partHere, partHere}) {
		t.Errorf("the caches forgot %v; want it at the end and when the backup is there", got)
	}
}

// However assignments and orders follow each other, a hosted partition ends up
// ready with all records, and one that is to be dropped, and not hosted, empty.
func TestDropRacesWithAssign(t *testing.T) {
	w := newWorld(t)
	w.posts(4, here, there)
	w.start(partHere, partThere)
	r := rand.New(rand.NewPCG(1, 2))
	stop := make(chan struct{})
	var readers sync.WaitGroup
	readers.Go(func() { // as stats and answers look at replicas
		for {
			select {
			case <-stop:
				return
			default:
				for _, p := range []millrace.Partition{partHere, partThere} {
					w.replicas.Look(p)
					w.replicas.Whole(p)
					r := w.replicas.Of(p)
					r.Why()
					r.Log()
					r.Trail()
					r.Irreplaceable()
				}
				w.replicas.Held()
				w.replicas.Answering(time.Now())
				w.replicas.Proven(time.Now())
			}
		}
	})
	for i := range 60 {
		var wanted, drop topology.Set
		for _, p := range []millrace.Partition{partHere, partThere} {
			if r.IntN(2) == 0 {
				wanted.Add(p)
			} else if r.IntN(3) > 0 {
				drop.Add(p)
			}
		}
		w.replicas.Want(wanted)
		w.replicas.Drop(drop)
		if i%4 != 3 { // most follow each other at once
			continue
		}
		for _, p := range []millrace.Partition{partHere, partThere} {
			e := here
			if p == partThere {
				e = there
			}
			switch {
			case wanted.Has(p):
				w.until("it is ready with all records", func() bool { return w.is(p, Ready, "")() && w.count(e) == 4 })
			case drop.Has(p):
				w.until("it is deleted", func() bool { return w.is(p, Absent, w.whyAbsent(p))() && w.empty(p)() })
			}
		}
	}
	close(stop)
	readers.Wait()
}

func (w *world) whyAbsent(p millrace.Partition) Reason {
	why, _ := w.replicas.Of(p).Why()
	return why.Reason
}

// A node that is killed while it deletes goes on after its restart, and has lost
// nothing else.
func TestDropGoesOnAfterAKill(t *testing.T) {
	w := newWorld(t)
	fs := vfs.NewCrashableMem()
	w.disk.FS = fs
	var parts []millrace.Partition
	for i := range 12 {
		e := millrace.Entity(string(rune('a' + i)))
		w.post(e)
		parts = append(parts, partition.Of(e))
	}
	w.post(here)
	w.start(append(parts, partHere)...)
	w.until("all are ready", func() bool {
		for _, p := range append(parts, partHere) {
			if !w.is(p, Ready, "")() {
				return false
			}
		}
		return w.count(here) == 1
	})
	must(t, w.store.Flush())
	w.replicas.Drop(setOf(parts...))
	w.want(partHere)
	w.until("some are deleted", func() bool {
		held := w.replicas.Held()
		return held.Len() < len(parts) && w.is(parts[0], Absent, w.whyAbsent(parts[0]))() && w.empty(parts[0])()
	})
	crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rand.New(rand.NewPCG(3, 4))})
	w.stop()

	w.disk = &disk{FS: crashed}
	w.start(partHere)
	before := w.replicas.Held()
	w.replicas.Drop(setOf(parts...))
	w.until("all are deleted", func() bool { return w.replicas.Held() == topology.Set{} })
	w.until("what is hosted is ready", w.is(partHere, Ready, ""))
	if w.count(here) != 1 {
		t.Errorf("%d records of what is hosted", w.count(here))
	}
	t.Logf("%d were left when it was killed", before.Len())
}

// A partition is deleted as often as it is ordered to be, also where there is
// nothing of it but its quarantine.
func TestDropAgain(t *testing.T) {
	w := newWorld(t)
	w.post(here)
	for range 2 {
		w.start(partHere)
		w.until("it is ready", func() bool { return w.is(partHere, Ready, "")() && w.count(here) == 1 })
		for range 2 {
			w.replicas.Drop(setOf(partHere))
			w.want()
			w.until("it is deleted", w.empty(partHere))
			w.replicas.Drop(topology.Set{})
			w.want(partHere)
			w.until("it is ready again", func() bool { return w.is(partHere, Ready, "")() && w.count(here) == 1 })
		}
		w.stop()
	}
	w.start()
	must(t, w.store.Quarantine(partThere, errors.New("a flipped bit")))
	if held := w.replicas.Held(); !held.Has(partThere) {
		t.Error("what is quarantined is not held")
	}
	w.replicas.Drop(setOf(partThere))
	w.until("its quarantine is gone", func() bool { return w.store.Quarantined(partThere) == nil })
}

// What an operator has quarantined is not deleted, though it is assigned elsewhere,
// and holds no other deletion up. It is still quarantined when it comes back, and is
// deleted once it is released.
func TestNoDropOfWhatAnOperatorQuarantined(t *testing.T) {
	w := newWorld(t)
	w.post(here)
	w.post(there)
	w.start(partHere, partThere)
	w.until("both are ready", func() bool {
		return w.is(partHere, Ready, "")() && w.is(partThere, Ready, "")() && w.count(here) == 1 && w.count(there) == 1
	})
	must(t, w.store.Flush())
	must(t, w.replicas.Quarantine(partHere, "it ranks oddly"))
	at := w.store.Applied(partHere)
	both := setOf(partHere, partThere)
	w.replicas.Drop(both)
	w.want()
	w.until("the other is deleted", w.empty(partThere))
	w.until("it is not hosted", func() bool { return w.replicas.Of(partHere).State() == Absent })
	looked := w.input.asked.Load()
	w.until("it was looked at again", func() bool { return w.input.asked.Load() > looked+2 })
	kept := func(when string) {
		t.Helper()
		if err := w.store.Quarantined(partHere); err == nil || whyQuarantined(err).Reason != ByOperator || w.store.Applied(partHere) != at {
			t.Errorf("%s it is at %v, quarantined: %v", when, w.store.Applied(partHere), err)
		}
		if held := w.replicas.Held(); !held.Has(partHere) {
			t.Errorf("%s it is not held", when)
		}
	}
	kept("in the end")
	w.stop()
	w.start()
	w.replicas.Drop(both)
	looked = w.input.asked.Load()
	w.until("it was looked at again", func() bool { return w.input.asked.Load() > looked+2 })
	kept("after a restart")
	w.replicas.Drop(topology.Set{})
	w.want(partHere)
	w.until("it is still quarantined", w.is(partHere, Quarantined, ByOperator))
	must(t, w.replicas.Release(partHere))
	w.until("it is made anew", func() bool { return w.is(partHere, Ready, "")() && w.count(here) == 1 })
	must(t, w.replicas.Quarantine(partHere, "it ranks oddly"))
	for range 2 { // it can be released where it is not hosted, and after a restart
		w.replicas.Drop(both)
		w.want()
		w.until("it is not hosted again", func() bool { return w.replicas.Of(partHere).State() == Absent })
		w.stop()
		w.start()
	}
	if err := w.replicas.Release(partThere); err == nil {
		t.Error("what is not here at all is released")
	}
	must(t, w.replicas.Release(partHere))
	w.replicas.Drop(both)
	w.until("it is deleted", w.empty(partHere))
}

// A replica that is condemned while it is deleted is renewed when it is assigned
// again: the deletion does not take the cause away.
func TestWhatIsCondemnedWhileItIsDeleted(t *testing.T) {
	f := newIdle(t, vfs.NewMem())
	f.has(t, partHere, 1, 0)
	f.all.Drop(setOf(partHere))
	f.all.drop(t.Context(), time.Now())
	r := f.all.Of(partHere)
	<-r.renewal.done
	f.all.Condemn(partHere, Why{Corrupt, "a flipped bit"})
	f.all.finish()
	if got := f.all.unread(); r.condemnedFor().Reason != Corrupt || !slices.Equal(got, []*Replica{r}) {
		t.Errorf("it is %s for %+v, and %d are renewed", r.State(), r.condemnedFor(), len(got))
	}
}

// A deletion that failed is told, and tried again after a while; meanwhile
// nothing else is deleted, and nothing counts as deleted.
func TestADropThatFailedIsTriedAgain(t *testing.T) {
	f := newIdle(t, vfs.NewMem())
	f.has(t, partHere, 1, 0)
	f.all.Drop(setOf(partHere))
	r := f.all.Of(partHere)
	gone, cancel := context.WithCancel(t.Context())
	cancel() // what fails it
	now := time.Now()
	f.all.drop(gone, now)
	if f.all.dropping != r {
		t.Fatal("it is not begun")
	}
	<-r.renewal.done
	f.all.finish()
	if f.all.dropping != nil || r.renewal != nil || r.gone || !strings.Contains(f.logged.String(), "could not be deleted") {
		t.Errorf("gone %v; logged %s", r.gone, f.logged)
	}
	if f.all.drop(t.Context(), now); f.all.dropping != nil {
		t.Error("it is tried again at once")
	}
	for len(f.all.moved) > 0 {
		<-f.all.moved
	}
	f.all.drop(t.Context(), now.Add(time.Hour))
	<-r.renewal.done
	f.all.finish()
	if held := f.all.Held(); !r.gone || held.Len() > 0 || len(f.all.moved) != 1 || !strings.Contains(f.logged.String(), "elsewhere is deleted") {
		t.Errorf("gone %v, held %d, told %d", r.gone, held.Len(), len(f.all.moved))
	}
	if got := f.host.uncached(); !slices.Equal(got, []millrace.Partition{partHere}) {
		t.Errorf("the caches forgot %v", got)
	}
	if f.all.drop(t.Context(), now.Add(time.Hour)); f.all.dropping != nil {
		t.Error("it is deleted twice on one order")
	}
	if f.hosted(partHere); r.gone {
		t.Error("once it was here again, an order to delete it is taken for carried out")
	}
	must(t, f.store.Quarantine(partThere, errors.New("a flipped bit")))
	if held := f.all.Held(); held != setOf(partThere) {
		t.Error("a partition of which only a quarantine is there is not held")
	}
}

// A deletion waits for those who read, and fails where the store does. Where it cannot be read
// what the caches may have, they are emptied whole.
func TestADropOnABadDisk(t *testing.T) {
	f := newIdle(t, vfs.NewMem())
	f.has(t, partHere, 1, 0)
	r := f.all.Of(partHere)
	f.disk.full.Store(true)
	if err := f.all.delete(r); !errors.Is(err, store.ErrDiskFull) || f.host.forgotten.Load() != 0 {
		t.Errorf("on a full disk: %v, and the caches are emptied %d times", err, f.host.forgotten.Load())
	}
	f.disk.full.Store(false)
	f.host.unreadable = errors.New("it cannot be read")
	waitsForReaders(t, r, func() { must(t, f.all.delete(r)) })
	if f.host.forgotten.Load() != 1 || f.all.has(partHere) {
		t.Errorf("the caches are emptied %d times; it is there still: %t", f.host.forgotten.Load(), f.all.has(partHere))
	}
}

// A partition that cannot be deleted does not hold up the others, and has its turn after them.
func TestADropThatFailsHoldsUpNoOther(t *testing.T) {
	f := newIdle(t, vfs.NewMem())
	both := setOf(partHere, partThere)
	for p := range both.All() {
		f.has(t, p, 1, 0)
	}
	f.all.Drop(both)
	gone, cancel := context.WithCancel(t.Context())
	cancel() // what fails them
	now := time.Now()
	first, then := min(partHere, partThere), max(partHere, partThere)
	for i, p := range []millrace.Partition{first, then, first, then} {
		now = now.Add(time.Hour)
		f.all.drop(gone, now)
		if r := f.all.Of(p); f.all.dropping != r {
			t.Fatalf("the deletion number %d is not of partition %d", i, p)
		} else {
			<-r.renewal.done
		}
		f.all.finish()
	}
}

// A partition that is assigned elsewhere answers until brokers have heard, is
// announced to nobody meanwhile, and then answers no more, though all of it is
// on the disk.
func TestAMovedPartitionDoesNotAnswer(t *testing.T) {
	f := newFed(t)
	f.has(t, partHere, 0, 0)
	f.all.drainFor = time.Minute
	r := f.all.Of(partHere)
	now := time.Now()
	f.all.Want(setOf(partHere))
	f.all.host(now)
	if answering, _, _ := f.all.Answering(now); r.State() != Ready || !answering.Has(partHere) {
		t.Fatalf("it is %s", r.State())
	}
	f.all.Want(setOf(partThere))
	f.all.host(now)
	if answering, old, _ := f.all.Answering(now); answering.Has(partHere) || old.Has(partHere) || !r.State().Answers() {
		t.Errorf("it is %s, announced %v", r.State(), answering.Has(partHere))
	}
	f.all.host(now.Add(time.Minute - 1))
	if r.State() != Draining || r.reading.Load()%2 == 0 {
		t.Errorf("it is %s before brokers have heard", r.State())
	}
	f.all.host(now.Add(time.Minute))
	if look := f.all.Look(partHere); look.State != Absent || r.Holds() || r.State().Missing() != "not_hosted" || r.reading.Load()%2 != 0 {
		t.Errorf("it is %s, and read: %v", r.State(), r.reading.Load()%2 != 0)
	}
	if answering, _, _ := f.all.Answering(now); answering.Len() > 0 {
		t.Errorf("%d answer", answering.Len())
	}
	if held := f.all.Held(); held != setOf(partHere) {
		t.Error("what was here is not held")
	}
}
