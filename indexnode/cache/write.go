package cache

import (
	"github.com/millrace/millrace"
)

// Put caches a copy of a timeline, whether there is room or not: write-through.
func (c *Cache) Put(t millrace.Timeline, tl *Timeline) { c.put(t, tl, true) }

// Fill caches a copy of what a query read, [Empty] if there is nothing. Where there is
// no room for it, it must have been asked for not long before.
func (c *Cache) Fill(t millrace.Timeline, tl *Timeline) { c.put(t, tl, false) }

func (c *Cache) put(t millrace.Timeline, tl *Timeline, force bool) {
	k, kind := c.seeds.id(t), kindOf(t, tl)
	c.mu.Lock()
	defer c.mu.Unlock()
	l := &c.mu.lists[kind]
	if c.index.get(k) == nil && !force && l.weight+weightOf(kind, tl) > l.limit && !l.door.seen(k, l.order.keys) {
		c.mu.notAdmitted++
		return
	}
	c.replace(t, k, tl)
}

// replace puts a copy of a timeline into the cache, in the place of what is
// there. The caller holds mu.
func (c *Cache) replace(key millrace.Timeline, k id, tl *Timeline) {
	t := c.index.table.Load()
	i := t.find(k)
	if (i < 0 || t.slot(i).get() == nil) && t.holder(k.tag) >= 0 {
		return // another key has the tag, by which the lists know it
	}
	if i < 0 {
		if c.index.full() {
			c.index.rebuild()
		}
		i = c.index.insert(k)
	}
	was := c.index.table.Load().slot(i).get()
	tl = c.own(tl)
	kind := kindOf(key, tl)
	switch {
	case was == nil:
		c.enter(key, kind, i, tl)
	case kindOf(key, was) == kind:
		l := &c.mu.lists[kind]
		l.weight += weightOf(kind, tl) - weightOf(kind, was)
		c.mu.bytes += tl.bytes() - was.bytes()
	default:
		c.leave(kindOf(key, was), was)
		c.enter(key, kind, i, tl)
	}
	c.index.set(i, tl)
	c.retire(was, tl)
	c.evict(kind)
}

// own returns a copy of a timeline in the arena.
func (c *Cache) own(tl *Timeline) *Timeline {
	if tl == Empty {
		return tl
	}
	b := c.arena.Alloc(int(tl.size))
	copy(b, tl.block())
	tl = timelineOf(b)
	tl.cached = true
	for i := range tl.folds {
		tl.folds[i].Store(0)
	}
	tl.owed.Store(0)
	return tl
}

// retire gives back the blocks of a timeline that is not in the index any
// more, but for those that next, if any, continues.
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

// enter and leave keep the lists equal to the index.
func (c *Cache) enter(key millrace.Timeline, kind listKind, i int, tl *Timeline) {
	l := &c.mu.lists[kind]
	c.mu.name = appendName(c.mu.name[:0], key)
	l.order.enter(entry{c.index.table.Load().slot(i).enter(), c.mu.name})
	l.weight += weightOf(kind, tl)
	c.mu.bytes += tl.bytes()
}

func (c *Cache) leave(kind listKind, tl *Timeline) {
	l := &c.mu.lists[kind]
	l.order.leave()
	l.weight -= weightOf(kind, tl)
	c.mu.bytes -= tl.bytes()
}

// maxReplays bounds how many touches one eviction replays, lest it walk the
// whole list when everything was touched.
const maxReplays = 32

// evict makes a list fit its limit again.
func (c *Cache) evict(kind listKind) {
	l := &c.mu.lists[kind]
	l.order.tidy(func(p place) bool { return c.at(kind, p) >= 0 })
	for replays := 0; l.weight > l.limit && l.order.keys > 1; {
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
		replays = 0
		l.evictions++
		c.forget(kind, i)
	}
}

// at returns the number of the slot of the key that took a place in a list, or
// -1 if the place is an old one.
func (c *Cache) at(kind listKind, p place) int {
	t := c.index.table.Load()
	if i := t.holder(p.tag); i >= 0 && t.slot(i).place() == p && isOf(kind, t.slot(i).get()) {
		return i
	}
	return -1
}

// forget takes a key out that has a value.
func (c *Cache) forget(kind listKind, i int) {
	tl := c.index.table.Load().slot(i).get()
	c.leave(kind, tl)
	c.index.set(i, nil)
	c.retire(tl, nil)
}

// Remove forgets what is known of a timeline.
func (c *Cache) Remove(t millrace.Timeline) {
	k := c.seeds.id(t)
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.index.table.Load().find(k)
	if i < 0 {
		return
	}
	if tl := c.index.table.Load().slot(i).get(); tl != nil {
		c.forget(kindOf(t, tl), i)
		c.mu.removals++
	}
}

// Purge forgets everything, as when a new schema version changes the layouts.
func (c *Cache) Purge() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for tl := range c.index.reset() {
		c.retire(tl, nil)
	}
	for i := range c.mu.lists {
		c.mu.lists[i].order = newOrder()
		c.mu.lists[i].weight = 0
	}
	c.mu.bytes = 0
	c.mu.purges++
}
