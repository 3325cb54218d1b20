package arena

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
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
