package partitioner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/kafka/progress"
)

// introduce makes the group known in the topic progress before its first transaction. A
// look at the whole log reads the offsets of the groups that it finds there. Ready tells of
// the wait. An ended ctx is no error.
func (p *Partitioner) introduce(ctx context.Context) error {
	wait := func(err error) { p.state.set(func(s *state) { s.waits = err }) }
	wait(errors.New("waiting for Kafka to take the group's name"))
	err := p.progress.Introduce(ctx, p.cfg.Group, p.cfg.Instance, p.cfg.inputs(), func(err error) {
		wait(fmt.Errorf("waiting for Kafka to take the group's name: %w", err))
		p.log.Warn("partitioner: waiting for Kafka to take the group's name", "error", err)
	})
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("partitioner: %w", err)
	}
	wait(nil)
	return nil
}

// hold waits while somebody asks for a hold: a time without transactions, in which they look
// at the whole log. It waits for pace.hold at most, by this process's own clock. It is
// called between two transactions, and a transaction follows, so that any number of
// requests for holds slows ingest down and never stops it. A request for which it has waited
// once does not make it wait again, since the process that asked may be gone.
func (p *Partitioner) hold(ctx context.Context) {
	if !p.toHold() {
		return
	}
	p.on.holding()
	began := time.Now()
	end := time.NewTimer(p.pace.hold)
	defer end.Stop()
	for over := false; !over && ctx.Err() == nil; {
		moved := p.progress.Moved()
		if !p.toHold() {
			break
		}
		select {
		case <-moved:
		case <-end.C:
			over = true
		case <-ctx.Done():
		}
	}
	p.held = map[progress.Hold]bool{}
	for _, h := range p.progress.Holds() {
		p.held[h] = true
	}
	took := time.Since(began)
	p.metrics.holds.Inc()
	p.metrics.held.Add(took.Seconds())
	p.on.held(took)
}

// toHold reports whether somebody asks for a hold for which this process has not waited yet.
func (p *Partitioner) toHold() bool {
	for _, h := range p.progress.Holds() {
		if !p.held[h] {
			return true
		}
	}
	return false
}
