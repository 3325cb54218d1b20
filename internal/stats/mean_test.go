package stats

import (
	"math"
	"math/rand/v2"
	"testing"
)

// near reports whether two numbers agree to 1e-5, of their size where that is
// above 1.
func near(a, b float64) bool {
	return a == b || math.IsNaN(a) && math.IsNaN(b) || math.Abs(a-b) <= 1e-5*max(1, min(math.Abs(a), math.Abs(b)))
}

// same fails the test where two numbers are not near each other.
func same(t *testing.T, what string, got, want float64) {
	t.Helper()
	if !near(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestMeanOfValues(t *testing.T) {
	for _, c := range []struct {
		name           string
		values         []float64
		mean, variance float64
	}{
		{"none", nil, 0, math.NaN()},
		{"one", []float64{3}, 3, math.NaN()},
		// R's var(c(2, 4, 4, 4, 5, 5, 7, 9)) is 32/7.
		{"eight", []float64{2, 4, 4, 4, 5, 5, 7, 9}, 5, 32.0 / 7},
		// NIST's NumAcc3: the difference of squares loses every digit of it.
		{"far from zero", []float64{1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16}, 1e9 + 10, 30},
		{"not numbers", []float64{1, math.NaN(), math.Inf(1), 3, math.Inf(-1), 1e200}, 2, 2},
	} {
		var m Mean
		for _, x := range c.values {
			m.Add(x)
		}
		same(t, c.name+": mean", m.Mean, c.mean)
		same(t, c.name+": variance", m.Variance(), c.variance)
	}
}

func TestWhatIsNoNumberIsCountedApart(t *testing.T) {
	var m Mean
	for _, x := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e141, -1e141} {
		m.Add(x)
	}
	if want := (Mean{NaN: 1, Inf: 4}); m != want {
		t.Errorf("%+v, want %+v", m, want)
	}
	for range 1000 {
		m.Add(1e140)
		m.Add(-1e140)
	}
	if math.IsInf(m.M2, 0) || math.IsNaN(m.Mean) {
		t.Errorf("the largest values overflow: %+v", m)
	}
}

// The interval of one look covers as often as it says, and is 1.959963985 standard
// errors on either side. A sequence at its own horizon is half as wide again.
func TestMeanOnce(t *testing.T) {
	var m Mean
	for i := range 1000 {
		m.Add(float64(i % 10))
	}
	once := m.Once(0.05)
	same(t, "low", once.Low, 4.32188835)
	same(t, "high", once.High, 4.67811165)
	s, err := NewSequence(0.05, m.N)
	if err != nil {
		t.Fatal(err)
	}
	if all := s.Mean(m); (all.High-all.Low)/(once.High-once.Low) < 1.5 {
		t.Errorf("a sequence says %v, one look %v", all, once)
	}
	const runs = 1000
	covers := 0
	for seed := range uint64(runs) {
		r := rand.New(rand.NewPCG(seed, 6))
		var m Mean
		for range 400 {
			m.Add(r.ExpFloat64())
		}
		if m.Once(0.05).Contains(1) {
			covers++
		}
	}
	// 95 % of 1,000 are 950; four standard deviations of that are 28.
	if covers < 922 || covers > 978 {
		t.Errorf("%d of %d intervals cover the mean, want about 950", covers, runs)
	}
	few := Mean{N: 99, Mean: 1, M2: 7}
	if i := few.Once(0.05); !math.IsInf(i.Low, -1) || !math.IsInf(i.High, 1) {
		t.Errorf("99 values say %v", i)
	}
	if i := (Mean{N: 1000, Mean: 1}).Once(0.05); !math.IsInf(i.High, 1) {
		t.Errorf("values that are all the same say %v", i)
	}
}
