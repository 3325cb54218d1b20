package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millrace/millrace/internal/partition"
)

// Topics names Millrace's own topics. A field left empty has its name in
// ARCHITECTURE.md.
type Topics struct {
	Timeline    string
	Features    string
	Schemas     string
	DeadLetters string
}

// WithDefaults fills in the empty names.
func (t Topics) WithDefaults() Topics {
	fill := func(s *string, name string) {
		if *s == "" {
			*s = name
		}
	}
	fill(&t.Timeline, "timeline")
	fill(&t.Features, "features")
	fill(&t.Schemas, "schemas")
	fill(&t.DeadLetters, "dead-letters")
	return t
}

// Of returns the topic of a stream.
func (t Topics) Of(s Stream) string {
	if s == Features {
		return t.Features
	}
	return t.Timeline
}

// Prefixed returns the default names behind a prefix: several clusters on one
// Kafka, or one test among others.
func Prefixed(prefix string) Topics {
	t := Topics{}.WithDefaults()
	return Topics{prefix + t.Timeline, prefix + t.Features, prefix + t.Schemas, prefix + t.DeadLetters}
}

// spec is how a topic must be.
type spec struct {
	name       string
	partitions int32
	config     map[string]*string
}

// EnsureTopics creates those of Millrace's topics that are missing, and
// refuses one that exists with another partition count (ErrPartitionCount). It
// returns when all of them can be used.
func EnsureTopics(ctx context.Context, brokers []string, t Topics) error {
	t = t.WithDefaults()
	return ensure(ctx, brokers,
		spec{t.Timeline, partition.Count, messageBytes(maxTimelineBatchBytes)},
		spec{t.Features, partition.Count, messageBytes(maxTimelineBatchBytes)},
		spec{t.Schemas, 1, map[string]*string{"cleanup.policy": text("compact")}},
		spec{t.DeadLetters, 1, messageBytes(maxDeadLetterBytes)},
	)
}

// EnsureContentTopic creates a content or feature topic if it is missing. Its
// partitions may be any number: an existing topic stays as it is.
func EnsureContentTopic(ctx context.Context, brokers []string, topic string, partitions int32) error {
	err := ensure(ctx, brokers, spec{topic, partitions, messageBytes(maxTimelineBatchBytes)})
	if errors.Is(err, ErrPartitionCount) {
		return nil
	}
	return err
}

// Partitions returns how many partitions a topic has.
func Partitions(ctx context.Context, brokers []string, topic string) (int32, error) {
	cl, err := newClient(brokers, nil)
	if err != nil {
		return 0, err
	}
	defer cl.Close()
	return partitions(ctx, kadm.NewClient(cl), topic)
}

func partitions(ctx context.Context, adm *kadm.Client, topic string) (int32, error) {
	all, err := adm.ListTopics(ctx, topic)
	if err == nil {
		err = all.Error()
	}
	if err != nil {
		return 0, fmt.Errorf("kafka: describe topic %s: %w", topic, err)
	}
	return int32(len(all[topic].Partitions)), nil
}

// ErrPartitionCount says that a topic has another number of partitions than
// Millrace needs.
var ErrPartitionCount = errors.New("kafka: wrong number of partitions")

func ensure(ctx context.Context, brokers []string, specs ...spec) error {
	cl, err := newClient(brokers, nil)
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	for _, s := range specs {
		if err := ensureOne(ctx, adm, s); err != nil {
			return err
		}
	}
	for _, s := range specs {
		if err := served(ctx, adm, s.name); err != nil {
			return err
		}
	}
	return nil
}

// served waits until brokers answer for every partition of a topic, which is a
// moment after it is created.
func served(ctx context.Context, adm *kadm.Client, topic string) error {
	for {
		ends, err := adm.ListEndOffsets(ctx, topic)
		if err == nil {
			err = ends.Error()
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("kafka: topic %s is not served: %w", topic, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func ensureOne(ctx context.Context, adm *kadm.Client, s spec) error {
	// The broker's own replication factor (-1) is the operator's choice.
	_, err := adm.CreateTopic(ctx, s.partitions, -1, s.config, s.name)
	if err == nil {
		return nil
	}
	if !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("kafka: create topic %s: %w", s.name, err)
	}
	got, err := partitions(ctx, adm, s.name)
	if err == nil && got != s.partitions {
		err = fmt.Errorf("%w: topic %s has %d partitions, not %d; the count is fixed for the life of a cluster: "+
			"use other topic names, or delete the topic if nothing in it matters", ErrPartitionCount, s.name, got, s.partitions)
	}
	return err
}

func messageBytes(n int) map[string]*string {
	return map[string]*string{"max.message.bytes": text(strconv.Itoa(n))}
}

func text(s string) *string { return &s }
