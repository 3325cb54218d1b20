package store

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/millrace/millrace"
)

// replacement is what takes the place of a partition.
type replacement struct {
	p           *part
	scanned     *checker // of the tables; nil: there are none
	bottom, run []string // paths of tables on disk, those of run newer; both are used up
	// Guarded by flushing:
	was   error // why it was quarantined before
	begun bool  // it may not be what it was
	done  bool
	err   error
}

// replacements are those that wait. Each costs two flushes, which those that
// wait together share.
type replacements struct {
	mu   sync.Mutex
	list []*replacement
}

// errRestoring is why a partition is quarantined while it is replaced, which
// takes several steps, and after a crash in between.
var errRestoring = errors.New("it was being restored")

// DropPartition removes everything of a partition at once, on disk too, and
// lifts its quarantine: the log can be read again from its beginning. It reads
// nothing of the partition, so that missing or damaged files do not matter.
// What [Store.Restore] says of what was read holds here.
func (s *Store) DropPartition(n millrace.Partition) error {
	p, err := s.part(n)
	if err != nil {
		return err
	}
	return s.replace(&replacement{p: p})
}

// replace excises a partition and ingests tables in its place, on disk when it
// returns. An excise drops files without reading them, so that it works on
// damaged ones too. Who has the lock first does the work of all that wait.
func (s *Store) replace(r *replacement) error {
	s.replacing.mu.Lock()
	s.replacing.list = append(s.replacing.list, r)
	s.replacing.mu.Unlock()
	s.flushing.Lock()
	defer s.flushing.Unlock()
	for !r.done {
		s.replaceSome(s.replacing.take())
	}
	return here(r.err)
}

// take takes those that wait, at most one of a partition, in order.
func (q *replacements) take() (some []*replacement) {
	q.mu.Lock()
	defer q.mu.Unlock()
	slices.SortStableFunc(q.list, func(a, b *replacement) int { return cmp.Compare(a.p.p, b.p.p) })
	var later []*replacement
	for _, r := range q.list {
		if n := len(some); n > 0 && some[n-1].p == r.p {
			later = append(later, r)
		} else {
			some = append(some, r)
		}
	}
	q.list = later
	return some
}

// replaceSome replaces partitions. s.flushing is held.
func (s *Store) replaceSome(some []*replacement) {
	for _, r := range some {
		r.p.mu.Lock()
		defer r.p.mu.Unlock()
		r.was = r.p.bad
	}
	err := s.mark(some)
	if err == nil {
		err = s.exchange(some)
	}
	for _, r := range some {
		if r.begun {
			r.err = s.reload(r.p)
		} else {
			err = errors.Join(err, s.bad(r.p, r.was))
		}
	}
	if err == nil {
		err = s.lift(some)
	}
	for _, r := range some {
		r.done = true
		if err != nil && r.err == nil {
			r.err = fmt.Errorf("store: replace partition %d: %w", r.p.p, err)
		}
	}
}

// mark quarantines the partitions that are to be replaced by tables, on disk.
// What else is in memtables goes there too: then each step is an edit of the
// manifest.
func (s *Store) mark(some []*replacement) error {
	if err := s.room(s.opts.MinFreeBytes / 4); err != nil {
		return err
	}
	for _, r := range some {
		if len(r.bottom)+len(r.run) == 0 {
			continue
		}
		if err := s.bad(r.p, errRestoring); err != nil {
			return err
		}
	}
	return s.flushPebble(s.ctx.Done())
}

// exchange excises partitions and ingests their tables. An excise is an edit of
// the manifest, which is synced, so there is none where nothing is: memtables
// are on disk by now.
func (s *Store) exchange(some []*replacement) error {
	there, err := s.tables()
	if err != nil {
		return err
	}
	var bottom, run []string
	for _, r := range some {
		r.begun = true
		if overlaps(there, r.p.p) {
			if err := s.excise(partitionSpan(r.p.p)); err != nil {
				return err
			}
		}
		r.p.damaged = false
		bottom, run = append(bottom, r.bottom...), append(run, r.run...)
	}
	for _, paths := range [][]string{bottom, run} {
		if len(paths) == 0 {
			continue
		}
		if err := s.disk.OrEnd(func() error { return s.db.Ingest(context.Background(), paths) }); err != nil {
			return err
		}
	}
	return nil
}

// overlaps reports whether a table may have rows of a partition. It reads none.
func overlaps(tables []pebble.SSTableInfo, n millrace.Partition) bool {
	start, end := partitionSpan(n)
	return slices.ContainsFunc(tables, func(t pebble.SSTableInfo) bool {
		return bytes.Compare(t.Smallest.UserKey, end) < 0 && bytes.Compare(t.Largest.UserKey, start) >= 0
	})
}

// reload makes a partition what the disk says, whatever it was. p.mu is held.
func (s *Store) reload(p *part) error {
	p.epoch++
	err := p.load(s)
	if isCorrupt(err) {
		p.bad = nil
		s.quarantineLocked(p, err)
		return corrupt(p.p, err)
	}
	return err
}

// lift ends the quarantines of those that are replaced, on disk first, and has
// them counted.
func (s *Store) lift(some []*replacement) error {
	var errs []error
	lifted := slices.DeleteFunc(slices.Clone(some), func(r *replacement) bool { return r.err != nil })
	for _, r := range lifted {
		r.was = r.p.bad
		errs = append(errs, s.countReplaced(r), s.bad(r.p, nil))
	}
	err := errors.Join(append(errs, s.flushPebble(s.ctx.Done()))...)
	if err != nil {
		for _, r := range lifted {
			r.p.bad = r.was
		}
	}
	return err
}

// countReplaced makes the counts of a partition those of what took its place. They
// are on disk with the next flush. p.mu is held.
func (s *Store) countReplaced(r *replacement) error {
	s.writing.RLock()
	defer s.writing.RUnlock()
	if r.scanned == nil {
		return s.db.Delete(countsKey(r.p.p), pebble.NoSync)
	}
	r.p.tally = s.tallyOfScan(r.scanned.counts)
	return s.db.Set(countsKey(r.p.p), r.p.tally.encode(r.p.row.countsOf()), pebble.NoSync)
}

// bad says why a partition is quarantined, or that it is not. It is on disk
// with the next flush. p.mu is held.
func (s *Store) bad(p *part, cause error) error {
	err := error(nil)
	if cause == nil {
		err = s.unset(badKey(p.p))
	} else {
		err = s.set(badKey(p.p), []byte(cause.Error()))
	}
	if err == nil {
		p.bad = cause
	}
	return err
}
