package partitioner

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/kafka/groups"
	"github.com/millrace/millrace/internal/kafka/progress"
)

// state is what Run tells Ready.
type state struct {
	sync.Mutex
	waits     error           // why Run does not partition yet, or any more; nil while it does
	session   *groups.Session // nil while there is none
	failed    error           // why the last transaction or session failed; nil once one is committed
	paused    bool            // consumption pauses, since only dead letters came in
	committed time.Time       // when the last transaction was committed
}

// set calls f with the state locked.
func (s *state) set(f func(*state)) {
	s.Lock()
	defer s.Unlock()
	f(s)
}

// errNotRun says that Run was not called yet.
var errNotRun = errors.New("the partitioner has not begun")

// Ready returns nil while this process does its work. Else the error says what it waits
// for, or what is wrong.
func (p *Partitioner) Ready() error {
	p.state.Lock()
	defer p.state.Unlock()
	if p.state.waits != nil {
		return p.state.waits
	}
	if other := (*groups.OtherLog)(nil); errors.As(p.state.failed, &other) {
		return other
	}
	if errors.Is(p.state.failed, groups.ErrFenced) {
		return p.state.failed
	}
	last, err := p.beat.Last()
	switch {
	case err == nil && last.OtherLog != "":
		return errors.New(last.OtherLog)
	case err != nil:
		return fmt.Errorf("no answer of Kafka to how far the group is: %w", err)
	case !p.schemas.Read():
		return fmt.Errorf("the schemas are not read: %w", p.schemas.Fault())
	case len(last.Missing) > 0:
		return fmt.Errorf("topics that do not exist: %q; create them, or take them out of the configuration", last.Missing)
	case p.state.session == nil && p.state.failed != nil:
		return fmt.Errorf("waiting for a place in the group %s after a failure: %w", p.cfg.Group, p.state.failed)
	case p.state.session == nil:
		return fmt.Errorf("waiting for a place in the group %s", p.cfg.Group)
	case p.state.paused:
		return fmt.Errorf("pausing: nothing but dead letters came in; look at the reasons in topic %s", p.cfg.Topics.DeadLetters)
	}
	if stuck := p.stuck.all(); len(stuck) > 0 {
		return errors.New(stuck[0].Says(p.cfg.Group))
	}
	return p.idle(last)
}

// idle returns an error if records wait and this process brings none of them on, or if a
// producer's open transaction holds them up. It returns nil for a process that has nothing
// to do. The caller holds the state's lock.
func (p *Partitioner) idle(last progress.Progress) error {
	waiting, waited := int64(0), time.Duration(0)
	for topic, t := range last.Topics {
		since := time.Duration(t.WaitedMillis) * time.Millisecond
		waiting, waited = waiting+t.Waiting, max(waited, since)
		if t.Open > 0 && since >= p.pace.open {
			return fmt.Errorf("topic %s: a producer's transaction is open since %s, and %d records in or behind it wait; "+
				"end the producer, or abort it with kafka-transactions.sh", topic, since, t.Open)
		}
	}
	switch {
	case waiting == 0:
		return nil
	case p.state.failed != nil:
		return fmt.Errorf("%d records wait, and transactions fail: %w", waiting, p.state.failed)
	case p.state.session.Assigned() == 0 && waited >= p.pace.idle:
		return fmt.Errorf("%d records wait since %s, and the group gives this process no partition to read", waiting, waited)
	case waited >= p.pace.idle && time.Since(p.state.committed) >= waited:
		return fmt.Errorf("%d records wait since %s, and this process has committed nothing since", waiting, waited)
	}
	return nil
}
