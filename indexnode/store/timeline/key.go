package timeline

import (
	"encoding/binary"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
)

// The rows of a timeline; package store draws their keys.
const (
	Kind = 't' // of a row, behind its partition

	PartHead   = 0x00
	PartChain  = 0x01
	PartOlder  = 0x02
	PartFilter = 0x03
	PartID     = 0x04
)

// Prefix is what all keys of a timeline begin with.
func Prefix(p millrace.Partition, t millrace.Timeline) []byte {
	return AppendPrefix(make([]byte, 0, 3+2+len(t.Entity)+len(t.Type)+2+16), p, t)
}

// AppendPrefix appends what all keys of a timeline begin with.
func AppendPrefix(dst []byte, p millrace.Partition, t millrace.Timeline) []byte {
	dst = append(dst, byte(p>>8), byte(p), Kind)
	return blob.AppendString(blob.AppendString(dst, t.Entity), t.Type)
}

// HeadKey is the key of the head. The prefix has spare room for short rests,
// which are built in place: one goroutine at a time may use a prefix.
func HeadKey(prefix []byte) []byte { return append(prefix, PartHead) }

// ChainKey is the key of the chain.
func ChainKey(prefix []byte) []byte { return append(prefix, PartChain) }

// OlderKey is the key of an older blob.
func OlderKey(prefix []byte, suffix uint32) []byte {
	return binary.BigEndian.AppendUint32(append(prefix, PartOlder), suffix)
}

func filterKey(prefix []byte) []byte { return append(prefix, PartFilter) }
func idKey(prefix []byte, id millrace.RecordID) []byte {
	return append(append(prefix, PartID), id...)
}

// CutKey splits a key of a timeline: whose it is, the length of the prefix, and the rest, which begins with the part.
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

// isPart reports whether a key behind its timeline says which row of it it is.
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
