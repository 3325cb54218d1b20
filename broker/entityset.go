package broker

import (
	"math/bits"
	"math/rand/v2"
	"sync"
)

// entitySet is the distinct entities of a request, found by their hashes, which
// are needed anyway. Its memory is used again by the next request.
type entitySet struct {
	slots    []uint32 // an open table: 1 + the index in distinct, 0: free
	shift    int      // of a scattered hash, to its slot
	distinct []hashed
}

type hashed struct {
	entity string
	hash   uint64
}

var usedEntitySets = sync.Pool{New: func() any { return new(entitySet) }}

// takeEntitySet returns room for n names.
func takeEntitySet(n int) *entitySet {
	m := usedEntitySets.Get().(*entitySet)
	size := 1 << bits.Len(uint(2*n)) // at most half full
	if cap(m.slots) < size {
		m.slots = make([]uint32, size)
	}
	m.slots, m.shift = m.slots[:size], 64-bits.Len(uint(size-1))
	return m
}

// release lets go of the names.
func (m *entitySet) release() {
	clear(m.slots)
	clear(m.distinct)
	m.distinct = m.distinct[:0]
	usedEntitySets.Put(m)
}

// scatter keeps callers from choosing names that meet in a slot: it takes
// another place of the hash in every process.
var scatter = rand.Uint64() | 1

// find reports whether a name is there, and else the slot to put it in.
func (m *entitySet) find(entity string, hash uint64) (slot int, there bool) {
	for slot = int(hash * scatter >> m.shift); m.slots[slot] != 0; slot = (slot + 1) & (len(m.slots) - 1) {
		if n := &m.distinct[m.slots[slot]-1]; n.hash == hash && n.entity == entity {
			return slot, true
		}
	}
	return slot, false
}

// put puts a name into the slot where find did not find it.
func (m *entitySet) put(slot int, entity string, hash uint64) {
	m.distinct = append(m.distinct, hashed{entity, hash})
	m.slots[slot] = uint32(len(m.distinct))
}
