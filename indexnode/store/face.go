package store

import (
	"context"
	"errors"

	"github.com/millrace/millrace"
)

var errUnfinished = errors.New("store: not written yet")

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
