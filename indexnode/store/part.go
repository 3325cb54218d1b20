package store

import (
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
	"github.com/millrace/millrace/indexnode/store/tally"
	"github.com/millrace/millrace/indexnode/store/timeline"
)

// part is a partition: its row, what was applied since its last flush, and what is
// kept of what was flushed.
type part struct {
	p  millrace.Partition
	mu sync.RWMutex // held while applying and encoding; readers share it

	restoring atomic.Bool // a restore is under way
	// Guarded by mu:
	row       partRow
	tally     *tally.Tally
	timelines map[millrace.Timeline]*timeline.Timeline // not flushed
	hot       hotHeads
	features  map[millrace.Entity]map[string]Features // by entity and subject
	origin    []byte                                  // replaced whole
	changed   bool                                    // row, origin or any of the maps since the last flush
	bytes     int64                                   // held by the maps
	bad       error                                   // why it is quarantined; nil: it is not
	damaged   bool                                    // it is quarantined for a damaged file, and its rows are yet to be removed
	unread    error                                   // why it could not be loaded; it must be loaded before it is used
	rewound   error                                   // says that it was rewound, for its next writer; nil once a writer was told
	epoch     int                                     // rises when all of it is replaced
	durable   Offsets                                 // up to where it is known to be on disk
}

// timeline returns a timeline to be changed. It is among the unflushed ones from then on.
func (p *part) timeline(s *Store, name millrace.Timeline) (*timeline.Timeline, error) {
	if t := p.timelines[name]; t != nil {
		return t, nil
	}
	t := p.hot.take(s, name)
	if t == nil {
		var err error
		if t, err = timeline.Open((*source)(s), p.p, name, s.opts.MaxBlobBytes); err != nil {
			return nil, err
		}
	}
	if p.timelines == nil {
		p.timelines = make(map[millrace.Timeline]*timeline.Timeline)
	}
	p.timelines[t.Name] = t
	p.bytes += int64(t.Memory())
	return t, nil
}

// apply applies the operations in order, and appends to changes what each Put did. After an
// error the partition must be rewound. p.mu is held.
func (p *part) apply(s *Store, o *ops, changes []Change) ([]Change, error) {
	p.changed = true
	for i := range o.list {
		op := &o.list[i]
		switch op.kind {
		case opPut:
			c, err := p.put(s, op.timeline, &op.record)
			if err != nil {
				return changes, err
			}
			changes = append(changes, c)
		case opFeatures:
			if err := p.putFeatures(s, op.timeline.Entity, &op.features); err != nil {
				return changes, err
			}
		case opClock:
			p.row.clock = max(p.row.clock, op.record.Time)
		}
	}
	if o.origin != nil {
		p.origin = o.origin
	}
	if o.set[Content] {
		p.row.applied.Content = o.applied[Content]
	}
	if o.set[FeatureStream] {
		p.row.applied.Features = o.applied[FeatureStream]
	}
	return changes, nil
}

// put applies one record. The highest version of an id wins. Of equal versions a tombstone
// wins over a record; otherwise the first to be applied wins. A tombstone stays, so that it
// wins over a record that arrives later with the same version or an older one.
func (p *part) put(s *Store, name millrace.Timeline, r *millrace.Record) (Change, error) {
	c := Change{Partition: p.p, Timeline: name, Record: *r}
	t, err := p.timeline(s, name)
	if err != nil {
		return c, err
	}
	before := t.Memory()
	defer func() { p.bytes += int64(t.Memory() - before) }()
	n, had := p.tally.Of(name.Type), t.Count() > 0
	defer func() { n.Timeline(had, t.Count() > 0) }()

	keep := s.keeper(name.Type, p.row.clock)
	at, ok, err := t.Find(r.ID)
	if err != nil {
		return c, err
	}
	if ok {
		gone, err := keep.Dropped(t, at)
		if err != nil {
			return c, err
		}
		if gone { // retention has dropped it: it is as if it were not there
			ok = false
			p.row.dropped += blob.RecordDigest(t.Hash, &at.Rec)
			n.Expire(&at.Rec)
			if err := t.Remove(at); err != nil {
				return c, err
			}
		}
	}
	if !ok {
		if out, err := keep.Excludes(t, r); err != nil || out {
			return c, err
		}
		c.Kind = Inserted
		n.Take(r)
		c.Newest, err = t.Insert(r)
	} else {
		c.HadOld, c.Old = true, at.Rec
		c.Old.Body = nil
		if !wins(r, &at.Rec) {
			return c, nil
		}
		c.Kind = Replaced
		p.row.digest.Content -= blob.RecordDigest(t.Hash, &at.Rec)
		n.Replace(&at.Rec, r)
		c.Newest, err = p.move(t, at, r, keep)
	}
	if err != nil {
		return c, err
	}
	if r.Deleted {
		c.Kind = Deleted
	}
	p.row.digest.Content += blob.RecordDigest(t.Hash, r)
	dropped, err := keep.Trim(t, n)
	p.row.dropped += dropped
	return c, err
}

// wins reports whether r takes the place of old: it has a higher version, or it is a
// tombstone and old a record of the same version. So the order in which the two come does
// not matter, and a record of a schema without versions can be deleted.
func wins(r, old *millrace.Record) bool {
	return r.Version > old.Version || r.Version == old.Version && r.Deleted && !old.Deleted
}

// move replaces a record by a newer version, at another position when its time
// changed.
func (p *part) move(t *timeline.Timeline, at timeline.Place, r *millrace.Record, keep timeline.Keeper) (newest bool, err error) {
	if at.Rec.Time == r.Time {
		return false, t.Replace(at, r)
	}
	if err := keep.SetFloor(t); err != nil {
		return false, err
	}
	if err := t.Remove(at); err != nil {
		return false, err
	}
	return t.Insert(r)
}

// putFeatures applies features of a subject.
func (p *part) putFeatures(s *Store, e millrace.Entity, f *Features) error {
	old, ok, err := p.oldFeatures(s, e, f.Subject)
	if err != nil || ok && old.Version >= f.Version {
		return err
	}
	if ok {
		p.row.digest.Features -= featuresDigest(e, &old)
	}
	p.row.digest.Features += featuresDigest(e, f)
	n := *f
	n.Subject, n.Body = strings.Clone(f.Subject), append([]byte(nil), f.Body...)
	own := p.featuresOf(e)
	if was, dirty := own[n.Subject]; dirty {
		p.bytes -= int64(len(was.Body))
	} else {
		p.bytes += int64(120 + len(n.Subject)) // about what an entry of the map takes
	}
	own[n.Subject] = n
	p.bytes += int64(len(n.Body))
	return nil
}

// featuresOf returns the map of an entity's unflushed features.
func (p *part) featuresOf(e millrace.Entity) map[string]Features {
	own := p.features[e]
	if own != nil {
		return own
	}
	if p.features == nil {
		p.features = make(map[millrace.Entity]map[string]Features)
	}
	own = make(map[string]Features, 1)
	p.features[millrace.Entity(strings.Clone(string(e)))] = own
	p.bytes += int64(300 + len(e)) // about what an entry and a small map take
	return own
}

// oldFeatures returns the features of a subject that were applied before; false if there are
// none.
func (p *part) oldFeatures(s *Store, e millrace.Entity, subject string) (Features, bool, error) {
	if f, ok := p.features[e][subject]; ok {
		return f, true, nil
	}
	v, err := s.get(append(featuresPrefix(p.p, e), subject...))
	if err != nil || v == nil {
		return Features{}, false, err
	}
	f, err := decodeFeatures(subject, v)
	return f, err == nil, err
}

// hotHeads is the timelines of a partition that stay in memory after they were written. They
// equal what Pebble has. A head that was written lately is likely to get the next record
// soon, and to read it from Pebble would cost more than all other work for that record. The
// partition's lock guards them: readers share it, and change nothing.
type hotHeads struct {
	timelines map[millrace.Timeline]*timeline.Timeline
	bytes     int64
}

// take takes a timeline out, to be changed, or returns nil.
func (h *hotHeads) take(s *Store, name millrace.Timeline) *timeline.Timeline {
	t := h.timelines[name]
	if t != nil {
		h.drop(s, t)
	}
	return t
}

// drop drops a timeline.
func (h *hotHeads) drop(s *Store, t *timeline.Timeline) {
	delete(h.timelines, t.Name)
	h.add(s, -int64(t.Memory()))
}

func (h *hotHeads) add(s *Store, bytes int64) {
	h.bytes += bytes
	s.hot.Add(bytes)
}

// shrink drops arbitrary timelines, until those dropped have at least that many bytes
// together. It makes room for timelines that are about to be written, which are more likely
// to get the next records.
func (h *hotHeads) shrink(s *Store, bytes int64) {
	for _, t := range h.timelines {
		if bytes <= 0 {
			return
		}
		bytes -= int64(t.Memory())
		h.drop(s, t)
	}
}

// keep keeps timelines that were written just now, as far as there is room in MaxHotBytes.
func (h *hotHeads) keep(s *Store, written map[millrace.Timeline]*timeline.Timeline) {
	if h.timelines == nil && len(written) > 0 && s.opts.MaxHotBytes > 0 {
		h.timelines = make(map[millrace.Timeline]*timeline.Timeline, len(written))
	}
	for name, t := range written {
		if t.Little() {
			continue
		}
		t.Written()
		size := int64(t.Memory())
		if s.hot.Load()+size > s.opts.MaxHotBytes {
			return
		}
		h.timelines[name] = t
		h.add(s, size)
	}
}

// crowded returns which share of the hot heads has to be dropped, up to 1, to make room for
// what is to be flushed. It is not above 0 if there is room.
func (s *Store) crowded() float64 {
	hot := s.hot.Load()
	return min(1, float64(hot+s.dirty.Load()-s.opts.MaxHotBytes)/float64(max(1, hot)))
}

// clear drops all.
func (h *hotHeads) clear(s *Store) {
	h.add(s, -h.bytes)
	h.timelines = nil
}

// known returns a timeline that is in memory, or nil.
func (p *part) known(name millrace.Timeline) *timeline.Timeline {
	if t := p.timelines[name]; t != nil {
		return t
	}
	return p.hot.timelines[name]
}

// keeper returns the retention of a type when the partition's clock is at clock.
func (s *Store) keeper(t millrace.ContentType, clock millrace.Time) timeline.Keeper {
	r := s.opts.Retention[t]
	k := timeline.Keeper{Horizon: math.MinInt64, Count: r.MaxCount}
	if r.MaxAge > 0 {
		k.Horizon = clock - millrace.Time(r.MaxAge.Milliseconds())
	}
	return k
}

// source is the store as package timeline reads it.
type source Store

// Get returns a row, or nil; the bytes are the caller's.
func (r *source) Get(key []byte) ([]byte, error) { return get(r.db, key) }

// IDRows reads the id rows of a timeline.
func (r *source) IDRows(prefix []byte) (map[millrace.RecordID]timeline.IDRow, error) {
	rows := make(map[millrace.RecordID]timeline.IDRow)
	prefix = append(slices.Clone(prefix), timeline.PartID)
	err := scan(r.db, prefix, func(k, v []byte) error {
		row, err := timeline.DecodeIDRow(v)
		rows[millrace.RecordID(k[len(prefix):])] = row
		return err
	})
	return rows, err
}
