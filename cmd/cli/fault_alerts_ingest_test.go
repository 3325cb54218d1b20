//go:build linux

package cli

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/partition"
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
	const slipped = "member:399" // who has records, writes none, and is not asked for
	topics, began := kafka.Prefixed(w.prefix), time.Now()
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
			"a replica has a record that the other lacks and the log begins later", fires{"MillraceReplicasDiffer"}, nil,
			func() {
				w.trim(func(p int32) bool { return p == int32(partition.Of(slipped)) })
				w.slip(0, slipped, began)
			}, func() { w.slip(1, slipped, began) },
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

// trim has the log of partitions begin one entry later than it began.
func (w *watched) trim(of func(p int32) bool) {
	w.t.Helper()
	log, topic := kafkatest.Admin(w.t, kafka.At(w.kafka)), w.prefix+"timeline"
	ends, err := log.ListEndOffsets(w.ctx, topic)
	to := kadm.Offsets{}
	ends.Each(func(end kadm.ListedOffset) {
		if of(end.Partition) && end.Offset > 0 {
			to.AddOffset(topic, end.Partition, 1, -1)
		}
	})
	got, bad := log.DeleteRecords(w.ctx, to)
	if err := errors.Join(err, bad, got.Error()); err != nil {
		w.t.Fatal(err)
	}
}

// slip puts a record into a replica, as a bug might, while its node is stopped.
func (w *watched) slip(node int, of millrace.Entity, at time.Time) {
	w.t.Helper()
	w.nodes[node].end()
	s, err := store.Open(filepath.Join(w.data[node], "store"), store.Options{})
	if err != nil {
		w.t.Fatal(err)
	}
	var b store.Batch
	b.Put(partition.Of(of), millrace.Timeline{Entity: of, Type: "post"}, millrace.Record{ID: "slipped", Time: millrace.TimeOf(at)})
	_, err = s.Apply(&b, nil)
	if err := errors.Join(err, s.Flush(), s.Close()); err != nil {
		w.t.Fatal(err)
	}
	w.nodes[node].restart()
}
