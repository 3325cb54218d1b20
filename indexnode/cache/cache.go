// Package cache keeps timelines decoded in memory, as FollowFeed did: a fat
// cache of timelines with records, bounded by the records held, and a skinny
// cache of timelines known to be empty, bounded by their number. Most
// (entity, type) pairs of a query are empty; remembering that costs a key.
// The features of entities are kept beside them, as the timelines of no type.
//
//	Lookup ──► slot of a flat table ──► Timeline, immutable ──► slabs
//	 no lock    hash of the key          swapped whole by writers
//	            touched ──► replayed when room is needed
//
// A look-up takes no lock. It finds a key's slot in one flat table, a cache
// line a key, loads the timeline that stands there now, and marks the slot as
// touched, which writes only once between evictions. Writers take turns under
// a mutex. Who needs room asks golang-lru's list for the least recent key; if
// it was touched since, the touch is replayed and the next is asked.
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
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
)

// Timeline is an immutable snapshot of a timeline's newest records.
type Timeline struct {
	// Segments hold the records, one slab a record schema, each with times
	// ascending. Nearly always there is one. Of features there is one row.
	Segments []*column.Slab
	// From is how far back the segments are complete: every live record with
	// From <= time is in them.
	From millrace.Time

	// Folded is what a model computed of the records of the only segment;
	// nil if nothing was, or there are several segments.
	Folded atomic.Pointer[Folded]

	records int
	bytes   int
	// first and one are the memory of a single segment, beside the rest.
	first column.Slab
	one   [1]*column.Slab
}

// Folded is the part of a model's scores that depends on a record alone, kept
// so that it is not computed again for every question. It is of the first
// rows, and may have fewer than the segment.
type Folded struct {
	Model  *relevance.Model
	Own    []float64     // of each row
	Others atomic.Uint32 // questions with another model since one with this
}

// Empty is a timeline without records, and an entity without features.
var Empty = NewTimeline(millrace.MinTime)

// Features is in the place of a content type for an entity's features. No
// content type is empty.
const Features millrace.ContentType = ""

// NewTimeline returns the timeline of slabs that are complete back to from.
func NewTimeline(from millrace.Time, slabs ...*column.Slab) *Timeline {
	t := &Timeline{From: from, Segments: slabs}
	for _, s := range slabs {
		t.records += s.Len()
		t.bytes += s.Bytes()
	}
	if len(slabs) == 1 {
		t.first = *slabs[0]
		t.one[0] = &t.first
		t.Segments = t.one[:]
	}
	return t
}

// Continue returns the timeline with more rows: slabs are those of t, of which
// one was appended to.
func (t *Timeline) Continue(slabs ...*column.Slab) *Timeline {
	next := NewTimeline(t.From, slabs...)
	if len(slabs) == 1 && t.records > 0 {
		next.Folded.Store(t.Folded.Load())
	}
	return next
}

// Len returns the number of records.
func (t *Timeline) Len() int { return t.records }

// Config bounds a cache. The zero values mean the defaults.
type Config struct {
	FatRecords  int // records held by the fat cache; default 2,000,000
	SkinnyKeys  int // timelines known to be empty; default 4,000,000
	FeatureRows int // entities whose features are held; default 500,000
}

// Stats counts what the cache did and holds.
type Stats struct {
	FatHits, SkinnyHits, Misses   uint64
	FatEvictions, SkinnyEvictions uint64 // for room
	NotAdmitted                   uint64 // read once, and there was no room
	Removals                      uint64 // by a write that could not continue the timeline
	Purges                        uint64
	Timelines, Records, EmptyKeys int
	Bytes                         int // of the slabs of Records
	FeatureRows                   int
	FeatureHits, FeatureMisses    uint64
}

// Cache is the fat and the skinny cache of one node, and its entities'
// features. It is safe for concurrent use.
type Cache struct {
	seeds seeds
	index index // written under mu
	hits  [listKinds]atomic.Uint64
	// misses are of timelines and of features.
	misses, featureMisses atomic.Uint64

	mu struct {
		sync.Mutex // held by writers
		lists      [listKinds]list
		bytes      int

		notAdmitted, removals, purges uint64
	}
}

// New returns an empty cache.
func New(c Config) *Cache {
	ca := &Cache{seeds: newSeeds()}
	ca.index.reset()
	for kind, limit := range [listKinds]struct{ want, otherwise int }{
		fat: {c.FatRecords, 2_000_000}, skinny: {c.SkinnyKeys, 4_000_000}, features: {c.FeatureRows, 500_000},
	} {
		if limit.want <= 0 {
			limit.want = limit.otherwise
		}
		ca.mu.lists[kind] = newList(limit.want)
	}
	return ca
}

// stage is how many look-ups go side by side, so that their memory accesses
// overlap.
const stage = 64

// Lookup appends to dst what is known of each type of each entity, entity by
// entity: nil where nothing is. It sees what was put and removed before.
func (c *Cache) Lookup(dst []*Timeline, entities []millrace.Entity, types []millrace.ContentType) []*Timeline {
	var (
		few   [16]id
		parts = few[:0]
		ids   [stage]id
		n     int
		t     = c.index.table.Load()
	)
	for _, typ := range types {
		parts = append(parts, c.seeds.part(string(typ)))
	}
	start := len(dst)
	for _, e := range entities {
		part := c.seeds.part(string(e))
		for _, typ := range parts {
			ids[n] = join(part, typ)
			if n++; n == stage {
				dst = t.lookup(dst, &ids, n)
				n = 0
			}
		}
	}
	dst = t.lookup(dst, &ids, n)
	c.count(dst[start:], types)
	return dst
}

// lookup is Lookup for a stage of keys.
func (t *table) lookup(dst []*Timeline, ids *[stage]id, n int) []*Timeline {
	var tags [stage]uint64
	for i := range n { // one access a key, and none waits for another
		tags[i] = t.at(ids[i], 0).tag.Load()
	}
	for i := range n {
		s := t.at(ids[i], 0)
		if tags[i] != ids[i].tag || s.check.Load() != ids[i].check {
			if tags[i] == 0 {
				dst = append(dst, nil)
				continue
			}
			if s = t.find(ids[i]); s == nil {
				dst = append(dst, nil)
				continue
			}
		}
		if !s.touched.Load() {
			s.touched.Store(true)
		}
		dst = append(dst, s.value.Load())
	}
	return dst
}

// count counts the look-ups of a batch.
func (c *Cache) count(found []*Timeline, types []millrace.ContentType) {
	var hits [listKinds]uint64
	var misses, featureMisses uint64
	for i := range types {
		for at := i; at < len(found); at += len(types) {
			switch tl := found[at]; {
			case types[i] == Features && tl == nil:
				featureMisses++
			case types[i] == Features:
				hits[features]++
			case tl == nil:
				misses++
			case tl == Empty:
				hits[skinny]++
			default:
				hits[fat]++
			}
		}
	}
	for kind, n := range hits {
		c.hits[kind].Add(n)
	}
	c.misses.Add(misses)
	c.featureMisses.Add(featureMisses)
}

// Peek returns what is known of a timeline, or nil. It counts nothing and
// touches nothing.
func (c *Cache) Peek(t millrace.Timeline) *Timeline { return c.index.get(c.seeds.id(t)) }

// Stats returns what the cache did and holds.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := &c.mu.lists
	return Stats{
		FatHits: c.hits[fat].Load(), SkinnyHits: c.hits[skinny].Load(), Misses: c.misses.Load(),
		FatEvictions: l[fat].evictions, SkinnyEvictions: l[skinny].evictions,
		NotAdmitted: c.mu.notAdmitted, Removals: c.mu.removals, Purges: c.mu.purges,
		Timelines: l[fat].order.Len(), Records: l[fat].weight, EmptyKeys: l[skinny].weight, Bytes: c.mu.bytes,
		FeatureRows: l[features].weight, FeatureHits: c.hits[features].Load(), FeatureMisses: c.featureMisses.Load(),
	}
}
