package streams

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/partition"
)

// TestOnRealKafka runs what depends on the broker against a real one.
func TestOnRealKafka(t *testing.T) {
	kafkatest.OnReal(t, map[string]func(*testing.T, kafkatest.Cluster){
		"moves-past":  testMovesPast,
		"never-jumps": testNeverJumps,
		"add-remove":  testAddRemove,
		"tails":       testTails,
		"instant":     testInstant,
		"times":       testBrokersTimes,
		"broken":      testBroken,
	})
}

// What is added to a quiet consumer, or resumed, is read at once, and not when the
// fetch ends that waits for the others.
func TestAQuietConsumerReadsWhatIsAdded(t *testing.T) {
	was := quietWait
	quietWait = time.Hour
	defer func() { quietWait = was }()
	k, ctx := kafkatest.Fake(t), kafkatest.Deadline(t)
	p, err := kafka.NewProducer(k.Brokers, "", nil)
	kafkatest.Must(t, err)
	defer p.Close()
	send := func(partition int32) {
		t.Helper()
		p.Produce(ctx, kafka.Outgoing{Topic: k.Topics.Timeline, Partition: partition, Value: []byte("x")})
		kafkatest.Must(t, p.Flush(ctx))
	}
	send(2)
	c, err := NewConsumer(Config{Brokers: k.Brokers, Topics: k.Topics})
	kafkatest.Must(t, err)
	defer c.Close()
	read := func(want kafka.TopicPartition) {
		t.Helper()
		for {
			all, err := c.Poll(ctx, 10)
			kafkatest.Must(t, err)
			for _, f := range all {
				if kafkatest.Must(t, f.Err); f.TopicPartition == want && len(f.Records) > 0 {
					return
				}
			}
		}
	}
	one, two := kafka.TopicPartition{Stream: kafka.Timeline, Partition: 1}, kafka.TopicPartition{Stream: kafka.Timeline, Partition: 2}
	c.Add(map[kafka.TopicPartition]kafka.Position{one: {Next: 0, Epoch: -1}})
	send(1)
	read(one)
	quiet := func() { // a fetch waits at the broker
		t.Helper()
		c.mu.Lock()
		c.mu.joining = time.Time{}
		c.mu.Unlock()
		short, cancel := context.WithTimeout(ctx, kafka.FetchWait)
		defer cancel()
		if all, err := c.Poll(short, 10); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("polled %v, %v, want nothing", all, err)
		}
	}
	quiet()
	c.Add(map[kafka.TopicPartition]kafka.Position{two: {Next: 0, Epoch: -1}})
	read(two)
	c.Pause(one)
	quiet()
	send(1)
	c.Resume(one)
	read(one)
}

func TestConsumerMovesPastWhatIsNotDelivered(t *testing.T) { testMovesPast(t, kafkatest.Fake(t)) }

func TestConsumerNeverJumps(t *testing.T) { testNeverJumps(t, kafkatest.Fake(t)) }

func TestConsumerAddAndRemove(t *testing.T) { testAddRemove(t, kafkatest.Fake(t)) }

// A consumer whose sessions end one after the other reads on: franz-go may lose
// the start of a fetch loop then (see NudgeAfter).
func TestConsumerReadsOnAfterRemovals(t *testing.T) {
	k := kafkatest.Fake(t)
	tp, other := kafka.TopicPartition{Stream: kafka.Timeline, Partition: 0}, kafka.TopicPartition{Stream: kafka.Timeline, Partition: 1}
	cl, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Addrs(k.Brokers)...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	kafkatest.Must(t, err)
	t.Cleanup(cl.Close)
	c, err := NewConsumer(Config{Brokers: k.Brokers, Topics: k.Topics})
	kafkatest.Must(t, err)
	t.Cleanup(c.Close)
	c.Add(map[kafka.TopicPartition]kafka.Position{tp: {Epoch: -1}})
	rounds := 200
	if testing.Short() {
		rounds = 20
	}
	for range rounds {
		for range 2000 {
			c.Remove(other)
		}
		kafkatest.Must(t, cl.ProduceSync(kafkatest.Deadline(t), &kgo.Record{Topic: k.Topics.Of(tp.Stream), Partition: int32(tp.Partition), Value: []byte("x")}).FirstErr())
		if _, err := c.Poll(kafkatest.Deadline(t), 1); err != nil {
			t.Fatal(err)
		}
	}
}

// inTransaction produces values to the timeline of an entity in a transaction
// of its own. It speaks as Kafka 3.5 did: by later protocols franz-go may not
// know of a record that was produced, and then aborts instead of committing,
// without an error; by this one it adds the partition first.
func inTransaction(t *testing.T, k kafkatest.Cluster, commit kgo.TransactionEndTry, entity string, values ...string) {
	t.Helper()
	ctx := kafkatest.Deadline(t)
	cl, err := kafka.NewClient(k.Brokers, nil, kgo.TransactionalID(k.Content), kgo.MaxVersions(kversion.V3_5_0()))
	kafkatest.Must(t, err)
	defer cl.Close()
	kafkatest.Must(t, cl.BeginTransaction())
	for i, v := range values {
		o := kafka.ToStream(k.Topics.Timeline, millrace.Entity(entity), []byte(v), kafka.Source{Topic: "posts", Partition: 1, Offset: millrace.Offset(i)})
		kafkatest.Must(t, cl.ProduceSync(ctx, o.Record()).FirstErr())
	}
	kafkatest.Must(t, cl.Flush(ctx))
	kafkatest.Must(t, cl.EndTransaction(ctx, commit))
}

func testMovesPast(t *testing.T, k kafkatest.Cluster) {
	ctx := kafkatest.Deadline(t)
	tp := kafka.TopicPartition{Stream: kafka.Timeline, Partition: partition.Of(millrace.Entity(k.Entity("member:1")))}
	inTransaction(t, k, kgo.TryCommit, k.Entity("member:1"), "a", "b")
	inTransaction(t, k, kgo.TryAbort, k.Entity("member:1"), "never")
	inTransaction(t, k, kgo.TryCommit, k.Entity("member:1"), "c")
	inTransaction(t, k, kgo.TryAbort, k.Entity("member:1"), "never", "never")

	c, err := NewConsumer(Config{Brokers: k.Brokers, Topics: k.Topics})
	kafkatest.Must(t, err)
	defer c.Close()
	ends, err := c.EndOffsets(ctx, tp)
	kafkatest.Must(t, err)
	if want := millrace.Offset(3 + 2 + 2 + 3); ends[tp] != want {
		t.Fatalf("EndOffsets = %d, want %d", ends[tp], want)
	}
	c.Assign(map[kafka.TopicPartition]kafka.Position{tp: {Next: 0, Epoch: -1}})
	var got []string
	var next millrace.Offset
	for next < ends[tp] {
		polled, err := c.Poll(ctx, 100)
		kafkatest.Must(t, err)
		for _, f := range polled {
			kafkatest.Must(t, f.Err)
			for _, r := range f.Records {
				got = append(got, string(r.Value))
				kafkatest.Must(t, kafka.CheckCRC(r.CRC, r.Value))
				if age := time.Since(time.UnixMilli(int64(r.Time))); age < 0 || age > time.Hour {
					t.Errorf("logged %s ago", age)
				}
				if src, err := kafka.ParseSource(r.Source); err != nil || src.Topic != "posts" || src.Partition != 1 {
					t.Errorf("source %q: %v, %v", r.Source, src, err)
				}
				if string(r.Key) != k.Entity("member:1") {
					t.Errorf("key %q", r.Key)
				}
			}
			next = f.Next
		}
	}
	if want := []string{"a", "b", "c"}; !slices.Equal(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}
}

func testNeverJumps(t *testing.T, k kafkatest.Cluster) {
	ctx := kafkatest.Deadline(t)
	inTransaction(t, k, kgo.TryCommit, k.Entity("member:1"), "a", "b", "c")
	p := partition.Of(millrace.Entity(k.Entity("member:1")))
	tp := kafka.TopicPartition{Stream: kafka.Timeline, Partition: p}
	adm := kafkatest.Admin(t, k.Brokers)
	var del kadm.Offsets
	del.Add(kadm.Offset{Topic: k.Topics.Timeline, Partition: int32(p), At: 2})
	_, err := adm.DeleteRecords(ctx, del)
	kafkatest.Must(t, err)

	for _, at := range []millrace.Offset{0, 1, 99} {
		c, err := NewConsumer(Config{Brokers: k.Brokers, Topics: k.Topics})
		kafkatest.Must(t, err)
		c.Add(map[kafka.TopicPartition]kafka.Position{tp: {Next: at, Epoch: -1}})
		polled, err := c.Poll(ctx, 100)
		kafkatest.Must(t, err)
		f := polled[0]
		if !errors.Is(f.Err, kafka.ErrLostPosition) || len(f.Records) != 0 || f.Next != at {
			t.Errorf("from %d: %d records, next %d, error %v; want ErrLostPosition and nothing else", at, len(f.Records), f.Next, f.Err)
		}
		// A new position ends it.
		c.Add(map[kafka.TopicPartition]kafka.Position{tp: {Next: 2, Epoch: -1}})
		for f.Next < 4 {
			polled, err = c.Poll(ctx, 100)
			kafkatest.Must(t, err)
			f = polled[0]
			kafkatest.Must(t, f.Err)
		}
		starts, err := c.StartOffsets(ctx, tp)
		kafkatest.Must(t, err)
		if starts[tp] != 2 {
			t.Errorf("StartOffsets = %d, want 2", starts[tp])
		}
		c.Close()
	}
}

func testAddRemove(t *testing.T, k kafkatest.Cluster) {
	ctx := kafkatest.Deadline(t)
	inTransaction(t, k, kgo.TryCommit, k.Entity("member:1"), "a", "b", "c")
	inTransaction(t, k, kgo.TryCommit, k.Entity("member:2"), "d")
	one, two := kafka.TopicPartition{Stream: kafka.Timeline, Partition: partition.Of(millrace.Entity(k.Entity("member:1")))}, kafka.TopicPartition{Stream: kafka.Timeline, Partition: partition.Of(millrace.Entity(k.Entity("member:2")))}
	c, err := NewConsumer(Config{Brokers: k.Brokers, Topics: k.Topics})
	kafkatest.Must(t, err)
	defer c.Close()

	read := func(tp kafka.TopicPartition, n int) string {
		t.Helper()
		var got []string
		for len(got) < n {
			polled, err := c.Poll(ctx, 1)
			kafkatest.Must(t, err)
			for _, f := range polled {
				if f.TopicPartition != tp {
					t.Fatalf("read %s, which is not assigned", f.TopicPartition)
				}
				for _, r := range f.Records {
					got = append(got, string(r.Value))
				}
			}
		}
		return strings.Join(got, "")
	}
	c.Add(map[kafka.TopicPartition]kafka.Position{one: {Next: 1, Epoch: -1}})
	if got := read(one, 1); got != "b" {
		t.Errorf("from 1: %q, want b", got)
	}
	c.Assign(map[kafka.TopicPartition]kafka.Position{two: {Next: 0, Epoch: -1}})
	if got := read(two, 1); got != "d" {
		t.Errorf("after Assign: %q, want d", got)
	}
	c.Assign(map[kafka.TopicPartition]kafka.Position{one: {Next: 0, Epoch: -1}})
	if got := read(one, 3); got != "abc" {
		t.Errorf("assigned again from 0: %q, want abc", got)
	}
	c.Remove(one)
	short, cancel := context.WithTimeout(ctx, 3*kafka.FetchWait)
	defer cancel()
	if polled, err := c.Poll(short, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with nothing assigned: %v, %v", polled, err)
	}
	c.Close()
	if _, err := c.Poll(ctx, 1); !errors.Is(err, kafka.ErrClosed) {
		t.Errorf("closed: %v, want ErrClosed", err)
	}
}
