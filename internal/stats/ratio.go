package stats

import "math"

// Ratio is the running ratio of two sums over units, like clicks over items
// shown: each unit adds to both, and what one unit adds varies together. The
// zero value is empty. It may be copied, stored and merged.
type Ratio struct {
	Top, Bottom Mean
	Together    float64 // sum of products of both differences from their means
	Left        int64   // units left out because a part is NaN, infinite or beyond 1e140
}

// Add takes one unit.
func (r *Ratio) Add(top, bottom float64) {
	if !(math.Abs(top) <= largest && math.Abs(bottom) <= largest) {
		r.Left++
		return
	}
	before := top - r.Top.Mean
	r.Top.Add(top)
	r.Bottom.Add(bottom)
	r.Together += before * (bottom - r.Bottom.Mean)
}

// Merge adds what another has seen.
func (r *Ratio) Merge(other Ratio) {
	r.Left += other.Left
	if other.Top.N == 0 {
		return
	}
	n := float64(r.Top.N) + float64(other.Top.N)
	r.Together += other.Together + (other.Top.Mean-r.Top.Mean)*(other.Bottom.Mean-r.Bottom.Mean)*float64(r.Top.N)*float64(other.Top.N)/n
	r.Top.Merge(other.Top)
	r.Bottom.Merge(other.Bottom)
}

// Linear returns the ratio as a mean over units, for Sequence.Mean, Difference
// and Excess: its mean is the ratio of the sums, its variance that of the delta
// method (Deng, Knoblich and Lu, "Applying the delta method in metric
// analytics", KDD 2018), which is that of
// (top - ratio·bottom)/mean bottom. It is empty while the sum below is not above 0. The delta
// method needs as many units as Mean does, and a bottom that varies less than a
// few times its mean.
func (r Ratio) Linear() Mean {
	if !(r.Bottom.Mean > 0) {
		return Mean{Inf: r.Left}
	}
	ratio := r.Top.Mean / r.Bottom.Mean
	m2 := r.Top.M2 - 2*ratio*r.Together + ratio*ratio*r.Bottom.M2
	m := Mean{N: r.Top.N, Mean: ratio, M2: max(0, m2) / r.Bottom.Mean / r.Bottom.Mean, Inf: r.Left}
	if math.IsNaN(m.M2) || math.IsInf(m.M2, 0) || math.IsInf(ratio, 0) {
		return Mean{Inf: r.Left}
	}
	return m
}
