package timeline

import (
	"bytes"
	"errors"
	"fmt"
	"unsafe"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
)

// ErrDigest is a digest that does not follow from the records.
var ErrDigest = errors.New("digest")

// Checker checks the rows of timelines, which come in key order: each row by itself, and
// what must hold between those of one timeline.
type Checker struct {
	Found Found

	// The timeline at hand:
	prefix []byte
	name   millrace.Timeline
	hash   uint64
	head   *head
	chain  *blob.Chain
	blobs  map[uint32]span // of the older blobs seen
	filter *blob.Filter
	ids    map[millrace.RecordID]millrace.Time // outside the head
	inHead map[millrace.RecordID]bool          // where there are others
	rows   int                                 // id rows that say where their record is

	recs []millrace.Record // of the blob at hand; they share its memory
	room []byte            // memory for what is kept of the timeline at hand
}

// Found is told what a [Checker] finds right.
type Found interface {
	// Timeline says that the rows of one begin. An error ends the check.
	Timeline(name millrace.Timeline) error
	// Blob gets the records of one of the timeline's blobs, and their digest. The
	// records must not be used after it returns.
	Blob(recs []millrace.Record, digest uint64)
	// StaleRow is an id row of a record that is no longer where it says.
	StaleRow()
	// End says that the timeline is right, and whether it has records.
	End(records bool)
}

// head is what a timeline's newest blob was found to hold.
type head struct {
	count    int
	hasChain bool
	oldest   millrace.Time
	oldestID millrace.RecordID
}

// span is what an older blob was found to hold.
type span struct {
	link             blob.Link
	oldestID, newest millrace.RecordID
}

// Add checks the next row.
func (c *Checker) Add(k, v []byte) error {
	rest, same := bytes.CutPrefix(k, c.prefix)
	if !same || c.prefix == nil {
		if err := c.End(); err != nil {
			return err
		}
		name, n, _, err := CutKey(k)
		if err != nil {
			return err
		}
		c.begin(k[:n], name)
		if err := c.Found.Timeline(name); err != nil {
			return err
		}
		rest = k[n:]
	}
	if err := c.part(rest, v); err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	return nil
}

// begin goes on to another timeline, in the room and the maps of the last.
func (c *Checker) begin(prefix []byte, name millrace.Timeline) {
	c.prefix, c.name, c.hash = append(c.prefix[:0], prefix...), name, blob.TimelineDigest(name)
	c.head, c.chain, c.filter, c.rows, c.room = nil, nil, nil, 0, c.room[:0]
	c.blobs, c.ids, c.inHead = emptied(c.blobs), emptied(c.ids), emptied(c.inHead)
}

// emptied returns an empty map: m, unless that costs more than a new one.
func emptied[K comparable, V any](m map[K]V) map[K]V {
	if m == nil || len(m) > 1024 {
		return map[K]V{}
	}
	clear(m)
	return m
}

// roomBytes is how much room a Checker makes at a time.
const roomBytes = 256 << 10

// keep returns a copy of bytes that lasts as long as their timeline is at hand.
func (c *Checker) keep(b []byte) []byte {
	if len(b) > cap(c.room)-len(c.room) {
		c.room = make([]byte, 0, max(roomBytes, len(b))) // what was kept stays in the old
	}
	n := len(c.room)
	c.room = append(c.room, b...)
	return c.room[n:len(c.room):len(c.room)]
}

// keepID keeps an id.
func (c *Checker) keepID(id millrace.RecordID) millrace.RecordID {
	kept := c.keep(unsafe.Slice(unsafe.StringData(string(id)), len(id)))
	return millrace.RecordID(unsafe.String(unsafe.SliceData(kept), len(kept)))
}

func (c *Checker) part(rest, v []byte) (err error) {
	if !isPart(rest) {
		return blob.ErrKey
	}
	switch rest[0] {
	case PartHead:
		b, err := c.blob(v)
		if err != nil {
			return fmt.Errorf("head: %w", err)
		}
		c.head = &head{count: b.Count(), hasChain: b.HasChain()}
		if c.head.count > 0 {
			at, id := b.Oldest()
			c.head.oldest, c.head.oldestID = at, c.keepID(id)
		}
		if c.head.hasChain {
			for i := range c.recs {
				c.inHead[c.keepID(c.recs[i].ID)] = true
			}
		}
		return nil
	case PartChain:
		c.chain, err = blob.DecodeChain(v)
		return err
	case PartOlder:
		suffix := uint32(rest[1])<<24 | uint32(rest[2])<<16 | uint32(rest[3])<<8 | uint32(rest[4])
		if err := c.older(suffix, v); err != nil {
			return fmt.Errorf("m_%d: %w", suffix, err)
		}
	case PartFilter:
		c.filter, err = blob.DecodeFilter(c.keep(v))
		return err
	case PartID:
		row, err := DecodeIDRow(v)
		if err != nil {
			return err
		}
		if at, ok := c.ids[millrace.RecordID(rest[1:])]; !ok {
			c.Found.StaleRow()
		} else if at != row.At {
			return fmt.Errorf("%w: id row of %q says %d, it is at %d", blob.ErrRow, rest[1:], row.At, at)
		} else {
			c.rows++
		}
	}
	return nil
}

// blob checks a blob by itself, its digest too, and leaves its records in recs.
// Both are read from v, and are gone with it.
func (c *Checker) blob(v []byte) (*blob.Blob, error) {
	b, err := blob.Open(v)
	if err != nil {
		return nil, err
	}
	if c.recs, err = b.DecodeAll(c.recs[:0]); err != nil {
		return nil, err
	}
	sum := uint64(0)
	for i := range c.recs {
		sum += blob.RecordDigest(c.hash, &c.recs[i])
	}
	if sum != b.Digest() {
		return nil, fmt.Errorf("%w: blob", ErrDigest)
	}
	c.Found.Blob(c.recs, sum)
	return b, nil
}

func (c *Checker) older(suffix uint32, v []byte) error {
	b, err := c.blob(v)
	if err != nil {
		return err
	}
	if b.Count() == 0 || b.HasChain() {
		return ErrState
	}
	for i := range c.recs {
		r := &c.recs[i]
		if _, twice := c.ids[r.ID]; twice || c.inHead[r.ID] {
			return fmt.Errorf("%w: %q twice", ErrState, r.ID)
		}
		c.ids[c.keepID(r.ID)] = r.Time
	}
	_, oldest := b.Oldest()
	_, newest := b.Newest()
	c.blobs[suffix] = span{blob.LinkOf(suffix, b), c.keepID(oldest), c.keepID(newest)}
	return nil
}

// End checks what holds between the rows of the timeline at hand.
func (c *Checker) End() error {
	if c.prefix == nil {
		return nil
	}
	if err := c.whole(); err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	c.Found.End(c.head.count > 0)
	return nil
}

func (c *Checker) whole() error {
	if c.head == nil || c.head.hasChain != (c.chain != nil) {
		return fmt.Errorf("%w: head and chain", ErrState)
	}
	if c.chain == nil {
		if len(c.blobs) > 0 || c.filter != nil || c.head.count == 0 {
			return fmt.Errorf("%w: orphans without a chain", ErrState)
		}
		return nil
	}
	if len(c.blobs) != len(c.chain.Links) {
		return fmt.Errorf("%w: %d older blobs, %d in the chain", ErrState, len(c.blobs), len(c.chain.Links))
	}
	if c.head.count == 0 && len(c.blobs) > 0 {
		return fmt.Errorf("%w: empty head before others", ErrState)
	}
	for i, l := range c.chain.Links {
		b, ok := c.blobs[l.Suffix]
		if !ok || b.link != l {
			return fmt.Errorf("%w: metadata of m_%d", ErrState, l.Suffix)
		}
		nextTime, nextID := c.next(i)
		if !blob.Newer(nextTime, nextID, l.Newest, b.newest) {
			return fmt.Errorf("%w: m_%d is not older than the next", ErrState, l.Suffix)
		}
	}
	if c.rows != len(c.ids) {
		return fmt.Errorf("%w: %d records outside the head, %d of them have an id row", ErrState, len(c.ids), c.rows)
	}
	for id := range c.ids {
		if c.filter == nil || !c.filter.MayHave(id) {
			return fmt.Errorf("%w: %q is not in it", blob.ErrFilter, id)
		}
	}
	return nil
}

// next is the oldest position of the blob before the i-th link's.
func (c *Checker) next(i int) (millrace.Time, millrace.RecordID) {
	if i+1 == len(c.chain.Links) {
		return c.head.oldest, c.head.oldestID
	}
	b, ok := c.blobs[c.chain.Links[i+1].Suffix]
	if !ok {
		return -blob.MaxTime, ""
	}
	return b.link.Oldest, b.oldestID
}
