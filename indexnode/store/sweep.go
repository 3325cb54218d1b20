package store

import (
	"context"
	"maps"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
)

// sweepStep is how many timelines a sweep looks at before it lets go of the
// partition.
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
		held := t.memory()
		// What it dropped before it failed is dropped.
		n, had := p.tally.of(s, name.Type), t.headCount() > 0
		dropped, err := s.keeper(name.Type, p.row.clock).sweep(t, n)
		n.timeline(had, t.headCount() > 0)
		p.row.dropped += dropped
		p.bytes += int64(t.memory() - held)
		if t.clean() {
			p.bytes -= int64(t.memory())
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

// sweep drops what is not kept, and returns the digest of its records.
func (k keeper) sweep(t *timeline, n *typeTally) (dropped uint64, err error) {
	if t.head == nil || k.keepsAll() {
		return 0, nil
	}
	if err := t.loadChain(); err != nil {
		return 0, err
	}
	if dropped, err = k.trim(t, n); err != nil {
		return dropped, err
	}
	if err := t.sweepIDs(); err != nil || len(t.links()) > 0 {
		return dropped, err
	}
	f := (*blob.Floor)(nil)
	if t.chain != nil {
		f = t.chain.Floor
	}
	if f != nil && f.Time >= k.horizon {
		return dropped, nil // it still has something to say
	}
	if t.head.Count() > 0 {
		if newest, _ := t.head.Newest(); newest >= k.horizon {
			return dropped, nil
		}
	}
	if err := n.expireBlob(t.head); err != nil {
		return dropped, err
	}
	dropped += t.head.Digest()
	t.erase()
	return dropped, nil
}

// sweepIDs removes the id rows of the blobs that trimming dropped.
func (t *timeline) sweepIDs() error {
	if t.chain == nil || t.chain.Stale == 0 {
		return nil
	}
	rows, err := t.src.idRows(t.prefix)
	if err != nil {
		return err
	}
	maps.Copy(rows, t.ids)
	links := t.links()
	for id, row := range rows {
		if row.present && (len(links) == 0 || row.at < links[0].Oldest) {
			t.setID(id, idRow{})
		}
	}
	t.chain.Stale, t.chainDirty = 0, true
	return nil
}

// erase removes the timeline with everything it knows.
func (t *timeline) erase() {
	*t = timeline{name: t.name, hash: t.hash, prefix: t.prefix, max: t.max, src: nothing{}, gone: true}
}

func (t *timeline) clean() bool {
	return !t.gone && !t.headDirty && !t.chainDirty && !t.seenDirty && len(t.older) == 0 && len(t.dead) == 0 && len(t.ids) == 0
}

// nothing is the source of a timeline whose rows are all to be deleted.
type nothing struct{}

func (nothing) get([]byte) ([]byte, error)                         { return nil, nil }
func (nothing) idRows([]byte) (map[millrace.RecordID]idRow, error) { return nil, nil }

// idRows reads the id rows of a timeline.
func (s *Store) idRows(prefix []byte) (map[millrace.RecordID]idRow, error) {
	rows := make(map[millrace.RecordID]idRow)
	prefix = append(slices.Clone(prefix), partID)
	err := scan(s.db, prefix, func(k, v []byte) error {
		row, err := decodeIDRow(v)
		rows[millrace.RecordID(k[len(prefix):])] = row
		return err
	})
	return rows, err
}
