package stats

import (
	"maps"
	"math"
	"slices"
)

// QuantileError is how far a quantile of Quantiles may be off, as a part of
// its value.
const QuantileError = 0.01

// maxBuckets bounds the buckets of each sign. With QuantileError they span a factor of
// 10^17 from the smallest to the largest magnitude; smaller values count as the smallest.
const maxBuckets = 2048

// logGrowth is the logarithm of the factor between the bounds of one bucket and the next.
var logGrowth = math.Log((1 + QuantileError) / (1 - QuantileError))

// Quantiles counts values in buckets whose bounds grow by a constant factor, so
// that every quantile is within 1 % of its value. It is DDSketch (Masson, Rim and Lee,
// "DDSketch: a fast and fully-mergeable quantile sketch with relative-error
// guarantees", VLDB 2019). The zero value is empty. A sketch depends only on the
// values that were added, and not on their order. NaN and infinities are counted
// apart and change nothing else.
type Quantiles struct {
	Positive, Negative map[int]int64 // counts by the bucket of the magnitude
	Zero               int64
	NaN, Inf           int64
}

// Add takes one value.
func (q *Quantiles) Add(x float64) {
	switch {
	case math.IsNaN(x):
		q.NaN++
	case math.IsInf(x, 0):
		q.Inf++
	case x == 0:
		q.Zero++
	case x > 0:
		q.Positive = count(q.Positive, bucketOf(x), 1)
	default:
		q.Negative = count(q.Negative, bucketOf(-x), 1)
	}
}

// Remove takes out a value that was added.
func (q *Quantiles) Remove(x float64) {
	switch {
	case math.IsNaN(x):
		q.NaN--
	case math.IsInf(x, 0):
		q.Inf--
	case x == 0:
		q.Zero--
	case x > 0:
		uncount(q.Positive, bucketOf(x))
	default:
		uncount(q.Negative, bucketOf(-x))
	}
}

// uncount takes one number out of a bucket. If the bucket is not there, it was merged
// into the lowest, and the number is taken out of that.
func uncount(side map[int]int64, bucket int) {
	if side[bucket] == 0 {
		bucket = slices.Min(slices.Collect(maps.Keys(side)))
	}
	if side[bucket]--; side[bucket] == 0 {
		delete(side, bucket)
	}
}

// N returns how many numbers were counted.
func (q Quantiles) N() int64 {
	n := q.Zero
	for _, c := range q.Positive {
		n += c
	}
	for _, c := range q.Negative {
		n += c
	}
	return n
}

// At returns the quantile at each of parts, each in [0, 1]: of n numbers in
// rising order the one at place part·(n-1), rounded down, counted from 0, to
// within QuantileError of its value. It is NaN without numbers, and for a part
// that is not in [0, 1].
func (q Quantiles) At(parts ...float64) []float64 {
	all := q.ordered()
	values := make([]float64, len(parts))
	for i, part := range parts {
		values[i] = math.NaN()
		if n := all.n(); n > 0 && part >= 0 && part <= 1 {
			values[i] = all.at(int64(part * float64(n-1)))
		}
	}
	return values
}

// steps are the buckets in rising order of their values.
type steps []step

// step is a bucket with the value that stands for it.
type step struct {
	value float64
	upTo  int64 // how many numbers are in this bucket and in those before it
}

func (q Quantiles) ordered() (all steps) {
	add := func(value float64, count int64) { all = append(all, step{value, all.n() + count}) }
	for _, b := range slices.Backward(buckets(q.Negative)) {
		add(-valueOf(b), q.Negative[b])
	}
	add(0, q.Zero)
	for _, b := range buckets(q.Positive) {
		add(valueOf(b), q.Positive[b])
	}
	return all
}

func (s steps) n() int64 {
	if len(s) == 0 {
		return 0
	}
	return s[len(s)-1].upTo
}

// at returns the number at a place, counted from 0, which must be below n.
func (s steps) at(place int64) float64 {
	first, _ := slices.BinarySearchFunc(s, place, func(s step, at int64) int {
		if s.upTo <= at {
			return -1
		}
		return 1
	})
	return s[first].value
}

// bucketOf returns the bucket of a magnitude: the b with growth^(b-1) <
// magnitude <= growth^b.
func bucketOf(magnitude float64) int { return int(math.Ceil(math.Log(magnitude) / logGrowth)) }

// valueOf returns the value that stands for a bucket: it is within QuantileError of every
// number in it. It is worked out as the square of its root, because on some architectures
// math.Exp overflows before the largest float64.
func valueOf(bucket int) float64 {
	root := math.Exp(float64(bucket) * logGrowth / 2)
	return min(root*(1-QuantileError)*root, math.MaxFloat64)
}

// buckets returns the buckets of a side, rising.
func buckets(side map[int]int64) []int {
	all := make([]int, 0, len(side))
	for b := range side {
		all = append(all, b)
	}
	slices.Sort(all)
	return all
}

// count adds n numbers to a bucket of side, which it makes if it is nil, and returns
// side. If there are then too many buckets, it merges the lowest into the next. So the
// buckets that stay are the highest ones of all that were ever counted, whatever the
// order.
func count(side map[int]int64, bucket int, n int64) map[int]int64 {
	if side == nil {
		side = map[int]int64{}
	}
	side[bucket] += n
	if len(side) > maxBuckets {
		lowest, next := math.MaxInt, math.MaxInt
		for b := range side {
			if b < lowest {
				lowest, next = b, lowest
			} else {
				next = min(next, b)
			}
		}
		side[next] += side[lowest]
		delete(side, lowest)
	}
	return side
}
