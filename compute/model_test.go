package compute

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace/internal/column"
)

// Half-lives change from call to call, and several may be the same.
func TestDecaysOfSeveralHalfLives(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var k ModelArgs
	for range 500 {
		k.Sel = make([]int32, 1+r.IntN(300))
		ages := k.Vector(0)
		for i := range ages {
			ages[i] = r.Float64() * 1e5
		}
		halves := make([]float64, 1+r.IntN(5))
		got := make([][]float64, len(halves))
		for i := range halves {
			halves[i] = float64(1 + r.IntN(3))
			got[i] = k.Decays(1+i, ages, halves[i])
		}
		for i, half := range halves {
			for j, age := range ages {
				if want := Decay(age, half); got[i][j] != want {
					t.Fatalf("half-life %d of %v, age %v: %v, want %v", i, halves, age, got[i][j], want)
				}
			}
		}
	}
}

// A table says of many words what it says of each.
func TestTablesOfManyWords(t *testing.T) {
	l, err := column.NewLayout([]column.Field{{Name: "s", Kind: column.String}})
	if err != nil {
		t.Fatal(err)
	}
	text := func(i int) string { return fmt.Sprintf("%.*s%d", i%3*4, "a long string", i) }
	a := column.New(l, 1, 0).Append()
	for i := range 24 {
		row := a.Begin()
		row.SetString(0, []byte(text(i)))
		if err := a.End(row); err != nil {
			t.Fatal(err)
		}
	}
	slab := a.Slab()
	r := rand.New(rand.NewPCG(2, 2))
	var set Table // of one request after the other
	for range 300 {
		values, members := map[string]float64{}, []string{}
		for range r.IntN(8) {
			s := text(r.IntN(30) / 3 * (1 + r.IntN(3)))
			values[s] = r.Float64()
			members = append(members, s)
		}
		k := ModelArgs{Rows: slab}
		for range r.IntN(40) {
			k.Sel = append(k.Sel, int32(r.IntN(slab.Len())))
		}
		words := slab.Column(0)
		table := StringTable(values, -1)
		set.SetStrings(members)
		got, in := k.Lookup(0, table, words), k.In(1, &set, words)
		for i, row := range k.Sel {
			s := slab.StringAt(0, int(row))
			want, known := values[s]
			if !known {
				want = -1
			}
			if got[i] != want || in[i] != known {
				t.Fatalf("%q in %v: %v %t", s, values, got[i], in[i])
			}
		}
	}
}
