package stats

import (
	"math"
	"slices"
)

// SignedRank estimates the centre of values that lie symmetrically around it, and
// returns its interval of level 1-alpha. The centre is the median of the means of
// all pairs of values, each paired with itself, too. The interval has what
// Wilcoxon's signed-rank test does not reject, by its exact distribution
// (Hollander, Wolfe and Chicken, "Nonparametric Statistical Methods", 3rd edition,
// 3.2 and 3.3). Its level holds if the values are tested once, not again as more come.
// It fails if there are too few values for alpha (0.05 needs six), more than 1000, or one
// that is not finite.
func SignedRank(values []float64, alpha float64) (value float64, in Interval, err error) {
	if !(alpha > 0 && alpha < 1) {
		return 0, in, refuse("alpha", "give a chance such as 0.05", "%v is no chance", alpha)
	}
	n := len(values)
	if n > 1000 || math.Ldexp(1, 1-n) > alpha {
		return 0, in, refuse("values", "take more of them, and a thousand at most", "the test does not work with %d values at the level %v", n, alpha)
	}
	var means []float64
	for i, x := range values {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return 0, in, refuse("values", "leave it out", "%v is no number", x)
		}
		for _, y := range values[:i+1] {
			means = append(means, x/2+y/2)
		}
	}
	slices.Sort(means)
	out := signedRanksOut(n, alpha)
	value = (means[(len(means)-1)/2] + means[len(means)/2]) / 2
	return value, Interval{means[out], means[len(means)-1-out]}, nil
}

// signedRanksOut returns how many means of pairs of n values lie outside of an
// interval of level 1-alpha, at each end.
func signedRanksOut(n int, alpha float64) int {
	chances := []float64{1} // the chance of each sum of the ranks of positive values
	for rank := 1; rank <= n; rank++ {
		next := make([]float64, len(chances)+rank)
		for sum, p := range chances {
			next[sum] += p / 2
			next[sum+rank] += p / 2
		}
		chances = next
	}
	out, below := 0, 0.0
	for _, p := range chances {
		if below += p; 2*below > alpha {
			break
		}
		out++
	}
	return out - 1
}
