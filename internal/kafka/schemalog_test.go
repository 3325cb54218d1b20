package kafka

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
)

func openLog(t *testing.T, k cluster) (*SchemaLog, *schemas.Registry) {
	t.Helper()
	registry, err := schemas.NewRegistry(nil, nil)
	must(t, err)
	l, err := OpenSchemaLog(deadline(t), SchemaLogConfig{Brokers: k.brokers, Topic: k.topics.Schemas, Registry: registry})
	must(t, err)
	t.Cleanup(l.Close)
	return l, registry
}

// testSchemaLog: what one publishes, others know, now and later; what is not a
// schema harms nobody.
func testSchemaLog(t *testing.T, k cluster) {
	ctx := deadline(t)
	early, earlyKnows := openLog(t, k)
	must(t, early.Refresh(ctx)) // of an empty topic

	p, err := NewProducer(k.brokers, nil)
	must(t, err)
	defer p.Close()
	note := schemas.Note()
	for key, value := range map[string]string{
		"0000000000000000":          note.JSON(), // the key of another
		"not a schema":              "{",
		note.Fingerprint().String(): `{"type":"record","name":"millrace.Note","fields":[]}`,
	} {
		p.Produce(ctx, Outgoing{Topic: k.topics.Schemas, Key: []byte(key), Value: []byte(value)})
	}
	p.Produce(ctx, Outgoing{Topic: k.topics.Schemas, Key: []byte("0123456789abcdef")}) // compaction's own
	must(t, p.Flush(ctx))

	publisher, _ := openLog(t, k)
	must(t, publisher.Publish(ctx, schemas.Activity()))
	must(t, publisher.Publish(ctx, note))
	must(t, publisher.Refresh(ctx))
	must(t, publisher.Publish(ctx, note)) // nothing happens
	must(t, early.Refresh(ctx))
	late, lateKnows := openLog(t, k)
	for name, knows := range map[string]*schemas.Registry{"early": earlyKnows, "late": lateKnows} {
		all := knows.Snapshot().All()
		if len(all) != 2 || all[0].Name() != schemas.Activity().Name() || all[1].Name() != note.Name() {
			t.Errorf("%s knows %d schemas, want Activity, then Note", name, len(all))
		}
	}
	if next, _, _ := late.position(); next != 6 {
		t.Errorf("the topic has %d records, want 4 of no use and 2 schemas", next)
	}
	moved := late.Moved()
	must(t, publisher.Publish(ctx, schemas.Features()))
	select {
	case <-moved:
	case <-ctx.Done():
		t.Error("nobody told of a new schema")
	}
}

func TestSchemaLogTellsWhatIsWrong(t *testing.T) {
	k := fake(t)
	registry, err := schemas.NewRegistry(nil, nil)
	must(t, err)
	if _, err := OpenSchemaLog(deadline(t), SchemaLogConfig{Brokers: k.brokers, Topic: "nowhere", Registry: registry}); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("a topic that is not there: %v", err)
	}
	l, _ := openLog(t, k)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Refresh(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	l.Close()
	if _, _, err := l.position(); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// A batch too large to open stops its partition, and only that one.
func TestDecompressionBombStopsItsPartition(t *testing.T) {
	ctx, k := deadline(t), fake(t)
	bomber, err := newClient(k.brokers, nil, kgo.MaxDecompressBatchBytes(1<<30),
		kgo.ProducerBatchMaxBytes(maxBatchBytes+1<<20), kgo.ProducerBatchCompression(kgo.ZstdCompression()))
	must(t, err)
	defer bomber.Close()
	bomb := &kgo.Record{Topic: k.content, Partition: 0, Value: make([]byte, maxBatchBytes+1)}
	must(t, bomber.ProduceSync(ctx, bomb).FirstErr())
	must(t, bomber.ProduceSync(ctx, &kgo.Record{Topic: k.content, Partition: 1, Value: []byte("healthy")}).FirstErr())
	s, err := OpenSession(ctx, SessionConfig{Brokers: k.brokers, Group: "g", Instance: "one", Topics: []string{k.content}, DeadLetters: k.topics.DeadLetters})
	must(t, err)
	defer s.Close()
	stopped, healthy := false, false
	for !stopped || !healthy {
		in, faults, err := s.Poll(ctx, 10)
		must(t, err)
		for _, f := range faults {
			stopped = stopped || errors.Is(f, ErrLostPosition) && strings.Contains(f.Error(), k.content+"/0")
		}
		for _, r := range in {
			if r.Partition == 0 {
				t.Fatalf("the bomb went off: %d bytes", len(r.Value))
			}
			healthy = true
		}
	}
}
