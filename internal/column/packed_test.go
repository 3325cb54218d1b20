package column

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unsafe"
)

// pack packs s behind some other bytes.
func pack(t testing.TB, s *Slab) Packed {
	t.Helper()
	b, err := Pack(make([]byte, 24), s)
	if err != nil {
		t.Fatal(err)
	}
	return PackedAt(b[24:])
}

// samePacked compares what is packed with the slab, through every way of
// reading it.
func samePacked(t testing.TB, p Packed, s *Slab) {
	t.Helper()
	if p.Len() != s.Len() || p.Layout() != s.Layout() {
		t.Fatalf("%d rows, want %d", p.Len(), s.Len())
	}
	n := s.Len()
	lo, hi := n/3, n-n/4
	var all, some []int
	for f := range s.layout.fields {
		all = append(all, f)
		if f%2 == 0 {
			some = append(some, f)
		}
	}
	whole, window := New(s.layout, 1, 0), New(s.layout, 1, 0)
	whole.Gather(p, 0, hi, nil)
	whole.Gather(p, hi, n, all)
	window.Gather(p, 0, n, nil) // to be forgotten
	window.Reset(s.layout)
	window.Gather(p, lo, hi, some)
	sameRows(t, whole, s, 0, all)
	sameRows(t, window, s, lo, some)
	for _, f := range all {
		same, first := true, uint64(0)
		if n > 0 {
			first = s.Word(f, 0)
		}
		for row := range n {
			w := s.Word(f, row)
			same = same && w == first
			if p.Null(f, row) != s.Null(f, row) {
				t.Fatalf("field %d row %d: null is %v", f, row, p.Null(f, row))
			}
			switch s.layout.fields[f].Kind {
			case String:
				if got, want := p.StringAt(f, row), s.StringAt(f, row); got != want || string(p.BytesAt(f, row)) != want {
					t.Fatalf("field %d row %d: %q, want %q", f, row, got, want)
				}
			case Doubles:
				sameLists(t, p.DoublesAt(nil, f, row), s.Doubles(nil, w))
			case Strings:
				if got, want := p.StringsAt(nil, f, row), s.Strings(nil, w); !slices.Equal(got, want) {
					t.Fatalf("field %d row %d: %q, want %q", f, row, got, want)
				}
			default:
				if got := p.Word(f, row); got != w {
					t.Fatalf("field %d row %d: word %x, want %x", f, row, got, w)
				}
			}
		}
		if w, ok := p.Constant(f); ok && (!same || n > 0 && w != first) {
			t.Fatalf("field %d: constant %x, first %x, same %v", f, w, first, same)
		}
	}
}

func sameRows(t testing.TB, got, want *Slab, lo int, fields []int) {
	t.Helper()
	for _, f := range fields {
		for row := range got.Len() {
			sameValue(t, want, want.Word(f, lo+row), got, got.Word(f, row), f, row)
			if got.Null(f, row) != want.Null(f, lo+row) {
				t.Fatalf("field %d row %d: null is %v", f, row, got.Null(f, row))
			}
		}
	}
}

// sameValue compares words that are equal but for where references go.
func sameValue(t testing.TB, a *Slab, x uint64, b *Slab, y uint64, f, row int) {
	t.Helper()
	switch kind := a.layout.fields[f].Kind; {
	case kind == String && !IsInline(x):
		if IsInline(y) || a.String(x) != b.String(y) {
			t.Fatalf("field %d row %d: %q, want %q", f, row, b.String(y), a.String(x))
		}
	case kind == Doubles:
		sameLists(t, b.Doubles(nil, y), a.Doubles(nil, x))
	case kind == Strings:
		if !slices.Equal(a.Strings(nil, x), b.Strings(nil, y)) || (x == 0) != (y == 0) {
			t.Fatalf("field %d row %d: %q, want %q", f, row, b.Strings(nil, y), a.Strings(nil, x))
		}
	default:
		if x != y {
			t.Fatalf("field %d row %d: word %x, want %x", f, row, y, x)
		}
	}
}

func sameLists(t testing.TB, got, want []float64) {
	t.Helper()
	if !slices.EqualFunc(got, want, func(x, y float64) bool { return math.Float64bits(x) == math.Float64bits(y) }) {
		t.Fatalf("list %v, want %v", got, want)
	}
}

func TestPackEvery(t *testing.T) {
	for rows := range len(someValues) + 1 {
		a := New(layout(t, every), 0, 0).Append()
		for i, v := range someValues[:rows] {
			r := a.Begin()
			v.set(&r, i%2 == 0)
			if err := a.End(r); err != nil {
				t.Fatal(err)
			}
		}
		samePacked(t, pack(t, a.Slab()), a.Slab())
	}
}

// FuzzPack packs rows of a random layout, drawn from the seed.
func FuzzPack(f *testing.F) {
	for seed := range uint64(64) {
		f.Add(seed, uint16(seed*seed%300))
	}
	f.Fuzz(func(t *testing.T, seed uint64, rows uint16) {
		s := randomSlab(t, rand.New(rand.NewPCG(seed, 1)), int(rows%2000))
		samePacked(t, pack(t, s), s)
	})
}

// randomSlab draws a layout, and columns of every width, constancy and mixture.
func randomSlab(t testing.TB, r *rand.Rand, rows int) *Slab {
	var fields []Field
	add := func(name string, k Kind, role string) {
		fields = append(fields, Field{Name: name, Kind: k, Role: role, Nullable: r.IntN(2) == 0})
	}
	for i := range 1 + r.IntN(12)*(1+r.IntN(2)*5) {
		add(fmt.Sprint("f", i), Kind(1+r.IntN(int(Strings))), "")
	}
	if r.IntN(4) > 0 {
		add("id", String, "id")
	}
	if r.IntN(4) > 0 {
		add("at", Time, "time")
	}
	if r.IntN(4) > 0 {
		add(BodyName, String, "")
	}
	l := layout(t, fields)
	makers := make([]func() any, len(fields))
	for f := range fields {
		makers[f] = maker(r, fields[f].Kind)
	}
	a := New(l, 1, 0).Append()
	at := r.Int64() >> r.IntN(60)
	for range rows {
		row := a.Begin()
		var body []byte
		off := 0
		if l.body >= 0 {
			if r.IntN(8) == 0 {
				row.Heap([]byte("something before"))
			}
			body = []byte(strings.Repeat("the body of this row ", r.IntN(3)) + fmt.Sprint(r.IntN(1000)))
			off = row.Heap(body)
		}
		for f := range fields {
			at += int64(r.IntN(1000))
			if l.body >= 0 && fields[f].Kind == String && r.IntN(8) == 0 {
				body = body[:len(body):len(body)]
				off = row.Heap(body) // again, behind what was set
			}
			switch v := makers[f](); {
			case f == l.body:
				row.SetHeapString(f, body, off)
			case f == l.time:
				row.SetInt(f, at)
			case fields[f].Nullable && r.IntN(5) == 0:
				row.SetNull(f)
			case fields[f].Kind == String && len(body) > 0 && r.IntN(2) == 0:
				lo := r.IntN(len(body))
				hi := lo + r.IntN(len(body)-lo+1)
				row.SetHeapString(f, body[lo:hi], off+lo)
			default:
				row.set1(f, v)
			}
		}
		if err := a.End(row); err != nil {
			t.Fatal(err)
		}
	}
	return a.Slab()
}

func (r *Row) set1(f int, v any) {
	switch v := v.(type) {
	case bool:
		r.SetBool(f, v)
	case int64:
		r.SetInt(f, v)
	case float64:
		r.SetDouble(f, v)
	case string:
		r.SetString(f, []byte(v))
	case []float64:
		r.SetDoubles(f, v)
	case []string:
		r.SetStrings(f, v)
	}
}

// maker returns what makes the values of a column: near each other or far
// apart, few or many.
func maker(r *rand.Rand, k Kind) func() any {
	near, base, few := r.Uint64()>>r.IntN(64), int64(r.Uint64())>>r.IntN(64), 1+r.IntN(40)
	if r.IntN(3) == 0 {
		base = 0
	}
	whole := r.IntN(3) == 0 // lists are of small whole numbers
	number := func() int64 { return base + int64(r.Uint64()&near) }
	if r.IntN(3) == 0 {
		pool := make([]int64, few)
		for i := range pool {
			pool[i] = number()
		}
		number = func() int64 { return pool[r.IntN(few)] }
	}
	longest := r.IntN(20)
	text := func() string {
		s := fmt.Sprintf("%020d", uint64(number()))
		return s[20-min(20, r.IntN(longest+1)):]
	}
	exact := r.IntN(2) == 0
	double := func() float64 {
		if exact {
			return float64(float32(number()) / 8)
		}
		return math.Float64frombits(uint64(number()))
	}
	return func() any {
		switch k {
		case Bool:
			return number()%2 == 0
		case Int, Time:
			return number()
		case Double:
			return double()
		case String:
			return text()
		case Doubles:
			list := make([]float64, r.IntN(3))
			for i := range list {
				if list[i] = double(); whole {
					list[i] = float64(r.IntN(256) - 128)
				}
			}
			return list
		}
		list := make([]string, r.IntN(3))
		for i := range list {
			list[i] = text()
		}
		return list
	}
}

// Rows survive being moved: nothing in them is an address.
func TestPackedMoves(t *testing.T) {
	s := randomSlab(t, rand.New(rand.NewPCG(5, 5)), 100)
	p := pack(t, s)
	moved := make([]byte, p.Size())
	was := unsafe.Slice((*byte)(p.at), p.Size())
	copy(moved, was)
	clear(was)
	samePacked(t, PackedAt(moved), s)
}

func TestFirstAt(t *testing.T) {
	l := layout(t, []Field{{Name: "n", Kind: Int}, {Name: "at", Kind: Time, Role: "time"}})
	a := New(l, 1, 0).Append()
	times := []int64{-5, 3, 3, 3, 1 << 40, 1 << 50}
	for _, at := range times {
		r := a.Begin()
		r.SetInt(1, at)
		if err := a.End(r); err != nil {
			t.Fatal(err)
		}
	}
	p := pack(t, a.Slab())
	if oldest, newest := p.Times(); oldest != -5 || newest != 1<<50 {
		t.Errorf("times %d to %d", oldest, newest)
	}
	for _, at := range []int64{math.MinInt64, -6, -5, -4, 2, 3, 4, 1 << 40, 1<<40 + 1, 1 << 50, 1<<50 + 1, math.MaxInt64} {
		want := 0
		for want < len(times) && times[want] < at {
			want++
		}
		if got := p.FirstAt(at); got != want {
			t.Errorf("at %d: row %d, want %d", at, got, want)
		}
	}
}

// What one activity of the shipped kind takes, besides its body.
func TestPackedIsSmall(t *testing.T) {
	l := layout(t, []Field{
		{Name: "id", Kind: String, Role: "id"}, {Name: "actor", Kind: String, Role: "entity"}, {Name: "at", Kind: Time, Role: "time"},
		{Name: "deleted", Kind: Bool}, {Name: "language", Kind: String}, {Name: "likes", Kind: Int}, {Name: "about", Kind: Strings},
		{Name: BodyName, Kind: String}, {Name: "$schema", Kind: Int},
	})
	a := New(l, 1, 0).Append()
	const rows = 100
	bodies := 0
	for i := range rows {
		body := fmt.Sprintf("activity/%05d by member:12345 or so", i)
		bodies += len(body)
		r := a.Begin()
		off := r.Heap([]byte(body))
		r.SetHeapString(0, []byte(body[:14]), off)
		r.SetHeapString(1, []byte(body[18:30]), off+18)
		r.SetInt(2, 1_700_000_000_000+int64(i)*10_000)
		r.SetString(4, []byte([]string{"en", "de"}[i%2]))
		r.SetInt(5, int64(i%50))
		r.SetHeapString(7, []byte(body), off)
		r.SetInt(8, -1<<62)
		if err := a.End(r); err != nil {
			t.Fatal(err)
		}
	}
	p := pack(t, a.Slab())
	// 4 bytes of time, 1 of language, 1 of likes, 2 where the body is.
	if got := p.Size() - bodies; got > rows*8+200 {
		t.Errorf("%d bytes for %d rows besides their bodies", got, rows)
	}
	for _, f := range []int{3, 6, 8} {
		if _, ok := p.Constant(f); !ok {
			t.Errorf("field %d takes bytes of each row", f)
		}
	}
}

func TestReadingPackedDoesNotAllocate(t *testing.T) {
	s := randomSlab(t, rand.New(rand.NewPCG(9, 9)), 200)
	b, err := Pack(nil, s)
	if err != nil {
		t.Fatal(err)
	}
	p, batch := PackedAt(b), New(s.layout, 0, 0)
	batch.Gather(p, 0, 200, nil)
	if n := testing.AllocsPerRun(20, func() {
		batch.Reset(s.layout)
		batch.Gather(p, 0, 200, nil)
		for f := range s.layout.fields {
			if s.layout.fields[f].Kind == String {
				p.StringAt(f, 100)
			}
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestPackRefusesWhatIsTooLarge(t *testing.T) {
	var k packer
	if d := k.located(wide, maxUnits*unit); k.full || d>>8 != maxUnits {
		t.Errorf("the last offset of a descriptor is refused, or %x", d)
	}
	if k.located(wide, (maxUnits+1)*unit); !k.full {
		t.Error("an offset past the reach of a descriptor is taken")
	}
}

func BenchmarkGather(b *testing.B) {
	s := randomSlab(b, rand.New(rand.NewPCG(11, 3)), 20)
	p, batch := pack(b, s), New(s.layout, 2048, 0)
	fields := []int{s.layout.time}
	for f := range s.layout.fields {
		if k := s.layout.fields[f].Kind; k <= Double && len(fields) < 5 {
			fields = append(fields, f)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		batch.Reset(s.layout)
		batch.Gather(p, 0, 20, fields)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(20*b.N), "ns/row")
}

// A string of a zero byte has a word as small as a byte.
func TestPackZeroBytes(t *testing.T) {
	a := New(layout(t, []Field{{Name: "s", Kind: String}}), 1, 0).Append()
	for _, v := range []string{"", "\x00", "\x00\x00", ""} {
		r := a.Begin()
		r.SetString(0, []byte(v))
		if err := a.End(r); err != nil {
			t.Fatal(err)
		}
	}
	samePacked(t, pack(t, a.Slab()), a.Slab())
}

// Constant returns the word that all rows of a field have. ok is false where
// they differ, or are references.
func (p Packed) Constant(field int) (w uint64, ok bool) {
	d := *p.column(p.Layout(), field)
	switch d.encoding() {
	case small, constant:
		return p.value(d, 0), true
	}
	return 0, false
}
