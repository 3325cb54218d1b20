package minicluster

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
)

// TestHostileRecords puts records that nobody should have written onto the
// timeline topic itself, past the partitioner. Every node refuses each byte
// for byte with its reason, and goes on.
func TestHostileRecords(t *testing.T) { testHostile(t, "") }

// TestHostileRecordsRealKafka is the same on a real Kafka.
func TestHostileRecordsRealKafka(t *testing.T) {
	addr := os.Getenv("MILLRACE_KAFKA")
	if addr == "" {
		t.Skip("no real Kafka: run make kafka and set MILLRACE_KAFKA to its address")
	}
	t.Parallel()
	testHostile(t, addr)
}

// hostile is a record that is refused.
type hostile struct {
	reason string
	record kafka.Outgoing
}

func testHostile(t *testing.T, kafkaAddr string) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	c, err := Start(ctx, Config{
		Dir: t.TempDir(), Nodes: 2, Kafka: kafkaAddr, TopicPrefix: fmt.Sprintf("hostile-%d-", rand.Uint32()),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := c.Produce(ctx, c.ContentTopic(), schemas.Activity(), one(`{"id":"post:1","actor":"member:1","verb":"post","created_at":"2020-01-01T00:00:00Z"}`)); err != nil {
		t.Fatal(err)
	}
	all := hostiles(t, c.topics.Timeline)
	p, err := kafka.NewProducer(kafka.At(c.Kafka), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, h := range all {
		p.Produce(ctx, h.record)
	}
	if err := p.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	// A schema that may come holds its partition back until somebody says that
	// it will not.
	if err := schemalog.Refuse(ctx, kafka.At(c.Kafka), c.topics.Schemas, 1, "somebody"); err != nil {
		t.Fatal(err)
	}
	// What follows them must still arrive.
	if _, err := c.Produce(ctx, c.ContentTopic(), schemas.Activity(), one(`{"id":"post:2","actor":"member:1","verb":"post","created_at":"2020-01-02T00:00:00Z"}`)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.WaitReady(ctx), c.WaitIndexed(ctx)); err != nil {
		t.Fatal(err)
	}

	cl, err := client.Dial(c.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	resp, err := cl.GetFeed(ctx, &feedv1.GetFeedRequest{Feed: "recent", Viewer: &feedv1.Viewer{Id: "me"}, Entities: []string{"member:1"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Items) != 2 || len(resp.Coverage.Missing) > 0 || resp.Items[0].Id != "post:2" || resp.Items[1].Id != "post:1" {
		t.Errorf("after the hostile records: %v", resp)
	}
	checkDeadLetters(ctx, t, c, all)
}

func one(line string) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) { yield([]byte(line), nil) }
}

// hostiles are the inputs of the reliability plan that can reach a node.
func hostiles(t *testing.T, topic string) []hostile {
	t.Helper()
	activity := schemas.Activity()
	encode := func(line string) []byte {
		body, err := activity.EncodeJSON([]byte(line))
		if err != nil {
			t.Fatal(err)
		}
		return schemas.Frame(activity.Fingerprint(), body)
	}
	good := encode(`{"id":"post:3","actor":"member:1","verb":"post","created_at":"2020-01-01T00:00:00Z","text":"long enough to be cut"}`)
	source := kafka.Source{Topic: "nowhere"}
	// at is the record with a time that no encoder lets through.
	at := func(ms int64) []byte {
		const day = 1577836800000 // the time of good
		return bytes.Replace(good, binary.AppendVarint(nil, day), binary.AppendVarint(nil, ms), 1)
	}
	make := func(reason string, value []byte, change func(*kafka.Outgoing)) hostile {
		o := kafka.ToStream(topic, "member:1", value, source)
		if change != nil {
			change(&o)
		}
		return hostile{reason, o}
	}
	flipped := bytes.Clone(good)
	flipped[len(flipped)-3] ^= 0x10
	badText := bytes.Replace(good, []byte("enough"), []byte("en\xffugh"), 1)
	return []hostile{
		make("empty-value", []byte{}, nil),
		make("truncated", good[:len(good)-4], nil),
		make("truncated", good[:10], nil),
		make("truncated", good[:9], nil),
		make("bad-framing", []byte("hello, world"), nil),
		make("trailing-bytes", append(bytes.Clone(good), 0), nil),
		make("invalid-utf8", badText, nil),
		make("bad-checksum", good, func(o *kafka.Outgoing) { o.Value = flipped }),
		make("bad-checksum", good, func(o *kafka.Outgoing) { o.Headers = nil }),
		make("bad-framing", append([]byte{0, 0, 0, 0, 7}, good[10:]...), nil), // of a registry
		make("unknown-schema", schemas.Frame(1, good[10:]), nil),
		make("unknown-schema", schemas.Frame(1, good[10:]), nil),
		make("key-mismatch", good, func(o *kafka.Outgoing) {
			o.Key = []byte("member:2")
			o.Partition = int32(partition.Of("member:2"))
		}),
		make("wrong-partition", good, func(o *kafka.Outgoing) { o.Partition = (o.Partition + 1) % partition.Count }),
		make("time-out-of-range", at(-1), nil),
		make("time-out-of-range", at(int64(millrace.MaxTime)), nil),
		make("missing-role", bytes.Replace(good, []byte("\x0cpost:3"), []byte{0}, 1), nil),
	}
}

// checkDeadLetters wants each record once from each of the two nodes.
func checkDeadLetters(ctx context.Context, t *testing.T, c *Cluster, all []hostile) {
	t.Helper()
	type letter struct{ reason, key, value string }
	want := map[letter]int{}
	for _, h := range all {
		want[letter{h.reason, string(h.record.Key), string(h.record.Value)}] += 2
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Kafka), kgo.ConsumeTopics(c.topics.DeadLetters), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for n := 0; n < 2*len(all); {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("after %d dead letters: %v; missing %v", n, err, want)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			n++
			l := letter{key: string(r.Key), value: string(r.Value)}
			for _, h := range r.Headers {
				if h.Key == kafka.HeaderReason {
					l.reason = string(h.Value)
				}
			}
			if want[l]--; want[l] < 0 {
				t.Errorf("unexpected dead letter: %+q", l)
			}
		})
	}
	for l, n := range want {
		if n > 0 {
			t.Errorf("%d dead letters missing: %+q", n, l)
		}
	}
}
