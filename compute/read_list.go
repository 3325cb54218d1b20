package compute

import (
	"encoding/binary"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/column"
)

// ReadBlock reads the head of an array's next block. It returns how many items the block
// has, 0 at the array's end; the position of the first item, or -1 if it gives up; and the
// position where the block must end, or -1 if the block's head does not say.
func ReadBlock(b []byte, at int) (count, next, end int) {
	if uint(at) < uint(len(b)) && b[at]&0x81 == 0 && int(b[at]>>1) < len(b)-at { // the usual: a count of one byte
		return int(b[at] >> 1), at + 1, -1
	}
	x, at := ReadLong(b, at)
	end = -1
	if int64(x) < 0 { // a negative count: the size in bytes follows
		var size uint64
		if size, at = ReadLong(b, at); at < 0 || size > uint64(len(b)-at) {
			return 0, -1, -1
		}
		x, end = -x, at+int(size)
	}
	if at < 0 || x > uint64(len(b)-at) { // an item has at least a byte
		return 0, -1, -1
	}
	return int(x), at, end
}

// done reports whether the array ends at a position: whether the next block has no items.
// Most arrays have one block.
func done(b []byte, at int) bool { return uint(at) < uint(len(b)) && b[at] == 0 }

// endBlock returns at, the position after a block's items, or -1 if the block's head said
// that it ends elsewhere.
func endBlock(at, end int) int {
	if end >= 0 && end != at {
		return -1
	}
	return at
}

// list returns the word of a list whose items are all that the heap has after its first
// from bytes. The word of an empty list is 0.
func list(heap []byte, from int) uint64 {
	if len(heap) == from {
		return 0
	}
	return column.LongWord(from, len(heap)-from)
}

// ReadFloats reads an array of floats, as doubles. Like all reads of arrays here, it
// appends the items to the heap, and returns the list's word, the position after the
// array (-1 if it gives up), and the heap.
func ReadFloats(b []byte, at int, heap []byte) (uint64, int, []byte) {
	from := len(heap)
	for {
		if done(b, at) {
			return list(heap, from), at + 1, heap
		}
		count, next, end := ReadBlock(b, at)
		if at = next; at < 0 {
			return 0, -1, heap
		}
		if 4*count > len(b)-at {
			return 0, -1, heap
		}
		to := len(heap)
		heap = slices.Grow(heap, 8*count)[:to+8*count]
		out := heap[to:]
		for items := b[at : at+4*count]; len(items) >= 4 && len(out) >= 8; items, out = items[4:], out[8:] {
			u := binary.LittleEndian.Uint32(items)
			if u>>23&0xff == 0xff { // NaN or infinite
				return 0, -1, heap
			}
			binary.LittleEndian.PutUint64(out, math.Float64bits(float64(math.Float32frombits(u))))
		}
		at = endBlock(at+4*count, end)
	}
}

// ReadDoubles reads an array of doubles; see ReadFloats.
func ReadDoubles(b []byte, at int, heap []byte) (uint64, int, []byte) {
	return numbers(b, at, heap, ReadDouble)
}

// ReadLongs reads an array of longs, as doubles; see ReadFloats.
func ReadLongs(b []byte, at int, heap []byte) (uint64, int, []byte) {
	return numbers(b, at, heap, func(b []byte, at int) (uint64, int) {
		x, at := ReadLong(b, at)
		return math.Float64bits(float64(int64(x))), at
	})
}

// ReadInts reads an array of ints, as doubles; see ReadFloats.
func ReadInts(b []byte, at int, heap []byte) (uint64, int, []byte) {
	return numbers(b, at, heap, func(b []byte, at int) (uint64, int) {
		x, at := ReadInt(b, at)
		return math.Float64bits(float64(int64(x))), at
	})
}

// numbers reads an array onto the heap; read reads an item as the bits of a double.
func numbers(b []byte, at int, heap []byte, read func([]byte, int) (uint64, int)) (uint64, int, []byte) {
	from := len(heap)
	for {
		if done(b, at) {
			return list(heap, from), at + 1, heap
		}
		count, next, end := ReadBlock(b, at)
		if at = next; at < 0 {
			return 0, -1, heap
		}
		for ; count > 0 && at >= 0; count-- {
			var x uint64
			x, at = read(b, at)
			heap = binary.LittleEndian.AppendUint64(heap, x)
		}
		at = endBlock(at, end)
	}
}

// ReadStrings reads an array of strings, each with its length in 4 bytes before it; see
// ReadFloats.
func ReadStrings(b []byte, at int, heap []byte) (uint64, int, []byte) {
	from := len(heap)
	for {
		if done(b, at) {
			return list(heap, from), at + 1, heap
		}
		count, next, end := ReadBlock(b, at)
		if at = next; at < 0 {
			return 0, -1, heap
		}
		for ; count > 0 && at >= 0; count-- {
			at, heap = item(b, at, heap)
		}
		at = endBlock(at, end)
	}
}

// item reads a string at a position, and appends its length in 4 bytes and then the string
// to the heap. It returns the position after the string, or -1 if it gives up.
func item(b []byte, at int, heap []byte) (int, []byte) {
	var x uint64
	if uint(at) < uint(len(b)) && b[at]&0x81 == 0 { // the usual: a length of one byte
		x = uint64(b[at] >> 1)
		at++
	} else {
		x, at = ReadLong(b, at)
	}
	if at < 0 || x > uint64(len(b)-at) {
		return -1, heap
	}
	n, rest := int(x), b[at:]
	heap = binary.LittleEndian.AppendUint32(heap, uint32(n))
	if n <= 8 && len(rest) >= 8 {
		if x := binary.LittleEndian.Uint64(rest); x&(1<<(8*n)-1)&highBits == 0 {
			return at + n, binary.LittleEndian.AppendUint64(heap, x)[:len(heap)+n]
		}
	}
	if s := rest[:n]; n >= 8 && valid(s) || utf8.Valid(s) {
		return at + n, append(heap, s...)
	}
	return -1, heap
}
