package cache

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
)

// continueWith continues a timeline by a number.
func continueWith(t testing.TB, c *Cache, k millrace.Timeline, i int) bool {
	return c.Continue(k, numbers(t), 1<<20, func(a *column.Appender) error {
		appendNumber(t, a, i)
		return nil
	})
}

func upTo(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

// A timeline that grows record by record has all of them at any time, in few
// blocks, and those who found it earlier keep what they found.
func TestContinue(t *testing.T) {
	c := New(Config{})
	defer c.Close()
	if continueWith(t, c, key(1), 0) {
		t.Fatal("a timeline that is not there was continued")
	}
	c.Put(key(1), Empty)
	r := c.Reader()
	defer r.Leave()
	var found []*Timeline
	joined := 0
	for i := range 400 {
		if !continueWith(t, c, key(1), i) {
			t.Fatalf("record %d does not continue", i)
		}
		tl := r.Peek(key(1))
		found = append(found, tl)
		if tl.Older() == nil {
			joined++
		} else if tl.Older().Older() != nil {
			t.Fatalf("record %d: three blocks", i)
		} else if n := tl.Len() - tl.Older().Len(); n > maxTail {
			t.Fatalf("record %d: %d records continue the block", i, n)
		}
	}
	for i, tl := range found {
		if got := content(t, tl); !slices.Equal(got, upTo(i+1)) {
			t.Fatalf("after record %d: %v", i, got)
		}
	}
	if joined < 5 || joined > 40 {
		t.Errorf("all was written anew %d times", joined)
	}
	if s := c.Stats(); s.Records != 400 || s.Timelines != 1 || s.EmptyKeys != 0 || s.Bytes != found[399].bytes() {
		t.Errorf("%+v", s)
	}
}

func TestWhatDoesNotContinue(t *testing.T) {
	c := New(Config{})
	defer c.Close()
	other, err := column.NewLayout([]column.Field{{Name: "at", Kind: column.Time, Role: "time"}})
	if err != nil {
		t.Fatal(err)
	}
	c.Put(key(1), timeline(t, 3))
	add := func(a *column.Appender) error { return a.End(a.Begin()) }
	if c.Continue(key(1), other, 100, add) {
		t.Error("a record of another layout continues")
	}
	row := column.New(other, 1, 0).Append()
	if err := row.End(row.Begin()); err != nil {
		t.Fatal(err)
	}
	had, err := NewTimeline(0, row.Slab())
	if err != nil {
		t.Fatal(err)
	}
	x := &extender{parts: had.Append(nil)} // which has continued one of that layout
	if next, err := x.extend(timeline(t, 3), other, add); next != nil || err != nil {
		t.Error("a record of another layout continues where one of it was continued before", err)
	}
	if c.Continue(key(1), numbers(t), 3, add) {
		t.Error("a full timeline continues")
	}
	if c.Continue(key(1), numbers(t), 4, func(*column.Appender) error { return errors.New("no") }) {
		t.Error("a record that cannot be written continues")
	}
	c2 := c.Continue(key(1), numbers(t), 4, func(a *column.Appender) error {
		c.Remove(key(1)) // as an eviction
		return add(a)
	})
	if c2 || get(t, c, key(1)) != nil {
		t.Error("a timeline that was evicted continues")
	}
}

// A block of new records is joined with the older one at a quarter of its records, within
// bounds.
func TestWhenTailsAreJoined(t *testing.T) {
	for main, want := range map[int]int{0: 8, 1: 8, 35: 8, 36: 9, 100: 25, 127: 31, 128: 32, 1 << 20: 32} {
		if tailFull(want-1, main) || !tailFull(want, main) {
			t.Errorf("%d records are not joined with %d, or fewer are", want, main)
		}
	}
}

// A timeline has at most 65,535 parts.
func TestTooManyParts(t *testing.T) {
	parts := slices.Repeat([]*column.Slab{rows(t, 1, 0)}, math.MaxUint16+1)
	if tl, err := NewTimeline(0, parts[1:]...); err != nil || tl.Parts() != math.MaxUint16 {
		t.Error(err)
	}
	if _, err := NewTimeline(0, parts...); !errors.Is(err, column.ErrFull) {
		t.Error(err)
	}
	none := rows(t, 0, 0) // slabs without rows are no parts
	if tl, err := NewTimeline(0, none, parts[0], none); err != nil || tl.Parts() != 1 || tl.Len() != 1 {
		t.Error(tl, err)
	}
}

// Two layouts stay apart, and each is continued.
func TestContinueTwoLayouts(t *testing.T) {
	c := New(Config{})
	defer c.Close()
	other, err := column.NewLayout([]column.Field{{Name: "at", Kind: column.Time, Role: "time"}})
	if err != nil {
		t.Fatal(err)
	}
	one := column.New(other, 1, 0).Append()
	if err := one.End(one.Begin()); err != nil {
		t.Fatal(err)
	}
	tl, err := NewTimeline(5, rows(t, 2, 0), one.Slab())
	if err != nil {
		t.Fatal(err)
	}
	c.Put(key(1), tl)
	want := map[*column.Layout]int{numbers(t): 2, other: 1}
	for i := range 100 {
		l := []*column.Layout{numbers(t), other}[i%3%2]
		if !c.Continue(key(1), l, 1000, func(a *column.Appender) error { return a.End(a.Begin()) }) {
			t.Fatalf("record %d does not continue", i)
		}
		want[l]++
	}
	got := map[*column.Layout]int{}
	tl = get(t, c, key(1))
	for b := tl; b != nil; b = b.Older() {
		for _, p := range b.Append(nil) {
			got[p.Layout()] += p.Len()
		}
	}
	if tl.From() != 5 || tl.Len() != 103 || got[other] != want[other] || got[numbers(t)] != want[numbers(t)] {
		t.Errorf("%d records back to %d: %v, want %v", tl.Len(), tl.From(), got, want)
	}
}

// What left the cache leaves the arena: nothing is lost.
func TestNothingLeaks(t *testing.T) {
	c := withRoom(t, 10, timeline(t, 40))
	defer c.Close()
	r := rand.New(rand.NewPCG(3, 4))
	for range 20_000 {
		k := key(r.IntN(200))
		switch r.IntN(8) {
		case 0:
			c.Put(k, Empty)
		case 1:
			c.Put(k, timeline(t, r.IntN(40)))
		case 2:
			c.Remove(k)
		case 3:
			keepFold(c, k, ModelID(1+r.IntN(5)), 1+r.IntN(30))
		case 4:
			if r.IntN(100) == 0 {
				c.Purge()
			}
		default:
			continueWith(t, c, k, 1)
		}
	}
	c.Purge()
	for range 1000 {
		c.arena.Retire(c.arena.Alloc(1))
	}
	s := c.Stats().Arena
	if table := New(Config{Memory: LeastMemory}).Stats().Arena.Used; s.Used > table+64*s.Blocks || s.Blocks > 1+200 {
		t.Errorf("%+v: besides an index of %d bytes something is left", s, table)
	}
}

func keepFold(c *Cache, k millrace.Timeline, m ModelID, rows int) {
	r := c.Reader()
	defer r.Leave()
	tl := r.Peek(k)
	if tl == nil || tl.Parts() != 1 {
		return
	}
	all := tl.First().Len()
	var own []float64
	for i := max(0, all-rows); i < all; i++ {
		own = append(own, float64(m)*float64(1+i))
	}
	if p, ok := tl.Place(m); ok {
		c.Fold(tl, p, m, own, math.Inf(1))
	}
}

func TestFold(t *testing.T) {
	c := New(Config{})
	defer c.Close()
	mine := timeline(t, 3)
	if _, ok := mine.Place(1); ok {
		t.Error("there is a place in a timeline that is not in the cache")
	}
	c.Put(key(1), mine)
	tl := get(t, c, key(1))
	early, _ := tl.Place(1)
	var dirty [][]byte // which the numbers get
	for range 100 {
		dirty = append(dirty, c.arena.Alloc(foldedBytes+8*2))
		for i := range dirty[0] {
			dirty[len(dirty)-1][i] = 0xff
		}
	}
	for _, b := range dirty {
		c.arena.Free(b)
	}
	tl.Owe(7)
	keepFold(c, key(1), 1, 2)
	if owed, others := tl.Owe(0), tl.Folded(1).others.Load(); owed != 0 || others != 0 {
		t.Errorf("%d rows are owed, and %d questions of others have come, at the beginning", owed, others)
	}
	f := tl.Folded(1)
	if f == nil || f.Model != 1 || f.First != 1 || !slices.Equal(f.Own(), []float64{2, 3}) {
		t.Fatalf("kept %+v", f)
	}
	c.Fold(tl, early, 2, []float64{4, 5, 6}, math.Inf(1))
	if tl.Folded(1) != f || tl.Folded(2) != nil {
		t.Error("what was there is replaced by one who did not see it")
	}
	keepFold(c, key(1), 1, 3)
	if f = tl.Folded(1); f.First != 0 || len(f.Own()) != 3 {
		t.Errorf("it does not reach further back: %+v", f)
	}
	for m := ModelID(2); m <= foldPlaces; m++ {
		keepFold(c, key(1), m, 3)
	}
	for m := ModelID(1); m <= foldPlaces; m++ {
		if f := tl.Folded(m); f == nil || f.Own()[2] != 3*float64(m) {
			t.Errorf("model %d: kept %+v", m, f)
		}
	}
	if tl.Folded(1<<16+1) != nil {
		t.Error("what is kept of a model is another's")
	}
	r := c.Reader()
	c.Remove(key(1))
	if tl.Folded(1) != nil {
		t.Error("what is folded outlives its timeline")
	}
	if _, ok := tl.Place(1); ok {
		t.Error("there is a place in a timeline that is on its way out")
	}
	if retired.get() != nil || fold(0).get() != nil {
		t.Error("a place without numbers has some")
	}
	if tl.Folded(1<<16) != nil {
		t.Error("a place that was retired has numbers")
	}
	r.Leave()
}

// Where there is no memory for what is folded, questions owe anew before it is
// computed again.
func TestNoMemoryToFold(t *testing.T) {
	c := New(Config{Memory: LeastMemory})
	defer c.Close()
	c.arena.Limit(32 << 20)
	c.Put(key(1), timeline(t, 40))
	tl := get(t, c, key(1))
	for size := 8 << 20; size >= 64; size /= 2 {
		for c.arena.Alloc(size) != nil {
		}
	}
	tl.Owe(1000)
	keepFold(c, key(1), 1, 40)
	if owed := tl.Owe(1); tl.Folded(1) != nil || owed != 1 {
		t.Errorf("%d rows are owed, %+v is folded", owed, tl.Folded(1))
	}
}

// A copy of a timeline begins without folded numbers, owing nothing.
func TestCopiesAreNotFolded(t *testing.T) {
	c := New(Config{})
	defer c.Close()
	c.Put(key(1), timeline(t, 3))
	tl := get(t, c, key(1))
	keepFold(c, key(1), 1, 2)
	tl.Owe(9)
	c.Put(key(2), tl)
	if copied := get(t, c, key(2)); copied == tl || copied.Folded(1) != nil || copied.Owe(0) != 0 || tl.Folded(1) == nil || tl.Owe(0) != 9 {
		t.Errorf("%+v of %+v", copied.Folded(1), tl.Folded(1))
	}
}

// A model loses its place when the last maxOthers questions that wanted it were of others, of
// two such models the first, and none while there is a free place.
func TestWhoLosesAPlace(t *testing.T) {
	c := New(Config{})
	defer c.Close()
	c.Put(key(1), timeline(t, 3))
	tl := get(t, c, key(1))
	at := func(i int) *atomic.Uint64 { return &tl.folds[i] }
	keepFold(c, key(1), 1, 3)
	for range 2 * maxOthers {
		if p, ok := tl.Place(9); !ok || p.at != at(1) || p.was != 0 {
			t.Fatalf("%+v, %v: not the first free place", p, ok)
		}
	}
	keepFold(c, key(1), 2, 3)
	keepFold(c, key(1), 3, 3)
	if p, ok := tl.Place(2); !ok || p.at != at(1) || p.was.get() != tl.Folded(2) {
		t.Errorf("%+v, %v: not the place that the model has", p, ok)
	}
	for _, m := range []ModelID{1, 2, 3} {
		tl.Folded(m)
	}
	for n := 1; n <= maxOthers; n++ {
		if n == 3 {
			tl.Folded(1)
		}
		if p, ok := tl.Place(9); ok != (n == maxOthers) || ok && p.at != at(1) {
			t.Errorf("question %d: %+v, %v", n, p, ok)
		}
	}
	for range 2 {
		tl.Place(9)
	}
	if p, ok := tl.Place(9); !ok || p.at != at(0) {
		t.Errorf("%+v, %v: not the first of those that nobody asks for", p, ok)
	}
}

// A model that nobody asks for any more gives its place up, one that is asked
// for keeps it.
func TestFoldedPlaces(t *testing.T) {
	c := New(Config{})
	defer c.Close()
	c.Put(key(1), timeline(t, 3))
	tl := get(t, c, key(1))
	const late = foldPlaces + 1
	for m := ModelID(1); m <= foldPlaces; m++ {
		keepFold(c, key(1), m, 3)
	}
	for range 3 * maxOthers {
		for m := ModelID(1); m <= foldPlaces; m++ {
			tl.Folded(m)
		}
		keepFold(c, key(1), late, 3)
	}
	if tl.Folded(late) != nil {
		t.Error("a model that is asked for lost its place")
	}
	for range 2 * maxOthers {
		for m := ModelID(2); m <= foldPlaces; m++ {
			tl.Folded(m)
		}
		keepFold(c, key(1), late, 3)
	}
	if tl.Folded(late) == nil || tl.Folded(1) != nil {
		t.Error("a model that nobody asks for keeps its place")
	}
}

func TestModelsHaveIDs(t *testing.T) {
	home, err := relevance.Builtin().Get("home")
	if err != nil {
		t.Fatal(err)
	}
	other := home.Interpreted()
	first, again, others := IDOf(home), IDOf(home), IDOf(other)
	if first == 0 || first != again || first == others {
		t.Errorf("ids %d, again %d, and %d", first, again, others)
	}
	known := func() int {
		models.Lock()
		defer models.Unlock()
		return len(models.ids)
	}
	had := known()
	IDOf(home.Interpreted())
	for known() > had { // until it is collected
		runtime.GC()
	}
}

// TestReadersKeepWhatTheyFound changes, evicts, folds and purges timelines
// while readers go through what they found, again and again: nothing of it is
// overwritten before they leave. Under the race detector the arena is memory
// that the detector sees, and poisons what it frees.
func TestReadersKeepWhatTheyFound(t *testing.T) {
	const keys = 40
	c := withRoom(t, 8, timeline(t, 40))
	defer c.Close()
	entities := make([]millrace.Entity, keys)
	for i := range entities {
		entities[i] = key(i).Entity
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	var rounds atomic.Int64
	for reader := range 3 {
		wg.Go(func() {
			var found []*Timeline
			for {
				r := c.Reader()
				found = r.Lookup(found[:0], entities, []millrace.ContentType{"post"})
				for range 2 {
					for _, tl := range found {
						if tl == nil {
							continue
						}
						got := content(t, tl)
						for i := range got {
							if got[i] != got[0]+i {
								t.Errorf("records %v", got)
								break
							}
						}
						for m := ModelID(1); m <= 4; m++ {
							if f := tl.Folded(m); f != nil {
								for i, x := range f.Own() {
									if x != float64(m)*float64(1+i+int(f.First)) {
										t.Errorf("row %d of model %d has %v", i, m, x)
										break
									}
								}
							}
						}
					}
				}
				keepFold(c, key(int(rounds.Load())%keys), ModelID(1+(reader+int(rounds.Load()))%4), 1+int(rounds.Load())%5)
				r.Leave()
				rounds.Add(1)
				select {
				case <-done:
					return
				default:
				}
				if t.Failed() {
					return
				}
			}
		})
	}
	r := rand.New(rand.NewPCG(9, 4))
	next := make([]int, keys)
	for i := 0; (i < 15_000 || rounds.Load() < 60) && !t.Failed(); i++ {
		k := r.IntN(keys)
		switch r.IntN(12) {
		case 0:
			n := r.IntN(30)
			tl, err := NewTimeline(millrace.MinTime, rows(t, n, 7*k))
			if err != nil {
				t.Fatal(err)
			}
			c.Put(key(k), tl)
			next[k] = 7*k + n
		case 1:
			c.Remove(key(k))
		case 2:
			if r.IntN(200) == 0 {
				c.Purge()
			}
		default:
			if continueWith(t, c, key(k), next[k]) {
				next[k]++
			}
		}
	}
	close(done)
	wg.Wait()
}

// Of two keys with the same tag one is cached at a time, and found by no other.
func TestKeysWithOneTag(t *testing.T) {
	c := withRoom(t, 1, timeline(t, 2))
	defer c.Close()
	one, two := id{1<<63 | 7, 1 << 60}, id{1<<63 | 7, 1 << 61}
	put := func(k id) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.replace(key(1), k, timeline(t, 2))
	}
	for _, keys := range [][2]id{{one, two}, {two, one}} {
		put(keys[0])
		put(keys[1])
		put(keys[0])
		if c.index.get(keys[0]) == nil || c.index.get(keys[1]) != nil {
			t.Fatal("the first is not there, or the second is")
		}
		if s := c.Stats(); s.Timelines != 1 || s.Records != 2 {
			t.Fatalf("%+v", s)
		}
		c.Put(key(2), timeline(t, 2)) // which evicts it
		if s := c.Stats(); c.index.get(keys[0]) != nil || s.Timelines != 1 || s.FatEvictions == 0 {
			t.Fatalf("%+v", s)
		}
		c.Remove(key(2))
	}
}

// A timeline of more rows than one part has room for is one of several parts,
// in order.
func TestATimelineOfTooManyRowsForOnePart(t *testing.T) {
	const rows, columns = 250_000, 40 // 80 MB
	mixed := func(row, column int) uint64 { return uint64(row)*0x9e3779b97f4a7c15 + uint64(column) }
	fields := []column.Field{{Name: "at", Kind: column.Time, Role: "time"}, {Name: "text", Kind: column.String}}
	for i := range columns {
		fields = append(fields, column.Field{Name: fmt.Sprint("d", i), Kind: column.Double})
	}
	l, err := column.NewLayout(fields)
	if err != nil {
		t.Fatal(err)
	}
	a := column.New(l, rows, 0).Append()
	words := make([]uint64, 1+len(fields)) // one of null bits before
	for i := range rows {
		heap, _ := a.Heap(20)
		at := len(heap)
		heap = fmt.Appendf(heap, "number %d", i)
		words[1], words[2] = uint64(i), column.LongWord(at, len(heap)-at)
		for c := range columns {
			words[3+c] = mixed(i, c)
		}
		a.AppendWords(words, heap)
	}
	tl, err := NewTimeline(millrace.MinTime, a.Slab())
	if err != nil {
		t.Fatal(err)
	}
	if tl.Parts() < 2 {
		t.Fatal("80 MB are one part: the test shows nothing")
	}
	for i, n := range content(t, tl) {
		if n != i {
			t.Fatalf("row %d is number %d", i, n)
		}
	}
	last := tl.Append(nil)[tl.Parts()-1]
	if w := last.Word(2+columns-1, last.Len()-1); w != mixed(rows-1, columns-1) {
		t.Errorf("the last word is %x", w)
	}
}
