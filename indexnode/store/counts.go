package store

import (
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
)

// Counts is how much a partition has of a content type. See DESIGN.md.
type Counts struct {
	Records   int64         // live
	Deleted   int64         // tombstones
	Timelines int64         // that have either
	Bytes     int64         // of both, as blobs have them
	Newest    millrace.Time // the latest time of a record ever taken in; 0: there was none

	// Since the partition began. A restore begins it anew: with what is there
	// taken in, and nothing hidden or expired. So does a recount of a partition
	// that was uncounted.
	Taken   int64 // records, and newer versions of records
	Hidden  int64 // live records that a tombstone took the place of
	Expired int64 // live records that retention dropped, and whose space is reclaimed
}

// Add adds up what two partitions have.
func (c Counts) Add(d Counts) Counts {
	return Counts{
		c.Records + d.Records, c.Deleted + d.Deleted, c.Timelines + d.Timelines, c.Bytes + d.Bytes, max(c.Newest, d.Newest),
		c.Taken + d.Taken, c.Hidden + d.Hidden, c.Expired + d.Expired,
	}
}

// Counted is how much a partition has at some offsets.
type Counted struct {
	Applied Offsets
	// Known is false while nobody has counted: [Store.Check] does.
	Known bool
	// Types is nil unless it is known. Those beyond MaxTypes are together, as
	// type "".
	Types map[millrace.ContentType]Counts
}

// Counts returns how much a partition has of each content type.
func (s *Store) Counts(n millrace.Partition) (Counted, error) {
	p, err := s.part(n)
	if err != nil {
		return Counted{Applied: nothingApplied}, err
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	c := Counted{Applied: p.row.applied, Known: p.tally.known}
	if err := p.usable(); err != nil || !c.Known {
		return c, err
	}
	c.Types = p.tally.now()
	return c, nil
}

// tally counts a partition. Its partition's lock guards it.
type tally struct {
	known bool // otherwise it has only what changed since it was made
	types map[millrace.ContentType]*typeTally
}

type typeTally struct {
	Counts
	flow *flow
}

func newTally(known bool) *tally {
	return &tally{known, map[millrace.ContentType]*typeTally{}}
}

// of returns what counts a type: of the first MaxTypes each by itself, of
// further ones the one without a name.
func (c *tally) of(s *Store, t millrace.ContentType) *typeTally {
	if n := c.types[t]; n != nil {
		return n
	}
	if len(c.types) >= MaxTypes {
		if t = ""; c.types[t] != nil {
			return c.types[t]
		}
	}
	t = millrace.ContentType(strings.Clone(string(t)))
	n := &typeTally{flow: s.flows.of(t)}
	c.types[t] = n
	return n
}

// take counts a record that comes, a tombstone perhaps.
func (n *typeTally) take(r *millrace.Record) {
	n.there(r, 1)
	if !r.Deleted {
		n.Newest = max(n.Newest, r.Time)
		n.Taken++
		n.flow.taken.Add(1)
	}
}

// replace counts that r takes the place of old.
func (n *typeTally) replace(old, r *millrace.Record) {
	n.there(old, -1)
	n.take(r)
	if r.Deleted && !old.Deleted {
		n.Hidden++
		n.flow.hidden.Add(1)
	}
}

// expire counts that retention drops a record.
func (n *typeTally) expire(r *millrace.Record) {
	n.there(r, -1)
	if !r.Deleted {
		n.Expired++
		n.flow.expired.Add(1)
	}
}

// ExpireBlob counts that retention drops all records of a blob.
func (n *typeTally) ExpireBlob(b *blob.Blob) error {
	recs, err := b.DecodeAll(nil)
	if err != nil {
		return err
	}
	for i := range recs {
		n.expire(&recs[i])
	}
	return nil
}

func (n *typeTally) there(r *millrace.Record, sign int64) {
	n.Bytes += sign * int64(blob.RecordSize(r, 0))
	if r.Deleted {
		n.Deleted += sign
	} else {
		n.Records += sign
	}
}

// timeline counts a timeline that had records, or did not, and has now.
func (n *typeTally) timeline(had, has bool) {
	if had != has {
		n.Timelines += map[bool]int64{true: 1, false: -1}[has]
	}
}

// The row of the counts, at [countsKey]: format, 1, and what it is of (the
// partition's digest of content, and what of it was dropped: 8 bytes each), then
// the number of types; of each, by name, the name behind its length and the
// fields of Counts in their order, varint.
const countsFormat = 1

// countsOf is the state of a partition that counts are of. An earlier version
// goes on with the partition and leaves the counts behind.
type countsOf struct{ content, dropped uint64 }

func (r *partRow) countsOf() countsOf { return countsOf{r.digest.Content, r.dropped} }

func (c *Counts) fields() []*int64 {
	return []*int64{&c.Records, &c.Deleted, &c.Timelines, &c.Bytes, (*int64)(&c.Newest), &c.Taken, &c.Hidden, &c.Expired}
}

func (c *tally) encode(of countsOf) []byte {
	b := binary.LittleEndian.AppendUint64([]byte{countsFormat}, of.content)
	b = binary.LittleEndian.AppendUint64(b, of.dropped)
	b = binary.AppendUvarint(b, uint64(len(c.types)))
	for _, name := range slices.Sorted(maps.Keys(c.types)) {
		b = blob.AppendString(b, name)
		for _, f := range c.types[name].fields() {
			b = binary.AppendVarint(b, *f)
		}
	}
	return b
}

// decodeCounts reads the row, which must be of a state.
func decodeCounts(b []byte, of countsOf) (map[millrace.ContentType]Counts, error) {
	const header = 1 + 8 + 8
	if len(b) < header || b[0] != countsFormat || of != (countsOf{binary.LittleEndian.Uint64(b[1:]), binary.LittleEndian.Uint64(b[9:])}) {
		return nil, blob.ErrRow
	}
	n, w := binary.Uvarint(b[header:])
	if w <= 0 || n > MaxTypes+1 {
		return nil, blob.ErrRow
	}
	b = b[header+w:]
	all := make(map[millrace.ContentType]Counts, n)
	for range n {
		name, rest, err := blob.CutString(b)
		if err != nil {
			return nil, err
		}
		var c Counts
		for _, f := range c.fields() {
			v, w := binary.Varint(rest)
			if w <= 0 {
				return nil, blob.ErrRow
			}
			*f, rest = v, rest[w:]
		}
		all[millrace.ContentType(name)], b = c, rest
	}
	if len(b) > 0 || uint64(len(all)) != n {
		return nil, blob.ErrRow
	}
	return all, nil
}

// countsRow reads a partition's row of counts. A damaged one is none: it costs a
// recount, and not the partition.
func (s *Store) countsRow(n millrace.Partition) ([]byte, error) {
	row, err := s.get(countsKey(n))
	if isCorrupt(err) {
		return nil, nil
	}
	return row, err
}

// tallyOf makes a tally of a partition's row of counts. A partition that has
// nothing yet needs none, and one that is left says nothing; without it any
// other is uncounted, and so it is where the row cannot be read or is of another
// state.
func (s *Store) tallyOf(row []byte, begun bool, of countsOf) *tally {
	c := newTally(!begun)
	if row == nil || !begun {
		return c
	}
	all, err := decodeCounts(row, of)
	c.known = err == nil
	for name, n := range all {
		c.types[name] = &typeTally{n, s.flows.of(name)}
	}
	return c
}

// tallyOfScan makes a tally of what a restore has read.
func (s *Store) tallyOfScan(found map[millrace.ContentType]*Counts) *tally {
	c := newTally(true)
	for name, f := range found {
		n := *f
		n.Taken = n.Records
		c.types[name] = &typeTally{n, s.flows.of(name)}
	}
	return c
}

// counted is a tally at one moment.
type counted struct {
	of *tally // which goes on, until its partition is replaced or rewound
	at map[millrace.ContentType]Counts
}

func (c *tally) now() map[millrace.ContentType]Counts {
	at := make(map[millrace.ContentType]Counts, len(c.types))
	for name, n := range c.types {
		at[name] = n.Counts
	}
	return at
}

// recount makes counts right by what a scan found at the moment that was is of,
// and reports of how many types they were wrong.
func (s *Store) recount(p *part, was counted, found map[millrace.ContentType]*Counts) (wrong int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := was.of
	if p.usable() != nil || p.tally != c {
		return 0
	}
	for name := range was.at {
		if found[name] == nil {
			found[name] = &Counts{}
		}
	}
	for name, f := range found {
		at, n := was.at[name], c.of(s, name)
		off := Counts{Records: f.Records - at.Records, Deleted: f.Deleted - at.Deleted, Timelines: f.Timelines - at.Timelines, Bytes: f.Bytes - at.Bytes}
		if off != (Counts{}) {
			wrong++
		}
		if !c.known {
			off.Newest, off.Taken = f.Newest, f.Records
		}
		n.Counts = n.Counts.Add(off)
	}
	if !c.known {
		wrong = 0
	} else if wrong > 0 {
		s.log.Error("store: counts were wrong and are mended", "partition", p.p, "types", wrong)
	}
	p.changed = p.changed || !c.known || wrong > 0
	c.known = true
	return wrong
}

// Flow is what became of records of a content type since the store was opened,
// over all partitions. What is applied again counts again.
type Flow struct{ Taken, Hidden, Expired int64 }

type flow struct{ taken, hidden, expired atomic.Int64 }

// flows are those of the types by name; of those beyond MaxTypes together,
// without one.
type flows struct {
	mu  sync.Mutex
	all map[millrace.ContentType]*flow
}

func (f *flows) of(t millrace.ContentType) *flow {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all = map[millrace.ContentType]*flow{"": {}}
	}
	if f.all[t] == nil && len(f.all) > MaxTypes {
		t = ""
	}
	if f.all[t] == nil {
		f.all[t] = new(flow)
	}
	return f.all[t]
}

// Flows returns what became of records, by type; of those beyond MaxTypes
// together, as type "".
func (s *Store) Flows() map[millrace.ContentType]Flow {
	s.flows.mu.Lock()
	defer s.flows.mu.Unlock()
	all := make(map[millrace.ContentType]Flow, len(s.flows.all))
	for t, f := range s.flows.all {
		all[t] = Flow{f.taken.Load(), f.hidden.Load(), f.expired.Load()}
	}
	return all
}
