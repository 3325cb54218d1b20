package store

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace"
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
// while too much is unflushed. Ingest stops while there is room to flush what is
// in memory, and resumes as soon as there is space again.
func (s *Store) admit() error {
	if err := s.disk.Stuck(); err != nil {
		return here(err)
	}
	err := s.room(s.opts.MinFreeBytes)
	s.tellFull(err)
	if err != nil {
		return err
	}
	if s.dirty.Load() > 2*s.opts.MaxDirtyBytes {
		return here(s.flush(s.ctx.Done()))
	}
	return nil
}

// tellFull logs when the disk is full, each minute of it, and when it no longer
// is. Then the ballast is taken up again.
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

// repeated is something that may happen often and is told once a minute.
type repeated struct {
	on  atomic.Bool
	mu  sync.Mutex
	was map[string]*telling
}

type telling struct {
	at time.Time
	n  int // times since
}

const tellEvery = time.Minute

// again notes that it happened. It returns how many times that was since it was
// told last, if it is to be told now, or 0.
func (r *repeated) again(what string, now time.Time) (n int) {
	r.on.Store(true)
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.was[what]
	if t == nil {
		if r.was == nil || len(r.was) > 100 {
			r.was = make(map[string]*telling)
		}
		t = new(telling)
		r.was[what] = t
	}
	t.n++
	if !t.at.IsZero() && now.Sub(t.at) < tellEvery {
		return 0
	}
	n, t.at, t.n = t.n, now, 0
	return n
}

// over ends it, and reports whether it was on.
func (r *repeated) over() bool {
	if !r.on.Load() || !r.on.Swap(false) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.was = nil
	return true
}

// room reports whether the disk has at least as much free space.
func (s *Store) room(least int64) error { return here(s.disk.Room(least)) }

// Disk returns the size of the store's file system, and what of it is free, in
// bytes; zeros where that is not known.
func (s *Store) Disk() (size, free int64) { return s.disk.Usage() }

// Bytes returns what the files of a partition take on disk, which is known
// without reading any. What was applied since the last flush is not in it.
func (s *Store) Bytes(n millrace.Partition) (int64, error) {
	if _, err := s.part(n); err != nil {
		return 0, err
	}
	start, end := partitionSpan(n)
	bytes, err := s.db.EstimateDiskUsage(start, end)
	return int64(bytes), here(err)
}

// stagger sets the size of the next flush: somewhere in the upper quarter below
// MaxDirtyBytes, so that replicas, which apply the same records, flush at
// different times.
func (s *Store) stagger() {
	s.flushAt.Store(s.opts.MaxDirtyBytes*3/4 + rand.Int64N(s.opts.MaxDirtyBytes/4+1))
}
