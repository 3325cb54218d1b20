package kafka_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
)

// reading is what a span of a topic had.
type reading struct {
	values []string
	closed []*kafka.Closed
}

func readAll(t *testing.T, k kafkatest.Cluster) (got reading, err error) {
	t.Helper()
	ctx := kafkatest.Deadline(t)
	s, err := kafka.OpenTopic(ctx, k.Brokers, k.Content, 0)
	kafkatest.Must(t, err)
	err = s.Read(ctx, func(value []byte, err error) error {
		if c := (*kafka.Closed)(nil); errors.As(err, &c) {
			got.closed = append(got.closed, c)
		} else {
			got.values = append(got.values, string(value))
		}
		return nil
	})
	slices.Sort(got.values)
	return got, err
}

// A batch that does not decompress, or whose entries do not parse, is told with its
// offsets, and what is before, beside and behind it is read.
func TestBrokenBatchesAreSteppedOver(t *testing.T) {
	k := kafkatest.Fake(t)
	kafkatest.Write(t, k, k.Content, 0, "before")
	kafkatest.Broken(t, k, k.Content, 0, 3, true)
	kafkatest.Broken(t, k, k.Content, 0, 2, true)
	kafkatest.Write(t, k, k.Content, 0, "behind")
	kafkatest.Write(t, k, k.Content, 1, "beside")
	kafkatest.Broken(t, k, k.Content, 2, 4, false)
	got, err := readAll(t, k)
	kafkatest.Must(t, err)
	if want := []string{"before", "behind", "beside"}; !slices.Equal(got.values, want) {
		t.Errorf("read %q, want %q", got.values, want)
	}
	var places [][3]int64
	for _, c := range got.closed {
		places = append(places, [3]int64{int64(c.Partition), c.First, c.Next})
		if c.Why == nil || !strings.Contains(c.Error(), "is broken in the log: ") {
			t.Errorf("why: %v", c)
		}
	}
	slices.SortFunc(places, func(a, b [3]int64) int { return slices.Compare(a[:], b[:]) })
	if want := [][3]int64{{0, 1, 4}, {0, 4, 6}, {2, 0, 4}}; !slices.Equal(places, want) {
		t.Errorf("closed: %d, want %d", places, want)
	}
}

// A batch whose entries do not parse is told, too, where franz-go fetches it with one
// behind it and reads on: at the beginning, between others, and several of them; but
// nothing that a transaction took back.
func TestBrokenBatchesThatAreReadPastAreTold(t *testing.T) {
	k := kafkatest.Fake(t)
	kafkatest.Broken(t, k, k.Content, 0, 3, false)
	kafkatest.Write(t, k, k.Content, 0, "a")
	kafkatest.Broken(t, k, k.Content, 0, 2, false)
	kafkatest.Broken(t, k, k.Content, 0, 1, false)
	kafkatest.Write(t, k, k.Content, 0, "b")
	kafkatest.Begin(t, k, k.Content, map[int32][]byte{0: []byte("taken back"), 1: []byte("taken back")})(kgo.TryAbort)
	kafkatest.Broken(t, k, k.Content, 0, 4, false)
	kafkatest.Write(t, k, k.Content, 0, "c")
	got, err := readAll(t, k)
	kafkatest.Must(t, err)
	if want := []string{"a", "b", "c"}; !slices.Equal(got.values, want) {
		t.Errorf("read %q, want %q", got.values, want)
	}
	var places [][3]int64
	for _, c := range got.closed {
		places = append(places, [3]int64{int64(c.Partition), c.First, c.Next})
		if !strings.Contains(c.Error(), "is broken in the log: its entries do not parse") {
			t.Errorf("why: %v", c)
		}
	}
	if want := [][3]int64{{0, 0, 3}, {0, 4, 6}, {0, 6, 7}, {0, 10, 14}}; !slices.Equal(places, want) {
		t.Errorf("closed: %d, want %d", places, want)
	}
}

// Where a span ends before such a batch, that is none of its; where it ends behind it, it is.
func TestASpanHasTheBrokenBatchesBeforeItsEnd(t *testing.T) {
	k, ctx := kafkatest.Fake(t), kafkatest.Deadline(t)
	kafkatest.Write(t, k, k.Content, 0, "a")
	before, err := kafka.OpenTopic(ctx, k.Brokers, k.Content, 0)
	kafkatest.Must(t, err)
	kafkatest.Broken(t, k, k.Content, 0, 2, false)
	behind, err := kafka.OpenTopic(ctx, k.Brokers, k.Content, 0)
	kafkatest.Must(t, err)
	kafkatest.Write(t, k, k.Content, 0, "b")
	for want, s := range []*kafka.TopicSpan{before, behind} {
		broken := 0
		kafkatest.Must(t, s.Read(ctx, func(value []byte, closed error) error {
			if closed != nil {
				broken++
			} else if string(value) != "a" {
				t.Errorf("%q is read", value)
			}
			return nil
		}))
		if broken != want || s.Done() != 1 {
			t.Errorf("%d broken batches, want %d; done %v", broken, want, s.Done())
		}
	}
}

// What lies between records is looked into once Kafka answers, and the reading fails if
// it does not.
func TestGapsAreLookedInto(t *testing.T) {
	of, k := kafkatest.Controlled(t)
	kafkatest.Broken(t, k, k.Content, 0, 2, false)
	kafkatest.Write(t, k, k.Content, 0, "a")
	var looks atomic.Int64
	of.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		of.KeepControl()
		if req := r.(*kmsg.FetchRequest); req.MaxBytes != 1<<20 || looks.Add(1) > 2 { // those of looks
			return nil, nil, false
		}
		return nil, errors.New("away"), true
	})
	got, err := readAll(t, k)
	kafkatest.Must(t, err)
	if len(got.closed) != 1 || !slices.Equal(got.values, []string{"a"}) || looks.Load() < 3 {
		t.Errorf("read %q, %v, after %d looks", got.values, got.closed, looks.Load())
	}
}

// A checksum that is wrong whenever the batch is fetched is one of the log; one that is
// wrong now and then, or of other bytes each time, is a fault of the way, which passes.
func TestOnlyWhatIsBrokenInTheLogIsSteppedOver(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(n int64, raw []byte) // of the n-th fetch
		over   bool
	}{
		{"in the log", func(_ int64, raw []byte) { raw[len(raw)-1] ^= 1 }, true},
		{"its number of entries, too", func(_ int64, raw []byte) { raw[24] ^= 0x40 }, true},
		{"its number of entries, by one", func(_ int64, raw []byte) { raw[26] ^= 1 }, true},
		{"at first", func(n int64, raw []byte) {
			if n < 3 {
				raw[len(raw)-1] ^= 1
			}
		}, false},
		{"in other places", func(n int64, raw []byte) { raw[len(raw)-1] ^= byte(n) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			of, k := kafkatest.Controlled(t)
			kafkatest.Write(t, k, k.Content, 0, "damaged")
			kafkatest.Write(t, k, k.Content, 0, "behind")
			cl, err := kafka.NewClient(k.Brokers, nil)
			kafkatest.Must(t, err)
			defer cl.Close()
			whole, err := kafka.RawFetch{Topic: k.Content, At: 0, MaxBytes: 1 << 20}.Do(kafkatest.Deadline(t), cl)
			kafkatest.Must(t, err)
			var fetches atomic.Int64
			of.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
				of.KeepControl()
				req := r.(*kmsg.FetchRequest)
				if len(req.Topics) != 1 || req.Topics[0].Partitions[0].FetchOffset != 0 {
					return nil, nil, false
				}
				p := *whole
				p.RecordBatches = bytes.Clone(whole.RecordBatches)
				n := 12 + int(p.RecordBatches[11])
				c.damage(fetches.Add(1), p.RecordBatches[:n])
				resp := req.ResponseKind().(*kmsg.FetchResponse)
				topic := kmsg.NewFetchResponseTopic()
				topic.Topic, topic.TopicID, topic.Partitions = k.Content, req.Topics[0].TopicID, []kmsg.FetchResponseTopicPartition{p}
				resp.Topics = append(resp.Topics, topic)
				return resp, nil, true
			})
			// A gap is judged in the same way: it is asked for until it is known.
			ctx := kafkatest.Deadline(t)
			if c.name == "in other places" {
				soon, stop := context.WithTimeout(ctx, 250*time.Millisecond)
				defer stop()
				ctx = soon
			}
			broken, failed := kafka.NewLooks(cl).Between(ctx, k.Content, 0, 0, 1)
			if c.over && (failed != nil || broken == nil || broken.First != 0 || broken.Next != 1 || broken.Why == nil) || !c.over && (broken != nil || (failed == nil) != (c.name == "at first")) {
				t.Errorf("between: %v, %v", broken, failed)
			}
			fetches.Store(0)
			got, err := readAll(t, k)
			if c.over {
				if err != nil || !slices.Equal(got.values, []string{"behind"}) || len(got.closed) != 1 || got.closed[0].Next != 1 {
					t.Errorf("read %q, %v, %v", got.values, got.closed, err)
				}
				return
			}
			if len(got.closed) > 0 || err == nil || !strings.Contains(err.Error(), "crc") {
				t.Errorf("read %q, %v, %v", got.values, got.closed, err)
			}
		})
	}
}
