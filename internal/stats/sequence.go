package stats

import "math"

// leastUnits is how many units an arm needs before an asymptotic interval says
// anything: the central limit theorem needs some, and a variance that is estimated
// from a handful of units is too often far too small.
const leastUnits = 100

// Sequence makes intervals that may be looked at at any time: the chance that any of
// them, over all times together, misses the true value is at most alpha. The intervals of
// the zero value are the whole line.
type Sequence struct {
	alpha float64
	rho   float64 // the parameter of the mixture, in units, see bestRho
}

// NewSequence returns a Sequence that is wrong with a chance of at most alpha,
// in (0, 1), and whose intervals are narrowest when horizon units have been
// counted, in all arms together. The promise holds at every other time as well, but
// intervals are wider than they might be: at a tenth of the horizon by up to a third,
// at ten times the horizon by less than a tenth. The horizon must not depend on what
// was seen.
// Several guardrails share one chance by Bonferroni: each gets alpha divided by
// their number.
func NewSequence(alpha float64, horizon int64) (Sequence, error) {
	if !(alpha > 0 && alpha < 1) {
		return Sequence{}, refuse("alpha", "give a chance of error like 0.05", "%v is not between 0 and 1", alpha)
	}
	if horizon < 1 {
		return Sequence{}, refuse("horizon", "give the units at which the decision is expected, like 20000", "%d units is not a number of units", horizon)
	}
	return Sequence{alpha: alpha, rho: bestRho(float64(horizon), alpha)}, nil
}

// bestRho returns the parameter of the mixture that makes its boundary lowest
// at intrinsic time v, to within 1 %: Howard, Ramdas, McAuliffe, Sekhon
// ("Time-uniform, nonparametric, nonasymptotic confidence sequences", Annals
// of Statistics 2021), section 3.5, with Lambert's function by its first two
// terms. It is 1/rho² of Waudby-Smith, Arbour, Sinha, Kennedy, Ramdas
// ("Time-uniform central limit theory and asymptotic confidence sequences",
// Annals of Statistics 2024), who also choose it for a horizon.
func bestRho(v, alpha float64) float64 {
	x := -2 * math.Log(alpha)
	return v / (x + math.Log1p(x))
}

// normalMixture returns the two-sided normal mixture boundary at intrinsic time v.
// The chance that a sum ever reaches it is at most alpha. For sub-Gaussian values
// the intrinsic time of a sum is the sum of their variance factors. It is Robbins'
// mixture, in the form of Howard et al. 2021, proposition 4.
func normalMixture(v, rho, alpha float64) float64 {
	return math.Sqrt((v + rho) * (math.Log1p(v/rho) - 2*math.Log(alpha)))
}

// logNormalMixture returns the logarithm of the mixture's martingale at the sum s
// and intrinsic time v. It reaches log(1/alpha) where s reaches the boundary.
func logNormalMixture(s, v, rho float64) float64 {
	return s*s/(2*(v+rho)) - math.Log1p(v/rho)/2
}

// around returns the interval around a mean of n units whose standard
// deviation is sd.
func (s Sequence) around(mean, sd, n float64) Interval {
	if s.rho == 0 || !(n > 0) {
		return Interval{math.Inf(-1), math.Inf(1)}
	}
	half := sd * normalMixture(n, s.rho, s.alpha) / n
	return Interval{mean - half, mean + half}
}

// Difference returns how much larger the variant's mean is than the control's,
// in the values' unit: the asymptotic confidence sequence of an average
// treatment effect in a randomised experiment (Waudby-Smith et al. 2024), with
// each arm's own mean and sample variance. Its time is the number of units of both
// arms. The interval is the whole line while an arm has fewer than 100 units, or
// if neither arm varies.
func (s Sequence) Difference(control, variant Mean) Effect {
	return s.Excess(control, variant, 1)
}

// Excess returns by how much the variant's mean exceeds factor times the control's,
// in the values' unit. Difference says whether a cost rose; Excess with factor 1.1
// says whether it rose by more than a tenth. P is of "exactly factor times".
func (s Sequence) Excess(control, variant Mean, factor float64) Effect {
	value := variant.Mean - factor*control.Mean
	// The variance of value, were it the mean of one value for each unit.
	variance := variant.Variance()/float64(variant.N) + factor*factor*control.Variance()/float64(control.N)
	switch {
	case control.N == 0 || variant.N == 0 || math.IsNaN(value):
		return Effect{math.NaN(), s.around(0, 0, 0), 1}
	case control.N < leastUnits || variant.N < leastUnits || !(variance > 0) || s.rho == 0:
		return Effect{value, s.around(0, 0, 0), 1}
	}
	n := float64(control.N) + float64(variant.N)
	sd := math.Sqrt(n * variance)
	return Effect{value, s.around(value, sd, n), anytime(logNormalMixture(n*value/sd, n, s.rho))}
}

// MeanRatio returns the variant's mean as a multiple of the control's, for values above 0
// such as costs. The interval has the factors that Excess does not exclude: Fieller's set
// ("Some problems in interval estimation", Journal of the Royal Statistical Society B
// 1954) with the bound of Excess. P is of equal means. Value is NaN if the control's mean
// is not above 0.
func (s Sequence) MeanRatio(control, variant Mean) Effect {
	e := Effect{math.NaN(), Interval{0, math.Inf(1)}, 1}
	one := s.Excess(control, variant, 1)
	if !(control.Mean > 0) || math.IsNaN(one.Value) {
		return e
	}
	e.Value, e.P = variant.Mean/control.Mean, one.P
	if math.IsInf(one.Low, -1) {
		return e
	}
	e.Low = bisect(e.Value, 0, func(f float64) bool { return !s.Excess(control, variant, f).Above(0) })
	high := max(e.Value, 1)
	inside := func(f float64) bool { return !s.Excess(control, variant, f).Below(0) }
	for high < largest && inside(high) {
		high *= 2
	}
	if high < largest {
		e.High = bisect(e.Value, high, inside)
	}
	return e
}

// anytime turns the logarithm of a martingale that begins at 1 into a P that may be
// looked at at any time, by Ville's inequality.
func anytime(log float64) float64 { return min(1, math.Exp(-log)) }
