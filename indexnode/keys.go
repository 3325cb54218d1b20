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
	packed   []millrace.Entity // as they came
	of       []millrace.Partition
}

// group is the entities of one partition: entities[lo:hi].
type group struct {
	partition millrace.Partition
	lo, hi    int
}

// decode reads the packed entities of a request: each its length as uvarint
// and its bytes.
func (k *keys) decode(b []byte) error {
	k.packed = k.packed[:0]
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
		k.packed = append(k.packed, millrace.Entity(all[at:at+int(size)]))
		at += int(size)
	}
	k.group()
	return nil
}

// group sorts the entities by partition, by counting.
func (k *keys) group() {
	var next [partition.Count + 1]int32
	n := len(k.packed)
	k.of = slices.Grow(k.of[:0], n)[:n]
	for i, e := range k.packed {
		k.of[i] = partition.Of(e)
		next[k.of[i]+1]++
	}
	k.groups = k.groups[:0]
	for p := range partition.Count {
		if count := next[p+1]; count > 0 {
			k.groups = append(k.groups, group{millrace.Partition(p), int(next[p]), int(next[p] + count)})
		}
		next[p+1] += next[p]
	}
	k.entities = slices.Grow(k.entities[:0], n)[:n]
	for i, e := range k.packed {
		p := k.of[i]
		k.entities[next[p]] = e
		next[p]++
	}
}

// reset lets go of a request's strings.
func (k *keys) reset() {
	clear(k.entities)
	clear(k.packed)
}
