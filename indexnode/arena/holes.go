package arena

import (
	"math/bits"
	"slices"
)

// holes is the free memory of chunks. No two holes touch: what becomes free is
// joined with the holes beside it, so that memory given out in one size serves
// any other later.
//
// A hole keeps its size in its first and in its last bytes, and stands in the
// list of its class, the largest that is not larger. Its chunk has a bit where
// it begins and one where it ends.
type holes struct {
	lists  [classes]uintptr            // the first hole of each class, or 0
	some   [(classes + 63) / 64]uint64 // which lists are not empty
	bytes  int
	chunks []*chunk // by address
}

// chunk is a mapping.
type chunk struct {
	memory      []byte
	first, last marks // the lines at which holes begin and end
}

// hole is the beginning of one.
type hole struct {
	size          int
	before, after uintptr // in its list, or 0
}

func holeAt(at uintptr) *hole { return (*hole)(pointer(at)) }

// sizeBehind is where a hole that ends at end has its size again.
func sizeBehind(end uintptr) *int { return (*int)(pointer(end - 8)) }

// marks is a bit for each line of a chunk.
type marks []uint64

func (m marks) has(i int) bool { return m[i/64]>>(i%64)&1 != 0 }
func (m marks) flip(i int)     { m[i/64] ^= 1 << (i % 64) }

func (c *chunk) line(at uintptr) int { return int(at-address(c.memory)) / Align }

// grow adds a mapping, which is one hole.
func (h *holes) grow(memory []byte) {
	lines := (len(memory)/Align + 63) / 64
	c := &chunk{memory, make(marks, lines), make(marks, lines)}
	i, _ := h.search(address(memory))
	h.chunks = slices.Insert(h.chunks, i, c)
	h.insert(c, address(memory), len(memory))
}

// shrink takes a mapping that is one hole out, or returns nil if there is none
// or no other.
func (h *holes) shrink() (memory []byte) {
	at := h.lists[classes-1]
	if at == 0 || len(h.chunks) == 1 {
		return nil
	}
	i, _ := h.search(at)
	c := h.chunks[i]
	h.remove(c, at)
	h.chunks = slices.Delete(h.chunks, i, i+1)
	return c.memory
}

func (h *holes) search(at uintptr) (int, bool) {
	return slices.BinarySearchFunc(h.chunks, at, func(c *chunk, at uintptr) int {
		switch first := address(c.memory); {
		case at < first:
			return 1
		case at-first >= uintptr(len(c.memory)):
			return -1
		}
		return 0
	})
}

func (h *holes) chunkOf(at uintptr) *chunk {
	i, ok := h.search(at)
	if !ok {
		panic("arena: freed what is not a block")
	}
	return h.chunks[i]
}

// take returns a block of a class, of the smallest hole that is known to have
// room for it, or false if there is none.
func (h *holes) take(class, size int) (at uintptr, ok bool) {
	at = h.lists[h.notEmpty(class)]
	if at == 0 {
		return 0, false
	}
	c := h.chunkOf(at)
	if rest := h.remove(c, at) - size; rest > 0 {
		h.insert(c, at+uintptr(size), rest)
	}
	return at, true
}

// notEmpty returns the first class from one on of which there is a hole, or 0,
// of which there is none.
func (h *holes) notEmpty(class int) int {
	word := class / 64
	for left := h.some[word] >> (class % 64) << (class % 64); ; left = h.some[word] {
		if left != 0 {
			return 64*word + bits.TrailingZeros64(left)
		}
		if word++; word == len(h.some) {
			return 0
		}
	}
}

// add makes n bytes free.
func (h *holes) add(at uintptr, n int) {
	c := h.chunkOf(at)
	if end := at + uintptr(n); c.line(end) < len(c.memory)/Align && c.first.has(c.line(end)) {
		n += h.remove(c, end)
	}
	if i := c.line(at); i > 0 && c.last.has(i-1) {
		at -= uintptr(*sizeBehind(at))
		n += h.remove(c, at)
	}
	h.insert(c, at, n)
}

// insert adds a hole that touches no other.
func (h *holes) insert(c *chunk, at uintptr, n int) {
	class := classWithin(n)
	x := holeAt(at)
	*x = hole{size: n, after: h.lists[class]}
	*sizeBehind(at + uintptr(n)) = n
	if x.after != 0 {
		holeAt(x.after).before = at
	}
	h.lists[class] = at
	h.some[class/64] |= 1 << (class % 64)
	c.first.flip(c.line(at))
	c.last.flip(c.line(at+uintptr(n)) - 1)
	h.bytes += n
}

// remove takes a hole out, and returns its size.
func (h *holes) remove(c *chunk, at uintptr) (n int) {
	x := *holeAt(at)
	class := classWithin(x.size)
	if x.before != 0 {
		holeAt(x.before).after = x.after
	} else if h.lists[class] = x.after; x.after == 0 {
		h.some[class/64] &^= 1 << (class % 64)
	}
	if x.after != 0 {
		holeAt(x.after).before = x.before
	}
	c.first.flip(c.line(at))
	c.last.flip(c.line(at+uintptr(x.size)) - 1)
	h.bytes -= x.size
	return x.size
}

// classWithin returns the largest class that n bytes have room for.
func classWithin(n int) int {
	class, size := classOf(n)
	if size > n {
		class--
	}
	return class
}
