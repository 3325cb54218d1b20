package partitioner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/schemas"
)

// commitTimeout bounds a transaction from its begin to its end, also when Run
// is being stopped. It is shorter than the time a broker lets it be open.
const commitTimeout = 8 * time.Second

// Run creates Millrace's topics where they are missing and partitions until
// ctx ends, which is no error: the transaction under way is committed first.
// It gives up with kafka.ErrPartitionCount when a topic does not fit, and with
// kafka.ErrFenced when another process has taken over its instance name; every
// other failure is logged, counted and tried again.
func (p *Partitioner) Run(ctx context.Context) error {
	tell := func(err error) { p.log.Warn("partitioner: waiting for the topics", "error", err) }
	if err := kafka.EnsureTopics(ctx, p.cfg.Brokers, p.cfg.Topics, tell); ctx.Err() != nil {
		return nil
	} else if err != nil {
		return fmt.Errorf("partitioner: %w", err)
	}
	log, err := kafka.OpenSchemaLog(kafka.SchemaLogConfig{
		Brokers: p.cfg.Brokers, Topic: p.cfg.Topics.Schemas, Registry: p.registry, Log: p.log,
	})
	if err != nil {
		return err
	}
	defer log.Close()
	r := &router{
		features: map[string]bool{},
		resolver: &resolver{registry: p.registry, log: log, wait: p.cfg.SchemaWait, waiting: p.on.waiting, absent: map[uint32]time.Time{}},
		now:      p.now,
		seen:     map[recordKey][]byte{},
	}
	for _, topic := range p.cfg.Features {
		r.features[topic] = true
	}
	return p.retry(ctx, func() error {
		err := p.session(ctx, r)
		p.batch = max(p.batch/8, 1) // a transaction too large to finish must shrink
		return err
	})
}

// retry calls f until it succeeds, ctx ends, or trying again is of no use.
func (p *Partitioner) retry(ctx context.Context, f func() error) error {
	for {
		err := f()
		switch {
		case err == nil, ctx.Err() != nil:
			return nil
		case errors.Is(err, kafka.ErrFenced), errors.Is(err, kafka.ErrPartitionCount):
			return fmt.Errorf("partitioner: instance %s: %w", p.cfg.Instance, err)
		}
		p.metrics.failures.Inc()
		p.log.Warn("partitioner: failed; trying again", "error", err)
		if !sleep(ctx, p.pace.backoff) {
			return nil
		}
	}
}

// session runs transactions until one fails or ctx ends. A session that failed
// to commit is never used again: only its successor, under the same
// transactional id, learns what became of the transaction.
func (p *Partitioner) session(ctx context.Context, r *router) error {
	s, err := kafka.OpenSession(ctx, kafka.SessionConfig{
		Brokers:     p.cfg.Brokers,
		Group:       p.cfg.Group,
		Instance:    p.cfg.Instance,
		Topics:      append(append([]string{}, p.cfg.Content...), p.cfg.Features...),
		DeadLetters: p.cfg.Topics.DeadLetters,
		Log:         p.log,
	})
	if err != nil {
		return err
	}
	defer s.Close()
	poison := 0 // dead letters in a row
	for {
		in, err := p.poll(ctx, s, p.batch)
		if err != nil {
			return err
		}
		if len(in) == 0 && !s.Uncommitted() {
			continue
		}
		t, err := p.transact(ctx, s, r, in)
		if err != nil {
			return err
		}
		p.metrics.commit(t.byTopic)
		p.on.committed()
		p.batch = min(2*p.batch, p.pace.records)
		if poison = t.poison(poison); poison >= p.pace.poisonRun {
			poison = 0
			p.rest(ctx)
		}
	}
}

// rest pauses consumption and tells everyone.
func (p *Partitioner) rest(ctx context.Context) {
	p.log.Error("partitioner: nothing but dead letters comes in; pausing", "records", p.pace.poisonRun, "pause", p.pace.pause,
		"way_out", "look at the reason headers in the topic "+p.cfg.Topics.DeadLetters)
	p.metrics.paused.Set(1)
	p.on.resting()
	sleep(ctx, p.pace.pause)
	p.metrics.paused.Set(0)
}

// poll is Session.Poll with the faults told.
func (p *Partitioner) poll(ctx context.Context, s *kafka.Session, max int) ([]kafka.Input, error) {
	in, faults, err := s.Poll(ctx, max)
	for _, fault := range faults {
		p.metrics.faults.Inc()
		p.log.Error("partitioner: cannot read", "error", fault)
	}
	return in, err
}

// transact brings first, and what else comes in within moments, through one
// transaction.
func (p *Partitioner) transact(ctx context.Context, s *kafka.Session, r *router, first []kafka.Input) (*transaction, error) {
	gathered := time.Now().Add(p.pace.gather)
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	if err := s.Begin(); err != nil {
		return nil, err
	}
	r.begin()
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
			if in, err = p.more(ctx, s, gathered, room); err != nil {
				return nil, err
			}
		}
	}
	return t, s.Commit(work)
}

// more polls for what comes in at once; none means that it is time to commit.
func (p *Partitioner) more(ctx context.Context, s *kafka.Session, until time.Time, max int) ([]kafka.Input, error) {
	wait := min(p.pace.quiet, time.Until(until))
	if wait <= 0 || ctx.Err() != nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	in, err := p.poll(ctx, s, max)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil // the wait is over, or Run is to stop after this transaction
	}
	return in, err
}

// transaction is what has been done in one.
type transaction struct {
	s       *kafka.Session
	topics  kafka.Topics
	records int
	copies  int  // records produced
	bytes   int  // of their values
	lively  bool // something else than dead letters came last
	run     int  // dead letters since then
	byTopic map[string]*tally
}

// carryOut produces what the verdict asks for, and counts it.
func (t *transaction) carryOut(ctx context.Context, in kafka.Input, v verdict) {
	c := t.byTopic[in.Topic]
	if c == nil {
		c = &tally{dead: map[schemas.Reason]int{}}
		t.byTopic[in.Topic] = c
	}
	t.records++
	c.consumed++
	if v.fate == dead {
		c.dead[v.refusal.Reason]++
		t.run++
		t.produce(ctx, deadLetter(t.topics.DeadLetters, in, v.refusal))
		return
	}
	t.lively, t.run = true, 0
	switch v.fate {
	case deduplicated:
		c.deduplicated++
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

// sleep waits, and reports whether ctx let it.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
