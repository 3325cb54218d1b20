// Package store keeps an index node's timelines, features, schemas and applied
// offsets in one Pebble, a storage engine of sorted keys. No package outside of it and
// its subpackages uses Pebble. See DESIGN.md for the layout and the reasons.
//
// A timeline, all records of one entity and type, is a linked list of blobs, newest first.
// The newest blob is its head. What one poll of the log brought goes in as one [Batch]. A
// partition's records, metadata and applied offsets reach the disk in one atomic write, so
// that what survives a crash is what the log said up to the offsets of [Store.Applied].
//
// Features are what the log says about a subject, an entity or an object. They are stored
// under the entity that routes them, which may be the subject itself.
package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
	"github.com/millrace/millrace/indexnode/store/timeline"
)

// DefaultMinFreeBytes is the default of Options.MinFreeBytes.
const DefaultMinFreeBytes = 512 << 20

// Options configures a store. The zero value is a durable store with the
// defaults named at each field.
type Options struct {
	// FS is the file system; nil means the operating system's.
	FS vfs.FS
	// MaxBlobBytes is the size past which a blob splits; 0 means 8 KiB. A
	// single larger record has a blob of its own.
	MaxBlobBytes int
	// MaxDirtyBytes bounds what is applied but not yet on disk (unflushed); 0 means 128 MiB.
	// A flush starts at three quarters of it or more, up to all of it. Beyond twice as much,
	// Apply waits for a flush.
	MaxDirtyBytes int64
	// MaxHotBytes bounds the heads that stay in memory after a flush, so that the
	// next records of their timelines, and reads of them, need no read of the
	// disk; 0 means half of MaxDirtyBytes, negative means that none stay.
	MaxHotBytes int64
	// FlushEvery bounds how old an applied record gets before a flush starts, and so how much
	// of the log a restart replays; 0 means 30 s, negative means no bound. Each flush comes a
	// random time earlier, up to a quarter, so that nodes flush at different times.
	FlushEvery time.Duration
	// CacheBytes is the size of Pebble's block cache; 0 means 64 MiB.
	CacheBytes int64
	// MinFreeBytes is the free disk space below which Apply refuses with [ErrDiskFull]; 0
	// means DefaultMinFreeBytes, negative means no limit. The store also keeps a ballast, a
	// file of a sixteenth of it, up to 16 MiB. The store removes it when the disk is full, so
	// that it can open and read on a disk without any free space.
	MinFreeBytes int64
	// Retention is by content type; records of a type without one are kept forever.
	Retention map[millrace.ContentType]Retention
	// Log receives lifecycle and background failures; nil discards them.
	Log *slog.Logger

	// Offline is for a store that serves nobody. If the disk fails or is full, and Pebble
	// cannot do without what it writes, the store ends with an [ErrFailed]. Any other store
	// waits for the disk and goes on.
	Offline bool

	fatal         func(msg string) // is called when Pebble cannot go on; for tests
	memTableBytes uint64           // size of Pebble's memtables; tests make it small

	unwritable func(millrace.Partition) error // its error makes writing a partition fail; for tests
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.MaxBlobBytes == 0 {
		o.MaxBlobBytes = 8 << 10
	}
	if o.MaxDirtyBytes == 0 {
		o.MaxDirtyBytes = 128 << 20
	}
	if o.MaxHotBytes == 0 {
		o.MaxHotBytes = o.MaxDirtyBytes / 2
	}
	if o.FlushEvery == 0 {
		o.FlushEvery = 30 * time.Second
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = 64 << 20
	}
	if o.MinFreeBytes == 0 {
		o.MinFreeBytes = DefaultMinFreeBytes
	}
	if o.memTableBytes == 0 {
		o.memTableBytes = 16 << 20
	}
	return o
}

// validate reports every fault at once.
func (o Options) validate() error {
	var errs []error
	if o.MaxBlobBytes < 0 {
		errs = append(errs, fmt.Errorf("store: MaxBlobBytes %d: must not be negative", o.MaxBlobBytes))
	}
	if o.MaxDirtyBytes < 0 {
		errs = append(errs, fmt.Errorf("store: MaxDirtyBytes %d: must not be negative", o.MaxDirtyBytes))
	}
	if o.CacheBytes < 0 {
		errs = append(errs, fmt.Errorf("store: CacheBytes %d: must not be negative", o.CacheBytes))
	}
	for t, r := range o.Retention {
		if r.MaxAge < 0 || r.MaxCount < 0 {
			errs = append(errs, fmt.Errorf("store: Retention of %q: must not be negative", t))
		}
	}
	return errors.Join(errs...)
}

// Retention bounds a timeline. What it drops depends on the log alone, and not on when the
// space is reclaimed, so that replicas at equal offsets agree.
type Retention struct {
	// MaxAge is the age, against the log's own clock ([Batch.SetClock]), past
	// which a record is gone; 0 keeps every age.
	MaxAge time.Duration
	// MaxCount is how many of the newest records stay, tombstones included;
	// 0 keeps all.
	MaxCount int
}

// Offsets are the next offsets to read of a partition's two topics; each is -1 if nothing of
// its topic was ever applied.
type Offsets struct {
	Content, Features millrace.Offset
}

var nothingApplied = Offsets{-1, -1}

// Features are what [FeatureStream] says about a subject, an entity or an object. They are
// stored under the entity that routes them.
type Features struct {
	Subject string
	Version int64 // the highest wins; of equal ones the first to be applied
	Time    millrace.Time
	Schema  millrace.Fingerprint
	Body    []byte // Avro binary, without framing
}

// Newest is the newest part of a timeline.
type Newest struct {
	// Records are live, newest first: time descending, id ascending. They are valid until
	// the next read into this Newest.
	Records []millrace.Record
	// From is how far back Records is complete: it has every live record
	// with Time >= From. MinTime means the whole timeline.
	From millrace.Time

	// EnoughBytes ends a read that has read so many bytes and has some records, even if
	// these are fewer than were asked for; 0: no number of bytes ends it. Grant is asked
	// before more bytes are read; nil: any number may be read.
	EnoughBytes int
	Grant       Grant

	buf, key []byte // for ReadNewestInto to use again; Records may be in buf
}

// The conditions a caller acts on; test with errors.Is. An error about one
// partition is either [ErrCorrupt] or [ErrFailed] and never both: the first says
// that what is stored is wrong, the second that it could not be read or written
// now.
var (
	// ErrCorrupt is of a partition whose stored state cannot be right, or for which a caller
	// said so by [Store.Quarantine]. The partition is quarantined: every call for it fails
	// with this error and the cause, until [Store.DropPartition] or [Store.Restore]. Other
	// partitions go on.
	ErrCorrupt = errors.New("store: corrupt")
	// ErrFailed is of a call that failed on this machine, such as by EIO. It says nothing
	// about what is stored, and the same call may succeed later.
	ErrFailed = errors.New("store: failed")
	// ErrDiskFull is an ErrFailed for lack of free space. A batch that is refused with it is
	// not applied, and succeeds when there is space again.
	ErrDiskFull = fmt.Errorf("%w: disk full", ErrFailed)
	// ErrRewound is an ErrFailed with which a partition lost what was applied since its last
	// flush. The caller must read the log again from [Store.Applied], and forget what it
	// cached of the partition. If another call than Apply met it, the next Apply returns it
	// too. Since no Apply may follow, a caller can also compare [Store.Applied] with what it
	// applied.
	ErrRewound = fmt.Errorf("%w: rewound", ErrFailed)
	// ErrRefused is of a checkpoint whose files are not what it says. The store is unchanged.
	ErrRefused = errors.New("store: checkpoint refused")
	// ErrClosed is an ErrFailed for a call after Close.
	ErrClosed = fmt.Errorf("%w: closed", ErrFailed)
)

// isCorrupt reports whether an error says that what is stored cannot be right,
// rather than that it cannot be read now.
func isCorrupt(err error) bool {
	if io := syscall.Errno(0); errors.As(err, &io) && io != syscall.ENOENT {
		return false // Pebble takes a failing read of a footer for a bad file
	}
	for _, e := range []error{blob.Err, blob.ErrChain, timeline.ErrState, blob.ErrRow, blob.ErrKey, blob.ErrFilter, timeline.ErrDigest, errLost, pebble.ErrCorruption} {
		if errors.Is(err, e) {
			return true
		}
	}
	return pebble.IsCorruptionError(err)
}

// here marks an error as [ErrFailed], so that the call may be tried again. It leaves as they
// are corruption, errors that are marked already, and those of the caller: its context's end
// and what its [Grant] refused.
func here(err error) error {
	var refused *millrace.Error // by a [Grant]
	switch {
	case errors.As(err, &refused):
		return err
	case err == nil, errors.Is(err, ErrCorrupt), errors.Is(err, ErrFailed), errors.Is(err, ErrRefused),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%w: %w", ErrDiskFull, err)
	}
	return fmt.Errorf("%w: %w", ErrFailed, err)
}

// whole marks an error of the whole store, not of one partition, as [ErrCorrupt] or as
// [ErrFailed].
func whole(err error) error {
	if isCorrupt(err) {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return here(err)
}

// quarantined is the error of every call for a quarantined partition. It does not say what to
// do: some causes are not damage, such as an operator's order, and each cause needs something
// else. The text of the cause says that.
type quarantined struct {
	partition millrace.Partition
	cause     error
}

func (q quarantined) Error() string {
	return fmt.Sprintf("store: partition %d is quarantined: %v", q.partition, q.cause)
}

func (q quarantined) Unwrap() []error { return []error{ErrCorrupt, q.cause} }

// corrupt returns the [ErrCorrupt] of a partition that is quarantined for cause.
func corrupt(p millrace.Partition, cause error) error { return quarantined{p, cause} }
