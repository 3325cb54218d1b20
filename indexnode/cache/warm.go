package cache

import (
	"iter"
	"slices"

	"github.com/millrace/millrace"
)

// Hot is keys that another node may want to have in its cache: those of one cohort of the
// order of eviction that [Cache.Hot] yields together.
type Hot struct {
	Empty bool // the timelines are known to be empty
	Keys  []millrace.Timeline
}

// maxNameBytes bounds the names of keys that are kept, in bytes, since callers may ask for
// millions of entities of 512 bytes that do not exist. A key with a longer name is cached
// like others, but [Cache.Hot] does not yield it.
const maxNameBytes = 80

// nameBytes returns the length of a key's name as it is kept, in bytes; 0 if the name is too
// long to be kept.
func nameBytes(t millrace.Timeline) int {
	if n := 1 + len(t.Type) + len(t.Entity); n <= maxNameBytes {
		return n
	}
	return 0
}

// appendName appends the name of a key: the length of its type in one byte, its type, its
// entity. It appends nothing if that is longer than [maxNameBytes].
func appendName(b []byte, t millrace.Timeline) []byte {
	if nameBytes(t) == 0 {
		return b
	}
	b = append(append(b, byte(len(t.Type))), t.Type...)
	return append(b, t.Entity...)
}

// splitName returns the type and the entity of a name, which is not empty.
func splitName(name []byte) (typ, entity []byte) {
	n := int(name[0])
	return name[1 : 1+n], name[1+n:]
}

// Hot yields the keys of entities for which wanted returns true, in about the order of
// heat. First come the keys that were looked up since they came or were last considered
// for eviction, then the others. In each of these two groups, timelines with records come
// first, then features, then empty timelines; of each of those the newest come first. Keys
// that come or move meanwhile may be left out. Look-ups do not wait for Hot. Writers wait
// while it goes through one cohort, about a thousand keys.
func (c *Cache) Hot(wanted func(entity []byte) bool) iter.Seq[Hot] {
	return func(yield func(Hot) bool) {
		types := map[string]millrace.ContentType{}
		for _, mark := range []uint64{touched, 0} {
			for _, kind := range []listKind{fat, features, skinny} {
				for _, co := range c.cohorts(kind) {
					h := Hot{Empty: kind == skinny, Keys: c.hotOf(kind, co, mark, wanted, types)}
					if len(h.Keys) > 0 && !yield(h) {
						return
					}
				}
			}
		}
	}
}

// cohorts returns the cohorts of a list, the newest first.
func (c *Cache) cohorts(kind listKind) []*cohort {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.mu.lists[kind].order.cohorts.Values()
	slices.Reverse(all)
	return all
}

// hotOf returns the wanted keys of a cohort, the newest first. mark says which: touched
// stands for those that were looked up since they came or were last considered for eviction,
// and 0 for the others. types has each type once, so that the keys share its memory.
func (c *Cache) hotOf(kind listKind, co *cohort, mark uint64, wanted func([]byte) bool, types map[string]millrace.ContentType) (keys []millrace.Timeline) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := co.end - 1; i >= co.gone; i-- {
		e := co.entry(i)
		if len(e.name) == 0 {
			continue
		}
		typ, entity := splitName(e.name)
		if !wanted(entity) {
			continue
		}
		at := c.at(kind, e.place)
		if at < 0 || c.index.table.Load().slot(at).value.Load()&touched != mark {
			continue
		}
		t, known := types[string(typ)]
		if !known {
			t = millrace.ContentType(typ)
			types[string(t)] = t
		}
		keys = append(keys, millrace.Timeline{Entity: millrace.Entity(entity), Type: t})
	}
	return keys
}

// Warming brings in what is hot on another node. It uses free room. In a full list it
// evicts at most a quarter, and only keys that were not looked up since they were last
// considered for eviction: never what questions use.
type Warming struct {
	c        *Cache
	evicted  [listKinds]int // bytes that the warming evicted
	most     [listKinds]int // the most bytes that each list had at once
	declined [listKinds]int // how many keys in a row found no room
}

const (
	warmShare = 4 // a warming evicts at most a quarter of a list
	// maxDeclined is after how many keys in a row without room a list counts as full. One
	// key may find no room because its timeline is large, or because a few touched keys are
	// the oldest.
	maxDeclined = 256
)

// Warm begins a warming.
func (c *Cache) Warm() *Warming { return &Warming{c: c} }

// Full reports whether there is no room for more keys of a type. empty says whether their
// timelines are empty.
func (w *Warming) Full(t millrace.ContentType, empty bool) bool {
	kind := fat
	switch {
	case isFeatures(t):
		kind = features
	case empty:
		kind = skinny
	}
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	return w.declined[kind] >= maxDeclined
}

// Put caches a copy of a timeline unless its key is cached or there is no room. It reports
// whether the key is cached now.
func (w *Warming) Put(t millrace.Timeline, tl *Timeline) bool {
	c := w.c
	k, kind := c.seeds.id(t), kindOf(t, tl)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.index.get(k) != nil {
		return true
	}
	if !w.makeRoom(kind, tl.bytes(), keyBytes(nameBytes(t))) {
		w.declined[kind]++
		return false
	}
	w.declined[kind] = 0
	if !c.replace(t, k, tl) {
		return false
	}
	c.mu.warmed++
	return true
}

// makeRoom evicts keys that were not looked up until a list has room for a timeline and its
// key, which take timeline and key bytes. It reports false if there is no such room. The
// caller holds mu.
func (w *Warming) makeRoom(kind listKind, timeline, key int) bool {
	c, l := w.c, &w.c.mu.lists[kind]
	most := max(w.most[kind], l.bytes) // a quarter of this may be evicted
	w.most[kind] = most
	for looked := 0; !c.fits(kind, timeline, key); {
		if looked == maxReplays || l.order.keys == 0 || w.evicted[kind]+timeline+key > most/warmShare {
			return false
		}
		e := l.order.pop()
		i := c.at(kind, e.place)
		if i < 0 {
			continue
		}
		if s := c.index.table.Load().slot(i); s.value.Load()&touched != 0 {
			l.order.add(e) // it stays touched: only evictOldest clears that
			looked++
			continue
		}
		before := l.bytes
		l.evictions++
		c.forget(kind, i, e.name)
		w.evicted[kind] += before - l.bytes
	}
	return true
}
