package arena

import (
	"cmp"
	"encoding/binary"
	"flag"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
)

func TestClasses(t *testing.T) {
	last := 0
	for n, step := 0, 1; n <= chunkBytes; n += step {
		if n == largeBytes {
			step = 4096 // as far as free blocks may go
		}
		class, size := classOf(n)
		if size < n || size%Align != 0 || sizeOf(class) != size || class >= classes {
			t.Fatalf("%d bytes: class %d of %d bytes, or %d", n, class, size, sizeOf(class))
		}
		if class < last || class > last+1 && n > 0 {
			t.Fatalf("%d bytes: class %d after %d", n, class, last)
		}
		if last = class; n > fineBytes && size-n >= n/steps+1 {
			t.Fatalf("%d bytes take %d", n, size)
		}
	}
	if last != classes-1 {
		t.Errorf("the last class is %d of %d", last, classes)
	}
}

// Blocks in use never overlap, keep what was written to them, and are counted.
func TestBlocksKeepTheirContent(t *testing.T) {
	a := New()
	defer a.Close()
	r := rand.New(rand.NewPCG(1, 1))
	type owned struct {
		b    []byte
		fill byte
	}
	var blocks []owned
	check := func(o owned) {
		if i := slices.IndexFunc(o.b, func(x byte) bool { return x != o.fill }); i >= 0 {
			t.Fatalf("byte %d of %d is %x, want %x", i, len(o.b), o.b[i], o.fill)
		}
	}
	used := 0
	for i := range 20_000 {
		if len(blocks) > 300 || len(blocks) > 0 && r.IntN(3) == 0 {
			at := r.IntN(len(blocks))
			o := blocks[at]
			check(o)
			used -= len(o.b)
			if r.IntN(2) == 0 {
				a.Free(o.b)
			} else {
				a.Retire(o.b)
			}
			blocks = slices.Delete(blocks, at, at+1)
			continue
		}
		n := 1 + r.IntN(64<<r.IntN(10))
		if r.IntN(500) == 0 {
			n = largeBytes + r.IntN(largeBytes)
		}
		o := owned{a.Alloc(n), byte(i)}
		if len(o.b) != n || address(o.b)%Align != 0 {
			t.Fatalf("a block of %d bytes at %x, want %d", len(o.b), address(o.b), n)
		}
		for j := range o.b {
			o.b[j] = o.fill
		}
		blocks = append(blocks, o)
		used += n
	}
	for _, o := range blocks {
		check(o)
	}
	s := a.Stats()
	if live := s.Used - s.Retired; live < used || s.Used > s.Mapped {
		t.Errorf("%+v, of which %d are in use", s, used)
	}
	for _, o := range blocks {
		a.Retire(o.b)
	}
	for range 3 {
		a.mu.Lock()
		a.advance()
		a.mu.Unlock()
	}
	if s := a.Stats(); s.Used != 0 || s.Retired != 0 || s.Blocks != 0 {
		t.Errorf("after all is freed: %+v", s)
	}
	h := &a.mu.free
	free := 0
	for _, c := range h.chunks {
		free += len(c.memory)
		if first := freeBlockAt(address(c.memory)); !c.first.has(0) || !c.last.has(len(c.memory)/Align-1) || first.size != len(c.memory) {
			t.Errorf("a chunk in which nothing is used is not one free block but begins with one of %d bytes", first.size)
		}
	}
	if h.bytes != free {
		t.Errorf("%d bytes are free of %d", h.bytes, free)
	}
}

// What an arena holds is, after each step, what a list of its blocks says: with blocks of all
// sizes and apart, given back in each way, with readers that come and go, under limits.
func TestAnArenaIsAListOfBlocks(t *testing.T) {
	seed := cmp.Or(*seeded, uint64(time.Now().UnixNano()))
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	a := New()
	defer a.Close()
	type listed struct {
		b     []byte
		size  int // with what it takes beyond what was asked for
		apart bool
		epoch uint64 // in which it was retired; 0: it is in use
	}
	type reading struct {
		Reader
		epoch uint64
	}
	var blocks []listed
	var readers []reading
	limit, refused := 0, 0
	for step := range 6000 {
		epoch := a.readers.epoch.Load()
		switch n := r.IntN(100); {
		case n < 40 || len(blocks) == 0:
			n := []int{1 + r.IntN(200), 1 + r.IntN(1<<20), largeBytes - r.IntN(2), largeBytes + 1 + r.IntN(largeBytes)}[[]int{0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 3}[r.IntN(13)]]
			b := a.Alloc(n)
			if b == nil {
				refused++
				more, found := rounded(n), false
				if n <= largeBytes {
					class, _ := classOf(n)
					more, found = chunkBytes, a.mu.free.notEmpty(class) != 0
				}
				waiting := a.mu.stats.Retired > 0 && len(readers) == 0
				if limit == 0 || found || waiting || a.mu.stats.Mapped-a.mu.apart+more <= limit {
					t.Fatalf("step %d: there is no block of %d bytes, with %+v of %d", step, n, a.mu.stats, limit)
				}
				break
			}
			if len(b) != n || cap(b) != n || address(b)%Align != 0 {
				t.Fatalf("step %d: a block of %d bytes, not %d", step, len(b), n)
			}
			blocks = append(blocks, listed{b: b, size: sizeOfBlock(n)})
		case n < 43:
			n := 1 + r.IntN(1<<20)
			blocks = append(blocks, listed{b: a.AllocApart(n), size: rounded(n), apart: true})
		case n < 90:
			at := r.IntN(len(blocks))
			switch o := &blocks[at]; {
			case o.epoch != 0:
			case o.apart:
				a.RetireApart(o.b)
				o.epoch = epoch
			case r.IntN(3) == 0:
				a.Free(o.b)
				blocks = slices.Delete(blocks, at, at+1)
			default:
				a.Retire(o.b)
				o.epoch = epoch
			}
		case n < 94 && len(readers) < 3:
			readers = append(readers, reading{a.Enter(), epoch})
		case n < 98 && len(readers) > 0:
			at := r.IntN(len(readers))
			readers[at].Leave()
			readers = slices.Delete(readers, at, at+1)
		case n == 98 && r.IntN(4) == 0:
			if limit = 0; r.IntN(4) > 0 {
				limit = a.mu.stats.Mapped - a.mu.apart + r.IntN(chunkBytes)
			}
			a.Limit(limit)
		case n == 99 && r.IntN(20) == 0: // most is given back, so that mappings are free
			for i := range blocks {
				if o := &blocks[i]; o.epoch == 0 && !o.apart && r.IntN(10) > 0 {
					o.epoch = a.readers.epoch.Load()
					a.Retire(o.b)
				}
			}
		}
		epoch = a.readers.epoch.Load()
		blocks = slices.DeleteFunc(blocks, func(o listed) bool { return o.epoch != 0 && o.epoch+2 <= epoch })
		if len(blocks) > 0 {
			last := &blocks[len(blocks)-1]
			for i := range blocks[:len(blocks)-1] {
				if o := &blocks[i]; address(o.b) < address(last.b)+uintptr(last.size) && address(last.b) < address(o.b)+uintptr(o.size) {
					t.Fatalf("step %d: two blocks are in one place", step)
				}
			}
		}
		for _, r := range readers {
			if r.epoch+1 < epoch {
				t.Fatalf("step %d: a reader of epoch %d is there in epoch %d", step, r.epoch, epoch)
			}
		}
		live, apart, mapped := 0, 0, 0
		var want Stats
		for _, o := range blocks {
			want.Blocks++
			want.Used += o.size
			if o.epoch != 0 {
				want.Retired += len(o.b)
			} else if !o.apart {
				live += o.size
			}
			if o.apart {
				apart += o.size
			}
			if o.apart || len(o.b) > largeBytes {
				mapped += o.size
			}
		}
		for _, c := range a.mu.free.chunks {
			mapped += len(c.memory)
		}
		want.Mapped = mapped
		if got := a.Stats(); got != want || a.Live() != live || a.mu.apart != apart {
			t.Fatalf("step %d: %+v, %d live, %d apart; want %+v, %d, %d", step, got, a.Live(), a.mu.apart, want, live, apart)
		}
		if limit > 0 && mapped-apart > limit {
			t.Fatalf("step %d: %d bytes are mapped, of %d", step, mapped-apart, limit)
		}
		if step%20 == 0 {
			checkFree(t, &a.mu.free)
		}
	}
	if refused == 0 || a.readers.epoch.Load() < 10 {
		t.Errorf("%d blocks were refused, in %d epochs", refused, a.readers.epoch.Load())
	}
	for _, r := range readers {
		r.Leave()
	}
}

var seeded = flag.Uint64("seed", 0, "of random steps; 0: another one each time")

// checkFree checks that each free block is in the list of its class, has its marks and its
// size at either end, and touches no other.
func checkFree(t *testing.T, f *freeList) {
	t.Helper()
	bytes, blocks, marked := 0, 0, 0
	for class, at := range f.lists {
		if (at != 0) != (f.some[class/64]>>(class%64)&1 != 0) {
			t.Fatalf("whether class %d has a block is not what is said of it", class)
		}
		for before := uintptr(0); at != 0; before, at = at, freeBlockAt(at).after {
			x, c := freeBlockAt(at), f.chunkOf(at)
			first, end := c.line(at), c.line(at+uintptr(x.size))
			if x.before != before || classWithin(x.size) != class || *sizeBehind(at + uintptr(x.size)) != x.size || !c.first.has(first) || !c.last.has(end-1) {
				t.Fatalf("a free block of %d bytes in class %d: %+v", x.size, class, x)
			}
			if first > 0 && c.last.has(first-1) || end < len(c.memory)/Align && c.first.has(end) {
				t.Fatalf("a free block of %d bytes touches another", x.size)
			}
			bytes, blocks = bytes+x.size, blocks+1
		}
	}
	for i, c := range f.chunks {
		for _, m := range []marks{c.first, c.last} {
			for _, w := range m {
				marked += bits.OnesCount64(w)
			}
		}
		if i > 0 && address(f.chunks[i-1].memory) >= address(c.memory) {
			t.Fatal("mappings are out of order")
		}
	}
	if bytes != f.bytes || marked != 2*blocks {
		t.Fatalf("%d bytes are free in %d blocks, with %d marks; %d are counted", bytes, blocks, marked, f.bytes)
	}
}

// Sizes that drift do not leave memory behind that later sizes have no use for:
// of equal bytes in use, what is mapped stays below twice as much.
func TestSizesDrift(t *testing.T) {
	const inUse = 128 << 20 // of which no page is touched but where free blocks were
	for name, at := range map[string]func(progress float64) float64{
		"up":    func(p float64) float64 { return p },
		"down":  func(p float64) float64 { return 1 - p },
		"waves": func(p float64) float64 { return math.Abs(1 - math.Mod(8*p, 2)) },
	} {
		t.Run(name, func(t *testing.T) {
			a := New()
			defer a.Close()
			r := rand.New(rand.NewPCG(1, 1))
			var blocks [][]byte
			steps := 600_000
			if poison { // filling takes long
				steps /= 10
			}
			for i, used := 0, 0; i < steps; i++ {
				mean := 500 * math.Pow(16, at(float64(i)/float64(steps)))
				b := a.Alloc(int(mean * (0.95 + 0.1*r.Float64())))
				blocks = append(blocks, b)
				for used += len(b); used > inUse; {
					at := r.IntN(len(blocks))
					b := blocks[at]
					blocks[at] = blocks[len(blocks)-1]
					blocks = blocks[:len(blocks)-1]
					used -= len(b)
					a.Retire(b)
				}
			}
			if s := a.Stats(); s.Mapped > 2*inUse {
				t.Errorf("%d MB are mapped for %d", s.Mapped>>20, inUse>>20)
			}
		})
	}
}

// Memory that nobody uses any more goes back to the system, most of it.
func TestFreeMemoryGoesBack(t *testing.T) {
	a := New()
	defer a.Close()
	var blocks [][]byte
	for range 8 * chunkBytes / largeBytes {
		blocks = append(blocks, a.Alloc(largeBytes))
	}
	if s := a.Stats(); s.Mapped != 8*chunkBytes {
		t.Fatalf("%+v", s)
	}
	for _, b := range blocks[chunkBytes/largeBytes:] {
		a.Retire(b)
	}
	for range 3 {
		a.mu.Lock()
		a.advance()
		a.mu.Unlock()
	}
	if s := a.Stats(); s.Mapped != 2*chunkBytes || s.Used != chunkBytes {
		t.Errorf("%+v, of which the rest is free", s)
	}
}

// What a reader may have found is not given out before it leaves, and is soon
// after.
func TestRetiredBlocksWaitForReaders(t *testing.T) {
	a := New()
	defer a.Close()
	held := a.Alloc(100)
	churn := func() (again bool) {
		for range 50 * patience {
			b := a.Alloc(100)
			again = again || address(b) == address(held)
			a.Retire(b)
		}
		return again
	}
	early := a.Enter()
	churn()
	late := a.Enter()
	a.Retire(held)
	early.Leave()
	if churn() {
		t.Fatal("a block was used again before a reader left that entered before it was retired")
	}
	after := a.Enter()
	late.Leave()
	after.Leave()
	if !churn() {
		t.Error("a retired block is never used again")
	}
	if s := a.Stats(); s.Mapped > chunkBytes {
		t.Errorf("%d bytes mapped for blocks of 100", s.Mapped)
	}
}

// A reader that was slow to count itself, while epochs passed, must try again.
func TestEnterIsNeverLate(t *testing.T) {
	a := New()
	epoch := a.readers.epoch.Load()
	a.mu.Lock()
	a.advance()
	a.mu.Unlock()
	if _, ok := a.readers.enter(0, epoch); ok {
		t.Error("a reader entered an epoch that is over")
	}
	if a.readers.any(epoch) || a.readers.any(epoch+1) {
		t.Error("it is still counted")
	}
	if r, ok := a.readers.enter(0, epoch+1); !ok || !a.readers.any(epoch+1) {
		t.Error("a reader cannot enter the epoch")
	} else {
		r.Leave()
	}
}

// One epoch passes beside a reader, and no second one.
func TestOneEpochPassesBesideAReader(t *testing.T) {
	a := New()
	defer a.Close()
	advance := func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.advance()
	}
	for range 3 {
		r := a.Enter()
		if !advance() || advance() {
			t.Error("no epoch passes beside a reader, or two do")
		}
		next := a.Enter()
		r.Leave()
		if !advance() || advance() {
			t.Error("no epoch passes beside a later reader, or two do")
		}
		next.Leave()
		if !advance() {
			t.Error("no epoch passes without readers")
		}
	}
}

// Who still reads when the arena is closed may read on.
func TestCloseBesideAReader(t *testing.T) {
	a := New()
	b := a.Alloc(100)
	b[99] = 7
	r := a.Enter()
	a.Close()
	if b[99] != 7 {
		t.Error("the block changed")
	}
	r.Leave()
}

// What is given back after the end is nobody's.
func TestGiveBackAfterClose(t *testing.T) {
	a := New()
	var blocks [][]byte
	for range 5 * patience {
		blocks = append(blocks, a.Alloc(100))
	}
	a.Close()
	a.Free(blocks[0])
	for _, b := range blocks[1:] {
		a.Retire(b)
	}
	if s := a.Stats(); s != (Stats{}) {
		t.Errorf("%+v", s)
	}
}

// Blocks of a megabyte or a few, as timelines of a thousand records are, take
// little more than their size.
func TestMegabytes(t *testing.T) {
	a := New()
	defer a.Close()
	const size, blocks = 1100 << 10, 56
	for range blocks {
		a.Alloc(size)
	}
	if s := a.Stats(); s.Mapped > blocks*size*6/5 {
		t.Errorf("%d blocks of %d bytes: %+v", blocks, size, s)
	}
}

// A free block serves smaller ones before more memory is mapped.
func TestLargeBlocksAreSplit(t *testing.T) {
	a := New()
	defer a.Close()
	var blocks [][]byte
	for range chunkBytes / largeBytes {
		blocks = append(blocks, a.Alloc(largeBytes))
	}
	for _, b := range blocks {
		a.Free(b)
	}
	for range chunkBytes / 4096 {
		a.Alloc(4096)
	}
	if s := a.Stats(); s.Mapped != chunkBytes || s.Used != chunkBytes {
		t.Errorf("%+v, want one mapping in full use", s)
	}
	a.Alloc(1)
	if s := a.Stats(); s.Mapped != 2*chunkBytes {
		t.Errorf("%+v, want two mappings", s)
	}
}

// TestReadersNeverSeeReusedMemory replaces blocks while readers read them: a
// block is a number, over and over, under the key that it was published for.
// Under the race detector a block that is used too early is a race, and freed
// memory is poisoned.
func TestReadersNeverSeeReusedMemory(t *testing.T) {
	const keys, words = 64, 24
	a := New()
	defer a.Close()
	var published [keys]atomic.Uintptr
	write := func(r *rand.Rand, key int, stamp uint64) {
		n := 8 * (3 + r.IntN(words))
		b := a.Alloc(n)
		binary.LittleEndian.PutUint64(b, uint64(n/8))
		for i := 8; i < n; i += 8 {
			binary.LittleEndian.PutUint64(b[i:], stamp*keys+uint64(key))
		}
		if was := published[key].Swap(address(b)); was != 0 {
			old := unsafe.Slice((*byte)(pointer(was)), 8)
			a.Retire(unsafe.Slice((*byte)(pointer(was)), 8*binary.LittleEndian.Uint64(old)))
		}
	}
	r := rand.New(rand.NewPCG(7, 7))
	for key := range keys {
		write(r, key, 0)
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	var reads atomic.Int64
	for range 3 {
		wg.Go(func() {
			for {
				reader := a.Enter()
				var found [keys]*uint64
				for i := range found {
					found[i] = (*uint64)(pointer(published[i].Load()))
				}
				for range 3 {
					for key, p := range found {
						b := unsafe.Slice(p, *p)
						for _, w := range b[1:] {
							if w != b[1] || w%keys != uint64(key) {
								t.Errorf("key %d: a block with %x and %x", key, b[1], w)
								reader.Leave()
								return
							}
						}
					}
				}
				reader.Leave()
				reads.Add(1)
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for stamp := uint64(1); stamp < 30_000 || reads.Load() < 100 && !t.Failed(); stamp++ {
		write(r, r.IntN(keys), stamp)
	}
	close(done)
	wg.Wait()
}

func BenchmarkEnter(b *testing.B) {
	a := New()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			a.Enter().Leave()
		}
	})
}

func BenchmarkAlloc(b *testing.B) {
	a := New()
	defer a.Close()
	for b.Loop() {
		a.Retire(a.Alloc(1000))
	}
}

// sizeOf returns the size of a class.
func sizeOf(class int) int {
	if class <= fineBytes/Align {
		return class * Align
	}
	over := class - fineBytes/Align - 1
	return (steps + 1 + over%steps) * (fineBytes / steps) << (over / steps)
}

// What no arena has given out is not freed: that is told at once, and nothing else is freed in
// its place.
func TestWhatIsNoBlockIsNotFreed(t *testing.T) {
	var f freeList
	memory := make([]byte, 3*chunkBytes)
	f.grow(memory[chunkBytes : 2*chunkBytes : 2*chunkBytes])
	for _, at := range []uintptr{address(memory), address(memory[chunkBytes:]) - 1, address(memory[2*chunkBytes:]), address(memory[3*chunkBytes-1:])} {
		func() {
			defer func() {
				if got := recover(); got != "arena: freed what is not a block" {
					t.Errorf("%d bytes from the chunk it says %v", int64(at)-int64(address(memory[chunkBytes:])), got)
				}
			}()
			f.chunkOf(at)
		}()
	}
	for _, at := range []uintptr{address(memory[chunkBytes:]), address(memory[2*chunkBytes-1:])} {
		if c := f.chunkOf(at); address(c.memory) != address(memory[chunkBytes:]) {
			t.Error("a chunk is not found")
		}
	}
}
