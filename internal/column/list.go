package column

import (
	"encoding/binary"
	"math"
	"unsafe"
)

// List is a list of doubles that stays where it is: in the heap of a slab, or in packed
// rows. It is valid as long as these are.
type List struct {
	at    unsafe.Pointer
	n     int32
	width int32 // bytes of an item: 8 of a double, 4 of a float32, 1 of a whole number from -128 to 127
}

// Len returns the number of items.
func (l List) Len() int { return int(l.n) }

// At returns an item; NaN if the list has no such item.
func (l List) At(i int) float64 {
	if uint(i) >= uint(l.n) {
		return math.NaN()
	}
	return l.item(i)
}

// item is At for an index that is in the list.
func (l List) item(i int) float64 {
	switch l.width {
	case 8:
		return math.Float64frombits(binary.LittleEndian.Uint64((*[8]byte)(unsafe.Add(l.at, 8*i))[:]))
	case 4:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32((*[4]byte)(unsafe.Add(l.at, 4*i))[:])))
	}
	return float64(*(*int8)(unsafe.Add(l.at, i)))
}

// Append appends the items to dst.
func (l List) Append(dst []float64) []float64 {
	for i := range l.Len() {
		dst = append(dst, l.item(i))
	}
	return dst
}

// appendItems appends the strings of a packed list to dst. They share its bytes, in which
// each string follows its length, as Avro writes them.
func appendItems(dst []string, b []byte) []string {
	for len(b) > 0 {
		n, at := binary.Varint(b)
		s := b[at:][:n]
		dst, b = append(dst, unsafe.String(unsafe.SliceData(s), len(s))), b[at+len(s):]
	}
	return dst
}
