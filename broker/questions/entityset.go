package questions

import (
	"fmt"
	"hash/maphash"
	"math/bits"
	"sync"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/limits"
	"github.com/millrace/millrace/internal/partition"
)

// entitySet is the distinct entities of a request, as an open hash table. The key of the
// hash is random in every process: a caller who knew the hash could choose names that all
// meet in one slot. The hash that gives the partition would not do, since everyone knows
// it. The memory of a set is reused by later requests.
type entitySet struct {
	slots    []uint32 // 1 + the index in distinct; 0: free
	shift    int      // how far a hash is shifted right to give its slot
	distinct []hashed
}

// hashed is an entity with its hash in the table and its partition.
type hashed struct {
	entity    string
	hash      uint64
	partition millrace.Partition
}

var usedEntitySets = sync.Pool{New: func() any { return new(entitySet) }}

// takeEntitySet returns an empty set with room for n distinct names.
func takeEntitySet(n int) *entitySet {
	m := usedEntitySets.Get().(*entitySet)
	size := 1 << bits.Len(uint(2*n)) // at most half full
	if cap(m.slots) < size {
		m.slots = make([]uint32, size)
	}
	m.slots, m.shift = m.slots[:size], 64-bits.Len(uint(size-1))
	return m
}

// release empties the set and gives it back for reuse.
func (m *entitySet) release() {
	clear(m.slots)
	clear(m.distinct)
	m.distinct = m.distinct[:0]
	usedEntitySets.Put(m)
}

// tableSeed is the random key of the hash.
var tableSeed = maphash.MakeSeed()

// home returns the slot at which the search for a hash begins.
func (m *entitySet) home(hash uint64) int { return int(hash >> m.shift) }

// find reports whether a name is in the set, and its slot: if it is not there, the free
// slot to put it in.
func (m *entitySet) find(entity string, hash uint64) (slot int, there bool) {
	for slot = m.home(hash); m.slots[slot] != 0; slot = (slot + 1) & (len(m.slots) - 1) {
		if n := &m.distinct[m.slots[slot]-1]; n.hash == hash && n.entity == entity {
			return slot, true
		}
	}
	return slot, false
}

// put puts a name into the free slot that find returned, and returns its partition.
func (m *entitySet) put(slot int, entity string, hash uint64) millrace.Partition {
	p := partition.Of(millrace.Entity(entity))
	m.distinct = append(m.distinct, hashed{entity, hash, p})
	m.slots[slot] = uint32(len(m.distinct))
	return p
}

// TakeEntities gives the question its entities, each once, all in the first group. The
// error refuses them if there are none, more than limits.MaxEntities distinct ones, or
// one that is not a valid name. Whole must have been called.
func (q *Question) TakeEntities(entities []string) error {
	if len(entities) == 0 {
		return limits.Invalid("entities", "name 1 to 20,000 entities that the viewer follows", "there are none")
	}
	n, g := takeEntitySet(min(len(entities), limits.MaxEntities)), q.Groups[0]
	defer n.release()
	for i, e := range entities {
		hash := maphash.String(tableSeed, e)
		slot, again := n.find(e, hash)
		if again {
			continue
		}
		if err := limits.CheckText(e, millrace.MaxEntityBytes); err != nil {
			return limits.Invalid(fmt.Sprintf("entities[%d]", i), "name an entity such as member:42", "%v", err)
		}
		if len(n.distinct) == limits.MaxEntities {
			return &millrace.Error{Reason: millrace.ReasonTooLarge, Field: "entities", Detail: fmt.Sprintf("more than %d distinct entities", limits.MaxEntities), WayOut: "ask for the ones that matter most, or in several requests"}
		}
		p := n.put(slot, e, hash)
		g.Want.Add(p)
		g.counts[p]++
		g.ends[p+1] += uint32(partition.EntityHead + len(e))
	}
	q.Distinct, q.Want, g.Distinct = len(n.distinct), g.Want, len(n.distinct)
	g.encode(n.distinct)
	return nil
}
