package schemalog

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/follow"
	"github.com/millrace/millrace/internal/kafka/groups"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/kafka/patience"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// TestOnRealKafka runs what depends on the broker against a real one.
func TestOnRealKafka(t *testing.T) {
	kafkatest.OnReal(t, map[string]func(*testing.T, kafkatest.Cluster){
		"schemas": testSchemaLog,
		"again":   testSchemasAgain,
		"refuse":  testRefuse,
		"hides":   testHides,
		"over":    testPassesOver,
		"entry":   testUnparsable,
	})
}

func openLog(t *testing.T, k kafkatest.Cluster) (*Log, *registry.Registry) {
	t.Helper()
	registry, err := registry.New(nil, nil)
	kafkatest.Must(t, err)
	l, err := Open(Config{Brokers: k.Brokers, Topic: k.Topics.Schemas, Registry: registry})
	kafkatest.Must(t, err)
	t.Cleanup(l.Close)
	return l, registry
}

// testSchemaLog: what one publishes, others know, now and later; what is not a
// schema harms nobody.
func testSchemaLog(t *testing.T, k kafkatest.Cluster) {
	ctx := kafkatest.Deadline(t)
	early, earlyKnows := openLog(t, k)
	kafkatest.Must(t, early.Refresh(ctx)) // of an empty topic

	p, err := kafka.NewProducer(k.Brokers, "", nil)
	kafkatest.Must(t, err)
	defer p.Close()
	note := schemas.Note()
	for key, value := range map[string]string{
		"0000000000000000":          note.JSON(), // the key of another
		"not a schema":              "{",
		note.Fingerprint().String(): `{"type":"record","name":"millrace.Note","fields":[]}`,
	} {
		p.Produce(ctx, kafka.Outgoing{Topic: k.Topics.Schemas, Key: []byte(key), Value: []byte(value)})
	}
	p.Produce(ctx, kafka.Outgoing{Topic: k.Topics.Schemas, Key: []byte("0123456789abcdef")}) // compaction's own
	kafkatest.Must(t, p.Flush(ctx))

	publisher, _ := openLog(t, k)
	kafkatest.Must(t, publisher.Publish(ctx, schemas.Activity()))
	kafkatest.Must(t, publisher.Publish(ctx, note))
	kafkatest.Must(t, publisher.Refresh(ctx))
	kafkatest.Must(t, publisher.Publish(ctx, note)) // nothing happens
	kafkatest.Must(t, early.Refresh(ctx))
	late, lateKnows := openLog(t, k)
	kafkatest.Must(t, late.Refresh(ctx))
	for name, knows := range map[string]*registry.Registry{"early": earlyKnows, "late": lateKnows} {
		all := knows.Snapshot().All()
		if len(all) != 2 || all[0].Name() != schemas.Activity().Name() || all[1].Name() != note.Name() {
			t.Errorf("%s knows %d schemas, want Activity, then Note", name, len(all))
		}
	}
	look, err := kafka.NewInspector(k.Brokers)
	kafkatest.Must(t, err)
	defer look.Close()
	if ends, err := look.Ends(ctx, k.Topics.Schemas); err != nil || ends[0] != 6 {
		t.Errorf("the topic has %d records, want 4 of no use and 2 schemas: %v", ends, err)
	}
	moved := late.Moved()
	kafkatest.Must(t, publisher.Publish(ctx, schemas.Features()))
	select {
	case <-moved:
	case <-ctx.Done():
		t.Error("nobody told of a new schema")
	}
}

func TestSchemaLogTellsWhatIsWrong(t *testing.T) {
	k := kafkatest.Fake(t)
	l, _ := openLog(t, k)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Refresh(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	l.Close()
	if err := l.Refresh(kafkatest.Deadline(t)); !errors.Is(err, kafka.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// A batch too large to open stops its partition, and only that one.
func TestDecompressionBombStopsItsPartition(t *testing.T) {
	ctx, k := kafkatest.Deadline(t), kafkatest.Fake(t)
	kafkatest.Bomb(t, k, k.Content, 0)
	kafkatest.Write(t, k, k.Content, 1, "healthy")
	s, err := groups.OpenSession(ctx, groups.SessionConfig{Brokers: k.Brokers, Group: "g", Instance: "one", Topics: []string{k.Content}, DeadLetters: k.Topics.DeadLetters})
	kafkatest.Must(t, err)
	defer s.Close()
	stopped, healthy := false, false
	for !stopped || !healthy {
		in, faults, err := s.Poll(ctx, 10)
		kafkatest.Must(t, err)
		for _, f := range faults {
			stopped = stopped || errors.Is(f, kafka.ErrLostPosition) && strings.Contains(f.Error(), k.Content+"/0")
		}
		for _, r := range in {
			if r.Partition == 0 {
				t.Fatalf("the bomb went off: %d bytes", len(r.Value))
			}
			healthy = true
		}
	}
}

// One in the topic of schemas is passed over: what is behind it is learned, by who has
// read so far and by who begins.
func TestSchemaLogPassesOverADecompressionBomb(t *testing.T) { testPassesOver(t, kafkatest.Fake(t)) }

func testPassesOver(t *testing.T, k kafkatest.Cluster) {
	ctx := kafkatest.Deadline(t)
	l, _ := openLog(t, k)
	kafkatest.Must(t, l.Publish(ctx, schemas.Note()))
	kafkatest.Bomb(t, k, k.Topics.Schemas, 0)
	kafkatest.Must(t, l.Publish(ctx, schemas.Activity()))
	late, registry := openLog(t, k)
	kafkatest.Must(t, late.Refresh(ctx))
	if n := len(registry.Snapshot().All()); n != 2 {
		t.Errorf("%d schemas are known, want both", n)
	}
}

// So is a batch with an entry that does not parse, which is told: at the end of the topic,
// where franz-go stands before it, and with another behind it, where franz-go goes over it.
func TestSchemaLogPassesOverUnparsableEntries(t *testing.T) { testUnparsable(t, kafkatest.Fake(t)) }

func testUnparsable(t *testing.T, k kafkatest.Cluster) {
	ctx := kafkatest.Deadline(t)
	l, _ := openLog(t, k)
	kafkatest.Must(t, l.Publish(ctx, schemas.Note()))
	kafkatest.Overlong(t, k, k.Topics.Schemas, 0, 0, false, []byte("bad"), []byte("lost"))
	kafkatest.Must(t, l.Refresh(ctx))
	kafkatest.Must(t, l.Publish(ctx, schemas.Activity()))
	known, err := registry.New(nil, nil)
	kafkatest.Must(t, err)
	told := make(saying, 9)
	late, err := Open(Config{Brokers: k.Brokers, Topic: k.Topics.Schemas, Registry: known, Log: slog.New(slog.NewTextHandler(told, nil))})
	kafkatest.Must(t, err)
	defer late.Close()
	kafkatest.Must(t, late.Refresh(ctx))
	if n := len(known.Snapshot().All()); n != 2 {
		t.Errorf("%d schemas are known, want both", n)
	}
	if said := <-told; !strings.Contains(said, k.Topics.Schemas+"/0 from offset 1 to 2 is broken in the log: its entries do not parse") {
		t.Errorf("it said %s", said)
	}
}

// saying is what a log says.
type saying chan string

func (s saying) Write(b []byte) (int, error) {
	s <- string(b)
	return len(b), nil
}

// A schema that a transaction hides is not said to be known: who waits for all there is
// is told what hides it.
func TestSchemaLogTellsWhatATransactionHides(t *testing.T) { testHides(t, kafkatest.Fake(t)) }

func testHides(t *testing.T, k kafkatest.Cluster) {
	ctx := kafkatest.Deadline(t)
	l, registry := openLog(t, k)
	kafkatest.Must(t, l.Publish(ctx, schemas.Note()))
	until(t, l, "read to its end", func() bool { return l.Fault() == nil })
	end := kafkatest.Begin(t, k, k.Topics.Schemas, map[int32][]byte{0: []byte("no schema")})
	hides := k.Topics.Schemas + "/0 from offset 1 on, where a transaction is open"
	until(t, l, "told what is hidden", func() bool { return l.Fault() != nil && strings.Contains(l.Fault().Error(), hides) })
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := l.Publish(short, schemas.Activity()); err == nil || !strings.Contains(err.Error(), hides) {
		t.Errorf("published: %v", err)
	}
	end(kgo.TryAbort)
	kafkatest.Must(t, l.Publish(ctx, schemas.Activity()))
	if n := len(registry.Snapshot().All()); n != 2 {
		t.Errorf("%d schemas are known, want both", n)
	}
	until(t, l, "well again", func() bool { return l.Fault() == nil })
}

// until waits for what moves with a schema log.
func until(t *testing.T, l *Log, what string, ok func() bool) {
	t.Helper()
	ctx := kafkatest.Deadline(t)
	for {
		moved := l.Moved()
		if ok() {
			return
		}
		select {
		case <-moved:
		case <-time.After(patience.First): // not everything moves the log
		case <-ctx.Done():
			t.Fatalf("never %s: %v", what, l.Fault())
		}
	}
}

// A schema log opens without Kafka, tells what it waits for, and learns what
// is in the topic once both are there.
func TestSchemaLogWaitsForKafka(t *testing.T) {
	ctx := kafkatest.Deadline(t)
	port, addr := kafkatest.FreePort(t)
	k := kafkatest.Cluster{Brokers: kafka.At(addr), Topics: kafka.Prefixed("")}
	l, registry := openLog(t, k)
	if l.Read() || l.Fault() == nil {
		t.Fatalf("without Kafka: Read %v, Fault %v", l.Read(), l.Fault())
	}
	dir := t.TempDir()
	broker := kafkatest.StartOn(t, port, dir)
	until(t, l, "told of the missing topic", func() bool { return errors.Is(l.Fault(), kerr.UnknownTopicOrPartition) })
	kafkatest.Must(t, kafka.EnsureTopics(ctx, k.Brokers, k.Topics, nil))
	kafkatest.Must(t, l.Publish(ctx, schemas.Note()))
	until(t, l, "read to its end", func() bool { return l.Read() && l.Fault() == nil })

	broker.Close()
	until(t, l, "told of Kafka's absence", func() bool { return l.Fault() != nil })
	if !l.Read() {
		t.Error("what was read once is forgotten")
	}
	kafkatest.StartOn(t, port, dir)
	other, _ := openLog(t, k)
	kafkatest.Must(t, other.Publish(ctx, schemas.Activity()))
	kafkatest.Must(t, l.Refresh(ctx))
	if len(registry.Snapshot().All()) != 2 {
		t.Errorf("%d schemas known, want both", len(registry.Snapshot().All()))
	}
	until(t, l, "well again", func() bool { return l.Fault() == nil })
}

func TestSchemaLogFollowsATopicCreatedAgain(t *testing.T) { testSchemasAgain(t, kafkatest.Fake(t)) }

// testSchemasAgain: the topic is deleted and created again. It has less than
// before, and what comes now is learned.
func testSchemasAgain(t *testing.T, k kafkatest.Cluster) {
	ctx := kafkatest.Deadline(t)
	l, registry := openLog(t, k)
	kafkatest.Must(t, l.Publish(ctx, schemas.Note()))
	kafkatest.Must(t, l.Publish(ctx, schemas.Activity()))
	_, err := kafkatest.Admin(t, k.Brokers).DeleteTopics(ctx, k.Topics.Schemas)
	kafkatest.Must(t, err)
	kafkatest.Must(t, kafka.EnsureTopics(ctx, k.Brokers, k.Topics, nil))
	other, _ := openLog(t, k)
	kafkatest.Must(t, other.Publish(ctx, schemas.Features()))
	kafkatest.Must(t, l.Refresh(ctx))
	if registry.Snapshot().ByFingerprint(schemas.Features().Fingerprint()) == nil {
		t.Error("the schema in the new topic is not known")
	}
	if l.Has(schemas.Note().Fingerprint()) {
		t.Error("the new topic is said to have the schemas of the old")
	}
	kafkatest.Must(t, l.Publish(ctx, schemas.Note()))
	kafkatest.Must(t, other.Refresh(ctx))
	if !other.Has(schemas.Note().Fingerprint()) {
		t.Error("a schema of the old topic was not published again")
	}
}

// fullStore refuses to keep anything while it is full.
type fullStore struct{ full atomic.Bool }

var errFull = errors.New("no space left on device")

func (s *fullStore) PutSchema(registry.StoredSchema) error {
	if s.full.Load() {
		return errFull
	}
	return nil
}
func (s *fullStore) Schemas() ([]registry.StoredSchema, error) { return nil, nil }

// A schema that comes while the disk is full is learned when there is space
// again, without a restart. What is behind it waits, so that the order stays.
func TestSchemaLogRetriesWhatCannotBeKept(t *testing.T) {
	ctx, k := kafkatest.Deadline(t), kafkatest.Fake(t)
	store := &fullStore{}
	store.full.Store(true)
	registry, err := registry.New(store, nil)
	kafkatest.Must(t, err)
	other, _ := openLog(t, k)
	kafkatest.Must(t, other.Publish(ctx, schemas.Note()))
	kafkatest.Must(t, other.Publish(ctx, schemas.Activity()))
	l, err := Open(Config{Brokers: k.Brokers, Topic: k.Topics.Schemas, Registry: registry})
	kafkatest.Must(t, err)
	defer l.Close()
	until(t, l, "told of the full disk", func() bool { return errors.Is(l.Fault(), errFull) })
	if l.Read() || l.Has(schemas.Note().Fingerprint()) || !errors.Is(l.Held(), errFull) {
		t.Errorf("it is said to be read, or to be held by %v", l.Held())
	}
	store.full.Store(false)
	kafkatest.Must(t, l.Refresh(ctx))
	all := registry.Snapshot().All()
	if len(all) != 2 || all[0].Name() != schemas.Note().Name() {
		t.Errorf("%d schemas known, want Note, then Activity", len(all))
	}
	until(t, l, "well again", func() bool { return l.Read() && l.Fault() == nil && l.Held() == nil })
}

// What an operator gave up is given up for every reader and for good; what is
// known is not.
func TestRefuseSchema(t *testing.T) { testRefuse(t, kafkatest.Fake(t)) }

func testRefuse(t *testing.T, k kafkatest.Cluster) {
	ctx := kafkatest.Deadline(t)
	early, _ := openLog(t, k)
	note, activity := schemas.Note(), schemas.Activity()
	kafkatest.Must(t, early.Publish(ctx, note))
	var fault *millrace.Error
	if err := Refuse(ctx, k.Brokers, k.Topics.Schemas, note.Fingerprint(), "somebody"); !errors.As(err, &fault) || fault.Field != "fingerprint" {
		t.Errorf("a known schema: %v", err)
	}
	kafkatest.Must(t, Refuse(ctx, k.Brokers, k.Topics.Schemas, activity.Fingerprint(), "somebody"))
	late, known := openLog(t, k)
	for _, l := range []*Log{early, late} {
		kafkatest.Must(t, l.Refresh(ctx))
		if w := l.Word(activity.Fingerprint()); w.By != "somebody" || w.At.IsZero() {
			t.Errorf("refused by %+v", w)
		}
		if !l.Refused(activity.Fingerprint()) || l.Refused(note.Fingerprint()) || len(l.AllRefused()) != 1 {
			t.Errorf("refused: %v", l.AllRefused())
		}
	}
	var refused *registry.RefusedError
	if err := early.Publish(ctx, activity); !errors.As(err, &refused) {
		t.Errorf("published what is given up: %v", err)
	}
	kafkatest.Must(t, follow.Put(ctx, k.Brokers, k.Topics.Schemas, activity.Fingerprint().String(), []byte(activity.JSON())))
	kafkatest.Must(t, late.Refresh(ctx))
	if known.Snapshot().ByFingerprint(activity.Fingerprint()) != nil {
		t.Error("a schema that was given up came back")
	}
}

// A word that comes too late is not said to count: the schema came after its topic
// was looked at.
func TestAWordThatComesTooLate(t *testing.T) {
	k := kafkatest.Fake(t)
	ctx := kafkatest.Deadline(t)
	early, _ := openLog(t, k)
	kafkatest.Must(t, early.Publish(ctx, schemas.Note()))
	l, err := read(ctx, k.Brokers, k.Topics.Schemas)
	kafkatest.Must(t, err)
	defer l.Close()
	late := schemas.Activity()
	kafkatest.Must(t, l.MayRefuse(late.Fingerprint()))
	kafkatest.Must(t, early.Publish(ctx, late))
	var fault *millrace.Error
	if err := l.giveWord(ctx, refusedKey, late.Fingerprint(), "somebody", l.Refused, l.MayRefuse); !errors.As(err, &fault) || fault.Field != "fingerprint" {
		t.Errorf("a schema that came meanwhile is given up: %v", err)
	}
}

// A schema that is retired is so for every reader of the topic, whenever it
// began; the last of a name is not.
func TestRetireSchema(t *testing.T) {
	k := kafkatest.Fake(t)
	ctx := kafkatest.Deadline(t)
	early, earlyKnows := openLog(t, k)
	note := schemas.Note()
	next, err := schemas.Parse([]byte(strings.Replace(note.JSON(), `"fields": [`, `"fields": [{"name": "more", "type": "long", "default": 0},`, 1)))
	kafkatest.Must(t, err)
	kafkatest.Must(t, early.Publish(ctx, note))
	var fault *millrace.Error
	for _, fp := range []millrace.Fingerprint{note.Fingerprint(), next.Fingerprint()} { // the last, and an unknown one
		if err := Retire(ctx, k.Brokers, k.Topics.Schemas, fp, "somebody"); !errors.As(err, &fault) || fault.Field != "fingerprint" {
			t.Errorf("%s: %v", fp, err)
		}
	}
	kafkatest.Must(t, early.Publish(ctx, next))
	kafkatest.Must(t, Retire(ctx, k.Brokers, k.Topics.Schemas, next.Fingerprint(), "somebody"))
	late, lateKnows := openLog(t, k)
	for name, l := range map[*registry.Registry]*Log{earlyKnows: early, lateKnows: late} {
		kafkatest.Must(t, l.Refresh(ctx))
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

func TestSchemaLog(t *testing.T) { testSchemaLog(t, kafkatest.Fake(t)) }
