package timeline

import (
	"encoding/binary"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
)

// The key of a row is the partition in two bytes, Kind, the entity and the type, and then one
// of the parts, which says which row of the timeline it is. Package store documents the keys.
const (
	Kind = 't' // the kind of all rows of timelines

	PartHead   = 0x00 // the head
	PartChain  = 0x01 // the chain
	PartOlder  = 0x02 // an older blob; its suffix follows, in four bytes, big-endian
	PartFilter = 0x03 // the filter
	PartID     = 0x04 // an id row; the id follows
)

// Prefix returns what all keys of a timeline begin with.
func Prefix(p millrace.Partition, t millrace.Timeline) []byte {
	return AppendPrefix(make([]byte, 0, 3+2+len(t.Entity)+len(t.Type)+2+16), p, t)
}

// AppendPrefix appends what all keys of a timeline begin with.
func AppendPrefix(dst []byte, p millrace.Partition, t millrace.Timeline) []byte {
	dst = append(dst, byte(p>>8), byte(p), Kind)
	return blob.AppendString(blob.AppendString(dst, t.Entity), t.Type)
}

// HeadKey returns the key of the head. Like the other keys it may be built in the spare memory
// behind prefix. So only one goroutine at a time may use a prefix, and the next key overwrites
// this one.
func HeadKey(prefix []byte) []byte { return append(prefix, PartHead) }

// ChainKey returns the key of the chain.
func ChainKey(prefix []byte) []byte { return append(prefix, PartChain) }

// OlderKey returns the key of an older blob.
func OlderKey(prefix []byte, suffix uint32) []byte {
	return binary.BigEndian.AppendUint32(append(prefix, PartOlder), suffix)
}

func filterKey(prefix []byte) []byte { return append(prefix, PartFilter) }
func idKey(prefix []byte, id millrace.RecordID) []byte {
	return append(append(prefix, PartID), id...)
}

// CutKey splits the key of a row: the timeline that it is of, the length of the prefix, and the
// rest, which begins with the part. The error is blob.ErrKey, or that of a damaged name.
func CutKey(key []byte) (t millrace.Timeline, prefix int, rest []byte, err error) {
	if len(key) < 3 || key[2] != Kind {
		return t, 0, nil, blob.ErrKey
	}
	entity, rest, err := blob.CutString(key[3:])
	if err != nil {
		return t, 0, nil, err
	}
	typ, rest, err := blob.CutString(rest)
	if err != nil || !isPart(rest) {
		return t, 0, nil, blob.ErrKey
	}
	return millrace.Timeline{Entity: millrace.Entity(entity), Type: millrace.ContentType(typ)}, len(key) - len(rest), rest, nil
}

// isPart reports whether rest, the end of a key behind the prefix, is a part of a timeline.
func isPart(rest []byte) bool {
	if len(rest) == 0 {
		return false
	}
	switch rest[0] {
	case PartHead, PartChain, PartFilter:
		return len(rest) == 1
	case PartOlder:
		return len(rest) == 5
	case PartID:
		return true
	}
	return false
}
