package cache

import (
	"fmt"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
)

func timeline(t *testing.T, rows int) *Timeline {
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
	return &Timeline{Segments: []*column.Slab{a.Slab()}}
}

func key(i int) millrace.Timeline {
	return millrace.Timeline{Entity: millrace.Entity(fmt.Sprint("member:", i)), Type: "post"}
}

func TestFatIsBoundedByRecordsAndSkinnyByKeys(t *testing.T) {
	c := New(Config{FatRecords: 10 * shards, SkinnyKeys: 4 * shards})
	full := timeline(t, 3)
	for i := range 10_000 {
		c.Put(key(i), full)
		c.Put(millrace.Timeline{Entity: key(i).Entity, Type: "like"}, nil)
	}
	s := c.Stats()
	if s.Records > 10*shards || s.Records != 3*s.Timelines || s.Timelines < shards {
		t.Errorf("fat cache holds %d records in %d timelines, bound %d", s.Records, s.Timelines, 10*shards)
	}
	if s.EmptyKeys > 4*shards || s.EmptyKeys < shards {
		t.Errorf("skinny cache holds %d keys, bound %d", s.EmptyKeys, 4*shards)
	}
	if got := uint64(10_000 - s.Timelines); s.FatEvictions != got {
		t.Errorf("%d fat evictions, want %d", s.FatEvictions, got)
	}
}

func TestATimelineIsNeverFatAndSkinny(t *testing.T) {
	c := New(Config{})
	full := timeline(t, 2)
	c.Put(key(1), nil)
	if tl, known := c.Get(key(1)); !known || tl != nil {
		t.Fatalf("empty timeline: got %v, known %t", tl, known)
	}
	c.Put(key(1), full)
	if tl, known := c.Get(key(1)); !known || tl != full {
		t.Fatalf("filled timeline: got %v, known %t", tl, known)
	}
	c.Put(key(1), nil)
	if tl, known := c.Get(key(1)); !known || tl != nil {
		t.Fatalf("emptied timeline: got %v, known %t", tl, known)
	}
	if s := c.Stats(); s.Records != 0 || s.Timelines != 0 || s.EmptyKeys != 1 {
		t.Fatalf("after emptying: %+v", s)
	}
	c.Remove(key(1))
	if _, known := c.Get(key(1)); known {
		t.Fatal("a removed timeline is still known")
	}
}

func TestAHitKeepsATimeline(t *testing.T) {
	c := New(Config{FatRecords: 2 * shards})
	one := timeline(t, 1)
	c.Put(key(0), one)
	s := c.shard(key(0).Entity)
	for i, others := 1, 0; others < 20; i++ {
		if c.shard(key(i).Entity) != s {
			continue
		}
		others++
		c.Put(key(i), one)
		if _, known := c.Get(key(0)); !known {
			t.Fatalf("the timeline read between all writes was evicted after %d others", others)
		}
	}
}
