package stats

import (
	"math"
	"math/rand/v2"
	"testing"
)

// The values of statsmodels 0.15.0: the mean of the weighted rewards with its
// sample variance, and weighted least squares on a constant with the HC0
// variance, which is the delta method's. Normal quantile of scipy 1.17.1. Of these eight
// answers 25 times over the values are the same, and what divides their variances is 25
// times as much, but for the n-1 of a sample.
func TestCounterfactualReward(t *testing.T) {
	rewards := []float64{1, 0, 1, 1, 0, 0, 2, 0.5}
	shows := []float64{0.5, 0.2, 0.9, 0.1, 0.3, 0.6, 0.25, 0.4}
	showed := []float64{0.25, 0.4, 0.3, 0.5, 0.3, 0.2, 0.5, 0.8}
	var logged []Logged
	const times = 25
	for range times {
		for i, r := range rewards {
			logged = append(logged, Logged{Reward: r, Old: showed[i], New: shows[i]})
		}
	}
	narrower := func(x Interval, by float64) Interval {
		return within((x.Low+x.High)/2, (x.High-x.Low)/2*by)
	}
	for limit, want := range map[float64]OffPolicy{
		0: {IPS: 0.80625, IPSInterval: Interval{0.02479774966, 1.587702250338935}, SelfNormalised: 0.60280374,
			SelfNormalisedInterval: Interval{0.14404461, 1.06156286}, MeanWeight: 1.3375, Effective: 4.812526271542664},
		2: {IPS: 0.68125, IPSInterval: Interval{0.07320479215797, 1.2892952078420161}, SelfNormalised: 0.62643678,
			SelfNormalisedInterval: Interval{0.19557038, 1.05730319}, MeanWeight: 1.0875, Effective: 5.488759970993472, Cut: 2},
	} {
		got, err := CounterfactualReward(logged, limit, 0.05)
		if err != nil {
			t.Fatal(err)
		}
		want.IPSInterval = narrower(want.IPSInterval, math.Sqrt(7./(8*times-1)))
		want.SelfNormalisedInterval = narrower(want.SelfNormalisedInterval, math.Sqrt(1./times))
		same(t, "ips", got.IPS, want.IPS)
		same(t, "ips low", got.IPSInterval.Low, want.IPSInterval.Low)
		same(t, "ips high", got.IPSInterval.High, want.IPSInterval.High)
		same(t, "self-normalised", got.SelfNormalised, want.SelfNormalised)
		same(t, "self-normalised low", got.SelfNormalisedInterval.Low, want.SelfNormalisedInterval.Low)
		same(t, "self-normalised high", got.SelfNormalisedInterval.High, want.SelfNormalisedInterval.High)
		same(t, "mean weight", got.MeanWeight, want.MeanWeight)
		same(t, "effective", got.Effective, want.Effective*times)
		if got.Cut != want.Cut*times {
			t.Errorf("%d weights cut, want %d", got.Cut, want.Cut*times)
		}
	}
}

// Of few answers, or such that all earned the same, there is a value, and nothing that
// it lies between.
func TestCounterfactualRewardOfTooLittle(t *testing.T) {
	of := func(n, count int, rewards ...float64) OffPolicy {
		t.Helper()
		logged := make([]Logged, n)
		for i := range logged {
			logged[i] = Logged{Reward: rewards[i%len(rewards)], Old: 0.5}
			if i < count {
				logged[i].New = 0.5
			}
		}
		o, err := CounterfactualReward(logged, 0, 0.05)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	whole := Interval{math.Inf(-1), math.Inf(1)}
	for name, o := range map[string]OffPolicy{"one": of(1, 1, 4), "99": of(99, 99, 1, 3), "99 of 1000": of(1000, 99, 1, 3), "the same": of(1000, 1000, 4), "none": of(1000, 1000, 0)} {
		if o.IPSInterval != whole || o.SelfNormalisedInterval != whole {
			t.Errorf("%s: %+v", name, o)
		}
	}
	if o := of(100, 100, 1, 3); o.IPSInterval == whole || o.SelfNormalisedInterval == whole || !o.MeanWeightInterval.Contains(1) {
		t.Errorf("%+v", o)
	}
	if o := of(99, 1, 1); !o.Believable() {
		t.Errorf("a mean weight of 99 answers: %+v", o)
	}
	if o := of(100, 1, 1); o.Believable() {
		t.Errorf("a mean weight of 100 answers: %+v", o)
	}
}

// Logged by one ranking that shows item i of four with chance old[i], the
// estimates cover what another would have earned, as often as they say, and the
// self-normalised one follows a shift of all rewards exactly.
func TestCounterfactualRewardCovers(t *testing.T) {
	old, other := []float64{0.4, 0.3, 0.2, 0.1}, []float64{0.1, 0.2, 0.3, 0.4}
	click := []float64{0.1, 0.2, 0.4, 0.5}
	var truth float64
	for i := range other {
		truth += other[i] * click[i]
	}
	var ips, self int
	const runs = 400
	for seed := range uint64(runs) {
		r := rand.New(rand.NewPCG(seed, 4))
		logged := make([]Logged, 1000)
		shifted := make([]Logged, len(logged))
		for n := range logged {
			i, at := 0, r.Float64()
			for at > old[i] && i < 3 {
				at -= old[i]
				i++
			}
			logged[n] = Logged{Old: old[i], New: other[i]}
			if r.Float64() < click[i] {
				logged[n].Reward = 1
			}
			shifted[n] = logged[n]
			shifted[n].Reward += 7
		}
		o, err := CounterfactualReward(logged, 0, 0.05)
		if err != nil {
			t.Fatal(err)
		}
		if o.IPSInterval.Contains(truth) {
			ips++
		}
		if o.SelfNormalisedInterval.Contains(truth) {
			self++
		}
		s, err := CounterfactualReward(shifted, 0, 0.05)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "shifted", s.SelfNormalised, o.SelfNormalised+7)
	}
	// 95 % of 400 are 380; four standard deviations of that are 17.
	if ips < 363 || self < 363 || ips > 397 || self > 397 {
		t.Errorf("%d and %d of %d intervals cover the truth, want about 380", ips, self, runs)
	}
}

// Two rankings, dealt 2 to 1, show the same page to some viewers. By the chance that
// either shows it, intervals cover what the second would earn; by the chance of the
// one that showed it alone, the mean weight gives the estimate away.
func TestCounterfactualRewardOfRankingsThatAgree(t *testing.T) {
	const runs, first, agree = 400, 2. / 3, 0.6
	truth := agree*0.5 + (1-agree)*0.9
	var ips, self, believed, wrong int
	for seed := range uint64(runs) {
		r := rand.New(rand.NewPCG(seed, 9))
		right, alone := make([]Logged, 2000), make([]Logged, 2000)
		for i := range right {
			same, dealt := r.Float64() < agree, r.Float64() < first
			l := Logged{Old: 1 - first, New: 1}
			chance := 0.9
			switch {
			case same:
				l.Old, chance = 1, 0.5
			case dealt:
				l.Old, l.New, chance = first, 0, 0.2
			}
			if r.Float64() < chance {
				l.Reward = 1
			}
			right[i] = l
			if l.Old = 1 - first; dealt {
				l.Old = first
			}
			alone[i] = l
		}
		o, err := CounterfactualReward(right, 0, 0.05)
		if err != nil {
			t.Fatal(err)
		}
		if o.IPSInterval.Contains(truth) {
			ips++
		}
		if o.SelfNormalisedInterval.Contains(truth) {
			self++
		}
		if o.Believable() {
			believed++
		}
		if o, err = CounterfactualReward(alone, 0, 0.05); err != nil {
			t.Fatal(err)
		}
		if o.Believable() {
			wrong++
		}
	}
	// Four standard deviations of 95 % and 99 % of 400.
	if ips < 363 || self < 363 || believed < 388 || wrong > 0 {
		t.Errorf("of %d intervals %d and %d cover the truth; %d are believed, and %d of chances that are wrong", runs, ips, self, believed, wrong)
	}
	for old, want := range map[float64]bool{0.5: true, 0.25: false} {
		flat := make([]Logged, 100)
		for i := range flat {
			flat[i] = Logged{Reward: float64(i % 2), Old: old, New: 0.5}
		}
		if o, err := CounterfactualReward(flat, 0, 0.05); err != nil || o.Believable() != want {
			t.Errorf("%v: weights of %v are believed, or not: %+v", err, 0.5/old, o)
		}
	}
}
