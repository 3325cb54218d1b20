package column

import (
	"encoding/binary"
	"fmt"
	"math"
	"sort"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Packed is the rows of a slab in a few bytes, which have no pointers, may be moved and
// never change. A cache keeps timelines in this form. See [Pack].
//
//	header        layout, rows, oldest and newest time: most windows of time
//	              are decided here
//	descriptors   4 bytes a column: its encoding, and where it is
//	columns       the time, then what filters and models read, then what
//	              only an answer's items need
//	heap          the records' bodies, and those long strings and lists that
//	              are not parts of a body
//
// A column takes as few bytes a row as its values allow: none if all are equal, one if
// there are few different ones, else the width of their range. A long string or a list is
// kept as its place in the row's body. An Avro body has it in the same form: floats and
// doubles one after the other, and strings behind their lengths.
//
// A Packed is the address of its bytes. They stay valid for as long as their maker says.
type Packed struct{ at unsafe.Pointer }

// header begins the bytes.
type header struct {
	layout, rows   uint32 // the index of the layout in layouts; how many rows
	oldest, newest int64  // as [Packed.Times] has them
	heap, size     uint32 // where the heap begins and ends
	hot            uint32 // where the columns end that filters and models read; cold ones follow
	_              uint32
}

const headerBytes = int(unsafe.Sizeof(header{}))

// descriptor has the encoding of a column in the low byte. Above it is the offset of the
// column's bytes, in units of 4, or the value of a small constant.
type descriptor uint32

const (
	unit         = 4           // bytes
	maxUnits     = 1<<24 - 1   // the greatest offset in a descriptor
	maxSmall     = 1<<24 - 1   // the greatest value in a descriptor
	descriptorAt = headerBytes // where the first descriptor is: columns of null bits come before those of fields
)

// encoding is how a column's words are kept.
type encoding uint8

const (
	small    encoding = iota // all words are the value in the descriptor
	constant                 // all words are the one at the offset
	narrow8                  // 1 byte a word
	narrow16                 // 2 bytes
	narrow32                 // 4 bytes
	wide                     // words as they are
	offset8                  // the least word, then 1 byte a word: its difference from the least
	offset16                 // the same with 2 bytes
	offset32                 // the same with 4 bytes
	float32s                 // doubles that a float32 holds exactly, 4 bytes each
	indexed                  // 1 byte a word, padded to a multiple of 8: its index in the different words, which follow
	texts                    // three descriptors: where each string is, its length in bytes, and 0
	lists                    // three: where each list is; its length, in items of doubles or in bytes of strings; the bytes of an item of doubles
)

func (p Packed) head() *header { return (*header)(p.at) }

// PackedAt returns the rows that [Pack] wrote to b. They stay valid as long as
// b does.
func PackedAt(b []byte) Packed {
	p := Packed{unsafe.Pointer(unsafe.SliceData(b))}
	if len(b) < headerBytes || len(b) < int(p.head().size) {
		panic(fmt.Sprintf("column: %d bytes are no packed rows", len(b)))
	}
	return p
}

// None reports whether p is the zero Packed, which is no rows of any layout.
func (p Packed) None() bool { return p.at == nil }

// Len returns the number of rows.
func (p Packed) Len() int { return int(p.head().rows) }

// Size returns the number of bytes.
func (p Packed) Size() int { return int(p.head().size) }

// Hot returns how many bytes there are before the columns that only an answer's items need.
func (p Packed) Hot() int { return int(p.head().hot) }

// Layout returns the layout of the rows.
func (p Packed) Layout() *Layout { return (*layouts.byID.Load())[p.head().layout] }

// Times returns the times of the first and of the last row, in milliseconds since the
// epoch, as the column of the role "time" has them; 0 if there is no such column, or no
// row.
func (p Packed) Times() (oldest, newest int64) { return p.head().oldest, p.head().newest }

// FirstAt returns the first row whose time is t or later; Len if there is none. Times
// ascend.
func (p Packed) FirstAt(t int64) int {
	if h := p.head(); h.rows == 0 || t <= h.oldest {
		return 0
	} else if t > h.newest {
		return int(h.rows)
	}
	d := *p.column(p.Layout(), p.Layout().time)
	switch b := p.bytes(d); d.encoding() {
	case offset8:
		return firstAt[uint8](unsafe.Add(b, 8), p.Len(), at[int64](b, 0), t)
	case offset16:
		return firstAt[uint16](unsafe.Add(b, 8), p.Len(), at[int64](b, 0), t)
	case offset32:
		return firstAt[uint32](unsafe.Add(b, 8), p.Len(), at[int64](b, 0), t)
	}
	return sort.Search(p.Len(), func(i int) bool { return int64(p.value(d, i)) >= t })
}

// firstAt returns the first of n times that is t or later; they are kept as differences
// from a base. It chooses what to look at next without a branch, since a processor cannot
// predict where a window ends in a timeline.
func firstAt[T uint8 | uint16 | uint32](b unsafe.Pointer, n int, base, t int64) (lo int) {
	for n > 1 {
		half := n / 2
		next := lo
		if base+int64(at[T](b, lo+half-1)) < t {
			next = lo + half
		}
		lo, n = next, n-half
	}
	if n == 1 && base+int64(at[T](b, lo)) < t {
		lo++
	}
	return lo
}

// column returns the descriptor of a field. [Packed.nulls] returns that of its null bits.
func (p Packed) column(l *Layout, field int) *descriptor { return p.descriptor(l.nullWords + field) }

func (p Packed) descriptor(i int) *descriptor {
	return (*descriptor)(unsafe.Add(p.at, descriptorAt+4*i))
}

func (d descriptor) encoding() encoding { return encoding(d) }

// bytes returns where the column's bytes are.
func (p Packed) bytes(d descriptor) unsafe.Pointer { return unsafe.Add(p.at, int(d>>8)*unit) }

// at returns the i-th T of those that begin at b.
func at[T any](b unsafe.Pointer, i int) T {
	var zero T
	return *(*T)(unsafe.Add(b, i*int(unsafe.Sizeof(zero))))
}

// indexedWords returns where the different words of an indexed column begin.
func indexedWords(b unsafe.Pointer, rows int) unsafe.Pointer {
	return unsafe.Add(b, (rows+7)&^7)
}

// value returns the word that a row has in a column that is not of texts or lists.
func (p Packed) value(d descriptor, row int) uint64 {
	if d.encoding() == small {
		return uint64(d >> 8)
	}
	b := p.bytes(d)
	switch d.encoding() {
	case constant:
		return at[uint64](b, 0)
	case narrow8:
		return uint64(at[uint8](b, row))
	case narrow16:
		return uint64(at[uint16](b, row))
	case narrow32:
		return uint64(at[uint32](b, row))
	case wide:
		return at[uint64](b, row)
	case offset8:
		return at[uint64](b, 0) + uint64(at[uint8](b, 8+row))
	case offset16:
		return at[uint64](b, 0) + uint64(at[uint16](b, 4+row))
	case offset32:
		return at[uint64](b, 0) + uint64(at[uint32](b, 2+row))
	case float32s:
		return math.Float64bits(float64(at[float32](b, row)))
	case indexed:
		return at[uint64](indexedWords(b, p.Len()), int(at[uint8](b, row)))
	}
	panic("column: not a column of words")
}

// widen writes the words of rows [lo, lo+len(dst)) of a column that is not of texts or
// lists.
func (p Packed) widen(dst []uint64, d descriptor, lo int) {
	if len(dst) == 0 {
		return
	}
	if d.encoding() == small {
		fill(dst, uint64(d>>8))
		return
	}
	b := p.bytes(d)
	switch d.encoding() {
	case constant:
		fill(dst, at[uint64](b, 0))
	case narrow8:
		add[uint8](dst, b, lo, 0)
	case narrow16:
		add[uint16](dst, b, lo, 0)
	case narrow32:
		add[uint32](dst, b, lo, 0)
	case wide:
		copy(dst, unsafe.Slice((*uint64)(unsafe.Add(b, 8*lo)), len(dst)))
	case offset8:
		add[uint8](dst, unsafe.Add(b, 8), lo, at[uint64](b, 0))
	case offset16:
		add[uint16](dst, unsafe.Add(b, 8), lo, at[uint64](b, 0))
	case offset32:
		add[uint32](dst, unsafe.Add(b, 8), lo, at[uint64](b, 0))
	case float32s:
		for i, x := range unsafe.Slice((*float32)(unsafe.Add(b, 4*lo)), len(dst)) {
			dst[i] = math.Float64bits(float64(x))
		}
	case indexed:
		words := indexedWords(b, p.Len())
		for i, x := range unsafe.Slice((*uint8)(unsafe.Add(b, lo)), len(dst)) {
			dst[i] = at[uint64](words, int(x))
		}
	default:
		panic("column: not a column of words")
	}
}

func fill(dst []uint64, w uint64) {
	for i := range dst {
		dst[i] = w
	}
}

// add writes the words that are kept as differences of type T from base, from row lo on.
func add[T uint8 | uint16 | uint32](dst []uint64, b unsafe.Pointer, lo int, base uint64) {
	var zero T
	src := unsafe.Slice((*T)(unsafe.Add(b, lo*int(unsafe.Sizeof(zero)))), len(dst))
	for i, x := range src {
		dst[i] = base + uint64(x)
	}
}

// nulls returns the descriptor of the word that holds a field's null bit.
func (p Packed) nulls(field int) descriptor { return *p.descriptor(field / 64) }

// Null reports whether a value is null.
func (p Packed) Null(field, row int) bool {
	return p.value(p.nulls(field), row)&(1<<(field%64)) != 0
}

// Word returns the word of a value that is neither a string nor a list.
func (p Packed) Word(field, row int) uint64 { return p.value(*p.column(p.Layout(), field), row) }

// reference is where in the heap a string or a list is. n is its length: in items for a
// list of doubles, else in bytes.
type reference struct{ off, n uint32 }

// references returns the three descriptors of a column of texts or lists.
func (p Packed) references(l *Layout, field int) *[3]descriptor {
	return (*[3]descriptor)(p.bytes(*p.column(l, field)))
}

// reference returns where a row's value in a column of texts or lists is.
func (p Packed) reference(l *Layout, field, row int) reference {
	parts := p.references(l, field)
	r := reference{uint32(p.value(parts[0], row)), uint32(p.value(parts[1], row))}
	if field != l.body {
		r.off += p.bodyAt(l, row)
	}
	return r
}

// bodyAt returns where in the heap a row's body begins.
func (p Packed) bodyAt(l *Layout, row int) uint32 { return uint32(p.value(p.bodies(l), row)) }

// bodies returns the descriptor of the column that says where rows' bodies begin. It is 0
// throughout if bodies are not kept as texts.
func (p Packed) bodies(l *Layout) descriptor {
	if l.body >= 0 && p.column(l, l.body).encoding() == texts {
		return p.references(l, l.body)[0]
	}
	return descriptor(small)
}

// inline returns the word of a string of up to 7 bytes that is in the heap.
func (p Packed) inline(r reference) uint64 {
	var b [8]byte
	copy(b[:], p.slice(r.off, r.n))
	return ShortWord(binary.LittleEndian.Uint64(b[:]), int(r.n))
}

// slice returns n bytes of the heap; nil for 0, since a pointer to no bytes might be one
// to what follows the heap.
func (p Packed) slice(off, n uint32) []byte {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Add(p.at, int(p.head().heap)+int(off))), int(n))
}

// StringAt returns the string of a value without allocating. It shares the
// bytes of p.
func (p Packed) StringAt(field, row int) string {
	l := p.Layout()
	d := p.column(l, field)
	switch d.encoding() {
	case small:
		return inlineAt(unsafe.Add(unsafe.Pointer(d), 1), uint64(*d>>8))
	case texts:
		r := p.reference(l, field, row)
		s := p.slice(r.off, r.n)
		return unsafe.String(unsafe.SliceData(s), len(s))
	}
	b := p.bytes(*d)
	switch d.encoding() {
	case narrow16:
		return inlineAt(unsafe.Add(b, 2*row), uint64(at[uint16](b, row)))
	case narrow32:
		return inlineAt(unsafe.Add(b, 4*row), uint64(at[uint32](b, row)))
	case wide:
		return inlineAt(unsafe.Add(b, 8*row), at[uint64](b, row))
	case constant:
		return inlineAt(b, at[uint64](b, 0))
	case indexed:
		b = unsafe.Add(indexedWords(b, p.Len()), 8*int(at[uint8](b, row)))
		return inlineAt(b, at[uint64](b, 0))
	}
	panic("column: not a column of strings")
}

// inlineAt returns the inline string of the word w, which is in memory at b.
func inlineAt(b unsafe.Pointer, w uint64) string {
	if littleEndian {
		return unsafe.String((*byte)(unsafe.Add(b, 1)), int(w&0xff))
	}
	var none Slab
	return none.String(w)
}

// BytesAt is StringAt as bytes. The caller must not change them.
func (p Packed) BytesAt(field, row int) []byte {
	v := p.StringAt(field, row)
	return unsafe.Slice(unsafe.StringData(v), len(v))
}

// ListAt returns the list of doubles of a value, without copying it.
func (p Packed) ListAt(field, row int) List { return p.list(p.Layout(), field, row) }

func (p Packed) list(l *Layout, field, row int) List {
	d := *p.column(l, field)
	if d.encoding() != lists {
		return List{}
	}
	r := p.reference(l, field, row)
	return List{unsafe.Add(p.at, int(p.head().heap)+int(r.off)), int32(r.n), int32(p.references(l, field)[2])}
}

// DoublesAt appends the list of a value to dst.
func (p Packed) DoublesAt(dst []float64, field, row int) []float64 {
	return p.ListAt(field, row).Append(dst)
}

// StringsAt appends the list of a value to dst. The strings share the bytes
// of p.
func (p Packed) StringsAt(dst []string, field, row int) []string {
	return p.strings(dst, p.Layout(), field, row)
}

func (p Packed) strings(dst []string, l *Layout, field, row int) []string {
	if p.column(l, field).encoding() != lists {
		return dst
	}
	r := p.reference(l, field, row)
	return appendItems(dst, p.slice(r.off, r.n))
}

// layouts has the layouts that were packed; a Packed names its layout by its index here.
// Layouts come from schemas, which are few and stay, so none is ever removed.
var layouts struct {
	sync.Mutex
	byID atomic.Pointer[[]*Layout]
}

// number returns the layout's index in layouts, to which it adds the layout if necessary.
func (l *Layout) number() uint32 {
	if n := l.packed.Load(); n != 0 {
		return n - 1
	}
	layouts.Lock()
	defer layouts.Unlock()
	if n := l.packed.Load(); n != 0 {
		return n - 1
	}
	var all []*Layout
	if known := layouts.byID.Load(); known != nil {
		all = append(all, *known...)
	}
	all = append(all, l)
	layouts.byID.Store(&all)
	l.packed.Store(uint32(len(all)))
	return uint32(len(all)) - 1
}
