package indexnode

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
)

// maxPoll is how many records one poll brings at most.
const maxPoll = 20_000

// diskFullPause is how long ingest rests when the disk is full.
const diskFullPause = time.Second

// ingest applies what the log brings until ctx is done.
func (h *hosting) ingest(ctx context.Context) error {
	for {
		fetched, err := h.consumer.Poll(ctx, maxPoll)
		if err != nil {
			return err
		}
		for _, f := range fetched {
			if err := h.apply(ctx, f); err != nil {
				return err
			}
		}
		h.promote()
	}
}

// apply brings one partition forward by what one poll brought of it.
func (h *hosting) apply(ctx context.Context, f kafka.Fetched) error {
	n := h.node
	part := &n.parts[f.Partition]
	switch partState(part.state.Load()) {
	case notHosted, quarantined:
		return nil
	}
	if f.Err != nil {
		if errors.Is(f.Err, kafka.ErrLostPosition) {
			h.quarantine(f.Partition, f.Err)
			return nil
		}
		n.log.Warn("reading the log", "partition", f.TopicPartition, "err", f.Err)
	}
	if int64(f.Next) <= part.applied[f.Stream].Load() {
		return nil // moved back and read again
	}

	h.batch.Reset()
	refused := 0
	for _, r := range f.Records {
		if n.aged && f.Stream == kafka.Timeline {
			h.batch.SetClock(f.Partition, r.Time)
		}
		err := h.put(ctx, f.TopicPartition, r)
		if err == nil {
			continue
		}
		var bad *schemas.Error
		if !errors.As(err, &bad) {
			return err
		}
		refused++
		h.deadLetter(ctx, f.TopicPartition, r, bad)
	}
	if refused > 0 {
		// What is refused must be kept before the offset passes it.
		if err := h.producer.Flush(ctx); err != nil {
			return fmt.Errorf("dead letters of %s: %w", f.TopicPartition, err)
		}
	}
	stream := store.Content
	if f.Stream == kafka.Features {
		stream = store.FeatureStream
	}
	h.batch.SetApplied(f.Partition, stream, f.Next)
	return h.commit(ctx, f)
}

// commit applies the batch to the store and writes the caches through, while
// no reader is in the partition.
func (h *hosting) commit(ctx context.Context, f kafka.Fetched) error {
	n := h.node
	part := &n.parts[f.Partition]
	for {
		changes, err := h.changes[:0], n.store.Admit() // before the lock: it may take as long as a flush
		part.mu.Lock()
		part.commits.Add(1)
		if err == nil {
			changes, err = n.store.Apply(&h.batch, changes)
			h.changes = changes
		}
		if err == nil {
			for i := range changes {
				n.writeThrough(&changes[i])
			}
			for _, e := range h.featured {
				n.cache.Remove(millrace.Timeline{Entity: e, Type: cache.Features})
				n.cache.Remove(millrace.Timeline{Entity: e, Type: cache.Objects})
			}
			part.applied[f.Stream].Store(int64(f.Next))
			if n.aged {
				part.clock.Store(int64(n.store.Clock(f.Partition)))
			}
			if len(h.featured) > 0 {
				n.features.Store(true)
			}
		} else if errors.Is(err, store.ErrRewound) {
			part.state.Store(int32(catchingUp)) // the cache has more than the store now
		}
		part.commits.Add(1)
		part.mu.Unlock()
		switch {
		case err == nil:
			h.featured = h.featured[:0]
			n.counters.applied(f.Stream, changes, len(f.Records))
			return nil
		case errors.Is(err, store.ErrDiskFull):
			n.log.Error("disk full: ingest rests, reads go on", "err", err)
			if err := pause(ctx, diskFullPause); err != nil {
				return err
			}
		case errors.Is(err, store.ErrRewound):
			n.log.Error("the store lost what was not flushed: reading it from the log again", "partition", f.Partition, "err", err)
			return h.rewind(ctx, f.Partition)
		case errors.Is(err, store.ErrCorrupt):
			h.quarantine(f.Partition, err)
			return nil
		default:
			return err
		}
	}
}

// put adds one record of the log to the batch. A *schemas.Error refuses the
// record.
func (h *hosting) put(ctx context.Context, tp kafka.TopicPartition, r kafka.Record) error {
	if partition.OfBytes(r.Key) != tp.Partition {
		return &schemas.Error{Reason: "wrong-partition", Detail: fmt.Sprintf("key %q belongs to partition %d", r.Key, partition.OfBytes(r.Key))}
	}
	if err := kafka.CheckCRC(r.CRC, r.Value); err != nil {
		return &schemas.Error{Reason: "bad-checksum", Detail: err.Error()}
	}
	framed, err := schemas.Unframe(r.Value)
	if err != nil {
		return err
	}
	writer, err := h.writer(ctx, framed)
	if err != nil {
		return err
	}
	if writer.Features() != (tp.Stream == kafka.Features) {
		return &schemas.Error{Reason: "wrong-stream", Detail: fmt.Sprintf("schema %s on %s", writer.Name(), tp.Stream)}
	}
	env, err := writer.Envelope(framed.Body)
	if err != nil {
		return err
	}
	key := millrace.Entity(r.Key)
	if tp.Stream == kafka.Features {
		if env.Entity != key {
			return &schemas.Error{Reason: schemas.KeyMismatch, Detail: fmt.Sprintf("key %q, entity %q", key, env.Entity)}
		}
		h.batch.PutFeatures(tp.Partition, key, store.Features{
			Subject: env.Subject, Version: env.Record.Version, Time: env.Record.Time, Schema: env.Record.Schema, Body: env.Record.Body,
		})
		h.featured = append(h.featured, key)
		return nil
	}
	if !concerns(&env, key) {
		return &schemas.Error{Reason: schemas.KeyMismatch, Detail: fmt.Sprintf("key %q is neither the entity %q nor in about", key, env.Entity)}
	}
	h.batch.Put(tp.Partition, millrace.Timeline{Entity: key, Type: env.Type}, env.Record)
	return nil
}

func concerns(env *schemas.Envelope, e millrace.Entity) bool {
	if env.Entity == e {
		return true
	}
	for _, a := range env.About {
		if a == e {
			return true
		}
	}
	return false
}

// deadLetter hands a refused record to the dead letters, byte for byte. Each
// replica does so; a restart may do so again.
func (h *hosting) deadLetter(ctx context.Context, tp kafka.TopicPartition, r kafka.Record, why *schemas.Error) {
	n := h.node
	n.counters.refused(why.Reason)
	n.log.Warn("record refused", "partition", tp, "offset", r.Offset, "reason", why.Reason, "detail", why.Error())
	topics := n.cfg.Topics.WithDefaults()
	from := kafka.Source{Topic: topics.Timeline, Partition: int32(tp.Partition), Offset: r.Offset}
	if tp.Stream == kafka.Features {
		from.Topic = topics.Features
	}
	h.producer.Produce(ctx, kafka.Outgoing{Topic: topics.DeadLetters, Key: r.Key, Value: r.Value, Headers: []kafka.Header{
		{Key: kafka.HeaderReason, Value: []byte(why.Reason)},
		{Key: kafka.HeaderDetail, Value: []byte(why.Error())},
		{Key: kafka.HeaderSource, Value: from.Append(nil)},
	}})
}

// writeThrough keeps the cache equal to the store: a record newer than all
// others continues its timeline, anything else removes it, to be read anew.
// The caller holds the partition's lock for writing.
func (n *Node) writeThrough(c *store.Change) {
	if c.Kind == store.Ignored {
		return
	}
	counted := n.cfg.Store.Retention[c.Timeline.Type].MaxCount > 0
	if c.Kind != store.Inserted || !c.Newest || counted || !n.extend(c.Timeline, c.Record) {
		n.cache.Remove(c.Timeline)
	}
}

// extend continues what the cache has of a timeline by a record, or reports
// false if it must be read anew.
func (n *Node) extend(t millrace.Timeline, r millrace.Record) bool {
	reader := latest(n.schemas.Snapshot(), r.Schema)
	return reader != nil && n.cache.Continue(t, reader.Layout(), 2*n.maxCached, func(rows *column.Appender) error {
		return n.append(rows, reader, r)
	})
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
