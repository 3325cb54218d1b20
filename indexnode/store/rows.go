package store

import (
	"encoding/binary"
	"errors"

	"github.com/cespare/xxhash/v2"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
)

// Every key begins with its partition, two bytes, so that a partition is one
// range. Behind it:
//
//	00                                  the partition row: offsets, digests
//	01                                  the origin, as its caller wrote it
//	66 entity subject                   features
//	74 entity type 00                   the head blob
//	74 entity type 01                   the chain: metadata of the older blobs
//	74 entity type 02 suffix(4)         an older blob
//	74 entity type 03                   the filter of the ids outside the head
//	74 entity type 04 id                where a record outside the head is
//
// entity and type stand behind their length as uvarint. The node's own rows
// have the partition ffff, and a copy of them fffe. Among those of fffe, and
// nowhere else, is
//
//	63 partition(2)                     how much a partition has, by content type
//
// which is no row of the partition, so that no checkpoint has it.
const (
	kindPart     = 0x00
	kindOrigin   = 0x01
	kindFeatures = 'f'
	kindTimeline = 't'

	partHead   = 0x00
	partChain  = 0x01
	partOlder  = 0x02
	partFilter = 0x03
	partID     = 0x04

	nodePartition = 0xffff
	nodeCounts    = 'c'
	nodeFormat    = 'v'
	nodeSchema    = 's'
	nodeType      = 't'
	nodeBad       = 'q' // quarantined partitions
)

var errKey = errors.New("key")

func partitionKey(p millrace.Partition, kind byte) []byte {
	return []byte{byte(p >> 8), byte(p), kind}
}

// countsKey is the key of a partition's counts. It is among the node's rows for
// the sake of earlier versions: they ignore rows of the node that they do not
// know, and can mend a damaged file that has some. A damaged file that has no
// rows of the node and none of a partition they cannot remove, and would try for
// ever to open the store.
func countsKey(p millrace.Partition) []byte {
	return append(partitionPrefix(nodeCopies[0]), nodeCounts, byte(p>>8), byte(p))
}

func partitionPrefix(p millrace.Partition) []byte { return []byte{byte(p >> 8), byte(p)} }

// partitionSpan is the range of all keys of a partition.
func partitionSpan(p millrace.Partition) (start, end []byte) {
	return []byte{byte(p >> 8), byte(p)}, []byte{byte((p + 1) >> 8), byte(p + 1)}
}

// timelinePrefix is what all keys of a timeline begin with.
func timelinePrefix(p millrace.Partition, t millrace.Timeline) []byte {
	return appendTimelinePrefix(make([]byte, 0, 3+2+len(t.Entity)+len(t.Type)+2+16), p, t)
}

func appendTimelinePrefix(dst []byte, p millrace.Partition, t millrace.Timeline) []byte {
	dst = append(dst, byte(p>>8), byte(p), kindTimeline)
	return blob.AppendString(blob.AppendString(dst, t.Entity), t.Type)
}

// The prefix has spare room for short rests, which are built in place: one
// goroutine at a time may use a prefix.
func headKey(prefix []byte) []byte  { return append(prefix, partHead) }
func chainKey(prefix []byte) []byte { return append(prefix, partChain) }
func olderKey(prefix []byte, suffix uint32) []byte {
	return binary.BigEndian.AppendUint32(append(prefix, partOlder), suffix)
}
func filterKey(prefix []byte) []byte { return append(prefix, partFilter) }
func idKey(prefix []byte, id millrace.RecordID) []byte {
	return append(append(prefix, partID), id...)
}

func featuresPrefix(p millrace.Partition, e millrace.Entity) []byte {
	return blob.AppendString(partitionKey(p, kindFeatures), e)
}

// cutString takes a string behind its length off b. Lengths are minimal.
func cutString(b []byte) (s string, rest []byte, err error) {
	n, w := binary.Uvarint(b)
	if w <= 0 || n > uint64(len(b)-w) || w > 1 && b[w-1] == 0 {
		return "", nil, errKey
	}
	return string(b[w : w+int(n)]), b[w+int(n):], nil
}

// cutTimeline splits a key of kindTimeline: whose it is, the length of the
// prefix, and the rest, which begins with the part.
func cutTimeline(key []byte) (t millrace.Timeline, prefix int, rest []byte, err error) {
	if len(key) < 3 || key[2] != kindTimeline {
		return t, 0, nil, errKey
	}
	entity, rest, err := cutString(key[3:])
	if err != nil {
		return t, 0, nil, err
	}
	typ, rest, err := cutString(rest)
	if err != nil || !isPart(rest) {
		return t, 0, nil, errKey
	}
	return millrace.Timeline{Entity: millrace.Entity(entity), Type: millrace.ContentType(typ)}, len(key) - len(rest), rest, nil
}

// isPart reports whether a key behind its timeline says which row of it it is.
func isPart(rest []byte) bool {
	if len(rest) == 0 {
		return false
	}
	switch rest[0] {
	case partHead, partChain, partFilter:
		return len(rest) == 1
	case partOlder:
		return len(rest) == 5
	case partID:
		return true
	}
	return false
}

// Digest is the digest of a partition's two streams: the sum, modulo 2^64, of
// the digests of what was accepted and not replaced since. A sum, so that
// neither the order of application nor the blobs matter; what retention drops
// stays in it, so that neither does the time of sweeps.
type Digest struct{ Content, Features uint64 }

// partRow is a partition's row:
//
//	0  format, 1
//	1  applied content, applied features, digest of content, digest of
//	   features, dropped, clock: 8 bytes each
type partRow struct {
	applied Offsets
	digest  Digest
	dropped uint64        // the part of digest.Content that retention dropped
	clock   millrace.Time // of the log; see Batch.SetClock
}

const (
	partFormat   = 1
	partRowBytes = 1 + 6*8
)

var errRow = errors.New("row")

func (r *partRow) encode() []byte {
	b := append(make([]byte, 0, partRowBytes), partFormat)
	for _, x := range [...]uint64{uint64(r.applied.Content), uint64(r.applied.Features),
		r.digest.Content, r.digest.Features, r.dropped, uint64(r.clock)} {
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	return b
}

func decodePartRow(b []byte) (r partRow, err error) {
	if len(b) != partRowBytes || b[0] != partFormat {
		return r, errRow
	}
	x := func(i int) uint64 { return binary.LittleEndian.Uint64(b[1+8*i:]) }
	r.applied = Offsets{millrace.Offset(x(0)), millrace.Offset(x(1))}
	r.digest = Digest{x(2), x(3)}
	r.dropped = x(4)
	r.clock = millrace.Time(x(5))
	if r.applied.Content < -1 || r.applied.Features < -1 {
		return r, errRow
	}
	return r, nil
}

// A features row: format, version and time (varint), schema (8 bytes), body.
const featuresFormat = 1

func (f *Features) encode(dst []byte) []byte {
	dst = binary.AppendVarint(append(dst, featuresFormat), f.Version)
	dst = binary.AppendVarint(dst, int64(f.Time))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(f.Schema))
	return append(dst, f.Body...)
}

// decodeFeatures reads a row; it shares b's memory.
func decodeFeatures(subject string, b []byte) (f Features, err error) {
	if len(b) == 0 || b[0] != featuresFormat {
		return f, errRow
	}
	b = b[1:]
	version, w := binary.Varint(b)
	if w <= 0 {
		return f, errRow
	}
	b = b[w:]
	at, w := binary.Varint(b)
	if w <= 0 || len(b)-w < 8 {
		return f, errRow
	}
	b = b[w:]
	return Features{Subject: subject, Version: version, Time: millrace.Time(at),
		Schema: millrace.Fingerprint(binary.LittleEndian.Uint64(b)), Body: b[8:len(b):len(b)]}, nil
}

func featuresDigest(e millrace.Entity, f *Features) uint64 {
	return blob.DigestOf(xxhash.Sum64String(string(e)), xxhash.Sum64String(f.Subject), uint64(f.Version),
		uint64(f.Time), uint64(f.Schema), xxhash.Sum64(f.Body))
}

// An id row: the time of the record, varint.
func (r idRow) encode() []byte { return binary.AppendVarint(nil, int64(r.at)) }

func decodeIDRow(b []byte) (idRow, error) {
	at, w := binary.Varint(b)
	if w <= 0 || w != len(b) {
		return idRow{}, errRow
	}
	return idRow{millrace.Time(at), true}, nil
}
