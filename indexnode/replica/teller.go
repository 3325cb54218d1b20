package replica

import (
	"log/slog"
	"sync"
	"time"
)

const (
	// tellAfter is how long something must be wrong before it is logged: nobody needs to
	// act on what passes by itself, for example during a start.
	tellAfter = 3 * time.Second
	// tellEvery is how often something that stays wrong is logged again.
	tellEvery = time.Minute
)

// teller logs what holds replicas back, a line for each reason and not for each replica:
// once it has lasted for tellAfter, then every tellEvery, and when it ends.
type teller struct {
	log *slog.Logger
	mu  struct {
		sync.Mutex
		away  error                // why Kafka does not say where the log ends; nil: it does
		since map[Reason]time.Time // when each reason came up
		said  map[Reason]time.Time // when each reason was last logged
	}
}

// kafkaAway notes why Kafka does not say where the log ends; nil: it does.
func (t *teller) kafkaAway(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.away = err
}

// away returns what kafkaAway noted last.
func (t *teller) away() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.away
}

// tell logs what is wrong with replicas now, by reason, if its time has come.
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
		if why.Reason == Warming || why.Reason == Moved { // both are normal, and end after a bounded time
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
