package partitioner

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// now is when the records of tests here were logged.
var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// world is a Kafka with a content topic "posts", a feature topic "signals" and
// the shipped schemas, and a client that reads everything that comes out.
type world struct {
	t        *testing.T
	ctx      context.Context
	brokers  kafka.Brokers
	cfg      Config
	cl       *kgo.Client
	schemas  *schemalog.Log
	registry *registry.Registry // fed by the schemas topic
}

func newFake(t *testing.T) *world {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	must(t, err)
	t.Cleanup(c.Close)
	return newWorld(t, kafka.At(c.ListenAddrs()...), "")
}

// newWorld uses the topics behind a prefix.
func newWorld(t *testing.T, brokers kafka.Brokers, prefix string) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute) // others may run beside it
	t.Cleanup(cancel)
	w := &world{t: t, ctx: ctx, brokers: brokers, cfg: Config{
		Brokers:    brokers,
		Content:    []string{prefix + "posts", prefix + "likes"},
		Features:   []string{prefix + "signals"},
		Topics:     kafka.Prefixed(prefix),
		Group:      prefix + "group",
		Instance:   "one",
		SchemaWait: -1,
	}}
	must(t, kafka.EnsureTopics(ctx, brokers, w.cfg.Topics, nil))
	for _, topic := range append(w.cfg.Content, w.cfg.Features...) {
		must(t, kafka.EnsureContentTopic(ctx, brokers, topic, 3, nil))
	}
	var err error
	w.registry, err = registry.New(nil, nil)
	must(t, err)
	w.schemas, err = schemalog.Open(schemalog.Config{Brokers: brokers, Topic: w.cfg.Topics.Schemas, Registry: w.registry})
	must(t, err)
	t.Cleanup(w.schemas.Close)
	w.cl, err = kgo.NewClient(kgo.SeedBrokers(kafkatest.Addrs(brokers)...),
		kgo.ConsumeTopics(w.cfg.Topics.Timeline, w.cfg.Topics.Features, w.cfg.Topics.DeadLetters),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxBytes(32<<20), kgo.FetchMaxPartitionBytes(32<<20),
		kgo.FetchMaxWait(100*time.Millisecond), kgo.MetadataMinAge(100*time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0), kgo.ProducerBatchMaxBytes(2<<20))
	must(t, err)
	t.Cleanup(w.cl.Close)
	return w
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// publish makes schemas known.
func (w *world) publish(all ...*schemas.Schema) {
	w.t.Helper()
	for _, s := range all {
		must(w.t, w.schemas.Publish(w.ctx, s))
	}
}

// produce writes input records, and returns with their offsets filled in.
func (w *world) produce(records ...*kgo.Record) {
	w.t.Helper()
	for _, r := range records {
		if r.Timestamp.IsZero() {
			r.Timestamp = now
		}
	}
	must(w.t, w.cl.ProduceSync(w.ctx, records...).FirstErr())
}

// start runs a partitioner until the test ends or the returned function is
// called, which waits for it.
func (w *world) start(change ...func(*Partitioner)) (p *Partitioner, stop func()) {
	w.t.Helper()
	p, err := New(w.cfg, w.logger(), w.metrics())
	must(w.t, err)
	for _, f := range change {
		f(p)
	}
	ctx, cancel := context.WithCancel(w.ctx)
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("Run: %v", err)
		}
	}
	w.t.Cleanup(stop)
	return p, stop
}

func (w *world) logger() *slog.Logger { return slog.New(slog.NewTextHandler(testWriter{w.t}, nil)) }

func (w *world) metrics() *prometheus.Registry { return prometheus.NewRegistry() }

// kfakeOn starts a Kafka on a port (0 = any), with what it kept in dir.
func kfakeOn(t *testing.T, port int, dir string) *kfake.Cluster {
	t.Helper()
	return kafkatest.StartOn(t, port, dir)
}

// freePort returns a port of loopback that nobody listens on.
func freePort(t *testing.T) (port int, addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, l.Addr().String()
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

// value reads a counter or a gauge.
func value(m prometheus.Metric) float64 {
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		panic(err)
	}
	return out.GetCounter().GetValue() + out.GetGauge().GetValue()
}

// output is what came out, by topic without prefix.
type output map[string][]*kgo.Record

// read returns the next n records of all output topics.
func (w *world) read(n int) output {
	w.t.Helper()
	prefix := strings.TrimSuffix(w.cfg.Topics.Timeline, "timeline")
	out := output{}
	for got := 0; got < n; {
		fetches := w.cl.PollRecords(w.ctx, n-got)
		for _, e := range fetches.Errors() {
			w.t.Fatalf("after %d of %d records: %s/%d: %v", got, n, e.Topic, e.Partition, e.Err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			topic := strings.TrimPrefix(r.Topic, prefix)
			out[topic] = append(out[topic], r)
			got++
		})
	}
	return out
}

// activity encodes a line of the schema activity, more are further fields.
func activity(t *testing.T, id, actor string, more string) []byte {
	t.Helper()
	return encode(t, schemas.Activity(), fmt.Sprintf(`{"id":%q,"actor":%q,"verb":"post","created_at":"2026-03-01T11:00:00Z"%s}`, id, actor, more))
}

func encode(t *testing.T, s *schemas.Schema, line string) []byte {
	t.Helper()
	body, err := s.EncodeJSON([]byte(line))
	must(t, err)
	return schemas.Frame(s.Fingerprint(), body)
}

func header(r *kgo.Record, key string) string {
	value := ""
	for _, h := range r.Headers {
		if h.Key == key {
			value = string(h.Value)
		}
	}
	return value
}

func source(r *kgo.Record) string { return fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset) }
