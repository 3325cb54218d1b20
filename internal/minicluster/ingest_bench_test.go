package minicluster

import (
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/streams"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
)

// BenchmarkIngestFromLog measures how fast one node brings the timeline topic
// into its store, beside a consumer that only counts: a million records of
// about 200 bytes, Zipf over 100,000 timelines. MILLRACE_KAFKA names a real
// Kafka; otherwise the one in this process feeds both.
func BenchmarkIngestFromLog(b *testing.B) {
	records := 1_000_000
	if testing.Short() {
		records = 20_000
	}
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
	defer cancel()
	addr := os.Getenv("MILLRACE_KAFKA")
	if addr == "" {
		k, err := StartKafka(b.TempDir(), "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		defer k.Close()
		addr = k.Addr()
	}
	prefix := fmt.Sprintf("ingest-%d-", rand.Uint32())
	topics := kafka.Prefixed(prefix)
	if err := kafka.EnsureTopics(ctx, kafka.At(addr), topics, nil); err != nil {
		b.Fatal(err)
	}
	fill(ctx, b, addr, topics.Timeline, records, short)

	for b.Loop() {
		bare := countAll(ctx, b, addr, topics, records)
		node := ingestAll(ctx, b, addr, prefix)
		b.ReportMetric(float64(records)/node.Seconds(), "records/s")
		figure.Print("ingest_vs_bare_consumer", bare.Seconds()/node.Seconds(), "x")
	}
}

// fill writes records to the timeline topic as the partitioner would.
func fill(ctx context.Context, b *testing.B, addr, topic string, records int, text func(i int) string) {
	b.Helper()
	p, err := kafka.NewProducer(kafka.At(addr), "", nil)
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	s := schemas.Activity()
	r := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(r, 1.1, 10, 99_999)
	for i := range records {
		member := fmt.Sprintf("member:%d", zipf.Uint64())
		body, err := s.EncodeJSON(fmt.Appendf(nil, `{"id":"post:%d","actor":%q,"verb":"post","created_at":%d,"language":"en","text":%q}`,
			i, member, 1_600_000_000_000+int64(i), text(i)))
		if err != nil {
			b.Fatal(err)
		}
		p.Produce(ctx, kafka.ToStream(topic, millrace.Entity(member), schemas.Frame(s.Fingerprint(), body), kafka.Source{Topic: "bench", Offset: millrace.Offset(i)}))
	}
	if err := p.Flush(ctx); err != nil {
		b.Fatal(err)
	}
}

// short is a text that can be pressed to next to nothing.
func short(i int) string { return fmt.Sprintf("%0120d", i) }

// noise is a text of a kilobyte that can be pressed to half.
func noise(i int) string {
	b := make([]byte, 512)
	_, _ = rand.NewChaCha8([32]byte(fmt.Appendf(nil, "%032d", i))).Read(b)
	return hex.EncodeToString(b)
}

// countAll reads the whole timeline topic and drops it.
func countAll(ctx context.Context, b *testing.B, addr string, topics kafka.Topics, records int) time.Duration {
	b.Helper()
	c, err := streams.NewConsumer(streams.Config{Brokers: kafka.At(addr), Topics: topics})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	began := time.Now()
	from := make(map[kafka.TopicPartition]kafka.Position)
	for p := range millrace.Partition(partition.Count) {
		from[kafka.TopicPartition{Stream: kafka.Timeline, Partition: p}] = kafka.Position{Epoch: -1}
	}
	c.Assign(from)
	for n := 0; n < records; {
		fetched, err := c.Poll(ctx, 20_000)
		if err != nil {
			b.Fatal(err)
		}
		for _, f := range fetched {
			n += len(f.Records)
		}
	}
	return time.Since(began)
}

// ingestAll starts a node with an empty store and waits until it serves
// everything.
func ingestAll(ctx context.Context, b *testing.B, addr, prefix string) time.Duration {
	b.Helper()
	began := time.Now()
	c, err := Start(ctx, Config{Dir: b.TempDir(), Nodes: 1, Kafka: addr, TopicPrefix: prefix})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Produce(ctx, c.ContentTopic(), schemas.Activity(), func(func([]byte, error) bool) {}); err != nil {
		b.Fatal(err)
	}
	if err := c.WaitReady(ctx); err != nil {
		b.Fatal(err)
	}
	return time.Since(began)
}
