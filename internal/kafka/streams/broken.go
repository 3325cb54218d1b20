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

// This file is how a Consumer finds batches that are broken in the log. franz-go, the Kafka
// client, skips such a batch silently if it fetched others with it, and fetches it again
// and again if not. Only partitioners write to these topics, so such a batch is corruption,
// and its partition is not read any further.

// lookWithin bounds the time that a Poll spends looking at one partition.
const lookWithin = 2 * time.Second

// whole returns the records up to the first gap that has a batch which cannot be read, with
// that batch; or up to the first gap that Kafka cannot be asked about now, with an error.
// It does not look into a gap with the end of an aborted transaction behind it, and takes
// it for that transaction's records. A partitioner that fails leaves such a gap in most
// partitions, and to look at each would delay them all.
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
	const typeAt, abort = 2, 0 // the key is a version and a type, two bytes each
	for i := len(records) - 1; i >= 0; i-- {
		if r := records[i]; r.Attrs.IsControl() && len(r.Key) >= typeAt+2 && binary.BigEndian.Uint16(r.Key[typeAt:]) == abort {
			return r.Offset
		}
	}
	return -1
}

// stand returns, and stops reading, the partitions that do not get past a batch which
// cannot be read.
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

// removeAt stops reading a partition that is at a position, and returns true. It returns
// false if the partition has been moved or removed meanwhile.
func (c *Consumer) removeAt(tp kafka.TopicPartition, at kafka.Position) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now, read := c.mu.next[tp]; !read || now != at {
		return false
	}
	c.removeLocked(tp)
	return true
}

// brokenAt returns the fault of a partition that has a batch which cannot be read.
func brokenAt(tp kafka.TopicPartition, c *kafka.Closed) error {
	return fmt.Errorf("kafka: read %s at %d: %w: %w", tp, c.First, kafka.ErrBatchBroken, c)
}
