package kafka

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
)

func TestProducerFailsOneRecordAlone(t *testing.T) { testProducer(t, fake(t)) }

// testProducer: a record that cannot be produced takes no other with it, and a
// dead letter may be as large as what was read.
func testProducer(t *testing.T, k cluster) {
	ctx := deadline(t)
	p, err := NewProducer(k.brokers, k.topics.DeadLetters, nil)
	must(t, err)
	defer p.Close()
	large := bytes.Repeat([]byte("0123456789abcdef"), 5<<20/16)
	produce := func(topic string, value []byte) error {
		fate := make(chan error, 1)
		p.ProduceThen(ctx, Outgoing{Topic: topic, Value: value}, func(err error) { fate <- err })
		return <-fate
	}
	if err := produce(k.content, large); !errors.Is(err, kerr.MessageTooLarge) {
		t.Errorf("5 MiB to a content topic: %v", err)
	}
	must(t, produce(k.content, []byte("small")))
	must(t, produce(k.topics.DeadLetters, large))
	must(t, p.Flush(ctx))

	p.Produce(ctx, Outgoing{Topic: k.content, Value: large})
	if err := p.Flush(ctx); !errors.Is(err, kerr.MessageTooLarge) {
		t.Errorf("Flush = %v", err)
	}
	p.Produce(ctx, Outgoing{Topic: k.content, Value: []byte("small")})
	must(t, p.Flush(ctx)) // the failure before is told and over
	if n := p.Acknowledged(); n != 3 {
		t.Errorf("%d acknowledged, want 3", n)
	}
}

// Without Kafka a producer's call ends with its context, also when its buffers
// are full.
func TestProduceThenNeverBlocksForLonger(t *testing.T) {
	_, addr := freePort(t)
	p, err := NewProducer(At(addr), "", nil)
	must(t, err)
	defer p.Close()
	ctx, cancel := context.WithCancel(t.Context())
	fill := make([]byte, 1<<20)
	for range maxDeadLetterBytes / len(fill) {
		p.ProduceThen(t.Context(), Outgoing{Topic: "any", Value: fill}, func(error) {})
	}
	fate := make(chan error, 1)
	go p.ProduceThen(ctx, Outgoing{Topic: "any", Value: fill}, func(err error) { fate <- err })
	cancel()
	if err := <-fate; !errors.Is(err, context.Canceled) {
		t.Errorf("with full buffers: %v", err)
	}
}
