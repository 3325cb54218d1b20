package store

import (
	"bytes"
	"context"
	"fmt"
	"unsafe"

	"github.com/cockroachdb/pebble/v2"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
	"github.com/millrace/millrace/indexnode/store/timeline"
)

// Report counts what Check saw.
type Report struct {
	Timelines, Blobs, Records, Live, Features int
	// StaleRows are id rows of records that are no longer where they say;
	// a sweep removes those that retention left.
	StaleRows int
	// Miscounted are content types whose counts were wrong, and are right now.
	Miscounted int
}

// Check walks a partition as it is when called, and verifies every row: the
// chains, the order of records across blobs, metadata, counts, filters, id
// rows, orphans, and that the digests follow from what is there. A fault is an
// [ErrCorrupt] and quarantines the partition. It makes the counts right.
func (s *Store) Check(ctx context.Context, n millrace.Partition) (Report, error) {
	snap, err := s.snapshot(n)
	if err != nil {
		return Report{}, err
	}
	defer snap.Close()
	c := newChecker(ctx, n)
	for name := range snap.counted.at { // those have their names already
		c.counts[name] = &Counts{}
	}
	if err = snap.failed(c.run(snap)); err == nil {
		c.report.Miscounted = s.recount(snap.p, snap.counted, c.counts)
	}
	return c.report, err
}

// checker walks the rows of a partition in key order, timeline by timeline.
type checker struct {
	ctx    context.Context
	p      millrace.Partition
	report Report

	row    partRow
	origin []byte
	sum    Digest                           // of what is there
	counts map[millrace.ContentType]*Counts // of what is there
	here   *Counts                          // of the type of the timeline at hand

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
	rows   int                                 // id rows that are right

	recs []millrace.Record // of the blob at hand, while it is there
	room []byte            // with what is kept of the timeline at hand
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

func newChecker(ctx context.Context, n millrace.Partition) *checker {
	return &checker{ctx: ctx, p: n, row: partRow{applied: nothingApplied}, counts: map[millrace.ContentType]*Counts{}}
}

func (c *checker) run(r pebble.Reader) error {
	start, _ := partitionSpan(c.p)
	if err := scan(r, start, c.add); err != nil {
		return err
	}
	return c.end()
}

// add checks the next row in key order.
func (c *checker) add(k, v []byte) error {
	switch k[2] {
	case kindPart:
		if len(k) != 3 {
			return blob.ErrKey
		}
		var err error
		c.row, err = decodePartRow(v)
		return err
	case kindOrigin:
		if len(k) != 3 || len(v) > MaxOriginBytes {
			return fmt.Errorf("%w: origin", blob.ErrRow)
		}
		c.origin = bytes.Clone(v)
		return nil
	case kindFeatures:
		return c.features(k, v)
	case timeline.Kind:
		return c.timelineRow(k, v)
	}
	return fmt.Errorf("%w: of kind %#x", blob.ErrKey, k[2])
}

// end checks what holds of all rows together.
func (c *checker) end() error {
	if err := c.endTimeline(); err != nil {
		return err
	}
	c.sum.Content += c.row.dropped
	if c.sum != c.row.digest {
		return fmt.Errorf("%w: %x is there, %x was applied", errDigest, c.sum, c.row.digest)
	}
	return nil
}

func (c *checker) features(k, v []byte) error {
	entity, subject, err := blob.CutString(k[3:])
	if err != nil {
		return err
	}
	f, err := decodeFeatures(string(subject), v)
	if err != nil {
		return fmt.Errorf("features of %s: %w", entity, err)
	}
	c.report.Features++
	c.sum.Features += featuresDigest(millrace.Entity(entity), &f)
	return nil
}

func (c *checker) timelineRow(k, v []byte) error {
	rest, same := bytes.CutPrefix(k, c.prefix)
	if !same || c.prefix == nil {
		if err := c.endTimeline(); err != nil {
			return err
		}
		if err := c.ctx.Err(); err != nil {
			return err
		}
		name, n, _, err := timeline.CutKey(k)
		if err != nil {
			return err
		}
		c.begin(k[:n], name)
		c.here = c.countsOf(name.Type)
		rest = k[n:]
	}
	if err := c.part(rest, v); err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	return nil
}

// countsOf is [tally.of] of what is there.
func (c *checker) countsOf(t millrace.ContentType) *Counts {
	if c.counts[t] == nil && len(c.counts) >= MaxTypes {
		t = ""
	}
	if c.counts[t] == nil {
		c.counts[t] = &Counts{}
	}
	return c.counts[t]
}

// scan counts a record that is there.
func (c *Counts) scan(r *millrace.Record) {
	c.Bytes += int64(blob.RecordSize(r, 0))
	if r.Deleted {
		c.Deleted++
		return
	}
	c.Records++
	c.Newest = max(c.Newest, r.Time)
}

// begin goes on to another timeline, in the room and the maps of the last.
func (c *checker) begin(prefix []byte, name millrace.Timeline) {
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

// roomBytes is how much room a checker makes at a time.
const roomBytes = 256 << 10

// keep returns a copy of bytes that lasts as long as their timeline is at hand.
func (c *checker) keep(b []byte) []byte {
	if len(b) > cap(c.room)-len(c.room) {
		c.room = make([]byte, 0, max(roomBytes, len(b))) // what was kept stays in the old
	}
	n := len(c.room)
	c.room = append(c.room, b...)
	return c.room[n:len(c.room):len(c.room)]
}

// keepID keeps an id.
func (c *checker) keepID(id millrace.RecordID) millrace.RecordID {
	kept := c.keep(unsafe.Slice(unsafe.StringData(string(id)), len(id)))
	return millrace.RecordID(unsafe.String(unsafe.SliceData(kept), len(kept)))
}

func (c *checker) part(rest, v []byte) (err error) {
	if !timeline.IsPart(rest) {
		return blob.ErrKey
	}
	switch rest[0] {
	case timeline.PartHead:
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
	case timeline.PartChain:
		c.chain, err = blob.DecodeChain(v)
		return err
	case timeline.PartOlder:
		suffix := uint32(rest[1])<<24 | uint32(rest[2])<<16 | uint32(rest[3])<<8 | uint32(rest[4])
		if err := c.older(suffix, v); err != nil {
			return fmt.Errorf("m_%d: %w", suffix, err)
		}
	case timeline.PartFilter:
		c.filter, err = blob.DecodeFilter(c.keep(v))
		return err
	case timeline.PartID:
		row, err := timeline.DecodeIDRow(v)
		if err != nil {
			return err
		}
		if at, ok := c.ids[millrace.RecordID(rest[1:])]; !ok {
			c.report.StaleRows++
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
func (c *checker) blob(v []byte) (*blob.Blob, error) {
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
		if !c.recs[i].Deleted {
			c.report.Live++
		}
		c.here.scan(&c.recs[i])
	}
	if sum != b.Digest() {
		return nil, fmt.Errorf("%w: blob", errDigest)
	}
	c.report.Blobs++
	c.report.Records += len(c.recs)
	c.sum.Content += sum
	return b, nil
}

func (c *checker) older(suffix uint32, v []byte) error {
	b, err := c.blob(v)
	if err != nil {
		return err
	}
	if b.Count() == 0 || b.HasChain() {
		return timeline.ErrState
	}
	for i := range c.recs {
		r := &c.recs[i]
		if _, twice := c.ids[r.ID]; twice || c.inHead[r.ID] {
			return fmt.Errorf("%w: %q twice", timeline.ErrState, r.ID)
		}
		c.ids[c.keepID(r.ID)] = r.Time
	}
	_, oldest := b.Oldest()
	_, newest := b.Newest()
	c.blobs[suffix] = span{blob.LinkOf(suffix, b), c.keepID(oldest), c.keepID(newest)}
	return nil
}

// endTimeline checks what holds between the rows of the timeline at hand.
func (c *checker) endTimeline() error {
	if c.prefix == nil {
		return nil
	}
	if err := c.whole(); err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	c.report.Timelines++
	if c.head.count > 0 {
		c.here.Timelines++
	}
	return nil
}

func (c *checker) whole() error {
	if c.head == nil || c.head.hasChain != (c.chain != nil) {
		return fmt.Errorf("%w: head and chain", timeline.ErrState)
	}
	if c.chain == nil {
		if len(c.blobs) > 0 || c.filter != nil || c.head.count == 0 {
			return fmt.Errorf("%w: orphans without a chain", timeline.ErrState)
		}
		return nil
	}
	if len(c.blobs) != len(c.chain.Links) {
		return fmt.Errorf("%w: %d older blobs, %d in the chain", timeline.ErrState, len(c.blobs), len(c.chain.Links))
	}
	if c.head.count == 0 && len(c.blobs) > 0 {
		return fmt.Errorf("%w: empty head before others", timeline.ErrState)
	}
	for i, l := range c.chain.Links {
		b, ok := c.blobs[l.Suffix]
		if !ok || b.link != l {
			return fmt.Errorf("%w: metadata of m_%d", timeline.ErrState, l.Suffix)
		}
		nextTime, nextID := c.next(i)
		if !blob.Newer(nextTime, nextID, l.Newest, b.newest) {
			return fmt.Errorf("%w: m_%d is not older than the next", timeline.ErrState, l.Suffix)
		}
	}
	if c.rows != len(c.ids) {
		return fmt.Errorf("%w: %d records outside the head, %d of them have an id row", timeline.ErrState, len(c.ids), c.rows)
	}
	for id := range c.ids {
		if c.filter == nil || !c.filter.MayHave(id) {
			return fmt.Errorf("%w: %q is not in it", blob.ErrFilter, id)
		}
	}
	return nil
}

// next is the oldest position of the blob before the i-th link's.
func (c *checker) next(i int) (millrace.Time, millrace.RecordID) {
	if i+1 == len(c.chain.Links) {
		return c.head.oldest, c.head.oldestID
	}
	b, ok := c.blobs[c.chain.Links[i+1].Suffix]
	if !ok {
		return -blob.MaxTime, ""
	}
	return b.link.Oldest, b.oldestID
}
