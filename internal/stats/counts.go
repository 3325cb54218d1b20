package stats

import "math"

// concentration is how many units the prior of SampleRatio is worth. With it the test is
// best at mismatches of some per cent, as bugs cause them.
const concentration = 100

// Split says how counts of units fit the shares they were meant to have.
type Split struct {
	// LogBayesFactor is the natural logarithm of the evidence against the
	// shares.
	LogBayesFactor float64
	// P is of "the units fit the shares". It may be looked at at any time: if they
	// do, the chance that it ever falls to alpha is at most alpha.
	P float64
	// ChiSquare is Pearson's statistic, with one degree of freedom less than there
	// are counts. ChiSquareP is its P. It is valid for one look alone, and only if
	// each expected count is at least about 5.
	ChiSquare, ChiSquareP float64
}

// SampleRatio tests whether the units that arms got fit the shares that were
// meant for them: the sequential multinomial test of Lindon and Malek
// ("Anytime-valid inference for multinomial count data", NeurIPS 2022, section
// 2.2), with a Dirichlet prior around the shares that is worth 100 units. Shares
// are relative: {1, 1} and {0.5, 0.5} are the same.
func SampleRatio(counts []int64, shares []float64) (Split, error) {
	if len(counts) < 2 {
		return Split{}, refuse("counts", "give the counts of two arms or more", "%d cannot be compared", len(counts))
	}
	if len(shares) != len(counts) {
		return Split{}, refuse("shares", "give one share for each count", "%d shares for %d counts", len(shares), len(counts))
	}
	var sum, n float64
	for i, share := range shares {
		if !(share > 0) || math.IsInf(share, 0) {
			return Split{}, refuse("shares", "leave out arms that get nobody", "%v is no share", share)
		}
		if counts[i] < 0 {
			return Split{}, refuse("counts", "count units from 0", "%d is below zero", counts[i])
		}
		sum += share
		n += float64(counts[i])
	}
	theta, prior := make([]float64, len(shares)), make([]float64, len(shares))
	var s Split
	for i, share := range shares {
		theta[i] = share / sum
		prior[i] = concentration * theta[i]
		if n > 0 {
			off := float64(counts[i]) - n*theta[i]
			s.ChiSquare += off * off / (n * theta[i])
		}
	}
	s.ChiSquareP = chiSquareTail(s.ChiSquare, len(counts)-1)
	s.LogBayesFactor = logDirichletMixture(counts, theta, prior)
	s.P = anytime(s.LogBayesFactor)
	return s, nil
}

// logDirichletMixture returns the logarithm of how much likelier the counts, in
// any one order of arrival, are under shares drawn from Dirichlet(prior) than
// under the shares theta (Lindon and Malek 2022, section 2.2).
func logDirichletMixture(counts []int64, theta, prior []float64) float64 {
	var log, n, a float64
	for i, c := range counts {
		x := float64(c)
		log += logGamma(prior[i]+x) - logGamma(prior[i])
		if c > 0 {
			log -= x * math.Log(theta[i])
		}
		n += x
		a += prior[i]
	}
	return log + logGamma(a) - logGamma(a+n)
}
