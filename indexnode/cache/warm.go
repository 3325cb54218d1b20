package cache

import (
	"iter"
	"slices"

	"github.com/millrace/millrace"
)

// Hot is keys that stand together in the order of eviction.
type Hot struct {
	Empty bool // the timelines are known to be empty
	Keys  []millrace.Timeline
}

// maxNameBytes bounds the name of a key that is kept beside it: callers may
// ask for four million entities of 512 bytes that do not exist. Longer ones
// are cached like others, and are not told as hot.
const maxNameBytes = 80

// nameBytes returns how long the name of a key is.
func nameBytes(t millrace.Timeline) int {
	if n := 1 + len(t.Type) + len(t.Entity); n <= maxNameBytes {
		return n
	}
	return 0
}

// appendName appends the name of a key: the length of its type, its type, its
// entity; or nothing if that is too long.
func appendName(b []byte, t millrace.Timeline) []byte {
	if nameBytes(t) == 0 {
		return b
	}
	b = append(append(b, byte(len(t.Type))), t.Type...)
	return append(b, t.Entity...)
}

// splitName returns the type and the entity of a name.
func splitName(name []byte) (typ, entity []byte) {
	n := int(name[0])
	return name[1 : 1+n], name[1+n:]
}

// Hot yields the keys of wanted entities, in about the order of heat: first
// those that were looked up since they came or were last considered for
// eviction, then the others; of both first the timelines with records, then
// features, then what is empty; of each the newest first. What comes or moves
// meanwhile may be left out. Look-ups do not wait, and writers wait for a
// thousand keys at a time.
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

// hotOf returns the wanted keys of a cohort that have a mark, the newest first.
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

// Warming brings in what is hot elsewhere. It takes free room, and of a full
// list at most a quarter, of what nobody looked up since it was last
// considered for eviction: never what questions use.
type Warming struct {
	c        *Cache
	evicted  [listKinds]int // bytes
	most     [listKinds]int // bytes that there were at once
	declined [listKinds]int // in a row
}

const (
	warmShare = 4
	// maxDeclined is after how many keys in a row without room there is none.
	maxDeclined = 256
)

// Warm begins a warming.
func (c *Cache) Warm() *Warming { return &Warming{c: c} }

// Full reports whether there is no room for more keys of a type: of those that
// are empty, or of the others.
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

// Put caches a copy of a timeline unless it is there or there is no room, and
// reports whether it is there now.
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

// makeRoom evicts what is cold until a list has room for a timeline and its key.
func (w *Warming) makeRoom(kind listKind, timeline, key int) bool {
	c, l := w.c, &w.c.mu.lists[kind]
	most := max(w.most[kind], l.bytes) // of what a full list has
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
			l.order.add(e) // still touched: the next who needs room decides
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
