package stats

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// Every quantile is within QuantileError of the exact one, of every kind of
// score.
func TestQuantiles(t *testing.T) {
	parts := []float64{0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1}
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 5))
		draw := []func() float64{
			r.Float64, r.NormFloat64, r.ExpFloat64,
			func() float64 { return math.Exp(5 * r.NormFloat64()) },
			func() float64 { return float64(r.IntN(5) - 2) },
			func() float64 { return math.MaxFloat64 * (0.5 + r.Float64()/2) },
		}[seed%6]
		var q Quantiles
		exact := make([]float64, 1+r.IntN(1000))
		for i := range exact {
			exact[i] = draw()
			q.Add(exact[i])
		}
		slices.Sort(exact)
		if q.N() != int64(len(exact)) {
			t.Fatalf("seed %d: %d numbers counted of %d", seed, q.N(), len(exact))
		}
		for i, got := range q.At(parts...) {
			want := exact[int(parts[i]*float64(len(exact)-1))]
			if math.Abs(got-want) > QuantileError*math.Abs(want)*(1+1e-9) {
				t.Errorf("seed %d: quantile %v is %v, exactly %v", seed, parts[i], got, want)
			}
		}
	}
}

func TestQuantilesOfNothing(t *testing.T) {
	var q Quantiles
	q.Add(math.NaN())
	q.Add(math.Inf(1))
	q.Add(math.Inf(-1))
	if q.N() != 0 || q.NaN != 1 || q.Inf != 2 || !math.IsNaN(q.At(0.5)[0]) {
		t.Errorf("of no number: %+v, median %v", q, q.At(0.5))
	}
	q.Add(5)
	if got := q.At(-0.1, 1.1, math.NaN()); !math.IsNaN(got[0]) || !math.IsNaN(got[1]) || !math.IsNaN(got[2]) {
		t.Errorf("parts that are none: %v", got)
	}
}

// What is taken out again leaves what was there before it, also of means, which
// it leaves to rounding.
func TestWhatWasAddedIsTakenOut(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 8))
		var q, want Quantiles
		var m, wanted Mean
		var out []float64
		for range r.IntN(100) {
			x := []float64{r.NormFloat64(), 0, math.NaN(), math.Inf(1), math.Exp(20 * r.NormFloat64())}[r.IntN(5)]
			q.Add(x)
			m.Add(min(x, 1e6))
			if r.IntN(2) == 0 {
				out = append(out, x)
				continue
			}
			want.Add(x)
			wanted.Add(min(x, 1e6))
		}
		for _, x := range out {
			q.Remove(x)
			m.Remove(min(x, 1e6))
		}
		if !maps.Equal(q.Positive, want.Positive) || !maps.Equal(q.Negative, want.Negative) || q.Zero != want.Zero || q.NaN != want.NaN || q.Inf != want.Inf {
			t.Errorf("seed %d: %+v, want %+v", seed, q, want)
		}
		if m.N != wanted.N || m.NaN != wanted.NaN || !near(m.Mean, wanted.Mean) || m.N > 1 && math.Abs(m.M2-wanted.M2) > 1e-5*(1+wanted.M2) {
			t.Errorf("seed %d: %+v, want %+v", seed, m, wanted)
		}
	}
	var q Quantiles
	for b := range 2 * maxBuckets { // more than there is room for
		q.Add(math.Exp(float64(b) * logGrowth / 2))
		q.Add(math.Exp(float64(b) * logGrowth))
	}
	before := q.N()
	if q.Remove(1); q.N() != before-1 || len(q.Positive) > maxBuckets {
		t.Errorf("%d of %d are left, in %d buckets", q.N(), before, len(q.Positive))
	}
}
