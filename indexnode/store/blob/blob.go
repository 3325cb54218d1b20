// Package blob has what a timeline is made of on disk: blobs of records, the
// chain that orders them, and the filter of ids; and what a reader picks of a
// blob. It reads no disk and keeps no state.
package blob

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
// A record is its length as uvarint, then flags, id behind its length, time (varint), and,
// where the flags say so, version (varint, else 0), index of the schema (uvarint, else 0)
// and object behind its length (else the id); the rest is the body. Integers are
// little-endian.
//
// There is no checksum: the blocks of Pebble, the database that stores blobs, have
// one, which it checks at every read from disk. The digest finds what that cannot,
// faults of the program: a check of the partition recomputes it.
//
// The bytes of a record never change once they are written, and Append only writes
// behind them. So a record that was decoded from a blob, and shares its memory,
// stays valid for ever.
type Blob struct {
	Buf  []byte
	last int // offset of the newest record; 0 in an empty blob, and in one from View
}

const (
	blobFormat = 1
	blobHeader = 16 // bytes before the fingerprints

	blobHasChain = 1 // flag of the blob

	// Flags of a record: it is a tombstone, or it has the field of that name. recFlags are
	// all of them.
	recDeleted = 1
	recVersion = 2
	recSchema  = 4
	recObject  = 8
	recFlags   = recDeleted | recVersion | recSchema | recObject
)

// Err is the error for bytes that are no blob; match it with errors.Is.
var Err = errors.New("blob")

func blobError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", Err, fmt.Sprintf(format, args...))
}

// Count is the number of records, as the header says.
func (b *Blob) Count() int { return int(binary.LittleEndian.Uint32(b.Buf[2:])) }

// Digest is the sum of the records' digests, as the header says.
func (b *Blob) Digest() uint64 { return binary.LittleEndian.Uint64(b.Buf[6:]) }

// HasChain reports whether the blob is the head of a timeline that has a chain.
func (b *Blob) HasChain() bool { return b.Buf[1]&blobHasChain != 0 }

// schemas returns the fingerprints of the schemas, 8 bytes each; records returns the offset of
// the first record.
func (b *Blob) schemas() []byte { return b.Buf[blobHeader:b.records()] }
func (b *Blob) records() int    { return blobHeader + 8*int(binary.LittleEndian.Uint16(b.Buf[14:])) }
func (b *Blob) setCount(n int)  { binary.LittleEndian.PutUint32(b.Buf[2:], uint32(n)) }
func (b *Blob) addDigest(d uint64) {
	binary.LittleEndian.PutUint64(b.Buf[6:], b.Digest()+d)
}

// SetHasChain sets or clears the mark of the head of a timeline that has a chain.
func (b *Blob) SetHasChain(yes bool) {
	b.Buf[1] &^= blobHasChain
	if yes {
		b.Buf[1] |= blobHasChain
	}
}

// Encode makes a blob of records, which must be in order, oldest first. digest is the sum of
// their digests; see [RecordDigest].
func Encode(recs []millrace.Record, digest uint64) *Blob {
	var fps []millrace.Fingerprint
	size := blobHeader
	for i := range recs {
		if indexOf(fps, recs[i].Schema) < 0 {
			fps = append(fps, recs[i].Schema)
		}
		size += RecordSize(&recs[i], 0) + 2
	}
	b := &Blob{Buf: make([]byte, blobHeader, size+8*len(fps))}
	b.Buf[0] = blobFormat
	b.setCount(len(recs))
	b.addDigest(digest)
	binary.LittleEndian.PutUint16(b.Buf[14:], uint16(len(fps)))
	for _, fp := range fps {
		b.Buf = binary.LittleEndian.AppendUint64(b.Buf, uint64(fp))
	}
	for i := range recs {
		b.last = len(b.Buf)
		b.Buf = appendRecord(b.Buf, &recs[i], indexOf(fps, recs[i].Schema))
	}
	return b
}

// indexOf returns the index of fp in fps, or -1.
func indexOf(fps []millrace.Fingerprint, fp millrace.Fingerprint) int {
	for i, x := range fps {
		if x == fp {
			return i
		}
	}
	return -1
}

// Append adds a record that is newer than every other, and its digest. If the record's
// schema is not among the blob's, it changes nothing and reports false: then the caller
// must encode the blob anew.
func (b *Blob) Append(r *millrace.Record, digest uint64) bool {
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
	b.last = len(b.Buf)
	b.Buf = appendRecord(b.Buf, r, schema)
	b.setCount(b.Count() + 1)
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

// RecordSize returns how many bytes of a blob a record takes, with its length in front.
// schema is the index of its schema in the blob.
func RecordSize(r *millrace.Record, schema int) int {
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
	dst = AppendString(append(dst, flags), r.ID)
	dst = binary.AppendVarint(dst, int64(r.Time))
	if r.Version != 0 {
		dst = binary.AppendVarint(dst, r.Version)
	}
	if schema != 0 {
		dst = binary.AppendUvarint(dst, uint64(schema))
	}
	if flags&recObject != 0 {
		dst = AppendString(dst, r.Object)
	}
	return append(dst, r.Body...)
}

// cut returns the record at an offset: its bytes without the length in front, which share
// the blob's memory, and where the next begins.
func (b *Blob) cut(at int) (rec []byte, next int, err error) {
	n, w := uvarint(b.Buf[at:])
	if w <= 0 || n > uint64(len(b.Buf)-at-w) {
		return nil, 0, blobError("record at %d is cut short", at)
	}
	next = at + w + int(n)
	return b.Buf[at+w : next : next], next, nil
}

// uvarint is [binary.Uvarint], but faster for numbers of one or two bytes.
func uvarint(b []byte) (uint64, int) {
	if len(b) > 1 && b[0] < 0x80 {
		return uint64(b[0]), 1
	}
	if len(b) > 2 && b[1] < 0x80 {
		return uint64(b[0]&0x7f) | uint64(b[1])<<7, 2
	}
	return binary.Uvarint(b)
}

// position reads a record's flags and its position: the id and the time, by which records are
// ordered. rest is the bytes after these. id shares rec's memory.
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

// alias returns b as a string, without a copy. b must not change afterwards.
func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// decodeRecord reads a record into r, which shares rec's memory. schemas is as Blob.schemas
// returns it.
func decodeRecord(rec, schemas []byte, r *millrace.Record) error {
	flags, id, at, rest, err := position(rec)
	if err != nil {
		return err
	}
	return decodeRest(flags, id, at, rest, schemas, r)
}

// decodeRest reads what follows a record's position, and sets all fields of r.
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

// View checks the header of a stored blob, but not its records, and returns the blob, which
// keeps buf. Newest, Oldest and Find need a blob from Open instead.
func View(buf []byte) (*Blob, error) {
	if len(buf) < blobHeader {
		return nil, blobError("%d bytes", len(buf))
	}
	if buf[0] != blobFormat {
		return nil, blobError("format %d; this program reads %d", buf[0], blobFormat)
	}
	b := &Blob{Buf: buf}
	if b.Buf[1]&^blobHasChain != 0 || b.records() > len(buf) {
		return nil, blobError("header")
	}
	return b, nil
}

// MaxTime is later than any record.
const MaxTime = millrace.Time(1<<63 - 1)

// FirstTime returns the oldest record's time, or MaxTime if there is none.
func (b *Blob) FirstTime() (millrace.Time, error) {
	if b.records() == len(b.Buf) {
		return MaxTime, nil
	}
	rec, _, err := b.cut(b.records())
	if err != nil {
		return 0, err
	}
	_, _, t, _, err := position(rec)
	return t, err
}

// Open checks the structure of a stored blob: header, bounds, count, and that each record
// is newer than the one before. It returns the blob, which keeps buf.
func Open(buf []byte) (*Blob, error) {
	b, err := View(buf)
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
		if n > 0 && !Newer(t, id, lastTime, lastID) {
			return nil, blobError("record %q is out of order", id)
		}
		b.last, at, lastTime, lastID = at, next, t, id
	}
	if n != b.Count() {
		return nil, blobError("%d records, header says %d", n, b.Count())
	}
	return b, nil
}

// Newer reports whether a comes before b in a timeline: time descending, id
// ascending.
func Newer(at millrace.Time, aid millrace.RecordID, bt millrace.Time, bid millrace.RecordID) bool {
	return at > bt || at == bt && aid < bid
}

// DecodeAll appends the records to dst, oldest first, sharing the blob's memory. With an error
// it returns those before the fault, and perhaps a part of the next.
func (b *Blob) DecodeAll(dst []millrace.Record) ([]millrace.Record, error) {
	schemas := b.schemas()
	for at := b.records(); at < len(b.Buf); {
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

// At decodes the record at an offset, as Find returns it. The record shares the blob's
// memory.
func (b *Blob) At(off int) (r millrace.Record, err error) {
	rec, _, err := b.cut(off)
	if err == nil {
		err = decodeRecord(rec, b.schemas(), &r)
	}
	return r, err
}

// Oldest returns the position of the oldest record of a blob that is not empty.
func (b *Blob) Oldest() (millrace.Time, millrace.RecordID) { return b.ends(b.records()) }

// Newest returns the position of the newest record of a blob that is not empty.
func (b *Blob) Newest() (millrace.Time, millrace.RecordID) { return b.ends(b.last) }

// ends returns the position of the record at an offset. It panics if there is none.
func (b *Blob) ends(off int) (millrace.Time, millrace.RecordID) {
	rec, _, err := b.cut(off)
	if err != nil {
		panic(err) // Open has checked it
	}
	_, id, t, _, err := position(rec)
	if err != nil {
		panic(err)
	}
	return t, id
}

// Find returns the index, counted from the oldest record, and the offset in Buf of the record
// with an id. Open must have checked the blob: Find panics at a fault in it.
func (b *Blob) Find(id millrace.RecordID) (index, off int, ok bool) {
	for at := b.records(); at < len(b.Buf); index++ {
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

// Split cuts records into runs, by halves, until each has only one record or takes at most
// max bytes as a blob. It counts bytes as if all records of a run had one schema, so that
// a blob with more schemas may take more than max.
func Split(recs []millrace.Record, max int) [][]millrace.Record {
	size := blobHeader + 8
	for i := range recs {
		size += RecordSize(&recs[i], 0)
	}
	if size <= max || len(recs) < 2 {
		return [][]millrace.Record{recs}
	}
	n, half := 1, blobHeader+8+RecordSize(&recs[0], 0)
	for n < len(recs)-1 && half < size/2 {
		half += RecordSize(&recs[n], 0)
		n++
	}
	return append(Split(recs[:n:n], max), Split(recs[n:], max)...)
}
