// Package column holds records as columns of 8-byte words without pointers,
// so that filters and models read them without decoding and the garbage
// collector never looks inside. A cache keeps them [Packed], in a few bytes a
// value, and widens what a query asks for into a slab again ([Slab.Gather]).
//
// A [Slab] has the records of one timeline under one [Layout]:
//
//	         rows, oldest first ──►
//	nulls 0  [ bits of fields 0..63   ] one word a row
//	field 0  [ w w w w w w w . . ]      one word a row: a number, a bool, or
//	field 1  [ w w w w w w w . . ]      a short string inline, or a reference
//	  ...                               into
//	heap     [ body body body ...]      the records' Avro bodies, end to end
//
// The rows of a [Batch] have no heap: their references are to the packed rows from which
// they were added.
//
// A slab has one writer. The writer appends behind the published length and
// publishes a new Slab that shares the memory (read-copy-update); a reader's
// Slab never changes under it. Anything but an append builds a new slab.
package column

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync/atomic"
	"unsafe"
)

// Kind is what the words of a column mean.
type Kind uint8

// The kinds of a column. Enums are String. Avro's timestamp-millis is Time;
// its other dates, times and timestamps are Int in the unit of the schema.
const (
	Bool    Kind = iota + 1
	Int          // int64
	Time         // int64, milliseconds since the epoch; set with SetInt
	Double       // float64
	String       // UTF-8
	Doubles      // list of float64
	Strings      // list of string
)

var kindNames = [...]string{Bool: "bool", Int: "int", Time: "timestamp", Double: "double", String: "string", Doubles: "list(double)", Strings: "list(string)"}

func (k Kind) String() string {
	if int(k) < len(kindNames) && kindNames[k] != "" {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Field is one column of a layout.
type Field struct {
	Name     string
	Kind     Kind
	Nullable bool
	Role     string // the schema's role of the field: "time", "id"; empty for none
	Widened  bool   // a Double that some schema has as an Int
}

// Layout is the columns of a schema, in a fixed order. It is immutable.
type Layout struct {
	fields    []Field
	index     map[string]int
	roles     map[string]int
	time      int               // column of the role "time", or -1
	body      int               // column of [BodyName], or -1
	nullWords int               // words of null bits a row: one for each 64 fields
	packed    atomic.Uint32     // its index in layouts, plus 1; 0 until a slab of it is packed
	blank     *Slab             // see Blank
	other     map[string]string // see Carried
}

// BodyName is the name of the column of strings that holds a record's body. The other
// strings of a row are mostly parts of it.
const BodyName = "$body"

// NewLayout returns the layout of fields. Names must be unique, and so must
// roles.
func NewLayout(fields []Field) (*Layout, error) {
	l := &Layout{fields: fields, index: make(map[string]int, len(fields)), roles: make(map[string]int), nullWords: (len(fields) + 63) / 64}
	for i, f := range fields {
		if _, dup := l.index[f.Name]; dup {
			return nil, fmt.Errorf("column: field %q twice", f.Name)
		}
		if f.Kind < Bool || f.Kind > Strings {
			return nil, fmt.Errorf("column: field %q has no kind", f.Name)
		}
		l.index[f.Name] = i
		if f.Role == "" {
			continue
		}
		if _, dup := l.roles[f.Role]; dup {
			return nil, fmt.Errorf("column: field %q: role %q twice", f.Name, f.Role)
		}
		l.roles[f.Role] = i
	}
	l.time, l.body = l.Role("time"), l.Index(BodyName)
	if l.body >= 0 && fields[l.body].Kind != String {
		return nil, fmt.Errorf("column: field %q is not a string", BodyName)
	}
	return l, nil
}

// Fields returns the fields in column order. The caller must not change them.
func (l *Layout) Fields() []Field { return l.fields }

// Index returns the column of a field, or -1.
func (l *Layout) Index(name string) int {
	if i, ok := l.index[name]; ok {
		return i
	}
	return -1
}

// Role returns the column of the field with a role, or -1. By it a model that is for every
// schema finds a record's time, for example.
func (l *Layout) Role(role string) int {
	if i, ok := l.roles[role]; ok {
		return i
	}
	return -1
}

// Describe sets what [Layout.Blank] and [Layout.Carried] return. Call it at most once,
// before anybody else has the layout.
func (l *Layout) Describe(blank *Slab, other map[string]string) { l.blank, l.other = blank, other }

// Blank returns a slab of one row with the defaults of the schema, and zeros elsewhere;
// nil if Describe gave none.
func (l *Layout) Blank() *Slab { return l.blank }

// Carried returns the fields of the schema that have no column: their types in words, by
// their dotted names.
func (l *Layout) Carried() map[string]string { return l.other }

// Time returns the column of the role "time", or -1.
func (l *Layout) Time() int { return l.time }

// Slab is rows of one layout. The zero Slab is not usable; see [New].
type Slab struct {
	layout *Layout
	rows   int      // published rows
	stride int      // capacity in rows; column c is words[c*stride:]
	words  []uint64 // nullWords columns, then one a field
	heap   []byte

	sources []source // of a batch, in place of the heap
}

// New returns an empty slab with room for rows records and heapBytes of heap.
func New(l *Layout, rows, heapBytes int) *Slab {
	rows = max(rows, 1)
	return &Slab{layout: l, stride: rows, words: make([]uint64, rows*(l.nullWords+len(l.fields))), heap: make([]byte, 0, heapBytes)}
}

// Layout returns the slab's layout.
func (s *Slab) Layout() *Layout { return s.layout }

// Len returns the number of rows.
func (s *Slab) Len() int { return s.rows }

// Rows returns the rows [lo, hi), which share the memory of s.
func (s *Slab) Rows(lo, hi int) *Slab {
	return &Slab{layout: s.layout, rows: hi - lo, stride: s.stride, words: s.words[lo:], heap: s.heap, sources: s.sources}
}

// Bytes returns the memory the slab holds.
func (s *Slab) Bytes() int { return len(s.words)*8 + cap(s.heap) }

// Column returns the words of a field, a word a row, oldest first.
func (s *Slab) Column(field int) []uint64 {
	at := (s.layout.nullWords + field) * s.stride
	return s.words[at : at+s.rows : at+s.rows]
}

// Nulls returns the words that hold a field's null bits, a word a row, and
// the bit to test.
func (s *Slab) Nulls(field int) (words []uint64, bit uint64) {
	at := field / 64 * s.stride
	return s.words[at : at+s.rows : at+s.rows], 1 << (field % 64)
}

// Null reports whether a value is null.
func (s *Slab) Null(field, row int) bool {
	return s.words[field/64*s.stride+row]&(1<<(field%64)) != 0
}

// Word returns the word of a value.
func (s *Slab) Word(field, row int) uint64 {
	return s.words[(s.layout.nullWords+field)*s.stride+row]
}

// Strings of up to 7 bytes are in the word itself: the length in the low byte,
// the bytes above it, zeros behind. Longer values are references: the low byte
// is refTag, then 24 bits of length and 32 bits of heap offset. Equal short
// strings are equal words.
const (
	refTag     = 0xff
	maxInline  = 7
	maxRefLen  = 1<<24 - 1
	maxHeapLen = math.MaxUint32
)

// InlineWord returns the word of a string of up to 7 bytes, and whether it is
// that short.
func InlineWord(s string) (uint64, bool) {
	if len(s) > maxInline {
		return 0, false
	}
	w := uint64(len(s))
	for i := range len(s) {
		w |= uint64(s[i]) << (8 * (i + 1))
	}
	return w, true
}

// ShortWord returns the word of a string of n bytes, at most 7. The bytes are the low
// bytes of b in order; the rest of b must be 0.
func ShortWord(b uint64, n int) uint64 { return b<<8 | uint64(n) }

// LongWord returns the word of a string of more than 7 bytes, or of a list that is not
// empty, which has n bytes at off in the heap.
func LongWord(off, n int) uint64 { return refWord(off, n) }

// IsInline reports whether a string's word holds the string itself.
func IsInline(w uint64) bool { return w&0xff != refTag }

func refWord(off, n int) uint64 { return refTag | uint64(n)<<8 | uint64(off)<<32 }

// ref returns the bytes of a string whose word is a reference.
func (s *Slab) ref(w uint64) []byte {
	if len(s.sources) > 0 {
		return s.sourceOf(w).text(s.layout, w)
	}
	return s.heapOf(w)
}

func (s *Slab) heapOf(w uint64) []byte {
	off, n := w>>32, w>>8&maxRefLen
	return s.heap[off : off+n : off+n]
}

// stringLen returns the length in bytes of the string of a word.
func (s *Slab) stringLen(w uint64) int {
	switch {
	case IsInline(w):
		return int(w & 0xff)
	case len(s.sources) > 0:
		return len(s.ref(w))
	}
	return int(w >> 8 & maxRefLen)
}

// Size returns how many bytes the string or list of a value has where it is stored. It
// does not read them.
func (s *Slab) Size(field, row int) int {
	w := s.Word(field, row)
	switch {
	case IsInline(w): // an empty list has the word 0
		return int(w & 0xff)
	case len(s.sources) == 0:
		return int(w >> 8 & maxRefLen)
	}
	from := s.sourceOf(w)
	n := int(from.p.value(from.p.references(s.layout, field)[1], int(w>>32)))
	if s.layout.fields[field].Kind == Doubles {
		return 8 * n // packed rows count the items of a list of doubles
	}
	return n
}

// AppendString appends the string of a word to dst.
func (s *Slab) AppendString(dst []byte, w uint64) []byte {
	if IsInline(w) {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], w)
		return append(dst, b[1:1+w&0xff]...)
	}
	return append(dst, s.ref(w)...)
}

// String returns the string of a word. A long string shares the slab's heap
// and stays valid as long as the slab is reachable.
func (s *Slab) String(w uint64) string {
	if IsInline(w) {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], w)
		return string(b[1 : 1+w&0xff])
	}
	r := s.ref(w)
	return unsafe.String(unsafe.SliceData(r), len(r))
}

// littleEndian says whether in memory the bytes of an inline string follow its length, in
// order.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// StringAt returns the string of a value without allocating. It stays valid as
// long as the slab is reachable.
func (s *Slab) StringAt(field, row int) string {
	w := &s.words[(s.layout.nullWords+field)*s.stride+row]
	if littleEndian && IsInline(*w) {
		return unsafe.String((*byte)(unsafe.Add(unsafe.Pointer(w), 1)), int(*w&0xff))
	}
	return s.String(*w)
}

// BytesAt is StringAt as bytes. The caller must not change them.
func (s *Slab) BytesAt(field, row int) []byte {
	v := s.StringAt(field, row)
	return unsafe.Slice(unsafe.StringData(v), len(v))
}

// EqualString reports whether the string of a word is v.
func (s *Slab) EqualString(w uint64, v string) bool {
	if IsInline(w) {
		x, short := InlineWord(v)
		return short && x == w
	}
	return string(s.ref(w)) == v
}

// List returns the list of doubles of a word, without copying it. The word 0 is an empty
// list.
func (s *Slab) List(w uint64) List {
	switch {
	case w == 0:
		return List{}
	case len(s.sources) > 0:
		return s.sourceOf(w).list(s.layout, w)
	}
	b := s.heapOf(w)
	return List{unsafe.Pointer(unsafe.SliceData(b)), int32(len(b) / 8), 8}
}

// ListAt returns the list of doubles of a value, without copying it.
func (s *Slab) ListAt(field, row int) List { return s.List(s.Word(field, row)) }

// Doubles appends the list of a word to dst.
func (s *Slab) Doubles(dst []float64, w uint64) []float64 { return s.List(w).Append(dst) }

// Strings appends the list of a word to dst. The strings share the memory of the slab, or
// of the packed rows of a batch.
func (s *Slab) Strings(dst []string, w uint64) []string {
	if w == 0 {
		return dst
	}
	if len(s.sources) > 0 {
		return s.sourceOf(w).strings(dst, s.layout, w)
	}
	for r := s.heapOf(w); len(r) >= 4; {
		n := binary.LittleEndian.Uint32(r)
		v := r[4 : 4+n]
		dst = append(dst, unsafe.String(unsafe.SliceData(v), len(v)))
		r = r[4+n:]
	}
	return dst
}

// DoublesAt appends the list of a value to dst.
func (s *Slab) DoublesAt(dst []float64, field, row int) []float64 {
	return s.Doubles(dst, s.Word(field, row))
}

// StringsAt is DoublesAt of strings, which share memory as those of [Slab.Strings] do.
func (s *Slab) StringsAt(dst []string, field, row int) []string {
	return s.Strings(dst, s.Word(field, row))
}
