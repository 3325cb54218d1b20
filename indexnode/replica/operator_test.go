package replica

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
)

// A quarantine is known again after a restart by its cause: that of an operator
// stays, others are mended.
func TestTheCauseOfAQuarantineIsKnownAgain(t *testing.T) {
	for text, want := range map[string]Reason{operatorText + ": because " + differsText: ByOperator, differsText + ": at 5": Differs, "it was being restored: " + differsText: Differs, "bad block": Corrupt} {
		why := whyQuarantined(fmt.Errorf("store: partition 17: %s", text))
		if why.Reason != want {
			t.Errorf("%q is %s, want %s", text, why.Reason, want)
		}
		all := new(Replicas)
		r := &all.replicas[17]
		r.setCause(why)
		if all.curable(r) == (want == ByOperator) {
			t.Errorf("%q is made anew without a word: %v", text, want == ByOperator)
		}
	}
}

// What an operator has quarantined answers nobody, is announced as quarantined,
// and stays so over a restart, with the cause, until it is released. Then it is
// made anew.
func TestAnOperatorsQuarantineIsKept(t *testing.T) {
	w := newWorld(t)
	w.posts(3, here)
	w.start(partHere, partThere)
	ready := func() bool { return w.is(partHere, Ready, "")() && w.is(partThere, Ready, "")() && w.count(here) == 3 }
	w.until("both are ready", ready)
	if err := w.replicas.Release(partHere); err == nil {
		t.Error("one that is ready is released")
	}
	out := func(when string) {
		t.Helper()
		r := w.replicas.Of(partHere)
		why, _ := r.Why()
		if r.State() != Quarantined || why.Reason != ByOperator || !strings.Contains(why.Detail, "it ranks oddly") {
			t.Errorf("%s it is %s: %+v", when, r.State(), why)
		}
		if strings.Contains(why.Detail, "corrupt") || strings.Contains(why.Detail, "restore") || !strings.Contains(why.Detail, "millrace partition release") {
			t.Errorf("%s it says %q, and the way out is to release it", when, why.Detail)
		}
		if answering, _, _ := w.replicas.Answering(time.Now()); answering.Has(partHere) || r.Holds() || r.State().Missing() != "quarantined" {
			t.Errorf("%s it answers", when)
		}
	}
	must(t, w.replicas.Quarantine(partHere, "it ranks oddly"))
	out("at once")
	if err := w.replicas.Quarantine(partHere, "again"); err == nil {
		t.Error("it is quarantined twice")
	}
	var refused *millrace.Error
	if err := w.replicas.Quarantine(partHere+1, "so"); !errors.As(err, &refused) {
		t.Errorf("one that is not here is quarantined: %v", err)
	}
	w.post(there)
	w.until("the other goes on", func() bool { return w.count(there) == 1 && w.is(partThere, Ready, "")() })
	out("later")
	w.stop()

	w.start(partHere, partThere)
	w.until("the other is ready", w.is(partThere, Ready, ""))
	out("after a restart")
	must(t, w.replicas.Release(partHere))
	w.until("it is made anew", ready)
	if w.store.Quarantined(partHere) != nil {
		t.Error("the store has it in quarantine")
	}
}

// What damage the store has found stays found over a restart too, whatever the
// log says, and is mended.
func TestCorruptionIsKnownAgainAfterARestart(t *testing.T) {
	w := newWorld(t)
	w.post(here)
	w.start(partHere)
	w.until("it is ready", func() bool { return w.is(partHere, Ready, "")() && w.count(here) == 1 })
	away := w.away()
	must(t, w.store.Quarantine(partHere, errors.New("a flipped bit")))
	w.stop()
	w.start(partHere)
	w.until("it is known", w.is(partHere, Quarantined, Corrupt))
	if why, _ := w.replicas.Of(partHere).Why(); !strings.Contains(why.Detail, "a flipped bit") {
		t.Errorf("it says %q", why.Detail)
	}
	away.Store(false)
	w.until("it is mended", func() bool { return w.is(partHere, Ready, "")() && w.count(here) == 1 })
}

// What damage the store finds by itself takes the replica out, though no record
// comes and nobody asks.
func TestWhatTheStoreQuarantinesIsTakenOut(t *testing.T) {
	w := newWorld(t)
	w.post(here)
	w.start(partHere, partThere)
	w.until("both are ready", func() bool {
		return w.is(partHere, Ready, "")() && w.is(partThere, Ready, "")() && w.count(here) == 1
	})
	w.trim(partHere, 1) // it stays out of service
	must(t, w.store.Quarantine(partHere, errors.New("a flipped bit")))
	w.until("it is out of service", w.is(partHere, Quarantined, Corrupt))
	if answering, _, _ := w.replicas.Answering(time.Now()); answering.Has(partHere) || w.replicas.Of(partHere).reading.Load()%2 == 1 {
		t.Error("it answers, or is read")
	}
	w.until("the other is ready", w.is(partThere, Ready, ""))
}

// Only an operator's quarantine is released, and then no backup of the replica
// itself is trusted, whatever was known of it before.
func TestRelease(t *testing.T) {
	f := newFed(t)
	r := f.all.Of(partHere)
	f.all.Condemn(partHere, Why{Corrupt, "a flipped bit"})
	if err := f.all.Release(partHere); err == nil {
		t.Error("a corrupt one is released")
	}
	r.setCause(Why{ByOperator, "so"})
	r.life.good = agreement{kafka.Features, 100}
	r.again.Store(time.Now().Add(time.Hour).UnixMilli()) // of a renewal that failed before
	for len(f.all.changed) > 0 {
		<-f.all.changed
	}
	must(t, f.all.Release(partHere))
	if r.trusts(&Backup{Node: "self"}, "self") || !r.trusts(&Backup{Node: "other"}, "self") {
		t.Errorf("trusted: %+v", r.life.good)
	}
	why, _ := r.Why()
	if why.Reason != Differs || len(f.all.unread()) != 1 || len(f.all.changed) != 1 {
		t.Errorf("it is %+v, and the reconciler is told: %v", why, len(f.all.changed) == 1)
	}
}

// A release is known again after a restart before the replica is made anew.
func TestAReleaseIsKept(t *testing.T) {
	w := newWorld(t)
	w.post(here)
	w.start(partHere)
	ready := func() bool { return w.is(partHere, Ready, "")() && w.count(here) == 1 }
	w.until("it is ready", ready)
	away := w.away()
	must(t, w.replicas.Quarantine(partHere, "it ranks oddly"))
	must(t, w.replicas.Release(partHere))
	w.stop()
	w.start(partHere)
	w.until("it is known as released", w.is(partHere, Quarantined, Differs))
	away.Store(false)
	w.until("it is made anew", ready)
}

// A release that the store does not take is none.
func TestAReleaseOnAFullDisk(t *testing.T) {
	f := newFed(t)
	waitsForReaders(t, f.all.Of(partHere), func() { must(t, f.all.Quarantine(partHere, "doubt")) })
	f.disk.full.Store(true)
	if err := f.all.Release(partHere); err == nil {
		t.Error("it is released on a full disk")
	}
	f.want(t, "not released", partHere, Quarantined, ByOperator)
	if err := f.all.MayRelease(partHere); err != nil {
		t.Errorf("it may not be released any more: %v", err)
	}
	f.disk.full.Store(false)
	must(t, f.all.Release(partHere))
	f.want(t, "released", partHere, Quarantined, Differs)
}

// An operator's quarantine of a replica that waits to be restored is kept: the
// restore gives way to it, and its cause stays, until it is released.
func TestAnOperatorsQuarantineOutlastsARenewal(t *testing.T) {
	w := newWorld(t)
	k := heldBack(w)
	w.waited = func(millrace.Partition) bool { return false } // one after the other
	w.start(partHere, partThere)
	first, waits := partHere, partThere
	w.until("one is restored, and the other waits", func() bool {
		if w.replicas.Of(first).State() == CatchingUp {
			first, waits = waits, first
		}
		return w.is(first, Restoring, Restores)() && w.is(waits, CatchingUp, Restores)()
	})
	if w.replicas.Condemn(first, Why{ByOperator, "so"}) {
		t.Error("what is being replaced is quarantined by an operator")
	}
	must(t, w.replicas.Quarantine(waits, "it ranks oddly"))
	r := w.replicas.Of(waits)
	r.explain(Why{Restores, "others are restored before it"})
	close(k.hold)
	rested := func() (n int) { k.set(func() { n = k.rests }); return n }
	w.until("both renewals have ended", func() bool { return rested() == 2 && w.is(first, Ready, "")() })
	kept := func(when string) {
		t.Helper()
		if why, _ := r.Why(); r.State() != Quarantined || why.Reason != ByOperator || w.replicas.MayRelease(waits) != nil {
			t.Errorf("%s it is %s: %+v", when, r.State(), why)
		}
	}
	kept("then")
	if w.store.Quarantined(waits) == nil {
		t.Error("the store has it not in quarantine")
	}
	w.stop() // the reconciler has taken over what the renewals did
	w.replicas.finish()
	kept("in the end")
}

// What a renewal has done is not taken over once an operator has quarantined the
// replica, though the store does not know of that yet.
func TestNoRenewalEndsAnOperatorsQuarantine(t *testing.T) {
	f := newFed(t)
	r := f.all.Of(partHere)
	f.all.Condemn(partHere, Why{ByOperator, "so"})
	f.all.finishOne(r, &renewal{})
	if why, _ := r.Why(); r.State() != Quarantined || why.Reason != ByOperator || f.all.MayRelease(partHere) != nil {
		t.Errorf("it is %s: %+v, and may not be released: %v", r.State(), why, f.all.MayRelease(partHere))
	}
}
