package kafka_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
)

// A transaction that is open hides what is behind it, and is told by its name and since
// when it is open; once it ends nothing is hidden.
func TestOpenTransactionsAreTold(t *testing.T) {
	k := kafkatest.Fake(t)
	ctx := kafkatest.Deadline(t)
	i, err := kafka.NewInspector(k.Brokers)
	kafkatest.Must(t, err)
	t.Cleanup(i.Close)
	kafkatest.Write(t, k, k.Content, 0, "before")
	began := time.Now().Add(-time.Second)
	end := kafkatest.Begin(t, k, k.Content, map[int32][]byte{0: []byte("open")})
	kafkatest.Write(t, k, k.Content, 0, "behind")
	at, err := i.Extent(ctx, k.Content)
	kafkatest.Must(t, err)
	hidden := at.Hidden(nil)
	if hidden == nil || hidden.Entries != 2 || hidden.From[0] != 1 || len(hidden.From) != 1 {
		t.Fatalf("hidden is %+v", hidden)
	}
	open, err := i.OldestOpen(ctx, hidden)
	kafkatest.Must(t, err)
	if open == nil || open.ID == "" || open.Partition != 0 || open.Offset != millrace.Offset(1) || open.Since.Before(began) || open.Since.After(time.Now()) {
		t.Errorf("the oldest open transaction is %+v", open)
	}
	end(kgo.TryCommit)
	at, err = i.Extent(ctx, k.Content)
	kafkatest.Must(t, err)
	if h := at.Hidden(nil); h != nil {
		t.Errorf("hidden afterwards is %+v", h)
	}
	if open, err := i.OldestOpen(ctx, hidden); open != nil || err != nil {
		t.Errorf("open afterwards is %+v, %v", open, err)
	}
}

// Of several open transactions the oldest is told, with the lowest of its partitions. One of
// which Kafka does not say since when it is open comes last.
func TestTheOldestOpenTransactionIsTold(t *testing.T) {
	of, k := kafkatest.Controlled(t)
	i, err := kafka.NewInspector(k.Brokers)
	kafkatest.Must(t, err)
	t.Cleanup(i.Close)
	const a, b = 7, 5 // producers
	begun := map[int32]map[int64]int64{0: {a: -1}, 1: {b: 40, a: 50}, 2: {a: 60, b: 70}}
	var named map[string]int64 // producers by the ids of transactions
	var since map[int64]int64  // in ms, by producer; negative: Kafka refuses to tell
	of.Control(func(r kmsg.Request) (kmsg.Response, error, bool) {
		of.KeepControl()
		switch req := r.(type) {
		case *kmsg.DescribeProducersRequest:
			resp := req.ResponseKind().(*kmsg.DescribeProducersResponse)
			for _, asked := range req.Topics {
				topic := kmsg.NewDescribeProducersResponseTopic()
				topic.Topic = asked.Topic
				for _, p := range asked.Partitions {
					part := kmsg.NewDescribeProducersResponseTopicPartition()
					part.Partition = p
					for id, start := range begun[p] {
						one := kmsg.NewDescribeProducersResponseTopicPartitionActiveProducer()
						one.ProducerID, one.CurrentTxnStartOffset = id, start
						part.ActiveProducers = append(part.ActiveProducers, one)
					}
					topic.Partitions = append(topic.Partitions, part)
				}
				resp.Topics = append(resp.Topics, topic)
			}
			return resp, nil, true
		case *kmsg.ListTransactionsRequest:
			resp := req.ResponseKind().(*kmsg.ListTransactionsResponse)
			for name, id := range named {
				one := kmsg.NewListTransactionsResponseTransactionState()
				one.TransactionalID, one.ProducerID, one.TransactionState = name, id, "Ongoing"
				resp.TransactionStates = append(resp.TransactionStates, one)
			}
			return resp, nil, true
		case *kmsg.DescribeTransactionsRequest:
			resp := req.ResponseKind().(*kmsg.DescribeTransactionsResponse)
			for _, name := range req.TransactionalIDs {
				one := kmsg.NewDescribeTransactionsResponseTransactionState()
				one.TransactionalID, one.ProducerID, one.StartTimestamp = name, named[name], since[named[name]]
				if one.StartTimestamp < 0 {
					one.StartTimestamp, one.ErrorCode = 1, kerr.TransactionalIDNotFound.Code
				}
				resp.TransactionStates = append(resp.TransactionStates, one)
			}
			return resp, nil, true
		}
		return nil, nil, false
	})
	both := map[string]int64{"A": a, "B": b, "of another topic": 99}
	hidden := &kafka.Hidden{Topic: k.Content, From: map[int32]int64{0: 0, 1: 0, 2: 0}}
	for name, c := range map[string]struct {
		named map[string]int64
		since map[int64]int64
		id    string
		of    int64
		at    int64
	}{
		"the first is older":            {both, map[int64]int64{a: 1000, b: 2000, 99: 1}, "A", a, 1000},
		"the second is older":           {both, map[int64]int64{a: 2000, b: 1000}, "B", b, 1000},
		"both are as old":               {both, map[int64]int64{a: 1000, b: 1000}, "B", b, 1000},
		"the first is not known":        {both, map[int64]int64{a: 0, b: 2000}, "B", b, 2000},
		"the second is not known":       {both, map[int64]int64{a: 2000, b: 0}, "A", a, 2000},
		"the second is not to be known": {both, map[int64]int64{a: 2000, b: -1}, "A", a, 2000},
		"none is known":                 {both, map[int64]int64{}, "B", b, 0},
		"none has a name":               {nil, map[int64]int64{a: 1000, b: 2000}, "", b, 0},
	} {
		named, since = c.named, c.since
		got, err := i.OldestOpen(kafkatest.Deadline(t), hidden)
		want := kafka.Transaction{ID: c.id, ProducerID: c.of, Partition: 1, Offset: millrace.Offset(begun[1][c.of])}
		if c.at > 0 {
			want.Since = time.UnixMilli(c.at)
		}
		if err != nil || got == nil || *got != want {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, want)
		}
	}
	begun = map[int32]map[int64]int64{0: {a: -1}}
	if got, err := i.OldestOpen(kafkatest.Deadline(t), hidden); got != nil || err != nil {
		t.Errorf("none is open, and %+v is told, %v", got, err)
	}
}

// What a group has to consume is what is behind its offsets; without one, all there is. Of
// groups that have committed, one with an offset of the topic consumes it.
func TestLag(t *testing.T) {
	k, ctx := kafkatest.Fake(t), kafkatest.Deadline(t)
	i, err := kafka.NewInspector(k.Brokers)
	kafkatest.Must(t, err)
	t.Cleanup(i.Close)
	for range 3 {
		kafkatest.Write(t, k, k.Content, 0, "a")
		kafkatest.Write(t, k, k.Content, 2, "a")
	}
	kafkatest.Write(t, k, k.Topics.Timeline, 719, "a")
	var done kadm.Offsets
	done.AddOffset(k.Content, 0, 1, -1)
	done.AddOffset(k.Content, 1, 5, -1) // beyond its end
	kafkatest.Must(t, kafkatest.Admin(t, k.Brokers).CommitAllOffsets(ctx, "g", done))
	for _, c := range []struct {
		group, topic string
		want         int64
	}{{"g", k.Content, 5}, {"g", k.Topics.Timeline, 1}, {"g", k.Topics.Features, 0}} {
		if got, err := i.Lag(ctx, c.group, c.topic); err != nil || got != c.want {
			t.Errorf("%s lags behind %s by %d, %v, want %d", c.group, c.topic, got, err, c.want)
		}
	}
	if ends, err := i.Ends(ctx, k.Content); err != nil || !slices.Equal(ends, []millrace.Offset{3, 0, 3}) {
		t.Errorf("it ends at %v, %v", ends, err)
	}
	if starts, err := i.Starts(ctx, k.Content); err != nil || !slices.Equal(starts, []millrace.Offset{0, 0, 0}) {
		t.Errorf("it begins at %v, %v", starts, err)
	}
	for topic, want := range map[string]string{k.Content: "g", k.Topics.Timeline: ""} {
		if got, err := i.Consumption(ctx, topic); err != nil || got.Group != want || got.Running {
			t.Errorf("%s is consumed by %+v, %v", topic, got, err)
		}
	}
	gone, stop := context.WithCancel(ctx)
	stop()
	if there, err := i.Exists(gone, k.Topics.Schemas); there || err == nil {
		t.Errorf("without an answer it exists: %v, %v", there, err)
	}
	if lag, err := i.Lag(gone, "g", k.Content); lag != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("without an answer it lags by %d, %v", lag, err)
	}
}

// The first entry of a time that Kafka cannot find, since it is in a broken batch, is looked
// for from earlier and earlier times on.
func TestStartsAfterATimeInABrokenBatch(t *testing.T) {
	of, k := kafkatest.Controlled(t)
	var asked []int64
	var fault int16
	var broken int64 // times from which on the fault is answered
	of.ControlKey(int16(kmsg.ListOffsets), func(r kmsg.Request) (kmsg.Response, error, bool) {
		of.KeepControl()
		req := r.(*kmsg.ListOffsetsRequest)
		resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
		at := req.Topics[0].Partitions[0].Timestamp
		asked = append(asked, at)
		for _, one := range req.Topics {
			topic := kmsg.NewListOffsetsResponseTopic()
			topic.Topic = one.Topic
			for _, p := range one.Partitions {
				answer := kmsg.NewListOffsetsResponseTopicPartition()
				answer.Partition, answer.Offset, answer.Timestamp = p.Partition, at/1000, at
				if at < 0 {
					answer.Offset = 2
				}
				if at >= broken {
					answer.ErrorCode = fault
				}
				topic.Partitions = append(topic.Partitions, answer)
			}
			resp.Topics = append(resp.Topics, topic)
		}
		return resp, nil, true
	})
	for _, c := range []struct {
		from, broken int64
		fault        *kerr.Error
		asked        []int64
		begins       int64 // -1: it fails
		starts       int64
	}{
		{9000, 10000, kerr.CorruptMessage, []int64{9000}, 9000, 9},
		{9000, 8500, kerr.CorruptMessage, []int64{9000, 8000}, 8000, 8},
		{9000, 6000, kerr.UnknownServerError, []int64{9000, 8000, 7000, 5000}, 5000, 5},
		{9000, 0, kerr.CorruptMessage, []int64{9000, 8000, 7000, 5000, 1000, -2}, 0, 2},
		{9000, 0, kerr.TopicAuthorizationFailed, []int64{9000}, -1, 0},
		{0, -9, kerr.CorruptMessage, []int64{-2}, -1, 0},
	} {
		asked, broken, fault = nil, c.broken, c.fault.Code
		starts, begins, err := kafka.StartsAfter(kafkatest.Deadline(t), kafkatest.Admin(t, k.Brokers), k.Content, millrace.Time(c.from))
		if (err != nil) != (c.begins < 0) || err != nil && !errors.Is(err, c.fault) || !slices.Equal(asked, c.asked) {
			t.Errorf("from %d: asked at %d: %v", c.from, asked, err)
		}
		if c.begins >= 0 && (int64(begins) != c.begins || len(starts) != 3 || starts[2] != c.starts) {
			t.Errorf("from %d: %v, of %d", c.from, starts, begins)
		}
	}
}
