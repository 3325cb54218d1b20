package cache

import (
	"github.com/millrace/millrace/internal/memory"
)

// LeastMemory is the least that Config.Memory should be, in bytes. The arena takes memory
// from the system in pieces of 32 MiB. Blocks have three quarters of this, three such
// pieces.
const LeastMemory = 128 << 20

// defaultShare is what the machine's memory is divided by for the default: half of it.
// The other half is for the store, the questions and the operating system.
const defaultShare = 2

// DefaultMemory returns the default of Config.Memory, in bytes: half of the memory of the
// machine, or of its control group, and at least [LeastMemory].
func DefaultMemory() int { return max(int(memory.Machine()/defaultShare), LeastMemory) }

// bounds are what parts of a cache may take, in bytes.
//
//	memory ─┬─ blocks, mapped: 3/4    7/8 of it in use (live); the rest is for free memory between
//	        │                         blocks, and for blocks that wait until readers leave
//	        └─ keys: 1/4              the index, the order of eviction, the doorkeeper
//
// Empty timelines (empty) take at most half of the keys' part, and features at most an
// eighth of memory. Timelines with records have what those leave.
type bounds struct{ memory, mapped, live, keys, empty, features int }

// boundsOf returns the bounds of a cache that may take memory bytes.
func boundsOf(memory int) bounds {
	mapped := memory / 4 * 3
	return bounds{memory, mapped, mapped / 8 * 7, memory / 4, memory / 8, memory / 8}
}

// What a key takes at most, in bytes. In the index that is 144: 96 for the six slots that a
// table has for each key when it has just grown, and half of that for the old table, while
// it stands beside the new one. In the order of eviction it is two places and, see
// keyBytes, the key's name in each. In the doorkeeper it is a few bits.
const (
	indexKeyBytes = 144
	orderKeyBytes = 32
)

// keyBytes returns how many bytes a key takes if its name has name bytes.
func keyBytes(name int) int { return indexKeyBytes + orderKeyBytes + 2*name }

// fits reports whether a list has room for one more key and its timeline without any
// eviction. timeline and key are what those two take, in bytes. The caller holds mu.
func (c *Cache) fits(kind listKind, timeline, key int) bool {
	return c.mu.keys+key <= c.keys && c.within(kind, timeline, key)
}

// within is fits for the list's own bound alone. The keys of timelines with records have
// no bound of their own: they have what the other lists leave.
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

// maxForBlock bounds the bytes that alloc evicts for a block: this many times the block's
// size. More might not help: the free memory may lie in small pieces, and readers may still
// use what was evicted, so that it is free only for a later block.
const maxForBlock = 4

// alloc returns memory for a block of n bytes. If the arena has none, it evicts timelines.
// It returns nil if that does not help. The caller holds mu.
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
