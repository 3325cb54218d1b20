package groups

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
)

// This file is how a Session finds batches that are broken in the log. franz-go, the Kafka
// client, does not report them. It skips such a batch if it fetched others with it, and
// fetches it again and again if not. A partition with such a batch is halted: nothing from
// behind the batch is returned or committed, and the partition is not fetched again until
// the group assigns it anew.

// lookWithin bounds the time that one Poll spends looking for such batches, since the
// transaction under way must end in time.
const lookWithin = 5 * time.Second

// lookAt looks at the gaps between what a poll brought, and at partitions that a poll
// brings nothing of again and again. It halts those with a broken batch, and returns a
// fault for each. An error means that not all could be looked at, so that nothing of the
// poll may be committed.
func (s *Session) lookAt(ctx context.Context, fetches kgo.Fetches) (faults []error, err error) {
	s.begun()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookWithin)
	defer cancel()
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if err != nil {
			return
		}
		c, failed := s.between(ctx, p)
		if err = failed; c != nil {
			faults = append(faults, s.halt(c))
		}
	})
	if err != nil {
		return faults, err
	}
	for _, p := range s.standing.Polled(fetches) {
		if _, halted := s.halted[topicPartition{p.Topic, p.Partition}]; halted {
			continue
		}
		at, err := s.place(ctx, topicPartition{p.Topic, p.Partition})
		if err != nil {
			return faults, err
		}
		if c := s.looks.At(ctx, p.Topic, p.Partition, at); c != nil && s.Has(p.Topic, p.Partition) {
			faults = append(faults, s.halt(c))
		}
	}
	return faults, nil
}

// begun notes, for the partitions that were assigned since the last poll, the offsets from
// which they are read. These partitions are not halted any more.
func (s *Session) begun() {
	s.word.mu.Lock()
	defer s.word.mu.Unlock()
	for at, start := range s.word.mu.starts {
		delete(s.halted, at)
		if delete(s.next, at); start >= 0 {
			s.next[at] = millrace.Offset(start)
		}
	}
	clear(s.word.mu.starts)
}

// between looks into the gaps between the records of a partition, and returns the first batch
// there that cannot be read; nil if there is none.
func (s *Session) between(ctx context.Context, p kgo.FetchTopicPartition) (*kafka.Closed, error) {
	next := max(0, p.LogStartOffset)
	if at, known := s.next[topicPartition{p.Topic, p.Partition}]; known {
		next = int64(at)
	}
	for _, r := range p.Records {
		c, err := s.looks.Between(ctx, p.Topic, p.Partition, next, r.Offset)
		if err != nil {
			return nil, fmt.Errorf("kafka: look at what %s/%d has from offset %d to %d: %w", p.Topic, p.Partition, next, r.Offset-1, err)
		}
		if c != nil {
			return c, nil
		}
		next = r.Offset + 1
	}
	return nil, nil
}

// place returns the offset that is to be read next in a partition; the beginning of the log
// if nothing was polled of it.
func (s *Session) place(ctx context.Context, at topicPartition) (int64, error) {
	if next, known := s.next[at]; known {
		return int64(next), nil
	}
	starts, err := kafka.Ask(ctx, func() (kadm.ListedOffsets, error) { return kadm.NewClient(s.ask).ListStartOffsets(ctx, at.topic) })
	start, ok := starts.Lookup(at.topic, at.partition)
	if err == nil {
		err = start.Err
	}
	if err == nil {
		err = kafka.Missing(ok)
	}
	if err != nil {
		return 0, fmt.Errorf("kafka: beginning of %s/%d: %w", at.topic, at.partition, err)
	}
	return start.Offset, nil
}

// halt halts a partition before a batch, and returns the fault.
func (s *Session) halt(c *kafka.Closed) *Unreadable {
	s.halted[topicPartition{c.Topic, c.Partition}] = millrace.Offset(c.First)
	s.s.Client().PauseFetchPartitions(map[string][]int32{c.Topic: {c.Partition}})
	return &Unreadable{Topic: c.Topic, Partition: c.Partition, Offset: millrace.Offset(c.First), Next: millrace.Offset(c.Next),
		Err: fmt.Errorf("a batch that is broken in the log: %w", c.Why)}
}
