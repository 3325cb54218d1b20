package cache

import (
	"github.com/millrace/millrace"
)

// Fill caches a copy of a timeline that a query read, [Empty] if it has no records. If
// there is no room for it without an eviction, Fill caches it only if the doorkeeper has
// seen its key lately.
func (c *Cache) Fill(t millrace.Timeline, tl *Timeline) {
	k, kind := c.seeds.id(t), kindOf(t, tl)
	c.mu.Lock()
	defer c.mu.Unlock()
	l := &c.mu.lists[kind]
	if c.index.get(k) == nil && !c.fits(kind, tl.bytes(), keyBytes(nameBytes(t))) && !l.door.seen(k, l.order.keys) {
		c.mu.notAdmitted++
		return
	}
	c.replace(t, k, tl)
}

// replace puts a copy of a timeline into the cache, in the place of what the key has
// there, and reports whether it did. If not, the key is not cached any more. The caller
// holds mu.
func (c *Cache) replace(key millrace.Timeline, k id, tl *Timeline) bool {
	t := c.index.table.Load()
	i := t.find(k)
	if (i < 0 || t.slot(i).get() == nil) && t.holder(k.tag) >= 0 {
		return false // another key has the same tag, and the lists tell keys apart by tags
	}
	before := valueAt(t, i)
	tl = c.own(tl) // this may evict what the key has: to have memory for the copy, alloc evicts timelines
	switch {
	case tl == nil:
		c.mu.notAdmitted++
		if i >= 0 {
			c.drop(key, i)
		}
		return false
	case tl.Older() != nil && valueAt(t, i) != before:
		c.arena.Free(tl.block()) // the timeline that it continues was evicted
		return false
	}
	if i < 0 {
		if c.index.full() {
			c.index.rebuild()
		}
		i = c.index.insert(k)
	}
	was := c.index.table.Load().slot(i).get()
	kind := kindOf(key, tl)
	switch {
	case was == nil:
		c.enter(key, kind, i, tl)
	case kindOf(key, was) == kind:
		l := &c.mu.lists[kind]
		l.weight += weightOf(kind, tl) - weightOf(kind, was)
		c.mu.name = appendName(c.mu.name[:0], key)
		c.mu.held.count(kind, c.mu.name, 0, tl.Len()-was.Len())
		l.bytes += tl.bytes() - was.bytes()
		c.mu.bytes += tl.bytes() - was.bytes()
	default:
		c.mu.name = appendName(c.mu.name[:0], key)
		c.leave(kindOf(key, was), was, c.mu.name)
		c.enter(key, kind, i, tl)
	}
	c.index.set(i, tl)
	c.retire(was, tl)
	if kind != fat {
		c.evict(kind, c.within)
	}
	c.evict(fat, c.fits) // the fat list gets what the others leave
	return true
}

// valueAt returns the timeline of slot i, or nil; nil for slot -1.
func valueAt(t *table, i int) *Timeline {
	if i < 0 {
		return nil
	}
	return t.slot(i).get()
}

// own returns a copy of a timeline's block in the arena, without folded scores. It is nil
// if there is no memory for it.
func (c *Cache) own(tl *Timeline) *Timeline {
	if tl == Empty {
		return tl
	}
	b := c.alloc(int(tl.size))
	if b == nil {
		return nil
	}
	copy(b, tl.block())
	tl = timelineOf(b)
	tl.cached = true
	for i := range tl.folds {
		tl.folds[i].Store(0)
	}
	tl.owed.Store(0)
	return tl
}

// retire gives back the blocks of a timeline that has left the index, once no reader can
// use them. It keeps those that next continues, the timeline that took its place; next is
// nil if there is none.
func (c *Cache) retire(tl, next *Timeline) {
	for tl != nil && tl != Empty && (next == nil || tl != next && tl != next.Older()) {
		older := tl.Older()
		for i := range tl.folds {
			if f := fold(tl.folds[i].Swap(uint64(retired))).get(); f != nil {
				c.arena.Retire(f.block())
			}
		}
		c.arena.Retire(tl.block())
		tl = older
	}
}

// enter adds the key of slot i to a list, and counts its timeline.
func (c *Cache) enter(key millrace.Timeline, kind listKind, i int, tl *Timeline) {
	l := &c.mu.lists[kind]
	c.mu.name = appendName(c.mu.name[:0], key)
	l.order.enter(entry{c.index.table.Load().slot(i).enter(), c.mu.name})
	c.weigh(kind, 1, tl, c.mu.name)
}

// leave takes a key off a list, and its timeline off the counts.
func (c *Cache) leave(kind listKind, tl *Timeline, name []byte) {
	c.mu.lists[kind].order.leave()
	c.weigh(kind, -1, tl, name)
}

// weigh adds a timeline and its key to all counts (sign 1), or takes them off (sign -1).
func (c *Cache) weigh(kind listKind, sign int, tl *Timeline, name []byte) {
	l, bytes, key := &c.mu.lists[kind], sign*tl.bytes(), sign*keyBytes(len(name))
	l.weight += sign * weightOf(kind, tl)
	l.bytes += bytes + key
	c.mu.bytes += bytes
	c.mu.keys += key
	c.mu.held.count(kind, name, sign, sign*tl.Len())
}

// maxReplays bounds how many touched keys one eviction passes over, so that it does not
// go through the whole list when all keys were touched.
const maxReplays = 32

// evict evicts keys of a list until fits reports that the list is within its bound. One key
// stays in any case. The caller holds mu.
func (c *Cache) evict(kind listKind, fits func(kind listKind, timeline, key int) bool) {
	l := &c.mu.lists[kind]
	l.order.tidy(func(p place) bool { return c.at(kind, p) >= 0 })
	for !fits(kind, 0, 0) && l.order.keys > 1 {
		c.evictOldest(kind)
	}
}

// evictOldest evicts the key of a list that was looked up least recently, as far as the
// bits touched tell. It reports whether there was a key. The caller holds mu.
func (c *Cache) evictOldest(kind listKind) bool {
	l := &c.mu.lists[kind]
	for replays := 0; l.order.keys > 0; {
		e := l.order.pop()
		i := c.at(kind, e.place)
		if i < 0 {
			continue
		}
		s := c.index.table.Load().slot(i)
		if replays < maxReplays && s.value.Load()&touched != 0 {
			s.value.And(^uint64(touched))
			l.order.add(e)
			replays++
			continue
		}
		l.evictions++
		c.forget(kind, i, e.name)
		return true
	}
	return false
}

// at returns the number of the slot of the key that has a place in a list, or -1 if the
// place is an old one. The caller holds mu.
func (c *Cache) at(kind listKind, p place) int {
	t := c.index.table.Load()
	if i := t.holder(p.tag); i >= 0 && t.slot(i).place() == p && isOf(kind, t.slot(i).get()) {
		return i
	}
	return -1
}

// drop takes out the key of slot i, if the slot has a timeline. The caller holds mu.
func (c *Cache) drop(t millrace.Timeline, i int) {
	if tl := c.index.table.Load().slot(i).get(); tl != nil {
		c.mu.name = appendName(c.mu.name[:0], t)
		c.forget(kindOf(t, tl), i, c.mu.name)
	}
}

// forget takes out the key of slot i, which has a timeline. name is the key's, as appendName
// makes it. The caller holds mu.
func (c *Cache) forget(kind listKind, i int, name []byte) {
	tl := c.index.table.Load().slot(i).get()
	c.leave(kind, tl, name)
	c.index.set(i, nil)
	c.retire(tl, nil)
}

// Remove takes a timeline's key out of the cache, if it is there.
func (c *Cache) Remove(t millrace.Timeline) {
	k := c.seeds.id(t)
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.index.table.Load().find(k)
	if i < 0 {
		return
	}
	if c.index.table.Load().slot(i).get() != nil {
		c.drop(t, i)
		c.mu.removals++
	}
}

// Purge empties the cache, as when a new schema version changes the layouts.
func (c *Cache) Purge() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for tl := range c.index.reset() {
		c.retire(tl, nil)
	}
	for i := range c.mu.lists {
		l := &c.mu.lists[i]
		l.order, l.weight, l.bytes = newOrder(), 0, 0
	}
	c.mu.bytes, c.mu.keys = 0, 0
	c.mu.held.forget()
	c.mu.purges++
}
