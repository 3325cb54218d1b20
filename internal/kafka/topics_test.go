package kafka_test

import (
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
)

func TestTopicsKeepEveryRecord(t *testing.T) { testTopicsKeep(t, kafkatest.Fake(t)) }

// testTopicsKeep: no topic of ours deletes by age or size, and one that does
// is told.
func testTopicsKeep(t *testing.T, k kafkatest.Cluster) {
	ctx := kafkatest.Deadline(t)
	l, err := kafka.InspectTopics(ctx, k.Brokers, k.Topics)
	kafkatest.Must(t, err)
	if l.Cluster == "" {
		t.Error("no cluster id")
	}
	ids := map[[16]byte]bool{{}: true}
	for i, topic := range l.Topics() {
		policy := []string{"delete", "delete", "compact", "delete", "compact"}[i]
		if topic.Retention >= 0 || topic.RetentionBytes >= 0 || topic.CleanupPolicy != policy {
			t.Errorf("%s: cleanup %s, retention %s, %d bytes; want %s, and no bounds", topic.Name, topic.CleanupPolicy, topic.Retention, topic.RetentionBytes, policy)
		}
		if topic.Partitions == 0 || ids[topic.ID] {
			t.Errorf("%s: %d partitions, id %x", topic.Name, topic.Partitions, topic.ID)
		}
		ids[topic.ID] = true
	}
	if l.DeadLetters.MaxMessageBytes != kafka.MaxDeadLetterBytes {
		t.Errorf("dead letters may have %d bytes", l.DeadLetters.MaxMessageBytes)
	}
	if d := l.Deletes(); d != nil {
		t.Errorf("Deletes = %q, want none", d)
	}

	week := "604800000"
	_, err = kafkatest.Admin(t, k.Brokers).AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &week}}, k.Topics.Features)
	kafkatest.Must(t, err)
	l, err = kafka.InspectTopics(ctx, k.Brokers, k.Topics)
	kafkatest.Must(t, err)
	if d := l.Deletes(); len(d) != 1 || !strings.Contains(d[0], k.Topics.Features+" deletes what is older than 168h") {
		t.Errorf("Deletes = %q, want the features after a week", d)
	}
	l, err = kafka.InspectTopics(ctx, k.Brokers, kafka.Topics{Timeline: k.Topics.Timeline + "-nowhere"})
	kafkatest.Must(t, err)
	if l.Timeline.Partitions != 0 {
		t.Errorf("a topic that does not exist has %d partitions", l.Timeline.Partitions)
	}
}

// Kafka is away when the topics are asked for, and comes.
func TestEnsureTopicsWaitsForKafka(t *testing.T) {
	ctx := kafkatest.Deadline(t)
	port, addr := kafkatest.FreePort(t)
	told, done := make(chan error, 1), make(chan error, 1)
	go func() {
		done <- kafka.EnsureTopics(ctx, kafka.At(addr), kafka.Topics{}, func(err error) {
			select {
			case told <- err:
			default:
			}
		})
	}()
	select {
	case err := <-done:
		t.Fatalf("EnsureTopics without Kafka: %v", err)
	case err := <-told:
		if err == nil {
			t.Error("told nothing")
		}
	}
	kafkatest.StartOn(t, port, t.TempDir())
	kafkatest.Must(t, <-done)
}

// Several nodes create the topics of a fresh Kafka at once; brokers that have
// not heard of a topic yet deny it.
func TestEnsureTopicsOutlastsUnknownTopics(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	kafkatest.Must(t, err)
	t.Cleanup(c.Close)
	var asked atomic.Int32
	c.ControlKey(int16(kmsg.ListOffsets), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if asked.Add(1) > 3 {
			return nil, nil, false
		}
		return unknownOffsets(req.(*kmsg.ListOffsetsRequest)), nil, true
	})
	kafkatest.Must(t, kafka.EnsureTopics(kafkatest.Deadline(t), kafka.At(c.ListenAddrs()...), kafka.Topics{}, nil))
	if asked.Load() <= 3 {
		t.Errorf("the end of a topic was asked for %d times", asked.Load())
	}
}

func unknownOffsets(req *kmsg.ListOffsetsRequest) *kmsg.ListOffsetsResponse {
	resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
	for _, asked := range req.Topics {
		topic := kmsg.NewListOffsetsResponseTopic()
		topic.Topic = asked.Topic
		for _, p := range asked.Partitions {
			answer := kmsg.NewListOffsetsResponseTopicPartition()
			answer.Partition, answer.ErrorCode = p.Partition, kerr.UnknownTopicOrPartition.Code
			topic.Partitions = append(topic.Partitions, answer)
		}
		resp.Topics = append(resp.Topics, topic)
	}
	return resp
}

// A partition count never changes, so another one is not waited for.
func TestEnsureTopicsGivesUp(t *testing.T) {
	ctx, k := kafkatest.Deadline(t), kafkatest.Fake(t)
	kafkatest.Must(t, kafka.EnsureContentTopic(ctx, k.Brokers, "narrow", 3, nil))
	if err := kafka.EnsureTopics(ctx, k.Brokers, kafka.Topics{Timeline: "narrow"}, nil); !errors.Is(err, kafka.ErrPartitionCount) {
		t.Errorf("3 partitions: %v", err)
	}
}

// A configuration that Kafka tells in other words than numbers is an error, wherever it is
// told.
func TestConfigurationsThatAreNoNumbers(t *testing.T) {
	of, k := kafkatest.Controlled(t)
	var wrong string
	values := []string{"cleanup.policy", "retention.ms", "retention.bytes", "max.message.bytes", "other"}
	of.ControlKey(int16(kmsg.DescribeConfigs), func(r kmsg.Request) (kmsg.Response, error, bool) {
		of.KeepControl()
		resp := r.ResponseKind().(*kmsg.DescribeConfigsResponse)
		for _, asked := range r.(*kmsg.DescribeConfigsRequest).Resources {
			one := kmsg.NewDescribeConfigsResponseResource()
			one.ResourceType, one.ResourceName = asked.ResourceType, asked.ResourceName
			for i, key := range values {
				kv := kmsg.NewDescribeConfigsResponseResourceConfig()
				value := strconv.Itoa(10 + i)
				if key == wrong {
					value = "many"
				}
				kv.Name, kv.Value = key, &value
				one.Configs = append(one.Configs, kv)
			}
			resp.Resources = append(resp.Resources, one)
		}
		return resp, nil, true
	})
	for _, wrong = range append([]string{""}, values...) {
		number := wrong != "" && wrong != "cleanup.policy" && wrong != "other"
		l, err := kafka.InspectTopics(kafkatest.Deadline(t), k.Brokers, k.Topics)
		if (err != nil) != number || err != nil && !strings.Contains(err.Error(), "kafka: configuration of topic "+k.Topics.Timeline) {
			t.Errorf("%q is no number: %v", wrong, err)
		}
		if f := l.Features; wrong == "" && (f.CleanupPolicy != "10" || f.Retention != 11*time.Millisecond || f.RetentionBytes != 12 || f.MaxMessageBytes != 13) {
			t.Errorf("the features have %+v", f)
		}
	}
}
