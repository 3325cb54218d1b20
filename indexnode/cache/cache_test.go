package cache

import (
	"fmt"
	"math/rand/v2"
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

// found reports whether the timeline was found in the cache, not read for the
// one who has it.
func (t *Timeline) found() bool { return t.cached || t == Empty }

// Put caches a copy of a timeline, whether there is room or not.
func (c *Cache) Put(t millrace.Timeline, tl *Timeline) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replace(t, c.seeds.id(t), tl)
}
