package indexnode

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/schemas"
)

// maxUnknown bounds the schemas remembered as unknown.
const maxUnknown = 1000

// hosting is a running node's work: which partitions it hosts, their ingest,
// and when they are ready.
type hosting struct {
	node      *Node
	consumer  *kafka.Consumer
	producer  *kafka.Producer // of dead letters
	schemaLog *kafka.SchemaLog
	member    *cluster.Membership
	announce  chan struct{} // holds one token when the set of ready partitions changed

	// Of the ingest goroutine alone.
	batch    store.Batch
	changes  []store.Change
	featured []millrace.Entity
	unknown  map[millrace.Fingerprint]struct{} // schemas waited for in vain

	mu struct {
		sync.Mutex
		hosted cluster.Set
		// pending are the hosted partitions not yet caught up, and the
		// offsets that they have to reach.
		pending map[millrace.Partition][2]millrace.Offset
	}
}

func (n *Node) newHosting() (*hosting, error) {
	h := &hosting{node: n, announce: make(chan struct{}, 1), unknown: make(map[millrace.Fingerprint]struct{})}
	h.mu.pending = make(map[millrace.Partition][2]millrace.Offset)
	var err error
	if h.consumer, err = kafka.NewConsumer(kafka.ConsumerConfig{Brokers: n.cfg.Brokers, Topics: n.cfg.Topics, Log: n.log}); err != nil {
		return nil, err
	}
	if h.producer, err = kafka.NewProducer(n.cfg.Brokers, n.log); err != nil {
		h.consumer.Close()
		return nil, err
	}
	return h, nil
}

func (h *hosting) close() {
	if h.schemaLog != nil {
		h.schemaLog.Close()
	}
	h.consumer.Close()
	h.producer.Close()
}

// run hosts what the cluster assigns to the node, which brokers reach at addr.
func (h *hosting) run(ctx context.Context, addr string) (err error) {
	n := h.node
	n.awaits.Store("Kafka")
	if err := kafka.EnsureTopics(ctx, n.cfg.Brokers, n.cfg.Topics); err != nil {
		return err
	}
	h.schemaLog, err = kafka.OpenSchemaLog(ctx, kafka.SchemaLogConfig{
		Brokers: n.cfg.Brokers, Topic: n.cfg.Topics.WithDefaults().Schemas, Registry: n.schemas, Log: n.log,
	})
	if err != nil {
		return err
	}
	n.awaits.Store("etcd, to hear of the assignment and the models")
	watcher, err := n.cfg.Cluster.Watch(ctx)
	if err != nil {
		return err
	}
	packs, err := n.cfg.Cluster.Artefacts(ctx, ModelsKind)
	if err != nil {
		return err
	}
	models := newModelFollower(n, packs, h.schemaLog.Moved)
	models.admit(ctx)
	n.awaits.Store("etcd, to register the node")
	if h.member, err = n.cfg.Cluster.Join(ctx, cluster.Node{ID: n.cfg.ID, Addr: addr, Zone: n.cfg.Zone}); err != nil {
		return err
	}
	defer func() {
		leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		err = cmp.Or(err, h.member.Leave(leave))
	}()
	n.awaits.Store("")

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return h.ingest(ctx) })
	g.Go(func() error { return h.followAssignment(ctx, watcher) })
	g.Go(func() error { return h.followSchemas(ctx) })
	g.Go(func() error { return h.sweep(ctx) })
	g.Go(func() error { return h.announceReady(ctx) })
	g.Go(func() error { return h.followLag(ctx) })
	g.Go(func() error { return models.run(ctx, h.member.SetModels) })
	return g.Wait()
}

// followAssignment hosts what the map says, as it changes.
func (h *hosting) followAssignment(ctx context.Context, w *cluster.Watcher) error {
	for {
		changed := w.Changed()
		if err := h.host(ctx, w.Current().Hosted(h.node.cfg.ID)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// host starts and stops partitions so that exactly want is hosted. What is no
// longer hosted stays on disk until an operator drops it: a mistaken map must
// not delete anything.
func (h *hosting) host(ctx context.Context, want cluster.Set) error {
	h.mu.Lock()
	gone, added := h.mu.hosted.Minus(want), want.Minus(h.mu.hosted)
	h.mu.hosted = want
	h.mu.Unlock()

	if gone.Len() > 0 {
		h.consumer.Remove(both(gone)...)
		for p := range gone.All() {
			h.node.parts[p].state.Store(int32(notHosted))
			h.mu.Lock()
			delete(h.mu.pending, p)
			h.mu.Unlock()
		}
		h.node.log.Info("partitions left", "partitions", gone.Len())
	}
	if added.Len() > 0 {
		if err := h.start(ctx, added); err != nil {
			return err
		}
		h.node.log.Info("partitions added", "partitions", added.Len())
	}
	h.promote()
	return nil
}

// start reads partitions from where the store left off, or from the beginning
// of the log.
func (h *hosting) start(ctx context.Context, added cluster.Set) error {
	n := h.node
	tps := both(added)
	begin, err := h.consumer.StartOffsets(ctx, tps...)
	if err != nil {
		return err
	}
	end, err := h.consumer.EndOffsets(ctx, tps...)
	if err != nil {
		return err
	}
	from := make(map[kafka.TopicPartition]millrace.Offset, len(tps))
	for p := range added.All() {
		var target [2]millrace.Offset
		applied := n.store.Applied(p)
		for stream, next := range [2]millrace.Offset{kafka.Timeline: applied.Content, kafka.Features: applied.Features} {
			tp := kafka.TopicPartition{Stream: kafka.Stream(stream), Partition: p}
			if next < 0 {
				next = begin[tp]
			}
			from[tp], target[stream] = next, end[tp]
			n.parts[p].applied[stream].Store(int64(next))
		}
		if applied.Features > 0 {
			n.features.Store(true)
		}
		n.parts[p].clock.Store(int64(n.store.Clock(p)))
		n.parts[p].state.Store(int32(catchingUp))
		n.parts[p].lag.Store(0)
		h.mu.Lock()
		h.mu.pending[p] = target
		h.mu.Unlock()
	}
	h.consumer.Add(from)
	return nil
}

// both returns the timeline and the features partition of each in s.
func both(s cluster.Set) []kafka.TopicPartition {
	var tps []kafka.TopicPartition
	for p := range s.All() {
		tps = append(tps, kafka.TopicPartition{Stream: kafka.Timeline, Partition: p}, kafka.TopicPartition{Stream: kafka.Features, Partition: p})
	}
	return tps
}

// promote makes ready what has reached its target.
func (h *hosting) promote() {
	n := h.node
	h.mu.Lock()
	defer h.mu.Unlock()
	changed := false
	for p, target := range h.mu.pending {
		if n.parts[p].applied[0].Load() >= int64(target[0]) && n.parts[p].applied[1].Load() >= int64(target[1]) {
			delete(h.mu.pending, p)
			n.parts[p].state.CompareAndSwap(int32(catchingUp), int32(ready))
			changed = true
		}
	}
	if changed {
		h.changed()
	}
}

// changed asks for the ready partitions to be announced.
func (h *hosting) changed() {
	select {
	case h.announce <- struct{}{}:
	default:
	}
}

// announceReady tells the cluster which partitions are caught up.
func (h *hosting) announceReady(ctx context.Context) error {
	for {
		var now cluster.Set
		for p := range h.node.parts {
			if partState(h.node.parts[p].state.Load()) == ready {
				now.Add(millrace.Partition(p))
			}
		}
		if err := h.member.SetReady(ctx, now); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-h.announce:
		}
	}
}

// quarantine takes a partition out of service: what it has cannot be trusted
// or continued, and only a bootstrap mends that.
func (h *hosting) quarantine(p millrace.Partition, why error) {
	h.node.log.Error("partition quarantined; drop it and bootstrap it again", "partition", p, "err", why)
	h.node.parts[p].state.Store(int32(quarantined))
	h.consumer.Remove(kafka.TopicPartition{Stream: kafka.Timeline, Partition: p}, kafka.TopicPartition{Stream: kafka.Features, Partition: p})
	h.mu.Lock()
	delete(h.mu.pending, p)
	h.mu.Unlock()
	h.changed()
}

// rewind reads a partition again from what its store still has.
func (h *hosting) rewind(ctx context.Context, p millrace.Partition) error {
	h.node.parts[p].state.Store(int32(catchingUp))
	h.changed()
	h.node.cache.Purge()
	var one cluster.Set
	one.Add(p)
	return h.start(ctx, one)
}

// writer returns the schema that a value was written under, waiting a little
// for one that is still on its way: once for each that nobody knows, so that
// many such records do not hold up the others.
func (h *hosting) writer(ctx context.Context, f schemas.Framed) (*schemas.Schema, error) {
	s, err := h.node.schemas.Writer(ctx, f)
	if !unknownSchema(err) {
		return s, err
	}
	if _, waited := h.unknown[f.Fingerprint]; waited {
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, h.node.cfg.SchemaWait)
	defer cancel()
	for {
		moved := h.schemaLog.Moved()
		if s, err = h.node.schemas.Writer(ctx, f); !unknownSchema(err) {
			return s, err
		}
		select {
		case <-wait.Done():
			if len(h.unknown) >= maxUnknown {
				clear(h.unknown)
			}
			h.unknown[f.Fingerprint] = struct{}{}
			return nil, cmp.Or(ctx.Err(), err)
		case <-moved:
		}
	}
}

func unknownSchema(err error) bool {
	var e *schemas.Error
	return errors.As(err, &e) && e.Reason == schemas.UnknownSchema
}

// followSchemas forgets what is cached under a layout that a new version of
// its schema replaced.
func (h *hosting) followSchemas(ctx context.Context) error {
	n := h.node
	names := len(n.schemas.Snapshot().All())
	for {
		moved := h.schemaLog.Moved()
		if now := len(n.schemas.Snapshot().All()); now != names {
			names = now
			// A reader that began before may still fill the cache under an
			// old layout: wait until it is out.
			for p := range n.parts {
				n.parts[p].mu.Lock()
				n.parts[p].mu.Unlock() //lint:ignore SA2001 a barrier
			}
			n.cache.Purge()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-moved:
		}
	}
}

// storedSchemas keeps the registry in the node's store: a row is the place in
// the order of admission, as uvarint, and the JSON.
type storedSchemas struct{ s *store.Store }

func (s storedSchemas) PutSchema(x schemas.StoredSchema) error {
	var b store.Batch
	b.PutSchema(x.Fingerprint, append(binary.AppendUvarint(nil, x.Order), x.JSON...))
	if _, err := s.s.Apply(&b, nil); err != nil {
		return fmt.Errorf("schema %s: %w", x.Fingerprint, err)
	}
	return nil
}

func (s storedSchemas) Schemas() ([]schemas.StoredSchema, error) {
	rows, err := s.s.Schemas()
	if err != nil {
		return nil, err
	}
	var out []schemas.StoredSchema
	for fp, row := range rows {
		order, n := binary.Uvarint(row)
		if n <= 0 {
			return nil, fmt.Errorf("schema row %s: %w", fp, store.ErrCorrupt)
		}
		out = append(out, schemas.StoredSchema{Fingerprint: fp, Order: order, JSON: string(row[n:])})
	}
	return out, nil
}
