package store

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/millrace/millrace"
)

// Stream is one of the two topics that a partition is read from.
type Stream uint8

// The streams: records of timelines, and features.
const (
	Content Stream = iota
	FeatureStream
)

// Batch is what one poll of the log brought, for any number of partitions, in
// the log's order. It refers to the caller's memory, which must not change
// until Apply returns. The zero Batch is empty and usable.
type Batch struct {
	parts   map[millrace.Partition]*ops
	spare   []*ops // for partitions to come
	schemas []schemaRow
}

// ops is what a batch does to one partition.
type ops struct {
	list    []op
	applied [2]millrace.Offset // by Stream, the next offset to read
	set     [2]bool            // by Stream, whether applied says something
	origin  []byte             // nil leaves it as it is
}

// op is one operation on a partition.
type op struct {
	kind     opKind
	timeline millrace.Timeline // of opFeatures, only its Entity
	record   millrace.Record   // of opPut; of opClock only its Time
	features Features          // of opFeatures
}

type opKind uint8

// The kinds of operation.
const (
	opPut      opKind = iota // see [Batch.Put]
	opFeatures               // see [Batch.PutFeatures]
	opClock                  // see [Batch.SetClock]
)

// schemaRow is a schema that [Batch.PutSchema] adds.
type schemaRow struct {
	fp   millrace.Fingerprint
	json []byte
}

// of returns what the batch does to a partition, and adds an empty ops if there is none.
func (b *Batch) of(p millrace.Partition) *ops {
	if b.parts == nil {
		b.parts = make(map[millrace.Partition]*ops)
	}
	o := b.parts[p]
	if o == nil {
		if n := len(b.spare); n > 0 {
			o, b.spare = b.spare[n-1], b.spare[:n-1]
		} else {
			o = new(ops)
		}
		b.parts[p] = o
	}
	return o
}

// Put adds a record, or a tombstone, to a timeline.
func (b *Batch) Put(p millrace.Partition, t millrace.Timeline, r millrace.Record) {
	o := b.of(p)
	o.list = append(o.list, op{kind: opPut, timeline: t, record: r})
}

// PutFeatures adds features of a subject under the entity that routes it.
func (b *Batch) PutFeatures(p millrace.Partition, e millrace.Entity, f Features) {
	o := b.of(p)
	o.list = append(o.list, op{kind: opFeatures, timeline: millrace.Timeline{Entity: e}, features: f})
}

// SetClock sets the partition's clock, the log's own time: the timestamp of the Kafka record
// that the next Put came from. Retention by age counts from it, so that it need not be called
// where there is no such retention. A time before the present clock is ignored.
func (b *Batch) SetClock(p millrace.Partition, at millrace.Time) {
	o := b.of(p)
	o.list = append(o.list, op{kind: opClock, record: millrace.Record{Time: at}})
}

// SetApplied sets the next offset to read of a partition's stream once the batch is applied.
func (b *Batch) SetApplied(p millrace.Partition, s Stream, next millrace.Offset) {
	o := b.of(p)
	o.applied[s], o.set[s] = next, true
}

// MaxOriginBytes bounds the length of an origin; see [Batch.SetOrigin].
const MaxOriginBytes = 1 << 10

// SetOrigin replaces a partition's origin: what the caller wants to know of the log that
// the partition was read from. It reaches the disk together with the offsets, is part of a
// Checkpoint and taken over by Restore, is gone after DropPartition, and is not part of the
// digest. The store does not interpret it. Apply refuses one of more than MaxOriginBytes.
func (b *Batch) SetOrigin(p millrace.Partition, origin []byte) {
	b.of(p).origin = append(make([]byte, 0, len(origin)), origin...)
}

// PutSchema adds a schema's JSON to the node's registry.
func (b *Batch) PutSchema(fp millrace.Fingerprint, json []byte) {
	b.schemas = append(b.schemas, schemaRow{fp, json})
}

// Reset empties the batch and keeps its memory.
func (b *Batch) Reset() {
	for _, o := range b.parts {
		clear(o.list)
		*o = ops{list: o.list[:0]}
		b.spare = append(b.spare, o)
	}
	clear(b.parts)
	clear(b.schemas)
	b.schemas = b.schemas[:0]
}

// ChangeKind is what a record did to its timeline.
type ChangeKind uint8

// The kinds of change.
const (
	Ignored  ChangeKind = iota // the version that was there wins, or retention excludes the record
	Inserted                   // a new id
	Replaced                   // a newer version of a known id, perhaps at another time
	Deleted                    // a tombstone that wins; its record, if there was one, is gone
)

func (k ChangeKind) String() string {
	return [...]string{"ignored", "inserted", "replaced", "deleted"}[k]
}

// Change is what one Put did, so that callers can do the same to their caches.
type Change struct {
	Partition millrace.Partition
	Timeline  millrace.Timeline
	Kind      ChangeKind
	Record    millrace.Record // as put; shares the caller's memory
	// Newest says that the record is newer than every other of the timeline,
	// live or not: a cache may append it.
	Newest bool
	// Old is the version that was there, without its body. Its Time may differ from the
	// record's. It is valid only if HadOld.
	Old    millrace.Record
	HadOld bool
}

// Apply applies a batch and appends what each Put did to changes, which may be
// nil. From its return on, reads see the batch. The disk has it after the next
// flush, and the log replays it if the process ends before. Each partition fails by itself:
// the error joins those of the partitions that failed. A partition that failed is at what
// Applied says, and its changes are not reported; the others have applied their part.
//
// With [ErrDiskFull], nothing of the batch is applied, and it may be applied later.
func (s *Store) Apply(b *Batch, changes []Change) ([]Change, error) {
	if s.closed.Load() {
		return changes, ErrClosed
	}
	if err := b.validate(); err != nil {
		return changes, err
	}
	if err := s.admit(); err != nil {
		return changes, err
	}
	if err := s.register(b); err != nil {
		return changes, here(err)
	}
	var errs []error
	for _, p := range slices.Sorted(maps.Keys(b.parts)) {
		var err error
		if changes, err = s.applyTo(p, b.parts[p], changes); err != nil {
			errs = append(errs, err)
		}
	}
	if s.dirty.Load() > s.flushAt.Load() {
		s.wakeFlusher()
	}
	return changes, errors.Join(errs...)
}

// applyTo applies what a batch does to one partition. If that fails, the partition is rewound
// or quarantined, and changes are returned as they were given.
func (s *Store) applyTo(n millrace.Partition, o *ops, changes []Change) ([]Change, error) {
	p, err := s.part(n)
	if err != nil {
		return changes, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err = p.ready(s); err == nil {
		err = p.rewound
	}
	if err != nil {
		p.rewound = nil // this call tells its writer
		return changes, err
	}
	before := p.bytes
	after, err := p.apply(s, o, changes)
	s.dirty.Add(p.bytes - before)
	if err == nil {
		return after, nil
	}
	err = s.rewind(p, err)
	p.rewound = nil
	return changes, err
}

// rewind undoes everything applied since the last flush, because part of a batch failed: a
// partition with only some of a batch has a state that no offset describes. It returns an
// [ErrRewound], or an [ErrCorrupt] if the partition is quarantined instead. It also keeps the
// error in p.rewound for the next writer, who would otherwise go on behind the gap. p.mu is
// held.
func (s *Store) rewind(p *part, cause error) error {
	if isCorrupt(cause) {
		_ = s.quarantineLocked(p, cause)
		return corrupt(p.p, cause)
	}
	if err := p.load(s); isCorrupt(err) {
		_ = s.quarantineLocked(p, err)
		return corrupt(p.p, err)
	}
	p.rewound = fmt.Errorf("%w: partition %d to offset %d: %w", ErrRewound, p.p, p.row.applied.Content, cause)
	return p.rewound
}

// validate returns an error if the batch has an origin that is too long.
func (b *Batch) validate() error {
	for p, o := range b.parts {
		if len(o.origin) > MaxOriginBytes {
			return fmt.Errorf("store: origin of partition %d has %d bytes; at most %d are kept", p, len(o.origin), MaxOriginBytes)
		}
	}
	return nil
}

// Applied returns the offsets up to which reads see the partition. It returns -1 for both if
// the store is closed.
func (s *Store) Applied(p millrace.Partition) Offsets {
	q, err := s.part(p)
	if err != nil {
		return Offsets{-1, -1}
	}
	q.mu.RLock()
	defer q.mu.RUnlock()
	return q.row.applied
}

// Origin returns what [Batch.SetOrigin] set last, as reads of the partition see it, or nil.
// The caller must not change it. If the partition could not be read before, Origin tries to
// read it again and returns an [ErrRewound]. The caller must go on from [Store.Applied]:
// after a call without an error, Apply does not tell of a rewind that came before it.
func (s *Store) Origin(p millrace.Partition) ([]byte, error) {
	q, err := s.part(p)
	if err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.ready(s); err != nil {
		return nil, err
	}
	q.rewound = nil
	return q.origin, nil
}

// LastOrigin returns the partition's origin as far as it is in memory, or nil. It works for a
// quarantined partition too, and reads nothing from the disk.
func (s *Store) LastOrigin(p millrace.Partition) []byte {
	q, err := s.part(p)
	if err != nil {
		return nil
	}
	q.mu.RLock()
	defer q.mu.RUnlock()
	return q.origin
}

// Clock returns a partition's clock, the log's own time; see [Batch.SetClock]. It returns 0
// if no clock was set, or if the store is closed.
func (s *Store) Clock(p millrace.Partition) millrace.Time {
	q, err := s.part(p)
	if err != nil {
		return 0
	}
	q.mu.RLock()
	defer q.mu.RUnlock()
	return q.row.clock
}

// Digest returns the rolling digest of a partition: equal at equal applied
// offsets on every replica, whatever the batches, splits, flushes and sweeps.
func (s *Store) Digest(p millrace.Partition) Digest {
	q, err := s.part(p)
	if err != nil {
		return Digest{}
	}
	q.mu.RLock()
	defer q.mu.RUnlock()
	return q.row.digest
}

// Admit waits until [Store.Apply] need not wait for the disk, or returns why Apply would
// refuse to take more in. A caller that calls Apply with a lock held that readers need calls
// Admit before it takes the lock.
func (s *Store) Admit() error {
	if s.closed.Load() {
		return ErrClosed
	}
	return s.admit()
}

// admit refuses to take more in while the disk is short of space, and waits
// while too much is unflushed. It refuses so early that there is still room to flush
// what is in memory. Ingest goes on as soon as there is space again.
func (s *Store) admit() error {
	if err := s.disk.Stuck(); err != nil {
		return here(err)
	}
	err := s.room(s.opts.MinFreeBytes)
	s.tellFull(err)
	if err != nil {
		return err
	}
	if s.dirty.Load() <= 2*s.opts.MaxDirtyBytes {
		return nil
	}
	failed, err := s.flushParts(s.ctx.Done())
	if failed != nil { // of single partitions, whose writers are told by Apply
		s.log.Error("store: flush failed", "err", failed)
	}
	return here(err)
}

// tellFull logs at most once a minute that the disk is full, and once that it is not full any
// more. It then writes the ballast again.
func (s *Store) tellFull(err error) {
	switch {
	case errors.Is(err, ErrDiskFull):
		if n := s.full.again("", time.Now()); n > 0 {
			s.log.Error("store: disk full: ingest waits, reads go on", "refused", n, "err", err)
		}
	case err == nil && s.full.over():
		s.log.Info("store: there is space on the disk again: ingest goes on")
		s.disk.Hold()
	}
}

// room returns an [ErrDiskFull] if the disk has fewer than least bytes free. New records need
// all of MinFreeBytes. A flush, a checkpoint or a restore needs a quarter of it, so that there
// is room for it when new records are refused already.
func (s *Store) room(least int64) error { return here(s.disk.Room(least)) }

// stagger sets the size of the next flush: somewhere in the upper quarter below
// MaxDirtyBytes, so that replicas, which apply the same records, flush at
// different times.
func (s *Store) stagger() {
	s.flushAt.Store(s.opts.MaxDirtyBytes*3/4 + rand.Int64N(s.opts.MaxDirtyBytes/4+1))
}
