package kafka_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/groups"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/kafka/patience"
)

// TestOnRealKafka runs what depends on the broker against a real one.
func TestOnRealKafka(t *testing.T) {
	kafkatest.OnReal(t, map[string]func(*testing.T, kafkatest.Cluster){
		"producer":    testProducer,
		"span":        testTopicSpan,
		"stepped":     testSteppedOver,
		"keep":        testTopicsKeep,
		"consumption": testConsumption,
		"names": func(t *testing.T, k kafkatest.Cluster) {
			if err := kafka.EnsureContentTopic(kafkatest.Deadline(t), k.Brokers, "no/such", 3, nil); !errors.Is(err, kerr.InvalidTopicException) {
				t.Errorf("no topic name: %v", err)
			}
		},
	})
}

func TestConsumption(t *testing.T) { testConsumption(t, kafkatest.Fake(t)) }

func TestEnsureTopics(t *testing.T) {
	ctx, brokers := kafkatest.Deadline(t), kafkatest.Fake(t).Brokers
	kafkatest.Must(t, kafka.EnsureTopics(ctx, brokers, kafka.Topics{}, nil)) // as it was
	kafkatest.Must(t, kafka.EnsureContentTopic(ctx, brokers, "narrow", 3, nil))
	kafkatest.Must(t, kafka.EnsureContentTopic(ctx, brokers, "narrow", 5, nil)) // stays as it is

	err := kafka.EnsureTopics(ctx, brokers, kafka.Topics{Timeline: "narrow"}, nil)
	if want := "topic narrow has 3 partitions, not 720"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a timeline topic of 3 partitions: %v, want %q", err, want)
	}
	if _, err := kafka.NewProducer(kafka.Brokers{}, "", nil); err == nil || !strings.Contains(err.Error(), "brokers") {
		t.Errorf("no brokers: %v", err)
	}
}

// Who consumes a topic is told by groups that are at work, and by offsets that
// were committed where none is.
func testConsumption(t *testing.T, k kafkatest.Cluster) {
	ctx := kafkatest.Deadline(t)
	look, err := kafka.NewInspector(k.Brokers)
	kafkatest.Must(t, err)
	defer look.Close()
	ask := func(topic string) kafka.Consumption {
		t.Helper()
		c, err := look.Consumption(ctx, topic)
		kafkatest.Must(t, err)
		return c
	}
	other := k.Content + "-other"
	kafkatest.Must(t, kafka.EnsureContentTopic(ctx, k.Brokers, other, 1, nil))
	if c := ask(k.Content); c.Group != "" {
		t.Errorf("nobody yet: %+v", c)
	}
	var done kadm.Offsets
	done.Add(kadm.Offset{Topic: other, Partition: 0, At: 0, LeaderEpoch: -1})
	kafkatest.Must(t, kafkatest.Admin(t, k.Brokers).CommitAllOffsets(ctx, k.Content+"-idle", done))
	c := ask(other)
	for ; c.Running && ctx.Err() == nil; c = ask(other) { // members of other tests, until their sessions end
		patience.Sleep(ctx, 200*time.Millisecond)
	}
	if c.Group != k.Content+"-idle" {
		t.Errorf("a group that has committed: %+v", c)
	}
	s, err := groups.OpenSession(ctx, groups.SessionConfig{Brokers: k.Brokers, Group: k.Content, Instance: "one", Topics: []string{k.Content}, DeadLetters: k.Topics.DeadLetters})
	kafkatest.Must(t, err)
	defer s.Close()
	if c := ask(k.Content); !c.Running || c.Group != k.Content || !slices.Contains(c.Topics, k.Content) {
		t.Errorf("a running partitioner: %+v", c)
	}
	if c := ask(other); !c.Running || c.Group != "" {
		t.Errorf("what a running partitioner leaves out: %+v", c)
	}
	for topic, want := range map[string]bool{k.Content: true, k.Content + "-none": false} {
		if got, err := look.Exists(ctx, topic); err != nil || got != want {
			t.Errorf("%s exists: %v, %v", topic, got, err)
		}
	}
}
