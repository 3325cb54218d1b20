package cache

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
)

func timeline(t testing.TB, rows int) *Timeline {
	t.Helper()
	l, err := column.NewLayout([]column.Field{{Name: "at", Kind: column.Int}})
	if err != nil {
		t.Fatal(err)
	}
	a := column.New(l, rows, 0).Append()
	for i := range rows {
		r := a.Begin()
		r.SetInt(0, int64(i))
		if err := a.End(r); err != nil {
			t.Fatal(err)
		}
	}
	return NewTimeline(millrace.MinTime, a.Slab())
}

func key(i int) millrace.Timeline {
	return millrace.Timeline{Entity: millrace.Entity(fmt.Sprint("member:", i)), Type: "post"}
}

// get looks one key up, and says whether Peek agrees.
func get(t testing.TB, c *Cache, k millrace.Timeline) *Timeline {
	t.Helper()
	tl := c.Lookup(nil, []millrace.Entity{k.Entity}, []millrace.ContentType{k.Type})[0]
	if peeked := c.Peek(k); peeked != tl {
		t.Errorf("%s: Lookup says %v, Peek %v", k, tl, peeked)
	}
	return tl
}

func TestFatIsBoundedByRecordsAndSkinnyByKeys(t *testing.T) {
	c := New(Config{FatRecords: 640, SkinnyKeys: 256, FeatureRows: 100})
	full := timeline(t, 3)
	for i := range 10_000 {
		c.Put(key(i), full)
		c.Put(millrace.Timeline{Entity: key(i).Entity, Type: "like"}, Empty)
		c.Put(millrace.Timeline{Entity: key(i).Entity, Type: Features}, Empty)
	}
	s := c.Stats()
	if s.Records > 640 || s.Records < 630 || s.Records != 3*s.Timelines || s.Bytes != s.Timelines*full.bytes {
		t.Errorf("fat cache: %+v", s)
	}
	if s.EmptyKeys != 256 || s.FeatureRows != 100 {
		t.Errorf("skinny cache and features: %+v", s)
	}
	if got := uint64(10_000 - s.Timelines); s.FatEvictions != got {
		t.Errorf("%d fat evictions, want %d", s.FatEvictions, got)
	}
}

func TestATimelineIsNeverFatAndSkinny(t *testing.T) {
	c := New(Config{})
	full := timeline(t, 2)
	if get(t, c, key(1)) != nil {
		t.Fatal("an empty cache knows something")
	}
	for _, tl := range []*Timeline{Empty, full, timeline(t, 4), Empty, Empty} {
		c.Put(key(1), tl)
		if got := get(t, c, key(1)); got != tl {
			t.Fatalf("put %v, got %v", tl, got)
		}
	}
	if s := c.Stats(); s.Records != 0 || s.Timelines != 0 || s.EmptyKeys != 1 || s.Bytes != 0 || s.FatHits != 2 || s.SkinnyHits != 3 || s.Misses != 1 {
		t.Fatalf("after emptying: %+v", s)
	}
	c.Remove(key(1))
	if get(t, c, key(1)) != nil || c.Stats().Removals != 1 {
		t.Fatal("a removed timeline is still known")
	}
	c.Put(key(1), full)
	c.Purge()
	if s := c.Stats(); get(t, c, key(1)) != nil || s.Records != 0 || s.Bytes != 0 || s.Timelines != 0 || s.Purges != 1 {
		t.Fatalf("after a purge: %+v", s)
	}
}

func TestATouchKeepsATimeline(t *testing.T) {
	c := New(Config{FatRecords: 4})
	one := timeline(t, 1)
	c.Put(key(0), one)
	for i := 1; i < 50; i++ {
		c.Put(key(i), one)
		if get(t, c, key(0)) == nil {
			t.Fatalf("the timeline read between all writes was evicted after %d others", i)
		}
	}
	if c.Peek(key(1)) != nil {
		t.Error("a timeline never read outlived 48 others in a cache of 4")
	}
}

// Where everything is touched, room is found all the same.
func TestEverythingTouchedIsEvicted(t *testing.T) {
	c := New(Config{FatRecords: 200})
	one := timeline(t, 1)
	for i := range 1000 {
		c.Put(key(i), one)
		for j := max(0, i-200); j <= i; j++ {
			c.Lookup(nil, []millrace.Entity{key(j).Entity}, []millrace.ContentType{"post"})
		}
		if s := c.Stats(); s.Records > 200 {
			t.Fatalf("%+v", s)
		}
	}
}

func TestOneHitWondersStayOutside(t *testing.T) {
	c := New(Config{FatRecords: 100})
	one := timeline(t, 1)
	for i := range 100 {
		c.Fill(key(i), one)
	}
	if s := c.Stats(); s.Records != 100 {
		t.Fatalf("where there is room, not all is let in: %+v", s)
	}
	for i := range 100 {
		c.Fill(key(1000+i), one)
	}
	if s := c.Stats(); s.NotAdmitted < 98 || s.FatEvictions > 2 {
		t.Errorf("one-hit wonders: %+v", s)
	}
	for i := range 100 {
		c.Fill(key(1000+i), one)
	}
	if s := c.Stats(); s.FatEvictions < 98 {
		t.Errorf("asked for twice: %+v", s)
	}
}

// TestCacheEqualsAMap makes random changes while readers look up: a reader
// sees, of every key, nothing or a value that was current since it began.
func TestCacheEqualsAMap(t *testing.T) {
	const keys, perKey = 3000, 12
	c := New(Config{})
	values := make([][]*Timeline, keys)
	for i := range values {
		for j := range perKey {
			values[i] = append(values[i], NewTimeline(millrace.Time(i*perKey+j)))
		}
	}
	entities := make([]millrace.Entity, keys)
	for i := range entities {
		entities[i] = key(i).Entity
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			newest := make([]millrace.Time, keys)
			var found []*Timeline
			for {
				found = c.Lookup(found[:0], entities, []millrace.ContentType{"post"})
				for i, tl := range found {
					if tl == nil {
						continue
					}
					if tl.From/perKey != millrace.Time(i) || tl.From < newest[i] {
						t.Errorf("key %d: value %d after %d", i, tl.From, newest[i])
						return
					}
					newest[i] = tl.From
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	r := rand.New(rand.NewPCG(1, 2))
	model, at := map[int]*Timeline{}, make([]int, keys)
	for range 40_000 {
		i := r.IntN(keys)
		if r.IntN(3) == 0 || at[i] == perKey {
			c.Remove(key(i))
			delete(model, i)
		} else {
			model[i] = values[i][at[i]]
			c.Put(key(i), model[i])
			at[i]++
		}
	}
	close(done)
	wg.Wait()
	for i, tl := range c.Lookup(nil, entities, []millrace.ContentType{"post"}) {
		if tl != model[i] {
			t.Errorf("key %d: %v, want %v", i, tl, model[i])
		}
	}
	if s := c.Stats(); s.EmptyKeys != len(model) || c.index.live != len(model) {
		t.Errorf("%+v, %d live, want %d", s, c.index.live, len(model))
	}
}
