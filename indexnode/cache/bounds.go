package cache

import (
	"github.com/millrace/millrace/internal/memory"
)

// LeastMemory is the least that Config.Memory should be, in bytes: memory comes
// from the system in pieces of 32 MiB.
const LeastMemory = 128 << 20

// defaultShare is the part of the machine's memory that is the default: the
// other half is the store's, the questions' and the operating system's.
const defaultShare = 2

// DefaultMemory returns what a cache takes where nothing is said: half of the
// memory of the machine, or of its control group.
func DefaultMemory() int { return max(int(memory.Machine()/defaultShare), LeastMemory) }

// bounds are what parts of a cache may take, in bytes.
//
//	memory ─┬─ blocks, mapped: 3/4    of which 7/8 in use; the rest is for what is free between them
//	        │                         and for what waits for readers
//	        └─ keys: 1/4              the index, the order of eviction, the doorkeeper
//
// What is empty takes at most half of the keys, and features an eighth of all:
// timelines with records have what those leave.
type bounds struct{ memory, mapped, live, keys, empty, features int }

func boundsOf(memory int) bounds {
	mapped := memory / 4 * 3
	return bounds{memory, mapped, mapped / 8 * 7, memory / 4, memory / 8, memory / 8}
}

// What a key takes, in bytes: of the index, which is rebuilt when it is half
// full, at most 96 and half of that for the old table beside it; of the order of
// eviction two places, and its name in each; of the doorkeeper some bits.
const (
	indexKeyBytes = 144
	orderKeyBytes = 32
)

// keyBytes returns what a key with a name of so many bytes takes.
func keyBytes(name int) int { return indexKeyBytes + orderKeyBytes + 2*name }

// fits reports whether a list has room for a key more, which takes so many
// bytes, and its timeline, with nothing evicted from any list.
func (c *Cache) fits(kind listKind, timeline, key int) bool {
	return c.mu.keys+key <= c.keys && c.within(kind, timeline, key)
}

// within reports the same of the list's own bound alone. The keys of timelines
// with records have none of their own: they have what the other lists leave.
func (c *Cache) within(kind listKind, timeline, key int) bool {
	switch l := &c.mu.lists[kind]; kind {
	case fat:
		return c.arena.Live()+timeline <= c.live
	case skinny:
		return l.bytes+timeline+key <= c.empty
	default:
		return l.bytes+timeline+key <= c.features
	}
}

// maxForBlock is how many times its size is given up for a block at most. Where
// what is free lies in small pieces more might not help, and what a reader may
// have found is there for the next block only.
const maxForBlock = 4

// alloc returns memory for a block. Where no more may be mapped, it evicts
// timelines; it returns nil where that does not help.
func (c *Cache) alloc(n int) []byte {
	b := c.arena.Alloc(n)
	for least := c.arena.Live() - maxForBlock*n; b == nil && c.arena.Live() > least; {
		if c.arena.Stats().Retired > c.mapped/8 || !c.evictOldest(fat) {
			return nil
		}
		b = c.arena.Alloc(n)
	}
	return b
}
