package column

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"unsafe"
)

// This file packs what is kept in the heap: strings and lists.

// texts writes a column of strings that are kept in the heap.
func (k *packer) texts(f int) descriptor {
	k.begin()
	for row, w := range k.Column(f) {
		off, n := k.placeText(f, row, w)
		k.offs, k.lens = append(k.offs, off), append(k.lens, n)
	}
	return k.references(texts, 0)
}

// begin begins a column of texts or lists.
func (k *packer) begin() {
	k.offs, k.lens, k.fromStart, k.fromEnd = k.offs[:0], k.lens[:0], 0, 0
}

// references writes the column of what was placed since begin: where each value is, and its
// length. width is the bytes of an item of doubles, else 0.
func (k *packer) references(e encoding, width int) descriptor {
	if !slices.ContainsFunc(k.lens, func(n uint64) bool { return n > 0 }) {
		return descriptor(small)
	}
	parts := k.room(12, unit)
	offs, lens := k.numbers(k.offs, Int), k.numbers(k.lens, Int)
	*(*[3]descriptor)(unsafe.Pointer(&k.dst[k.start+parts])) = [3]descriptor{offs, lens, descriptor(width)}
	return k.located(e, parts)
}

// placeText returns where a string is in the heap, counted from where the row's body
// begins, and its length. A string that is not part of the body is copied. The body
// itself counts from the beginning of the heap.
func (k *packer) placeText(f, row int, w uint64) (off, n uint64) {
	l := k.layout
	if f == l.body {
		return k.bodies[row], uint64(k.stringLen(w))
	}
	if w == 0 {
		return 0, 0
	}
	if IsInline(w) {
		var b [8]byte
		return k.place(row, k.AppendString(b[:0], w))
	}
	n = w >> 8 & maxRefLen
	body := k.body(row)
	if from, size := body>>32, body>>8&maxRefLen; !IsInline(body) && w>>32 >= from && w>>32+n <= from+size {
		return w>>32 - from, n
	}
	return k.copied(row, k.ref(w)), n
}

// body returns the word of a row's body, 0 where there is none.
func (k *packer) body(row int) uint64 {
	if k.layout.body < 0 {
		return 0
	}
	return k.Word(k.layout.body, row)
}

// place returns where bytes are in the heap, counted from where the row's body begins,
// and how many. If they are not part of the body, it copies them.
func (k *packer) place(row int, b []byte) (off, n uint64) {
	if body := k.body(row); !IsInline(body) {
		if i := k.find(k.ref(body), b); i >= 0 {
			return uint64(i), uint64(len(b))
		}
	}
	return k.copied(row, b), uint64(len(b))
}

// find returns where b is in a body, or -1. It first looks where it last found something,
// since records of a schema have a field at about the same place, counted from one end or
// the other.
func (k *packer) find(body, b []byte) int {
	for _, at := range [...]int{k.fromStart, len(body) - k.fromEnd} {
		if at >= 0 && at+len(b) <= len(body) && bytes.Equal(body[at:at+len(b)], b) {
			k.fromStart, k.fromEnd = at, len(body)-at
			return at
		}
	}
	at := bytes.Index(body, b)
	if at >= 0 {
		k.fromStart, k.fromEnd = at, len(body)-at
	}
	return at
}

// copied copies bytes to the heap, and returns where they are, counted from where the
// row's body begins. That may be negative, and wraps around.
func (k *packer) copied(row int, b []byte) (off uint64) {
	off = uint64(len(k.heap)) - k.bodies[row]
	k.heap = append(k.heap, b...)
	return off
}

// strings writes a column of lists of strings.
func (k *packer) strings(f int) descriptor {
	k.begin()
	for row, w := range k.Column(f) {
		k.item = k.item[:0]
		for r := k.list(w); len(r) >= 4; {
			n := binary.LittleEndian.Uint32(r)
			k.item = append(binary.AppendVarint(k.item, int64(n)), r[4:4+n]...)
			r = r[4+n:]
		}
		k.placeItems(row, len(k.item))
	}
	return k.references(lists, 0)
}

// list returns the bytes of a list in the slab's heap.
func (k *packer) list(w uint64) []byte {
	if w == 0 {
		return nil
	}
	return k.ref(w)
}

// placeItems places the list in k.item, whose length is to be kept as length.
func (k *packer) placeItems(row, length int) {
	var off uint64
	if length > 0 {
		off, _ = k.place(row, k.item)
	}
	k.offs, k.lens = append(k.offs, off), append(k.lens, uint64(length))
}

// doubles writes a column of lists of doubles. All items get the same width, which holds
// them exactly, and for which the fewest bytes must be copied: bodies have some widths
// already.
func (k *packer) doubles(f int) descriptor {
	before := len(k.heap)
	exact := k.width(f)
	best, least, placed := 0, 0, 0
	for _, width := range [...]int{1, 4, 8} {
		if width < exact {
			continue
		}
		k.heap = k.heap[:before]
		k.placeDoubles(f, width)
		placed = width
		if bytes := len(k.heap) - before; best == 0 || bytes < least {
			best, least = width, bytes
		}
		if least == 0 {
			break
		}
	}
	if placed != best {
		k.heap = k.heap[:before]
		k.placeDoubles(f, best)
	}
	return k.references(lists, best)
}

// width returns how many bytes hold every item of a column of lists exactly: 1, 4 or 8.
func (k *packer) width(f int) int {
	width := 1
	for _, w := range k.Column(f) {
		for r := k.list(w); len(r) >= 8; r = r[8:] {
			switch x := binary.LittleEndian.Uint64(r); {
			case !isFloat32(x):
				return 8
			case width == 1 && !isInt8(x):
				width = 4
			}
		}
	}
	return width
}

// placeDoubles places the lists of a column with width bytes an item.
func (k *packer) placeDoubles(f, width int) {
	k.begin()
	for row, w := range k.Column(f) {
		r := k.list(w)
		k.item = k.item[:0]
		if width == 8 {
			k.item = append(k.item, r...)
		} else {
			for r := r; len(r) >= 8; r = r[8:] {
				if x := math.Float64frombits(binary.LittleEndian.Uint64(r)); width == 4 {
					k.item = binary.LittleEndian.AppendUint32(k.item, math.Float32bits(float32(x)))
				} else {
					k.item = append(k.item, byte(int8(x)))
				}
			}
		}
		k.placeItems(row, len(r)/8)
	}
}
