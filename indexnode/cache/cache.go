// Package cache keeps timelines decoded in memory, as LinkedIn's FollowFeed does: a fat
// cache of timelines with records, and a skinny cache of timelines known to be
// empty. Most (entity, type) pairs of a query are empty; remembering that costs
// a key. The features of entities and of objects are kept beside them, as timelines of
// two types that no record has ([Features], [Objects]). The bytes of all three together
// are bounded: see bounds.
//
//	Lookup ──► slot of a flat table ──► Timeline, immutable ──► packed rows
//	 no lock    hash of the key          swapped whole by writers
//	            touched ──► replayed when room is needed
//
// Timelines and table are memory without pointers in an arena, which the garbage
// collector does not scan. The memory of what is replaced or evicted is used again once
// the readers who may have found it have left (package arena).
//
// A look-up takes no lock. It finds a key's slot in one flat table, a cache
// line for four keys, loads the timeline that is there now, and marks the slot as
// touched, which writes only if it is not marked. Writers take turns under
// a mutex. A writer that needs room takes the oldest key of the order of eviction. If the
// key was touched since, the touch is replayed: the key moves to the new end, and the
// writer tries the next one.
//
// The order of eviction has the names of keys as well. By them a node can tell another
// which keys its questions find ([Cache.Hot]), and the other brings those into its own
// cache before questions come ([Warming]).
//
// A timeline that a query read is let in when there is room, or when it was asked for
// not long before, which a filter, the doorkeeper, remembers: a key that is asked for once
// does not evict one that is asked for often. What ingest adds to a cached timeline needs no
// such test.
//
// Some terms: a key is an (entity, type) pair, and the table knows it by its id, a hash, of
// which it keeps a tag and some bits of a check. A block is the memory of one timeline. Its
// rows are in parts, nearly always one: packed rows of one layout (internal/column). A
// cohort is a thousand keys that follow each other in the order of eviction. Folded scores
// are the part of a model's scores that depends on the record alone, kept beside a
// timeline.
//
// The cache knows nothing of the store. Its user keeps it equal to the store:
// while a partition is written no timeline of it is filled, and a write either
// continues a cached timeline or removes it (see package indexnode/lookup).
package cache

import (
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/arena"
)

// Config bounds a cache.
type Config struct {
	Memory int // bytes that it takes at most; 0: DefaultMemory
}

// Stats counts what the cache did and holds.
type Stats struct {
	FatHits, SkinnyHits, Misses   uint64      // look-ups of timelines by Reader.Lookup: with records, known to be empty, not cached
	FatEvictions, SkinnyEvictions uint64      // keys that left the two caches to make room
	NotAdmitted                   uint64      // asked for once while there was no room, or no memory in the arena for its copy
	Removals                      uint64      // keys that left by Cache.Remove: a write could not continue the timeline, features changed, or the partition left
	Purges                        uint64      // calls of Cache.Purge
	Warmed                        uint64      // brought in because another node has it hot
	Timelines, Records, EmptyKeys int         // now cached: timelines with records, their records, and empty timelines
	Bytes                         int         // the memory of the arena that all timelines take, those of features included
	FeatureRows                   int         // rows of features that are cached, at least 1 for each of their timelines
	FeatureHits, FeatureMisses    uint64      // look-ups of features by Reader.Lookup
	FeatureEvictions              uint64      // keys of features that left to make room
	Arena                         arena.Stats // the memory of timelines, of the scores that are kept beside them (Timeline.Folded), and of the index
	Bound                         int         // Config.Memory, in bytes
	Taken                         int         // bytes taken: Arena.Mapped, and what keys take of the Go heap
}

// Cache is the fat and the skinny cache of one node, and its entities'
// features. It is safe for concurrent use.
type Cache struct {
	seeds seeds        // the ids of keys are hashed with them
	arena *arena.Arena // the memory of timelines, folded scores and the index
	index index        // written under mu
	bounds
	hits                  [listKinds]atomic.Uint64 // look-ups that found a timeline, by its list
	misses, featureMisses atomic.Uint64            // look-ups of timelines, and of features, that found nothing

	mu struct {
		sync.Mutex // held by writers
		lists      [listKinds]list
		bytes      int    // the bytes of the blocks of all timelines
		keys       int    // the bytes of all keys, see keyBytes
		name       []byte // scratch: the name of the key that is being written
		held       held   // what the fat list has, by partition and type

		notAdmitted, removals, purges, warmed uint64 // see Stats
	}
}

// New returns an empty cache.
func New(c Config) *Cache {
	if c.Memory <= 0 {
		c.Memory = DefaultMemory()
	}
	ca := &Cache{seeds: newSeeds(), arena: arena.New(), bounds: boundsOf(c.Memory)}
	ca.arena.Limit(max(ca.mapped, LeastMemory/4*3))
	ca.index.arena = ca.arena
	ca.index.table.Store(ca.index.newTable(minBuckets))
	for kind := range ca.mu.lists {
		ca.mu.lists[kind] = newList()
	}
	return ca
}

// Close gives the memory back to the system. Nobody may use the cache after it.
func (c *Cache) Close() { c.arena.Close() }

// Reader reads timelines of the cache. What it finds stays valid until Leave.
type Reader struct {
	c  *Cache
	in arena.Reader
}

// Reader returns a new reader. The caller must call Leave soon: what is replaced
// meanwhile takes memory until then.
func (c *Cache) Reader() Reader { return Reader{c, c.arena.Enter()} }

// Leave ends the reading. What the reader found must not be used after it.
func (r Reader) Leave() { r.in.Leave() }

// Peek returns the cached timeline, [Empty] if it is known to be empty, or nil if it is
// not cached. It counts no hit and does not mark the key as touched.
func (r Reader) Peek(t millrace.Timeline) *Timeline { return r.c.index.get(r.c.seeds.id(t)) }

// Get is Peek for a question: it marks the key as touched, so that it is not the next to
// be evicted. It counts no hit either.
func (r Reader) Get(t millrace.Timeline) *Timeline {
	table := r.c.index.table.Load()
	i := table.find(r.c.seeds.id(t))
	if i < 0 {
		return nil
	}
	return table.slot(i).touch()
}

// Stats returns what the cache did and holds.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := &c.mu.lists
	arena := c.arena.Stats()
	return Stats{
		FatHits: c.hits[fat].Load(), SkinnyHits: c.hits[skinny].Load(), Misses: c.misses.Load(),
		FatEvictions: l[fat].evictions, SkinnyEvictions: l[skinny].evictions,
		NotAdmitted: c.mu.notAdmitted, Removals: c.mu.removals, Purges: c.mu.purges,
		Warmed:    c.mu.warmed,
		Timelines: l[fat].order.keys, Records: l[fat].weight, EmptyKeys: l[skinny].weight, Bytes: c.mu.bytes,
		FeatureRows: l[features].weight, FeatureHits: c.hits[features].Load(), FeatureMisses: c.featureMisses.Load(),
		FeatureEvictions: l[features].evictions,
		Arena:            arena,
		Bound:            c.memory, Taken: arena.Mapped + c.mu.keys - indexKeyBytes*c.index.live,
	}
}
