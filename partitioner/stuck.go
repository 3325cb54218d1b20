package partitioner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/groups"
	"github.com/millrace/millrace/internal/kafka/progress"
	"github.com/millrace/millrace/schemas"
)

// UnreadableBatch is the reason of a dead letter that holds a batch of records, or a piece of
// one, which could not be opened and which an operator skipped.
const UnreadableBatch schemas.Reason = "unreadable-batch"

// pieceBytes bounds the piece of a batch that one dead letter holds, in bytes. A batch may
// be larger than what the topic dead-letters takes as one record.
const pieceBytes = 1 << 20

// stuckAt holds the places past which this process cannot read, at most one in each
// partition of an input topic: a batch that cannot be opened, or offsets that the log no
// longer has.
type stuckAt struct {
	mu struct {
		sync.Mutex
		at map[place]progress.Stuck
	}
	metrics *metrics
}

// place is a partition of an input topic.
type place struct {
	topic     string
	partition int32
}

// add adds a place, instead of another one in the same partition.
func (s *stuckAt) add(at progress.Stuck) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.at == nil {
		s.mu.at = map[place]progress.Stuck{}
	}
	s.mu.at[place{at.Topic, at.Partition}] = at
	s.metrics.stuck.Set(float64(len(s.mu.at)))
}

// has reports whether there is a place in a partition.
func (s *stuckAt) has(topic string, partition int32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.mu.at[place{topic, partition}]
	return ok
}

// keep removes the places for which stays returns false.
func (s *stuckAt) keep(stays func(progress.Stuck) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p, at := range s.mu.at {
		if !stays(at) {
			delete(s.mu.at, p)
		}
	}
	s.metrics.stuck.Set(float64(len(s.mu.at)))
}

// all returns the places, in no order.
func (s *stuckAt) all() []progress.Stuck {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []progress.Stuck
	for _, at := range s.mu.at {
		all = append(all, at)
	}
	return all
}

// skipping is a place where this process is stuck and which an operator asks to skip.
type skipping struct {
	progress.Stuck
	asked progress.Skip
}

// toSkip returns the places where this process is stuck and that an operator
// asks to skip.
func (p *Partitioner) toSkip() (all []skipping) {
	for _, asked := range p.progress.Skips(p.cfg.Group) {
		for _, at := range p.stuck.all() {
			if at.Topic == asked.Topic && at.Partition == asked.Partition && at.Offset == asked.Offset && at.Kind == asked.Kind {
				all = append(all, skipping{at, asked})
			}
		}
	}
	return all
}

// awaitSkip calls found once an operator asks to skip a place where this process is stuck.
// It returns when ctx ends.
func (p *Partitioner) awaitSkip(ctx context.Context, found func()) {
	for {
		moved := p.progress.Moved()
		if len(p.toSkip()) > 0 {
			found()
			return
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return
		}
	}
}

// skip makes the group continue after places. A batch that cannot be opened
// (progress.Closed) is first written to the dead letters. If the process dies in between,
// the batch is written there twice and skipped once.
func (p *Partitioner) skip(ctx context.Context, s *groups.Session, all []skipping) error {
	var places []progress.Stuck
	for _, at := range all {
		if places = append(places, at.Stuck); at.Kind == progress.Closed {
			if err := p.keepAside(ctx, at.Stuck); err != nil {
				return err
			}
		}
	}
	if err := s.GoOn(ctx, places...); err != nil {
		return err
	}
	for _, at := range all {
		if at.Kind == progress.Closed {
			p.metrics.skipped.WithLabelValues(at.Topic).Inc()
		}
		p.metrics.lost.WithLabelValues(at.Topic).Add(float64(at.Lost()))
		p.log.Warn("partitioner: skipped", "topic", at.Topic, "partition", at.Partition, "offset", at.Offset, "next", at.Next, "what", at.What())
		if err := progress.EndSkip(ctx, p.cfg.Brokers, p.cfg.Topics.Progress, at.asked); err != nil {
			return err
		}
	}
	p.stuck.keep(func(k progress.Stuck) bool { return !slices.Contains(places, k) })
	p.on.skipped()
	return nil
}

// keepAside writes the batch at a place to the dead letters, and returns once it is there.
func (p *Partitioner) keepAside(ctx context.Context, at progress.Stuck) error {
	letters, err := p.aside(ctx, at)
	if err != nil {
		return err
	}
	to, err := kafka.NewProducer(p.cfg.Brokers, p.cfg.Topics.DeadLetters, p.log)
	if err != nil {
		return err
	}
	defer to.Close()
	for _, o := range letters {
		to.Produce(ctx, o)
	}
	return to.Flush(ctx)
}

// aside returns the dead letters that hold, in pieces, the batch at a place as it is in the
// log.
func (p *Partitioner) aside(ctx context.Context, at progress.Stuck) ([]kafka.Outgoing, error) {
	b, err := groups.FetchBatch(ctx, p.cfg.Brokers, at.Topic, at.Partition, at.Offset)
	if err != nil {
		return nil, err
	}
	pieces := max(1, (len(b.Bytes)+pieceBytes-1)/pieceBytes)
	source := kafka.Source{Topic: at.Topic, Partition: at.Partition, Offset: at.Offset}
	var letters []kafka.Outgoing
	for i := range pieces {
		value := b.Bytes[i*pieceBytes : min((i+1)*pieceBytes, len(b.Bytes))]
		letters = append(letters, kafka.Outgoing{
			Topic: p.cfg.Topics.DeadLetters,
			Key:   source.Append(nil),
			Value: value,
			Headers: []kafka.Header{
				{Key: kafka.HeaderReason, Value: []byte(UnreadableBatch)},
				{Key: kafka.HeaderDetail, Value: []byte(at.Reason)},
				{Key: kafka.HeaderSource, Value: source.Append(nil)},
				{Key: kafka.HeaderBatch, Value: fmt.Appendf(nil, "%d-%d", at.Offset, at.Next-1)},
				{Key: kafka.HeaderPiece, Value: fmt.Appendf(nil, "%d/%d", i+1, pieces)},
				{Key: kafka.HeaderCRC, Value: kafka.CRC(value)},
			},
		})
	}
	return letters, nil
}

// noteFault logs a fault of reading, and adds the place to p.stuck if a partition is stuck
// there. The error says that the place could not be found out. It ends the session, and the
// next one meets the fault again.
func (p *Partitioner) noteFault(ctx context.Context, fault error) error {
	p.metrics.faults.Inc()
	var u *groups.Unreadable
	if !errors.As(fault, &u) {
		p.log.Error("partitioner: cannot read", "error", fault)
		return nil
	}
	if p.stuck.has(u.Topic, u.Partition) {
		return nil // it was logged before
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	at, err := groups.Locate(ctx, p.cfg.Brokers, p.cfg.Group, u)
	if err != nil {
		return errors.Join(fault, err)
	}
	p.stuck.add(at)
	p.log.Error("partitioner: a partition is stuck", "place", at.Says(p.cfg.Group))
	return nil
}
