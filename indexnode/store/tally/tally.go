// Package tally counts what a partition has of each content type, as it changes, and
// encodes the counts as a row on disk. It knows records and blobs, and no store. A [Tally]
// has no lock of its own: its owner guards it, as by the lock of its partition.
package tally

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

// Counts is how much a partition has of a content type. See DESIGN.md of the store.
type Counts struct {
	Records   int64         // live
	Deleted   int64         // tombstones
	Timelines int64         // that have either
	Bytes     int64         // of both, as blobs have them
	Newest    millrace.Time // the latest time of a record ever taken in; 0: there was none

	// Counted since the partition began. A restore, or a count of a partition that was
	// not counted, begins anew: Taken is then the live records, and the others are 0.
	Taken   int64 // records, and newer versions of records
	Hidden  int64 // live records that a tombstone took the place of
	Expired int64 // live records that retention dropped, and whose space is reclaimed
}

// Add returns the sum of what two partitions have; Newest is the later one.
func (c Counts) Add(d Counts) Counts {
	return Counts{
		c.Records + d.Records, c.Deleted + d.Deleted, c.Timelines + d.Timelines, c.Bytes + d.Bytes, max(c.Newest, d.Newest),
		c.Taken + d.Taken, c.Hidden + d.Hidden, c.Expired + d.Expired,
	}
}

// Scan counts a record, or tombstone, that a scan of the partition finds.
func (c *Counts) Scan(r *millrace.Record) {
	c.Bytes += int64(blob.RecordSize(r, 0))
	if r.Deleted {
		c.Deleted++
		return
	}
	c.Records++
	c.Newest = max(c.Newest, r.Time)
}

// Tally counts a partition by content type. It counts as many types by name as its [Flows]
// do, those that come first, and all others together as type "".
type Tally struct {
	known bool // see Known
	flows *Flows
	types map[millrace.ContentType]*Type
}

// Type is the counts of a content type in a partition.
type Type struct {
	Counts
	flow *flow // the node's counts of the type, over all partitions
}

// Begin returns an empty tally. Say that it is known for a partition that has nothing, and
// not known for one whose content nobody has counted.
func (f *Flows) Begin(known bool) *Tally {
	return &Tally{known, f, map[millrace.ContentType]*Type{}}
}

// Known reports whether the tally counts all that the partition has. Otherwise it has only
// what changed since the tally was made.
func (c *Tally) Known() bool { return c.known }

// Of returns the counts of a type, for the caller to change. A type that came after the
// last one that is counted by name shares those of type "".
func (c *Tally) Of(t millrace.ContentType) *Type {
	if n := c.types[t]; n != nil {
		return n
	}
	if len(c.types) >= c.flows.most {
		if t = ""; c.types[t] != nil {
			return c.types[t]
		}
	}
	t = millrace.ContentType(strings.Clone(string(t)))
	n := &Type{flow: c.flows.of(t)}
	c.types[t] = n
	return n
}

// Take counts a record that comes in, perhaps a tombstone.
func (n *Type) Take(r *millrace.Record) {
	n.count(r, 1)
	if !r.Deleted {
		n.Newest = max(n.Newest, r.Time)
		n.Taken++
		n.flow.taken.Add(1)
	}
}

// Replace counts that r takes the place of old.
func (n *Type) Replace(old, r *millrace.Record) {
	n.count(old, -1)
	n.Take(r)
	if r.Deleted && !old.Deleted {
		n.Hidden++
		n.flow.hidden.Add(1)
	}
}

// Expire counts that retention drops a record.
func (n *Type) Expire(r *millrace.Record) {
	n.count(r, -1)
	if !r.Deleted {
		n.Expired++
		n.flow.expired.Add(1)
	}
}

// ExpireBlob counts that retention drops all records of a blob.
func (n *Type) ExpireBlob(b *blob.Blob) error {
	recs, err := b.DecodeAll(nil)
	if err != nil {
		return err
	}
	for i := range recs {
		n.Expire(&recs[i])
	}
	return nil
}

// count adds a record to what is there, or with sign -1 takes it away.
func (n *Type) count(r *millrace.Record, sign int64) {
	n.Bytes += sign * int64(blob.RecordSize(r, 0))
	if r.Deleted {
		n.Deleted += sign
	} else {
		n.Records += sign
	}
}

// Timeline counts a change of a timeline: whether it had records or tombstones before, and
// whether it has now.
func (n *Type) Timeline(had, has bool) {
	if had != has {
		n.Timelines += map[bool]int64{true: 1, false: -1}[has]
	}
}

// countsFormat is the first byte of the row of the counts. Then come the State that they
// are of, two little-endian uint64, and the number of types, a uvarint. Of each type, sorted
// by name, there is the name after its length, and the fields of Counts in their order, a
// varint each.
const countsFormat = 1

// State is the state of a partition that counts belong to: the digest of its content, and
// of what retention dropped from it. A binary of an earlier version changes the partition
// and not the counts; that they have another State then shows that they are wrong.
type State struct{ Content, Dropped uint64 }

// fields returns the fields in the order of the row.

func (c *Counts) fields() []*int64 {
	return []*int64{&c.Records, &c.Deleted, &c.Timelines, &c.Bytes, (*int64)(&c.Newest), &c.Taken, &c.Hidden, &c.Expired}
}

// Encode returns the row of the counts, with the state that they belong to.
func (c *Tally) Encode(of State) []byte {
	b := binary.LittleEndian.AppendUint64([]byte{countsFormat}, of.Content)
	b = binary.LittleEndian.AppendUint64(b, of.Dropped)
	b = binary.AppendUvarint(b, uint64(len(c.types)))
	for _, name := range slices.Sorted(maps.Keys(c.types)) {
		b = blob.AppendString(b, name)
		for _, f := range c.types[name].fields() {
			b = binary.AppendVarint(b, *f)
		}
	}
	return b
}

// decode reads a row. It fails if the row is malformed or belongs to another state.
func (f *Flows) decode(b []byte, of State) (map[millrace.ContentType]Counts, error) {
	const header = 1 + 8 + 8
	if len(b) < header || b[0] != countsFormat || of != (State{binary.LittleEndian.Uint64(b[1:]), binary.LittleEndian.Uint64(b[9:])}) {
		return nil, blob.ErrRow
	}
	n, w := binary.Uvarint(b[header:])
	if w <= 0 || n > uint64(f.most)+1 {
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
		for _, x := range c.fields() {
			v, w := binary.Varint(rest)
			if w <= 0 {
				return nil, blob.ErrRow
			}
			*x, rest = v, rest[w:]
		}
		all[millrace.ContentType(name)], b = c, rest
	}
	if len(b) > 0 || uint64(len(all)) != n {
		return nil, blob.ErrRow
	}
	return all, nil
}

// Read makes a tally from a partition's row of counts; row is nil if there is none. begun
// says whether the partition has anything: if not, the tally is empty and known, whatever
// the row. A partition that has something is not known if it has no row, or one that cannot
// be read or belongs to another state.
func (f *Flows) Read(row []byte, begun bool, of State) *Tally {
	c := f.Begin(!begun)
	if row == nil || !begun {
		return c
	}
	all, err := f.decode(row, of)
	c.known = err == nil
	for name, n := range all {
		c.types[name] = &Type{n, f.of(name)}
	}
	return c
}

// Scanned makes a known tally from what a scan found, for a partition that begins anew:
// Taken is its live records.
func (f *Flows) Scanned(found map[millrace.ContentType]*Counts) *Tally {
	c := f.Begin(true)
	for name, there := range found {
		n := *there
		n.Taken = n.Records
		c.types[name] = &Type{n, f.of(name)}
	}
	return c
}

// Now returns a copy of the counts, by type.
func (c *Tally) Now() map[millrace.ContentType]Counts {
	at := make(map[millrace.ContentType]Counts, len(c.types))
	for name, n := range c.types {
		at[name] = n.Counts
	}
	return at
}

// Mend corrects the counts by what a scan found. The scan saw the partition at the moment
// when its counts were was; what changed since stays counted. Mend returns for how many
// types the counts were wrong, or 0 if they were not known before. They are known then. It
// adds entries to found.
func (c *Tally) Mend(was map[millrace.ContentType]Counts, found map[millrace.ContentType]*Counts) (wrong int) {
	for name := range was {
		if found[name] == nil {
			found[name] = &Counts{}
		}
	}
	for name, f := range found {
		at, n := was[name], c.Of(name)
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
	}
	c.known = true
	return wrong
}

// Flow is what became of records of a content type since the store was opened, over all
// partitions; see Counts for its fields. What is applied again counts again.
type Flow struct{ Taken, Hidden, Expired int64 }

type flow struct{ taken, hidden, expired atomic.Int64 }

// Flows holds the Flow of each content type on a node. It holds as many types by name as
// NewFlows says, those that come first, and all others together as type "". Make it by
// [NewFlows]. It is safe for concurrent use.
type Flows struct {
	most int // types by name
	mu   sync.Mutex
	all  map[millrace.ContentType]*flow
}

// NewFlows returns empty Flows that hold up to most types by name.
func NewFlows(most int) *Flows {
	return &Flows{most: most, all: map[millrace.ContentType]*flow{"": {}}}
}

func (f *Flows) of(t millrace.ContentType) *flow {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all[t] == nil && len(f.all) > f.most {
		t = ""
	}
	if f.all[t] == nil {
		f.all[t] = new(flow)
	}
	return f.all[t]
}

// Now returns the flow of each type; type "" is all that are not held by name.
func (f *Flows) Now() map[millrace.ContentType]Flow {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make(map[millrace.ContentType]Flow, len(f.all))
	for t, n := range f.all {
		all[t] = Flow{n.taken.Load(), n.hidden.Load(), n.expired.Load()}
	}
	return all
}
