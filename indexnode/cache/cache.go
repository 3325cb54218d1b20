// Package cache keeps timelines decoded in memory, as FollowFeed did: a fat
// cache of timelines with records, and a skinny cache of timelines known to be
// empty. Most (entity, type) pairs of a query are empty; remembering that costs
// a key. The features of entities are kept beside them, as the timelines of no
// type. All together are bounded by the bytes they take, whatever the records
// are: see bounds.
//
//	Lookup ──► slot of a flat table ──► Timeline, immutable ──► packed rows
//	 no lock    hash of the key          swapped whole by writers
//	            touched ──► replayed when room is needed
//
// All of it is memory without pointers in an arena, which the collector does
// not see. What is replaced or evicted is used again when the readers who may
// have found it have left (package arena).
//
// A look-up takes no lock. It finds a key's slot in one flat table, a cache
// line for four keys, loads the timeline that stands there now, and marks the slot as
// touched, which writes only once between evictions. Writers take turns under
// a mutex. Who needs room asks golang-lru's list for the least recent key; if
// it was touched since, the touch is replayed and the next is asked.
//
// The order of eviction knows the names of keys as well, so that a node can tell
// another what its questions find (Hot), which that one brings into its own
// cache (Warming) before questions come.
//
// What a query read is let in when there is room, or when it was asked for
// not long before: one-hit wonders do not push out what is wanted again. What
// ingest writes through was in the cache already, and stays.
//
// The cache knows nothing of the store. Its user keeps it equal to the store:
// while a partition is written no timeline of it is filled, and a write either
// continues a cached timeline or removes it (see package indexnode).
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
	FatHits, SkinnyHits, Misses   uint64
	FatEvictions, SkinnyEvictions uint64 // for room
	NotAdmitted                   uint64 // read once, and there was no room, or no block of memory for it
	Removals                      uint64 // by a write that could not continue the timeline
	Purges                        uint64
	Warmed                        uint64 // brought in because it is hot elsewhere
	Timelines, Records, EmptyKeys int
	Bytes                         int // of the blocks of all timelines
	FeatureRows                   int
	FeatureHits, FeatureMisses    uint64
	FeatureEvictions              uint64      // for room
	Arena                         arena.Stats // of blocks, of what is folded, and of the index
	Bound                         int         // Config.Memory
	Taken                         int         // of it: Arena.Mapped, and of the Go heap what keys take
}

// Cache is the fat and the skinny cache of one node, and its entities'
// features. It is safe for concurrent use.
type Cache struct {
	seeds seeds
	arena *arena.Arena
	index index // written under mu
	bounds
	hits [listKinds]atomic.Uint64
	// misses are of timelines and of features.
	misses, featureMisses atomic.Uint64

	mu struct {
		sync.Mutex // held by writers
		lists      [listKinds]list
		bytes      int
		keys       int    // bytes, see keyBytes
		name       []byte // of the key at hand
		held       held

		notAdmitted, removals, purges, warmed uint64
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

// Close gives the memory back. Nobody may read any more.
func (c *Cache) Close() { c.arena.Close() }

// Reader is someone who reads timelines of the cache. What it finds stays
// until Leave.
type Reader struct {
	c  *Cache
	in arena.Reader
}

// Reader begins to read. Leave must follow, soon: what is replaced meanwhile
// takes memory until then.
func (c *Cache) Reader() Reader { return Reader{c, c.arena.Enter()} }

// Leave ends to read.
func (r Reader) Leave() { r.in.Leave() }

// Peek returns what is known of a timeline, or nil. It counts nothing and
// touches nothing.
func (r Reader) Peek(t millrace.Timeline) *Timeline { return r.c.index.get(r.c.seeds.id(t)) }

// Get is Peek for a question: what it finds is not the next to be evicted.
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
