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
// is being stopped. It is shorter than kafka.TransactionTimeout, the 10 s after which Kafka
// aborts a transaction.
const commitTimeout = 8 * time.Second

// Run creates Millrace's topics if they are missing, and partitions until ctx ends, which
// is no error: the transaction under way is committed first. While another process has its
// instance name, it stands by. It returns an error only while it sets up, and only for a
// fault that another try cannot mend, such as kafka.ErrPartitionCount for a topic with
// another number of partitions. Every other failure is logged, counted and tried again, for
// as long as it takes.
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
		p.batch = max(p.batch/8, 1) // if the transaction was too large to finish in time, the next one must be smaller
		p.state.set(func(s *state) { s.failed = err })
		p.metrics.failures.Inc()
		p.log.Warn("partitioner: failed; trying again", "error", err)
		_ = wait.For(ctx, p.pace.backoff)
	}
	return nil
}

// standBy waits while another process has the instance name. It does not take the name
// back, since the two would then fence each other in turn: Kafka refuses the transactions of
// the one that had the name before. It does not end the process either, since a supervisor
// would start it again, with the same effect.
func (p *Partitioner) standBy(ctx context.Context, fenced error) {
	at, away := "an address that is not known yet", 0
	for told := ""; away < 2; _ = wait.For(ctx, p.pace.standby) { // once is not enough: the group may just be rebalancing
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

// halt logs that the group must not write, since the topics that it writes to are not those
// that it wrote to before. It waits a moment, after which Run tries again.
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

// ensureTopics creates Millrace's topics if they are missing, and waits until they can be
// used, or ctx ends, which is no error.
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

// warnOfDeletes logs a warning for each topic that deletes records from which index nodes
// may have to be rebuilt. Millrace creates the topics so that they keep everything, but
// somebody else may have created or changed them.
func (p *Partitioner) warnOfDeletes(ctx context.Context) {
	log, err := kafka.InspectTopics(ctx, p.cfg.Brokers, p.cfg.Topics)
	if err != nil {
		return // the heartbeat reports that Kafka does not answer
	}
	for _, d := range log.Deletes() {
		p.log.Warn("partitioner: the log does not keep everything; an index node cannot be rebuilt from it alone", "found", d,
			"way_out", "set retention.ms=-1, retention.bytes=-1 and cleanup.policy=delete on the topic")
	}
}

// session runs transactions until one fails, a batch was skipped or ctx ends. The last two
// are no error. After a failed commit the session is not used again: only the next one,
// under the same transactional id, can learn what became of the transaction.
func (p *Partitioner) session(ctx context.Context, r *router) error {
	if !p.progress.Read() { // the session compares the topics with what the group has read
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
	p.stuck.keep(func(progress.Stuck) bool { return false }) // the new session meets the places again
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

// awaitMove calls found once a topic was replaced by another of the same name since the
// session began. It returns when ctx ends. It is needed since a session compares
// all topics only when it commits, and a session without records does not commit.
func (p *Partitioner) awaitMove(ctx context.Context, s *groups.Session, found func(error)) {
	for ctx.Err() == nil {
		_ = wait.For(ctx, p.pace.logs)
		if err := s.Same(ctx); errors.Is(err, groups.ErrMoved) {
			found(err)
			return
		}
	}
}

// rest pauses consumption for pace.pause. The log, Ready and a metric say so.
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

// poll does what Session.Poll does. It also logs the faults of reading, and brings p.stuck
// up to date: it removes places that are read past or in partitions that this process lost,
// and adds new ones.
func (p *Partitioner) poll(ctx context.Context, s *groups.Session, max int) ([]groups.Input, error) {
	in, faults, err := s.Poll(ctx, max)
	p.stuck.keep(func(at progress.Stuck) bool { return s.Has(at.Topic, at.Partition) && !isPast(in, at) })
	for _, fault := range faults {
		err = errors.Join(err, p.noteFault(ctx, fault))
	}
	if len(faults) > 0 && len(in) == 0 {
		_ = wait.For(ctx, p.pace.quiet) // without a pause, Kafka would be asked for the same batch again at once
	}
	return in, err
}

// isPast reports whether a record at a place or after it came in, so that the process is
// not stuck there.
func isPast(in []groups.Input, at progress.Stuck) bool {
	return slices.ContainsFunc(in, func(r groups.Input) bool {
		return r.Topic == at.Topic && r.Partition == at.Partition && r.Offset >= at.Offset
	})
}

// transact carries out one transaction, for the records of first and those that come in
// shortly after. It goes on for commitTimeout at most, also after ctx has ended.
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

// gatherFor returns how long a transaction gathers records. A transaction costs a batch and
// a marker in every partition that it writes to. So if more records wait than it has taken,
// it gathers for longer: with fewer transactions the group catches up sooner.
func (p pace) gatherFor(taken int, waiting int64) time.Duration {
	if waiting > int64(taken) {
		return p.behind
	}
	return p.gather
}

// gather polls for records that come in within pace.quiet. If it returns none, it is time to
// commit: none came, the time until is over, ctx has ended, or somebody asks for a hold.
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
		err = nil // the wait is over, or Run must stop after this transaction
	}
	return in, err
}

// transaction is what one transaction has done so far.
type transaction struct {
	s       *groups.Session
	topics  kafka.Topics
	records int               // records read
	copies  int               // records produced, dead letters included
	bytes   int               // bytes of the values produced
	lively  bool              // at least one record was no dead letter
	run     int               // dead letters since the last record that was none, or since the transaction began
	byTopic map[string]*tally // what was done, by input topic
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

// poison returns how many dead letters in a row there are at the end of the transaction.
// before is how many there were in a row when it began.
func (t *transaction) poison(before int) int {
	if t.lively {
		return t.run
	}
	return before + t.run
}
