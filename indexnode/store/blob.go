package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/millrace/millrace"
)

// A blob is a run of records of one timeline, oldest first, so that a newer
// record is appended without moving a byte:
//
//	0   format, 1
//	1   flags: 1 = the head of a timeline that has a chain
//	2   number of records, uint32
//	6   digest: the sum of the records' digests, uint64
//	14  number of schemas, uint16
//	16  the schemas' fingerprints, 8 bytes each
//	    the records
//
// A record is its length as uvarint, then flags, id behind its length, time
// (varint), and, where the flags say so, version (varint), index of the schema
// (uvarint, else 0) and object behind its length; the rest is the body.
// Integers are little-endian.
//
// There is no checksum: Pebble's blocks have one, checked at every read from
// disk, and the digest, which Check recomputes, covers what a block's cannot,
// a wrong program.
//
// Record bytes never change once written, and an append only writes behind
// them: what was decoded from a blob, sharing its memory, stays valid for ever.
type blob struct {
	buf  []byte
	last int // offset of the newest record; 0 in an empty blob
}

const (
	blobFormat = 1
	blobHeader = 16

	blobHasChain = 1

	recDeleted = 1
	recVersion = 2
	recSchema  = 4
	recObject  = 8
	recFlags   = recDeleted | recVersion | recSchema | recObject
)

var errBlob = errors.New("blob")

func blobError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errBlob, fmt.Sprintf(format, args...))
}

func (b *blob) count() int      { return int(binary.LittleEndian.Uint32(b.buf[2:])) }
func (b *blob) digest() uint64  { return binary.LittleEndian.Uint64(b.buf[6:]) }
func (b *blob) hasChain() bool  { return b.buf[1]&blobHasChain != 0 }
func (b *blob) schemas() []byte { return b.buf[blobHeader:b.records()] }
func (b *blob) records() int    { return blobHeader + 8*int(binary.LittleEndian.Uint16(b.buf[14:])) }
func (b *blob) setCount(n int)  { binary.LittleEndian.PutUint32(b.buf[2:], uint32(n)) }
func (b *blob) addDigest(d uint64) {
	binary.LittleEndian.PutUint64(b.buf[6:], b.digest()+d)
}

// setHasChain marks the head of a timeline with a chain, or any other blob.
func (b *blob) setHasChain(yes bool) {
	b.buf[1] &^= blobHasChain
	if yes {
		b.buf[1] |= blobHasChain
	}
}

// encodeBlob makes a blob of records in oldest-first order.
func encodeBlob(recs []millrace.Record, digest uint64) *blob {
	var fps []millrace.Fingerprint
	size := blobHeader
	for i := range recs {
		if indexOf(fps, recs[i].Schema) < 0 {
			fps = append(fps, recs[i].Schema)
		}
		size += recordSize(&recs[i], 0) + 2
	}
	b := &blob{buf: make([]byte, blobHeader, size+8*len(fps))}
	b.buf[0] = blobFormat
	b.setCount(len(recs))
	b.addDigest(digest)
	binary.LittleEndian.PutUint16(b.buf[14:], uint16(len(fps)))
	for _, fp := range fps {
		b.buf = binary.LittleEndian.AppendUint64(b.buf, uint64(fp))
	}
	for i := range recs {
		b.last = len(b.buf)
		b.buf = appendRecord(b.buf, &recs[i], indexOf(fps, recs[i].Schema))
	}
	return b
}

func indexOf(fps []millrace.Fingerprint, fp millrace.Fingerprint) int {
	for i, x := range fps {
		if x == fp {
			return i
		}
	}
	return -1
}

// append adds a record newer than every other. It reports false when the
// blob's schemas lack the record's: then the blob must be encoded anew.
func (b *blob) append(r *millrace.Record, digest uint64) bool {
	schema := -1
	fps := b.schemas()
	for i := 0; i < len(fps); i += 8 {
		if binary.LittleEndian.Uint64(fps[i:]) == uint64(r.Schema) {
			schema = i / 8
			break
		}
	}
	if schema < 0 {
		return false
	}
	b.last = len(b.buf)
	b.buf = appendRecord(b.buf, r, schema)
	b.setCount(b.count() + 1)
	b.addDigest(digest)
	return true
}

func uvarintLen(x uint64) int { return (bits.Len64(x|1) + 6) / 7 }
func varintLen(x int64) int   { return uvarintLen(uint64(x<<1) ^ uint64(x>>63)) }

// ownObject reports whether a record is about itself, which needs no bytes.
func ownObject(r *millrace.Record) bool { return r.Object == "" || string(r.Object) == string(r.ID) }

// recordBody is the size of a record without its length in front.
func recordBody(r *millrace.Record, schema int) int {
	n := 1 + uvarintLen(uint64(len(r.ID))) + len(r.ID) + varintLen(int64(r.Time)) + len(r.Body)
	if r.Version != 0 {
		n += varintLen(r.Version)
	}
	if schema != 0 {
		n += uvarintLen(uint64(schema))
	}
	if !ownObject(r) {
		n += uvarintLen(uint64(len(r.Object))) + len(r.Object)
	}
	return n
}

func recordSize(r *millrace.Record, schema int) int {
	n := recordBody(r, schema)
	return uvarintLen(uint64(n)) + n
}

func appendRecord(dst []byte, r *millrace.Record, schema int) []byte {
	dst = binary.AppendUvarint(dst, uint64(recordBody(r, schema)))
	var flags byte
	if r.Deleted {
		flags |= recDeleted
	}
	if r.Version != 0 {
		flags |= recVersion
	}
	if schema != 0 {
		flags |= recSchema
	}
	if !ownObject(r) {
		flags |= recObject
	}
	dst = appendString(append(dst, flags), r.ID)
	dst = binary.AppendVarint(dst, int64(r.Time))
	if r.Version != 0 {
		dst = binary.AppendVarint(dst, r.Version)
	}
	if schema != 0 {
		dst = binary.AppendUvarint(dst, uint64(schema))
	}
	if flags&recObject != 0 {
		dst = appendString(dst, r.Object)
	}
	return append(dst, r.Body...)
}

// cut takes the record at an offset: its bytes, and where the next begins.
func (b *blob) cut(at int) (rec []byte, next int, err error) {
	n, w := uvarint(b.buf[at:])
	if w <= 0 || n > uint64(len(b.buf)-at-w) {
		return nil, 0, blobError("record at %d is cut short", at)
	}
	next = at + w + int(n)
	return b.buf[at+w : next : next], next, nil
}

func uvarint(b []byte) (uint64, int) {
	if len(b) > 1 && b[0] < 0x80 {
		return uint64(b[0]), 1
	}
	if len(b) > 2 && b[1] < 0x80 {
		return uint64(b[0]&0x7f) | uint64(b[1])<<7, 2
	}
	return binary.Uvarint(b)
}

// position reads what orders a record, and returns the bytes behind it.
func position(rec []byte) (flags byte, id millrace.RecordID, t millrace.Time, rest []byte, err error) {
	if len(rec) == 0 {
		return 0, "", 0, nil, blobError("empty record")
	}
	flags, rest = rec[0], rec[1:]
	n, w := uvarint(rest)
	if w <= 0 || n > uint64(len(rest)-w) {
		return 0, "", 0, nil, blobError("id is cut short")
	}
	id = millrace.RecordID(alias(rest[w : w+int(n)]))
	rest = rest[w+int(n):]
	at, w := binary.Varint(rest)
	if w <= 0 {
		return 0, "", 0, nil, blobError("record %q: time is cut short", id)
	}
	return flags, id, millrace.Time(at), rest[w:], nil
}

func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// decodeRecord reads a record; it shares rec's memory.
func decodeRecord(rec, schemas []byte, r *millrace.Record) error {
	flags, id, at, rest, err := position(rec)
	if err != nil {
		return err
	}
	return decodeRest(flags, id, at, rest, schemas, r)
}

// decodeRest reads what follows a record's position.
func decodeRest(flags byte, id millrace.RecordID, at millrace.Time, rest, schemas []byte, r *millrace.Record) error {
	if flags&^recFlags != 0 {
		return blobError("record %q: flags %#x", id, flags)
	}
	r.ID, r.Time, r.Version, r.Object, r.Deleted = id, at, 0, millrace.Object(id), flags&recDeleted != 0
	if flags&recVersion != 0 {
		v, w := binary.Varint(rest)
		if w <= 0 {
			return blobError("record %q: version is cut short", id)
		}
		r.Version, rest = v, rest[w:]
	}
	schema := uint64(0)
	if flags&recSchema != 0 {
		x, w := uvarint(rest)
		if w <= 0 {
			return blobError("record %q: schema is cut short", id)
		}
		schema, rest = x, rest[w:]
	}
	if schema >= uint64(len(schemas)/8) {
		return blobError("record %q: schema %d of %d", id, schema, len(schemas)/8)
	}
	r.Schema = millrace.Fingerprint(binary.LittleEndian.Uint64(schemas[8*schema:]))
	if flags&recObject != 0 {
		n, w := uvarint(rest)
		if w <= 0 || n > uint64(len(rest)-w) {
			return blobError("record %q: object is cut short", id)
		}
		r.Object, rest = millrace.Object(alias(rest[w:w+int(n)])), rest[w+int(n):]
		if ownObject(r) {
			return blobError("record %q: object is its own", id)
		}
	}
	r.Body = rest[:len(rest):len(rest)]
	return nil
}

// viewBlob checks the header of a stored blob, which it keeps.
func viewBlob(buf []byte) (*blob, error) {
	if len(buf) < blobHeader {
		return nil, blobError("%d bytes", len(buf))
	}
	if buf[0] != blobFormat {
		return nil, blobError("format %d; this program reads %d", buf[0], blobFormat)
	}
	b := &blob{buf: buf}
	if b.buf[1]&^blobHasChain != 0 || b.records() > len(buf) {
		return nil, blobError("header")
	}
	return b, nil
}

// firstTime returns the oldest record's time, or maxTime if there is none.
func (b *blob) firstTime() (millrace.Time, error) {
	if b.records() == len(b.buf) {
		return maxTime, nil
	}
	rec, _, err := b.cut(b.records())
	if err != nil {
		return 0, err
	}
	_, _, t, _, err := position(rec)
	return t, err
}

// openBlob checks the structure of a stored blob, which it keeps: header,
// bounds, count, and strictly ascending positions.
func openBlob(buf []byte) (*blob, error) {
	b, err := viewBlob(buf)
	if err != nil {
		return nil, err
	}
	n := 0
	var lastID millrace.RecordID
	var lastTime millrace.Time
	for at := b.records(); at < len(buf); n++ {
		rec, next, err := b.cut(at)
		if err != nil {
			return nil, err
		}
		_, id, t, _, err := position(rec)
		if err != nil {
			return nil, err
		}
		if n > 0 && !newer(t, id, lastTime, lastID) {
			return nil, blobError("record %q is out of order", id)
		}
		b.last, at, lastTime, lastID = at, next, t, id
	}
	if n != b.count() {
		return nil, blobError("%d records, header says %d", n, b.count())
	}
	return b, nil
}

// newer reports whether a comes before b in a timeline: time descending, id
// ascending.
func newer(at millrace.Time, aid millrace.RecordID, bt millrace.Time, bid millrace.RecordID) bool {
	return at > bt || at == bt && aid < bid
}

// decodeAll appends the records, oldest first, sharing the blob's memory.
func (b *blob) decodeAll(dst []millrace.Record) ([]millrace.Record, error) {
	schemas := b.schemas()
	for at := b.records(); at < len(b.buf); {
		rec, next, err := b.cut(at)
		if err != nil {
			return dst, err
		}
		dst = append(dst, millrace.Record{})
		if err := decodeRecord(rec, schemas, &dst[len(dst)-1]); err != nil {
			return dst, err
		}
		at = next
	}
	return dst, nil
}

// at decodes the record at an offset.
func (b *blob) at(off int) (r millrace.Record, err error) {
	rec, _, err := b.cut(off)
	if err == nil {
		err = decodeRecord(rec, b.schemas(), &r)
	}
	return r, err
}

// oldest and newest return the ends of a blob that is not empty.
func (b *blob) oldest() (millrace.Time, millrace.RecordID) { return b.ends(b.records()) }
func (b *blob) newest() (millrace.Time, millrace.RecordID) { return b.ends(b.last) }

func (b *blob) ends(off int) (millrace.Time, millrace.RecordID) {
	rec, _, err := b.cut(off)
	if err != nil {
		panic(err) // openBlob has checked it
	}
	_, id, t, _, err := position(rec)
	if err != nil {
		panic(err)
	}
	return t, id
}

// find returns the index and offset of the record of an id.
func (b *blob) find(id millrace.RecordID) (index, off int, ok bool) {
	for at := b.records(); at < len(b.buf); index++ {
		rec, next, err := b.cut(at)
		if err != nil {
			panic(err)
		}
		n, w := uvarint(rec[1:])
		if int(n) == len(id) && string(rec[1+w:1+w+int(n)]) == string(id) {
			return index, at, true
		}
		at = next
	}
	return 0, 0, false
}
