package kafka_test

import (
	"errors"
	"maps"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
)

// Ids are those of now, by one partition of each topic where Kafka can tell so,
// and the same ones where it cannot.
func TestTopicsNow(t *testing.T) {
	for name, versions := range map[string]*kversion.Versions{"of today": nil, "before 3.8": kversion.V3_5_0()} {
		t.Run(name, func(t *testing.T) {
			ctx := kafkatest.Deadline(t)
			opts := []kfake.Opt{kfake.SeedTopics(720, "wide", "other"), kfake.ClusterID("here")}
			if versions != nil {
				opts = append(opts, kfake.MaxVersions(versions))
			}
			c, err := kfake.NewCluster(opts...)
			kafkatest.Must(t, err)
			t.Cleanup(c.Close)
			var whole atomic.Int64
			var refused atomic.Bool // metadata of topics
			c.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				asked := r.(*kmsg.MetadataRequest).Topics
				if len(asked) > 0 {
					whole.Add(1)
				}
				if len(asked) > 0 && refused.Load() {
					resp := r.ResponseKind().(*kmsg.MetadataResponse)
					for _, one := range asked {
						topic := kmsg.NewMetadataResponseTopic()
						topic.Topic, topic.ErrorCode = one.Topic, kerr.TopicAuthorizationFailed.Code
						resp.Topics = append(resp.Topics, topic)
					}
					return resp, nil, true
				}
				return nil, nil, false
			})
			cl, err := kafka.NewClient(kafka.At(c.ListenAddrs()...), nil)
			kafkatest.Must(t, err)
			t.Cleanup(cl.Close)
			look := func() map[string]kafka.TopicID {
				cluster, ids, err := kafka.TopicsNow(ctx, cl, "wide", "other", "nowhere")
				kafkatest.Must(t, err)
				if cluster != "here" {
					t.Errorf("Kafka's own id is %q", cluster)
				}
				return ids
			}
			before := look()
			if len(before) != 2 || before["wide"] == before["other"] || before["wide"] == (kafka.TopicID{}) {
				t.Errorf("ids are %v", before)
			}
			if again := look(); !maps.Equal(again, before) {
				t.Errorf("ids are %v, and were %v", again, before)
			}
			anew(t, cl, "wide")
			if after := look(); after["wide"] == before["wide"] || after["other"] != before["other"] {
				t.Errorf("ids are %v, and were %v before a topic was created again", after, before)
			}
			refused.Store(true)
			if cluster, ids, err := kafka.TopicsNow(ctx, cl, "wide", "nowhere"); err == nil && versions != nil || len(ids) > 0 && err != nil {
				t.Errorf("what Kafka refuses to tell is %q, %v, %v", cluster, ids, err)
			}
			if _, err := kafka.LogNow(ctx, cl, [2]string{"wide", "nowhere"}); err == nil || versions != nil && !errors.Is(err, kerr.TopicAuthorizationFailed) {
				t.Errorf("a log that Kafka refuses to tell: %v", err)
			}
			refused.Store(false)
			if l, err := kafka.LogNow(ctx, cl, [2]string{"wide", "other"}); err != nil || l.Cluster != "here" || l.Topics[0] == before["wide"] || l.Topics[1] != before["other"] {
				t.Errorf("the log is %v, %v", l, err)
			}
			if asked := whole.Load() > 0; asked != (versions != nil) {
				t.Errorf("all partitions of topics were asked for %d times", whole.Load())
			}
		})
	}
}

// anew deletes a topic and creates it again.
func anew(t *testing.T, cl *kgo.Client, topic string) {
	t.Helper()
	ctx := kafkatest.Deadline(t)
	drop := kmsg.NewPtrDeleteTopicsRequest()
	of := kmsg.NewDeleteTopicsRequestTopic()
	of.Topic = &topic
	drop.TopicNames, drop.Topics = []string{topic}, append(drop.Topics, of)
	_, err := drop.RequestWith(ctx, cl)
	kafkatest.Must(t, err)
	create := kmsg.NewPtrCreateTopicsRequest()
	as := kmsg.NewCreateTopicsRequestTopic()
	as.Topic, as.NumPartitions, as.ReplicationFactor = topic, 720, 1
	create.Topics = append(create.Topics, as)
	_, err = create.RequestWith(ctx, cl)
	kafkatest.Must(t, err)
}
