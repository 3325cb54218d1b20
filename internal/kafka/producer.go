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

// Record returns the record as one of franz-go.
func (o *Outgoing) Record() *kgo.Record {
	r := new(kgo.Record)
	o.fill(r)
	return r
}

func (o *Outgoing) fill(r *kgo.Record) {
	r.Topic, r.Partition, r.Key, r.Value, r.Headers = o.Topic, o.Partition, o.Key, o.Value, o.Headers
}

// ToStream returns the record of a stream for entity, with the partition and the headers
// src and crc that index nodes expect. topic is the stream's topic, and from is where the
// input was read.
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

// maxPlaceBytes is how many bytes the rest of the header src and the header crc take at
// most: two slashes, a partition, an offset and a checksum.
const maxPlaceBytes = 2 + 10 + 19 + 4

// Producer produces records outside of any group or transaction: idempotently, in order
// within a partition, and with bounded memory. If a record fails, the others go on.
type Producer struct {
	cl       *kgo.Client
	produced func(*kgo.Record, error) // is called with the outcome of each record of Produce
	acked    atomic.Int64             // records acknowledged
	mu       struct {
		sync.Mutex
		err error // the first failure of Produce since the last Flush
	}
}

// NewProducer returns a Producer. Batches to the topic deadLetters (empty: none) may be
// as large as anything that can be read. Close it at the end.
func NewProducer(brokers Brokers, deadLetters string, log *slog.Logger) (*Producer, error) {
	return newProducer(brokers, log, BatchBytes(deadLetters))
}

// NewBulkProducer is NewProducer for many records to few partitions. It waits for a
// moment before it sends, so that batches are large, and compresses them well.
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

// maxBufferedRecords is the most records that may wait to be acknowledged.
const maxBufferedRecords = 20_000

// BatchBytes returns the option that bounds a batch by what its topic takes. deadLetters
// is the topic of dead letters; empty: none.
func BatchBytes(deadLetters string) kgo.Opt {
	return kgo.ProducerBatchMaxBytesFn(func(topic string) int32 {
		if topic == deadLetters {
			return maxDeadLetterBytes
		}
		return MaxTimelineBatchBytes
	})
}

// Close ends the producer. Records that are not acknowledged yet fail.
func (p *Producer) Close() { p.cl.Close() }

// Produce hands a record over; it waits while the buffers are full. Flush returns its
// failure.
func (p *Producer) Produce(ctx context.Context, o Outgoing) {
	p.cl.Produce(ctx, o.Record(), p.produced)
}

// ProduceAll hands records over, each as Produce does.
func (p *Producer) ProduceAll(ctx context.Context, all []Outgoing) {
	records := make([]kgo.Record, len(all))
	for i := range all {
		all[i].fill(&records[i])
		p.cl.Produce(ctx, &records[i], p.produced)
	}
}

// ProduceThen hands a record over and calls then once, with nil when the record
// is in the log. It waits while the buffers are full, at most until ctx ends;
// a record that has not been sent by then fails with ctx's error. Only then gets a
// failure; Flush does not return it. then must not block.
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

// Err returns the first failure of Produce since the last Flush that is known now; nil:
// none. It does not wait. Flush still returns the failure.
func (p *Producer) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.err
}
