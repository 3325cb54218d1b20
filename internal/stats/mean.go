package stats

import "math"

// largest is the greatest magnitude that a Mean takes as a number: squares of
// it, summed over 10^18 units, stay finite.
const largest = 1e140

// Mean is the running mean and variance of values, one a unit, kept by
// Welford's method ("Note on a method for calculating corrected sums of
// squares and products", Technometrics 1962). The zero value is empty. It may be
// copied.
type Mean struct {
	N    int64   // numbers added
	Mean float64 // of the numbers, in their unit; 0 while there is none
	M2   float64 // sum of squared differences from the mean
	NaN  int64   // values left out because they are not numbers
	Inf  int64   // values left out because they are infinite, or beyond 1e140
}

// Add takes one value. NaN, infinities and magnitudes beyond 1e140 are counted
// apart and change nothing else.
func (m *Mean) Add(x float64) {
	switch {
	case math.IsNaN(x):
		m.NaN++
		return
	case math.Abs(x) > largest:
		m.Inf++
		return
	}
	m.N++
	before := x - m.Mean
	m.Mean += before / float64(m.N)
	m.M2 += before * (x - m.Mean)
}

// Same reports whether all numbers are equal, and there are at least leastUnits, as many
// as an interval needs.
func (m Mean) Same() bool { return m.N >= leastUnits && m.M2 == 0 }

// Remove takes out a value that was added. Up to rounding, the result is as if it had
// never been added.
func (m *Mean) Remove(x float64) {
	switch {
	case math.IsNaN(x):
		m.NaN--
		return
	case math.Abs(x) > largest:
		m.Inf--
		return
	case m.N == 1:
		m.N, m.Mean, m.M2 = 0, 0, 0
		return
	}
	m.N--
	after := x - m.Mean
	m.Mean -= after / float64(m.N)
	m.M2 = max(0, m.M2-after*(x-m.Mean))
}

// Variance returns the unbiased sample variance, in the values' unit squared;
// NaN of fewer than two numbers.
func (m Mean) Variance() float64 {
	if m.N < 2 {
		return math.NaN()
	}
	return m.M2 / float64(m.N-1)
}

// Once returns the interval of the true mean, for values that are looked at only once,
// when all of them are there. It is the normal approximation, which misses with a chance
// of about alpha, in (0, 1). To look again while values come, use a Sequence. With fewer
// than 100 values, or if all are the same, it is the whole line.
func (m Mean) Once(alpha float64) Interval {
	if m.N < leastUnits || m.M2 == 0 {
		return unknown
	}
	return within(m.Mean, normalQuantile(1-alpha/2)*math.Sqrt(m.Variance()/float64(m.N)))
}
