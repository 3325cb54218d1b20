package column

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
)

// every is a layout with one field of each kind.
var every = []Field{
	{Name: "bool", Kind: Bool},
	{Name: "int", Kind: Int},
	{Name: "time", Kind: Time, Role: "time"},
	{Name: "double", Kind: Double},
	{Name: "string", Kind: String, Role: "id"},
	{Name: "doubles", Kind: Doubles},
	{Name: "strings", Kind: Strings},
	{Name: "maybe", Kind: String, Nullable: true},
}

// value is a row of every, in Go's own types.
type value struct {
	bool    bool
	int     int64
	time    int64
	double  float64
	string  string
	doubles []float64
	strings []string
	maybe   *string
}

func layout(t testing.TB, fields []Field) *Layout {
	t.Helper()
	l, err := NewLayout(fields)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// set writes v; even rows put their string on the heap first, as a decoder
// does with a body.
func (v value) set(r *Row, even bool) {
	r.SetBool(0, v.bool)
	r.SetInt(1, v.int)
	r.SetInt(2, v.time)
	r.SetDouble(3, v.double)
	if even {
		r.SetHeapString(4, []byte(v.string), r.Heap([]byte(v.string)))
	} else {
		r.SetString(4, []byte(v.string))
	}
	r.SetDoubles(5, v.doubles)
	r.SetStrings(6, v.strings)
	if v.maybe == nil {
		r.SetNull(7)
	} else {
		r.SetString(7, []byte(*v.maybe))
	}
}

// check compares a row with v through every way of reading it.
func (v value) check(t *testing.T, s *Slab, row int) {
	t.Helper()
	word := func(f int) uint64 {
		if c := s.Column(f); c[row] != s.Word(f, row) {
			t.Errorf("row %d field %d: column has %x, word %x", row, f, c[row], s.Word(f, row))
		}
		return s.Word(f, row)
	}
	if got := word(0) != 0; got != v.bool {
		t.Errorf("row %d: bool %v, want %v", row, got, v.bool)
	}
	if got := int64(word(1)); got != v.int {
		t.Errorf("row %d: int %v, want %v", row, got, v.int)
	}
	if got := int64(word(2)); got != v.time {
		t.Errorf("row %d: time %v, want %v", row, got, v.time)
	}
	if got := word(3); got != math.Float64bits(v.double) {
		t.Errorf("row %d: double %x, want %v", row, got, v.double)
	}
	checkString(t, s, word(4), v.string)
	bits := func(x []float64) (b []uint64) {
		for _, f := range x {
			b = append(b, math.Float64bits(f))
		}
		return b
	}
	if got := s.Doubles(nil, word(5)); !slices.Equal(bits(got), bits(v.doubles)) {
		t.Errorf("row %d: doubles %v, want %v", row, got, v.doubles)
	}
	if got := s.Strings(nil, word(6)); !slices.Equal(got, v.strings) {
		t.Errorf("row %d: strings %q, want %q", row, got, v.strings)
	}
	words, bit := s.Nulls(7)
	if null := words[row]&bit != 0; null != (v.maybe == nil) || null != s.Null(7, row) {
		t.Errorf("row %d: null is %v and %v, want %v", row, null, s.Null(7, row), v.maybe == nil)
	}
	if v.maybe == nil {
		checkString(t, s, word(7), "")
	} else {
		checkString(t, s, word(7), *v.maybe)
	}
}

func checkString(t *testing.T, s *Slab, w uint64, want string) {
	t.Helper()
	if got := s.String(w); got != want {
		t.Errorf("string %q, want %q", got, want)
	}
	if got := string(s.AppendString([]byte("x"), w)); got != "x"+want {
		t.Errorf("appended string %q, want %q", got, "x"+want)
	}
	if s.stringLen(w) != len(want) || IsInline(w) != (len(want) <= 7) {
		t.Errorf("%q: length %d, inline %v", want, s.stringLen(w), IsInline(w))
	}
	if !s.EqualString(w, want) || s.EqualString(w, want+"x") {
		t.Errorf("%q: EqualString is wrong", want)
	}
	if want != "" && (s.EqualString(w, want[1:]) || s.EqualString(w, want[:len(want)-1]+string([]byte{want[len(want)-1] ^ 1}))) {
		t.Errorf("%q: EqualString of another is true", want)
	}
	if in, ok := InlineWord(want); ok != IsInline(w) || ok && in != w {
		t.Errorf("%q: InlineWord %x %v, want %x", want, in, ok, w)
	}
}

func ptr(s string) *string { return &s }

var someValues = []value{
	{},
	{maybe: ptr("")},
	{true, math.MaxInt64, 253402300799999, math.Inf(-1), "1234567", []float64{0}, []string{""}, ptr("1234567")},
	{true, math.MinInt64, -1, math.Copysign(0, -1), "12345678", []float64{1, -2.5, math.MaxFloat64}, []string{"a", "", "länger als sieben"}, ptr("12345678")},
	{false, -1, 0, math.Float64frombits(0x7ff8000000000001), strings.Repeat("é", 1000), []float64{math.NaN()}, []string{strings.Repeat("x", 70000)}, nil},
}

func TestRoundTrip(t *testing.T) {
	a := New(layout(t, every), 0, 0).Append()
	for i, v := range someValues {
		r := a.Begin()
		v.set(&r, i%2 == 0)
		if err := a.End(r); err != nil {
			t.Fatal(err)
		}
	}
	s := a.Slab()
	if s.Len() != len(someValues) {
		t.Fatalf("%d rows, want %d", s.Len(), len(someValues))
	}
	for i, v := range someValues {
		v.check(t, s, i)
	}
}

// A slab that readers hold never changes, while its line grows past the room
// it was made with and again.
func TestReadersKeepTheirSlab(t *testing.T) {
	s := New(layout(t, every), 2, 16)
	var slabs []*Slab
	for i := range 50 {
		slabs = append(slabs, s)
		a := s.Append()
		r := a.Begin()
		someValues[i%len(someValues)].set(&r, false)
		if i%3 == 0 { // forgotten, and begun again
			r = a.Begin()
			someValues[i%len(someValues)].set(&r, true)
		}
		if err := a.End(r); err != nil {
			t.Fatal(err)
		}
		s = a.Slab()
	}
	for n, old := range slabs {
		if old.Len() != n || len(old.Column(0)) != n {
			t.Fatalf("slab %d has %d rows and a column of %d", n, old.Len(), len(old.Column(0)))
		}
		for i := range n {
			someValues[i%len(someValues)].check(t, old, i)
		}
	}
}

// Readers of published slabs and the writer touch no memory in common: the
// race detector looks on.
func TestReadersBesideTheWriter(t *testing.T) {
	s := New(layout(t, every), 1, 0)
	var readers sync.WaitGroup
	for n := range 100 {
		a := s.Append()
		r := a.Begin()
		someValues[n%len(someValues)].set(&r, false)
		if err := a.End(r); err != nil {
			t.Fatal(err)
		}
		s = a.Slab()
		published := s
		readers.Go(func() {
			for i := range published.Len() {
				someValues[i%len(someValues)].check(t, published, i)
			}
		})
	}
	readers.Wait()
}

// While there is room, what is published shares the memory of what was there.
func TestAppendShares(t *testing.T) {
	s := New(layout(t, []Field{{Name: "n", Kind: Int}}), 2, 0)
	one := appendInt(t, s, 1)
	two := appendInt(t, one, 2)
	if &one.Column(0)[0] != &two.Column(0)[0] {
		t.Error("an append with room copied the slab")
	}
	three := appendInt(t, two, 3)
	if &two.Column(0)[0] == &three.Column(0)[0] {
		t.Error("an append without room shares a slab that is too small")
	}
	if got := three.Column(0); !slices.Equal(got, []uint64{1, 2, 3}) {
		t.Errorf("column %v, want 1 2 3", got)
	}
}

func appendInt(t *testing.T, s *Slab, v int64) *Slab {
	a := s.Append()
	r := a.Begin()
	r.SetInt(0, v)
	if err := a.End(r); err != nil {
		t.Fatal(err)
	}
	return a.Slab()
}

// A row that was set and given up leaves neither words nor null bits behind.
func TestForgottenRowLeavesNothing(t *testing.T) {
	a := New(layout(t, every), 4, 0).Append()
	r := a.Begin()
	someValues[3].set(&r, false)
	r.SetNull(7)
	r = a.Begin()
	if err := a.End(r); err != nil {
		t.Fatal(err)
	}
	value{maybe: ptr("")}.check(t, a.Slab(), 0)
}

// Beyond 64 fields the null bits take a second word a row.
func TestNullBitsOfManyFields(t *testing.T) {
	var fields []Field
	for i := range 130 {
		fields = append(fields, Field{Name: strings.Repeat("f", i+1), Kind: Int, Nullable: true})
	}
	a := New(layout(t, fields), 1, 0).Append()
	for row := range 9 {
		r := a.Begin()
		for f := range fields {
			if (f+row)%3 == 0 {
				r.SetNull(f)
			} else {
				r.SetInt(f, int64(1000*row+f))
			}
		}
		if err := a.End(r); err != nil {
			t.Fatal(err)
		}
	}
	s := a.Slab()
	for row := range 9 {
		for f := range fields {
			want, null := uint64(1000*row+f), (f+row)%3 == 0
			if null {
				want = 0
			}
			if s.Null(f, row) != null || s.Word(f, row) != want {
				t.Errorf("row %d field %d: null %v word %d, want %v %d", row, f, s.Null(f, row), s.Word(f, row), null, want)
			}
		}
	}
}

func TestTooLargeIsRefused(t *testing.T) {
	s := New(layout(t, []Field{{Name: "s", Kind: String}, {Name: "d", Kind: Doubles}, {Name: "l", Kind: Strings}}), 1, 0)
	large := make([]byte, maxRefLen+1)
	for name, set := range map[string]func(*Row){
		"body":    func(r *Row) { r.Heap(large) },
		"string":  func(r *Row) { r.SetString(0, large) },
		"doubles": func(r *Row) { r.SetDoubles(1, make([]float64, len(large)/8+1)) },
		"strings": func(r *Row) { r.SetStrings(2, []string{string(large)}) },
	} {
		a := s.Append()
		r := a.Begin()
		if set(&r); !errors.Is(a.End(r), ErrFull) {
			t.Errorf("%s of %d bytes was taken", name, len(large))
		}
		if a.Slab().Len() != 0 {
			t.Errorf("%s: the refused row is there", name)
		}
	}
}

// The longest value that a reference reaches is kept whole.
func TestLongestString(t *testing.T) {
	a := New(layout(t, []Field{{Name: "s", Kind: String}}), 1, 0).Append()
	long := make([]byte, maxRefLen)
	long[0], long[len(long)-1] = 'a', 'z'
	r := a.Begin()
	r.SetString(0, long)
	if err := a.End(r); err != nil {
		t.Fatal(err)
	}
	s := a.Slab()
	if got := s.String(s.Word(0, 0)); got != string(long) {
		t.Errorf("%d bytes, want %d", len(got), len(long))
	}
}

func TestLayout(t *testing.T) {
	for name, fields := range map[string][]Field{
		"a name twice": {{Name: "a", Kind: Int}, {Name: "a", Kind: Bool}},
		"a role twice": {{Name: "a", Kind: Int, Role: "time"}, {Name: "b", Kind: Int, Role: "time"}},
		"no kind":      {{Name: "a"}},
		"bad kind":     {{Name: "a", Kind: Strings + 1}},
	} {
		if _, err := NewLayout(fields); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	l := layout(t, every)
	for i, f := range every {
		if l.Index(f.Name) != i {
			t.Errorf("field %q is at %d, want %d", f.Name, l.Index(f.Name), i)
		}
	}
	if l.Index("none") != -1 || l.Role("version") != -1 {
		t.Error("a field that is not there has an index")
	}
	if l.Role("id") != 4 || l.Role("time") != 2 {
		t.Errorf("the roles are at %d and %d", l.Role("id"), l.Role("time"))
	}
	if Kind(0).String() != "kind(0)" || Strings.String() != "list(string)" {
		t.Errorf("kinds print as %q and %q", Kind(0), Strings)
	}
}

// FuzzRoundTrip writes rows made of the input and reads them back.
func FuzzRoundTrip(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x01\x02\x03\x04\x05\x06\x07\x08some seven and some longer than that\x00\xff"))
	f.Add(slices.Repeat([]byte{0xff}, 200))
	l := layout(f, every)
	f.Fuzz(func(t *testing.T, in []byte) {
		s := New(l, 1, 0)
		var want []value
		for len(in) > 0 {
			var v value
			v, in = take(in)
			a := s.Append()
			r := a.Begin()
			v.set(&r, len(want)%2 == 0)
			if err := a.End(r); err != nil {
				t.Fatal(err)
			}
			s, want = a.Slab(), append(want, v)
		}
		for i, v := range want {
			v.check(t, s, i)
		}
	})
}

// take makes a row of the first bytes of in.
func take(in []byte) (value, []byte) {
	next := func(n int) []byte {
		b := in[:min(n, len(in))]
		in = in[len(b):]
		return b
	}
	number := func() uint64 {
		var b [8]byte
		copy(b[:], next(8))
		return binary.LittleEndian.Uint64(b[:])
	}
	length := func() int {
		if b := next(1); len(b) == 1 {
			return int(b[0]) % 20
		}
		return 0
	}
	v := value{int: int64(number()), time: int64(number()), double: math.Float64frombits(number())}
	v.bool = v.int%2 == 0
	v.string = string(next(length()))
	for range length() % 4 {
		v.doubles = append(v.doubles, math.Float64frombits(number()))
		v.strings = append(v.strings, string(next(length())))
	}
	if n := length(); n%3 != 0 {
		v.maybe = ptr(string(next(n)))
	}
	return v, in
}

func TestStringAt(t *testing.T) {
	l := layout(t, []Field{{Name: "s", Kind: String}})
	a := New(l, 1, 0).Append()
	want := []string{"", "a", "seven77", "eight888", strings.Repeat("x", 300)}
	for _, v := range want {
		r := a.Begin()
		r.SetString(0, []byte(v))
		if err := a.End(r); err != nil {
			t.Fatal(err)
		}
	}
	s := a.Slab()
	for i, v := range want {
		if got := s.StringAt(0, i); got != v {
			t.Errorf("row %d is %q, want %q", i, got, v)
		}
	}
	if n := testing.AllocsPerRun(10, func() { _ = s.StringAt(0, 2) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestBytesAt(t *testing.T) {
	l, err := NewLayout([]Field{{Name: "body", Kind: String}, {Name: "at", Kind: Time, Role: "time"}})
	if err != nil {
		t.Fatal(err)
	}
	a := New(l, 1, 0).Append()
	for _, text := range []string{"", "short", "seven b", "longer than a word"} {
		r := a.Begin()
		r.SetString(0, []byte(text))
		if err := a.End(r); err != nil {
			t.Fatal(err)
		}
		if got := a.Slab().BytesAt(0, a.Slab().Len()-1); string(got) != text {
			t.Errorf("%q, want %q", got, text)
		}
	}
	if l.Time() != 1 {
		t.Errorf("time is column %d", l.Time())
	}
}

// TestAppendWords: a row written as words is the row written by its setters,
// and readers of the slab before do not see it.
func TestAppendWords(t *testing.T) {
	for _, n := range []int{1, 3, 4, 7, 70} {
		fields := make([]Field, n)
		for i := range fields {
			fields[i] = Field{Name: fmt.Sprint("f", i), Kind: String, Nullable: true}
		}
		l, err := NewLayout(fields)
		if err != nil {
			t.Fatal(err)
		}
		a, b := New(l, 1, 0).Append(), New(l, 1, 0).Append()
		for row := range 10 { // the slab grows on the way
			r := a.Begin()
			words := make([]uint64, l.nullWords+n)
			heap, ok := b.Heap(100)
			if !ok {
				t.Fatal("no room")
			}
			for i := range n {
				text := strings.Repeat("x", (row+i)%12)
				switch {
				case i%5 == 4:
					r.SetNull(i)
					words[i/64] |= 1 << (i % 64)
				case len(text) > maxInline:
					r.SetString(i, []byte(text))
					words[l.nullWords+i] = LongWord(len(heap), len(text))
					heap = append(heap, text...)
				default:
					r.SetString(i, []byte(text))
					words[l.nullWords+i], _ = InlineWord(text)
				}
			}
			if err := a.End(r); err != nil {
				t.Fatal(err)
			}
			before := b.Slab()
			b.AppendWords(words, heap)
			if before.Len() != row || b.Slab().Len() != row+1 {
				t.Fatalf("%d columns: %d rows, then %d; want %d and one more", n, before.Len(), b.Slab().Len(), row)
			}
		}
		want, got := a.Slab(), b.Slab()
		for i := range n {
			for row := range 10 {
				if want.Null(i, row) != got.Null(i, row) || want.Word(i, row) != got.Word(i, row) || want.StringAt(i, row) != got.StringAt(i, row) {
					t.Errorf("%d columns: column %d, row %d: %q, want %q", n, i, row, got.StringAt(i, row), want.StringAt(i, row))
				}
			}
		}
	}
	if _, ok := New(mustLayout(t), 1, 0).Append().Heap(math.MaxInt32); ok {
		t.Error("there is room for more than a reference reaches")
	}
}

func mustLayout(t *testing.T) *Layout {
	t.Helper()
	l, err := NewLayout([]Field{{Name: "f", Kind: Int}})
	if err != nil {
		t.Fatal(err)
	}
	return l
}
