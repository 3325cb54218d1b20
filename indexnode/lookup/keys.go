package lookup

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/partition"
)

// keys is the entities of a request, grouped by partition, the lowest partition first. Its
// memory is used again by the next request.
type keys struct {
	entities []millrace.Entity
	groups   []group
}

// group is the entities of one partition: entities[lo:hi].
type group struct {
	partition millrace.Partition
	lo, hi    int
}

// maxEntities is how many entities a request names at most.
const maxEntities = 20_000

// Decode reads the packed entities of a request, which brokers write with
// [partition.AppendEntity]. They share the memory of b, which must not change.
func (k *keys) Decode(b []byte) error {
	if !k.split(b) {
		return millrace.Invalid("entities", fmt.Sprintf("not a run of partitions, which ascend, lengths and names, %d of them at most", maxEntities), "")
	}
	if len(b) == 0 {
		return nil
	}
	// One entity is enough to tell whether the broker and this node compute partitions
	// alike. Which one is looked at changes from request to request.
	g := k.groups[len(b)%len(k.groups)]
	return inPartition(k.entities[g.lo], g.partition)
}

// inPartition returns an error if e does not live in partition p.
func inPartition(e millrace.Entity, p millrace.Partition) error {
	if is := partition.Of(e); is != p {
		return millrace.Invalid("entities", fmt.Sprintf("%.70q is in partition %d, not in %d as the request says", e, is, p), "run one version of Millrace: all must agree on where an entity lives")
	}
	return nil
}

// split reads b, and reports whether it has only entities in the order of their partitions,
// at most maxEntities of them. Each is a head of 4 bytes, its partition and the length of its
// name, and then the name. split writes the newest group again for every entity, instead of a
// branch on whether the next partition begins: with about two entities in a partition, the
// processor could not predict that branch.
func (k *keys) split(b []byte) bool {
	entities := k.entities[:0]
	k.groups = slices.Grow(k.groups[:0], partition.Count)[:partition.Count]
	groups := k.groups
	all := unsafe.String(unsafe.SliceData(b), len(b))
	n, last, at := 0, -1, 0
	for at+partition.EntityHead <= len(b) {
		head := binary.LittleEndian.Uint32(b[at:])
		p, size := int(head&0xffff), int(head>>16)
		name := at + partition.EntityHead
		end := name + size
		if end > len(b) || size > millrace.MaxEntityBytes || p < last || p >= partition.Count || len(entities) == maxEntities {
			break
		}
		entities = append(entities, millrace.Entity(all[name:end]))
		at = end
		if p > last {
			n++
		}
		last = p
		groups[n-1].partition, groups[n-1].hi = millrace.Partition(p), len(entities)
	}
	k.entities, k.groups = entities, groups[:n]
	lo := 0
	for i := range k.groups {
		k.groups[i].lo = lo
		lo = k.groups[i].hi
	}
	return at == len(b)
}

// reset drops the references to a request's strings, so that the request's memory can be
// freed.
func (k *keys) reset() { clear(k.entities) }
