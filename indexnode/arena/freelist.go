package arena

import (
	"math/bits"
	"slices"
)

// freeList is the free memory of chunks. No two free blocks touch: memory that becomes
// free is joined with the free blocks beside it, so that what was given out in one size
// serves any other later.
//
// A free block keeps its size in its first and in its last bytes. It is in the list of
// the largest size class that fits into it. Its chunk has a bit for the line at which it
// begins and one for the line at which it ends. A line is Align bytes.
type freeList struct {
	lists  [classes]uintptr            // the first free block of each class, or 0
	some   [(classes + 63) / 64]uint64 // which lists are not empty
	bytes  int                         // in all free blocks
	chunks []*chunk                    // by address
}

// chunk is a mapping.
type chunk struct {
	memory      []byte
	first, last marks // the lines at which free blocks begin and end
}

// freeBlock is what stands at the beginning of a free block.
type freeBlock struct {
	size          int
	before, after uintptr // in its list, or 0
}

func freeBlockAt(at uintptr) *freeBlock { return (*freeBlock)(pointer(at)) }

// sizeBehind is where a free block that ends at end has its size again.
func sizeBehind(end uintptr) *int { return (*int)(pointer(end - 8)) }

// marks is a bit for each line of a chunk.
type marks []uint64

func (m marks) has(i int) bool { return m[i/64]>>(i%64)&1 != 0 }
func (m marks) flip(i int)     { m[i/64] ^= 1 << (i % 64) }

func (c *chunk) line(at uintptr) int { return int(at-address(c.memory)) / Align }

// grow adds a mapping, which is one free block.
func (f *freeList) grow(memory []byte) {
	lines := (len(memory)/Align + 63) / 64
	c := &chunk{memory, make(marks, lines), make(marks, lines)}
	i, _ := f.search(address(memory))
	f.chunks = slices.Insert(f.chunks, i, c)
	f.insert(c, address(memory), len(memory))
}

// shrink takes out a mapping that is all free, and returns it for the caller to unmap. It
// returns nil if there is none, or if it is the only mapping.
func (f *freeList) shrink() (memory []byte) {
	at := f.lists[classes-1]
	if at == 0 || len(f.chunks) == 1 {
		return nil
	}
	i, _ := f.search(at)
	c := f.chunks[i]
	f.remove(c, at)
	f.chunks = slices.Delete(f.chunks, i, i+1)
	return c.memory
}

// search returns the index in chunks of the chunk that has an address. If none has, ok is
// false and the index is where such a chunk belongs.
func (f *freeList) search(at uintptr) (int, bool) {
	return slices.BinarySearchFunc(f.chunks, at, func(c *chunk, at uintptr) int {
		switch first := address(c.memory); {
		case at < first:
			return 1
		case at-first >= uintptr(len(c.memory)):
			return -1
		}
		return 0
	})
}

func (f *freeList) chunkOf(at uintptr) *chunk {
	i, ok := f.search(at)
	if !ok {
		panic("arena: freed what is not a block")
	}
	return f.chunks[i]
}

// take returns the address of a block of a class, of size bytes. It is the beginning of a
// free block of the smallest class that is large enough, and the rest of that stays free.
// ok is false if there is none.
func (f *freeList) take(class, size int) (at uintptr, ok bool) {
	at = f.lists[f.notEmpty(class)]
	if at == 0 {
		return 0, false
	}
	c := f.chunkOf(at)
	if rest := f.remove(c, at) - size; rest > 0 {
		f.insert(c, at+uintptr(size), rest)
	}
	return at, true
}

// notEmpty returns the first class, from a class on, that has a free block. It returns 0 if
// none has, since class 0 is not used.
func (f *freeList) notEmpty(class int) int {
	word := class / 64
	for left := f.some[word] >> (class % 64) << (class % 64); ; left = f.some[word] {
		if left != 0 {
			return 64*word + bits.TrailingZeros64(left)
		}
		if word++; word == len(f.some) {
			return 0
		}
	}
}

// add makes n bytes free, and joins them with the free blocks beside them.
func (f *freeList) add(at uintptr, n int) {
	c := f.chunkOf(at)
	if end := at + uintptr(n); c.line(end) < len(c.memory)/Align && c.first.has(c.line(end)) {
		n += f.remove(c, end)
	}
	if i := c.line(at); i > 0 && c.last.has(i-1) {
		at -= uintptr(*sizeBehind(at))
		n += f.remove(c, at)
	}
	f.insert(c, at, n)
}

// insert adds a free block that touches no other.
func (f *freeList) insert(c *chunk, at uintptr, n int) {
	class := classWithin(n)
	x := freeBlockAt(at)
	*x = freeBlock{size: n, after: f.lists[class]}
	*sizeBehind(at + uintptr(n)) = n
	if x.after != 0 {
		freeBlockAt(x.after).before = at
	}
	f.lists[class] = at
	f.some[class/64] |= 1 << (class % 64)
	c.first.flip(c.line(at))
	c.last.flip(c.line(at+uintptr(n)) - 1)
	f.bytes += n
}

// remove takes a free block out, and returns its size.
func (f *freeList) remove(c *chunk, at uintptr) (n int) {
	x := *freeBlockAt(at)
	class := classWithin(x.size)
	if x.before != 0 {
		freeBlockAt(x.before).after = x.after
	} else if f.lists[class] = x.after; x.after == 0 {
		f.some[class/64] &^= 1 << (class % 64)
	}
	if x.after != 0 {
		freeBlockAt(x.after).before = x.before
	}
	c.first.flip(c.line(at))
	c.last.flip(c.line(at+uintptr(x.size)) - 1)
	f.bytes -= x.size
	return x.size
}

// classWithin returns the largest class whose blocks fit into n bytes.
func classWithin(n int) int {
	class, size := classOf(n)
	if size > n {
		class--
	}
	return class
}
