package stats

import "math"

// rateConcentration is how many events the prior of RateRatio is worth. A prior this wide
// needs about the fewest events to find a rate that doubled, and not many more for other
// rates.
const rateConcentration = 8

// RateRatio compares how often units of two arms have a rare event, by the part
// of the events of both arms that is the variant's. Value is the variant's rate
// as a multiple of the control's, NaN without events. Its interval lies in
// [0, +Inf], and P is of equal rates.
//
// It is the test of inhomogeneous Bernoulli processes by Lindon and Malek 2022,
// with a beta prior around equal rates. It asks only how the events are split.
// So it is exact at every count, even if the rate of both arms rises and falls
// with the hour, as when a backend fails, or if units come first and have their
// events later. Difference, of the shares of units with the event, is not exact
// then. If most units have the event, RateRatio needs several times as many
// units as Difference.
//
// control and variant count the units that had an event, each once. share is the
// part of both arms' units that the assignment gives to the variant, in (0, 1):
// 1/2 for an even split. It must be the same for all of the events; SampleRatio
// says whether units fit it.
func (s Sequence) RateRatio(control, variant int64, share float64) (Effect, error) {
	if control < 0 || variant < 0 {
		return Effect{}, refuse("events", "count units with an event from 0", "%d and %d are no counts", control, variant)
	}
	if !(share > 0 && share < 1) {
		return Effect{}, refuse("share", "give the variant's part of both arms' units, like 0.5", "%v is not between 0 and 1", share)
	}
	a, b := rateConcentration*share, rateConcentration*(1-share)
	of := s.betaBinomial(variant, control, a, b)
	ratio := func(part float64) float64 { return part / (1 - part) * (1 - share) / share }
	e := Effect{ratio(float64(variant) / float64(variant+control)), Interval{ratio(of.Low), ratio(of.High)}, 1}
	if s.alpha > 0 {
		e.P = anytime(logBetaMixture(variant, control, a, b) - logLikelihood(variant, control, share))
	}
	return e, nil
}

// betaBinomial returns the interval of the chances p of success that x successes
// and y failures do not exclude, under a mixture by Beta(a, b).
func (s Sequence) betaBinomial(x, y int64, a, b float64) Interval {
	all := Interval{0, 1}
	if s.alpha == 0 || x+y == 0 {
		return all
	}
	// As p grows from 0 to 1, the evidence against it falls up to the best p,
	// x/(x+y), and rises from there. At the best p its logarithm is below 0.
	floor := logBetaMixture(x, y, a, b) + math.Log(s.alpha)
	inside := func(p float64) bool { return logLikelihood(x, y, p) > floor }
	best := float64(x) / float64(x+y)
	if x > 0 {
		all.Low = bisect(best, 0, inside)
	}
	if y > 0 {
		all.High = bisect(best, 1, inside)
	}
	return all
}

// bisect returns where inside ends between in, which is inside, and out, which is
// not. It returns the first number outside, so that rounding never narrows an
// interval.
func bisect(in, out float64, inside func(float64) bool) float64 {
	for {
		middle := in + (out-in)/2
		if middle == in || middle == out {
			return out
		}
		if inside(middle) {
			in = middle
		} else {
			out = middle
		}
	}
}

// logLikelihood returns the logarithm of the chance of x successes and y failures
// in one order, if p is the chance of success.
func logLikelihood(x, y int64, p float64) float64 {
	var log float64
	if x > 0 {
		log = float64(x) * math.Log(p)
	}
	if y > 0 {
		log += float64(y) * math.Log1p(-p)
	}
	return log
}

// logBetaMixture is logLikelihood when p is drawn from Beta(a, b).
func logBetaMixture(x, y int64, a, b float64) float64 {
	return logBeta(a+float64(x), b+float64(y)) - logBeta(a, b)
}
