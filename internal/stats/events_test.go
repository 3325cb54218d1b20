package stats

import (
	"math"
	"testing"
)

// scipy 1.17.1: where betabinom.logpmf less binom.logpmf is log(1/alpha), found
// by brentq.
func TestBetaBinomial(t *testing.T) {
	for _, c := range []struct {
		events, units int64
		alpha         float64
		want          Interval
	}{
		{0, 0, 0.05, Interval{0, 1}},
		{0, 100, 0.05, Interval{0, 0.05702859863777229}},
		{1, 100, 0.05, Interval{1.4177795458908242e-05, 0.08402231446396513}},
		{10, 1000, 0.05, Interval{0.0024064682835966806, 0.026164430376456382}},
		{100, 10000, 0.05, Interval{0.00655847614092054, 0.014462067012220383}},
		{100, 10000, 0.01, Interval{0.006272407329487757, 0.014957439083887136}},
		{5, 5, 0.05, Interval{0.4149675318457233, 1}},
		{3, 20, 0.1, Interval{0.017089896588539873, 0.44760284378868365}},
		{50, 100, 0.05, Interval{0.33825755264579166, 0.6617424473542084}},
	} {
		got := sequence(t, c.alpha, 1).betaBinomial(c.events, c.units-c.events, 0.5, 0.5)
		closely(t, "low", got.Low, c.want.Low)
		closely(t, "high", got.High, c.want.High)
	}
}

// scipy 1.17.1, as above, with Beta(8·share, 8·(1-share)), turned into a ratio
// of rates.
func TestRateRatio(t *testing.T) {
	inf := math.Inf(1)
	for _, c := range []struct {
		control, variant int64
		share, alpha     float64
		want             Effect
	}{
		{0, 0, 0.5, 0.05, Effect{math.NaN(), Interval{0, inf}, 1}},
		{10, 20, 0.5, 0.05, Effect{2, Interval{0.6844590973566744, 6.73450992927737}, 0.5687667801976162}},
		{100, 200, 0.5, 0.05, Effect{2, Interval{1.3546987723005874, 3.0050548457678476}, 3.99973364356142e-07}},
		{0, 8, 0.5, 0.05, Effect{inf, Interval{0.7699081085575531, inf}, 0.15234375}},
		{30, 10, 0.5, 0.01, Effect{1.0 / 3, Interval{0.07433694095680647, 1.1135892857148706}, 0.031072320306975515}},
		{90, 30, 0.1, 0.05, Effect{3, Interval{1.431885953223127, 5.798212108980537}, 0.00016797970010778635}},
		{5, 5, 0.5, 0.05, Effect{1, Interval{0.173886764324581, 5.75086898582676}, 1}},
	} {
		got, err := sequence(t, c.alpha, 1).RateRatio(c.control, c.variant, c.share)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "ratio", got.Value, c.want.Value)
		closely(t, "low", got.Low, c.want.Low)
		if got.High != c.want.High {
			closely(t, "high", got.High, c.want.High)
		}
		closely(t, "P", got.P, c.want.P)
	}
	if e, err := (Sequence{}).RateRatio(0, 1000, 0.5); err != nil || e.P != 1 || e.Low != 0 || e.High != inf {
		t.Errorf("a sequence that is none tells %+v, %v", e, err)
	}
}

// With the arms exchanged the ratio is the inverse.
func TestRateRatioIsSymmetric(t *testing.T) {
	s := sequence(t, 0.05, 1)
	for control := int64(0); control < 40; control += 3 {
		for variant := int64(0); variant < 40; variant += 7 {
			a, err := s.RateRatio(control, variant, 0.25)
			if err != nil {
				t.Fatal(err)
			}
			b, err := s.RateRatio(variant, control, 0.75)
			if err != nil {
				t.Fatal(err)
			}
			if !near(a.P, b.P) || !near(a.Low, 1/b.High) || !near(a.High, 1/b.Low) || !near(a.Value, 1/b.Value) {
				t.Fatalf("%d and %d events: %+v, exchanged %+v", control, variant, a, b)
			}
		}
	}
}
