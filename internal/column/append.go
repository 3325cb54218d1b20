package column

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// ErrFull is returned when a value or a slab would be larger than a reference can name:
// 16 MiB a value, 4 GiB of heap a slab.
var ErrFull = errors.New("column: value or slab too large")

// Row is the row that an [Appender] is writing.
//
// Values that are not set are zero and not null: false, 0, "", an empty list.
type Row struct {
	s   *Slab
	row int
	err error // the first value that does not fit; End returns it
}

// Appender appends rows to a slab on behalf of its one writer.
type Appender struct {
	next Slab // what is published next: rows counts the finished ones
}

// Append returns an appender that continues s. Readers of s never see what is appended; the
// slab that [Appender.Slab] returns has it. Slabs that continue each other share memory, so
// only the latest of them may be continued.
func (s *Slab) Append() *Appender { return &Appender{next: *s} }

// Slab returns the rows finished so far.
func (a *Appender) Slab() *Slab {
	s := a.next
	return &s
}

// Begin starts a row and reserves its memory. End finishes it; a row that is
// begun again without End is forgotten.
func (a *Appender) Begin() Row {
	s := &a.next
	if s.rows == s.stride {
		s.grow()
	}
	cols := s.layout.nullWords + len(s.layout.fields)
	for c := range cols {
		s.words[c*s.stride+s.rows] = 0
	}
	return Row{s: s, row: s.rows}
}

// End finishes the row, or reports why it cannot be kept.
func (a *Appender) End(r Row) error {
	if r.err != nil {
		return r.err
	}
	a.next.rows++
	return nil
}

// Heap returns the heap of the finished rows, for a caller that writes a row as words.
// The caller appends to the slice, and gives the row and the slice to
// [Appender.AppendWords]; or it drops both, and nothing has changed. ok is false if n
// more bytes might be too many for a reference.
func (a *Appender) Heap(n int) (heap []byte, ok bool) {
	heap = a.next.heap
	return heap, n <= maxRefLen && uint64(len(heap))+uint64(n) <= maxHeapLen
}

// AppendWords adds a finished row: its words of null bits, then one word a
// field, and the heap that they refer to, continued from [Appender.Heap].
func (a *Appender) AppendWords(words []uint64, heap []byte) {
	s := &a.next
	if len(words) != s.layout.nullWords+len(s.layout.fields) {
		panic(fmt.Sprintf("column: a row of %d words for %d columns", len(words), len(s.layout.fields)))
	}
	if s.rows == s.stride {
		s.grow()
	}
	to, stride := s.words[s.rows:], s.stride
	for ; len(words) >= 4; words = words[4:] { // by fours: the loop itself costs as much as a store
		to[0], to[stride], to[2*stride], to[3*stride] = words[0], words[1], words[2], words[3]
		to = to[min(4*stride, len(to)):]
	}
	for i, w := range words {
		to[i*stride] = w
	}
	s.heap = heap
	s.rows++
}

// grow makes room for half as many rows again.
func (s *Slab) grow() {
	cols := s.layout.nullWords + len(s.layout.fields)
	stride := s.stride + s.stride/2 + 4
	words := make([]uint64, cols*stride)
	for c := range cols {
		copy(words[c*stride:], s.words[c*s.stride:c*s.stride+s.rows])
	}
	s.words, s.stride = words, stride
}

func (r *Row) set(field int, w uint64) {
	r.s.words[(r.s.layout.nullWords+field)*r.s.stride+r.row] = w
}

// SetNull makes a value null; its word is 0.
func (r *Row) SetNull(field int) {
	r.s.words[field/64*r.s.stride+r.row] |= 1 << (field % 64)
	r.set(field, 0)
}

// CopyField copies what a field has so far, a null included, into another field of the same
// row: from is the index of the first, to that of the second. The two are of the same kind,
// or an Int becomes a Double.
func (r *Row) CopyField(to, from int) {
	r.s.words[to/64*r.s.stride+r.row] &^= 1 << (to % 64)
	switch w := r.s.words[(r.s.layout.nullWords+from)*r.s.stride+r.row]; {
	case r.s.Null(from, r.row):
		r.SetNull(to)
	case r.s.layout.fields[to].Kind == Double && r.s.layout.fields[from].Kind == Int:
		r.SetDouble(to, float64(int64(w)))
	default:
		r.set(to, w)
	}
}

// Set gives a field the value that it has in a row of another slab of the same layout.
func (r *Row) Set(field int, from *Slab, row int) { r.SetFrom(field, from, field, row) }

// SetFrom gives a field the value of a field of another slab, in a row there; of is the
// index of that field. The two are of the same kind, or an Int becomes a Double.
func (r *Row) SetFrom(field int, from *Slab, of, row int) {
	w := from.Word(of, row)
	switch kind := r.s.layout.fields[field].Kind; {
	case from.Null(of, row):
		r.SetNull(field)
	case kind == Double && from.layout.fields[of].Kind == Int:
		r.SetDouble(field, float64(int64(w)))
	case kind == String:
		r.SetString(field, from.BytesAt(of, row))
	case kind == Doubles:
		r.SetDoubles(field, from.Doubles(nil, w))
	case kind == Strings:
		r.SetStrings(field, from.Strings(nil, w))
	default:
		r.set(field, w)
	}
}

// SetBool sets a Bool that was not set before.
func (r *Row) SetBool(field int, v bool) {
	if v {
		r.set(field, 1)
	}
}

// SetInt sets an Int or a Time.
func (r *Row) SetInt(field int, v int64) { r.set(field, uint64(v)) }

// SetDouble sets a Double.
func (r *Row) SetDouble(field int, v float64) { r.set(field, math.Float64bits(v)) }

// Heap appends b to the heap and returns its offset, for [Row.SetHeapString]. A record's
// body goes there once, and its long strings point into it.
func (r *Row) Heap(b []byte) (off int) {
	off, ok := r.room(len(b))
	if ok {
		r.s.heap = append(r.s.heap, b...)
	}
	return off
}

// room returns the offset at which the next n bytes of the heap go, if they fit.
func (r *Row) room(n int) (off int, ok bool) {
	off = len(r.s.heap)
	if n > maxRefLen || uint64(off)+uint64(n) > maxHeapLen {
		r.err = ErrFull
		return 0, false
	}
	return off, true
}

// SetHeapString sets a String to v, which is in the heap already, at off.
func (r *Row) SetHeapString(field int, v []byte, off int) {
	if len(v) <= maxInline {
		r.setInline(field, v)
		return
	}
	r.set(field, refWord(off, len(v)))
}

// SetString sets a String, copying a long one to the heap.
func (r *Row) SetString(field int, v []byte) {
	if len(v) <= maxInline {
		r.setInline(field, v)
		return
	}
	r.set(field, refWord(r.Heap(v), len(v)))
}

func (r *Row) setInline(field int, v []byte) {
	w := uint64(len(v))
	for i, c := range v {
		w |= uint64(c) << (8 * (i + 1))
	}
	r.set(field, w)
}

// SetDoubles sets a list of doubles.
func (r *Row) SetDoubles(field int, v []float64) {
	off, ok := r.room(8 * len(v))
	if len(v) == 0 || !ok {
		return
	}
	for _, x := range v {
		r.s.heap = binary.LittleEndian.AppendUint64(r.s.heap, math.Float64bits(x))
	}
	r.set(field, refWord(off, 8*len(v)))
}

// SetStrings sets a list of strings.
func (r *Row) SetStrings(field int, v []string) {
	n := 0
	for _, x := range v {
		n += 4 + len(x)
	}
	off, ok := r.room(n)
	if len(v) == 0 || !ok {
		return
	}
	for _, x := range v {
		r.s.heap = binary.LittleEndian.AppendUint32(r.s.heap, uint32(len(x)))
		r.s.heap = append(r.s.heap, x...)
	}
	r.set(field, refWord(off, n))
}
