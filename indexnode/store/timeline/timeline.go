// Package timeline changes a timeline in the store: where a record goes, which blobs split,
// what retention keeps, and which rows are written for it.
//
// The records of a timeline are in blobs, each a run of records in the order of time and id.
// The blob with the newest records is the head. The others are the older blobs. Each has a
// number, its suffix, and a link in the chain, which lists them oldest first. An id row says
// where the record of an id is outside the head, and a Bloom filter which ids may have one.
// Rows are read through a [Source]. The caller's lock guards everything.
package timeline

import (
	"encoding/binary"
	"errors"
	"slices"
	"sort"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
)

// Timeline is a timeline with the changes that are not on disk yet. The rest is read through
// src when it is needed. The lock of its partition guards it.
type Timeline struct {
	Name   millrace.Timeline
	Hash   uint64 // of Name; part of the digests of its records
	Prefix []byte // what all keys of its rows begin with
	src    Source
	max    int // the largest size of a blob, in bytes

	Head  *blob.Blob                  // nil while there is no record and no chain
	Chain *blob.Chain                 // nil until loaded, and while there is none
	older map[uint32]*blob.Blob       // changed older blobs, by suffix
	dead  []uint32                    // suffixes of older blobs that are to be deleted
	ids   map[millrace.RecordID]IDRow // changed id rows; not present: to be deleted
	Seen  *blob.Filter                // has the ids outside the head; nil until loaded

	headDirty, chainDirty, seenDirty bool // the row has changed
	gone                             bool // Write is to delete every row first; Written does not reset it (see Little)

	olderBytes int // memory of older
}

// IDRow says at which time the record of an id is, outside the head. Every record outside the
// head has an id row. A row may also remain of a record that retention has dropped.
type IDRow struct {
	At      millrace.Time
	present bool // false: there is no such row
}

// Source reads rows of the store. The bytes that it returns are the caller's.
type Source interface {
	Get(key []byte) ([]byte, error)                            // nil for a key that is not there
	IDRows(prefix []byte) (map[millrace.RecordID]IDRow, error) // all id rows of a timeline
}

// ErrState is the error for rows of a timeline that contradict each other.
var ErrState = errors.New("chain and blobs disagree")

// Open returns a timeline, with its head read. max is the largest size of a blob in bytes.
func Open(src Source, p millrace.Partition, name millrace.Timeline, max int) (*Timeline, error) {
	t := &Timeline{
		Name:   millrace.Timeline{Entity: millrace.Entity(strings.Clone(string(name.Entity))), Type: millrace.ContentType(strings.Clone(string(name.Type)))},
		Prefix: Prefix(p, name),
		Hash:   blob.TimelineDigest(name),
		src:    src,
		max:    max,
	}
	v, err := src.Get(HeadKey(t.Prefix))
	if err != nil || v == nil {
		return t, err
	}
	t.Head, err = blob.Open(v)
	return t, err
}

// Memory estimates the bytes of memory that the timeline takes: about 300 for the struct and
// 100 for each changed id row, and the buffers.
func (t *Timeline) Memory() int {
	n := 300 + len(t.Name.Entity) + cap(t.Prefix) + t.olderBytes + 100*len(t.ids)
	if t.Head != nil {
		n += cap(t.Head.Buf)
	}
	if t.Chain != nil {
		n += blob.LinkBytes * cap(t.Chain.Links)
	}
	if t.Seen != nil {
		n += cap(t.Seen.Bits)
	}
	return n
}

// LoadChain reads the chain into t.Chain, unless it is there already. Chain stays nil if the
// timeline has none.
func (t *Timeline) LoadChain() error {
	if t.Chain != nil || t.Head == nil || !t.Head.HasChain() {
		return nil
	}
	v, err := t.src.Get(ChainKey(t.Prefix))
	if err != nil {
		return err
	}
	if v == nil {
		return ErrState
	}
	t.Chain, err = blob.DecodeChain(v)
	return err
}

// Links returns the links of the chain, oldest first; nil if the chain is not loaded.
func (t *Timeline) Links() []blob.Link {
	if t.Chain == nil {
		return nil
	}
	return t.Chain.Links
}

// makeChain loads the chain, or begins one.
func (t *Timeline) makeChain() error {
	if err := t.LoadChain(); err != nil || t.Chain != nil {
		return err
	}
	t.Chain = new(blob.Chain)
	return nil
}

// BlobAt returns the older blob of a link, and reads it if it is not in memory.
func (t *Timeline) BlobAt(l *blob.Link) (*blob.Blob, error) {
	if b := t.older[l.Suffix]; b != nil {
		return b, nil
	}
	v, err := t.src.Get(OlderKey(t.Prefix, l.Suffix))
	if err != nil {
		return nil, err
	}
	if v == nil {
		return nil, ErrState
	}
	b, err := blob.Open(v)
	if err == nil && b.Count() != int(l.Count) {
		err = ErrState
	}
	return b, err
}

// Loaded returns an older blob that has changed and so is in memory; nil for others.
func (t *Timeline) Loaded(suffix uint32) *blob.Blob { return t.older[suffix] }

func (t *Timeline) setOlder(suffix uint32, b *blob.Blob) {
	if t.older == nil {
		t.older = make(map[uint32]*blob.Blob)
	}
	t.dropOlder(suffix)
	t.older[suffix] = b
	t.olderBytes += cap(b.Buf)
}

func (t *Timeline) dropOlder(suffix uint32) {
	if b := t.older[suffix]; b != nil {
		t.olderBytes -= cap(b.Buf)
		delete(t.older, suffix)
	}
}

func (t *Timeline) setID(id millrace.RecordID, row IDRow) {
	if t.ids == nil {
		t.ids = make(map[millrace.RecordID]IDRow)
	}
	t.ids[id] = row
}

// placeID adds the id row of a record that is outside the head, at a time, and its id to the
// filter.
func (t *Timeline) placeID(id millrace.RecordID, at millrace.Time) error {
	if err := t.LoadFilter(); err != nil {
		return err
	}
	t.setID(id, IDRow{at, true})
	if !t.Seen.MayHave(id) {
		t.Seen.Add(id)
		t.seenDirty = true
	}
	return nil
}

// LoadFilter reads the filter into t.Seen, unless it is there already.
func (t *Timeline) LoadFilter() error {
	if t.Seen != nil {
		return nil
	}
	v, err := t.src.Get(filterKey(t.Prefix))
	if err != nil {
		return err
	}
	if v == nil {
		t.Seen = new(blob.Filter)
		return nil
	}
	t.Seen, err = blob.DecodeFilter(v)
	return err
}

// Place is where a record is: in the head, or in the older blob of a link.
type Place struct {
	link  int // index into the chain's links, or inHead
	blob  *blob.Blob
	index int // of the record in the blob; 0 is the oldest record
	Rec   millrace.Record
}

// inHead stands for the head where an index into the chain's links is expected.
const inHead = -1

// Find returns the place of the record with an id. It looks in the head and then by the id
// row.
func (t *Timeline) Find(id millrace.RecordID) (at Place, ok bool, err error) {
	if t.Head == nil {
		return at, false, nil
	}
	if i, off, ok := t.Head.Find(id); ok {
		r, err := t.Head.At(off)
		return Place{inHead, t.Head, i, r}, true, err
	}
	if !t.Head.HasChain() {
		return at, false, nil
	}
	row, err := t.idRow(id)
	if err != nil || !row.present {
		return at, false, err
	}
	if err := t.LoadChain(); err != nil {
		return at, false, err
	}
	i, err := t.target(row.At, id)
	if err != nil || i == inHead {
		return at, false, err
	}
	b, err := t.BlobAt(&t.Chain.Links[i])
	if err != nil {
		return at, false, err
	}
	n, off, ok := b.Find(id)
	if !ok {
		return at, false, nil
	}
	r, err := b.At(off)
	if err != nil || r.Time != row.At {
		return at, false, errors.Join(err, ErrState)
	}
	return Place{i, b, n, r}, true, nil
}

func (t *Timeline) idRow(id millrace.RecordID) (IDRow, error) {
	if row, ok := t.ids[id]; ok {
		return row, nil
	}
	if err := t.LoadFilter(); err != nil || !t.Seen.MayHave(id) {
		return IDRow{}, err
	}
	v, err := t.src.Get(idKey(t.Prefix, id))
	if err != nil || v == nil {
		return IDRow{}, err
	}
	return DecodeIDRow(v)
}

// target returns the blob that a position, a time and an id, belongs to, as an index into the
// links or inHead: the oldest blob whose newest record is not older than the position, or the
// head if no older blob has such a record. Blobs are read only if the times are equal. The
// chain must be loaded.
func (t *Timeline) target(at millrace.Time, id millrace.RecordID) (int, error) {
	links := t.Links()
	var failed error
	// The first link, from the oldest, whose newest record is not older.
	i := sort.Search(len(links), func(i int) bool {
		l := &links[i]
		if at != l.Newest || failed != nil {
			return l.Newest > at
		}
		b, err := t.BlobAt(l)
		if err != nil {
			failed = err
			return false
		}
		bt, bid := b.Newest()
		return !blob.Newer(at, id, bt, bid)
	})
	switch {
	case failed != nil:
		return 0, failed
	case i == len(links):
		return inHead, nil
	}
	return i, nil
}

// Insert adds a record, whose id the timeline must not have, at its position. It reports
// whether the record is now the newest of all.
func (t *Timeline) Insert(r *millrace.Record) (newest bool, err error) {
	d := blob.RecordDigest(t.Hash, r)
	if t.Head == nil {
		t.Head, t.headDirty = blob.Encode([]millrace.Record{*r}, d), true
		return true, nil
	}
	if t.Head.Count() > 0 {
		ht, hid := t.Head.Newest()
		if blob.Newer(r.Time, r.ID, ht, hid) {
			return true, t.append(r, d)
		}
		ot, oid := t.Head.Oldest()
		if blob.Newer(r.Time, r.ID, ot, oid) || !t.Head.HasChain() {
			return false, t.insertInto(inHead, r, d)
		}
	}
	if err := t.LoadChain(); err != nil {
		return false, err
	}
	i, err := t.target(r.Time, r.ID)
	if err != nil {
		return false, err
	}
	return i == inHead && t.Head.Count() == 0, t.insertInto(i, r, d)
}

// append adds the newest record, with its digest d, to the head. If the head would become too
// large, it becomes an older blob, and a new head begins.
func (t *Timeline) append(r *millrace.Record, d uint64) error {
	t.headDirty = true
	if len(t.Head.Buf)+blob.RecordSize(r, 0) <= t.max {
		if t.Head.Append(r, d) { // false: the blob lacks the record's schema and is encoded anew
			return nil
		}
		return t.insertInto(inHead, r, d)
	}
	if err := t.makeChain(); err != nil {
		return err
	}
	if err := t.retire(t.Head); err != nil {
		return err
	}
	t.Head = blob.Encode([]millrace.Record{*r}, d)
	t.Head.SetHasChain(true)
	return nil
}

// retire makes a blob of records from the head the newest of the older blobs, under a new
// suffix, with id rows for its records. The chain must be loaded.
func (t *Timeline) retire(b *blob.Blob) error {
	recs, err := b.DecodeAll(nil)
	if err != nil {
		return err
	}
	for i := range recs {
		if err := t.placeID(recs[i].ID, recs[i].Time); err != nil {
			return err
		}
	}
	t.Chain.Links = append(t.Chain.Links, t.writeOlder(t.newSuffix(), b))
	return nil
}

func (t *Timeline) newSuffix() uint32 {
	t.Chain.Next++
	return t.Chain.Next - 1
}

func (t *Timeline) writeOlder(suffix uint32, b *blob.Blob) blob.Link {
	b.SetHasChain(false)
	t.setOlder(suffix, b)
	t.chainDirty = true
	return blob.LinkOf(suffix, b)
}

// insertInto adds a record, with its digest d, to the blob of the i-th link, or to the head. The
// blob splits if it becomes too large.
func (t *Timeline) insertInto(i int, r *millrace.Record, d uint64) error {
	b, err := t.blobOf(i)
	if err != nil {
		return err
	}
	recs, err := b.DecodeAll(make([]millrace.Record, 0, b.Count()+1))
	if err != nil {
		return err
	}
	if i != inHead {
		if err := t.placeID(millrace.RecordID(strings.Clone(string(r.ID))), r.Time); err != nil {
			return err
		}
	}
	n := sort.Search(len(recs), func(n int) bool { return blob.Newer(recs[n].Time, recs[n].ID, r.Time, r.ID) })
	return t.rewrite(i, slices.Insert(recs, n, *r), b.Digest()+d)
}

func (t *Timeline) blobOf(i int) (*blob.Blob, error) {
	if i == inHead {
		return t.Head, nil
	}
	return t.BlobAt(&t.Chain.Links[i])
}

// rewrite replaces the records of the blob of the i-th link, or of the head, by recs, which are
// oldest first and whose digest is digest. If they are too large for one blob, they are split.
// The newest part of a head stays the head, the oldest part of an older blob keeps its suffix,
// and every other part gets a new suffix.
func (t *Timeline) rewrite(i int, recs []millrace.Record, digest uint64) error {
	parts := blob.Split(recs, t.max)
	blobs := make([]*blob.Blob, len(parts))
	for k, part := range parts {
		d := digest
		if len(parts) > 1 {
			d = 0
			for j := range part {
				d += blob.RecordDigest(t.Hash, &part[j])
			}
		}
		blobs[k] = blob.Encode(part, d)
	}
	if i == inHead {
		return t.rewriteHead(blobs)
	}
	links := make([]blob.Link, len(blobs))
	for k, b := range blobs {
		suffix := t.Chain.Links[i].Suffix
		if k > 0 {
			suffix = t.newSuffix()
		}
		links[k] = t.writeOlder(suffix, b)
	}
	t.Chain.Links = slices.Replace(t.Chain.Links, i, i+1, links...)
	return nil
}

func (t *Timeline) rewriteHead(blobs []*blob.Blob) error {
	chained := t.Head.HasChain() || len(blobs) > 1
	if len(blobs) > 1 {
		if err := t.makeChain(); err != nil {
			return err
		}
		for _, b := range blobs[:len(blobs)-1] {
			if err := t.retire(b); err != nil {
				return err
			}
		}
	}
	t.Head, t.headDirty = blobs[len(blobs)-1], true
	t.Head.SetHasChain(chained)
	return nil
}

// Replace puts r in place of the record at a place. r must have the same time and id.
func (t *Timeline) Replace(at Place, r *millrace.Record) error {
	recs, err := at.blob.DecodeAll(nil)
	if err != nil {
		return err
	}
	d := at.blob.Digest() - blob.RecordDigest(t.Hash, &recs[at.index]) + blob.RecordDigest(t.Hash, r)
	recs[at.index] = *r
	return t.rewrite(at.link, recs, d)
}

// Remove removes the record at a place. An older blob that is then empty leaves the chain. If
// the head is then empty, the newest older blob becomes the head.
func (t *Timeline) Remove(at Place) error {
	recs, err := at.blob.DecodeAll(nil)
	if err != nil {
		return err
	}
	d := at.blob.Digest() - blob.RecordDigest(t.Hash, &recs[at.index])
	recs = slices.Delete(recs, at.index, at.index+1)
	if at.link != inHead {
		t.setID(at.Rec.ID, IDRow{})
		if len(recs) == 0 {
			t.unlink(at.link)
			return nil
		}
		return t.rewrite(at.link, recs, d)
	}
	if err := t.LoadChain(); err != nil {
		return err
	}
	if len(recs) > 0 || len(t.Links()) == 0 {
		return t.rewrite(inHead, recs, d)
	}
	return t.promote()
}

// unlink removes the i-th link and its blob.
func (t *Timeline) unlink(i int) {
	suffix := t.Chain.Links[i].Suffix
	t.dropOlder(suffix)
	t.dead = append(t.dead, suffix)
	t.Chain.Links = slices.Delete(t.Chain.Links, i, i+1)
	t.chainDirty = true
}

// promote makes the newest older blob the head.
func (t *Timeline) promote() error {
	i := len(t.Chain.Links) - 1
	b, err := t.BlobAt(&t.Chain.Links[i])
	if err != nil {
		return err
	}
	recs, err := b.DecodeAll(nil)
	if err != nil {
		return err
	}
	for k := range recs {
		t.setID(recs[k].ID, IDRow{})
	}
	t.unlink(i)
	t.Head, t.headDirty = b, true
	t.Head.SetHasChain(true)
	return nil
}

// encode returns the value of an id row: the time of the record, as a varint.
func (r IDRow) encode() []byte { return binary.AppendVarint(nil, int64(r.At)) }

// DecodeIDRow decodes the value of an id row. The error is blob.ErrRow.
func DecodeIDRow(b []byte) (IDRow, error) {
	at, w := binary.Varint(b)
	if w <= 0 || w != len(b) {
		return IDRow{}, blob.ErrRow
	}
	return IDRow{millrace.Time(at), true}, nil
}
