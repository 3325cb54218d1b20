package store

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace"
)

// Apply applies a batch and appends what each Put did to changes, which may be
// nil. From its return on, reads see the batch; the disk has it after the next
// flush, and the log replays it if the process ends before. Partitions fail
// alone: the error joins those of the partitions that failed, each of which is
// at what Applied says, while the others have applied their part. Changes of a
// partition that failed are not reported.
//
// [ErrDiskFull] refuses the whole batch, unchanged.
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

func (s *Store) applyTo(n millrace.Partition, o *ops, changes []Change) ([]Change, error) {
	p, err := s.part(n)
	if err != nil {
		return changes, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.ready(s); err != nil {
		return changes, err
	}
	before := p.bytes
	after, err := p.apply(s, o, changes)
	if err == nil {
		s.dirty.Add(p.bytes - before)
		return after, nil
	}
	s.dirty.Add(p.bytes - before)
	return changes, s.rewind(p, err)
}

// rewind undoes everything applied since the last flush, because part of a
// batch failed: in between would be a state that no offset describes.
// p.mu is held.
func (s *Store) rewind(p *part, cause error) error {
	if isCorrupt(cause) {
		s.quarantineLocked(p, cause)
		return corrupt(p.p, cause)
	}
	if err := p.load(s); isCorrupt(err) {
		s.quarantineLocked(p, err)
		return corrupt(p.p, err)
	}
	return fmt.Errorf("%w: partition %d to offset %d: %w", ErrRewound, p.p, p.row.applied.Content, cause)
}

// validate refuses what no batch may have.
func (b *Batch) validate() error {
	for p, o := range b.parts {
		if len(o.origin) > MaxOriginBytes {
			return fmt.Errorf("store: origin of partition %d has %d bytes; at most %d are kept", p, len(o.origin), MaxOriginBytes)
		}
	}
	return nil
}

// Applied returns the offsets that reads of the partition see.
func (s *Store) Applied(p millrace.Partition) Offsets {
	q, err := s.part(p)
	if err != nil {
		return Offsets{-1, -1}
	}
	q.mu.RLock()
	defer q.mu.RUnlock()
	return q.row.applied
}

// Origin returns what [Batch.SetOrigin] set last, as reads of the partition see
// it, or nil. The caller must not change it.
func (s *Store) Origin(p millrace.Partition) ([]byte, error) {
	q, err := s.part(p)
	if err != nil {
		return nil, err
	}
	q.mu.RLock()
	defer q.mu.RUnlock()
	return q.origin, q.usable()
}

// Clock returns the log's own time as a partition has it; see [Batch.SetClock].
func (s *Store) Clock(p millrace.Partition) millrace.Time {
	q, err := s.part(p)
	if err != nil {
		return 0
	}
	q.mu.RLock()
	defer q.mu.RUnlock()
	return q.row.clock
}

// Durable returns the offsets from which a restart would replay.
func (s *Store) Durable(p millrace.Partition) Offsets {
	q, err := s.part(p)
	if err != nil {
		return Offsets{-1, -1}
	}
	q.mu.RLock()
	defer q.mu.RUnlock()
	return q.durable
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
