// Package arena is memory that the garbage collector does not see, for what a
// cache holds: blocks without pointers, which readers use without locks.
//
//	Alloc ─► block ─► published ─► replaced ─► Retire ─► waits for readers ─► free
//	                     │                                    ▲
//	Enter ──────────► readers read it ──────────► Leave ──────┘
//
// A retired block is used again once every reader that entered before it was
// retired has left. Epochs tell when that is so: a reader belongs to the epoch in
// which it entered, epoch e+1 begins only when the readers of epoch e-1 have left,
// and a block that was retired in epoch e is free from epoch e+2 on.
//
// Blocks come from a few large mappings with huge pages, since what makes a
// random read slow is often the look-up of its address. Free memory serves
// blocks of any size: see freeList. A mapping that is all free goes back to the
// system while more than half of the mapped memory is free.
package arena

import (
	"fmt"
	"math/bits"
	"sync"
	"unsafe"
)

// Align is the size of a cache line, in bytes. The address of every block is a multiple
// of it.
const Align = 64

const (
	fineBytes  = 4 << 10 // up to here there is a size class every 64 bytes
	largeBytes = 8 << 20 // a larger block has a mapping of its own
	steps      = 16      // size classes of every doubling beyond fineBytes
	// classes is the number of size classes up to chunkBytes, 13 doublings beyond
	// fineBytes. Class 0 is not used.
	classes = fineBytes/Align + steps*13 + 1
	// chunkBytes is the size of a mapping that has many blocks.
	chunkBytes = 32 << 20
	// patience is after how many retired blocks the arena looks whether readers have
	// left, so that earlier blocks are free.
	patience = 64
)

// Arena gives out memory. It is safe for concurrent use.
type Arena struct {
	readers readers

	mu struct {
		sync.Mutex
		free    freeList
		large   map[uintptr][]byte // mappings of single blocks, by address
		limit   int                // bounds mapped bytes, without apart; 0: no bound
		apart   int                // bytes mapped for AllocApart
		retired [3][]block         // blocks that wait for readers, by their epoch modulo 3
		since   int                // blocks retired since the readers were looked at
		live    int                // see Live
		stats   Stats
		closed  bool
	}
}

// Stats is what an arena holds, in bytes.
type Stats struct {
	Mapped  int // taken from the system
	Used    int // in blocks given out, of which there are Blocks
	Retired int // asked for in blocks that wait for readers; Used counts these blocks, too
	Blocks  int // the number of blocks in Used
}

// block is a block that was given out.
type block struct {
	at    uintptr
	size  int  // as it was asked for
	apart bool // from AllocApart
}

// New returns an empty arena. Close it when no block of it is in use.
func New() *Arena {
	a := &Arena{}
	a.mu.large = make(map[uintptr][]byte)
	a.readers.epoch.Store(firstEpoch)
	return a
}

// classOf returns the smallest size class that holds n bytes, and the bytes of a block of
// this class.
func classOf(n int) (class, size int) {
	if n <= fineBytes {
		class = max(n+Align-1, Align) / Align
		return class, class * Align
	}
	shift := bits.Len(uint(n-1)) - 5 // so that n is 16 to 32 times the step
	step := 1 << shift
	up := (n + step - 1) >> shift // 17 to 32
	doubling := shift - (bits.Len(uint(fineBytes)) - 5)
	return fineBytes/Align + doubling*steps + up - steps, up << shift
}

// sizeOfBlock returns how many bytes a block for n bytes takes, unless it is from
// AllocApart.
func sizeOfBlock(n int) int {
	if n > largeBytes {
		return rounded(n)
	}
	_, size := classOf(n)
	return size
}

// Limit bounds the bytes that Alloc may have mapped, from now on; 0 is no bound. What
// [Arena.AllocApart] maps does not count.
func (a *Arena) Limit(bytes int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.limit = bytes
}

// Live returns the bytes of blocks that are in use. It leaves out blocks that wait for
// readers and those of AllocApart.
func (a *Arena) Live() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.live
}

// AllocApart returns a block of n bytes with a mapping of its own, whatever the limit. Give
// it back by [Arena.RetireApart]. It panics if the arena is closed or the system has no
// memory.
func (a *Arena) AllocApart(n int) []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.closed {
		panic("arena: closed")
	}
	b := mapped(n)
	a.mu.large[address(b)] = b
	a.mu.apart += len(b)
	a.mu.stats.Mapped += len(b)
	a.mu.stats.Used += len(b)
	a.mu.stats.Blocks++
	return b[:n:n]
}

// RetireApart is Retire for a block of AllocApart.
func (a *Arena) RetireApart(b []byte) { a.retire(block{address(b), len(b), true}) }

// Alloc returns a block of n bytes with any content. It returns nil if no free memory is
// large enough and the limit forbids to map more. It panics if the arena is closed or the
// system has no memory.
func (a *Arena) Alloc(n int) []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.closed {
		panic("arena: closed")
	}
	var at uintptr
	var size int
	if n > largeBytes {
		at, size = a.allocLarge(n)
	} else {
		var class int
		class, size = classOf(n)
		at = a.take(class, size)
	}
	if at == 0 {
		return nil
	}
	a.mu.live += size
	a.mu.stats.Used += size
	a.mu.stats.Blocks++
	return unsafe.Slice((*byte)(pointer(at)), n)
}

// pointer returns an address as a pointer. Chunks or large keep the memory there.
func pointer(at uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&at)) }

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// mayMap reports whether the limit allows n more bytes to be mapped. If need be it first
// gives mappings that are all free back to the system.
func (a *Arena) mayMap(n int) bool {
	for a.mu.limit > 0 && a.mu.stats.Mapped-a.mu.apart+n > a.mu.limit {
		memory := a.mu.free.shrink()
		if memory == nil {
			return false
		}
		a.mu.stats.Mapped -= len(memory)
		unmap(memory)
	}
	return true
}

// allocLarge returns a block with a mapping of its own, or 0.
func (a *Arena) allocLarge(n int) (at uintptr, size int) {
	for !a.mayMap(rounded(n)) {
		if a.mu.stats.Retired == 0 || !a.advance() {
			return 0, 0
		}
	}
	b := mapped(n)
	at = address(b)
	a.mu.large[at] = b
	a.mu.stats.Mapped += len(b)
	return at, len(b)
}

// take returns a block of a class. It tries free memory, then retired blocks whose readers
// have left by now, then a new mapping. It returns 0 if the limit forbids that.
func (a *Arena) take(class, size int) uintptr {
	at, ok := a.mu.free.take(class, size)
	for !ok && a.mu.stats.Retired > 0 && a.advance() {
		at, ok = a.mu.free.take(class, size)
	}
	if !ok && !a.mayMap(chunkBytes) {
		return 0
	}
	if !ok {
		memory := mapped(chunkBytes)
		a.mu.stats.Mapped += len(memory)
		a.mu.free.grow(memory)
		at, _ = a.mu.free.take(class, size)
	}
	return at
}

// Free gives back a block of Alloc that no reader can have seen. It does nothing once the
// arena is closed.
func (a *Arena) Free(b []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.mu.closed {
		a.mu.live -= sizeOfBlock(len(b))
		a.free(block{address(b), len(b), false})
	}
}

// Retire gives back a block of Alloc that readers may still be reading, but that no new
// reader can find. It does nothing once the arena is closed.
func (a *Arena) Retire(b []byte) { a.retire(block{address(b), len(b), false}) }

func (a *Arena) retire(b block) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.closed {
		return
	}
	if !b.apart {
		a.mu.live -= sizeOfBlock(b.size)
	}
	retired := &a.mu.retired[a.readers.epoch.Load()%3]
	*retired = append(*retired, b)
	a.mu.stats.Retired += b.size
	if a.mu.since++; a.mu.since >= patience {
		a.advance()
	}
}

// advance begins the next epoch if the readers of the previous one have left, and frees
// what was retired in that previous one. It reports whether it did. The caller holds mu.
func (a *Arena) advance() bool {
	a.mu.since = 0
	epoch := a.readers.epoch.Load()
	if a.readers.any(epoch - 1) {
		return false
	}
	epoch++
	a.readers.epoch.Store(epoch)
	gone := &a.mu.retired[(epoch-2)%3]
	for _, b := range *gone {
		a.mu.stats.Retired -= b.size
		a.free(b)
	}
	*gone = (*gone)[:0]
	return true
}

// free makes the memory of a block free, or unmaps it if the block has a mapping of its
// own. The caller holds mu.
func (a *Arena) free(b block) {
	if poison {
		dead := unsafe.Slice((*byte)(pointer(b.at)), b.size)
		for i := range dead {
			dead[i] = poisonByte
		}
	}
	a.mu.stats.Blocks--
	if b.apart || b.size > largeBytes {
		m, ok := a.mu.large[b.at]
		if !ok {
			panic(fmt.Sprintf("arena: %d bytes freed that are not a block", b.size))
		}
		delete(a.mu.large, b.at)
		if b.apart {
			a.mu.apart -= len(m)
		}
		a.mu.stats.Used -= len(m)
		a.mu.stats.Mapped -= len(m)
		unmap(m)
		return
	}
	_, size := classOf(b.size)
	a.mu.stats.Used -= size
	h := &a.mu.free
	h.add(b.at, size)
	for 2*h.bytes > a.mu.stats.Mapped {
		memory := h.shrink()
		if memory == nil {
			break
		}
		a.mu.stats.Mapped -= len(memory)
		unmap(memory)
	}
}

// poisonByte is what freed memory is filled with if poison is true, so that a read of
// it shows.
const poisonByte = 0xdb

// Stats returns what the arena holds.
func (a *Arena) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.stats
}

// Close gives all memory back to the system. If a reader has not left it gives back none:
// a late read at the end of a process must not crash it.
func (a *Arena) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.closed {
		return
	}
	a.mu.closed = true
	if epoch := a.readers.epoch.Load(); a.readers.any(epoch) || a.readers.any(epoch-1) {
		return
	}
	for _, c := range a.mu.free.chunks {
		unmap(c.memory)
	}
	for _, b := range a.mu.large {
		unmap(b)
	}
	a.mu.free, a.mu.large, a.mu.stats, a.mu.retired = freeList{}, nil, Stats{}, [3][]block{}
}
