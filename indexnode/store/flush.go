package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// Flush puts everything applied on disk.
func (s *Store) Flush() error {
	if s.closed.Load() {
		return ErrClosed
	}
	return here(s.flush(s.ctx.Done()))
}

// flush writes every partition's changes, each in one batch, and waits until
// they are on disk or stop is closed.
func (s *Store) flush(stop <-chan struct{}) error {
	failed, err := s.flushParts(stop)
	return errors.Join(failed, err)
}

// flushParts is flush with two errors: failed joins those of single partitions, which were
// rewound and whose writers are told too; err concerns all partitions.
func (s *Store) flushParts(stop <-chan struct{}) (failed, err error) {
	s.flushing.Lock()
	defer s.flushing.Unlock()
	if err := s.disk.Stuck(); err != nil {
		return nil, err
	}
	if err := s.room(s.opts.MinFreeBytes / 4); err != nil {
		return nil, err
	}
	s.stagger()
	all := make([]*part, len(s.parts))
	for i := range s.parts {
		all[i] = &s.parts[i]
	}
	written, errs := s.write(all)
	return errors.Join(errs...), s.settle(written, stop)
}

// writtenPart is a partition, and its epoch and the row that it had when it was written to
// Pebble.
type writtenPart struct {
	*part
	epoch int
	row   partRow
}

// write hands the changes of partitions to Pebble. It returns the partitions that have no
// changes left, and the errors of the others, which it has rewound. s.flushing is held.
func (s *Store) write(parts []*part) (written []writtenPart, errs []error) {
	crowded := s.crowded()
	for _, p := range parts {
		p.mu.Lock()
		p.hot.shrink(s, int64(crowded*float64(p.hot.bytes)))
		err := error(nil)
		if p.changed {
			err = p.write(s)
		}
		if err != nil {
			errs = append(errs, s.rewind(p, err))
		} else {
			written = append(written, writtenPart{p, p.epoch, p.row})
		}
		p.mu.Unlock()
	}
	return written, errs
}

// settle waits until Pebble has on disk what was written, or stop is closed.
// s.flushing is held.
func (s *Store) settle(written []writtenPart, stop <-chan struct{}) error {
	if err := s.flushPebble(stop); err != nil {
		return err
	}
	for _, w := range written {
		p := w.part
		p.mu.Lock()
		// The partition may have been rewound meanwhile.
		p.durable = Offsets{min(w.row.applied.Content, p.row.applied.Content), min(w.row.applied.Features, p.row.applied.Features)}
		p.mu.Unlock()
	}
	return nil
}

// flushPebble waits until Pebble's memtables are on disk. Pebble tries again for ever when
// the disk fails. So flushPebble gives up when stop is closed, when the store ends, when
// the disk is full, or when a call waits for the disk. In a store that is closing or
// offline it gives up at any failure. s.flushing is held.
func (s *Store) flushPebble(stop <-chan struct{}) error {
	f := s.watchFailures()
	defer s.failing.Store(nil)
	done, err := s.db.AsyncFlush()
	if err != nil {
		return err
	}
	for late := false; ; {
		select {
		case <-done:
			return nil
		case <-stop:
			return ErrClosed
		case <-s.disk.Ended():
			return s.disk.Why()
		case <-f.stop:
			// The first failure may be of an attempt that began while the disk was full.
			if f.any && (late || !errors.Is(f.err, ErrDiskFull)) || s.disk.Stuck() != nil || s.room(s.opts.MinFreeBytes/8) != nil {
				return f.err
			}
			late = true
			f = s.watchFailures() // there is space now, so Pebble's next attempt may succeed
		}
	}
}

// watchFailures returns a failure that is told of the next error of Pebble's background work.
func (s *Store) watchFailures() *failure {
	f := &failure{stop: make(chan struct{}), any: s.closed.Load() || s.opts.Offline}
	s.failing.Store(f)
	return f
}

// failure is an error of Pebble's background work at which a flush may give up.
type failure struct {
	any  bool          // any error counts, not only a full disk
	stop chan struct{} // closed with err set
	err  error
}

// lastFlush flushes before Close. What it cannot write is not lost: the log still has it.
func (s *Store) lastFlush() error {
	if err := s.flush(nil); err != nil {
		return fmt.Errorf("store: close: not everything is flushed, the log will be read again: %w", here(err))
	}
	return nil
}

// write hands the partition's changes to Pebble in one batch. From then on they are read from
// Pebble. Timelines that were written become hot heads, which stay in memory, as far as there
// is room. p.mu is held.
func (p *part) write(s *Store) error {
	if s.opts.unwritable != nil {
		if err := s.opts.unwritable(p.p); err != nil {
			return err
		}
	}
	b := s.db.NewBatchWithSize(int(p.bytes) + 1<<10)
	defer b.Close()
	if err := p.fill(b); err != nil {
		return err
	}
	s.writing.RLock()
	defer s.writing.RUnlock()
	if err := b.Commit(pebble.NoSync); err != nil {
		return err
	}
	s.dirty.Add(-p.bytes)
	p.hot.keep(s, p.timelines)
	p.timelines, p.features, p.changed, p.bytes = nil, nil, false, 0
	return nil
}

// fill puts everything that changed into one batch, together with the offsets up to which
// it is applied. If a crash kept only one of both, records would be lost or applied twice.
func (p *part) fill(b *pebble.Batch) error {
	for _, t := range p.timelines {
		if err := t.Write(b); err != nil {
			return err
		}
	}
	for entity, own := range p.features {
		prefix := featuresPrefix(p.p, entity)
		for subject, f := range own {
			if err := b.Set(append(slices.Clip(prefix), subject...), f.encode(nil), nil); err != nil {
				return err
			}
		}
	}
	if p.origin != nil {
		if err := b.Set(partitionKey(p.p, kindOrigin), p.origin, nil); err != nil {
			return err
		}
	}
	if p.tally.Known() {
		if err := b.Set(countsKey(p.p), p.tally.Encode(p.row.counted()), nil); err != nil {
			return err
		}
	}
	return b.Set(partitionKey(p.p, kindPart), p.row.encode(), nil)
}

// flushLoop flushes when enough is unflushed, or when that is old enough. The time has a
// random part: replicas apply the same records, so that all would otherwise flush at the
// same time.
func (s *Store) flushLoop() {
	defer s.flusher.Done()
	for {
		var tick <-chan time.Time
		if s.opts.FlushEvery > 0 {
			tick = time.After(s.opts.FlushEvery*3/4 + rand.N(s.opts.FlushEvery/4+1))
		}
		select {
		case <-s.ctx.Done():
			return
		case <-s.wake:
		case <-tick:
		}
		s.checkSuspects()
		if err := s.flush(s.ctx.Done()); err != nil && !errors.Is(err, ErrClosed) {
			s.log.Error("store: flush failed", "err", err)
		}
	}
}

func (s *Store) wakeFlusher() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
