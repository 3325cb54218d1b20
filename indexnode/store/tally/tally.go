// Package tally counts what a partition has of each content type, as it changes,
// and is the row of it on disk. It knows records and blobs, and no store: who has
// a [Tally] guards it, as by the lock of its partition.
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

// Scan counts a record that is there.
func (c *Counts) Scan(r *millrace.Record) {
	c.Bytes += int64(blob.RecordSize(r, 0))
	if r.Deleted {
		c.Deleted++
		return
	}
	c.Records++
	c.Newest = max(c.Newest, r.Time)
}

// Tally counts a partition. Of more types than its [Flows] tell apart the others
// are counted together, as type "".
type Tally struct {
	known bool // otherwise it has only what changed since it was made
	flows *Flows
	types map[millrace.ContentType]*Type
}

// Type counts a content type.
type Type struct {
	Counts
	flow *flow
}

// Begin returns the tally of a partition that has nothing, or of one that nobody
// has counted: then it is not known.
func (f *Flows) Begin(known bool) *Tally {
	return &Tally{known, f, map[millrace.ContentType]*Type{}}
}

// Known reports whether the tally has all that is there, and not only what
// changed since it was made.
func (c *Tally) Known() bool { return c.known }

// Of returns what counts a type: of the first ones each by itself, of further
// ones the one without a name.
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

// Take counts a record that comes, a tombstone perhaps.
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

// Timeline counts a timeline that had records, or did not, and has now.
func (n *Type) Timeline(had, has bool) {
	if had != has {
		n.Timelines += map[bool]int64{true: 1, false: -1}[has]
	}
}

// The row of the counts, at its key: format, 1, and what it is of (the
// partition's digest of content, and what of it was dropped: 8 bytes each), then
// the number of types; of each, by name, the name behind its length and the
// fields of Counts in their order, varint.
const countsFormat = 1

// State is the state of a partition that counts are of: the partition's digest of
// content, and what of it was dropped. An earlier version goes on with the
// partition and leaves the counts behind.
type State struct{ Content, Dropped uint64 }

func (c *Counts) fields() []*int64 {
	return []*int64{&c.Records, &c.Deleted, &c.Timelines, &c.Bytes, (*int64)(&c.Newest), &c.Taken, &c.Hidden, &c.Expired}
}

// Encode returns the row of the counts, which are of a state.
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

// decode reads the row, which must be of a state.
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

// Read makes a tally of a partition's row of counts. A partition that has
// nothing yet needs none, and one that is left says nothing; without it any
// other is uncounted, and so it is where the row cannot be read or is of another
// state.
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

// Scanned makes a tally of what was read of a partition that begins anew with it.
func (f *Flows) Scanned(found map[millrace.ContentType]*Counts) *Tally {
	c := f.Begin(true)
	for name, there := range found {
		n := *there
		n.Taken = n.Records
		c.types[name] = &Type{n, f.of(name)}
	}
	return c
}

// Now returns the counts.
func (c *Tally) Now() map[millrace.ContentType]Counts {
	at := make(map[millrace.ContentType]Counts, len(c.types))
	for name, n := range c.types {
		at[name] = n.Counts
	}
	return at
}

// Mend makes counts right by what a scan found at the moment when they were was,
// and returns of how many types they were wrong; none if they were not known,
// and are now.
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

// Flow is what became of records of a content type since the store was opened,
// over all partitions. What is applied again counts again.
type Flow struct{ Taken, Hidden, Expired int64 }

type flow struct{ taken, hidden, expired atomic.Int64 }

// Flows are those of the types by name; of those beyond the most that are told
// apart together, without one. Make them by [NewFlows].
type Flows struct {
	most int
	mu   sync.Mutex
	all  map[millrace.ContentType]*flow
}

// NewFlows tells so many types apart.
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

// Now returns what became of records, by type; of those that are not told apart
// together, as type "".
func (f *Flows) Now() map[millrace.ContentType]Flow {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make(map[millrace.ContentType]Flow, len(f.all))
	for t, n := range f.all {
		all[t] = Flow{n.taken.Load(), n.hidden.Load(), n.expired.Load()}
	}
	return all
}
