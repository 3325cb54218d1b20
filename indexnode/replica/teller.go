package replica

import (
	"log/slog"
	"sync"
	"time"
)

const (
	// tellAfter is how long something is wrong before it is said: what passes
	// by itself, as at a start, is none of anybody's business.
	tellAfter = 3 * time.Second
	// tellEvery is how often what goes on being wrong is said again.
	tellEvery = time.Minute
)

// teller says what holds replicas back: when it has lasted a little, once a
// minute, and when it ends, for all of them together.
type teller struct {
	log *slog.Logger
	mu  struct {
		sync.Mutex
		away  error
		since map[Reason]time.Time
		said  map[Reason]time.Time
	}
}

// kafkaAway notes whether Kafka says where the log ends.
func (t *teller) kafkaAway(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.away = err
}

// away returns why Kafka did not say where the log ends, or nil.
func (t *teller) away() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.away
}

// tell logs what is wrong by reason.
func (t *teller) tell(all *Replicas) {
	type fault struct {
		partitions int
		detail     string
	}
	faults := map[Reason]fault{}
	for p := range all.replicas {
		r := &all.replicas[p]
		if r.State() == Absent || r.State() == Ready && !r.isHeld() {
			continue
		}
		why, _ := r.Why()
		if why.Reason == Warming { // which is bounded, and as it should be
			continue
		}
		f := faults[why.Reason]
		faults[why.Reason] = fault{f.partitions + 1, why.Detail}
	}
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.said == nil {
		t.mu.since, t.mu.said = map[Reason]time.Time{}, map[Reason]time.Time{}
	}
	for reason, f := range faults {
		if _, lasts := t.mu.since[reason]; !lasts {
			t.mu.since[reason] = now
		}
		if at, before := t.mu.said[reason]; now.Sub(t.mu.since[reason]) >= tellAfter && (!before || now.Sub(at) >= tellEvery) {
			t.mu.said[reason] = now
			t.log.Warn("partitions are not ready or held back", "reason", reason, "partitions", f.partitions, "for_one", f.detail)
		}
	}
	for reason := range t.mu.since {
		if _, still := faults[reason]; still {
			continue
		}
		delete(t.mu.since, reason)
		if _, said := t.mu.said[reason]; said {
			delete(t.mu.said, reason)
			t.log.Info("no partition is held back any more for this reason", "reason", reason)
		}
	}
}
