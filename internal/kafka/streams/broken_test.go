package streams

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
)

func onTimeline(partition int) kafka.TopicPartition {
	return kafka.TopicPartition{Stream: kafka.Timeline, Partition: millrace.Partition(partition)}
}

// reads is a consumer of partitions of the timeline from offsets.
func reads(t *testing.T, k kafkatest.Cluster, from map[int]millrace.Offset) *Consumer {
	t.Helper()
	c, err := NewConsumer(Config{Brokers: k.Brokers, Topics: k.Topics})
	kafkatest.Must(t, err)
	t.Cleanup(c.Close)
	at := map[kafka.TopicPartition]kafka.Position{}
	for p, next := range from {
		at[onTimeline(p)] = kafka.Position{Next: next, Epoch: -1}
	}
	c.Add(at)
	return c
}

// until polls until so many records and faults have come.
func until(t *testing.T, ctx context.Context, c *Consumer, records, faults int) (values []string, failed []Fetched) {
	t.Helper()
	for len(values) < records || len(failed) < faults {
		all, err := c.Poll(ctx, 100)
		kafkatest.Must(t, err)
		for _, f := range all {
			for _, r := range f.Records {
				values = append(values, fmt.Sprintf("%d/%s", f.Partition, r.Value))
			}
			if f.Err != nil {
				f.Records = nil
				failed = append(failed, f)
			}
		}
	}
	slices.Sort(values)
	return values, failed
}

func TestConsumerStopsAtBrokenBatches(t *testing.T) { testBroken(t, kafkatest.Fake(t)) }

// A batch with an entry that does not parse ends the reading of its partition, with its
// place, whether another batch lies behind it or not. The others are read on.
func testBroken(t *testing.T, k kafkatest.Cluster) {
	ctx, topic := kafkatest.Deadline(t), k.Topics.Timeline
	ends, err := reads(t, k, nil).HighWatermarks(ctx, onTimeline(10), onTimeline(11), onTimeline(12))
	kafkatest.Must(t, err) // of a topic that other tests may have written to
	a, b, other := ends[onTimeline(10)], ends[onTimeline(11)], ends[onTimeline(12)]
	kafkatest.Overlong(t, k, topic, 10, 1, true, []byte("good"), []byte("bad"), []byte("lost"))
	kafkatest.Write(t, k, topic, 10, "behind")
	kafkatest.Write(t, k, topic, 11, "before")
	kafkatest.Overlong(t, k, topic, 11, 0, false, []byte("bad"), []byte("lost"))
	kafkatest.Write(t, k, topic, 12, "beside")
	c := reads(t, k, map[int]millrace.Offset{10: a, 11: b, 12: other})
	values, failed := until(t, ctx, c, 3, 2)
	if want := []string{"10/good", "11/before", "12/beside"}; !slices.Equal(values, want) {
		t.Errorf("read %q, want %q", values, want)
	}
	slices.SortFunc(failed, func(a, b Fetched) int { return int(a.Partition) - int(b.Partition) })
	for i, want := range []millrace.Offset{a + 1, b + 1} {
		if f := failed[i]; int(f.Partition) != 10+i || f.Next != want || !errors.Is(f.Err, kafka.ErrBatchBroken) || !errors.Is(f.Err, kafka.ErrLostPosition) {
			t.Errorf("%s fails at %d, want %d: %v", f.TopicPartition, f.Next, want, f.Err)
		}
	}
	kafkatest.Write(t, k, topic, 10, "later")
	kafkatest.Write(t, k, topic, 11, "later")
	kafkatest.Write(t, k, topic, 12, "also beside")
	if values, failed := until(t, ctx, c, 1, 0); !slices.Equal(values, []string{"12/also beside"}) || len(failed) > 0 {
		t.Errorf("then it reads %q, and %v", values, failed)
	}
	c.Add(map[kafka.TopicPartition]kafka.Position{onTimeline(10): {Next: a + 3, Epoch: -1}, onTimeline(11): {Next: b + 3, Epoch: -1}})
	if values, _ := until(t, ctx, c, 3, 0); !slices.Equal(values, []string{"10/behind", "10/later", "11/later"}) {
		t.Errorf("from behind the batches it reads %q", values)
	}
}

// What does not decompress is no fault that passes, whether other batches lie around it
// or not. Kafka itself does not take such a batch from a producer.
func TestConsumerStopsAtWhatDoesNotDecompress(t *testing.T) {
	k := kafkatest.Fake(t)
	topic := k.Topics.Timeline
	kafkatest.Broken(t, k, topic, 10, 2, true)
	kafkatest.Write(t, k, topic, 11, "before")
	kafkatest.Broken(t, k, topic, 11, 2, true)
	kafkatest.Write(t, k, topic, 11, "behind")
	kafkatest.Write(t, k, topic, 12, "beside")
	ctx, c := kafkatest.Deadline(t), reads(t, k, map[int]millrace.Offset{10: 0, 11: 0, 12: 0})
	var values []string
	broken := map[millrace.Partition]millrace.Offset{}
	for len(values) < 2 || len(broken) < 2 {
		read, failed := until(t, ctx, c, 0, 1)
		values = append(values, read...)
		for _, f := range failed {
			if errors.Is(f.Err, kafka.ErrBatchBroken) {
				broken[f.Partition] = f.Next
			}
		}
	}
	if want := []string{"11/before", "12/beside"}; !slices.Equal(values, want) || broken[10] != 0 || broken[11] != 1 {
		t.Errorf("read %q, and stopped at %d", values, broken)
	}
}

// What an aborted transaction leaves is passed over without a look: a partitioner that
// fails leaves it in most partitions.
func TestAbortedTransactionsAreNotLookedAt(t *testing.T) {
	of, k := kafkatest.Controlled(t)
	looks := countLooks(of, nil)
	for range 3 {
		kafkatest.Begin(t, k, k.Topics.Timeline, map[int32][]byte{1: []byte("taken back")})(kgo.TryAbort)
	}
	kafkatest.Write(t, k, k.Topics.Timeline, 1, "kept")
	values, failed := until(t, kafkatest.Deadline(t), reads(t, k, map[int]millrace.Offset{1: 0}), 1, 0)
	if len(values) != 1 || len(failed) > 0 || looks.Load() > 0 {
		t.Errorf("read %q, %v with %d looks", values, failed, looks.Load())
	}
}

// What is behind a gap of which Kafka tells nothing is not delivered until it does.
func TestAGapThatIsNotKnownIsWaitedFor(t *testing.T) {
	of, k := kafkatest.Controlled(t)
	ctx := kafkatest.Deadline(t)
	kafkatest.Write(t, k, k.Topics.Timeline, 1, "before")
	kafkatest.Overlong(t, k, k.Topics.Timeline, 1, 0, false, []byte("bad"))
	kafkatest.Write(t, k, k.Topics.Timeline, 1, "behind")
	var away atomic.Bool
	away.Store(true)
	countLooks(of, &away)
	c := reads(t, k, map[int]millrace.Offset{1: 0})
	values, failed := until(t, ctx, c, 1, 2)
	if !slices.Equal(values, []string{"1/before"}) || errors.Is(failed[1].Err, kafka.ErrLostPosition) || failed[1].Next != 1 {
		t.Errorf("read %q, and at %d %v", values, failed[1].Next, failed[1].Err)
	}
	away.Store(false)
	for {
		values, failed := until(t, ctx, c, 0, 1)
		if len(values) > 0 {
			t.Fatalf("read %q", values)
		}
		if errors.Is(failed[0].Err, kafka.ErrBatchBroken) {
			return
		}
	}
}

// A partition that is removed while a gap in it is looked at is not read on.
func TestAPartitionThatIsRemovedMeanwhileStaysRemoved(t *testing.T) {
	of, k := kafkatest.Controlled(t)
	ctx, stop := context.WithCancel(kafkatest.Deadline(t))
	kafkatest.Write(t, k, k.Topics.Timeline, 1, "before")
	kafkatest.Overlong(t, k, k.Topics.Timeline, 1, 0, false, []byte("bad"))
	kafkatest.Write(t, k, k.Topics.Timeline, 1, "behind")
	looking, look := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(looking) })
	of.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		of.KeepControl()
		if r.(*kmsg.FetchRequest).MaxBytes != 1<<20 {
			return nil, nil, false
		}
		of.SleepControl(func() {
			once()
			<-look
		})
		return nil, errors.New("away"), true
	})
	c := reads(t, k, map[int]millrace.Offset{1: 0})
	polled := make(chan []Fetched, 1)
	go func() {
		all, _ := c.Poll(ctx, 100)
		polled <- all
	}()
	<-looking
	c.Remove(onTimeline(1))
	close(look)
	time.AfterFunc(2*lookWithin, stop)
	if got := <-polled; len(got) > 0 {
		t.Errorf("of a partition that was removed come %+v", got)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.mu.next) > 0 {
		t.Errorf("it is read again: %v", c.mu.next)
	}
}

// countLooks counts looks at what is in the log, and answers none while it is away.
func countLooks(of *kfake.Cluster, away *atomic.Bool) *atomic.Int64 {
	n := new(atomic.Int64)
	of.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		of.KeepControl()
		if r.(*kmsg.FetchRequest).MaxBytes != 1<<20 {
			return nil, nil, false
		}
		n.Add(1)
		return nil, errors.New("away"), away != nil && away.Load()
	})
	return n
}
