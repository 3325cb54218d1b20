package column

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// feature is the layout of records with a text and lists.
var feature = []Field{
	{Name: "text", Kind: String}, {Name: "list", Kind: Doubles}, {Name: "words", Kind: Strings}, {Name: BodyName, Kind: String},
}

// featureRows returns rows of records as Avro writes them, their lists as
// floats or as doubles, and how many bytes their bodies have.
func featureRows(t *testing.T, rows, items int, wide bool) (s *Slab, bodies int) {
	t.Helper()
	a := New(layout(t, feature), 1, 0).Append()
	for i := range rows {
		text := fmt.Sprintf("what the %dth record says, at some length", i*i)
		words := []string{"one", fmt.Sprint("word ", i)}[:i%3]
		body := append(binary.AppendVarint(nil, int64(len(text))), text...)
		textAt := len(body) - len(text)
		body = append(body, byte(2*len(words)))
		for _, w := range words {
			body = append(binary.AppendVarint(body, int64(len(w))), w...)
		}
		body = append(body, 0, byte(2*items))
		var list []float64
		for j := range items {
			x := float64(float32(math.Sqrt(float64(i*items + j + 2))))
			if list = append(list, x); wide {
				body = binary.LittleEndian.AppendUint64(body, math.Float64bits(x))
			} else {
				body = binary.LittleEndian.AppendUint32(body, math.Float32bits(float32(x)))
			}
		}
		r := a.Begin()
		at := r.Heap(body)
		r.SetHeapString(0, body[textAt:][:len(text)], at+textAt)
		r.SetDoubles(1, list)
		r.SetStrings(2, words)
		r.SetHeapString(3, body, at)
		if err := a.End(r); err != nil {
			t.Fatal(err)
		}
		bodies += len(body)
	}
	return a.Slab(), bodies
}

// Lists and texts that stand in the body take no bytes of their own, also when
// the rows are gathered and packed again, as they are when a timeline grows.
func TestListsStandInBodies(t *testing.T) {
	const rows = 100
	for _, wide := range []bool{false, true} {
		s, bodies := featureRows(t, rows, 24, wide)
		p := pack(t, s)
		samePacked(t, p, s)
		again := New(s.layout, 1, 0)
		again.Gather(p, 0, rows, nil)
		samePacked(t, pack(t, again), s)
		for what, p := range map[string]Packed{"packed": p, "packed again": pack(t, again)} {
			// 2 bytes for where the body is and 2 for its length, 1 and 1 each for
			// text, list and words.
			if got := p.Size() - bodies; got > rows*10+200 {
				t.Errorf("wide is %v, %s: %d bytes for %d rows besides their bodies", wide, what, got, rows)
			}
		}
	}
}

// Without a body a list takes a byte an item where all of the column are whole
// numbers from -128 to 127, 4 where float32s are exact, and 8 elsewhere.
func TestListsWithoutABody(t *testing.T) {
	const rows, items = 100, 24
	for _, c := range []struct {
		x     float64 // an item of the last row
		width int
	}{
		{0, 1}, {127, 1}, {-128, 1},
		{128, 4}, {-129, 4}, {0.5, 4}, {math.Copysign(0, -1), 4}, {math.Inf(1), 4},
		{0.1, 8}, {math.NaN(), 8}, {1 << 24, 4}, {1<<24 + 1, 8},
	} {
		a := New(layout(t, feature[1:2]), 1, 0).Append()
		for i := range rows {
			list := make([]float64, items)
			list[3], list[4] = float64(i), float64(-i)
			if i == rows-1 {
				list[items-1] = c.x
			}
			r := a.Begin()
			r.SetDoubles(0, list)
			if err := a.End(r); err != nil {
				t.Fatal(err)
			}
		}
		p := pack(t, a.Slab())
		samePacked(t, p, a.Slab())
		if want := rows * items * c.width; p.Size() < want || p.Size() > want+rows*3 {
			t.Errorf("items like %v take %d bytes, and %d wide %d", c.x, p.Size(), c.width, want)
		}
	}
}

// Avro has lists of ints as bytes of its own, which no reader of items knows: 64
// small ones take 64 bytes besides their body, where float32s would take 256.
// Lists of floats stay in it, also of small whole numbers.
func TestSmallWholeListsBesideBodies(t *testing.T) {
	const rows, items = 100, 64
	for _, ints := range []bool{true, false} {
		a, bodies := New(layout(t, []Field{feature[1], feature[3]}), 1, 0).Append(), 0
		for i := range rows {
			var list []float64
			body := binary.AppendVarint(nil, items)
			for j := range items {
				x := (i*31+j*7)%256 - 128
				if list = append(list, float64(x)); ints {
					body = binary.AppendVarint(body, int64(x))
				} else {
					body = binary.LittleEndian.AppendUint32(body, math.Float32bits(float32(x)))
				}
			}
			body = append(body, 0)
			bodies += len(body)
			r := a.Begin()
			r.SetDoubles(0, list)
			r.SetHeapString(1, body, r.Heap(body))
			if err := a.End(r); err != nil {
				t.Fatal(err)
			}
		}
		p, want := pack(t, a.Slab()), 0
		samePacked(t, p, a.Slab())
		if ints {
			want = rows * items
		}
		if got := p.Size() - bodies - want; got < 0 || got > rows*10+200 {
			t.Errorf("ints %v: lists of %d rows take %d bytes besides %d of bodies, %d more than they should", ints, rows, p.Size()-bodies, bodies, got)
		}
	}
}

func TestListAt(t *testing.T) {
	s, _ := featureRows(t, 3, 5, false)
	p := pack(t, s)
	var b Batch
	b.Reset(s.layout, []int{1}, 10)
	b.Add(p, 1, 3)
	for row := range 2 {
		want := s.DoublesAt(nil, 1, row+1)
		for name, l := range map[string]List{"slab": s.ListAt(1, row+1), "packed": p.ListAt(1, row+1), "batch": b.Slab().ListAt(1, row)} {
			if l.Len() != len(want) {
				t.Fatalf("%s: %d items", name, l.Len())
			}
			for i, x := range want {
				if l.At(i) != x {
					t.Errorf("%s: item %d is %v, want %v", name, i, l.At(i), x)
				}
			}
			for _, i := range []int{-1, len(want), math.MaxInt} {
				if x := l.At(i); x == x {
					t.Errorf("%s: item %d is %v", name, i, x)
				}
			}
		}
	}
	if x := (List{}).At(0); x == x {
		t.Errorf("an empty list has an item, %v", x)
	}
}

// Where lists stand, and how long they and texts are, is the same for many rows at once
// as row by row: of a slab, and of batches of few and of many rows of each source.
func TestListsOfRows(t *testing.T) {
	r := rand.New(rand.NewPCG(20, 20))
	for range 300 {
		s := randomSlab(t, r, 1+r.IntN(200))
		var fields []int
		for f := range s.layout.fields {
			fields = append(fields, f)
		}
		p, slabs := pack(t, s), []*Slab{s}
		for _, most := range []int{3, 200} {
			var b Batch
			b.Reset(s.layout, fields, 300)
			for b.Room() > 0 {
				lo := r.IntN(s.Len())
				b.Add(p, lo, min(lo+1+r.IntN(most), lo+b.Room(), s.Len()))
			}
			slabs = append(slabs, b.Slab())
		}
		for _, s := range slabs {
			var rows []int32
			skip := []int{1, 1, 3}[r.IntN(3)]
			for at := r.IntN(2); at < s.Len(); at += 1 + r.IntN(skip) {
				rows = append(rows, int32(at))
			}
			for f, field := range s.layout.fields {
				if k := field.Kind; k != String && k != Strings && k != Doubles {
					continue
				}
				want := 0
				for _, row := range rows {
					want += s.Size(f, int(row))
				}
				if got := s.Sizes(f, rows); got != want {
					t.Fatalf("%d rows of a %s have %d bytes, not %d", len(rows), field.Kind, want, got)
				}
				if field.Kind != Doubles {
					continue
				}
				lists := make([]List, len(rows))
				s.ListsAt(lists, f, rows)
				for i, row := range rows {
					if want := s.ListAt(f, int(row)); lists[i] != want {
						t.Fatalf("row %d: %v, want %v", row, lists[i], want)
					}
				}
			}
		}
	}
}

// What a batch does with lists and long texts does not grow with them.
func TestABatchCopiesNoLists(t *testing.T) {
	s, _ := featureRows(t, 50, 24, false)
	p := pack(t, s)
	var b Batch
	b.Reset(s.layout, []int{0, 1, 2, 3}, 1000)
	for range 20 {
		b.Add(p, 0, 50)
	}
	if b.Room() != 0 || len(b.rows.heap) != 0 || len(b.rows.sources) != 20*4 {
		t.Errorf("room for %d, %d bytes copied, %d sources", b.Room(), len(b.rows.heap), len(b.rows.sources))
	}
	b.Clear()
	if all := b.rows.sources[:cap(b.rows.sources)]; all[0].p.at != nil {
		t.Error("a cleared batch holds packed rows")
	}
}
