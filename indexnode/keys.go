package indexnode

import (
	"encoding/binary"
	"slices"

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
// and its bytes.
func (k *keys) decode(b []byte) error {
	k.spans = k.spans[:0]
	all := string(b) // one string that all entities share
	for at := 0; at < len(b); {
		size, w := uint64(b[at]), 1
		if size >= 0x80 {
			size, w = binary.Uvarint(b[at:])
		}
		if w <= 0 || size > uint64(len(b)-at-w) || size > millrace.MaxEntityBytes {
			return invalid("entities", "not a run of lengths and names", "")
		}
		at += w
		k.spans = append(k.spans, span{uint32(at), uint16(size), partition.Of(millrace.Entity(all[at : at+int(size)]))})
		at += int(size)
	}
	k.group(all)
	return nil
}

// group sorts the entities by partition, by counting.
func (k *keys) group(all string) {
	var next [partition.Count]int
	for i := range k.spans {
		next[k.spans[i].partition]++
	}
	k.groups = k.groups[:0]
	at := 0
	for p, count := range next {
		if count > 0 {
			k.groups = append(k.groups, group{millrace.Partition(p), at, at + count})
			next[p] = at
			at += count
		}
	}
	k.entities = slices.Grow(k.entities[:0], at)[:at]
	for i := range k.spans {
		s := &k.spans[i]
		k.entities[next[s.partition]] = millrace.Entity(all[s.at : s.at+uint32(s.size)])
		next[s.partition]++
	}
}

// reset lets go of a request's strings.
func (k *keys) reset() { clear(k.entities) }
