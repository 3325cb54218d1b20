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

// This file is how a Session finds batches that are broken in the log and of which
// franz-go says nothing: it goes over them where others are fetched with them, and stands
// before them where none are. Such a partition is halted: nothing from behind the batch is
// returned or committed, and it is not fetched again before the group deals it out anew.

// lookWithin bounds the looks of one Poll: the transaction under way must end in time.
const lookWithin = 5 * time.Second

// lookAt looks at what a poll left out, and at partitions that stand still, and returns
// those that it halted. An error means that not all is known: nothing of the poll may be
// committed.
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

// begun takes over where partitions begin that were assigned since the last poll.
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

// between looks into the gaps that records leave, and returns the first batch there that
// cannot be read.
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

// place returns what comes next in a partition.
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

// halt stops a partition before a batch.
func (s *Session) halt(c *kafka.Closed) *Unreadable {
	s.halted[topicPartition{c.Topic, c.Partition}] = millrace.Offset(c.First)
	s.s.Client().PauseFetchPartitions(map[string][]int32{c.Topic: {c.Partition}})
	return &Unreadable{Topic: c.Topic, Partition: c.Partition, Offset: millrace.Offset(c.First), Next: millrace.Offset(c.Next),
		Err: fmt.Errorf("a batch that is broken in the log: %w", c.Why)}
}
