package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// Log is Millrace's part of a Kafka cluster, as it is now.
type Log struct {
	Cluster     string // Kafka's cluster id
	Timeline    LogTopic
	Features    LogTopic
	Schemas     LogTopic
	DeadLetters LogTopic
	Progress    LogTopic
}

// LogTopic is a topic of the Log.
type LogTopic struct {
	Name            string
	ID              [16]byte      // of this topic; one that is created again under its name has another
	Partitions      int           // 0 = the topic does not exist
	CleanupPolicy   string        // "delete", "compact", or both with a comma
	Retention       time.Duration // negative = for ever
	RetentionBytes  int64         // of a partition; negative = any number
	MaxMessageBytes int64         // of a batch
}

// Topics returns every topic.
func (l Log) Topics() (all []LogTopic) {
	for i := range own {
		all = append(all, *own[i].of(&l))
	}
	return all
}

// Deletes returns, for each of the timeline and features topics that does not keep every
// record for ever, a sentence that says what it deletes. These two topics are the log of
// record: an index node that has lost its disk cannot be rebuilt from less.
func (l Log) Deletes() []string {
	var out []string
	for _, t := range []LogTopic{l.Timeline, l.Features} {
		if what := t.Deletes(); what != "" {
			out = append(out, what)
		}
	}
	return out
}

// Deletes says what a topic does not keep for ever; "" if it keeps everything.
func (t LogTopic) Deletes() string {
	switch {
	case strings.Contains(t.CleanupPolicy, "compact"):
		return fmt.Sprintf("topic %s keeps only the newest record of each key (cleanup.policy=%s)", t.Name, t.CleanupPolicy)
	case strings.Contains(t.CleanupPolicy, "delete") && t.Retention >= 0:
		return fmt.Sprintf("topic %s deletes what is older than %s (retention.ms=%d)", t.Name, t.Retention, t.Retention.Milliseconds())
	case strings.Contains(t.CleanupPolicy, "delete") && t.RetentionBytes >= 0:
		return fmt.Sprintf("topic %s deletes what is beyond %d bytes of a partition (retention.bytes)", t.Name, t.RetentionBytes)
	}
	return ""
}

// InspectTopics asks Kafka about Millrace's topics. A topic that does not exist is no
// error: its LogTopic has no partitions.
func InspectTopics(ctx context.Context, brokers Brokers, topics Topics) (Log, error) {
	cl, err := NewClient(brokers, nil)
	if err != nil {
		return Log{}, err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	names := topics.All()
	meta, err := adm.Metadata(ctx, names...)
	if err != nil {
		return Log{}, fmt.Errorf("kafka: describe the topics: %w", err)
	}
	l := Log{Cluster: meta.Cluster}
	for i, name := range names {
		t := own[i].of(&l)
		t.Name = name
		d := meta.Topics[t.Name]
		if errors.Is(d.Err, kerr.UnknownTopicOrPartition) {
			continue
		}
		if d.Err != nil {
			return Log{}, fmt.Errorf("kafka: describe topic %s: %w", t.Name, d.Err)
		}
		t.ID, t.Partitions = d.ID, len(d.Partitions)
		if err := t.configure(ctx, adm); err != nil {
			return Log{}, err
		}
	}
	return l, nil
}

// configure fills in a topic's configuration.
func (t *LogTopic) configure(ctx context.Context, adm *kadm.Client) error {
	described, err := adm.DescribeTopicConfigs(ctx, t.Name)
	var c kadm.ResourceConfig
	if err == nil {
		c, err = described.On(t.Name, nil)
	}
	if err == nil {
		err = c.Err
	}
	if err != nil {
		return fmt.Errorf("kafka: configuration of topic %s: %w", t.Name, err)
	}
	number := func(value string) (n int64) {
		if n, err = strconv.ParseInt(value, 10, 64); err != nil {
			err = fmt.Errorf("kafka: configuration of topic %s: %w", t.Name, err)
		}
		return n
	}
	for _, kv := range c.Configs {
		if err != nil {
			return err
		}
		switch kv.Key {
		case "cleanup.policy":
			t.CleanupPolicy = kv.MaybeValue()
		case "retention.ms":
			t.Retention = Milliseconds(number(kv.MaybeValue()))
		case "retention.bytes":
			t.RetentionBytes = number(kv.MaybeValue())
		case "max.message.bytes":
			t.MaxMessageBytes = number(kv.MaybeValue())
		}
	}
	return err
}

// Milliseconds returns a number of milliseconds as a duration, at most the longest there
// is: Kafka has larger numbers.
func Milliseconds(n int64) time.Duration {
	return time.Duration(min(n, int64(1<<63-1)/int64(time.Millisecond))) * time.Millisecond
}
