package store

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Admit waits until [Store.Apply] need not wait for the disk, or says why it
// would refuse to take more in. Who holds a lock over Apply that readers need
// asks it first.
func (s *Store) Admit() error {
	if s.closed.Load() {
		return ErrClosed
	}
	return s.admit()
}

// admit refuses to take more in while the disk is short of space, and waits
// while too much is unflushed. Pebble ends the process when it cannot write
// its manifest, so ingest stops while there is room to flush what is in
// memory; it resumes as soon as there is space again.
func (s *Store) admit() error {
	if err := s.room(s.opts.MinFreeBytes); err != nil {
		return err
	}
	if s.dirty.Load() > 2*s.opts.MaxDirtyBytes {
		return s.flush(s.ctx.Done())
	}
	return nil
}

// room reports whether the disk has at least as much free space.
func (s *Store) room(least int64) error {
	if least < 0 {
		return nil
	}
	u, err := s.opts.FS.GetDiskUsage(s.dir)
	if errors.Is(err, vfs.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("store: free space of %s: %w", s.dir, err)
	}
	if u.AvailBytes < uint64(least) {
		return fmt.Errorf("%w: %d bytes free in %s, %d needed; ingest resumes when there is space", ErrDiskFull, u.AvailBytes, s.dir, least)
	}
	return nil
}

// stagger sets the size of the next flush: somewhere in the upper quarter below
// MaxDirtyBytes, so that replicas, which apply the same records, flush at
// different times.
func (s *Store) stagger() {
	s.flushAt.Store(s.opts.MaxDirtyBytes*3/4 + rand.Int64N(s.opts.MaxDirtyBytes/4+1))
}
