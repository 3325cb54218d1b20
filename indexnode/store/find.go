package store

import (
	"strings"

	"github.com/millrace/millrace"
)

// Found is the latest version of a record in a timeline, a tombstone perhaps.
type Found struct {
	millrace.Record
	// Expired says that retention has dropped it, though its blob is still
	// there.
	Expired bool
}

// Find looks a record up by its id, at any time and deleted or not. ok is
// false when the timeline never had it, or when retention has dropped it and
// its blob is gone. The record has memory of its own.
func (s *Store) Find(n millrace.Partition, name millrace.Timeline, id millrace.RecordID) (f Found, ok bool, err error) {
	err = s.reading(n, func(p *part) (err error) {
		f, ok, err = p.find(s, name, id)
		return err
	})
	if err != nil {
		return Found{}, false, err
	}
	return f, ok, nil
}

// find is under the partition's lock for reading.
func (p *part) find(s *Store, name millrace.Timeline, id millrace.RecordID) (Found, bool, error) {
	if err := p.usable(); err != nil {
		return Found{}, false, err
	}
	t, err := p.copyOf(s, name)
	if err != nil {
		return Found{}, false, err
	}
	at, ok, err := t.find(id)
	if err != nil || !ok {
		return Found{}, false, err
	}
	f := Found{Record: at.rec}
	f.ID, f.Object = id, millrace.Object(strings.Clone(string(f.Object)))
	f.Body = append([]byte(nil), f.Body...)
	f.Expired, err = s.keeper(name.Type, p.row.clock).dropped(t, at)
	return f, true, err
}

// copyOf returns a timeline for a reader: what the reader loads into it stays
// its own. What it shares with the writer's only a writer changes.
func (p *part) copyOf(s *Store, name millrace.Timeline) (*timeline, error) {
	if t := p.known(name); t != nil {
		own := *t
		return &own, nil
	}
	return openTimeline(s, p.p, name, s.opts.MaxBlobBytes)
}
