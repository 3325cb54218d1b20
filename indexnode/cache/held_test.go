package cache

import (
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/partition"
)

// What is counted by partition and type is what a look at every key finds,
// whatever was put, continued, evicted, removed and purged.
func TestHeldIsWhatIsThere(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	c := withRoom(t, 60, timeline(t, 3))
	var keys []millrace.Timeline
	for i := range 150 {
		for _, typ := range []millrace.ContentType{"post", "share"} {
			k := millrace.Timeline{Entity: key(i).Entity, Type: typ}
			if i%10 == 0 {
				k.Entity += millrace.Entity(strings.Repeat("x", maxNameBytes))
			}
			keys = append(keys, k)
		}
		keys = append(keys, millrace.Timeline{Entity: key(i).Entity, Type: Features}, millrace.Timeline{Entity: key(i).Entity, Type: Objects})
	}
	sizes := []*Timeline{Empty, timeline(t, 1), timeline(t, 3), timeline(t, 9)}
	compare := func(step int) {
		t.Helper()
		type of struct {
			p millrace.Partition
			t millrace.ContentType
		}
		want, got := map[of][2]int{}, map[of][2]int{}
		r := c.Reader()
		defer r.Leave()
		var lists [listKinds]struct{ keys, weight, bytes int }
		blocks, names, cached := 0, 0, 0
		for _, k := range keys {
			tl := r.Peek(k)
			if tl == nil {
				continue
			}
			l := &lists[kindOf(k, tl)]
			l.keys++
			l.bytes += tl.bytes() + keyBytes(nameBytes(k))
			if l.weight++; tl.Len() > 1 {
				l.weight += tl.Len() - 1
			}
			blocks, names, cached = blocks+tl.bytes(), names+nameBytes(k), cached+1
			if tl.Len() == 0 || isFeatures(k.Type) {
				continue
			}
			at := of{partition.Of(k.Entity), k.Type}
			if nameBytes(k) == 0 {
				at = of{p: NoPartition}
			}
			n := want[at]
			want[at] = [2]int{n[0] + 1, n[1] + tl.Len()}
		}
		for kind, l := range lists {
			if got := &c.mu.lists[kind]; got.order.keys != l.keys || got.weight != l.weight || got.bytes != l.bytes || got.order.places < l.keys {
				t.Fatalf("step %d: list %d has %d keys of %d places, %d and %d bytes; want %+v", step, kind, got.order.keys, got.order.places, got.weight, got.bytes, l)
			}
		}
		s := c.Stats()
		want1 := Stats{Timelines: lists[fat].keys, Records: lists[fat].weight, EmptyKeys: lists[skinny].weight, FeatureRows: lists[features].weight, Bytes: blocks}
		if got := (Stats{Timelines: s.Timelines, Records: s.Records, EmptyKeys: s.EmptyKeys, FeatureRows: s.FeatureRows, Bytes: s.Bytes}); got != want1 || s.Bound != LeastMemory || s.Taken != s.Arena.Mapped+orderKeyBytes*cached+2*names {
			t.Fatalf("step %d: %+v, want %+v, and beside the arena %d keys with names of %d bytes", step, s, want1, cached, names)
		}
		if used, slots := c.index.used, bucketSlots*len(c.index.table.Load().buckets); c.index.live != cached || used < cached || 2*used > slots {
			t.Fatalf("step %d: %d keys in %d of %d slots, want %d", step, c.index.live, used, slots, cached)
		}
		for _, h := range c.Held() {
			got[of{h.Partition, h.Type}] = [2]int{h.Timelines, h.Records}
		}
		if !maps.Equal(want, got) {
			t.Fatalf("step %d: there are %v, counted are %v", step, want, got)
		}
	}
	for step := range 20_000 {
		k := keys[rng.IntN(len(keys))]
		switch n := rng.IntN(100); {
		case n < 50:
			c.Fill(k, sizes[rng.IntN(len(sizes))])
		case n < 60:
			c.Put(k, sizes[rng.IntN(len(sizes))])
		case n < 75:
			c.Continue(k, numbers(t), 12, func(a *column.Appender) error {
				appendNumber(t, a, 100+step)
				return nil
			})
		case n < 85:
			c.Warm().Put(k, sizes[rng.IntN(len(sizes))])
		case n < 99:
			c.Remove(k)
		case rng.IntN(10) == 0:
			c.Purge()
		}
		if step%50 == 0 {
			compare(step)
		}
	}
	compare(20_000)
	if s := c.Stats(); s.FatEvictions == 0 || s.Purges == 0 {
		t.Errorf("the test is of little use: %+v", s)
	}
}

// A cache that has nothing but keys whose names are not kept has them.
func TestHeldWithoutNames(t *testing.T) {
	c := withRoom(t, 60, timeline(t, 3))
	c.Fill(millrace.Timeline{Entity: millrace.Entity(strings.Repeat("x", maxNameBytes)), Type: "post"}, timeline(t, 3))
	if got := c.Held(); len(got) != 1 || got[0] != (Held{Partition: NoPartition, Timelines: 1, Records: 3}) {
		t.Errorf("%+v", got)
	}
}

// Types beyond a bound are counted together.
func TestHeldTypesAreBounded(t *testing.T) {
	c := New(Config{Memory: LeastMemory})
	tl := timeline(t, 2)
	for i := range maxHeldTypes + 20 {
		c.Put(millrace.Timeline{Entity: "e", Type: millrace.ContentType("t" + strconv.Itoa(i))}, tl)
	}
	all := c.Held()
	if len(all) != maxHeldTypes+1 || all[0] != (Held{partition.Of("e"), "", 20, 40}) {
		t.Errorf("%d types, %+v", len(all), all[0])
	}
}
