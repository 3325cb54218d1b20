package kafka_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
)

func TestProducerFailsOneRecordAlone(t *testing.T) { testProducer(t, kafkatest.Fake(t)) }

// testProducer: a record that cannot be produced takes no other with it, and a
// dead letter may be as large as what was read.
func testProducer(t *testing.T, k kafkatest.Cluster) {
	ctx := kafkatest.Deadline(t)
	p, err := kafka.NewProducer(k.Brokers, k.Topics.DeadLetters, nil)
	kafkatest.Must(t, err)
	defer p.Close()
	large := bytes.Repeat([]byte("0123456789abcdef"), 5<<20/16)
	produce := func(topic string, value []byte) error {
		result := make(chan error, 1)
		p.ProduceThen(ctx, kafka.Outgoing{Topic: topic, Value: value}, func(err error) { result <- err })
		return <-result
	}
	if err := produce(k.Content, large); !errors.Is(err, kerr.MessageTooLarge) {
		t.Errorf("5 MiB to a content topic: %v", err)
	}
	kafkatest.Must(t, produce(k.Content, []byte("small")))
	kafkatest.Must(t, produce(k.Topics.DeadLetters, large))
	kafkatest.Must(t, p.Flush(ctx))

	p.Produce(ctx, kafka.Outgoing{Topic: k.Content, Value: large})
	if err := p.Flush(ctx); !errors.Is(err, kerr.MessageTooLarge) {
		t.Errorf("Flush = %v", err)
	}
	p.Produce(ctx, kafka.Outgoing{Topic: k.Content, Value: []byte("small")})
	kafkatest.Must(t, p.Flush(ctx)) // the failure before is told and over
	if n := p.Acknowledged(); n != 3 {
		t.Errorf("%d acknowledged, want 3", n)
	}
}

// Without Kafka a producer's call ends with its context, also when its buffers
// are full.
func TestProduceThenNeverBlocksForLonger(t *testing.T) {
	_, addr := kafkatest.FreePort(t)
	p, err := kafka.NewProducer(kafka.At(addr), "", nil)
	kafkatest.Must(t, err)
	defer p.Close()
	ctx, cancel := context.WithCancel(t.Context())
	fill := make([]byte, 1<<20)
	for range kafka.MaxDeadLetterBytes / len(fill) {
		p.ProduceThen(t.Context(), kafka.Outgoing{Topic: "any", Value: fill}, func(error) {})
	}
	result := make(chan error, 1)
	go p.ProduceThen(ctx, kafka.Outgoing{Topic: "any", Value: fill}, func(err error) { result <- err })
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("with full buffers: %v", err)
	}
}
