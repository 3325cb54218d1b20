//go:build linux

package cli

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/schemas"
)

// TestFaultAlertsOfIngest does what TestFaultAlerts does by records, topics and partitioners
// that are not as they should be.
func TestFaultAlertsOfIngest(t *testing.T) {
	w := startWatched(t, watchedConfig{nodes: 2, coordinator: "grace: 1h\n"})
	late, err := schemas.Parse([]byte(`{"type":"record","name":"Late","fields":[
		{"name":"id","type":"string","millrace":"id"},{"name":"who","type":"string","millrace":"entity"},
		{"name":"kind","type":"string","millrace":"type"},{"name":"at","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	topics := kafka.Prefixed(w.prefix)
	w.breaks(
		alertFault{
			"the schema of a record does not come", fires{"MillraceSchemaAwaited"}, []string{"MillraceNodeBehind", "MillraceAnswersOld"},
			func() {
				body, err := late.EncodeJSON([]byte(`{"id":"late","who":"member:1","kind":"post","at":1700000000000}`))
				producer, broken := kafka.NewProducer(kafka.At(w.kafka), "", nil)
				if err := errors.Join(err, broken); err != nil {
					t.Fatal(err)
				}
				defer producer.Close()
				producer.Produce(w.ctx, kafka.ToStream(topics.Timeline, "member:1", schemas.Frame(late.Fingerprint(), body), kafka.Source{Topic: w.prefix + "activity", Offset: 1 << 40}))
				if err := producer.Flush(w.ctx); err != nil {
					t.Fatal(err)
				}
			}, func() { w.inKafka(fmt.Sprintf("schema refuse %s --apply --yes", late.Fingerprint())) },
		},
		alertFault{
			"a producer writes nothing but what is refused", fires{"MillraceIngestPaused"}, []string{"MillraceDeadLetters", "MillraceIngestWaits", "MillraceAnswersOld"},
			func() {
				w.mute = true
				var lines [][]byte
				for i := range 12_000 {
					lines = append(lines, fmt.Appendf(nil, `{"id":"r%d","actor":"member:1","verb":"post","created_at":%q}`, i, millrace.TimeOf(time.Now().Add(2*schemas.DefaultFuture))))
				}
				publish(w.ctx, t, w.kafka, w.prefix, lines)
			}, func() { w.mute = false },
		},
		alertFault{
			"Kafka takes nothing into a topic", fires{"MillraceKafkaFails"}, []string{"MillraceIngestWaits", "MillraceNodeBehind", "MillraceAnswersOld"},
			func() { w.most(topics.Timeline, "1") }, func() { w.most(topics.Timeline, strconv.Itoa(kafka.MaxTimelineBatchBytes)) },
		},
		alertFault{
			"records have a type each", fires{"MillraceTooManyTypes"}, nil,
			func() {
				var lines [][]byte
				for i := range 250 {
					lines = append(lines, fmt.Appendf(nil, `{"id":"t%d","actor":"member:1","verb":"made-up-%d","created_at":%q}`, i, i, millrace.TimeOf(time.Now())))
				}
				publish(w.ctx, t, w.kafka, w.prefix, lines)
			}, nil, // for good
		},
		alertFault{
			"the topic timeline is another", fires{"MillraceIngestOtherLog"},
			[]string{"MillraceTooManyTypes", "MillraceIngestWaits", "MillraceReplicasQuarantined", "MillraceNodeBehind", "MillraceAnswersOld", "MillraceAnswersPartial", "MillraceRequestsFail"},
			func() {
				_, err := kafkatest.Admin(t, kafka.At(w.kafka)).DeleteTopic(w.ctx, topics.Timeline)
				if err := errors.Join(err, kafka.EnsureTopics(w.ctx, kafka.At(w.kafka), topics, nil)); err != nil {
					t.Fatal(err)
				}
			}, nil,
		},
	)
}

// most bounds the bytes of a batch that Kafka takes into a topic.
func (w *watched) most(topic, bytes string) {
	w.t.Helper()
	got, err := kafkatest.Admin(w.t, kafka.At(w.kafka)).AlterTopicConfigs(w.ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &bytes}}, topic)
	for _, r := range got {
		err = errors.Join(err, r.Err)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}
