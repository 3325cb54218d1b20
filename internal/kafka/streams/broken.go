package streams

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
)

// This file is how a Consumer finds batches that are broken in the log. franz-go passes
// over one silently where others are fetched with it, and fetches it again and again
// where it is alone. Only partitioners write here, so such a batch is corruption, and its
// partition is not read on.

// lookWithin bounds the looks at one partition: Poll waits for them.
const lookWithin = 2 * time.Second

// whole returns the records up to the first gap that has a batch which cannot be read, or
// of which Kafka tells nothing now. A gap with the end of an aborted transaction behind it
// is taken for that transaction's: a partitioner that fails leaves one in most partitions,
// and to look at each would hold them all up.
func (c *Consumer) whole(ctx context.Context, p kgo.FetchTopicPartition, at millrace.Offset) (records []*kgo.Record, broken *kafka.Closed, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	next, explained := int64(at), lastAbort(p.Records)
	for i, r := range p.Records {
		if next < r.Offset && r.Offset > explained {
			if broken, err = c.looks.Between(ctx, p.Topic, p.Partition, next, r.Offset); broken != nil || err != nil {
				return p.Records[:i], broken, err
			}
		}
		next = max(next, r.Offset+1)
	}
	return p.Records, nil, nil
}

// lastAbort returns the offset of the last record that ends an aborted transaction; -1:
// there is none.
func lastAbort(records []*kgo.Record) int64 {
	const typeAt, abort = 2, 0 // behind a version
	for i := len(records) - 1; i >= 0; i-- {
		if r := records[i]; r.Attrs.IsControl() && len(r.Key) >= typeAt+2 && binary.BigEndian.Uint16(r.Key[typeAt:]) == abort {
			return r.Offset
		}
	}
	return -1
}

// stand returns the partitions that are blocked at a batch which cannot be read.
func (c *Consumer) stand(ctx context.Context, fetches kgo.Fetches) (out []Fetched) {
	for _, p := range c.standing.Polled(fetches) {
		tp, ok := c.name(p.Topic, p.Partition)
		c.mu.Lock()
		next, read := c.mu.next[tp]
		c.mu.Unlock()
		if !ok || !read {
			continue
		}
		within, cancel := context.WithTimeout(ctx, lookWithin)
		broken := c.looks.At(within, p.Topic, p.Partition, int64(next.Next))
		cancel()
		if broken == nil || !c.removeAt(tp, next) {
			continue
		}
		out = append(out, Fetched{TopicPartition: tp, From: next.Next, Next: millrace.Offset(broken.First), Epoch: next.Epoch, Err: brokenAt(tp, broken)})
	}
	return out
}

// removeAt is Remove, unless the partition has been moved or removed meanwhile.
func (c *Consumer) removeAt(tp kafka.TopicPartition, at kafka.Position) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now, read := c.mu.next[tp]; !read || now != at {
		return false
	}
	c.removeLocked(tp)
	return true
}

func brokenAt(tp kafka.TopicPartition, c *kafka.Closed) error {
	return fmt.Errorf("kafka: read %s at %d: %w: %w", tp, c.First, kafka.ErrBatchBroken, c)
}
