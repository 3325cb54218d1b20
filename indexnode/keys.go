package indexnode

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/partition"
)

// keys are the entities of a request, those of a partition side by side. Its
// memory is used again by the next request.
//
// They are read in three loops, each of which does one thing to all of them: a
// processor that has to wait for a name's length or for its hash goes on with
// the next names, as far as it can look ahead.
type keys struct {
	entities []millrace.Entity // by partition, lowest first; else as they came
	groups   []group
	hashes   []uint64 // of entities as they came
}

// group is the entities of one partition: entities[lo:hi].
type group struct {
	partition millrace.Partition
	lo, hi    int
}

// maxEntities is how many entities a request names at most.
const maxEntities = 20_000

// decode reads the packed entities of a request: each its length as uvarint
// and its bytes. They share the memory of b, which must not change.
func (k *keys) decode(b []byte) error {
	var ok bool
	if k.entities, ok = split(k.entities[:0], b); !ok {
		return invalid("entities", fmt.Sprintf("not a run of lengths and names, %d of them at most", maxEntities), "")
	}
	k.hashes = slices.Grow(k.hashes[:0], len(k.entities))[:len(k.entities)]
	hashes := k.hashes
	for i, e := range k.entities {
		hashes[i] = partition.Hash(e)
	}
	if !k.group() {
		k.sort()
	}
	return nil
}

// split appends the entities in b to dst, which is empty, and reports whether b
// is nothing else, and they not too many.
func split(dst []millrace.Entity, b []byte) ([]millrace.Entity, bool) {
	all := unsafe.String(unsafe.SliceData(b), len(b))
	for at := 0; at < len(b); {
		name, end := at+1, at+1+int(b[at])
		if b[at] >= 0x80 {
			size, w := binary.Uvarint(b[at:])
			if w <= 0 || size > millrace.MaxEntityBytes {
				return dst, false
			}
			name, end = at+w, at+w+int(size)
		}
		if end > len(b) || len(dst) == maxEntities {
			return dst, false
		}
		dst = append(dst, millrace.Entity(all[name:end]))
		at = end
	}
	return dst, true
}

// group finds the groups of entities that came by partition, as brokers send
// them, and reports whether they did. There are about two entities a
// partition, so that a branch on whether the next begins would be a guess: it
// writes the newest group again for every entity.
func (k *keys) group() bool {
	k.groups = slices.Grow(k.groups[:0], partition.Count)[:partition.Count]
	groups := k.groups
	n, last := 0, -1
	for i, h := range k.hashes {
		p := int(partition.OfHash(h))
		if p < last {
			return false
		}
		if p > last {
			n++
		}
		last = p
		groups[n-1].partition, groups[n-1].hi = millrace.Partition(p), i+1
	}
	k.groups = groups[:n]
	lo := 0
	for i := range k.groups {
		k.groups[i].lo = lo
		lo = k.groups[i].hi
	}
	return true
}

// sort is group for entities that came in any order.
func (k *keys) sort() {
	var next [partition.Count]int // where the next entity of a partition goes
	for _, h := range k.hashes {
		next[partition.OfHash(h)]++
	}
	k.groups = k.groups[:0]
	at := 0
	for p, size := range next {
		if size > 0 {
			k.groups = append(k.groups, group{millrace.Partition(p), at, at + size})
		}
		next[p] = at
		at += size
	}
	sorted := make([]millrace.Entity, at)
	for i, h := range k.hashes {
		to := &next[partition.OfHash(h)]
		sorted[*to] = k.entities[i]
		*to++
	}
	k.entities = sorted
}

// reset lets go of a request's strings.
func (k *keys) reset() { clear(k.entities) }
