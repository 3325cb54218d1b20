package store

import (
	"errors"
	"slices"
	"sort"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
)

// timeline is a timeline with what changed since the last flush. The rest is
// read through src when it is needed. Its partition's lock guards it.
type timeline struct {
	name   millrace.Timeline
	hash   uint64
	prefix []byte // of its keys
	src    source
	max    int // bytes of a blob

	head  *blob.Blob  // nil while there is no record and no chain
	chain *blob.Chain // nil until loaded, or while there is none
	older map[uint32]*blob.Blob
	dead  []uint32 // suffixes whose blobs are gone
	ids   map[millrace.RecordID]idRow
	seen  *blob.Filter // of the ids outside the head; nil until loaded

	headDirty, chainDirty, seenDirty bool
	gone                             bool // first delete every row

	olderBytes int
}

// idRow tells at which time the record of an id is outside the head. It is a
// hint: that row may be left behind, but a record outside the head always has
// one.
type idRow struct {
	at      millrace.Time
	present bool
}

// source reads rows by key; it returns nil for a key that is not there. The
// bytes are the caller's.
type source interface {
	get(key []byte) ([]byte, error)
	idRows(prefix []byte) (map[millrace.RecordID]idRow, error)
}

var errChainState = errors.New("chain and blobs disagree")

// openTimeline reads a timeline's head.
func openTimeline(src source, p millrace.Partition, name millrace.Timeline, max int) (*timeline, error) {
	t := &timeline{
		name:   millrace.Timeline{Entity: millrace.Entity(strings.Clone(string(name.Entity))), Type: millrace.ContentType(strings.Clone(string(name.Type)))},
		prefix: timelinePrefix(p, name),
		hash:   blob.TimelineDigest(name),
		src:    src,
		max:    max,
	}
	v, err := src.get(headKey(t.prefix))
	if err != nil || v == nil {
		return t, err
	}
	t.head, err = blob.Open(v)
	return t, err
}

// memory estimates the bytes held.
func (t *timeline) memory() int {
	n := 300 + len(t.name.Entity) + cap(t.prefix) + t.olderBytes + 100*len(t.ids)
	if t.head != nil {
		n += cap(t.head.Buf)
	}
	if t.chain != nil {
		n += blob.LinkBytes * cap(t.chain.Links)
	}
	if t.seen != nil {
		n += cap(t.seen.Bits)
	}
	return n
}

// loadChain makes t.chain current; it stays nil when there is none.
func (t *timeline) loadChain() error {
	if t.chain != nil || t.head == nil || !t.head.HasChain() {
		return nil
	}
	v, err := t.src.get(chainKey(t.prefix))
	if err != nil {
		return err
	}
	if v == nil {
		return errChainState
	}
	t.chain, err = blob.DecodeChain(v)
	return err
}

// links returns the loaded chain's links, oldest first.
func (t *timeline) links() []blob.Link {
	if t.chain == nil {
		return nil
	}
	return t.chain.Links
}

// makeChain loads the chain, or begins one.
func (t *timeline) makeChain() error {
	if err := t.loadChain(); err != nil || t.chain != nil {
		return err
	}
	t.chain = new(blob.Chain)
	return nil
}

// blobAt returns an older blob.
func (t *timeline) blobAt(l *blob.Link) (*blob.Blob, error) {
	if b := t.older[l.Suffix]; b != nil {
		return b, nil
	}
	v, err := t.src.get(olderKey(t.prefix, l.Suffix))
	if err != nil {
		return nil, err
	}
	if v == nil {
		return nil, errChainState
	}
	b, err := blob.Open(v)
	if err == nil && b.Count() != int(l.Count) {
		err = errChainState
	}
	return b, err
}

func (t *timeline) setOlder(suffix uint32, b *blob.Blob) {
	if t.older == nil {
		t.older = make(map[uint32]*blob.Blob)
	}
	t.dropOlder(suffix)
	t.older[suffix] = b
	t.olderBytes += cap(b.Buf)
}

func (t *timeline) dropOlder(suffix uint32) {
	if b := t.older[suffix]; b != nil {
		t.olderBytes -= cap(b.Buf)
		delete(t.older, suffix)
	}
}

func (t *timeline) setID(id millrace.RecordID, row idRow) {
	if t.ids == nil {
		t.ids = make(map[millrace.RecordID]idRow)
	}
	t.ids[id] = row
}

// placeID notes that a record is outside the head.
func (t *timeline) placeID(id millrace.RecordID, at millrace.Time) error {
	if err := t.loadFilter(); err != nil {
		return err
	}
	t.setID(id, idRow{at, true})
	if !t.seen.MayHave(id) {
		t.seen.Add(id)
		t.seenDirty = true
	}
	return nil
}

func (t *timeline) loadFilter() error {
	if t.seen != nil {
		return nil
	}
	v, err := t.src.get(filterKey(t.prefix))
	if err != nil {
		return err
	}
	if v == nil {
		t.seen = new(blob.Filter)
		return nil
	}
	t.seen, err = blob.DecodeFilter(v)
	return err
}

// place is where a record is: in the head, or in the blob of a link.
type place struct {
	link  int // index in the chain's links, or inHead
	blob  *blob.Blob
	index int // from the oldest of the blob
	rec   millrace.Record
}

const inHead = -1

// find looks an id up, in the head and then by its id row.
func (t *timeline) find(id millrace.RecordID) (at place, ok bool, err error) {
	if t.head == nil {
		return at, false, nil
	}
	if i, off, ok := t.head.Find(id); ok {
		r, err := t.head.At(off)
		return place{inHead, t.head, i, r}, true, err
	}
	if !t.head.HasChain() {
		return at, false, nil
	}
	row, err := t.idRow(id)
	if err != nil || !row.present {
		return at, false, err
	}
	if err := t.loadChain(); err != nil {
		return at, false, err
	}
	i, err := t.target(row.at, id)
	if err != nil || i == inHead {
		return at, false, err
	}
	b, err := t.blobAt(&t.chain.Links[i])
	if err != nil {
		return at, false, err
	}
	n, off, ok := b.Find(id)
	if !ok {
		return at, false, nil
	}
	r, err := b.At(off)
	if err != nil || r.Time != row.at {
		return at, false, errors.Join(err, errChainState)
	}
	return place{i, b, n, r}, true, nil
}

func (t *timeline) idRow(id millrace.RecordID) (idRow, error) {
	if row, ok := t.ids[id]; ok {
		return row, nil
	}
	if err := t.loadFilter(); err != nil || !t.seen.MayHave(id) {
		return idRow{}, err
	}
	v, err := t.src.get(idKey(t.prefix, id))
	if err != nil || v == nil {
		return idRow{}, err
	}
	return decodeIDRow(v)
}

// target returns the blob that a position belongs to: the oldest one such that
// every blob older than it is older than the position. Blobs are read only to
// break ties of time. The chain is loaded.
func (t *timeline) target(at millrace.Time, id millrace.RecordID) (int, error) {
	links := t.links()
	var failed error
	// The first link, from the oldest, whose newest record is not older.
	i := sort.Search(len(links), func(i int) bool {
		l := &links[i]
		if at != l.Newest || failed != nil {
			return l.Newest > at
		}
		b, err := t.blobAt(l)
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

// insert puts a record that is not there at its position, and reports whether
// it is now the newest of all.
func (t *timeline) insert(r *millrace.Record) (newest bool, err error) {
	d := blob.RecordDigest(t.hash, r)
	if t.head == nil {
		t.head, t.headDirty = blob.Encode([]millrace.Record{*r}, d), true
		return true, nil
	}
	if t.head.Count() > 0 {
		ht, hid := t.head.Newest()
		if blob.Newer(r.Time, r.ID, ht, hid) {
			return true, t.append(r, d)
		}
		ot, oid := t.head.Oldest()
		if blob.Newer(r.Time, r.ID, ot, oid) || !t.head.HasChain() {
			return false, t.insertInto(inHead, r, d)
		}
	}
	if err := t.loadChain(); err != nil {
		return false, err
	}
	i, err := t.target(r.Time, r.ID)
	if err != nil {
		return false, err
	}
	return i == inHead && t.head.Count() == 0, t.insertInto(i, r, d)
}

// append puts the newest record at the end of the head. A head that would
// exceed its size becomes an older blob, and a new one begins.
func (t *timeline) append(r *millrace.Record, d uint64) error {
	t.headDirty = true
	if len(t.head.Buf)+blob.RecordSize(r, 0) <= t.max {
		if t.head.Append(r, d) {
			return nil
		}
		return t.insertInto(inHead, r, d)
	}
	if err := t.makeChain(); err != nil {
		return err
	}
	if err := t.retire(t.head); err != nil {
		return err
	}
	t.head = blob.Encode([]millrace.Record{*r}, d)
	t.head.SetHasChain(true)
	return nil
}

// retire makes a blob of the head's the newest of the older ones, under a new
// suffix, with id rows for its records. The chain is loaded.
func (t *timeline) retire(b *blob.Blob) error {
	recs, err := b.DecodeAll(nil)
	if err != nil {
		return err
	}
	for i := range recs {
		if err := t.placeID(recs[i].ID, recs[i].Time); err != nil {
			return err
		}
	}
	t.chain.Links = append(t.chain.Links, t.writeOlder(t.newSuffix(), b))
	return nil
}

func (t *timeline) newSuffix() uint32 {
	t.chain.Next++
	return t.chain.Next - 1
}

func (t *timeline) writeOlder(suffix uint32, b *blob.Blob) blob.Link {
	b.SetHasChain(false)
	t.setOlder(suffix, b)
	t.chainDirty = true
	return blob.LinkOf(suffix, b)
}

// insertInto puts a record into a blob, which splits if it becomes too large.
func (t *timeline) insertInto(i int, r *millrace.Record, d uint64) error {
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

func (t *timeline) blobOf(i int) (*blob.Blob, error) {
	if i == inHead {
		return t.head, nil
	}
	return t.blobAt(&t.chain.Links[i])
}

// rewrite replaces a blob by records, oldest first, splitting them when they
// exceed the size. The newest part of a head stays the head; the oldest part
// of an older blob keeps its suffix; every other part gets a new one.
func (t *timeline) rewrite(i int, recs []millrace.Record, digest uint64) error {
	parts := blob.Split(recs, t.max)
	blobs := make([]*blob.Blob, len(parts))
	for k, part := range parts {
		d := digest
		if len(parts) > 1 {
			d = 0
			for j := range part {
				d += blob.RecordDigest(t.hash, &part[j])
			}
		}
		blobs[k] = blob.Encode(part, d)
	}
	if i == inHead {
		return t.rewriteHead(blobs)
	}
	links := make([]blob.Link, len(blobs))
	for k, b := range blobs {
		suffix := t.chain.Links[i].Suffix
		if k > 0 {
			suffix = t.newSuffix()
		}
		links[k] = t.writeOlder(suffix, b)
	}
	t.chain.Links = slices.Replace(t.chain.Links, i, i+1, links...)
	return nil
}

func (t *timeline) rewriteHead(blobs []*blob.Blob) error {
	chained := t.head.HasChain() || len(blobs) > 1
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
	t.head, t.headDirty = blobs[len(blobs)-1], true
	t.head.SetHasChain(chained)
	return nil
}

// replace puts a newer version where the older one is.
func (t *timeline) replace(at place, r *millrace.Record) error {
	recs, err := at.blob.DecodeAll(nil)
	if err != nil {
		return err
	}
	d := at.blob.Digest() - blob.RecordDigest(t.hash, &recs[at.index]) + blob.RecordDigest(t.hash, r)
	recs[at.index] = *r
	return t.rewrite(at.link, recs, d)
}

// remove takes a record out. An older blob left empty leaves the chain; a head
// left empty takes over the next blob.
func (t *timeline) remove(at place) error {
	recs, err := at.blob.DecodeAll(nil)
	if err != nil {
		return err
	}
	d := at.blob.Digest() - blob.RecordDigest(t.hash, &recs[at.index])
	recs = slices.Delete(recs, at.index, at.index+1)
	if at.link != inHead {
		t.setID(at.rec.ID, idRow{})
		if len(recs) == 0 {
			t.unlink(at.link)
			return nil
		}
		return t.rewrite(at.link, recs, d)
	}
	if err := t.loadChain(); err != nil {
		return err
	}
	if len(recs) > 0 || len(t.links()) == 0 {
		return t.rewrite(inHead, recs, d)
	}
	return t.promote()
}

// unlink drops an older blob.
func (t *timeline) unlink(i int) {
	suffix := t.chain.Links[i].Suffix
	t.dropOlder(suffix)
	t.dead = append(t.dead, suffix)
	t.chain.Links = slices.Delete(t.chain.Links, i, i+1)
	t.chainDirty = true
}

// promote makes the newest older blob the head.
func (t *timeline) promote() error {
	i := len(t.chain.Links) - 1
	b, err := t.blobAt(&t.chain.Links[i])
	if err != nil {
		return err
	}
	recs, err := b.DecodeAll(nil)
	if err != nil {
		return err
	}
	for k := range recs {
		t.setID(recs[k].ID, idRow{})
	}
	t.unlink(i)
	t.head, t.headDirty = b, true
	t.head.SetHasChain(true)
	return nil
}
