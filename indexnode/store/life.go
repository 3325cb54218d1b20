package store

import (
	"context"

	"github.com/cockroachdb/pebble/v2"

	"github.com/millrace/millrace"
)

// DropPartition removes everything of a partition at once, on disk too, and
// lifts its quarantine.
func (s *Store) DropPartition(n millrace.Partition) error {
	p, err := s.part(n)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	start, end := partitionSpan(n)
	if err := s.db.Excise(context.Background(), pebble.KeyRange{Start: start, End: end}); err != nil {
		return err
	}
	return s.accept(p)
}

// accept takes a partition as the disk now has it. p.mu is held.
func (s *Store) accept(p *part) error {
	if err := p.load(s); err != nil {
		return err
	}
	p.bad = nil
	return s.db.Delete(badKey(p.p), pebble.NoSync)
}
