package store

import (
	"encoding/binary"
	"errors"

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
