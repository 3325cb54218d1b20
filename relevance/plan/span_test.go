package plan

import (
	"math"
	"slices"
	"testing"
)

// A product of spans holds the products of their ends, of which those that are
// no number count as 0, and no number is an end of it.
func TestProduct(t *testing.T) {
	ends := []float64{math.Inf(-1), -2, -1, 0, 0.5, 3, math.Inf(1)}
	var spans []span
	for i, lo := range ends {
		for _, hi := range ends[i:] {
			spans = append(spans, span{lo, hi})
		}
	}
	for _, a := range spans {
		for _, b := range spans {
			var all []float64
			for _, x := range []float64{a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi} {
				if x != x {
					x = 0
				}
				all = append(all, x)
			}
			if got := product(a, b); got.lo != slices.Min(all) || got.hi != slices.Max(all) {
				t.Errorf("%v times %v is %v, want from %v to %v", a, b, got, slices.Min(all), slices.Max(all))
			}
		}
	}
}

// Kinds have the names that messages use, and what is none has a number.
func TestNamesOfKinds(t *testing.T) {
	for k, want := range map[Kind]string{0: "kind(0)", Number: "number", Strings: "list(string)", Strings + 1: "kind(6)", 200: "kind(200)"} {
		if got := k.String(); got != want {
			t.Errorf("kind %d is %s", uint8(k), got)
		}
	}
}
