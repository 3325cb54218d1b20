package store

import (
	"context"
	"errors"
	"iter"

	"github.com/millrace/millrace"
)

var errUnfinished = errors.New("store: not written yet")

// Store is an index node's store. Any number of goroutines may read; batches
// for different partitions may be applied at once.
type Store struct{}

// Open opens the store in dir, creating it if it does not exist.
func Open(dir string, o Options) (*Store, error) { return nil, errUnfinished }

// Close flushes and releases the store. It must be called once, after every
// other call has returned.
func (s *Store) Close() error { return errUnfinished }

// Apply applies a batch and appends what each Put did to changes, which may be
// nil. From its return on, reads see the batch; the disk has it after the next
// flush, and the log replays it if the process ends before. Partitions fail
// alone: the error joins those of the partitions that failed, each of which is
// at what Applied says, while the others have applied their part.
func (s *Store) Apply(b *Batch, changes []Change) ([]Change, error) { return nil, errUnfinished }

// Applied returns the offsets that reads of the partition see.
func (s *Store) Applied(p millrace.Partition) Offsets { return Offsets{-1, -1} }

// Durable returns the offsets from which a restart would replay.
func (s *Store) Durable(p millrace.Partition) Offsets { return Offsets{-1, -1} }

// Flush puts everything applied on disk.
func (s *Store) Flush() error { return errUnfinished }

// Read appends to dst the live records of a timeline with from <= Time < to,
// newest first: time descending, id ascending. It touches only the blobs that
// the window needs.
func (s *Store) Read(dst []millrace.Record, p millrace.Partition, t millrace.Timeline, from, to millrace.Time) ([]millrace.Record, error) {
	return nil, errUnfinished
}

// ReadNewest returns at least the newest max live records of a timeline, or
// all, and how far back that is complete. One Get suffices when the head blob
// holds them.
func (s *Store) ReadNewest(p millrace.Partition, t millrace.Timeline, max int) (Newest, error) {
	return Newest{}, errUnfinished
}

// Features returns the features routed by an entity, by subject.
func (s *Store) Features(p millrace.Partition, e millrace.Entity) ([]Features, error) {
	return nil, errUnfinished
}

// Schemas returns the node's schema registry: JSON by fingerprint.
func (s *Store) Schemas() (map[millrace.Fingerprint][]byte, error) { return nil, errUnfinished }

// Types returns every content type ever met on this node, sorted.
func (s *Store) Types() []millrace.ContentType { return nil }

// Timelines ranges over the timelines of a partition.
func (s *Store) Timelines(p millrace.Partition) iter.Seq2[millrace.Timeline, error] { return nil }

// DropPartition removes everything of a partition, and its quarantine.
func (s *Store) DropPartition(p millrace.Partition) error { return errUnfinished }

// Digest returns the rolling digest of a partition: equal at equal applied
// offsets on every replica, whatever the batches, splits, flushes and sweeps.
func (s *Store) Digest(p millrace.Partition) Digest { return Digest{} }

// Digest is the digest of a partition's two streams.
type Digest struct{ Content, Features uint64 }

// Export writes a partition as sstables into dir, which must not exist, and
// says what they hold. The files' names are stable only within dir.
func (s *Store) Export(p millrace.Partition, dir string) (Export, error) {
	return Export{}, errUnfinished
}

// Export is what an exported partition holds.
type Export struct {
	Partition millrace.Partition
	Files     []string // names within the directory, in key order
	Applied   Offsets
	Digest    Digest
	Schemas   map[millrace.Fingerprint][]byte
}

// Import replaces everything of a partition by an export, atomically, and
// lifts its quarantine.
func (s *Store) Import(dir string, e Export) error { return errUnfinished }

// Check walks a partition and verifies the chains, order, metadata, counts,
// id rows, orphans and digest. A fault is an [ErrCorrupt] and quarantines the
// partition.
func (s *Store) Check(ctx context.Context, p millrace.Partition) (Report, error) {
	return Report{}, errUnfinished
}

// Report counts what Check saw.
type Report struct {
	Timelines, Blobs, Records, Live, Features int
}

// Sweep reclaims what retention dropped, and drops what age has since, for a
// whole partition in steps of bounded I/O. It calls progress, if not nil,
// after each step with the timelines done so far.
func (s *Store) Sweep(ctx context.Context, p millrace.Partition, progress func(timelines int)) error {
	return errUnfinished
}
