package partitioner

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/groups"
	"github.com/millrace/millrace/internal/kafka/progress"
	"github.com/millrace/millrace/schemas"
)

// ask writes a wish for a hold; deleted when round is 0.
func (w *world) ask(key string, round int) {
	w.t.Helper()
	r := &kgo.Record{Topic: w.cfg.Topics.Progress, Key: []byte(progress.HoldKey + key)}
	if round > 0 {
		r.Value = fmt.Appendf(nil, `{"round":%d}`, round)
	}
	w.produce(r)
}

// post produces one record and waits until it is partitioned.
func (w *world) post(id string) {
	w.t.Helper()
	w.produce(&kgo.Record{Topic: w.cfg.Content[0], Value: activity(w.t, id, "member:1", "")})
	w.read(1)
}

// A hold whose owner is gone ends by itself and is not kept again; another
// round of it is.
func TestAHoldEndsByItself(t *testing.T) {
	w := newFake(t)
	w.publish(schemas.Activity())
	held := make(chan time.Duration, 10)
	p, _ := w.start(func(p *Partitioner) {
		p.pace.hold = 50 * time.Millisecond
		p.on.held = func(d time.Duration) { held <- d }
	})
	w.post("before")
	for round := range 3 {
		w.ask("gone", round+1)
		must(t, p.progress.Refresh(w.ctx))
		w.post(fmt.Sprint("held ", round))
		if d := <-held; d < p.pace.hold {
			t.Errorf("a hold of %s, want at least %s", d, p.pace.hold)
		}
		w.post(fmt.Sprint("not held again ", round))
		if n := value(p.metrics.holds); n != float64(round+1) {
			t.Errorf("%v holds after %d were asked for", n, round+1)
		}
	}
	if s := value(p.metrics.held); s < 3*p.pace.hold.Seconds() {
		t.Errorf("held for %v s in all", s)
	}
}

// A hold ends when it is taken back, and nothing is published while it lasts.
func TestAHoldHolds(t *testing.T) {
	w := newFake(t)
	w.publish(schemas.Activity())
	holding := make(chan bool, 1)
	p, _ := w.start(func(p *Partitioner) {
		p.pace.hold = time.Hour
		p.on.holding = func() { holding <- true }
	})
	w.post("before")
	w.ask("one", 1)
	must(t, p.progress.Refresh(w.ctx))
	w.produce(&kgo.Record{Topic: w.cfg.Content[0], Value: activity(t, "held", "member:1", "")})
	<-holding
	cut, err := groups.TakeCut(w.ctx, groups.CutConfig{Brokers: w.brokers, Topics: w.cfg.Topics})
	must(t, err)
	if n := cut.Groups[w.cfg.Group][w.cfg.Content[0]][0]; n != 1 || w.openTransaction() {
		t.Errorf("%d records are consumed during the hold, want 1; a transaction is open: %v", n, w.openTransaction())
	}
	w.ask("one", 0)
	w.read(1)
}

// Wishes for holds without a pause do not stop ingest: each is followed by a
// transaction.
func TestAFloodOfHoldsDoesNotStopIngest(t *testing.T) {
	w := newFake(t)
	w.publish(schemas.Activity())
	var holds atomic.Int64
	w.start(func(p *Partitioner) {
		p.pace.hold = 20 * time.Millisecond
		p.on.held = func(time.Duration) { holds.Add(1) }
	})
	w.post("before")
	flood, stop := context.WithCancel(w.ctx)
	done := make(chan bool)
	go func() {
		defer close(done)
		for round := 1; flood.Err() == nil; round++ {
			r := &kgo.Record{Topic: w.cfg.Topics.Progress, Key: []byte(progress.HoldKey + "flood"), Value: fmt.Appendf(nil, `{"round":%d}`, round)}
			w.cl.ProduceSync(flood, r)
		}
	}()
	for n := 0; holds.Load() < 10; n++ {
		w.post(fmt.Sprint(n))
	}
	stop()
	<-done
}

// A group's name does not begin like a hold's key.
func TestAGroupIsNoHold(t *testing.T) {
	cfg := Config{Brokers: kafka.At("127.0.0.1:1"), Content: []string{"posts"}, Instance: "one", Group: progress.HoldKey + "x"}
	if err := cfg.Validate(); err == nil {
		t.Error("a group by the name of a hold was taken")
	}
}
