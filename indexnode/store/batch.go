package store

import (
	"github.com/millrace/millrace"
)

// Stream is one of the two topics a partition consumes.
type Stream uint8

// The streams.
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

type ops struct {
	list    []op
	applied [2]millrace.Offset
	set     [2]bool
	origin  []byte // nil leaves it as it is
}

type op struct {
	kind     opKind
	timeline millrace.Timeline
	record   millrace.Record
	features Features
}

type opKind uint8

const (
	opPut opKind = iota
	opFeatures
	opClock
)

type schemaRow struct {
	fp   millrace.Fingerprint
	json []byte
}

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

// SetClock tells the log's own time, the timestamp of the Kafka record that
// the next Put came from. Retention by age counts from it, so that it needs to
// be called only where there is any. A clock that goes back is ignored.
func (b *Batch) SetClock(p millrace.Partition, at millrace.Time) {
	o := b.of(p)
	o.list = append(o.list, op{kind: opClock, record: millrace.Record{Time: at}})
}

// SetApplied tells the next offset to read of a partition's stream once the
// batch is applied.
func (b *Batch) SetApplied(p millrace.Partition, s Stream, next millrace.Offset) {
	o := b.of(p)
	o.applied[s], o.set[s] = next, true
}

// MaxOriginBytes bounds what [Batch.SetOrigin] keeps.
const MaxOriginBytes = 1 << 10

// SetOrigin replaces a partition's origin: what the caller wants to know of the
// log that the partition was read from. It reaches the disk together with the
// offsets, goes with Checkpoint and Restore, is gone after DropPartition, and is not
// part of the digest. The store does not read it. Apply refuses one of more
// than MaxOriginBytes.
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
	Ignored  ChangeKind = iota // what was there wins, or retention excludes it
	Inserted                   // a new id
	Replaced                   // a newer version of a known id, perhaps at another time
	Deleted                    // a tombstone that wins; its record, if there was one, is gone
)

func (k ChangeKind) String() string {
	return [...]string{"ignored", "inserted", "replaced", "deleted"}[k]
}

// Change is what one Put did, for the caches to be written through.
type Change struct {
	Partition millrace.Partition
	Timeline  millrace.Timeline
	Kind      ChangeKind
	Record    millrace.Record // as put; shares the caller's memory
	// Newest says that the record is newer than every other of the timeline,
	// live or not: a cache may append it.
	Newest bool
	// Old is the version that was there, without its body: its Time may be
	// another. Valid when HadOld.
	Old    millrace.Record
	HadOld bool
}
