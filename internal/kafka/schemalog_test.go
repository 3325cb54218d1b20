package kafka

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/schemas"
)

func openLog(t *testing.T, k cluster) (*SchemaLog, *schemas.Registry) {
	t.Helper()
	registry, err := schemas.NewRegistry(nil, nil)
	must(t, err)
	l, err := OpenSchemaLog(SchemaLogConfig{Brokers: k.brokers, Topic: k.topics.Schemas, Registry: registry})
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

	p, err := NewProducer(k.brokers, "", nil)
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
	must(t, late.Refresh(ctx))
	for name, knows := range map[string]*schemas.Registry{"early": earlyKnows, "late": lateKnows} {
		all := knows.Snapshot().All()
		if len(all) != 2 || all[0].Name() != schemas.Activity().Name() || all[1].Name() != note.Name() {
			t.Errorf("%s knows %d schemas, want Activity, then Note", name, len(all))
		}
	}
	if next, _ := late.position(); next != 6 {
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
	l, _ := openLog(t, k)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Refresh(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	l.Close()
	if err := l.Refresh(deadline(t)); !errors.Is(err, ErrClosed) {
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

// until waits for what moves with a schema log.
func until(t *testing.T, l *SchemaLog, what string, ok func() bool) {
	t.Helper()
	ctx := deadline(t)
	for {
		moved := l.Moved()
		if ok() {
			return
		}
		select {
		case <-moved:
		case <-time.After(firstPause): // not everything moves the log
		case <-ctx.Done():
			t.Fatalf("never %s: %v", what, l.Fault())
		}
	}
}

// A schema log opens without Kafka, tells what it waits for, and learns what
// is in the topic once both are there.
func TestSchemaLogWaitsForKafka(t *testing.T) {
	ctx := deadline(t)
	port, addr := freePort(t)
	k := cluster{brokers: At(addr), topics: Prefixed("")}
	l, registry := openLog(t, k)
	if l.Read() || l.Fault() == nil {
		t.Fatalf("without Kafka: Read %v, Fault %v", l.Read(), l.Fault())
	}
	dir := t.TempDir()
	broker := startOn(t, port, dir)
	until(t, l, "told of the missing topic", func() bool { return errors.Is(l.Fault(), kerr.UnknownTopicOrPartition) })
	must(t, EnsureTopics(ctx, k.brokers, k.topics, nil))
	must(t, l.Publish(ctx, schemas.Note()))
	until(t, l, "read to its end", func() bool { return l.Read() && l.Fault() == nil })

	broker.Close()
	until(t, l, "told of Kafka's absence", func() bool { return l.Fault() != nil })
	if !l.Read() {
		t.Error("what was read once is forgotten")
	}
	startOn(t, port, dir)
	other, _ := openLog(t, k)
	must(t, other.Publish(ctx, schemas.Activity()))
	must(t, l.Refresh(ctx))
	if len(registry.Snapshot().All()) != 2 {
		t.Errorf("%d schemas known, want both", len(registry.Snapshot().All()))
	}
	until(t, l, "well again", func() bool { return l.Fault() == nil })
}

func TestSchemaLogFollowsATopicCreatedAgain(t *testing.T) { testSchemasAgain(t, fake(t)) }

// testSchemasAgain: the topic is deleted and created again. It has less than
// before, and what comes now is learned.
func testSchemasAgain(t *testing.T, k cluster) {
	ctx := deadline(t)
	l, registry := openLog(t, k)
	must(t, l.Publish(ctx, schemas.Note()))
	must(t, l.Publish(ctx, schemas.Activity()))
	_, err := admin(t, k.brokers).DeleteTopics(ctx, k.topics.Schemas)
	must(t, err)
	must(t, EnsureTopics(ctx, k.brokers, k.topics, nil))
	other, _ := openLog(t, k)
	must(t, other.Publish(ctx, schemas.Features()))
	must(t, l.Refresh(ctx))
	if registry.Snapshot().ByFingerprint(schemas.Features().Fingerprint()) == nil {
		t.Error("the schema in the new topic is not known")
	}
	if l.Has(schemas.Note().Fingerprint()) {
		t.Error("the new topic is said to have the schemas of the old")
	}
	must(t, l.Publish(ctx, schemas.Note()))
	must(t, other.Refresh(ctx))
	if !other.Has(schemas.Note().Fingerprint()) {
		t.Error("a schema of the old topic was not published again")
	}
}

// fullStore refuses to keep anything while it is full.
type fullStore struct{ full atomic.Bool }

var errFull = errors.New("no space left on device")

func (s *fullStore) PutSchema(schemas.StoredSchema) error {
	if s.full.Load() {
		return errFull
	}
	return nil
}
func (s *fullStore) Schemas() ([]schemas.StoredSchema, error) { return nil, nil }

// A schema that comes while the disk is full is learned when there is space
// again, without a restart. What is behind it waits, so that the order stays.
func TestSchemaLogRetriesWhatCannotBeKept(t *testing.T) {
	ctx, k := deadline(t), fake(t)
	store := &fullStore{}
	store.full.Store(true)
	registry, err := schemas.NewRegistry(store, nil)
	must(t, err)
	other, _ := openLog(t, k)
	must(t, other.Publish(ctx, schemas.Note()))
	must(t, other.Publish(ctx, schemas.Activity()))
	l, err := OpenSchemaLog(SchemaLogConfig{Brokers: k.brokers, Topic: k.topics.Schemas, Registry: registry})
	must(t, err)
	defer l.Close()
	until(t, l, "told of the full disk", func() bool { return errors.Is(l.Fault(), errFull) })
	if l.Read() || l.Has(schemas.Note().Fingerprint()) || !errors.Is(l.Held(), errFull) {
		t.Errorf("it is said to be read, or to be held by %v", l.Held())
	}
	store.full.Store(false)
	must(t, l.Refresh(ctx))
	all := registry.Snapshot().All()
	if len(all) != 2 || all[0].Name() != schemas.Note().Name() {
		t.Errorf("%d schemas known, want Note, then Activity", len(all))
	}
	until(t, l, "well again", func() bool { return l.Read() && l.Fault() == nil && l.Held() == nil })
}

// What an operator gave up is given up for every reader and for good; what is
// known is not.
func TestRefuseSchema(t *testing.T) { testRefuse(t, fake(t)) }

func testRefuse(t *testing.T, k cluster) {
	ctx := deadline(t)
	early, _ := openLog(t, k)
	note, activity := schemas.Note(), schemas.Activity()
	must(t, early.Publish(ctx, note))
	var fault *millrace.Error
	if err := RefuseSchema(ctx, k.brokers, k.topics.Schemas, note.Fingerprint(), "somebody"); !errors.As(err, &fault) || fault.Field != "fingerprint" {
		t.Errorf("a known schema: %v", err)
	}
	must(t, RefuseSchema(ctx, k.brokers, k.topics.Schemas, activity.Fingerprint(), "somebody"))
	late, registry := openLog(t, k)
	for _, l := range []*SchemaLog{early, late} {
		must(t, l.Refresh(ctx))
		if w := l.Word(activity.Fingerprint()); w.By != "somebody" || w.At.IsZero() {
			t.Errorf("refused by %+v", w)
		}
		if !l.Refused(activity.Fingerprint()) || l.Refused(note.Fingerprint()) || len(l.AllRefused()) != 1 {
			t.Errorf("refused: %v", l.AllRefused())
		}
	}
	var refused *schemas.RefusedError
	if err := early.Publish(ctx, activity); !errors.As(err, &refused) {
		t.Errorf("published what is given up: %v", err)
	}
	must(t, put(ctx, k.brokers, k.topics.Schemas, activity.Fingerprint().String(), []byte(activity.JSON())))
	must(t, late.Refresh(ctx))
	if registry.Snapshot().ByFingerprint(activity.Fingerprint()) != nil {
		t.Error("a schema that was given up came back")
	}
}

// A schema that is retired is so for every reader of the topic, whenever it
// began; the last of a name is not.
func TestRetireSchema(t *testing.T) {
	k := fake(t)
	ctx := deadline(t)
	early, earlyKnows := openLog(t, k)
	note := schemas.Note()
	next, err := schemas.Parse([]byte(strings.Replace(note.JSON(), `"fields": [`, `"fields": [{"name": "more", "type": "long", "default": 0},`, 1)))
	must(t, err)
	must(t, early.Publish(ctx, note))
	var fault *millrace.Error
	for _, fp := range []millrace.Fingerprint{note.Fingerprint(), next.Fingerprint()} { // the last, and an unknown one
		if err := RetireSchema(ctx, k.brokers, k.topics.Schemas, fp, "somebody"); !errors.As(err, &fault) || fault.Field != "fingerprint" {
			t.Errorf("%s: %v", fp, err)
		}
	}
	must(t, early.Publish(ctx, next))
	must(t, RetireSchema(ctx, k.brokers, k.topics.Schemas, next.Fingerprint(), "somebody"))
	late, lateKnows := openLog(t, k)
	for name, l := range map[*schemas.Registry]*SchemaLog{earlyKnows: early, lateKnows: late} {
		must(t, l.Refresh(ctx))
		known := name.Snapshot()
		if !known.Retired(next.Fingerprint()) || known.Retired(note.Fingerprint()) || known.Family(note.Name()).Layout().Index("more") >= 0 {
			t.Error("it is not retired")
		}
		if w := l.Word(next.Fingerprint()); w.By != "somebody" || w.At.IsZero() {
			t.Errorf("retired by %+v", w)
		}
	}
}

func TestParseFingerprint(t *testing.T) {
	fp := schemas.Note().Fingerprint()
	if got, err := ParseFingerprint(fp.String()); err != nil || got != fp {
		t.Errorf("%s: %v, %v", fp, got, err)
	}
	for _, s := range []string{"", "12", "zz00000000000000", fp.String() + "0", "+" + fp.String()[1:]} {
		if _, err := ParseFingerprint(s); err == nil || !strings.Contains(err.Error(), "16 hexadecimal") {
			t.Errorf("%q: %v", s, err)
		}
	}
}
