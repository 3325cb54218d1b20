package streams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
)

// What a poll brought of a partition is what is behind the place that is read next; if the log
// lost what was there, nothing is.
func TestTakes(t *testing.T) {
	tp := kafka.TopicPartition{Stream: kafka.Features, Partition: 3}
	records := func(offsets ...int64) (all []*kgo.Record) {
		for _, o := range offsets {
			all = append(all, &kgo.Record{Offset: o, LeaderEpoch: 4, Timestamp: time.UnixMilli(o)})
		}
		return all
	}
	for name, c := range map[string]struct {
		p       kgo.FetchPartition
		told    bool
		offsets []millrace.Offset
		next    millrace.Offset
		kind    error
		goesOn  bool
	}{
		"records":              {kgo.FetchPartition{Records: records(5, 6)}, true, []millrace.Offset{5, 6}, 7, nil, true},
		"one":                  {kgo.FetchPartition{Records: records(5)}, true, []millrace.Offset{5}, 6, nil, true},
		"some before it":       {kgo.FetchPartition{Records: records(3, 4, 5)}, true, []millrace.Offset{5}, 6, nil, true},
		"all before it":        {kgo.FetchPartition{Records: records(3, 4)}, false, nil, 5, nil, true},
		"nothing":              {kgo.FetchPartition{}, false, nil, 5, nil, true},
		"the log begins later": {kgo.FetchPartition{Records: records(7), LogStartOffset: 7}, true, nil, 5, kafka.ErrLostPosition, false},
		"it begins here":       {kgo.FetchPartition{Records: records(5), LogStartOffset: 5}, true, []millrace.Offset{5}, 6, nil, true},
		"it begins between":    {kgo.FetchPartition{Records: records(5), LogStartOffset: 6}, true, []millrace.Offset{5}, 6, nil, true},
		"a fault":              {kgo.FetchPartition{Err: kerr.NotLeaderForPartition}, true, nil, 5, kerr.NotLeaderForPartition, true},
		"a fault behind one":   {kgo.FetchPartition{Records: records(5), Err: kerr.NotLeaderForPartition}, true, []millrace.Offset{5}, 6, kerr.NotLeaderForPartition, true},
		"out of range":         {kgo.FetchPartition{Err: kerr.OffsetOutOfRange}, true, nil, 5, kafka.ErrLostPosition, false},
		"a log that was cut":   {kgo.FetchPartition{Err: &kgo.ErrDataLoss{}}, true, nil, 5, kafka.ErrCutLog, false},
		"too large":            {kgo.FetchPartition{Err: &kgo.ErrDecompressTooLarge{}}, true, nil, 5, kafka.ErrBatchTooLarge, false},
	} {
		s, err := NewConsumer(Config{Brokers: kafka.At("127.0.0.1:1")})
		kafkatest.Must(t, err)
		s.mu.poll = 1
		s.mu.next[tp] = kafka.Position{Next: 5, Epoch: 2}
		c.p.Partition = 3
		f, told := s.take(t.Context(), kgo.FetchTopicPartition{Topic: "features", FetchPartition: c.p})
		var offsets []millrace.Offset
		for _, r := range f.Records {
			offsets = append(offsets, r.Offset)
		}
		epoch := int32(2)
		if f.Next > 5 {
			epoch = 4
		}
		now, read := s.mu.next[tp]
		if told != c.told || !slices.Equal(offsets, c.offsets) || f.From != 5 || f.Next != c.next || f.Epoch != epoch || !errors.Is(f.Err, c.kind) || (f.Err == nil) != (c.kind == nil) || read != c.goesOn || read && now != (kafka.Position{Next: c.next, Epoch: epoch}) {
			t.Errorf("%s: %+v, %v; then at %+v, %v", name, f, told, now, read)
		}
		for _, p := range []kgo.FetchTopicPartition{{Topic: "other", FetchPartition: c.p}, {Topic: "timeline", FetchPartition: c.p}, {Topic: "features", FetchPartition: kgo.FetchPartition{Partition: -1}}} {
			if f, told := s.take(t.Context(), p); told {
				t.Errorf("of %s/%d, which is not read: %+v", p.Topic, p.Partition, f)
			}
		}
		// What is from before a move within the same poll is fetched again.
		s.Add(map[kafka.TopicPartition]kafka.Position{tp: {Next: 9, Epoch: -1}})
		if f, told := s.take(t.Context(), kgo.FetchTopicPartition{Topic: "features", FetchPartition: kgo.FetchPartition{Partition: 3, Records: records(9)}}); read && (told || s.mu.next[tp].Next != 9) {
			t.Errorf("%s: of the old place: %+v", name, f)
		}
		s.Close()
		if _, err := s.Poll(t.Context(), 1); !errors.Is(err, kafka.ErrClosed) {
			t.Errorf("closed: %v", err)
		}
	}
}

// A piece ends where it is to end, in offset and in time; a fault behind its end is none of
// it.
func TestPiecesAreCut(t *testing.T) {
	f := Fetched{Next: 9, Epoch: 4, Err: io.EOF, Records: []Record{{Offset: 5, Time: 50}, {Offset: 6, Time: 70}, {Offset: 8, Time: 60}}}
	for _, c := range []struct {
		until   millrace.Time
		to      millrace.Offset
		offsets []millrace.Offset
		next    millrace.Offset
	}{
		{0, 10, []millrace.Offset{5, 6, 8}, 9}, {0, 9, []millrace.Offset{5, 6, 8}, 9}, {0, 8, []millrace.Offset{5, 6}, 8}, {60, 10, []millrace.Offset{5, 8}, 9}, {59, 10, []millrace.Offset{5}, 9}, {60, 7, []millrace.Offset{5}, 7},
	} {
		in := f
		in.Records = slices.Clone(f.Records)
		got, err := (&tails{until: c.until}).cut(in, c.to)
		var offsets []millrace.Offset
		for _, r := range got.Records {
			offsets = append(offsets, r.Offset)
		}
		ended := c.to <= 9
		if err != nil || !slices.Equal(offsets, c.offsets) || got.Next != c.next || (got.Err == nil) != ended || (got.Epoch == -1) != ended {
			t.Errorf("up to %d, %d: %+v, %v", c.to, c.until, got, err)
		}
	}
	f.Records[1].appendTime = true
	if _, err := (&tails{until: 99}).cut(f, 10); !errors.Is(err, errLogAppendTime) {
		t.Errorf("of no time of a transaction: %v", err)
	}
	if _, err := (&tails{}).cut(f, 10); err != nil {
		t.Errorf("where time is no matter: %v", err)
	}
	for _, err := range []error{errOf(NewConsumer(Config{})), ReadTails(t.Context(), TailsConfig{}, nil, nil), errOf(At(t.Context(), kafka.Brokers{}, kafka.Topics{}, 1)), errOf(At(t.Context(), kafka.At("127.0.0.1:1"), kafka.Topics{}, millrace.TimeOf(time.Now().Add(-settled).Add(time.Minute))))} {
		if err == nil {
			t.Error("without Kafka, or too early, there is no error")
		}
	}
}

func errOf[T any](_ T, err error) error { return err }

// What Kafka refuses to list, or leaves out, is an error; a time behind all records is the end.
func TestOffsetsThatAreNotListed(t *testing.T) {
	of, k := kafkatest.Controlled(t)
	ctx := kafkatest.Deadline(t)
	c, err := NewConsumer(Config{Brokers: k.Brokers, Topics: k.Topics})
	kafkatest.Must(t, err)
	defer c.Close()
	kafkatest.Write(t, k, k.Topics.Features, 7, "a")
	one, two := kafka.TopicPartition{Stream: kafka.Features, Partition: 7}, kafka.TopicPartition{Stream: kafka.Timeline, Partition: 8}
	for _, at := range []millrace.Time{-5, 0, 1, millrace.TimeOf(time.Now().Add(time.Hour))} {
		got, err := c.OffsetsSince(ctx, at, one, two)
		want := millrace.Offset(0)
		if at > 1 {
			want = 1
		}
		if err != nil || len(got) != 2 || got[one] != want || got[two] != 0 {
			t.Errorf("since %d: %v, %v", int64(at), got, err)
		}
	}
	var answer func(*kmsg.ListOffsetsResponse)
	of.ControlKey(int16(kmsg.ListOffsets), func(r kmsg.Request) (kmsg.Response, error, bool) {
		of.KeepControl()
		resp := r.ResponseKind().(*kmsg.ListOffsetsResponse)
		for _, asked := range r.(*kmsg.ListOffsetsRequest).Topics {
			topic := kmsg.NewListOffsetsResponseTopic()
			topic.Topic = asked.Topic
			for _, p := range asked.Partitions {
				part := kmsg.NewListOffsetsResponseTopicPartition()
				part.Partition, part.Offset = p.Partition, 5
				topic.Partitions = append(topic.Partitions, part)
			}
			resp.Topics = append(resp.Topics, topic)
		}
		answer(resp)
		return resp, nil, true
	})
	for name, c2 := range map[string]struct {
		change func(*kmsg.ListOffsetsResponse)
		fails  bool
	}{
		"as it is": {func(*kmsg.ListOffsetsResponse) {}, false},
		"a partition is refused": {func(r *kmsg.ListOffsetsResponse) {
			r.Topics[0].Partitions[0].ErrorCode = kerr.TopicAuthorizationFailed.Code
		}, true},
		"a partition is left out":     {func(r *kmsg.ListOffsetsResponse) { r.Topics[0].Partitions = nil }, true},
		"a partition of another sort": {func(r *kmsg.ListOffsetsResponse) { r.Topics[0].Topic = "other" }, true},
	} {
		answer = c2.change
		got, err := c.HighWatermarks(ctx, one)
		if (err != nil) != c2.fails || err == nil && got[one] != 5 {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		if _, err := c.OffsetsSince(ctx, 1, one); (err != nil) != c2.fails {
			t.Errorf("%s, since a time: %v", name, err)
		}
		if at, err := At(ctx, k.Brokers, k.Topics, 1); (err != nil) != c2.fails || err == nil && (at.All[1][7] != 5 || at.Any[0][0] != 5) {
			t.Errorf("%s, at a time: %v", name, err)
		}
		soon, stop := context.WithCancel(ctx)
		if c2.fails { // it is asked for again
			soon, stop = context.WithTimeout(ctx, 30*time.Millisecond)
		}
		took := fmt.Errorf("taken: %w", io.EOF)
		if err := ReadTails(soon, TailsConfig{Brokers: k.Brokers, Topics: k.Topics}, map[kafka.TopicPartition]Span{one: {kafka.Position{Next: 1}, 3}}, func(Fetched) error { return took }); err == nil || errors.Is(err, io.EOF) == c2.fails {
			t.Errorf("%s, a piece: %v", name, err)
		}
		stop()
	}
}
