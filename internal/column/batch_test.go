package column

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestBatch gathers random rows of random slabs, and finds each value again.
func TestBatch(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 9))
	fields := every
	for i := range 70 { // into a second word of null bits
		fields = append(fields[:len(fields):len(fields)], Field{Name: fmt.Sprint("f", i), Kind: []Kind{Int, String}[i%2], Nullable: i%3 == 0})
	}
	l := layout(t, fields)
	var slabs []*Slab
	for i := range 7 {
		a := New(l, 3, 10).Append()
		for range 40 {
			row := a.Begin()
			for f := range fields {
				n := r.IntN(20)
				if i%2 == 1 {
					n = 10 + f%3 + i%4/2 // in all rows, and in some slabs the same
				}
				switch {
				case fields[f].Nullable && n < 8:
					row.SetNull(f)
				case fields[f].Kind == String:
					row.SetString(f, []byte(strings.Repeat("s", n)))
				case fields[f].Kind == Doubles:
					row.SetDoubles(f, []float64{float64(n), 1e300, 0.1, float64(i), 0.5}[:n/4])
				case fields[f].Kind == Strings:
					row.SetStrings(f, []string{"a", "the second one"}[:n%3])
				default:
					row.SetInt(f, int64(n))
				}
			}
			if err := a.End(row); err != nil {
				t.Fatal(err)
			}
		}
		slabs = append(slabs, a.Slab())
	}
	packed := map[*Slab]Packed{}
	for _, s := range slabs {
		packed[s] = pack(t, s)
	}
	var b Batch
	var chosen []int
	for i := range 200 {
		if b.Clear(); i%4 == 0 {
			chosen = r.Perm(len(fields))[:1+r.IntN(len(fields))]
			b.Reset(l, chosen, 100)
			b.Watch(chosen)
		}
		type from struct {
			s   *Slab
			row int
		}
		var want []from
		for range 1 + r.IntN(12) {
			s := slabs[r.IntN(len(slabs))]
			lo := r.IntN(s.Len())
			hi := min(lo+r.IntN(s.Len()-lo+1), lo+b.Room())
			b.Add(packed[s], lo, hi)
			for row := lo; row < hi; row++ {
				want = append(want, from{s, row})
			}
		}
		got := b.Slab()
		if got.Len() != len(want) || b.Room() != 100-len(want) {
			t.Fatalf("%d rows, want %d; room for %d", got.Len(), len(want), b.Room())
		}
		for row, w := range want {
			for _, f := range chosen {
				if x, y := printed(got, f, row), printed(w.s, f, w.row); x != y {
					t.Fatalf("row %d, %s: %s, want %s", row, fields[f].Name, x, y)
				}
				if x := got.Word(f, row); fields[f].Kind == Int && x > b.Most(f) {
					t.Fatalf("row %d, %s: %d, and at most %d", row, fields[f].Name, x, b.Most(f))
				}
			}
		}
	}
}

// printed is a value in words.
func printed(s *Slab, f, row int) string {
	null := s.Layout().fields[f].Nullable && s.Null(f, row)
	switch w := s.Word(f, row); s.Layout().fields[f].Kind {
	case String:
		return fmt.Sprint(null, s.StringAt(f, row))
	case Doubles:
		return fmt.Sprint(null, s.Doubles(nil, w))
	case Strings:
		return fmt.Sprint(null, s.Strings(nil, w))
	default:
		return fmt.Sprint(null, w)
	}
}
