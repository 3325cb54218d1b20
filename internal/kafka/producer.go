package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/partition"
)

// Outgoing is a record to produce.
type Outgoing struct {
	Topic     string
	Partition int32
	Key       []byte
	Value     []byte // nil is a null value, which is not an empty one
	Headers   []Header
}

func (o *Outgoing) kgo() *kgo.Record {
	r := &kgo.Record{Topic: o.Topic, Partition: o.Partition, Key: o.Key, Value: o.Value}
	if len(o.Headers) > 0 {
		r.Headers = make([]kgo.RecordHeader, len(o.Headers))
		for i, h := range o.Headers {
			r.Headers[i] = kgo.RecordHeader{Key: h.Key, Value: h.Value}
		}
	}
	return r
}

// ToStream is the record of a stream for entity: its partition and its headers
// src and crc are as index nodes expect them. topic is the stream's topic.
func ToStream(topic string, entity millrace.Entity, value []byte, from Source) Outgoing {
	key := []byte(entity)
	return Outgoing{
		Topic:     topic,
		Partition: int32(partition.OfBytes(key)),
		Key:       key,
		Value:     value,
		Headers: []Header{
			{HeaderSource, from.Append(nil)},
			{HeaderCRC, appendCRC(make([]byte, 0, 4), value)},
		},
	}
}

// Producer produces outside of any group or transaction: idempotently, in
// order within a partition, and with bounded memory. A record that fails takes
// no other with it.
type Producer struct {
	cl    *kgo.Client
	acked atomic.Int64
	mu    struct {
		sync.Mutex
		err error // the first of Produce since the last Flush
	}
}

// NewProducer connects. Records to the topic deadLetters (empty = none) may be
// as large as whatever can be read.
func NewProducer(brokers Brokers, deadLetters string, log *slog.Logger) (*Producer, error) {
	cl, err := newClient(brokers, log,
		kgo.MaxBufferedRecords(20_000),
		kgo.MaxBufferedBytes(maxDeadLetterBytes),
		batchBytes(deadLetters),
	)
	if err != nil {
		return nil, err
	}
	return &Producer{cl: cl}, nil
}

// batchBytes bounds what is sent at once to a topic by what the topic takes.
func batchBytes(deadLetters string) kgo.Opt {
	return kgo.ProducerBatchMaxBytesFn(func(topic string) int32 {
		if topic == deadLetters {
			return maxDeadLetterBytes
		}
		return maxTimelineBatchBytes
	})
}

// Close drops what is not flushed.
func (p *Producer) Close() { p.cl.Close() }

// Produce hands a record over, waiting while the buffers are full. A failure
// is told by Flush.
func (p *Producer) Produce(ctx context.Context, o Outgoing) {
	p.ProduceThen(ctx, o, func(err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.mu.err == nil {
			p.mu.err = err
		}
	})
}

// ProduceThen hands a record over and calls then once, with nil when the record
// is in the log. It waits while the buffers are full, at most until ctx ends;
// a record that has not been sent by then fails with ctx's error. A failure is
// told to then alone. then must not block.
func (p *Producer) ProduceThen(ctx context.Context, o Outgoing, then func(error)) {
	p.cl.Produce(ctx, o.kgo(), func(r *kgo.Record, err error) {
		if err != nil {
			then(fmt.Errorf("kafka: produce to %s/%d: %w", r.Topic, r.Partition, err))
			return
		}
		p.acked.Add(1)
		then(nil)
	})
}

// Flush waits until everything produced is acknowledged or has failed, and
// returns the first failure of Produce since the last Flush.
func (p *Producer) Flush(ctx context.Context) error {
	if err := p.cl.Flush(ctx); err != nil {
		return fmt.Errorf("kafka: flush: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.mu.err
	p.mu.err = nil
	return err
}

// Acknowledged returns how many records have been acknowledged.
func (p *Producer) Acknowledged() int64 { return p.acked.Load() }

// Err returns what Flush would without waiting, and leaves it to Flush.
func (p *Producer) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.err
}
