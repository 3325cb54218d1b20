// Package cache keeps timelines decoded in memory, as FollowFeed did: a fat
// cache of timelines with records, bounded by the records held, and a skinny
// cache of timelines known to be empty, bounded by their number. Most
// (entity, type) pairs of a query are empty; remembering that costs a key.
//
// The cache knows nothing of the store. Its user keeps it equal to the store:
// while a partition is written no timeline of it is filled, and a write either
// continues a cached timeline or removes it (see package indexnode).
package cache

import (
	"hash/maphash"
	"math"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
)

// Timeline is an immutable snapshot of a timeline's newest records.
type Timeline struct {
	// Segments hold the records, one slab a record schema, each with times
	// ascending. Nearly always there is one.
	Segments []*column.Slab
	// From is how far back the segments are complete: every live record with
	// From <= time is in them.
	From millrace.Time
}

// Len returns the number of records.
func (t *Timeline) Len() int {
	n := 0
	for _, s := range t.Segments {
		n += s.Len()
	}
	return n
}

// Config bounds a cache. The zero values mean the defaults.
type Config struct {
	FatRecords  int // records held by the fat cache; default 2,000,000
	SkinnyKeys  int // timelines known to be empty; default 4,000,000
	FeatureRows int // entities whose features are held; default 500,000
}

const shards = 64

// Cache is the fat and the skinny cache of one node, and its entities'
// features. It is safe for concurrent use.
type Cache struct {
	seed   maphash.Seed
	shards [shards]shard
}

type shard struct {
	mu       sync.Mutex
	limit    Config // of this shard
	fat      *simplelru.LRU[millrace.Timeline, *Timeline]
	records  int
	skinny   *simplelru.LRU[millrace.Timeline, struct{}]
	features *simplelru.LRU[millrace.Entity, *column.Slab]
	stats    Stats
}

// Stats counts what the cache did and holds.
type Stats struct {
	FatHits, SkinnyHits, Misses   uint64
	FatEvictions, SkinnyEvictions uint64 // for room
	Removals                      uint64 // by a write that could not continue the timeline
	Timelines, Records, EmptyKeys int
	FeatureRows                   int
	FeatureHits, FeatureMisses    uint64
}

// New returns an empty cache.
func New(c Config) *Cache {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
		*v = max(1, *v/shards)
	}
	def(&c.FatRecords, 2_000_000)
	def(&c.SkinnyKeys, 4_000_000)
	def(&c.FeatureRows, 500_000)
	ca := &Cache{seed: maphash.MakeSeed()}
	for i := range ca.shards {
		s := &ca.shards[i]
		s.limit = c
		s.fat = newLRU[millrace.Timeline, *Timeline]()
		s.skinny = newLRU[millrace.Timeline, struct{}]()
		s.features = newLRU[millrace.Entity, *column.Slab]()
	}
	return ca
}

// newLRU returns a list without a bound of its own: the shard evicts, since
// only it knows the weights.
func newLRU[K comparable, V any]() *simplelru.LRU[K, V] {
	l, err := simplelru.NewLRU[K, V](math.MaxInt, nil)
	if err != nil {
		panic(err) // only for a size that is not positive
	}
	return l
}

func (c *Cache) shard(e millrace.Entity) *shard {
	return &c.shards[maphash.String(c.seed, string(e))%shards]
}

// Get returns a cached timeline. known tells whether the cache has an answer;
// a nil timeline that is known is empty.
func (c *Cache) Get(t millrace.Timeline) (tl *Timeline, known bool) {
	s := c.shard(t.Entity)
	s.mu.Lock()
	defer s.mu.Unlock()
	if tl, ok := s.fat.Get(t); ok {
		s.stats.FatHits++
		return tl, true
	}
	if _, ok := s.skinny.Get(t); ok {
		s.stats.SkinnyHits++
		return nil, true
	}
	s.stats.Misses++
	return nil, false
}

// Peek is Get for a writer: it counts nothing and touches nothing.
func (c *Cache) Peek(t millrace.Timeline) (tl *Timeline, known bool) {
	s := c.shard(t.Entity)
	s.mu.Lock()
	defer s.mu.Unlock()
	if tl, ok := s.fat.Peek(t); ok {
		return tl, true
	}
	return nil, s.skinny.Contains(t)
}

// Put caches a timeline, or that it is empty when tl has no records, and
// evicts the least recently used beyond the bounds.
func (c *Cache) Put(t millrace.Timeline, tl *Timeline) {
	s := c.shard(t.Entity)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(t)
	if tl == nil || tl.Len() == 0 {
		s.skinny.Add(t, struct{}{})
		for s.skinny.Len() > s.limit.SkinnyKeys {
			s.skinny.RemoveOldest()
			s.stats.SkinnyEvictions++
		}
		return
	}
	s.fat.Add(t, tl)
	s.records += tl.Len()
	for s.records > s.limit.FatRecords && s.fat.Len() > 1 {
		if _, old, ok := s.fat.RemoveOldest(); ok {
			s.records -= old.Len()
			s.stats.FatEvictions++
		}
	}
}

// Remove forgets what is known of a timeline.
func (c *Cache) Remove(t millrace.Timeline) {
	s := c.shard(t.Entity)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drop(t) {
		s.stats.Removals++
	}
}

func (s *shard) drop(t millrace.Timeline) bool {
	if old, ok := s.fat.Peek(t); ok {
		s.records -= old.Len()
		return s.fat.Remove(t)
	}
	return s.skinny.Remove(t)
}

// Features returns an entity's cached features, one row, nil when the entity
// is known to have none.
func (c *Cache) Features(e millrace.Entity) (row *column.Slab, known bool) {
	s := c.shard(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	row, known = s.features.Get(e)
	if known {
		s.stats.FeatureHits++
	} else {
		s.stats.FeatureMisses++
	}
	return row, known
}

// PutFeatures caches an entity's features, nil for none.
func (c *Cache) PutFeatures(e millrace.Entity, row *column.Slab) {
	s := c.shard(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.features.Add(e, row)
	for s.features.Len() > s.limit.FeatureRows {
		s.features.RemoveOldest()
	}
}

// RemoveFeatures forgets an entity's features.
func (c *Cache) RemoveFeatures(e millrace.Entity) {
	s := c.shard(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.features.Remove(e)
}

// Purge forgets everything, as when a new schema version changes the layouts.
func (c *Cache) Purge() {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		s.fat.Purge()
		s.skinny.Purge()
		s.features.Purge()
		s.records = 0
		s.mu.Unlock()
	}
}

// Stats sums the shards.
func (c *Cache) Stats() Stats {
	var sum Stats
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		sum.FatHits += s.stats.FatHits
		sum.SkinnyHits += s.stats.SkinnyHits
		sum.Misses += s.stats.Misses
		sum.FatEvictions += s.stats.FatEvictions
		sum.SkinnyEvictions += s.stats.SkinnyEvictions
		sum.Removals += s.stats.Removals
		sum.FeatureHits += s.stats.FeatureHits
		sum.FeatureMisses += s.stats.FeatureMisses
		sum.Timelines += s.fat.Len()
		sum.Records += s.records
		sum.EmptyKeys += s.skinny.Len()
		sum.FeatureRows += s.features.Len()
		s.mu.Unlock()
	}
	return sum
}
