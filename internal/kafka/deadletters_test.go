package kafka_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
)

// Dead letters come in transactions, some of them aborted: what was committed is
// read, whole or in spans, and reading ends where the topic does.
func TestDeadLettersOfTransactions(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	ctx, brokers := t.Context(), kafka.At(c.ListenAddrs()...)
	if err := kafka.EnsureTopics(ctx, brokers, kafka.Topics{}, nil); err != nil {
		t.Fatal(err)
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Addrs(brokers)...), kgo.TransactionalID("writer"))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for round, commit := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryCommit, kgo.TryAbort} {
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			r := &kgo.Record{Topic: "dead-letters", Value: fmt.Appendf(nil, "%d-%d", round, i), Headers: []kgo.RecordHeader{
				{Key: "reason", Value: []byte("not ours")}, {Key: "reason", Value: []byte("bad-framing")}, {Key: "src", Value: []byte("posts/0/1")}}}
			if err := cl.ProduceSync(ctx, r).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		if err := cl.EndTransaction(ctx, commit); err != nil {
			t.Fatal(err)
		}
	}
	log, err := kafka.OpenDeadLetters(ctx, brokers, "dead-letters")
	if err != nil {
		t.Fatal(err)
	}
	read := func(from, to millrace.Offset) (values []string) {
		t.Helper()
		if err := log.Read(ctx, from, to, func(d kafka.DeadLetter) {
			if d.Reason != "bad-framing" || d.Source != "posts/0/1" || d.Offset < from || d.Offset >= to {
				t.Errorf("%+v", d)
			}
			values = append(values, string(d.Value))
		}); err != nil {
			t.Fatal(err)
		}
		return values
	}
	want := []string{"0-0", "0-1", "0-2", "2-0", "2-1", "2-2"}
	if got := read(log.First, log.End); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	var spans []string
	for from := log.First; from < log.End; from++ {
		spans = append(spans, read(from, from+1)...)
	}
	if !slices.Equal(spans, want) {
		t.Errorf("one by one %v, want %v", spans, want)
	}
	if at, err := log.Since(ctx, millrace.TimeOf(time.Now().Add(time.Hour))); err != nil || at != log.End {
		t.Errorf("since a time to come: %d, %v, want the end, %d", at, err, log.End)
	}
}

// The largest batch of letters that a transaction can make is read back.
func TestDeadLettersOfALargeBatch(t *testing.T) {
	k := kafkatest.Fake(t)
	ctx, topic := kafkatest.Deadline(t), k.Topics.DeadLetters
	// As a partitioner's session: a transaction's letters are sent with its commit.
	cl, err := kafka.NewClient(k.Brokers, nil, kgo.TransactionalID(topic), kgo.ProducerLinger(kafka.TransactionTimeout), kgo.MaxBufferedBytes(2*kafka.MaxBatchBytes), kafka.BatchBytes(topic))
	kafkatest.Must(t, err)
	defer cl.Close()
	const letters, room = 16, 1 << 10
	value := make([]byte, (kafka.MaxDeadLetterBytes-room)/letters)
	kafkatest.Must(t, cl.BeginTransaction())
	for range letters {
		cl.Produce(ctx, &kgo.Record{Topic: topic, Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	kafkatest.Must(t, cl.Flush(ctx))
	kafkatest.Must(t, cl.EndTransaction(ctx, kgo.TryCommit))

	log, err := kafka.OpenDeadLetters(ctx, k.Brokers, topic)
	kafkatest.Must(t, err)
	read := 0
	kafkatest.Must(t, log.Read(ctx, log.First, log.End, func(d kafka.DeadLetter) {
		if read++; len(d.Value) != len(value) {
			t.Errorf("letter %d has %d bytes, want %d", d.Offset, len(d.Value), len(value))
		}
	}))
	if read != letters {
		t.Errorf("%d letters are read, want %d", read, letters)
	}
}
