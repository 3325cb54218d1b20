package stats

import "math"

// Quantile returns the confidence sequence of a quantile, in the values' unit.
// part is in (0, 1), such as 0.99 for how long 99 % of answers take at most. How
// many numbers lie below a quantile is a count of independent events with chance
// part. The interval has the values at those places in the order of the numbers
// whose counts a beta-binomial mixture does not exclude (Darling and Robbins,
// "Confidence sequences for mean, variance, and median", Proceedings of the
// National Academy of Sciences 1967, in the form of Howard and Ramdas,
// "Sequential estimation of quantiles with applications to A/B testing and
// best-arm identification", Bernoulli 2022, section 3). It holds for any
// distribution of the values, and is widened by QuantileError. An end is infinite
// while too few values are known.
func (s Sequence) Quantile(q Quantiles, part float64) Interval {
	all := Interval{math.Inf(-1), math.Inf(1)}
	numbers := q.ordered()
	n := numbers.n()
	if s.alpha == 0 || n == 0 || !(part > 0 && part < 1) {
		return all
	}
	limit := -math.Log(s.alpha)
	excluded := func(below int64) bool {
		return logBetaMixture(below, n-below, 0.5, 0.5)-logLikelihood(below, n-below, part) >= limit
	}
	// The evidence against a count falls up to the expected count, and rises from there.
	expected := int64(part * float64(n))
	least := firstOf(0, expected+1, func(k int64) bool { return !excluded(k) })
	most := firstOf(expected+1, n+1, excluded) - 1
	if least > 0 {
		all.Low = widened(numbers.at(least-1), -1)
	}
	if most < n {
		all.High = widened(numbers.at(most), 1)
	}
	return all
}

// firstOf returns the first count in [from, to) for which ok is true; to if there is
// none. If ok is true for a count, it must be so for all greater ones.
func firstOf(from, to int64, ok func(int64) bool) int64 {
	for from < to {
		if middle := from + (to-from)/2; ok(middle) {
			to = middle
		} else {
			from = middle + 1
		}
	}
	return from
}

// widened moves a value down (way -1) or up (way 1) by how far a quantile may be off.
func widened(x, way float64) float64 { return x + way*QuantileError*math.Abs(x) }

// QuantileDifference returns how much larger the variant's quantile is than the
// control's, in the values' unit. It takes the interval of each from Quantile,
// with half of alpha. P is alpha if the interval excludes 0, and else 1.
func (s Sequence) QuantileDifference(control, variant Quantiles, part float64) Effect {
	half := Sequence{s.alpha / 2, s.rho}
	c, v := half.Quantile(control, part), half.Quantile(variant, part)
	e := Effect{variant.At(part)[0] - control.At(part)[0], Interval{v.Low - c.High, v.High - c.Low}, 1}
	if !e.Contains(0) {
		e.P = s.alpha
	}
	return e
}
