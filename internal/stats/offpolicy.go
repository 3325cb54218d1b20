package stats

import (
	"fmt"
	"math"
)

// Logged is one logged answer, or one logged item of it, with what followed.
type Logged struct {
	Reward float64 // what was observed: a click, a dwell time; finite
	Old    float64 // the probability with which it was shown, in (0, 1]
	New    float64 // the probability with which the other ranking shows it, in [0, 1]
}

// OffPolicy estimates what another ranking would have been rewarded with, from
// answers that it did not give. A weight is New/Old of an answer. The intervals
// are for one look, by the normal approximation. Those of rewards are the whole
// line while Effective is below 100, and if all rewards with a weight above 0 are
// the same. That of weights is the whole line before 100 answers.
type OffPolicy struct {
	// IPS is the mean of rewards weighted by New/Old, without bias if weights are
	// not cut. Its variance is the sample variance of the weighted rewards (n-1)
	// over n.
	IPS         float64
	IPSInterval Interval
	// SelfNormalised divides by the sum of the weights instead of their number:
	// it stays within the rewards' range and does not change when all rewards
	// are shifted. Its variance is the delta method's, the sum of
	// (weight·(reward-SelfNormalised))² over the square of the sum of weights
	// (Owen, "Monte Carlo theory, methods and examples", chapter 9).
	SelfNormalised         float64
	SelfNormalisedInterval Interval
	// MeanWeight is 1, up to chance, if Old is right, all that the other ranking shows
	// could have been shown, and no weight is cut. Its interval misses with a chance of
	// about 1 %.
	MeanWeight         float64
	MeanWeightInterval Interval
	// Effective is how many answers of equal weight would say as much: the squared
	// sum of weights over the sum of their squares.
	Effective float64
	Cut       int // weights that were above the limit
}

// Believable reports whether the interval of the mean weight contains 1. If not, the
// other intervals are not of what the other ranking would have been rewarded with.
func (o OffPolicy) Believable() bool {
	const rounding = 1e-9
	return !o.MeanWeightInterval.Above(1+rounding) && !o.MeanWeightInterval.Below(1-rounding)
}

// meanWeightAlpha is the chance that a sound estimate is not Believable.
const meanWeightAlpha = 0.01

// CounterfactualReward estimates what another ranking would have been rewarded
// with, by inverse propensities and by their self-normalised form (Swaminathan
// and Joachims, "The self-normalized estimator for counterfactual learning",
// NIPS 2015). Weights above limit are cut to it, which adds
// bias and takes variance (Swaminathan and Joachims, "Counterfactual risk
// minimization", ICML 2015); 0 cuts none. The intervals miss with a chance of
// about alpha each.
func CounterfactualReward(logged []Logged, limit, alpha float64) (OffPolicy, error) {
	switch {
	case len(logged) == 0:
		return OffPolicy{}, refuse("logged", "give logged answers", "there is none")
	case !(limit >= 0):
		return OffPolicy{}, refuse("limit", "give the largest weight, or 0 to cut none", "%v is no weight", limit)
	case !(alpha > 0 && alpha < 1):
		return OffPolicy{}, refuse("alpha", "give a chance of error like 0.05", "%v is not between 0 and 1", alpha)
	}
	var o OffPolicy
	var sum, squares, rewards float64
	var weighted, mean, counted Mean // counted: the rewards that have a weight
	weights := make([]float64, len(logged))
	for i, l := range logged {
		if err := l.validate(i); err != nil {
			return OffPolicy{}, err
		}
		w := l.New / l.Old
		if limit > 0 && w > limit {
			w = limit
			o.Cut++
		}
		weights[i] = w
		sum += w
		squares += w * w
		rewards += w * l.Reward
		weighted.Add(w * l.Reward)
		mean.Add(w)
		if w > 0 {
			counted.Add(l.Reward)
		}
	}
	switch {
	case sum == 0:
		return OffPolicy{}, refuse("logged", "log answers that both rankings may give", "the other ranking gives none of them")
	case weighted.Inf > 0 || math.IsInf(squares, 0):
		return OffPolicy{}, refuse("logged", "cut weights", "weights or weighted rewards are beyond measure")
	}
	n, z := float64(len(logged)), normalQuantile(1-alpha/2)
	o.MeanWeight, o.MeanWeightInterval = sum/n, unknown
	if len(logged) >= leastUnits {
		o.MeanWeightInterval = within(o.MeanWeight, normalQuantile(1-meanWeightAlpha/2)*math.Sqrt(mean.Variance()/n))
	}
	o.Effective = sum / squares * sum
	o.IPS, o.SelfNormalised = weighted.Mean, rewards/sum
	o.IPSInterval, o.SelfNormalisedInterval = unknown, unknown
	if o.Effective < leastUnits || counted.M2 == 0 {
		return o, nil
	}
	o.IPSInterval = within(o.IPS, z*math.Sqrt(weighted.Variance()/n))
	var spread float64
	for i, l := range logged {
		off := weights[i] / sum * (l.Reward - o.SelfNormalised)
		spread += off * off
	}
	o.SelfNormalisedInterval = within(o.SelfNormalised, z*math.Sqrt(spread))
	return o, nil
}

// unknown is the interval of a value of which too little is known: the whole line.
var unknown = Interval{math.Inf(-1), math.Inf(1)}

func within(value, half float64) Interval { return Interval{value - half, value + half} }

// validate refuses a value that is no probability or no reward. i is the index of l, for
// the error.
func (l Logged) validate(i int) error {
	name := func(field string) string { return fmt.Sprintf("logged[%d].%s", i, field) }
	switch {
	case math.IsNaN(l.Reward) || math.IsInf(l.Reward, 0):
		return refuse(name("reward"), "leave out answers without a finite reward", "%v is no reward", l.Reward)
	case !(l.Old > 0 && l.Old <= 1):
		return refuse(name("old"), "log the probability with which it was shown", "%v is not in (0, 1]", l.Old)
	case !(l.New >= 0 && l.New <= 1):
		return refuse(name("new"), "give a probability", "%v is not in [0, 1]", l.New)
	}
	return nil
}
