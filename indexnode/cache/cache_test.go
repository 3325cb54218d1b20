package cache

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
)

// rows is a slab of the numbers first, first+1, ...
func rows(t testing.TB, n, first int) *column.Slab {
	t.Helper()
	a := column.New(numbers(t), n, 0).Append()
	for i := range n {
		appendNumber(t, a, first+i)
	}
	return a.Slab()
}

// numbers is the layout of rows: a time that is a number.
var numbers = func() func(t testing.TB) *column.Layout {
	var once sync.Once
	var l *column.Layout
	return func(t testing.TB) *column.Layout {
		once.Do(func() {
			var err error
			if l, err = column.NewLayout([]column.Field{{Name: "at", Kind: column.Time, Role: "time"}, {Name: "text", Kind: column.String}}); err != nil {
				t.Fatal(err)
			}
		})
		return l
	}
}()

func appendNumber(t testing.TB, a *column.Appender, i int) {
	t.Helper()
	r := a.Begin()
	r.SetInt(0, int64(i))
	r.SetString(1, fmt.Appendf(nil, "number %d", i))
	if err := a.End(r); err != nil {
		t.Fatal(err)
	}
}

// timeline returns a timeline of the numbers 0, 1, ...
func timeline(t testing.TB, n int) *Timeline {
	t.Helper()
	tl, err := NewTimeline(millrace.MinTime, rows(t, n, 0))
	if err != nil {
		t.Fatal(err)
	}
	return tl
}

// content returns the numbers of a timeline, oldest first, and checks what
// else it says.
func content(t testing.TB, tl *Timeline) (numbers []int) {
	t.Helper()
	var parts []column.Packed
	for b := tl; b != nil; b = b.Older() {
		parts = append(b.Append(nil), parts...)
	}
	for _, p := range parts {
		for row := range p.Len() {
			n := int(p.Word(0, row))
			if want := fmt.Sprint("number ", n); p.StringAt(1, row) != want {
				t.Errorf("%q, want %q", p.StringAt(1, row), want)
			}
			numbers = append(numbers, n)
		}
	}
	if len(numbers) != tl.Len() {
		t.Errorf("%d records, Len says %d", len(numbers), tl.Len())
	}
	return numbers
}

func key(i int) millrace.Timeline {
	return millrace.Timeline{Entity: millrace.Entity(fmt.Sprintf("member:%06d", i)), Type: "post"}
}

// withRoom returns a cache with room for n timelines like tl, for n empty ones
// of the names of key, and for n rows of features like it.
func withRoom(t testing.TB, n int, tl *Timeline) *Cache {
	t.Helper()
	c := New(Config{Memory: LeastMemory})
	b := c.arena.Alloc(int(tl.size))
	c.live = n * c.arena.Live()
	c.arena.Free(b)
	c.empty = n * keyBytes(nameBytes(key(0)))
	c.features = n * keyBytes(nameBytes(millrace.Timeline{Entity: key(0).Entity, Type: Features}))
	return c
}

// get looks one key up, and says whether Peek agrees.
func get(t testing.TB, c *Cache, k millrace.Timeline) *Timeline {
	t.Helper()
	r := c.Reader()
	defer r.Leave() // what is found stays, since nobody writes meanwhile
	tl := r.Lookup(nil, []millrace.Entity{k.Entity}, []millrace.ContentType{k.Type})[0]
	if peeked := r.Peek(k); peeked != tl {
		t.Errorf("%s: Lookup says %v, Peek %v", k, tl, peeked)
	}
	return tl
}

// Each part keeps to its bytes, and uses them.
func TestEachPartIsBounded(t *testing.T) {
	full := timeline(t, 3)
	c := withRoom(t, 200, full)
	for i := range 10_000 {
		c.Put(key(i), full)
		c.Put(millrace.Timeline{Entity: key(i).Entity, Type: "like"}, Empty)
		c.Put(millrace.Timeline{Entity: key(i).Entity, Type: Features}, Empty)
	}
	s := c.Stats()
	if s.Timelines != 200 || s.Records != 3*s.Timelines || s.Bytes != s.Timelines*full.bytes() {
		t.Errorf("fat cache: %+v", s)
	}
	if s.EmptyKeys != 200 || s.FeatureRows != 200 || s.SkinnyEvictions != 10_000-200 || s.FeatureEvictions != 10_000-200 {
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
		if got := get(t, c, key(1)); got.Len() != tl.Len() || (got == Empty) != (tl == Empty) || !got.found() {
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

// Keys of what is empty have their share however many others came before, and
// others have the rest.
func TestKeysOfWhatIsEmptyHaveTheirShare(t *testing.T) {
	c := New(Config{Memory: LeastMemory})
	defer c.Close()
	one := timeline(t, 1)
	c.keys, c.empty = 400*keyBytes(nameBytes(key(0))), 200*keyBytes(nameBytes(key(0)))
	for round := range 2 {
		for i := range 1000 {
			c.Put(key(1000*round+i), one)
		}
		for i := range 1000 {
			c.Put(key(100_000+1000*round+i), Empty)
		}
		if s := c.Stats(); s.EmptyKeys != 200 || s.Timelines != 200 {
			t.Errorf("round %d: %d empty keys and %d timelines, of 400 keys", round, s.EmptyKeys, s.Timelines)
		}
	}
}

func TestATouchKeepsATimeline(t *testing.T) {
	for name, read := range map[string]func(testing.TB, *Cache, millrace.Timeline) *Timeline{
		"Lookup": get,
		"Get": func(t testing.TB, c *Cache, k millrace.Timeline) *Timeline {
			r := c.Reader()
			defer r.Leave()
			return r.Get(k)
		},
	} {
		one := timeline(t, 1)
		c := withRoom(t, 4, one)
		c.Put(key(0), one)
		for i := 1; i < 50; i++ {
			c.Put(key(i), one)
			if read(t, c, key(0)) == nil {
				t.Fatalf("%s: the timeline read between all writes was evicted after %d others", name, i)
			}
		}
		if read(t, c, key(1)) != nil || read(t, c, key(100)) != nil {
			t.Errorf("%s: a timeline never read outlived 48 others in a cache of 4", name)
		}
	}
}

// One eviction passes over 32 touched keys, which are as if they had come anew, and takes the
// next one although it was touched.
func TestAnEvictionPassesOverSomeKeys(t *testing.T) {
	one := timeline(t, 1)
	c := withRoom(t, 40, one)
	defer c.Close()
	for i := range 40 {
		c.Put(key(i), one)
		get(t, c, key(i))
	}
	gone := func() (all []int) {
		r := c.Reader()
		defer r.Leave()
		for i := range 45 {
			if r.Peek(key(i)) == nil {
				all = append(all, i)
			}
		}
		return all
	}
	for i, want := range [][]int{{32, 41, 42, 43, 44}, {32, 40, 42, 43, 44}, {0, 32, 40, 43, 44}} {
		c.Put(key(40+i), one)
		if got := gone(); !slices.Equal(got, want) {
			t.Errorf("after %d evictions %v are not there, want %v", i+1, got, want)
		}
	}
}

// One key stays even where it is more than the cache may have.
func TestOneKeyStays(t *testing.T) {
	c := withRoom(t, 1, timeline(t, 1))
	defer c.Close()
	c.live, c.empty = 0, 0
	for i := range 3 {
		c.Put(key(i), timeline(t, 1))
		c.Put(key(10+i), Empty)
		if s := c.Stats(); s.Timelines != 1 || s.EmptyKeys != 1 {
			t.Errorf("%+v", s)
		}
	}
}

// A key that is not there is not removed.
func TestOnlyWhatIsThereIsRemoved(t *testing.T) {
	c := New(Config{Memory: LeastMemory})
	defer c.Close()
	c.Put(key(1), timeline(t, 1))
	for range 3 {
		c.Remove(key(1))
		c.Remove(key(2))
	}
	if n := c.Stats().Removals; n != 1 {
		t.Errorf("%d removals", n)
	}
}

// Where everything is touched, room is found all the same.
func TestEverythingTouchedIsEvicted(t *testing.T) {
	one := timeline(t, 1)
	c := withRoom(t, 200, one)
	for i := range 1000 {
		c.Put(key(i), one)
		for j := max(0, i-200); j <= i; j++ {
			get(t, c, key(j))
		}
		if s := c.Stats(); s.Records > 200 {
			t.Fatalf("%+v", s)
		}
	}
}

func TestOneHitWondersStayOutside(t *testing.T) {
	one := timeline(t, 1)
	c := withRoom(t, 100, one)
	for i := range 100 {
		c.Fill(key(i), one)
	}
	if s := c.Stats(); s.Records != 100 {
		t.Fatalf("where there is room, not all is let in: %+v", s)
	}
	for i := range 100 {
		c.Fill(key(1000+i), one)
	}
	// The doorkeeper takes one in a hundred for one that it has seen, by chance.
	if s := c.Stats(); s.NotAdmitted < 90 || s.FatEvictions > 10 {
		t.Errorf("one-hit wonders: %+v", s)
	}
	for i := range 100 {
		c.Fill(key(1000+i), one)
	}
	if s := c.Stats(); s.FatEvictions < 98 {
		t.Errorf("asked for twice: %+v", s)
	}
}

// A doorkeeper knows a key that asked before, until a quarter of its bits may be set; then it
// has forgotten all, and is as large as the list needs.
func TestDoorkeeper(t *testing.T) {
	var d doorkeeper
	r := rand.New(rand.NewPCG(5, 6))
	draw := func() id { return id{r.Uint64(), r.Uint64()} }
	for _, c := range []struct{ keys, bits int }{{0, 1 << 12}, {256, 1 << 12}, {257, 1 << 13}, {10_000, 1 << 18}, {10, 1 << 12}} {
		d.forget(c.keys)
		if len(d.bits)*64 != c.bits || d.members != 0 || slices.ContainsFunc(d.bits, func(w uint64) bool { return w != 0 }) {
			t.Errorf("%d keys: %d bits, want %d", c.keys, len(d.bits)*64, c.bits)
		}
		first := draw()
		if d.seen(first, c.keys) || !d.seen(first, c.keys) || !d.seen(first, c.keys) {
			t.Error("a key is seen at once, or not again")
		}
		unknown := 1
		for d.members <= c.bits/8 {
			if k := draw(); !d.seen(k, c.keys) {
				unknown++
				if d.members <= c.bits/8 && !d.seen(k, c.keys) {
					t.Fatal("a key is not seen again")
				}
			}
		}
		if unknown != c.bits/8+1 || !d.has(first.tag&uint64(c.bits-1)) {
			t.Errorf("%d keys fill %d bits", unknown, c.bits)
		}
		if d.seen(first, c.keys) || d.members != 1 {
			t.Errorf("the first key is seen still, with %d others", d.members)
		}
	}
	var only doorkeeper // one of the two bits of a key is not enough
	only.seen(id{1, 2}, 0)
	if only.seen(id{1, 3}, 0) || only.seen(id{4, 2}, 0) {
		t.Error("half a key is taken for the whole")
	}
}

// A table is rebuilt twice as large where more than a third of its slots have a value, and
// smaller where fewer than a twelfth have; it has the same keys then, with their marks.
func TestTablesAreRebuilt(t *testing.T) {
	tl := timeline(t, 1)
	r := rand.New(rand.NewPCG(6, 7))
	for _, test := range []struct{ buckets, live, want int }{
		{256, 0, 256}, {256, 341, 256}, {256, 342, 512}, {512, 171, 512}, {512, 170, 256}, {1024, 342, 1024}, {1024, 341, 512}, {4096, 3, 256},
	} {
		c := New(Config{Memory: LeastMemory})
		x, tl := &c.index, c.own(tl)
		used := func() int {
			for range 1000 { // what is retired is given back then
				c.arena.Retire(c.arena.Alloc(1))
			}
			return int(c.arena.Stats().Used)
		}
		before := used()
		x.table.Store(x.newTable(test.buckets))
		table := used() - before
		var keys []id
		for i := range 2 * test.live {
			k := join(id{r.Uint64(), r.Uint64()}, id{})
			keys = append(keys, k)
			at := x.insert(k)
			x.set(at, tl)
			if i%3 == 0 {
				x.table.Load().slot(at).touch()
			}
			if i%2 == 1 {
				x.set(at, nil)
			}
		}
		if x.used != 2*test.live || x.live != test.live {
			t.Fatalf("%d of %d slots", x.live, x.used)
		}
		x.rebuild()
		if got := len(x.table.Load().buckets); got != test.want || x.used != test.live || x.live != test.live {
			t.Errorf("%d keys of %d buckets get %d buckets and take %d slots, want %d", x.live, test.buckets, got, x.used, test.want)
		}
		if now := used() - before; now > 5*table*max(1, test.want/test.buckets)/4 {
			t.Errorf("%d buckets in place of %d: %d bytes of %d are left", test.want, test.buckets, now, table)
		}
		for i, k := range keys {
			at := x.table.Load().find(k)
			if (at >= 0) != (i%2 == 0) || at >= 0 && (x.table.Load().slot(at).get() != tl || (x.table.Load().slot(at).value.Load()&touched != 0) != (i%3 == 0)) {
				t.Fatalf("key %d of %d is in slot %d", i, len(keys), at)
			}
		}
		for i := 0; !x.full(); i++ {
			x.insert(join(id{r.Uint64(), r.Uint64()}, id{}))
		}
		if x.used != bucketSlots*test.want/2 {
			t.Errorf("%d of %d slots are used, and that is full", x.used, bucketSlots*test.want)
		}
		c.Close()
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
			values[i] = append(values[i], mustTimeline(millrace.Time(i*perKey+j)))
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
				r := c.Reader()
				found = r.Lookup(found[:0], entities, []millrace.ContentType{"post"})
				for i, tl := range found {
					if tl == nil {
						continue
					}
					if tl.From()/perKey != millrace.Time(i) || tl.From() < newest[i] {
						t.Errorf("key %d: value %d after %d", i, tl.From(), newest[i])
						r.Leave()
						return
					}
					newest[i] = tl.From()
				}
				r.Leave()
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
	reader := c.Reader()
	defer reader.Leave()
	for i, tl := range reader.Lookup(nil, entities, []millrace.ContentType{"post"}) {
		if want := model[i]; (tl == nil) != (want == nil) || tl != nil && tl.From() != want.From() {
			t.Errorf("key %d: %v, want %v", i, tl, want)
		}
	}
	if s := c.Stats(); s.EmptyKeys != len(model) || c.index.live != len(model) {
		t.Errorf("%+v, %d live, want %d", s, c.index.live, len(model))
	}
}

// mustTimeline returns a timeline without rows.
func mustTimeline(from millrace.Time) *Timeline {
	t, err := NewTimeline(from)
	if err != nil {
		panic(err)
	}
	return t
}

// found reports whether the timeline was found in the cache, not read for the
// one who has it.
func (t *Timeline) found() bool { return t.cached || t == Empty }

// Put caches a copy of a timeline, whether there is room or not.
func (c *Cache) Put(t millrace.Timeline, tl *Timeline) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replace(t, c.seeds.id(t), tl)
}
