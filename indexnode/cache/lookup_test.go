package cache

import (
	"math/rand/v2"
	"slices"
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
		room := slices.Repeat([]*Timeline{one}, 1+len(names)*len(asked)) // has had other answers
		found := in.Lookup(room[:1], names, asked)[1:]
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

// A batch finds what is in its keys' own buckets, in every slot, in none, under
// another check, untouched and in batches of any size.
func TestABatchFindsWhatIsInItsBuckets(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	seeds := newSeeds()
	buckets := make([]bucket, 64)
	tab := &table{mask: uint64(len(buckets) - 1), buckets: buckets}
	var slots [bucketSlots]bool
	for n := range 2000 {
		for i := range buckets {
			buckets[i] = bucket{}
		}
		var names [batchKeys]id
		typ := seeds.part("post").turned()
		for i := range names {
			names[i] = id{r.Uint64(), r.Uint64()}
			k := join(names[i], typ)
			in := &buckets[home(k.tag)&tab.mask]
			at := r.IntN(bucketSlots)
			tag, value := k.tag, k.check&checkBits|r.Uint64()&address|touched
			switch r.IntN(8) {
			case 0:
				value = r.Uint64()
			case 1:
				value &^= touched
			case 2: // another key, which has the same check
				tag ^= 1 << 63
			case 3: // behind another key, whose value looks like this one's tag
				at = max(at, 1)
				in[at-1].tag.Store(k.tag ^ 1<<63)
				in[at-1].value.Store(k.tag)
			}
			in[at].tag.Store(tag)
			in[at].value.Store(value)
		}
		got := batch{n: n % (batchKeys + 1)}
		tab.locate(&got, &names, typ)
		var values, odd [batchKeys]uint64
		got.match(&values, &odd)
		for i := range got.n {
			k := join(names[i], typ)
			var want uint64
			there := false
			for slot := range bucketSlots {
				s := &buckets[home(k.tag)&tab.mask][slot]
				if s.tag.Load() != k.tag {
					continue
				}
				want, slots[slot] = s.value.Load(), true
				there = want&touched != 0 && want&checkBits == k.check&checkBits
			}
			if (odd[i] == 0) != there || there && values[i] != want {
				t.Fatalf("key %d: value %#x, odd %#x; want %#x, there: %t", i, values[i], odd[i], want, there)
			}
		}
	}
	if slots != [bucketSlots]bool{true, true, true, true} {
		t.Errorf("keys were found in slots %v only", slots)
	}
}
