package stats

import (
	"math"
	"math/rand/v2"
	"testing"
)

// Values of confseq's unit tests (TestTwoSidedNormalMixture, themselves from a
// reference implementation in R), and of its normal_mixture_bound, at commit
// 70b1ef3.
func TestNormalMixture(t *testing.T) {
	same(t, "log mixture", logNormalMixture(10, 100, 12.60056), -0.6510052)
	for _, c := range []struct{ v, alpha, best, rho, bound float64 }{
		{100, 0.05, 100, 12.60056, 30.35209},
		{1000, 0.05, 20000, 2520.112195851, 149.221351514},
		{20000, 0.05, 20000, 2520.112195851, 429.243371883},
		{250, 0.01, 1000, 86.702135106, 59.648569489},
		{5000, 0.001, 100, 6.056500414, 320.606094245},
	} {
		rho := bestRho(c.best, c.alpha)
		same(t, "rho", rho, c.rho)
		same(t, "bound", normalMixture(c.v, rho, c.alpha), c.bound)
		same(t, "mixture at its bound", logNormalMixture(c.bound, c.v, rho), math.Log(1/c.alpha))
	}
}

// asymptotic is the half-width of Waudby-Smith et al. 2024, theorem 2.2, for a
// standard deviation of 1, and its choice of rho for a horizon, both as the
// paper writes them.
func asymptotic(t, alpha, horizon float64) float64 {
	rho := math.Sqrt((-2*math.Log(alpha) + math.Log(-2*math.Log(alpha)+1)) / horizon)
	return math.Sqrt(2 * (t*rho*rho + 1) / (t * t * rho * rho) * math.Log(math.Sqrt(t*rho*rho+1)/alpha))
}

func sequence(t testing.TB, alpha float64, horizon int64) Sequence {
	t.Helper()
	s, err := NewSequence(alpha, horizon)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Values of the formula in numpy 2.4.6, as std_conjmix_margin of the authors' R
// package drconfseq has it, times the deviation.
func TestAsymptoticSequences(t *testing.T) {
	var control, variant Mean
	for i := range 400 {
		control.Add(float64(i*37%101) / 10)
	}
	for i := range 300 {
		variant.Add(float64(i*53%97) / 9)
	}
	for _, c := range []struct {
		alpha              float64
		horizon            int64
		mean, more, excess Interval
	}{
		{0.05, 1000, Interval{4.534411481, 5.447588519}, Interval{-0.392317481, 1.020687851}, Interval{-1.449823404, 0.081793774}},
		{0.01, 20000, Interval{3.954919889, 6.027080111}, Interval{-1.021610257, 1.649980627}, Interval{-2.131940876, 0.763911247}},
	} {
		s := sequence(t, c.alpha, c.horizon)
		same(t, "half-width", s.Mean(control).High-control.Mean, math.Sqrt(control.Variance())*asymptotic(400, c.alpha, float64(c.horizon)))
		more, excess := s.Difference(control, variant), s.Excess(control, variant, 1.2)
		same(t, "difference", more.Value, 0.314185185)
		same(t, "excess", excess.Value, -0.684014815)
		for i, got := range []Interval{s.Mean(control), more.Interval, excess.Interval} {
			want := []Interval{c.mean, c.more, c.excess}[i]
			same(t, "low", got.Low, want.Low)
			same(t, "high", got.High, want.High)
		}
	}
}

// At its horizon a sequence is as narrow as any horizon makes it, to 1 %.
func TestHorizonIsWhereIntervalsAreNarrowest(t *testing.T) {
	for _, alpha := range []float64{0.1, 0.05, 0.001} {
		const horizon = 20000
		at := normalMixture(horizon, bestRho(horizon, alpha), alpha)
		for other := 100.0; other < 1e7; other *= 1.1 {
			if b := normalMixture(horizon, bestRho(other, alpha), alpha); b < 0.99*at {
				t.Errorf("alpha %v: a horizon of %.0f gives %v at %d, its own %v", alpha, other, b, horizon, at)
			}
		}
		for far, most := range map[float64]float64{horizon / 10: 1.33, horizon * 10: 1.1} {
			own := normalMixture(far, bestRho(far, alpha), alpha)
			if b := normalMixture(far, bestRho(horizon, alpha), alpha); b > most*own {
				t.Errorf("alpha %v: at %v units %v, more than %v of %v", alpha, far, b, most, own)
			}
		}
	}
}

func TestNothingIsKnownAtFirst(t *testing.T) {
	s := sequence(t, 0.05, 1000)
	whole := Interval{math.Inf(-1), math.Inf(1)}
	var few, even, good, nan Mean
	for i := range 200 {
		if i < 99 {
			few.Add(float64(i))
		}
		even.Add(3)
		good.Add(float64(i % 7))
		nan.Add(math.NaN())
	}
	for name, i := range map[string]Interval{
		"none":              s.Mean(Mean{}),
		"few":               s.Mean(few),
		"all the same":      s.Mean(even),
		"no numbers":        s.Mean(nan),
		"zero sequence":     Sequence{}.Mean(good),
		"few controls":      s.Difference(few, good).Interval,
		"few in variant":    s.Difference(good, few).Interval,
		"nobody in variant": s.Difference(good, Mean{}).Interval,
		"both the same":     s.Difference(even, even).Interval,
		"zero difference":   Sequence{}.Difference(good, good).Interval,
	} {
		if i != whole {
			t.Errorf("%s: %v, want the whole line", name, i)
		}
	}
	if e := s.Difference(good, Mean{}); !math.IsNaN(e.Value) || e.P != 1 {
		t.Errorf("a difference from nobody: %+v", e)
	}
	if e := s.Difference(good, even); e.Above(100) || math.IsInf(e.Low, 0) {
		t.Errorf("one arm varies, which is enough: %+v", e)
	}
}

// An interval excludes a difference exactly when its P is below alpha.
func TestIntervalsAndPsAgree(t *testing.T) {
	var excluded int
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 2))
		s := sequence(t, 0.05, 2000)
		var control, variant Mean
		shift := 0.5 * r.Float64()
		for range 100 + r.IntN(1000) {
			control.Add(r.ExpFloat64())
			variant.Add(r.ExpFloat64() + shift)
		}
		e := s.Difference(control, variant)
		if e.Contains(0) != (e.P > 0.05) {
			t.Fatalf("seed %d: interval %v and P %v disagree", seed, e.Interval, e.P)
		}
		if !e.Contains(e.Value) || !e.Contains(0) != (e.Above(0) || e.Below(0)) {
			t.Fatalf("seed %d: %+v", seed, e)
		}
		if !e.Contains(0) {
			excluded++
		}
		events, others := int64(r.IntN(40)), int64(r.IntN(40))
		ratio, err := s.RateRatio(events, others, 0.3)
		if err != nil {
			t.Fatal(err)
		}
		if ratio.Contains(1) != (ratio.P > 0.05) {
			t.Fatalf("seed %d: %d and %d events: interval %v and P %v disagree", seed, events, others, ratio.Interval, ratio.P)
		}
	}
	if excluded < 50 || excluded > 450 {
		t.Errorf("%d of 500 excluded: the test sees one side only", excluded)
	}
}

// Mean returns the asymptotic confidence sequence of a mean, in the values'
// unit: Waudby-Smith et al. 2024, theorem 2.2, with the sample variance. It is
// the whole line before 100 units, and while all values are the same.
//
// The units must be independent, which viewers are and requests of one viewer
// are not. A mean of a few ones among zeros is far from normal: rare
// events are for RateRatio.
func (s Sequence) Mean(m Mean) Interval {
	if m.N < leastUnits || m.M2 == 0 {
		return s.around(0, 0, 0)
	}
	return s.around(m.Mean, math.Sqrt(m.Variance()), float64(m.N))
}
