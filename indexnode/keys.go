package indexnode

import (
	"encoding/binary"
	"slices"
	"unsafe"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/partition"
)

// keys are the entities of a request, those of a partition side by side. Its
// memory is used again by the next request.
type keys struct {
	entities []millrace.Entity // by partition, lowest first; else as they came
	groups   []group
	spans    []span // as they came
}

// span is where an entity stands in a request.
type span struct {
	at        uint32
	size      uint16
	partition millrace.Partition
}

// group is the entities of one partition: entities[lo:hi].
type group struct {
	partition millrace.Partition
	lo, hi    int
}

// decode reads the packed entities of a request: each its length as uvarint
// and its bytes. They share the memory of b, which must not change.
func (k *keys) decode(b []byte) error {
	spans := k.spans[:0]
	var sizes [partition.Count]int32
	for at := 0; at < len(b); {
		size, w := uint64(b[at]), 1
		if size >= 0x80 {
			size, w = binary.Uvarint(b[at:])
		}
		if w <= 0 || size > uint64(len(b)-at-w) || size > millrace.MaxEntityBytes {
			return invalid("entities", "not a run of lengths and names", "")
		}
		at += w
		p := partition.OfBytes(b[at : at+int(size)])
		sizes[p]++
		spans = append(spans, span{uint32(at), uint16(size), p})
		at += int(size)
	}
	k.spans = spans
	k.group(unsafe.String(unsafe.SliceData(b), len(b)), &sizes)
	return nil
}

// group sorts the entities by partition, of which it is given the sizes.
func (k *keys) group(all string, sizes *[partition.Count]int32) {
	k.groups = k.groups[:0]
	next := sizes // where the next entity of a partition goes
	at := int32(0)
	for p, size := range sizes {
		if size > 0 {
			k.groups = append(k.groups, group{millrace.Partition(p), int(at), int(at + size)})
			next[p] = at
			at += size
		}
	}
	entities := slices.Grow(k.entities[:0], len(k.spans))[:len(k.spans)]
	for _, s := range k.spans {
		to := next[s.partition]
		next[s.partition] = to + 1
		entities[to] = millrace.Entity(all[s.at : s.at+uint32(s.size)])
	}
	k.entities = entities
}

// reset lets go of a request's strings.
func (k *keys) reset() { clear(k.entities) }
