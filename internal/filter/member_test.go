package filter

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/expr"
)

// A list that is long has the same elements as one that is compared one by one, also
// where ints and doubles are compared, and of NaN, of either zero and past the ints
// that doubles tell apart. The list is hashed: its length is not paid for each record.
func TestLongListsOfConstants(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	double := func() float64 {
		return pick(r, math.NaN(), 0, math.Copysign(0, -1), 1<<53, 1<<53+2, math.MaxInt64, math.MinInt64, math.Inf(1), 1e300, float64(r.IntN(50)), 0.5+float64(r.IntN(50)))
	}
	integer := func() int64 {
		return pick(r, 0, 1<<53, 1<<53+1, math.MaxInt64, math.MaxInt64-1, math.MinInt64, r.Int64N(50), -r.Int64N(50))
	}
	text := func() string { return strings.Repeat(pick(r, "a", "b", "c"), r.IntN(12)) }
	for range 300 {
		for _, typ := range []expr.Type{expr.String, expr.Int, expr.Double, expr.Time} {
			var elements []*constant
			for range 4 * fewConstants {
				elements = append(elements, pick(r,
					&constant{out: out{typ: expr.Double}, word: math.Float64bits(double())},
					&constant{out: out{typ: expr.Int}, word: uint64(integer())},
					&constant{out: out{typ: expr.Time}, word: uint64(integer())},
					&constant{out: out{typ: expr.String}, text: text()}))
			}
			elements = elements[:r.IntN(len(elements))]
			k := newInConstants(&constant{out: out{typ: typ}}, elements)
			long := newInConstants(&constant{out: out{typ: typ}}, elements)
			long.eval(&batch{sel: make([]int32, fewConstants+1)})
			if n := len(k.same) + len(k.ints) + len(k.doubles) + len(k.texts); (long.hashed != nil) != (n > fewConstants) {
				t.Errorf("of %d elements: hashed %v", n, long.hashed != nil)
			}
			for range 40 {
				v := &vector{words: []uint64{uint64(integer())}, strings: []string{text()}}
				if typ == expr.Double {
					v.words[0] = math.Float64bits(double())
				}
				if got, want := long.contains(v, 0), k.contains(v, 0); got != want {
					t.Fatalf("%v %x %q in %+v: %v, want %v", typ, v.words[0], v.strings[0], k, got, want)
				}
			}
		}
	}
}
