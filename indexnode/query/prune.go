package query

import (
	"math"
	"math/bits"
	"slices"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/relevance"
)

// This file leaves out candidates that cannot be among the best, before they are scored.
// For each it knows the folded number, the part of the score that depends on the record
// alone, and a bound for the rest of the score of a record of its age. If the sum of both
// is below the worst score of the best so far, the score itself is not needed.

// ceilings has bounds of the rest of a score, by the age of the record. The rest is the
// score without the folded number.
type ceilings struct {
	of       *relevance.Ceilings // nil: there are no bounds
	told     bool                // of.Limits was called with the present limits, those of most
	most     []uint64            // by column of of.Columns(), the limit up to which the bounds hold
	byAge    [ages]float64       // the bound for records of a class of age
	older    [ages]float64       // the bound for records of a class or an older one
	from, to int                 // byAge and older are known for the classes [from, to)
	kept     []int32             // the result of prune

	floor, threshold float64 // threshold is of.Threshold(floor)
}

// Records are in classes by age. The class is the exponent and the first bit of the
// mantissa of the age in milliseconds plus 2^firstAge, as a floating-point number: half
// octaves. That spreads decays of hours and of weeks about evenly over the classes.
// 2^firstAge ms are 17 minutes: records younger than half of that are all in class 0.
const (
	ages     = 256                    // so that any uint8 is within an array of ages; the classes that occur are below 90
	firstAge = 20                     // see above
	agesFrom = (1023 + firstAge) << 1 // the exponent, with its bias of 1023, and the first bit of the mantissa of 2^firstAge
)

// ageOf returns the class of the age of a record with time t. asOf is the question's, plus
// 2^firstAge. Both are in milliseconds.
func ageOf(asOf, t int64) uint8 {
	return uint8(math.Float64bits(float64(max(asOf-t, 1<<firstAge)))>>51 - agesFrom)
}

// timesOf returns between which times, in milliseconds, the records of a class are. asOf is
// the question's own, without the 2^firstAge that ageOf takes.
func timesOf(asOf int64, class int) (from, to float64) {
	edge := func(class int) float64 {
		return math.Float64frombits(uint64(class+agesFrom)<<51) - 1<<firstAge
	}
	from, to = float64(asOf)-edge(class+1), float64(asOf)-edge(class)
	if class == 0 {
		to = math.Inf(1)
	}
	return from, to
}

// beyond reports whether no row of a segment can be among the best. most is the largest
// folded number of its rows.
func (q *Query) beyond(p *plan, s *segment, most float64) bool {
	c := &p.ceilings
	if !c.told || q.top.floor == math.Inf(-1) {
		return false
	}
	_, newest := s.rows.Times()
	age := ageOf(int64(q.spec.AsOf)+1<<firstAge, newest)
	c.learn(int64(q.spec.AsOf), int(age), int(age))
	if !(most+c.older[age] < c.thresholdOf(q.top.floor)) { // true also if the sum is NaN
		return false
	}
	for i, f := range c.of.Columns() { // the bounds hold only for values within the limits
		if s.rows.Most(f) > c.most[i] {
			return false
		}
	}
	return true
}

// thresholdOf returns what the sum of a folded number and its bound must reach for the
// score to reach floor.
func (c *ceilings) thresholdOf(floor float64) float64 {
	if c.floor != floor {
		c.floor, c.threshold = floor, c.of.Threshold(floor)
	}
	return c.threshold
}

// prune returns those of sel that may be among the best. The rows of the batch have folded
// numbers. The result is valid until the next call.
func (q *Query) prune(p *plan, b *batch, sel []int32) []int32 {
	c := &p.ceilings
	if q.top.floor == math.Inf(-1) || !c.ready(b) {
		return sel
	}
	asOf := int64(q.spec.AsOf) + 1<<firstAge
	c.learn(int64(q.spec.AsOf), int(ageOf(asOf, b.newest)), int(ageOf(asOf, b.oldest)))
	c.kept = slices.Grow(c.kept[:0], len(sel))[:len(sel)]
	n := reach(c.kept, sel, b.own, b.Slab().Column(p.time), &c.byAge, asOf, c.thresholdOf(q.top.floor))
	q.unscored += int64(len(sel) - n)
	return c.kept[:n]
}

// reach writes to kept those rows of sel for which the sum of the folded number and the
// bound of their age reaches threshold or is NaN. It returns how many they are.
func reach(kept, sel []int32, own []float64, times []uint64, bounds *[ages]float64, asOf int64, threshold float64) (n int) {
	times, kept = times[:len(own)], kept[:len(sel)]
	for _, r := range sel {
		kept[n] = r
		n += compute.One(!(own[r]+bounds[ageOf(asOf, int64(times[r]))] < threshold))
	}
	return n
}

// bound prepares c for the batch b of a question. of has the bounds of the question's
// scorer; it is nil if there are none.
func (c *ceilings) bound(of *relevance.Ceilings, b *batch) {
	if c.of, c.told, c.floor = of, false, math.Inf(-1); of != nil {
		c.threshold = of.Threshold(c.floor)
		c.most = append(c.most[:0], make([]uint64, len(of.Columns()))...)
		b.Watch(of.Columns())
	}
}

// ready raises the limits of the columns to the values that the batch has read so far. It
// reports whether there are bounds.
func (c *ceilings) ready(b *batch) bool {
	if c.of == nil {
		return false
	}
	for i, f := range c.of.Columns() {
		if most := allOnes(b.Most(f)); c.most[i] < most {
			c.most[i], c.told = most, false
		}
	}
	if !c.told {
		c.of.Limits(func(column int) uint64 { return allOnes(b.Most(column)) })
		c.told, c.from, c.to = true, 0, 0
	}
	return true
}

// allOnes returns the least number of the form 2^n-1 that is not less than w. Limits are
// rounded up to it, so that they seldom change.
func allOnes(w uint64) uint64 { return 1<<bits.Len64(w) - 1 }

// learn computes the bounds of the classes of age from up to to, both included, unless they
// are known. The known classes stay one range, so learn may compute classes between as well.
func (c *ceilings) learn(asOf int64, from, to int) {
	if c.from == c.to {
		c.from, c.to = from, from
	}
	if c.from <= from && to < c.to {
		return
	}
	for ; c.to <= to; c.to++ {
		c.byAge[c.to] = c.of.Of(timesOf(asOf, c.to))
	}
	for ; from < c.from; c.from-- {
		c.byAge[c.from-1] = c.of.Of(timesOf(asOf, c.from-1))
	}
	_, last := timesOf(asOf, c.to)
	most := c.of.Of(math.Inf(-1), last)
	for age := c.to - 1; age >= c.from; age-- {
		most = max(most, c.byAge[age])
		c.older[age] = most
	}
}
