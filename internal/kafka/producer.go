package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

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

// Record is the record as franz-go has it.
func (o *Outgoing) Record() *kgo.Record {
	r := new(kgo.Record)
	o.fill(r)
	return r
}

func (o *Outgoing) fill(r *kgo.Record) {
	r.Topic, r.Partition, r.Key, r.Value, r.Headers = o.Topic, o.Partition, o.Key, o.Value, o.Headers
}

// ToStream is the record of a stream for entity: its partition and its headers
// src and crc are as index nodes expect them. topic is the stream's topic.
func ToStream(topic string, entity millrace.Entity, value []byte, from Source) Outgoing {
	key := []byte(entity)
	src := from.Append(make([]byte, 0, len(from.Topic)+maxPlaceBytes))
	all := appendCRC(src, value)
	return Outgoing{
		Topic:     topic,
		Partition: int32(partition.OfBytes(key)),
		Key:       key,
		Value:     value,
		Headers:   []Header{{Key: HeaderSource, Value: all[:len(src):len(src)]}, {Key: HeaderCRC, Value: all[len(src):]}},
	}
}

// maxPlaceBytes is what a partition and an offset take in a header at most, and a
// checksum behind them.
const maxPlaceBytes = 2 + 10 + 19 + 4

// Producer produces outside of any group or transaction: idempotently, in
// order within a partition, and with bounded memory. A record that fails takes
// no other with it.
type Producer struct {
	cl       *kgo.Client
	produced func(*kgo.Record, error) // told of each record of Produce
	acked    atomic.Int64
	mu       struct {
		sync.Mutex
		err error // the first of Produce since the last Flush
	}
}

// NewProducer connects. Records to the topic deadLetters (empty = none) may be
// as large as whatever can be read.
func NewProducer(brokers Brokers, deadLetters string, log *slog.Logger) (*Producer, error) {
	return newProducer(brokers, log, BatchBytes(deadLetters))
}

// NewBulkProducer is NewProducer for many records to few partitions: it waits for
// a moment, so that batches are large, and compresses them well.
func NewBulkProducer(brokers Brokers, log *slog.Logger) (*Producer, error) {
	return newProducer(brokers, log, BatchBytes(""), kgo.ProducerLinger(bulkLinger), compressed)
}

// bulkLinger is how long a record waits for others of its batch.
const bulkLinger = 50 * time.Millisecond

func newProducer(brokers Brokers, log *slog.Logger, more ...kgo.Opt) (*Producer, error) {
	cl, err := NewClient(brokers, log, append(more, kgo.MaxBufferedRecords(maxBufferedRecords), kgo.MaxBufferedBytes(maxDeadLetterBytes))...)
	if err != nil {
		return nil, err
	}
	p := &Producer{cl: cl}
	p.produced = func(r *kgo.Record, err error) {
		if err == nil {
			p.acked.Add(1)
			return
		}
		p.fail(produceError(r, err))
	}
	return p, nil
}

// maxBufferedRecords is how many records wait to be acknowledged, at most.
const maxBufferedRecords = 20_000

// BatchBytes bounds what is sent at once to a topic by what the topic takes.
func BatchBytes(deadLetters string) kgo.Opt {
	return kgo.ProducerBatchMaxBytesFn(func(topic string) int32 {
		if topic == deadLetters {
			return maxDeadLetterBytes
		}
		return MaxTimelineBatchBytes
	})
}

// Close drops what is not flushed.
func (p *Producer) Close() { p.cl.Close() }

// Produce hands a record over, waiting while the buffers are full. A failure
// is told by Flush.
func (p *Producer) Produce(ctx context.Context, o Outgoing) {
	p.cl.Produce(ctx, o.Record(), p.produced)
}

// ProduceAll hands records over as Produce does each.
func (p *Producer) ProduceAll(ctx context.Context, all []Outgoing) {
	records := make([]kgo.Record, len(all))
	for i := range all {
		all[i].fill(&records[i])
		p.cl.Produce(ctx, &records[i], p.produced)
	}
}

// ProduceThen hands a record over and calls then once, with nil when the record
// is in the log. It waits while the buffers are full, at most until ctx ends;
// a record that has not been sent by then fails with ctx's error. A failure is
// told to then alone. then must not block.
func (p *Producer) ProduceThen(ctx context.Context, o Outgoing, then func(error)) {
	p.cl.Produce(ctx, o.Record(), func(r *kgo.Record, err error) {
		if err != nil {
			then(produceError(r, err))
			return
		}
		p.acked.Add(1)
		then(nil)
	})
}

func produceError(r *kgo.Record, err error) error {
	return fmt.Errorf("kafka: produce to %s/%d: %w", r.Topic, r.Partition, err)
}

// fail keeps the first failure for Flush.
func (p *Producer) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.err == nil {
		p.mu.err = err
	}
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
