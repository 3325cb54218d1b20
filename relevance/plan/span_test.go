package plan

import (
	"math"
	"math/rand/v2"
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

// Sum adds up in the order that a linear score is defined by: each part in four lanes, in
// turns, but the fixed one in one; and what has no terms adds nothing, not even to -0.
func TestSumIsOfLanes(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 11))
		bias := []float64{math.Copysign(0, -1), r.NormFloat64()}[r.IntN(2)]
		terms := map[Part][]float64{}
		var order []Part
		for range r.IntN(30) {
			order = append(order, Part(r.IntN(3)))
		}
		got := Sum(bias, func(add func(Part, float64)) {
			for _, p := range order {
				x := []float64{math.Copysign(0, -1), r.NormFloat64() * math.Pow(10, float64(r.IntN(20)))}[min(r.IntN(4), 1)]
				terms[p] = append(terms[p], x)
				add(p, x)
			}
		})
		added := func(all ...[]float64) (sum []float64) { // the sums of all that have any, from the left
			for _, x := range all {
				switch {
				case len(x) > 0 && sum == nil:
					sum = []float64{x[0]}
				case len(x) > 0:
					sum[0] += x[0]
				}
			}
			return sum
		}
		lanes := func(p Part) []float64 {
			var of [4][]float64
			for i, x := range terms[p] {
				of[i%4] = added(of[i%4], []float64{x})
			}
			return added(added(of[0], of[1]), added(of[2], of[3]))
		}
		fixed := []float64{bias}
		for _, x := range terms[FixedPart] {
			fixed[0] += x
		}
		if want := added(added(lanes(OwnPart), fixed), lanes(RestPart))[0]; math.Float64bits(got) != math.Float64bits(want) {
			t.Fatalf("seed %d: %v in parts %v with %v come to %v, want %v", seed, terms, order, bias, got, want)
		}
	}
}
