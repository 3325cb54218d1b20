package timeline

import (
	"bytes"
	"errors"
	"fmt"
	"unsafe"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
)

// ErrDigest is the error for a stored digest that is not the digest of the records.
var ErrDigest = errors.New("digest")

// Checker checks the rows of timelines, which come in key order: each row by itself, and the
// rows of a timeline against each other. The caller calls Add for each row, and then End.
type Checker struct {
	Found Found

	// Of the current timeline:
	prefix []byte
	name   millrace.Timeline
	hash   uint64
	head   *head
	chain  *blob.Chain
	blobs  map[uint32]span // the older blobs that have come, by suffix
	filter *blob.Filter
	ids    map[millrace.RecordID]millrace.Time // the records outside the head, and their times
	inHead map[millrace.RecordID]bool          // the ids in the head, if there are older blobs
	rows   int                                 // the number of id rows that agree with where their record is

	recs []millrace.Record // the records of the last blob; they share its memory
	room []byte            // memory for what is kept of the timeline
}

// Found is told what a [Checker] finds.
type Found interface {
	// Timeline is called when the rows of a timeline begin. An error ends the check.
	Timeline(name millrace.Timeline) error
	// Blob gets the records of one of the timeline's blobs, and their digest. Blob must not
	// keep the records after it returns.
	Blob(recs []millrace.Record, digest uint64)
	// StaleRow is called for an id row whose record is no longer outside the head. That is
	// no fault: retention leaves such rows until the next sweep.
	StaleRow()
	// End is called when all rows of a timeline are right, and says whether it has records.
	End(records bool)
}

// head is what the checker needs of the head of a timeline, its newest blob.
type head struct {
	count    int
	hasChain bool
	oldest   millrace.Time
	oldestID millrace.RecordID
}

// span is what the checker needs of an older blob.
type span struct {
	link             blob.Link // the link that the chain must have for it
	oldestID, newest millrace.RecordID
}

// Add checks the next row, with key k and value v. They may be changed after it returns. An
// error is a fault of this row, or of the timeline before it.
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

// begin begins with another timeline. It uses the memory of the last one again.
func (c *Checker) begin(prefix []byte, name millrace.Timeline) {
	c.prefix, c.name, c.hash = append(c.prefix[:0], prefix...), name, blob.TimelineDigest(name)
	c.head, c.chain, c.filter, c.rows, c.room = nil, nil, nil, 0, c.room[:0]
	c.blobs, c.ids, c.inHead = emptied(c.blobs), emptied(c.ids), emptied(c.inHead)
}

// emptied returns an empty map: m, unless m is so large that a new one is cheaper.
func emptied[K comparable, V any](m map[K]V) map[K]V {
	if m == nil || len(m) > 1024 {
		return map[K]V{}
	}
	clear(m)
	return m
}

// roomBytes is how many bytes a Checker allocates at a time for what it keeps.
const roomBytes = 256 << 10

// keep returns a copy of b that is valid until the next timeline begins.
func (c *Checker) keep(b []byte) []byte {
	if len(b) > cap(c.room)-len(c.room) {
		c.room = make([]byte, 0, max(roomBytes, len(b))) // earlier copies stay valid in the old memory
	}
	n := len(c.room)
	c.room = append(c.room, b...)
	return c.room[n:len(c.room):len(c.room)]
}

// keepID is keep for an id.
func (c *Checker) keepID(id millrace.RecordID) millrace.RecordID {
	kept := c.keep(unsafe.Slice(unsafe.StringData(string(id)), len(id)))
	return millrace.RecordID(unsafe.String(unsafe.SliceData(kept), len(kept)))
}

// part checks a row of the current timeline. rest is its key without the prefix.
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

// blob checks a blob by itself, with its digest, and puts its records into c.recs. The blob and
// the records share the memory of v.
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

// older checks an older blob by itself, and that no other blob has its records.
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

// End checks the rows of the current timeline against each other. Add calls it before each
// further timeline, and the caller after the last row.
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

// next returns the position of the oldest record in the blob that comes next after the blob of
// the i-th link, in the order from old to new.
func (c *Checker) next(i int) (millrace.Time, millrace.RecordID) {
	if i+1 == len(c.chain.Links) {
		return c.head.oldest, c.head.oldestID
	}
	b, ok := c.blobs[c.chain.Links[i+1].Suffix]
	if !ok {
		return -blob.MaxTime, "" // older than any record, so that whole reports a fault
	}
	return b.link.Oldest, b.oldestID
}
