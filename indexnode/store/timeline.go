package store

import (
	"errors"
	"slices"
	"sort"
	"strings"

	"github.com/millrace/millrace"
)

// timeline is a timeline with what changed since the last flush. The rest is
// read through src when it is needed. Its partition's lock guards it.
type timeline struct {
	name   millrace.Timeline
	hash   uint64
	prefix []byte // of its keys
	src    source
	max    int // bytes of a blob

	head  *blob  // nil while there is no record and no chain
	chain *chain // nil until loaded, or while there is none
	older map[uint32]*blob
	dead  []uint32 // suffixes whose blobs are gone
	ids   map[millrace.RecordID]idRow
	seen  *filter // of the ids outside the head; nil until loaded

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
		hash:   timelineDigest(name),
		src:    src,
		max:    max,
	}
	v, err := src.get(headKey(t.prefix))
	if err != nil || v == nil {
		return t, err
	}
	t.head, err = openBlob(v)
	return t, err
}

// memory estimates the bytes held.
func (t *timeline) memory() int {
	n := 300 + len(t.name.Entity) + cap(t.prefix) + t.olderBytes + 100*len(t.ids)
	if t.head != nil {
		n += cap(t.head.buf)
	}
	if t.chain != nil {
		n += linkBytes * cap(t.chain.links)
	}
	if t.seen != nil {
		n += cap(t.seen.bits)
	}
	return n
}

// loadChain makes t.chain current; it stays nil when there is none.
func (t *timeline) loadChain() error {
	if t.chain != nil || t.head == nil || !t.head.hasChain() {
		return nil
	}
	v, err := t.src.get(chainKey(t.prefix))
	if err != nil {
		return err
	}
	if v == nil {
		return errChainState
	}
	t.chain, err = decodeChain(v)
	return err
}

// links returns the loaded chain's links, oldest first.
func (t *timeline) links() []link {
	if t.chain == nil {
		return nil
	}
	return t.chain.links
}

// makeChain loads the chain, or begins one.
func (t *timeline) makeChain() error {
	if err := t.loadChain(); err != nil || t.chain != nil {
		return err
	}
	t.chain = new(chain)
	return nil
}

// blobAt returns an older blob.
func (t *timeline) blobAt(l *link) (*blob, error) {
	if b := t.older[l.suffix]; b != nil {
		return b, nil
	}
	v, err := t.src.get(olderKey(t.prefix, l.suffix))
	if err != nil {
		return nil, err
	}
	if v == nil {
		return nil, errChainState
	}
	b, err := openBlob(v)
	if err == nil && b.count() != int(l.count) {
		err = errChainState
	}
	return b, err
}

func (t *timeline) setOlder(suffix uint32, b *blob) {
	if t.older == nil {
		t.older = make(map[uint32]*blob)
	}
	t.dropOlder(suffix)
	t.older[suffix] = b
	t.olderBytes += cap(b.buf)
}

func (t *timeline) dropOlder(suffix uint32) {
	if b := t.older[suffix]; b != nil {
		t.olderBytes -= cap(b.buf)
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
	if !t.seen.mayHave(id) {
		t.seen.add(id)
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
		t.seen = new(filter)
		return nil
	}
	t.seen, err = decodeFilter(v)
	return err
}

// place is where a record is: in the head, or in the blob of a link.
type place struct {
	link  int // index in the chain's links, or inHead
	blob  *blob
	index int // from the oldest of the blob
	rec   millrace.Record
}

const inHead = -1

// find looks an id up, in the head and then by its id row.
func (t *timeline) find(id millrace.RecordID) (at place, ok bool, err error) {
	if t.head == nil {
		return at, false, nil
	}
	if i, off, ok := t.head.find(id); ok {
		r, err := t.head.at(off)
		return place{inHead, t.head, i, r}, true, err
	}
	if !t.head.hasChain() {
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
	b, err := t.blobAt(&t.chain.links[i])
	if err != nil {
		return at, false, err
	}
	n, off, ok := b.find(id)
	if !ok {
		return at, false, nil
	}
	r, err := b.at(off)
	if err != nil || r.Time != row.at {
		return at, false, errors.Join(err, errChainState)
	}
	return place{i, b, n, r}, true, nil
}

func (t *timeline) idRow(id millrace.RecordID) (idRow, error) {
	if row, ok := t.ids[id]; ok {
		return row, nil
	}
	if err := t.loadFilter(); err != nil || !t.seen.mayHave(id) {
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
		if at != l.newest || failed != nil {
			return l.newest > at
		}
		b, err := t.blobAt(l)
		if err != nil {
			failed = err
			return false
		}
		bt, bid := b.newest()
		return !newer(at, id, bt, bid)
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
	d := recordDigest(t.hash, r)
	if t.head == nil {
		t.head, t.headDirty = encodeBlob([]millrace.Record{*r}, d), true
		return true, nil
	}
	if t.head.count() > 0 {
		ht, hid := t.head.newest()
		if newer(r.Time, r.ID, ht, hid) {
			return true, t.append(r, d)
		}
		ot, oid := t.head.oldest()
		if newer(r.Time, r.ID, ot, oid) || !t.head.hasChain() {
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
	return i == inHead && t.head.count() == 0, t.insertInto(i, r, d)
}

// append puts the newest record at the end of the head. A head that would
// exceed its size becomes an older blob, and a new one begins.
func (t *timeline) append(r *millrace.Record, d uint64) error {
	t.headDirty = true
	if len(t.head.buf)+recordSize(r, 0) <= t.max {
		if t.head.append(r, d) {
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
	t.head = encodeBlob([]millrace.Record{*r}, d)
	t.head.setHasChain(true)
	return nil
}

// retire makes a blob of the head's the newest of the older ones, under a new
// suffix, with id rows for its records. The chain is loaded.
func (t *timeline) retire(b *blob) error {
	recs, err := b.decodeAll(nil)
	if err != nil {
		return err
	}
	for i := range recs {
		if err := t.placeID(recs[i].ID, recs[i].Time); err != nil {
			return err
		}
	}
	t.chain.links = append(t.chain.links, t.writeOlder(t.newSuffix(), b))
	return nil
}

func (t *timeline) newSuffix() uint32 {
	t.chain.next++
	return t.chain.next - 1
}

func (t *timeline) writeOlder(suffix uint32, b *blob) link {
	b.setHasChain(false)
	t.setOlder(suffix, b)
	t.chainDirty = true
	return linkOf(suffix, b)
}

func linkOf(suffix uint32, b *blob) link {
	oldest, _ := b.oldest()
	newest, _ := b.newest()
	return link{suffix: suffix, count: uint32(b.count()), oldest: oldest, newest: newest, digest: b.digest()}
}

// insertInto puts a record into a blob, which splits if it becomes too large.
func (t *timeline) insertInto(i int, r *millrace.Record, d uint64) error {
	b, err := t.blobOf(i)
	if err != nil {
		return err
	}
	recs, err := b.decodeAll(make([]millrace.Record, 0, b.count()+1))
	if err != nil {
		return err
	}
	if i != inHead {
		if err := t.placeID(millrace.RecordID(strings.Clone(string(r.ID))), r.Time); err != nil {
			return err
		}
	}
	n := sort.Search(len(recs), func(n int) bool { return newer(recs[n].Time, recs[n].ID, r.Time, r.ID) })
	return t.rewrite(i, slices.Insert(recs, n, *r), b.digest()+d)
}

func (t *timeline) blobOf(i int) (*blob, error) {
	if i == inHead {
		return t.head, nil
	}
	return t.blobAt(&t.chain.links[i])
}

// rewrite replaces a blob by records, oldest first, splitting them when they
// exceed the size. The newest part of a head stays the head; the oldest part
// of an older blob keeps its suffix; every other part gets a new one.
func (t *timeline) rewrite(i int, recs []millrace.Record, digest uint64) error {
	parts := split(recs, t.max)
	blobs := make([]*blob, len(parts))
	for k, part := range parts {
		d := digest
		if len(parts) > 1 {
			d = 0
			for j := range part {
				d += recordDigest(t.hash, &part[j])
			}
		}
		blobs[k] = encodeBlob(part, d)
	}
	if i == inHead {
		return t.rewriteHead(blobs)
	}
	links := make([]link, len(blobs))
	for k, b := range blobs {
		suffix := t.chain.links[i].suffix
		if k > 0 {
			suffix = t.newSuffix()
		}
		links[k] = t.writeOlder(suffix, b)
	}
	t.chain.links = slices.Replace(t.chain.links, i, i+1, links...)
	return nil
}

func (t *timeline) rewriteHead(blobs []*blob) error {
	chained := t.head.hasChain() || len(blobs) > 1
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
	t.head.setHasChain(chained)
	return nil
}

// split cuts records into runs of at most max bytes each, or of one record, by
// halves.
func split(recs []millrace.Record, max int) [][]millrace.Record {
	size := blobHeader + 8
	for i := range recs {
		size += recordSize(&recs[i], 0)
	}
	if size <= max || len(recs) < 2 {
		return [][]millrace.Record{recs}
	}
	n, half := 1, blobHeader+8+recordSize(&recs[0], 0)
	for n < len(recs)-1 && half < size/2 {
		half += recordSize(&recs[n], 0)
		n++
	}
	return append(split(recs[:n:n], max), split(recs[n:], max)...)
}

// replace puts a newer version where the older one is.
func (t *timeline) replace(at place, r *millrace.Record) error {
	recs, err := at.blob.decodeAll(nil)
	if err != nil {
		return err
	}
	d := at.blob.digest() - recordDigest(t.hash, &recs[at.index]) + recordDigest(t.hash, r)
	recs[at.index] = *r
	return t.rewrite(at.link, recs, d)
}

// remove takes a record out. An older blob left empty leaves the chain; a head
// left empty takes over the next blob.
func (t *timeline) remove(at place) error {
	recs, err := at.blob.decodeAll(nil)
	if err != nil {
		return err
	}
	d := at.blob.digest() - recordDigest(t.hash, &recs[at.index])
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
	suffix := t.chain.links[i].suffix
	t.dropOlder(suffix)
	t.dead = append(t.dead, suffix)
	t.chain.links = slices.Delete(t.chain.links, i, i+1)
	t.chainDirty = true
}

// promote makes the newest older blob the head.
func (t *timeline) promote() error {
	i := len(t.chain.links) - 1
	b, err := t.blobAt(&t.chain.links[i])
	if err != nil {
		return err
	}
	recs, err := b.decodeAll(nil)
	if err != nil {
		return err
	}
	for k := range recs {
		t.setID(recs[k].ID, idRow{})
	}
	t.unlink(i)
	t.head, t.headDirty = b, true
	t.head.setHasChain(true)
	return nil
}
