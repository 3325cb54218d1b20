package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millrace/millrace/internal/kafka/patience"
	"github.com/millrace/millrace/internal/partition"
)

// Topics has the names of Millrace's own topics. An empty field stands for the default
// name, see WithDefaults.
type Topics struct {
	Timeline    string // content records, by partition
	Features    string // relevance features, by partition
	Schemas     string // the schemas of both, and which of them operators refuse
	DeadLetters string // records that were refused
	Progress    string // how far partitioners are, and what they are asked to do
}

// own are Millrace's own topics. None of them deletes by age or size: the timeline and the
// features are the log of record, from which an index node is rebuilt.
var own = []struct {
	name       string // the default name
	partitions int32
	cleanup    string                // cleanup.policy
	batch      int                   // max.message.bytes: the bytes that a batch may have
	in         func(*Topics) *string // returns its name in a Topics
	of         func(*Log) *LogTopic  // returns its place in a Log
}{
	{"timeline", partition.Count, "delete", MaxTimelineBatchBytes, func(t *Topics) *string { return &t.Timeline }, func(l *Log) *LogTopic { return &l.Timeline }},
	{"features", partition.Count, "delete", MaxTimelineBatchBytes, func(t *Topics) *string { return &t.Features }, func(l *Log) *LogTopic { return &l.Features }},
	{"schemas", 1, "compact", MaxTimelineBatchBytes, func(t *Topics) *string { return &t.Schemas }, func(l *Log) *LogTopic { return &l.Schemas }},
	{"dead-letters", 1, "delete", maxDeadLetterBytes, func(t *Topics) *string { return &t.DeadLetters }, func(l *Log) *LogTopic { return &l.DeadLetters }},
	{"progress", 1, "compact", MaxTimelineBatchBytes, func(t *Topics) *string { return &t.Progress }, func(l *Log) *LogTopic { return &l.Progress }},
}

// WithDefaults fills in the empty names.
func (t Topics) WithDefaults() Topics {
	for i := range own {
		if name := own[i].in(&t); *name == "" {
			*name = own[i].name
		}
	}
	return t
}

// Of returns the name of a stream's topic, without a default.
func (t Topics) Of(s Stream) string {
	if s == Features {
		return t.Features
	}
	return t.Timeline
}

// Logs returns the names of the topics that are the log of record, with
// defaults.
func (t Topics) Logs() []string {
	t = t.WithDefaults()
	return []string{t.Timeline, t.Features}
}

// All returns the names, with defaults.
func (t Topics) All() (names []string) {
	t = t.WithDefaults()
	for i := range own {
		names = append(names, *own[i].in(&t))
	}
	return names
}

// Prefixed returns the default names, each with a prefix before it. So several clusters,
// or several tests, can share one Kafka.
func Prefixed(prefix string) (t Topics) {
	for i := range own {
		*own[i].in(&t) = prefix + own[i].name
	}
	return t
}

// spec is how a topic must be.
type spec struct {
	name       string
	partitions int32
	config     map[string]*string
}

// specs returns how Millrace's own topics are created.
func (t Topics) specs() (all []spec) {
	for i, name := range t.All() {
		all = append(all, spec{name, own[i].partitions, kept(own[i].cleanup, own[i].batch)})
	}
	return all
}

// kept returns the configuration of a topic that never deletes by age or size.
func kept(cleanup string, messageBytes int) map[string]*string {
	c := map[string]*string{
		"cleanup.policy":    text(cleanup),
		"retention.ms":      text("-1"),
		"retention.bytes":   text("-1"),
		"max.message.bytes": text(strconv.Itoa(messageBytes)),
	}
	if cleanup == "compact" {
		// Only closed segments are compacted: heartbeats fill one slowly.
		c["segment.ms"] = text(strconv.Itoa(int(time.Hour / time.Millisecond)))
	}
	return c
}

// EnsureTopics creates those of Millrace's topics that are missing, and returns when all
// of them can be used. It goes on trying until ctx ends: Kafka may be away, and others
// may create the same topics. It calls tell after a second, and then every 10 s, with
// what it waits for; tell may be nil. A topic that exists with another number of
// partitions is refused at once (ErrPartitionCount).
func EnsureTopics(ctx context.Context, brokers Brokers, t Topics, tell func(error)) error {
	return ensure(ctx, brokers, tell, t.specs()...)
}

// EnsureContentTopic creates a content or feature topic if it is missing, and
// waits as EnsureTopics does. Its partitions may be any number: an existing
// topic stays as it is. How long it keeps its records is its owner's choice.
func EnsureContentTopic(ctx context.Context, brokers Brokers, topic string, partitions int32, tell func(error)) error {
	config := map[string]*string{"max.message.bytes": text(strconv.Itoa(MaxTimelineBatchBytes))}
	err := ensure(ctx, brokers, tell, spec{topic, partitions, config})
	if errors.Is(err, ErrPartitionCount) {
		return nil
	}
	return err
}

// Partitions returns how many partitions a topic has.
func Partitions(ctx context.Context, brokers Brokers, topic string) (int32, error) {
	cl, err := NewClient(brokers, nil)
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

// ensure creates the topics that are missing. Each try begins anew: a topic that exists
// already is no error.
func ensure(ctx context.Context, brokers Brokers, tell func(error), specs ...spec) error {
	cl, err := NewClient(brokers, nil)
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	return Persist(ctx, tell, func(ctx context.Context) error {
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
	})
}

// served returns an error unless brokers answer for every partition of a topic. They do a
// moment after it is created.
func served(ctx context.Context, adm *kadm.Client, topic string) error {
	ends, err := adm.ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return fmt.Errorf("kafka: topic %s is not served: %w", topic, err)
	}
	return nil
}

// ensureOne creates a topic. It fails with ErrPartitionCount if the topic exists with
// another number of partitions.
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

func text(s string) *string { return &s }

// Persist calls try until it succeeds, ctx ends, or trying again is of no use. It returns
// the last error of try. Each try gets a context of limited time. tell (nil: nobody) gets
// the error after a second, and then every 10 s.
func Persist(ctx context.Context, tell func(error), try func(context.Context) error) error {
	due := time.Now().Add(patience.TellAfter)
	for pause := patience.First; ; pause = min(2*pause, patience.Max) {
		limited, cancel := context.WithTimeout(ctx, patience.TryTimeout)
		err := try(limited)
		cancel()
		if err == nil || hopeless(err) {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w (%w)", err, ctx.Err())
		}
		if now := time.Now(); tell != nil && now.After(due) {
			if refused := Refused(err); refused != nil {
				err = refused
			}
			tell(err)
			due = now.Add(patience.TellEvery)
		}
		patience.Sleep(ctx, pause)
	}
}

// hopeless reports whether an error is the caller's fault, so that no later try can
// succeed.
func hopeless(err error) bool {
	return errors.Is(err, ErrPartitionCount) || errors.Is(err, kerr.InvalidTopicException)
}
