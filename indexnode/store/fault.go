package store

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/cockroachdb/pebble/v2"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
	"github.com/millrace/millrace/indexnode/store/timeline"
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

// here marks an error that is neither corruption nor the caller's affair: the
// call may be tried again.
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

func corrupt(p millrace.Partition, cause error) error {
	return fmt.Errorf("%w: partition %d is quarantined: %w; restore a good copy, or drop it and replay the log", ErrCorrupt, p, cause)
}

// quarantineLocked takes a corrupt partition out of use, durably. p.mu is held.
func (s *Store) quarantineLocked(p *part, cause error) {
	if p.bad != nil {
		return
	}
	p.bad, p.damaged = cause, pebble.IsCorruptionError(cause)
	p.forget(s)
	s.log.Error("store: partition quarantined", "partition", p.p, "err", cause)
	if err := s.set(badKey(p.p), []byte(cause.Error())); err != nil {
		s.log.Error("store: quarantine is not remembered", "partition", p.p, "err", err)
	}
	if p.damaged {
		s.wakeFlusher()
	}
}

// Quarantine takes a partition out of use for a cause that the store cannot
// see, durably, until it is replaced. What it holds stays on disk.
func (s *Store) Quarantine(n millrace.Partition, cause error) error {
	p, err := s.part(n)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s.quarantineLocked(p, cause)
	return nil
}

func badKey(p millrace.Partition) string {
	return nodeRow(nodeBad, string(partitionPrefix(p)))
}

// failed turns an error met while reading a partition, in the state that epoch
// names, into the caller's, and quarantines the partition if it is corrupt. No
// lock is held.
func (s *Store) failed(p *part, epoch int, cause error) error {
	if cause == nil || errors.Is(cause, ErrCorrupt) || !isCorrupt(cause) {
		return here(cause)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.epoch == epoch {
		s.quarantineLocked(p, cause)
	}
	return corrupt(p.p, cause)
}

// loadQuarantine reads which partitions were quarantined.
func (s *Store) loadQuarantine(node map[string][]byte) error {
	for row, v := range node {
		if row[0] != nodeBad {
			continue
		}
		if len(row) != 3 || int(row[1])<<8|int(row[2]) >= len(s.parts) {
			return blob.ErrKey
		}
		s.parts[int(row[1])<<8|int(row[2])].bad = errors.New(string(v))
	}
	return nil
}

// Quarantined returns why a partition is quarantined, or nil.
func (s *Store) Quarantined(p millrace.Partition) error {
	q, err := s.part(p)
	if err != nil {
		return err
	}
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.bad == nil {
		return nil
	}
	return corrupt(p, q.bad)
}
