package cache

import (
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace"
)

// A look-up of any number of entities and types finds what Peek finds, whether
// it is in its bucket or the next, was touched or not, or is gone, and counts it.
func TestLookupIsPeekOfMany(t *testing.T) {
	c := New(Config{})
	defer c.Close()
	r := rand.New(rand.NewPCG(7, 7))
	types := []millrace.ContentType{"post", "like", Features}
	keyOf := func(i int, typ millrace.ContentType) millrace.Timeline {
		return millrace.Timeline{Entity: key(i).Entity, Type: typ}
	}
	const entities = 3000
	one := timeline(t, 1)
	for i := range entities {
		for _, typ := range types {
			switch r.IntN(4) {
			case 0:
				c.Put(keyOf(i, typ), Empty)
			case 1:
				c.Put(keyOf(i, typ), one)
			case 2:
				c.Put(keyOf(i, typ), one)
				c.Remove(keyOf(i, typ))
			}
		}
	}
	displaced := 0
	for range 200 {
		asked := types[:r.IntN(len(types)+1)]
		names := request(r, entities, r.IntN(5*batchKeys))
		in := c.Reader()
		before := c.Stats()
		var want Stats
		found := in.Lookup([]*Timeline{one}, names, asked)[1:]
		if len(found) != len(names)*len(asked) {
			t.Fatalf("%d answers for %d entities and %d types", len(found), len(names), len(asked))
		}
		for i, tl := range found {
			k := millrace.Timeline{Entity: names[i/len(asked)], Type: asked[i%len(asked)]}
			if peeked := in.Peek(k); tl != peeked {
				t.Fatalf("%q: found %p, want %p", k, tl, peeked)
			}
			switch features := isFeatures(k.Type); {
			case features && tl != nil:
				want.FeatureHits++
			case features:
				want.FeatureMisses++
			case tl == nil:
				want.Misses++
			case tl == Empty:
				want.SkinnyHits++
			default:
				want.FatHits++
			}
			table := c.index.table.Load()
			if s := table.find(c.seeds.id(k)); s >= 0 && uint64(s/bucketSlots) != home(c.seeds.id(k).tag)&table.mask {
				displaced++
			}
			if s := table.find(c.seeds.id(k)); tl != nil && table.slot(s).value.Load()&touched == 0 {
				t.Fatalf("%q is not touched", k)
			}
		}
		in.Leave()
		after := c.Stats()
		got := Stats{
			FatHits: after.FatHits - before.FatHits, SkinnyHits: after.SkinnyHits - before.SkinnyHits, Misses: after.Misses - before.Misses,
			FeatureHits: after.FeatureHits - before.FeatureHits, FeatureMisses: after.FeatureMisses - before.FeatureMisses,
		}
		if got != want {
			t.Fatalf("counted %+v, want %+v", got, want)
		}
	}
	if displaced == 0 {
		t.Error("no key was out of its bucket")
	}
}
