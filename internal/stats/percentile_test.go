package stats

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// The interval of a quantile is that of its definition, tried value by value:
// those that a mixture of binomial counts does not exclude.
func TestQuantileByItsDefinition(t *testing.T) {
	s, err := NewSequence(0.05, 1000)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{1, 5, 40, 300, 2000} {
		for _, part := range []float64{0.1, 0.5, 0.9, 0.99} {
			var q Quantiles
			values := make([]float64, n)
			for i := range values {
				values[i] = math.Exp(rng.NormFloat64())
				q.Add(values[i])
			}
			slices.Sort(values)
			want := Interval{math.Inf(-1), math.Inf(1)}
			evidence := func(below int) float64 {
				x, y := int64(below), int64(n-below)
				return logBetaMixture(x, y, 0.5, 0.5) - logLikelihood(x, y, part)
			}
			for below := 0; below <= n; below++ {
				if evidence(below) < math.Log(1/0.05) {
					if below > 0 {
						want.Low = values[below-1]
					}
					break
				}
			}
			for below := n; below >= 0; below-- {
				if evidence(below) < math.Log(1/0.05) {
					if below < n {
						want.High = values[below]
					}
					break
				}
			}
			got := s.Quantile(q, part)
			off := func(got, want float64) bool {
				return math.IsInf(got, 0) != math.IsInf(want, 0) || !math.IsInf(want, 0) && math.Abs(got-want) > 2.1*QuantileError*math.Abs(want)
			}
			if off(got.Low, want.Low) || off(got.High, want.High) || got.Low > want.Low || got.High < want.High {
				t.Errorf("%v of %d: %v, want %v", part, n, got, want)
			}
		}
	}
	if i := s.Quantile(Quantiles{}, 0.5); !math.IsInf(i.Low, -1) || !math.IsInf(i.High, 1) {
		t.Errorf("of nothing %v", i)
	}
}

// scipy 1.17.1: the counts at which betabinom.logpmf of 0.5 and 0.5 less
// binom.logpmf is below log(1/alpha). The ends are the values at their places, of
// which each is 5 % above the one before, so that no other is within the widening.
func TestQuantileByCountsOfScipy(t *testing.T) {
	for _, c := range []struct {
		n           int
		part, alpha float64
		least, most int
	}{
		{40, 0.5, 0.05, 11, 29}, {300, 0.9, 0.05, 251, 286}, {1000, 0.99, 0.05, 977, 998}, {1000, 0.5, 0.01, 436, 564}, {300, 0.05, 0.1, 5, 28},
	} {
		s, err := NewSequence(c.alpha, 1000)
		if err != nil {
			t.Fatal(err)
		}
		var q Quantiles
		value := func(place int) float64 { return math.Pow(1.05, float64(place)) } // from 0
		for i := range c.n {
			q.Add(value(i))
		}
		got := s.Quantile(q, c.part)
		if math.Abs(got.Low/value(c.least-1)-1) > 2.1*QuantileError || math.Abs(got.High/value(c.most)-1) > 2.1*QuantileError {
			t.Errorf("%v of %d: %v to %v, want about %v to %v", c.part, c.n, got.Low, got.High, value(c.least-1), value(c.most))
		}
	}
}

// Looked at after every 100 values, it misses the quantile in no more runs than
// alpha says, and two of one distribution are told apart in no more.
func TestQuantileKeepsItsPromise(t *testing.T) {
	const runs, alpha = 200, 0.1
	s, err := NewSequence(alpha, 2000)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(5, 6))
	truth := -math.Log(1 - 0.95) // of the exponential distribution
	missed, apart := 0, 0
	for range runs {
		var q, other Quantiles
		miss, differ := false, false
		for i := range 2000 {
			q.Add(rng.ExpFloat64())
			other.Add(rng.ExpFloat64())
			if i%100 == 99 {
				miss = miss || !s.Quantile(q, 0.95).Contains(truth)
				differ = differ || !s.QuantileDifference(q, other, 0.95).Contains(0)
			}
		}
		if miss {
			missed++
		}
		if differ {
			apart++
		}
	}
	if most := int(runs*alpha + 3*math.Sqrt(runs*alpha)); missed > most || apart > most {
		t.Errorf("of %d runs %d miss the quantile, and %d tell two apart that are the same; more than %d", runs, missed, apart, most)
	}
}

// A tail that is twice as long is found.
func TestQuantileDifferenceIsFound(t *testing.T) {
	s, err := NewSequence(0.05, 20_000)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(7, 8))
	var control, variant Quantiles
	for range 5000 {
		control.Add(rng.ExpFloat64())
		variant.Add(2 * rng.ExpFloat64())
	}
	if e := s.QuantileDifference(control, variant, 0.99); !e.Above(0) || math.Abs(e.Value-4.6) > 1 || e.P != 0.05 {
		t.Errorf("%+v", e)
	}
}

// A mean's multiple excludes just those factors that Excess excludes.
func TestMeanRatio(t *testing.T) {
	s, err := NewSequence(0.05, 2000)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(9, 10))
	var control, variant Mean
	if e := s.MeanRatio(control, variant); !math.IsNaN(e.Value) || e.Low != 0 || !math.IsInf(e.High, 1) {
		t.Errorf("of nothing %+v", e)
	}
	for range 2000 {
		control.Add(rng.ExpFloat64())
		variant.Add(3 * rng.ExpFloat64())
	}
	e := s.MeanRatio(control, variant)
	if math.Abs(e.Value-variant.Mean/control.Mean) > 1e-12 || !e.Contains(3) || e.Low < 2 || e.High > 4 {
		t.Fatalf("%+v", e)
	}
	for _, c := range []struct {
		factor       float64
		above, below bool
	}{{e.Low * 0.999, true, false}, {e.Low * 1.001, false, false}, {e.High * 0.999, false, false}, {e.High * 1.001, false, true}} {
		if x := s.Excess(control, variant, c.factor); x.Above(0) != c.above || x.Below(0) != c.below {
			t.Errorf("factor %v of %v: %v", c.factor, e.Interval, x.Interval)
		}
	}
}
