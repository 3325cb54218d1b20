package query

import (
	"math"
	"math/bits"
	"slices"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/relevance"
)

// This file leaves candidates out that cannot be among the best, before they
// are scored. What is folded of each is known, and so is the most that a
// record of its age can gain; where both together stay below the worst of the
// best there is no need to know the score.

// ceilings is the most that the rest of a score can be, by the age of the
// record.
type ceilings struct {
	of       *relevance.Ceilings
	told     bool          // limits
	most     []uint64      // of each of its columns, the limit
	byAge    [ages]float64 // of records of an age
	older    [ages]float64 // of records of an age or older
	from, to int           // the classes of which both are known
	kept     []int32

	floor, threshold float64 // the threshold of the floor
}

// Ages are in half octaves: of an age, in milliseconds and 2^firstAge more, the
// exponent and one bit. That spreads decays of hours and of weeks about evenly.
const (
	ages     = 256
	firstAge = 20
	agesFrom = (1023 + firstAge) << 1
)

// ageOf returns the class of the age of a record at t. To asOf 2^firstAge was
// added.
func ageOf(asOf, t int64) uint8 {
	return uint8(math.Float64bits(float64(max(asOf-t, 1<<firstAge)))>>51 - agesFrom)
}

// timesOf returns the times of records of a class of age.
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

// beyond reports whether no row of a segment can be among the best, of which
// most is the most that is folded of any.
func (q *Query) beyond(p *plan, s *segment, most float64) bool {
	c := &p.ceilings
	if !c.told || q.top.floor == math.Inf(-1) {
		return false
	}
	_, newest := s.rows.Times()
	age := ageOf(int64(q.spec.AsOf)+1<<firstAge, newest)
	c.learn(int64(q.spec.AsOf), int(age), int(age))
	if !(most+c.older[age] < c.thresholdOf(q.top.floor)) { // also if the sum is no number
		return false
	}
	for i, f := range c.of.Columns() { // bounds hold within limits
		if s.rows.Most(f) > c.most[i] {
			return false
		}
	}
	return true
}

func (c *ceilings) thresholdOf(floor float64) float64 {
	if c.floor != floor {
		c.floor, c.threshold = floor, c.of.Threshold(floor)
	}
	return c.threshold
}

// prune returns those of sel that may be among the best, of rows with folded
// numbers.
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

// reach writes those of sel to kept of which the folded number and the bound of
// their age reach a threshold, or are no number, and returns how many.
func reach(kept, sel []int32, own []float64, times []uint64, bounds *[ages]float64, asOf int64, threshold float64) (n int) {
	times, kept = times[:len(own)], kept[:len(sel)]
	for _, r := range sel {
		kept[n] = r
		n += compute.One(!(own[r]+bounds[ageOf(asOf, int64(times[r]))] < threshold))
	}
	return n
}

// bound prepares for a scorer that was bound.
func (c *ceilings) bound(of *relevance.Ceilings, b *batch) {
	if c.of, c.told, c.floor = of, false, math.Inf(-1); of != nil {
		c.threshold = of.Threshold(c.floor)
		c.most = append(c.most[:0], make([]uint64, len(of.Columns()))...)
		b.Watch(of.Columns())
	}
}

// ready prepares for what the batch has read so far. It reports whether there
// are bounds.
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

// allOnes returns the least word of ones alone that is not less, so that what
// is told of columns seldom changes.
func allOnes(w uint64) uint64 { return 1<<bits.Len64(w) - 1 }

// learn computes the bounds of classes of age, from and to included, unless they
// are known.
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
