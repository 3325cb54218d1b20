package partitioner

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/groups"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/kafka/progress"
	"github.com/millrace/millrace/schemas"
)

// until waits for a condition that no event tells of.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	for !ok() {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-w.ctx.Done():
			w.t.Fatalf("never %s", what)
		}
	}
}

// untilReady waits until Ready says want, or nothing where want is empty.
func (w *world) untilReady(p *Partitioner, want string) {
	w.t.Helper()
	var last error
	defer func() {
		if w.t.Failed() {
			w.t.Logf("Ready: %v", last)
		}
	}()
	w.until("ready: "+want, func() bool {
		last = p.Ready()
		return want == "" && last == nil || want != "" && last != nil && strings.Contains(last.Error(), want)
	})
}

// bomb is a batch of one record that decompresses to more than anybody opens.
func (w *world) bomb(topic string, partition int32) *kgo.Record {
	w.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Addrs(w.brokers)...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchMaxBytes(80<<20), kgo.ProducerBatchCompression(kgo.ZstdCompression()))
	must(w.t, err)
	defer cl.Close()
	r := &kgo.Record{Topic: topic, Partition: partition, Value: make([]byte, 70<<20)}
	must(w.t, cl.ProduceSync(w.ctx, r).FirstErr())
	return r
}

func TestBombIsSkippedByCommand(t *testing.T) {
	t.Parallel()
	testBomb(t, newFake(t))
}

// testBomb: a batch that cannot be opened within bounds stops its partition and
// no other, is told, and is skipped when an operator says so, kept byte for
// byte.
func testBomb(t *testing.T, w *world) {
	w.publish(schemas.Activity())
	topic := w.cfg.Content[0]
	send := func(partition int32, id string) {
		t.Helper()
		w.produce(&kgo.Record{Topic: topic, Partition: partition, Value: activity(t, id, "member:1", "")})
	}
	send(0, "before")
	bomb := w.bomb(topic, 0)
	send(0, "behind")
	send(1, "beside")
	raw, err := groups.FetchBatch(w.ctx, w.brokers, topic, 0, millrace.Offset(bomb.Offset))
	must(t, err)

	skipped := make(chan struct{}, 1)
	p, stop := w.start(func(p *Partitioner) { p.on.skipped = func() { skipped <- struct{}{} } })
	if out := w.read(2); len(out["timeline"]) != 2 {
		t.Fatalf("%v came out, want what is before and beside the bomb", out)
	}
	w.untilReady(p, fmt.Sprintf("millrace topics skip --topic %s --group %s --partition 0 --offset %d --apply", topic, w.cfg.Group, bomb.Offset))
	if n := value(p.metrics.stuck); n != 1 {
		t.Errorf("%v stuck partitions in the metrics", n)
	}
	var told progress.Progress
	w.until("told by the heartbeat", func() bool {
		told, _ = p.progress.Group(w.cfg.Group)
		return len(told.Stuck) == 1
	})
	if at := told.Stuck[0]; at.Topic != topic || at.Offset != millrace.Offset(bomb.Offset) || at.Next != at.Offset+1 {
		t.Errorf("the heartbeat tells %+v", at)
	}
	send(1, "also beside")
	w.read(1) // the others go on

	skip := progress.Skip{Group: w.cfg.Group, Topic: topic, Partition: 0, Offset: millrace.Offset(bomb.Offset)}
	must(t, progress.RequestSkip(w.ctx, w.brokers, w.cfg.Topics.Progress, skip))
	<-skipped
	out := w.read(2)
	if len(out["timeline"]) != 1 || len(out["dead-letters"]) != 1 {
		t.Fatalf("%v came out, want the record behind the bomb, and the bomb in one piece", out)
	}
	letter := out["dead-letters"][0]
	if !bytes.Equal(letter.Value, raw.Bytes) {
		t.Errorf("%d bytes were kept aside, the log has %d", len(letter.Value), len(raw.Bytes))
	}
	if header(letter, kafka.HeaderReason) != string(UnreadableBatch) || header(letter, kafka.HeaderSource) != source(bomb) ||
		header(letter, kafka.HeaderPiece) != "1/1" || header(letter, kafka.HeaderBatch) != fmt.Sprintf("%d-%[1]d", bomb.Offset) {
		t.Errorf("headers of the dead letter: %v", letter.Headers)
	}
	must(t, kafka.CheckCRC([]byte(header(letter, kafka.HeaderCRC)), letter.Value))
	w.untilReady(p, "")
	w.until("the request is taken back", func() bool { return len(p.progress.Skips(w.cfg.Group)) == 0 })
	stop()
	p, _ = w.start() // it stays skipped
	send(0, "later")
	w.read(1)
	w.untilReady(p, "")
}

// A batch whose records cannot be decompressed is found by where the group is,
// kept aside in pieces, and skipped.
func TestGarbageIsSkippedByCommand(t *testing.T) {
	w := newFake(t)
	w.publish(schemas.Activity())
	w.produce(&kgo.Record{Topic: "posts", Value: activity(t, "before", "member:1", "")})
	garbage := rawBatch(bytes.Repeat([]byte("no zstd frame "), 100_000))
	w.produceRaw("posts", garbage)
	w.produce(&kgo.Record{Topic: "posts", Value: activity(t, "behind", "member:1", "")})
	p, _ := w.start()
	w.read(1)
	w.untilReady(p, "posts/0 is stuck at offset 1")
	must(t, progress.RequestSkip(w.ctx, w.brokers, w.cfg.Topics.Progress, progress.Skip{Group: w.cfg.Group, Topic: "posts", Offset: 1}))
	out := w.read(3)
	if len(out["timeline"]) != 1 || len(out["dead-letters"]) != 2 {
		t.Fatalf("%d published and %d dead letters, want what is behind, and two pieces", len(out["timeline"]), len(out["dead-letters"]))
	}
	var kept []byte
	for _, r := range out["dead-letters"] {
		kept = append(kept, r.Value...)
	}
	if !bytes.Equal(kept[batchRecords:], garbage[batchRecords:]) {
		t.Errorf("%d bytes were kept aside, of %d", len(kept), len(garbage))
	}
	w.untilReady(p, "")
}

func TestUnparsableIsSkippedByCommand(t *testing.T) {
	for name, behind := range map[string]bool{"with another behind it": true, "at the end": false} {
		t.Run(name, func(t *testing.T) { testUnparsable(t, newFake(t), behind) })
	}
}

// A batch with an entry that does not parse is told, kept aside whole and skipped: what is
// before the entry is published, and what is behind the batch waits until then.
func testUnparsable(t *testing.T, w *world, behind bool) {
	w.publish(schemas.Activity())
	topic := w.cfg.Content[0]
	body := func(id string) []byte { return activity(t, id, "member:1", "") }
	send := func() { w.produce(&kgo.Record{Topic: topic, Value: body("behind")}) }
	kafkatest.Overlong(t, kafkatest.Cluster{Brokers: w.brokers}, topic, 0, 1, true, body("good"), body("bad"), body("lost"))
	if behind {
		send()
	}
	raw, err := groups.FetchBatch(w.ctx, w.brokers, topic, 0, 1)
	must(t, err)
	p, _ := w.start()
	if out := w.read(1); len(out["timeline"]) != 1 {
		t.Fatalf("%v came out, want what is before the entry", out)
	}
	w.untilReady(p, "a batch that is broken in the log: its entries do not parse")
	w.untilReady(p, fmt.Sprintf("millrace topics skip --topic %s --group %s --partition 0 --offset 1 --apply", topic, w.cfg.Group))
	var told progress.Progress
	w.until("told by the heartbeat", func() bool {
		told, _ = p.progress.Group(w.cfg.Group)
		return len(told.Stuck) == 1
	})
	if at := told.Stuck[0]; at.Topic != topic || at.Offset != 1 || at.Next != 3 {
		t.Errorf("the heartbeat tells %+v", at)
	}
	must(t, progress.RequestSkip(w.ctx, w.brokers, w.cfg.Topics.Progress, told.Stuck[0].Skip(w.cfg.Group)))
	if !behind {
		send()
	}
	out := w.read(2)
	if len(out["timeline"]) != 1 || len(out["dead-letters"]) != 1 || !bytes.Equal(out["dead-letters"][0].Value, raw.Bytes) {
		t.Fatalf("%v came out, want the record behind the batch, and the batch", out)
	}
	if reason := header(out["dead-letters"][0], kafka.HeaderReason); reason != string(UnreadableBatch) {
		t.Errorf("it is kept for %q", reason)
	}
	w.untilReady(p, "")
}

// batchRecords is where the records of a batch begin.
const batchRecords = 61

// rawBatch is a batch of two records whose bytes are said to be zstd.
func rawBatch(records []byte) []byte {
	b := kmsg.RecordBatch{Length: int32(49 + len(records)), Magic: 2, Attributes: 4, LastOffsetDelta: 1, FirstTimestamp: now.UnixMilli(),
		MaxTimestamp: now.UnixMilli(), ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: 2, Records: records}
	raw := b.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	return raw
}

// produceRaw writes a batch to partition 0 of a topic as it is.
func (w *world) produceRaw(topic string, batch []byte) {
	w.t.Helper()
	part := kmsg.NewProduceRequestTopicPartition()
	part.Records = batch
	t := kmsg.NewProduceRequestTopic()
	t.Topic, t.Partitions = topic, []kmsg.ProduceRequestTopicPartition{part}
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis, req.Topics = -1, 1000, []kmsg.ProduceRequestTopic{t}
	cl, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Addrs(w.brokers)...), kgo.MaxVersions(kversion.V3_0_0()))
	must(w.t, err)
	defer cl.Close()
	answer, err := cl.Broker(0).Request(w.ctx, req)
	must(w.t, err)
	if code := answer.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode; code != 0 {
		w.t.Fatalf("the broker refuses the batch: %d", code)
	}
}

// Ready follows what happens to the process; Kafka's absence never ends it.
func TestReadyTells(t *testing.T) {
	w := newFake(t)
	w.publish(schemas.Activity())
	w.cfg.Content = append(w.cfg.Content, "not-yet")
	p, err := New(w.cfg, w.logger(), w.metrics())
	must(t, err)
	if err := p.Ready(); !errors.Is(err, errNotRun) {
		t.Errorf("before Run: %v", err)
	}
	p, stop := w.start(func(p *Partitioner) { p.pace.poisonRun, p.pace.pause = 20, time.Hour })
	w.untilReady(p, `topics that do not exist: ["not-yet"]`)
	must(t, kafka.EnsureContentTopic(w.ctx, w.brokers, "not-yet", 3, nil))
	w.untilReady(p, "")
	for range 20 {
		w.produce(&kgo.Record{Topic: "posts", Value: []byte("poison")})
	}
	w.untilReady(p, "nothing but dead letters")
	stop()
	if err := p.Ready(); err == nil {
		t.Error("ready after its end")
	}
}

func TestReadyTellsThatKafkaIsAway(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	port, addr := freePort(t)
	w := &world{t: t, brokers: kafka.At(addr), cfg: Config{Brokers: kafka.At(addr), Content: []string{"posts"}, Instance: "one"}}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	w.ctx = ctx
	p, stop := w.start()
	w.untilReady(p, "waiting for Kafka")
	broker := kfakeOn(t, port, dir)
	must(t, kafka.EnsureContentTopic(ctx, w.brokers, "posts", 3, nil))
	w.untilReady(p, "")
	broker.Close()
	w.untilReady(p, "no answer of Kafka")
	kfakeOn(t, port, dir)
	w.untilReady(p, "")
	stop() // without an error
}

// A process that the group gives nothing to read is no fault while others read,
// and is one when records wait.
func TestReadyTellsOfIdleness(t *testing.T) {
	t.Parallel()
	w := newFake(t)
	w.cfg.Content, w.cfg.Features = []string{"single"}, nil
	w.cfg.SchemaWait = time.Millisecond
	must(t, kafka.EnsureContentTopic(w.ctx, w.brokers, "single", 1, nil))
	stuck, free := make(chan struct{}, 100), make(chan struct{})
	change := func(p *Partitioner) {
		p.pace.idle = 0
		p.on.waiting = func() { stuck <- struct{}{}; <-free }
	}
	one, _ := w.start(change)
	w.untilReady(one, "")
	w.cfg.Instance = "two"
	two, _ := w.start(change)
	w.untilReady(two, "")
	w.produce(&kgo.Record{Topic: "single", Value: schemas.Frame(12345, []byte("body"))})
	<-stuck
	idle := func() bool {
		for _, p := range []*Partitioner{one, two} {
			if err := p.Ready(); err != nil && strings.Contains(err.Error(), "gives this process no partition") {
				return true
			}
		}
		return false
	}
	w.until("told by the idle one", idle)
	close(free)
	w.read(1)
	w.untilReady(one, "")
	w.untilReady(two, "")
}
