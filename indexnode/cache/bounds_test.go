package cache

import (
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/memory"
	"github.com/millrace/millrace/internal/race"
)

// ofBytes returns a timeline of records whose texts have so many bytes each.
func ofBytes(t testing.TB, records, bytes int) *Timeline {
	t.Helper()
	text := strings.Repeat("x", bytes)
	l, err := column.NewLayout([]column.Field{{Name: "n", Kind: column.Int}, {Name: "text", Kind: column.String}})
	if err != nil {
		t.Fatal(err)
	}
	a := column.New(l, records, 0).Append()
	for i := range records {
		row := a.Begin()
		row.SetInt(0, int64(i))
		row.SetString(1, []byte(text))
		if err := a.End(row); err != nil {
			t.Fatal(err)
		}
	}
	tl, err := NewTimeline(millrace.MinTime, a.Slab())
	if err != nil {
		t.Fatal(err)
	}
	return tl
}

// Whatever records come, of 10 bytes to a megabyte, in whatever order, the cache
// takes no more than its bound: of what is mapped and of the Go heap. And it
// uses what it has.
func TestMemoryIsBoundedWhateverTheRecords(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	const bound = LeastMemory
	r := rand.New(rand.NewPCG(1, 2))
	var sizes []*Timeline
	for size := 10; size <= 1_000_000; size *= 10 {
		for _, records := range []int{1, 7} {
			sizes = append(sizes, ofBytes(t, records, size))
		}
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	c := New(Config{Memory: bound})
	defer c.Close()
	taken, live := 0, 0
	for phase, pick := range []func() *Timeline{
		func() *Timeline { return sizes[r.IntN(len(sizes))] },     // a mix
		func() *Timeline { return sizes[len(sizes)-1] },           // large ones
		func() *Timeline { return sizes[0] },                      // then small ones, and as many keys as there is room for
		func() *Timeline { return Empty },                         // keys alone
		func() *Timeline { return sizes[len(sizes)-1-r.IntN(5)] }, // large ones again
		func() *Timeline { return sizes[r.IntN(len(sizes))] },
	} {
		for i, copied := 0, 0; i < 300_000 && copied < 500<<20; i++ {
			tl := pick()
			copied += 2 * tl.bytes()
			k := key(r.IntN(1_000_000))
			switch r.IntN(20) {
			case 0:
				k.Type = Features
			case 1:
				k.Entity += millrace.Entity(strings.Repeat("long", r.IntN(20)))
			}
			held := c.Reader()
			c.Fill(k, tl)
			held.Leave()
			c.Put(k, tl)
			if tl.bytes() < 100_000 && i%100 > 0 {
				continue
			}
			s := c.Stats()
			if s.Taken > bound || s.Arena.Used > s.Arena.Mapped {
				t.Fatalf("phase %d: %d bytes are taken of %d: %+v", phase, s.Taken, bound, s)
			}
			taken, live = max(taken, s.Taken), max(live, s.Bytes)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		s := c.Stats()
		if heap := int(after.HeapAlloc) - int(before.HeapAlloc); !race.Enabled && heap+s.Arena.Mapped > bound {
			t.Errorf("phase %d: %d bytes of the heap and %d mapped are more than %d", phase, heap, s.Arena.Mapped, bound)
		}
	}
	if live < bound/2 || taken < bound*3/4 {
		t.Errorf("of %d bytes %d are taken, for timelines of %d", bound, taken, live)
	}
}

// What readers hold is not there for others: nothing is cached beyond the bound
// then, and all that was in use stays.
func TestWhatReadersHoldIsBounded(t *testing.T) {
	c := New(Config{Memory: LeastMemory})
	defer c.Close()
	large := ofBytes(t, 1, 1_000_000)
	for i := range 200 {
		c.Put(key(i), large)
	}
	reader := c.Reader()
	for i := range 1000 {
		c.Put(key(i%150), large) // writes retire what is there
		if s := c.Stats(); s.Taken > LeastMemory {
			t.Fatalf("%+v", s)
		}
	}
	if s := c.Stats(); s.Timelines < 30 {
		t.Errorf("a reader that stays cost all but %d timelines", s.Timelines)
	}
	reader.Leave()
	for i := range 200 {
		c.Put(key(i), large)
	}
	if s := c.Stats(); s.Timelines < 60 {
		t.Errorf("%d timelines once it has left", s.Timelines)
	}
}

// The parts of a cache are what the comment on bounds says.
func TestBounds(t *testing.T) {
	if got, want := boundsOf(1<<30), (bounds{1 << 30, 3 << 28, 21 << 25, 1 << 28, 1 << 27, 1 << 27}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	for _, memory := range []int{0, -1, LeastMemory} {
		c := New(Config{Memory: memory})
		if want := DefaultMemory(); memory <= 0 && c.Stats().Bound != want || memory > 0 && c.Stats().Bound != memory {
			t.Errorf("of %d: %d", memory, c.Stats().Bound)
		}
		c.Close()
	}
	if m := DefaultMemory(); m < LeastMemory || m != max(LeastMemory, int(memory.Machine()/2)) {
		t.Errorf("the default is %d", m)
	}
	c := New(Config{Memory: LeastMemory}) // to the byte
	defer c.Close()
	room := func(kind listKind, timeline, key int) bool { return c.fits(kind, timeline, key) }
	for kind, most := range map[listKind]int{skinny: c.empty, features: c.features} {
		if !room(kind, 100, most-100) || room(kind, 100, most-99) {
			t.Errorf("list %d has other room than %d bytes", kind, most)
		}
	}
	if !room(fat, c.live, 0) || room(fat, c.live+1, 0) || !room(fat, 0, c.keys) || room(fat, 0, c.keys+1) {
		t.Error("timelines with records have other room than is left")
	}
}

// A timeline for which there is no memory takes that of others.
func TestATimelineTakesTheMemoryOfOthers(t *testing.T) {
	c := New(Config{Memory: LeastMemory})
	defer c.Close()
	c.arena.Limit(32 << 20)
	large := ofBytes(t, 1, 1_000_000)
	for i := range 60 {
		c.Put(key(i), large)
		if get(t, c, key(i)) == nil {
			t.Fatalf("timeline %d is not cached: %+v", i, c.Stats())
		}
	}
	if s := c.Stats(); s.NotAdmitted != 0 || s.FatEvictions == 0 || s.Timelines < 20 {
		t.Errorf("%+v", s)
	}
}

// Where there is no memory for a timeline it is not cached, whether its key was there or not.
func TestNoMemoryForATimeline(t *testing.T) {
	c := New(Config{Memory: LeastMemory})
	defer c.Close()
	c.arena.Limit(32 << 20)
	c.Put(key(1), timeline(t, 1))
	for size := 8 << 20; size >= 64; size /= 2 {
		for c.arena.Alloc(size) != nil {
		}
	}
	large := ofBytes(t, 1, 1_000_000)
	if c.Warm().Put(key(3), large) || c.Stats().Warmed != 0 || get(t, c, key(3)) != nil {
		t.Error("it is warmed")
	}
	c = New(Config{Memory: LeastMemory})
	defer c.Close()
	c.arena.Limit(32 << 20)
	c.Put(key(1), timeline(t, 1))
	for size := 8 << 20; size >= 64; size /= 2 {
		for c.arena.Alloc(size) != nil {
		}
	}
	for i, k := range []millrace.Timeline{key(1), key(2)} {
		c.Put(k, large)
		if s := c.Stats(); get(t, c, k) != nil || s.NotAdmitted != uint64(i+1) || s.Timelines != 0 {
			t.Errorf("%s: %+v", k, s)
		}
	}
}

// A timeline is not continued once what it continues was evicted to make room for
// that.
func TestContinuedBesideEvictions(t *testing.T) {
	c := New(Config{Memory: LeastMemory})
	defer c.Close()
	c.arena.Limit(32 << 20)
	c.Put(key(1), timeline(t, 40))
	k := c.seeds.id(key(1))
	next, err := new(extender).extend(c.index.get(k), numbers(t), func(a *column.Appender) error {
		appendNumber(t, a, 40)
		return nil
	})
	if err != nil || next.Older() == nil {
		t.Fatal(next, err)
	}
	for size := 8 << 20; size >= 64; size /= 2 {
		for c.arena.Alloc(size) != nil {
		}
	}
	c.mu.Lock()
	put := c.replace(key(1), k, next)
	c.mu.Unlock()
	if s := c.Stats(); put || c.index.get(k) != nil || s.FatEvictions != 1 || s.Records != 0 {
		t.Errorf("it is continued: %t, %+v", put, s)
	}
}
