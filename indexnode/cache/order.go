package cache

import (
	"math"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// order is the keys of a list, those that are evicted first before others.
//
// Keys that came at about the same time are a cohort, and simplelru keeps the
// cohorts: with an entry for each key the collector would have more to mark
// for the order than for all else of a node. A key that leaves stays in its
// cohort until that is the oldest, and who pops it looks whether its place is
// an old one. Of old places there are never many more than of keys.
type order struct {
	cohorts *simplelru.LRU[uint64, *cohort] // by number
	newest  *cohort
	last    uint64 // number of newest
	keys    int    // entered and not left
	places  int    // in cohorts
}

// place is where a key entered, the times-th time: see slot.
type place struct {
	tag   uint64
	times uint8
}

// cohort is places in the order they were taken. The first are gone already.
type cohort struct {
	gone, end int
	tags      [cohortPlaces]uint64
	times     [cohortPlaces]uint8
}

// cohortPlaces is so many that of a million keys there are a thousand cohorts,
// each with an entry of simplelru: what the collector has of the cache.
const cohortPlaces = 1024

func newOrder() order {
	cohorts, err := simplelru.NewLRU[uint64, *cohort](math.MaxInt, nil)
	if err != nil {
		panic(err) // only for a size that is not positive
	}
	return order{cohorts: cohorts}
}

// enter adds a key as the last to be evicted, and leave takes one out.
func (o *order) enter(p place) {
	o.keys++
	o.add(p)
}

func (o *order) leave() { o.keys-- }

func (o *order) add(p place) {
	c := o.newest
	if c == nil || c.end == len(c.tags) {
		c = new(cohort)
		o.newest = c
		o.last++
		o.cohorts.Add(o.last, c)
	}
	c.tags[c.end], c.times[c.end] = p.tag, p.times
	c.end++
	o.places++
}

// pop takes the oldest place out, which may be an old one of its key. It must
// be given back by add if the key is to stay. There must be one.
func (o *order) pop() place {
	_, c, _ := o.cohorts.GetOldest()
	p := place{c.tags[c.gone], c.times[c.gone]}
	c.gone++
	o.places--
	if c.gone == c.end {
		o.cohorts.RemoveOldest()
		if c == o.newest {
			o.newest = nil
		}
	}
	return p
}

// maxOld is how many old places are kept in any case.
const maxOld = 1 << 12

// tidy forgets old places once they are as many as the others. holds tells
// which are not old.
func (o *order) tidy(holds func(place) bool) {
	if o.places <= 2*o.keys+maxOld {
		return
	}
	for range o.places {
		if p := o.pop(); holds(p) {
			o.add(p)
		}
	}
}
