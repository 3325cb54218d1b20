package column

import (
	"math"
	"slices"
	"sync"
	"unsafe"
)

// Pack appends the rows of s to dst, packed as [Packed] says. The length of dst must be a
// multiple of 8. It fails with [ErrFull] if the rows are too many bytes.
func Pack(dst []byte, s *Slab) ([]byte, error) {
	k := packers.Get().(*packer)
	defer packers.Put(k)
	*k = packer{Slab: s, dst: dst, start: len(dst), heap: k.heap[:0], offs: k.offs, lens: k.lens, bodies: k.bodies, item: k.item}
	defer func() { k.Slab, k.dst = nil, nil }()
	return k.pack()
}

// packer packs one slab.
type packer struct {
	*Slab
	dst    []byte
	start  int      // where the packed rows begin in dst
	heap   []byte   // the heap of the packed rows, which pack appends to dst
	offs   []uint64 // of a column of strings or lists: where each row's value is, from its body on
	lens   []uint64 // and its length
	bodies []uint64 // where each row's body begins in heap
	item   []byte   // a list on its way into the heap
	full   bool     // a column is beyond what a descriptor can name

	// Where find last found bytes in a row's body, from both ends of the body.
	fromStart, fromEnd int
}

var packers = sync.Pool{New: func() any { return new(packer) }}

func (k *packer) pack() ([]byte, error) {
	l, rows := k.layout, k.rows
	columns := l.nullWords + len(l.fields)
	k.dst = append(k.dst, make([]byte, (headerBytes+4*columns+7)&^7)...)
	k.placeBodies()
	for n := range l.nullWords {
		words, _ := k.Nulls(64 * n)
		k.describe(n, k.numbers(words, Bool))
	}
	if l.time >= 0 {
		k.field(l.time)
	}
	hot := 0
	for _, cold := range []bool{false, true} {
		for f := range l.fields {
			if f != l.time && k.cold(f) == cold {
				k.field(f)
			}
		}
		if !cold {
			hot = len(k.dst) - k.start
		}
	}
	h := header{layout: l.number(), rows: uint32(rows), heap: uint32(len(k.dst) - k.start), hot: uint32(hot)}
	if l.time >= 0 && rows > 0 {
		h.oldest, h.newest = int64(k.Word(l.time, 0)), int64(k.Word(l.time, rows-1))
	}
	k.dst = append(k.dst, k.heap...)
	size := len(k.dst) - k.start
	if k.full || uint64(size) > math.MaxUint32 {
		return k.dst[:k.start], ErrFull
	}
	h.size = uint32(size)
	*(*header)(unsafe.Pointer(&k.dst[k.start])) = h
	return k.dst, nil
}

// describe sets the descriptor of a column.
func (k *packer) describe(column int, d descriptor) {
	*(*descriptor)(unsafe.Pointer(&k.dst[k.start+descriptorAt+4*column])) = d
}

// cold reports whether a field is mostly read only for the items of an answer, and not by
// filters and models.
func (k *packer) cold(f int) bool {
	switch field := &k.layout.fields[f]; {
	case f == k.layout.body, field.Role != "" && field.Role != "type", field.Kind == Doubles, field.Kind == Strings:
		return true
	case field.Kind == String:
		return slices.ContainsFunc(k.Column(f), func(w uint64) bool { return !IsInline(w) })
	}
	return false
}

func (k *packer) field(f int) {
	var d descriptor
	switch kind := k.layout.fields[f].Kind; {
	case kind == Doubles:
		d = k.doubles(f)
	case kind == Strings:
		d = k.strings(f)
	case kind == String && k.refers(f):
		d = k.texts(f)
	default:
		d = k.numbers(k.Column(f), kind)
	}
	k.describe(k.layout.nullWords+f, d)
}

// refers reports whether a column of strings is kept as references into the heap: if any is
// long, or if they are ids, which are parts of the body anyway. Ids that are all equal, or
// have one byte at most, take less as words.
func (k *packer) refers(f int) bool {
	var long, different uint64
	words := k.Column(f)
	for _, w := range words {
		if !IsInline(w) {
			return true
		}
		long |= w
		different |= w ^ words[0]
	}
	switch k.layout.fields[f].Role {
	case "id", "object", "entity":
		return different != 0 && long > math.MaxUint16 && k.layout.body >= 0
	}
	return false
}

// placeBodies copies the bodies to the heap, in order, and keeps where each begins. If
// bodies are not kept as references, all count as beginning at 0.
func (k *packer) placeBodies() {
	k.bodies = k.bodies[:0]
	body := k.layout.body
	if body < 0 || !k.refers(body) {
		k.bodies = append(k.bodies, make([]uint64, k.rows)...)
		return
	}
	for _, w := range k.Column(body) {
		k.bodies = append(k.bodies, uint64(len(k.heap)))
		k.heap = k.AppendString(k.heap, w)
	}
}

// room appends n zero bytes to dst at a multiple of align, and returns their offset from
// start.
func (k *packer) room(n, align int) (off int) {
	off = (len(k.dst) - k.start + align - 1) &^ (align - 1)
	k.dst = slices.Grow(k.dst, off+n+k.start-len(k.dst))
	from := len(k.dst)
	k.dst = k.dst[:k.start+off+n]
	clear(k.dst[from:])
	return off
}

// located returns the descriptor of a column at off.
func (k *packer) located(e encoding, off int) descriptor {
	if off/unit > maxUnits {
		k.full = true
		return 0
	}
	return descriptor(e) | descriptor(off/unit)<<8
}

// numbers writes words in the encoding that takes the fewest bytes. [Packed.StringAt]
// points at the bytes of a string within its word, so no word of a string is kept as a
// difference, nor in one byte.
func (k *packer) numbers(words []uint64, kind Kind) descriptor {
	if len(words) == 0 {
		return 0
	}
	least, most := words[0], words[0]
	for _, w := range words {
		if kind == Int || kind == Time {
			least, most = uint64(min(int64(least), int64(w))), uint64(max(int64(most), int64(w)))
		} else {
			least, most = min(least, w), max(most, w)
		}
	}
	if least == most {
		if least <= maxSmall {
			return descriptor(small) | descriptor(least)<<8
		}
		off := k.room(8, 8)
		k.put(off, words[:1], 8)
		return k.located(constant, off)
	}
	rows := len(words)
	best, cost := wide, 8*rows
	consider := func(e encoding, bytes int) {
		if bytes < cost {
			best, cost = e, bytes
		}
	}
	plain := most
	if int64(least) < 0 {
		plain = math.MaxUint64
	}
	if width := widthOf(plain); width < 8 {
		if kind == String {
			width = max(width, 2)
		}
		consider([...]encoding{1: narrow8, 2: narrow16, 4: narrow32}[width], width*rows)
	}
	if width := widthOf(most - least); width < 8 && kind != String {
		consider([...]encoding{1: offset8, 2: offset16, 4: offset32}[width], 8+width*rows)
	}
	if kind == Double && allFloat32(words) {
		consider(float32s, 4*rows)
	}
	var few [maxIndexed]uint64
	index := few[:0]
	if cost > rows+16 { // an indexed column takes no less: it has two different words at least
		index = distinct(index, words)
		if len(index) > 0 {
			consider(indexed, (rows+7)&^7+8*len(index))
		}
	}
	return k.encode(best, words, least, index)
}

// encode writes words in an encoding. least is the least word, for offset8 to offset32;
// index has the different words, for indexed.
func (k *packer) encode(e encoding, words []uint64, least uint64, index []uint64) descriptor {
	rows := len(words)
	switch e {
	case wide:
		off := k.room(8*rows, 8)
		k.put(off, words, 8)
		return k.located(e, off)
	case narrow8, narrow16, narrow32:
		width := 1 << (e - narrow8)
		off := k.room(width*rows, unit)
		k.put(off, words, width)
		return k.located(e, off)
	case offset8, offset16, offset32:
		width := 1 << (e - offset8)
		off := k.room(8+width*rows, 8)
		k.put(off, []uint64{least}, 8)
		for i, w := range words {
			k.put(off+8+width*i, []uint64{w - least}, width)
		}
		return k.located(e, off)
	case float32s:
		off := k.room(4*rows, unit)
		for i, w := range words {
			k.put(off+4*i, []uint64{uint64(math.Float32bits(float32(math.Float64frombits(w))))}, 4)
		}
		return k.located(e, off)
	}
	behind := (rows + 7) &^ 7
	off := k.room(behind+8*len(index), 8)
	for i, w := range words {
		k.dst[k.start+off+i] = byte(slices.Index(index, w))
	}
	k.put(off+behind, index, 8)
	return k.located(indexed, off)
}

// put writes words at off, width bytes each.
func (k *packer) put(off int, words []uint64, width int) {
	b := unsafe.Pointer(&k.dst[k.start+off])
	for i, w := range words {
		switch width {
		case 1:
			*(*uint8)(unsafe.Add(b, i)) = uint8(w)
		case 2:
			*(*uint16)(unsafe.Add(b, 2*i)) = uint16(w)
		case 4:
			*(*uint32)(unsafe.Add(b, 4*i)) = uint32(w)
		default:
			*(*uint64)(unsafe.Add(b, 8*i)) = w
		}
	}
}

// widthOf returns how many bytes a number from 0 to most needs: 1, 2, 4 or 8.
func widthOf(most uint64) int {
	switch {
	case most <= math.MaxUint8:
		return 1
	case most <= math.MaxUint16:
		return 2
	case most <= math.MaxUint32:
		return 4
	}
	return 8
}

func allFloat32(words []uint64) bool {
	return !slices.ContainsFunc(words, func(w uint64) bool { return !isFloat32(w) })
}

// isFloat32 reports whether a float32 holds the double of these bits.
func isFloat32(w uint64) bool {
	return math.Float64bits(float64(float32(math.Float64frombits(w)))) == w
}

// isInt8 reports whether the double of these bits is a whole number from -128 to 127. It is
// false for -0: an int8 has only one zero.
func isInt8(w uint64) bool {
	x := math.Float64frombits(w)
	return x >= math.MinInt8 && x <= math.MaxInt8 && math.Float64bits(float64(int8(x))) == w
}

// maxIndexed is the most different words that an indexed column may have.
const maxIndexed = 32

// distinct appends the different words to dst, none if there are too many.
func distinct(dst, words []uint64) []uint64 {
	for _, w := range words {
		if slices.Contains(dst, w) {
			continue
		}
		if len(dst) == maxIndexed {
			return dst[:0]
		}
		dst = append(dst, w)
	}
	return dst
}
