package store

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
	"github.com/millrace/millrace/indexnode/store/tally"
)

// Every key begins with its partition, two bytes, so that a partition is one
// range. Behind it:
//
//	00                                  the partition row: offsets, digests
//	01                                  the origin: see [Batch.SetOrigin]
//	66 entity subject                   features
//	74 entity type 00                   the head blob
//	74 entity type 01                   the chain: metadata of the older blobs
//	74 entity type 02 suffix(4)         an older blob
//	74 entity type 03                   the filter of the ids outside the head
//	74 entity type 04 id                where a record outside the head is
//
// entity and type are preceded by their length as uvarint. The node's own rows
// have the partition ffff, and a copy of them fffe:
//
//	71 partition(2)                     why a partition is quarantined
//	73 fingerprint(8)                   a schema, as JSON
//	74 type                             a content type
//	76                                  the format of the store
//
// Among the rows of fffe alone is
//
//	63 partition(2)                     how much a partition has, by content type
//
// It is not a row of the partition, so that no checkpoint has it.
const (
	kindPart     = 0x00
	kindOrigin   = 0x01
	kindFeatures = 'f' // the rows of timelines have timeline.Kind, 't'

	nodePartition = 0xffff
	nodeCounts    = 'c'
	nodeFormat    = 'v'
	nodeSchema    = 's'
	nodeType      = 't'
	nodeBad       = 'q' // quarantined partitions
)

// partitionKey returns the key of the row of a kind that a partition has once; for kinds with
// more rows it is how their keys begin.
func partitionKey(p millrace.Partition, kind byte) []byte {
	return []byte{byte(p >> 8), byte(p), kind}
}

// countsKey returns the key of a partition's counts. It is among the node's rows because of
// earlier versions, which may open the store after this one. They ignore rows of the node
// that they do not know, and can repair a damaged file that has such rows. They could not
// remove a damaged file whose rows are neither of the node nor of a partition, and would
// try for ever to open the store.
func countsKey(p millrace.Partition) []byte {
	return append(partitionPrefix(nodeCopies[0]), nodeCounts, byte(p>>8), byte(p))
}

func partitionPrefix(p millrace.Partition) []byte { return []byte{byte(p >> 8), byte(p)} }

// partitionSpan returns the range of all keys of a partition; end is the first key behind it.
func partitionSpan(p millrace.Partition) (start, end []byte) {
	return []byte{byte(p >> 8), byte(p)}, []byte{byte((p + 1) >> 8), byte(p + 1)}
}

func featuresPrefix(p millrace.Partition, e millrace.Entity) []byte {
	return blob.AppendString(partitionKey(p, kindFeatures), e)
}

// Digest is the digest of a partition's two streams: for each, the sum modulo 2^64 of the
// digests of what was accepted and not replaced since. Since it is a sum, the order of
// application and the division into blobs do not matter. What retention drops stays in the
// sum, so that the time of sweeps does not matter either.
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

func (r *partRow) encode() []byte {
	b := append(make([]byte, 0, partRowBytes), partFormat)
	for _, x := range [...]uint64{uint64(r.applied.Content), uint64(r.applied.Features),
		r.digest.Content, r.digest.Features, r.dropped, uint64(r.clock)} {
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	return b
}

// counted returns the state of the partition that its counts belong to. Counts that were
// written with another state are not right.
func (r *partRow) counted() tally.State {
	return tally.State{Content: r.digest.Content, Dropped: r.dropped}
}

func decodePartRow(b []byte) (r partRow, err error) {
	if len(b) != partRowBytes || b[0] != partFormat {
		return r, blob.ErrRow
	}
	x := func(i int) uint64 { return binary.LittleEndian.Uint64(b[1+8*i:]) }
	r.applied = Offsets{millrace.Offset(x(0)), millrace.Offset(x(1))}
	r.digest = Digest{x(2), x(3)}
	r.dropped = x(4)
	r.clock = millrace.Time(x(5))
	if r.applied.Content < -1 || r.applied.Features < -1 {
		return r, blob.ErrRow
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

// decodeFeatures decodes a row of features; the body shares b's memory.
func decodeFeatures(subject string, b []byte) (f Features, err error) {
	if len(b) == 0 || b[0] != featuresFormat {
		return f, blob.ErrRow
	}
	b = b[1:]
	version, w := binary.Varint(b)
	if w <= 0 {
		return f, blob.ErrRow
	}
	b = b[w:]
	at, w := binary.Varint(b)
	if w <= 0 || len(b)-w < 8 {
		return f, blob.ErrRow
	}
	b = b[w:]
	return Features{Subject: subject, Version: version, Time: millrace.Time(at),
		Schema: millrace.Fingerprint(binary.LittleEndian.Uint64(b)), Body: b[8:len(b):len(b)]}, nil
}

func featuresDigest(e millrace.Entity, f *Features) uint64 {
	return blob.DigestOf(xxhash.Sum64String(string(e)), xxhash.Sum64String(f.Subject), uint64(f.Version),
		uint64(f.Time), uint64(f.Schema), xxhash.Sum64(f.Body))
}
