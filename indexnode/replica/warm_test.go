package replica

import (
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace"
)

// peers is a warmer of which the test says what is warm.
type peers struct {
	mu           sync.Mutex
	warm         map[millrace.Partition]bool
	asked, cools int
}

func (w *peers) Warm(p millrace.Partition) (bool, string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked++
	return w.warm[p], "3 of 9"
}

func (w *peers) Cool(p millrace.Partition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cools++
	w.warm[p] = false
}

func (w *peers) set(p millrace.Partition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.warm[p] = true
}

func (w *peers) count() (asked, cools int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked, w.cools
}

// A replica that has reached the end of the log is ready when it is warm, and
// not before.
func TestAReplicaIsReadyWhenItIsWarm(t *testing.T) {
	w := newWorld(t)
	warmer := &peers{warm: map[millrace.Partition]bool{}}
	w.warmer = warmer
	w.post(here)
	w.start(partHere)
	w.until("it warms up", w.is(partHere, CatchingUp, Warming))
	if why, _ := w.replicas.Of(partHere).Why(); why.Detail != "3 of 9" {
		t.Errorf("it says %q", why.Detail)
	}
	w.post(here)
	w.until("the log is applied meanwhile", func() bool { return w.count(here) == 2 })
	if !w.is(partHere, CatchingUp, Warming)() {
		t.Errorf("not warm, it is %s", w.states())
	}
	warmer.set(partHere)
	w.replicas.Wake()
	w.until("it is ready", w.is(partHere, Ready, ""))

	w.want()
	w.until("it is gone", w.is(partHere, Absent, ""))
	if _, cools := warmer.count(); cools != 1 {
		t.Errorf("it was cooled %d times", cools)
	}
}

// After a start a replica that is whole answers at once, and is announced when
// it is warm.
func TestAReplicaIsAnnouncedAfterAStartWhenItIsWarm(t *testing.T) {
	w := newWorld(t)
	w.post(here)
	w.start(partHere)
	w.until("it is ready", w.is(partHere, Ready, ""))
	w.stop()

	warmer := &peers{warm: map[millrace.Partition]bool{}}
	w.warmer = warmer
	away := w.away()
	w.start(partHere)
	w.until("the warmer is asked", func() bool { asked, _ := warmer.count(); return asked > 0 })
	w.until("it answers", func() bool { return w.replicas.Of(partHere).State() == Stale })
	if answering, _, _ := w.replicas.Answering(time.Now()); answering.Len() > 0 {
		t.Error("it is announced, and not warm")
	}
	warmer.set(partHere)
	w.replicas.Wake()
	w.until("it is announced, without Kafka", func() bool {
		answering, old, _ := w.replicas.Answering(time.Now())
		return answering.Has(partHere) && old.Has(partHere)
	})
	away.Store(false)
	w.until("it is ready", w.is(partHere, Ready, ""))
}

// A replica that is assigned again while it drains has its timelines cached,
// and waits for nothing.
func TestAReplicaThatReturnsIsWarm(t *testing.T) {
	w := newWorld(t)
	warmer := &peers{warm: map[millrace.Partition]bool{partHere: true}}
	w.warmer = warmer
	w.post(here)
	w.start(partHere)
	w.replicas.drainFor = time.Hour
	w.until("it is ready", w.is(partHere, Ready, ""))
	w.want()
	w.until("it drains", func() bool { return w.replicas.Of(partHere).State() == Draining })
	before, _ := warmer.count()
	w.want(partHere)
	w.until("it is ready", w.is(partHere, Ready, ""))
	if after, _ := warmer.count(); after != before {
		t.Error("it was warmed again")
	}
}
