package store

import (
	"context"

	"github.com/millrace/millrace"
)

// sweepStep is how many timelines a sweep looks at before it releases the partition's lock.
const sweepStep = 64

// Sweep reclaims the space of what retention dropped from a partition: tail
// blobs, whole timelines, and the id rows that trimming left behind. It works
// in steps, between which ingest and reads go on, and calls progress, if not
// nil, after each with the number of timelines done so far; progress may wait,
// to bound the I/O. A sweep changes nothing that a read or a digest shows.
func (s *Store) Sweep(ctx context.Context, n millrace.Partition, progress func(timelines int)) error {
	if len(s.opts.Retention) == 0 {
		return nil
	}
	snap, err := s.snapshot(n)
	if err != nil {
		return err
	}
	defer snap.Close()
	done := 0
	var step []millrace.Timeline
	finish := func() error {
		if err := snap.p.sweep(s, step); err != nil {
			return snap.failed(err)
		}
		done += len(step)
		step = step[:0]
		if progress != nil {
			progress(done)
		}
		return ctx.Err()
	}
	for name, err := range heads(snap, n) {
		if err != nil {
			return snap.failed(err)
		}
		if _, kept := s.opts.Retention[name.Type]; !kept {
			continue
		}
		if step = append(step, name); len(step) == sweepStep {
			if err := finish(); err != nil {
				return err
			}
		}
	}
	return finish()
}

// sweep sweeps some timelines of the partition, with its lock held.
func (p *part) sweep(s *Store, names []millrace.Timeline) error {
	if len(names) == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.ready(s); err != nil {
		return err
	}
	before := p.bytes
	defer func() { s.dirty.Add(p.bytes - before) }()
	for _, name := range names {
		t, err := p.timeline(s, name)
		if err != nil {
			return err
		}
		held := t.Memory()
		// With an error, Sweep returns what it dropped before that.
		n, had := p.tally.Of(name.Type), t.Count() > 0
		dropped, err := s.keeper(name.Type, p.row.clock).Sweep(t, n)
		n.Timeline(had, t.Count() > 0)
		p.row.dropped += dropped
		p.bytes += int64(t.Memory() - held)
		if t.Clean() {
			p.bytes -= int64(t.Memory())
			delete(p.timelines, name)
		} else {
			p.changed = true
		}
		if err != nil {
			return err
		}
	}
	return nil
}
