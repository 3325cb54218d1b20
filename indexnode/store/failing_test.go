package store

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/millrace/millrace"
)

// failing is a file system whose reads of sstables fail while it is switched on.
type failing struct {
	vfs.FS
	reads atomic.Bool
}

func newFailing(mem vfs.FS) *failing {
	f := new(failing)
	f.FS = errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if f.reads.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsRead && strings.HasSuffix(op.Path, ".sst") {
			return fmt.Errorf("read %s: %w", op.Path, syscall.EIO)
		}
		return nil
	}))
	return f
}

func onlyFailed(err error) error {
	if errors.Is(err, ErrFailed) && !errors.Is(err, ErrCorrupt) {
		return nil
	}
	return fmt.Errorf("not ErrFailed alone: %w", err)
}

// A partition that a flush could not write fails no writer of another, though that
// waits for the flush; its own writer hears that it was rewound, once.
func TestAFlushThatFailsAPartitionFailsNoOther(t *testing.T) {
	var broken atomic.Bool
	s := openMem(t, Options{FlushEvery: -1, unwritable: func(p millrace.Partition) error {
		if broken.Load() && p == 5 {
			return syscall.EIO
		}
		return nil
	}})
	batch := func(p millrace.Partition, n int) *Batch {
		var b Batch
		b.Put(p, millrace.Timeline{Entity: "member:1", Type: "post"}, millrace.Record{ID: millrace.RecordID(fmt.Sprint(n)), Time: millrace.Time(n)})
		b.SetApplied(p, Content, millrace.Offset(n))
		return &b
	}
	apply(t, s, batch(5, 1))
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	apply(t, s, batch(5, 2))
	s.opts.MaxDirtyBytes = 0
	broken.Store(true)
	if err := s.Admit(); err != nil {
		t.Errorf("another is told: %v", err)
	}
	if at := s.Applied(5).Content; at != 1 {
		t.Errorf("it is at %d: the flush did not fail, and the test shows nothing", at)
	}
	if _, err := s.Apply(batch(3, 1), nil); err != nil {
		t.Errorf("another is told: %v", err)
	}
	if _, err := s.Apply(batch(5, 3), nil); !errors.Is(err, ErrRewound) {
		t.Errorf("its writer is told: %v", err)
	}
	broken.Store(false)
	if at := s.Applied(5).Content; at != 1 {
		t.Errorf("it is at %d, and has a hole", at)
	}
	apply(t, s, batch(5, 2))
	if at := s.Applied(5).Content; at != 2 {
		t.Errorf("it is at %d", at)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Whoever finds that a partition cannot be written, its writer hears once that it was
// rewound, also where somebody has read it again meanwhile: what comes next would be
// applied behind a hole.
func TestAWriterHearsOfEveryRewind(t *testing.T) {
	for what, find := range map[string]func(*Store) error{
		"a sweep": func(s *Store) error { return s.Sweep(t.Context(), 5, nil) },
		"a check": func(s *Store) error { _, err := s.Check(t.Context(), 5); return err },
		"a flush": func(s *Store) error { return s.Flush() },
		"a checkpoint": func(s *Store) error {
			_, err := s.Checkpoint([]millrace.Partition{5}, "checkpoint")
			return err
		},
	} {
		for _, unreadable := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, unreadable %v", what, unreadable), func(t *testing.T) {
				disk := newFailing(vfs.NewMem())
				var broken atomic.Bool
				s := openMem(t, Options{FS: disk, CacheBytes: 1, FlushEvery: -1, Retention: map[millrace.ContentType]Retention{"post": {MaxCount: 100}}, unwritable: func(millrace.Partition) error {
					if broken.Load() {
						disk.reads.Store(unreadable)
						return syscall.EIO
					}
					return nil
				}})
				batch := func(n int) *Batch {
					var b Batch
					b.Put(5, millrace.Timeline{Entity: "member:1", Type: "post"}, millrace.Record{ID: millrace.RecordID(fmt.Sprint(n)), Time: millrace.Time(n)})
					b.SetApplied(5, Content, millrace.Offset(n))
					return &b
				}
				apply(t, s, batch(1))
				if err := s.Flush(); err != nil {
					t.Fatal(err)
				}
				apply(t, s, batch(2))
				broken.Store(true)
				if err := find(s); !errors.Is(err, ErrRewound) {
					t.Errorf("who finds it is told: %v", err)
				}
				broken.Store(false)
				disk.reads.Store(false)
				if unreadable {
					if err := s.Sweep(t.Context(), 5, nil); !errors.Is(err, ErrRewound) { // which reads it again
						t.Errorf("who reads it again is told: %v", err)
					}
				}
				if _, err := s.Apply(batch(3), nil); !errors.Is(err, ErrRewound) {
					t.Errorf("its writer is told: %v", err)
				}
				if at := s.Applied(5).Content; at != 1 {
					t.Errorf("it is at %d, and has a hole", at)
				}
				apply(t, s, batch(2))
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// A writer hears nothing of a rewind of what has been replaced since, nor if it has asked since
// where to go on.
func TestARewindIsForgottenWithItsPartition(t *testing.T) {
	var broken atomic.Bool
	s := openMem(t, Options{unwritable: func(millrace.Partition) error {
		if broken.Load() {
			return syscall.EIO
		}
		return nil
	}})
	apply(t, s, mendBatch(3, 0, 40))
	c := checkpoint(t, s, 3, "checkpoint")
	for what, replace := range map[string]func() error{
		"drop":    func() error { return s.DropPartition(3) },
		"restore": func() error { return s.Restore(t.Context(), "checkpoint", c) },
		"origin":  func() error { _, err := s.Origin(3); return err },
	} {
		apply(t, s, mendBatch(3, 0, 40))
		broken.Store(true)
		if err := s.Flush(); !errors.Is(err, ErrRewound) {
			t.Errorf("%s: %v", what, err)
		}
		broken.Store(false)
		if err := replace(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := s.Apply(mendBatch(3, 0, 40), nil); err != nil {
			t.Errorf("after %s: %v", what, err)
		}
	}
	if err := errors.Join(mended(s, 3), s.Close()); err != nil {
		t.Error(err)
	}
}

// A disk that cannot be read now has not corrupted anything: whatever fails says
// ErrFailed, and the partition goes on from its offsets when the disk does.
func TestAFailingReadIsNotCorruption(t *testing.T) {
	disk := newFailing(vfs.NewMem())
	name := millrace.Timeline{Entity: "member:1", Type: "post"}
	batch := func(n int) *Batch {
		var b Batch
		b.Put(3, name, millrace.Record{ID: millrace.RecordID(fmt.Sprint(n)), Time: millrace.Time(n)})
		b.SetApplied(3, Content, millrace.Offset(n))
		b.SetOrigin(3, []byte("a"))
		return &b
	}
	s := openMem(t, Options{FS: disk})
	apply(t, s, batch(1))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openMem(t, Options{FS: disk, CacheBytes: 1})
	digest := s.Digest(3)
	disk.reads.Store(true)
	_, err := s.Apply(batch(2), nil)
	if !errors.Is(err, ErrRewound) {
		t.Error("apply does not rewind")
	}
	_, readErr := readNewest(s, 3, name, 1)
	_, originErr := s.Origin(3)
	_, checkErr := s.Check(t.Context(), 3)
	_, checkpointErr := s.Checkpoint([]millrace.Partition{3}, "checkpoint")
	for _, err := range []error{err, readErr, originErr, checkErr, checkpointErr} {
		if err := onlyFailed(err); err != nil {
			t.Error(err)
		}
	}
	if err := s.Quarantined(3); err != nil {
		t.Error(err)
	}
	if at := s.Applied(3).Content; at != 1 {
		t.Errorf("it is at %d, and was on disk to 1", at)
	}
	disk.reads.Store(false)
	if _, err := s.Apply(batch(2), nil); !errors.Is(err, ErrRewound) {
		t.Errorf("the partition is not read anew: %v", err)
	}
	if s.Applied(3).Content != 1 || s.Digest(3) != digest {
		t.Errorf("at %v, %x", s.Applied(3), s.Digest(3))
	}
	apply(t, s, batch(2))
	if got, err := readNewest(s, 3, name, 5); err != nil || len(got.Records) != 2 {
		t.Errorf("%v, %v", got.Records, err)
	}
	if _, err := s.Check(t.Context(), 3); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
