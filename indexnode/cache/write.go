package cache

import (
	"github.com/millrace/millrace"
)

// Put caches a timeline, whether there is room or not: write-through.
func (c *Cache) Put(t millrace.Timeline, tl *Timeline) { c.put(t, tl, true) }

// Fill caches what a query read, [Empty] if there is nothing. Where there is
// no room for it, it must have been asked for not long before.
func (c *Cache) Fill(t millrace.Timeline, tl *Timeline) { c.put(t, tl, false) }

func (c *Cache) put(t millrace.Timeline, tl *Timeline, force bool) {
	k, kind := c.seeds.id(t), kindOf(t, tl)
	c.mu.Lock()
	defer c.mu.Unlock()
	l := &c.mu.lists[kind]
	old := c.index.get(k)
	switch {
	case old != nil && kindOf(t, old) == kind:
		l.weight += weightOf(kind, tl) - weightOf(kind, old)
		c.mu.bytes += tl.bytes - old.bytes
	case old != nil:
		c.leave(kindOf(t, old), k, old)
		c.enter(kind, k, tl)
	case !force && l.weight+weightOf(kind, tl) > l.limit && !l.door.seen(k, l.order.Len()):
		c.mu.notAdmitted++
		return
	default:
		c.enter(kind, k, tl)
	}
	c.index.set(k, tl)
	c.evict(kind)
}

// enter and leave keep the lists equal to the index.
func (c *Cache) enter(kind listKind, k id, tl *Timeline) {
	l := &c.mu.lists[kind]
	l.order.Add(k, struct{}{})
	l.weight += weightOf(kind, tl)
	c.mu.bytes += tl.bytes
}

func (c *Cache) leave(kind listKind, k id, tl *Timeline) {
	l := &c.mu.lists[kind]
	l.order.Remove(k)
	l.weight -= weightOf(kind, tl)
	c.mu.bytes -= tl.bytes
}

// maxReplays bounds how many touches one eviction replays, lest it walk the
// whole list when everything was touched.
const maxReplays = 32

// evict makes a list fit its limit again.
func (c *Cache) evict(kind listKind) {
	l := &c.mu.lists[kind]
	for replays := 0; l.weight > l.limit && l.order.Len() > 1; {
		k, _, _ := l.order.GetOldest()
		s := c.index.table.Load().find(k)
		if replays < maxReplays && s.touched.Load() {
			s.touched.Store(false)
			l.order.Get(k)
			replays++
			continue
		}
		replays = 0
		l.evictions++
		c.forget(kind, k)
	}
}

// forget takes a key out that has a value.
func (c *Cache) forget(kind listKind, k id) {
	c.leave(kind, k, c.index.get(k))
	c.index.set(k, nil)
}

// Remove forgets what is known of a timeline.
func (c *Cache) Remove(t millrace.Timeline) {
	k := c.seeds.id(t)
	c.mu.Lock()
	defer c.mu.Unlock()
	if tl := c.index.get(k); tl != nil {
		c.forget(kindOf(t, tl), k)
		c.mu.removals++
	}
}

// Purge forgets everything, as when a new schema version changes the layouts.
func (c *Cache) Purge() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.index.reset()
	for i := range c.mu.lists {
		c.mu.lists[i].order.Purge()
		c.mu.lists[i].weight = 0
	}
	c.mu.bytes = 0
	c.mu.purges++
}
