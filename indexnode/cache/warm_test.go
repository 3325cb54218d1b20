package cache

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/millrace/millrace"
)

// hot returns what a cache tells of entities, in order.
func hot(c *Cache, wanted func(entity []byte) bool) (keys []millrace.Timeline, empty int) {
	for h := range c.Hot(wanted) {
		if len(h.Keys) == 0 {
			panic("what is hot is nothing")
		}
		if keys = append(keys, h.Keys...); h.Empty {
			empty += len(h.Keys)
		}
	}
	return keys, empty
}

func everybody([]byte) bool { return true }

// What was looked up comes first, with records before what is empty; what was
// evicted or removed, and whose name is long, is not told; of each key it is
// told once.
func TestHot(t *testing.T) {
	one := timeline(t, 1)
	c := withRoom(t, 3000, one)
	defer c.Close()
	for i := range 4000 { // more than fit, and more than a cohort has
		c.Put(key(i), one)
	}
	c.Remove(key(3999))
	c.Put(millrace.Timeline{Entity: millrace.Entity(strings.Repeat("x", maxNameBytes)), Type: "post"}, Empty)
	c.Put(millrace.Timeline{Entity: "member:empty", Type: "share"}, Empty)
	c.Put(millrace.Timeline{Entity: "member:empty", Type: Objects}, Empty)
	get(t, c, millrace.Timeline{Entity: "member:empty", Type: "share"})
	get(t, c, key(1500))
	get(t, c, key(2500))
	keys, empty := hot(c, everybody)
	first := []millrace.Timeline{key(2500), key(1500), {Entity: "member:empty", Type: "share"}, key(3998), key(3997)}
	if !slices.Equal(keys[:5], first) {
		t.Errorf("the hottest are %v, want %v", keys[:5], first)
	}
	if s := c.Stats(); len(keys) != s.Timelines+1+1 || empty != 1 {
		t.Errorf("%d keys, %d of them empty, of %d timelines, one that is empty, and the features of one entity", len(keys), empty, s.Timelines)
	}
	told := map[millrace.Timeline]bool{}
	for _, k := range keys {
		if told[k] || get(t, c, k) == nil {
			t.Errorf("%v is told twice, or is not there", k)
		}
		told[k] = true
	}
	for range c.Hot(everybody) {
		break // there are no more then
	}
	before := c.Stats()
	if w := c.Warm(); !w.Put(key(2000), Empty) || get(t, c, key(2000)) == Empty || c.Stats().Warmed != before.Warmed {
		t.Error("what is cached is warmed")
	}
	some, _ := hot(c, func(e []byte) bool { return string(e) == string(key(2000).Entity) })
	if !slices.Equal(some, []millrace.Timeline{key(2000)}) {
		t.Errorf("of one entity it tells %v", some)
	}
}

// What is hot is told while others write, and what is told has a name that
// was put.
func TestHotWhileWritten(t *testing.T) {
	one := timeline(t, 1)
	c := withRoom(t, 2000, one)
	defer c.Close()
	var writers sync.WaitGroup
	for w := range 2 {
		writers.Go(func() {
			for i := range 6000 {
				tl := one
				if i%3 == 0 {
					tl = Empty
				}
				c.Put(key(i%5000+w), tl)
				if i%7 == 0 {
					c.Remove(key(i % 5000))
				}
			}
		})
	}
	known := map[millrace.Timeline]bool{}
	for i := range 5002 {
		known[key(i)] = true
	}
	for range 5 {
		keys, _ := hot(c, everybody)
		for _, k := range keys {
			if !known[k] {
				t.Fatalf("%v was never put", k)
			}
		}
	}
	writers.Wait()
}

// A warming takes free room and, where there is none, the place of what nobody
// looked up, a quarter of the cache at most: never of what questions use.
func TestWarmingTakesNothingThatIsUsed(t *testing.T) {
	const size = 4000
	one := timeline(t, 1)
	fill := func(used int) *Cache {
		c := withRoom(t, size, one)
		for i := range size {
			c.Put(key(i), one)
		}
		for i := range used {
			get(t, c, key(i*size/used))
		}
		return c
	}
	for _, test := range []struct{ used, want int }{{1, size / 4}, {size / 2, size / 4}, {size, 0}} {
		c := fill(test.used)
		w, warmed := c.Warm(), 0
		for i := range size {
			if w.Put(millrace.Timeline{Entity: millrace.Entity(fmt.Sprint("peer:", i)), Type: "post"}, one) {
				warmed++
			}
		}
		if warmed != test.want || c.Stats().Warmed != uint64(warmed) || c.Stats().Records != size {
			t.Errorf("%d used: %d were warmed, and %d are there; want %d", test.used, warmed, c.Stats().Records, test.want)
		}
		if !w.Full("post", false) || w.Full("post", true) {
			t.Errorf("%d used: it is not full, or has no room for what is empty", test.used)
		}
		for i := range test.used {
			if k := key(i * size / test.used); get(t, c, k) == nil {
				t.Fatalf("%d used: %v was used and is gone", test.used, k)
			}
		}
		c.Close()
	}
	// Just a quarter is evicted, and a list is full once just so many keys in a row found no room.
	peer := millrace.Timeline{Entity: "peer:1", Type: "post"}
	for beyond, want := range []bool{true, false} {
		c := fill(1)
		w := c.Warm()
		room, name := one.bytes(), keyBytes(nameBytes(peer))
		w.evicted[fat] = c.mu.lists[fat].bytes/warmShare - room - name + beyond
		if got := w.makeRoom(fat, room, name); got != want {
			t.Errorf("%d bytes beyond a quarter: %t", beyond, got)
		}
		c.Close()
	}
	for _, typ := range []millrace.ContentType{"post", Features} {
		c := withRoom(t, 8, one)
		w, n := c.Warm(), 0 // how many keys in a row found no room
		for i := range 2 * maxDeclined {
			if n++; w.Put(millrace.Timeline{Entity: key(i).Entity, Type: typ}, one) {
				n = 0
			}
			if full := w.Full(typ, false); full != (n >= maxDeclined) || w.Full("post", typ == "post") || w.Full(Features, false) && typ != Features {
				t.Fatalf("%q: %d keys in a row found no room, and it is full: %t", typ, n, full)
			}
		}
		if n < maxDeclined {
			t.Errorf("%q: the last %d keys found no room: the test shows nothing", typ, n)
		}
		c.Close()
	}
	c := withRoom(t, size, one)
	defer c.Close()
	w := c.Warm()
	for i := range size {
		if !w.Put(key(i), one) {
			t.Fatalf("there is room for %d, and not for the %dth", size, i)
		}
	}
}
