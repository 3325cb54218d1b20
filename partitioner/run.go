package partitioner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/groups"
	"github.com/millrace/millrace/internal/kafka/progress"
	"github.com/millrace/millrace/internal/wait"
	"github.com/millrace/millrace/schemas"
)

// commitTimeout bounds a transaction from its begin to its end, also when Run
// is being stopped. It is shorter than the time a broker lets it be open.
const commitTimeout = 8 * time.Second

// Run creates Millrace's topics where they are missing and partitions until
// ctx ends, which is no error: the transaction under way is committed first.
// It gives up with kafka.ErrPartitionCount when a topic does not fit, and stands
// by while another process has its instance name; every other failure is told,
// counted and tried again, for as long as it takes.
func (p *Partitioner) Run(ctx context.Context) error {
	if err := p.open(); err != nil {
		return fmt.Errorf("partitioner: %w", err)
	}
	defer p.close()
	if err := p.ensureTopics(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	if err := p.introduce(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	var beats sync.WaitGroup
	defer beats.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	beats.Go(func() { p.beat.Run(ctx) })
	beats.Go(func() { p.warnOfDeletes(ctx) })
	r := &router{
		features: map[string]bool{},
		resolver: newResolver(p.registry, p.schemas),
		future:   p.cfg.Future,
	}
	r.resolver.wait, r.resolver.waiting, r.resolver.unasked = p.cfg.SchemaWait, p.on.waiting, p.metrics.unasked.Inc
	for _, topic := range p.cfg.Features {
		r.features[topic] = true
	}
	for ctx.Err() == nil {
		err := p.session(ctx, r)
		if errors.Is(err, groups.ErrFenced) {
			p.metrics.failures.Inc()
			p.standBy(ctx, err)
			continue
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		if other := (*groups.OtherLog)(nil); errors.As(err, &other) {
			p.halt(ctx, other)
			continue
		}
		p.batch = max(p.batch/8, 1) // a transaction too large to finish must shrink
		p.state.set(func(s *state) { s.failed = err })
		p.metrics.failures.Inc()
		p.log.Warn("partitioner: failed; trying again", "error", err)
		_ = wait.For(ctx, p.pace.backoff)
	}
	return nil
}

// standBy waits while another process has the instance name. It neither takes the
// name back, nor ends: what watches over processes would start it anew, and then
// the two would fence each other in turn.
func (p *Partitioner) standBy(ctx context.Context, fenced error) {
	at, away := "an address that is not known yet", 0
	for told := ""; away < 2; _ = wait.For(ctx, p.pace.standby) { // once may be between two generations
		holder, err := groups.Holder(ctx, p.cfg.Brokers, p.cfg.Group, p.cfg.Instance, p.cfg.Address)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && holder == "":
			away++
			continue
		case err == nil:
			at = holder
		}
		away = 0
		standing := fmt.Errorf("instance %s is another process, at %s, and this one, at %s, stands by; give each process an instance name of its own: %w", p.cfg.Instance, at, p.cfg.Address, fenced)
		p.state.set(func(s *state) { s.failed = standing })
		if told != at {
			told = at
			p.log.Error("partitioner: another process has the instance name; standing by until it is gone", "instance", p.cfg.Instance, "other", at, "this", p.cfg.Address, "error", fenced)
		}
	}
	p.state.set(func(s *state) { s.failed = nil })
	p.log.Info("partitioner: nobody has the instance name any more", "instance", p.cfg.Instance, "was", at)
}

// halt tells that the group must not write, and waits a moment before that is
// judged again.
func (p *Partitioner) halt(ctx context.Context, other *groups.OtherLog) {
	p.state.set(func(s *state) {
		if before := (*groups.OtherLog)(nil); !errors.As(s.failed, &before) {
			p.log.Error("partitioner: nothing is partitioned", "error", other)
		}
		s.failed = other
	})
	p.on.halted()
	_ = wait.For(ctx, p.pace.logs)
}

// close ends what open began.
func (p *Partitioner) close() {
	p.state.set(func(s *state) { s.waits = errors.New("the partitioner has stopped") })
	p.schemas.Close()
	p.progress.Close()
}

// ensureTopics waits until Millrace's topics can be used, or ctx ends.
func (p *Partitioner) ensureTopics(ctx context.Context) error {
	wait := func(err error) {
		p.state.set(func(s *state) { s.waits = err })
	}
	wait(errors.New("waiting for Kafka to serve the topics"))
	err := kafka.EnsureTopics(ctx, p.cfg.Brokers, p.cfg.Topics, func(err error) {
		wait(fmt.Errorf("waiting for Kafka to serve the topics: %w", err))
		p.log.Warn("partitioner: waiting for Kafka to serve the topics", "error", err)
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

// warnOfDeletes tells of topics that do not keep what index nodes are rebuilt
// from: they were created by somebody else, or before Millrace created them so.
func (p *Partitioner) warnOfDeletes(ctx context.Context) {
	log, err := kafka.InspectTopics(ctx, p.cfg.Brokers, p.cfg.Topics)
	if err != nil {
		return // the heartbeat tells
	}
	for _, d := range log.Deletes() {
		p.log.Warn("partitioner: the log does not keep everything; an index node cannot be rebuilt from it alone", "found", d,
			"way_out", "set retention.ms=-1, retention.bytes=-1 and cleanup.policy=delete on the topic")
	}
}

// session runs transactions until one fails, a batch was skipped or ctx ends,
// which is no error. A session that failed to commit is never used again: only
// its successor, under the same transactional id, learns what became of the
// transaction.
func (p *Partitioner) session(ctx context.Context, r *router) error {
	if !p.progress.Read() { // it says what the group has read
		if err := p.progress.Refresh(ctx); err != nil {
			return err
		}
	}
	s, err := groups.OpenSession(ctx, groups.SessionConfig{
		Brokers:     p.cfg.Brokers,
		Group:       p.cfg.Group,
		Instance:    p.cfg.Instance,
		Address:     p.cfg.Address,
		Topics:      p.cfg.inputs(),
		Outputs:     []string{p.cfg.Topics.Timeline, p.cfg.Topics.Features, p.cfg.Topics.DeadLetters},
		DeadLetters: p.cfg.Topics.DeadLetters,
		Log:         p.log,
		Logs:        p.cfg.Topics.Logs(),
		Known: func(topic string) kafka.TopicID {
			last, _ := p.progress.Group(p.cfg.Group)
			return last.Topics[topic].ID
		},
	})
	if err != nil {
		return err
	}
	defer s.Close()
	p.stuck.keep(func(progress.Stuck) bool { return false }) // it will be told again
	p.state.set(func(st *state) { st.session = s })
	p.state.set(func(st *state) {
		if other := (*groups.OtherLog)(nil); errors.As(st.failed, &other) {
			st.failed = nil
		}
	})
	defer p.state.set(func(st *state) { st.session = nil })
	reading, wake := context.WithCancelCause(ctx)
	var asked sync.WaitGroup
	asked.Go(func() { p.awaitSkip(reading, func() { wake(nil) }) })
	asked.Go(func() { p.awaitMove(reading, s, wake) })
	defer asked.Wait()
	defer wake(nil)
	poison := 0 // dead letters in a row
	for {
		in, err := p.poll(reading, s, p.batch)
		if at := p.toSkip(); len(at) > 0 {
			work, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
			defer cancel()
			return p.skip(work, s, at)
		}
		if err != nil {
			switch {
			case ctx.Err() != nil:
				err = nil
			case reading.Err() != nil:
				err = context.Cause(reading)
			}
			return err
		}
		if len(in) == 0 && !s.Uncommitted() {
			continue
		}
		p.hold(reading)
		t, err := p.transact(reading, s, r, in)
		if err != nil {
			return err
		}
		p.metrics.commit(t.byTopic)
		p.state.set(func(s *state) { s.failed, s.committed = nil, time.Now() })
		p.on.committed()
		p.batch = min(2*p.batch, p.pace.records)
		if poison = t.poison(poison); poison >= p.pace.poisonRun {
			poison = 0
			p.rest(reading)
		}
	}
}

// awaitMove calls found once a topic is not the one that a session began with,
// unless ctx ends before. A session with nothing to do would not notice.
func (p *Partitioner) awaitMove(ctx context.Context, s *groups.Session, found func(error)) {
	for ctx.Err() == nil {
		_ = wait.For(ctx, p.pace.logs)
		if err := s.Same(ctx); errors.Is(err, groups.ErrMoved) {
			found(err)
			return
		}
	}
}

// rest pauses consumption and tells everyone.
func (p *Partitioner) rest(ctx context.Context) {
	p.log.Error("partitioner: nothing but dead letters comes in; pausing", "records", p.pace.poisonRun, "pause", p.pace.pause,
		"way_out", "look at the reason headers in the topic "+p.cfg.Topics.DeadLetters)
	p.state.set(func(s *state) { s.paused = true })
	p.metrics.paused.Set(1)
	p.on.resting()
	_ = wait.For(ctx, p.pace.pause)
	p.metrics.paused.Set(0)
	p.state.set(func(s *state) { s.paused = false })
}

// poll is Session.Poll with the faults told.
func (p *Partitioner) poll(ctx context.Context, s *groups.Session, max int) ([]groups.Input, error) {
	in, faults, err := s.Poll(ctx, max)
	p.stuck.keep(func(at progress.Stuck) bool { return s.Has(at.Topic, at.Partition) && !isPast(in, at) })
	for _, fault := range faults {
		err = errors.Join(err, p.noteFault(ctx, fault))
	}
	if len(faults) > 0 && len(in) == 0 {
		_ = wait.For(ctx, p.pace.quiet) // what cannot be opened is fetched again at once
	}
	return in, err
}

// isPast reports whether records from behind a place came in.
func isPast(in []groups.Input, at progress.Stuck) bool {
	return slices.ContainsFunc(in, func(r groups.Input) bool {
		return r.Topic == at.Topic && r.Partition == at.Partition && r.Offset >= at.Offset
	})
}

// transact brings first, and what else comes in within moments, through one
// transaction.
func (p *Partitioner) transact(ctx context.Context, s *groups.Session, r *router, first []groups.Input) (*transaction, error) {
	began := time.Now()
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	if err := s.Begin(); err != nil {
		return nil, err
	}
	t := &transaction{s: s, topics: p.cfg.Topics, byTopic: map[string]*tally{}}
	for in := first; len(in) > 0; {
		r.resolver.polled()
		for _, rec := range in {
			v, err := r.route(work, rec)
			if err != nil {
				return nil, err
			}
			t.carryOut(work, rec, v)
		}
		in = nil
		if room := p.batch - max(t.records, t.copies); room > 0 && t.bytes < p.pace.bytes {
			var err error
			if in, err = p.gather(ctx, s, began.Add(p.pace.gatherFor(t.records, s.Waiting())), room); err != nil {
				return nil, err
			}
		}
	}
	return t, s.Commit(work)
}

// gatherFor is how long a transaction gathers. Each costs a batch and a marker in
// every partition that it touches, so where it is behind it is longer: what waits
// for longer than it has been gathering gains by that.
func (p pace) gatherFor(taken int, waiting int64) time.Duration {
	if waiting > int64(taken) {
		return p.behind
	}
	return p.gather
}

// gather polls for what comes in at once; none means that it is time to commit:
// also because somebody asks for a hold.
func (p *Partitioner) gather(ctx context.Context, s *groups.Session, until time.Time, max int) ([]groups.Input, error) {
	wait := min(p.pace.quiet, time.Until(until))
	if wait <= 0 || ctx.Err() != nil || p.toHold() {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	in, err := p.poll(ctx, s, max)
	var stuck *groups.Unreadable
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) && !errors.As(err, &stuck) {
		err = nil // the wait is over, or Run is to stop after this transaction
	}
	return in, err
}

// transaction is what has been done in one.
type transaction struct {
	s       *groups.Session
	topics  kafka.Topics
	records int
	copies  int  // records produced
	bytes   int  // of their values
	lively  bool // something else than dead letters came last
	run     int  // dead letters since then
	byTopic map[string]*tally
}

// carryOut produces what the decision asks for, and counts it.
func (t *transaction) carryOut(ctx context.Context, in groups.Input, v decision) {
	c := t.byTopic[in.Topic]
	if c == nil {
		c = &tally{dead: map[schemas.Reason]int{}}
		t.byTopic[in.Topic] = c
	}
	t.records++
	c.consumed++
	if v.outcome == dead {
		c.dead[v.refusal.Reason]++
		t.run++
		t.produce(ctx, newDeadLetter(t.topics.DeadLetters, in, v.refusal))
		return
	}
	t.lively, t.run = true, 0
	switch v.outcome {
	case ignored:
		c.ignored++
	case published:
		c.published++
		c.copies += len(v.entities)
		for _, e := range v.entities {
			t.produce(ctx, kafka.ToStream(t.topics.Of(v.stream), e, v.value, in.Source))
		}
	}
}

func (t *transaction) produce(ctx context.Context, o kafka.Outgoing) {
	t.copies++
	t.bytes += len(o.Value)
	t.s.Produce(ctx, o)
}

// poison returns the length of the run of dead letters that the transaction
// ends in, begun with so many before it.
func (t *transaction) poison(before int) int {
	if t.lively {
		return t.run
	}
	return before + t.run
}
