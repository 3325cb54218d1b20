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
//
// The names of keys are here and nowhere else in the cache: they are needed
// only by who asks what is hot (see [Cache.Hot]), never by a look-up.
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

// entry is a key at its place.
type entry struct {
	place
	name []byte // see appendName; it stays as long as the cohort does
}

// cohort is entries in the order they came. The first are gone already.
type cohort struct {
	gone, end int
	tags      [cohortPlaces]uint64
	times     [cohortPlaces]uint8
	ends      [cohortPlaces]uint32 // where each name ends in names
	names     []byte
}

// entry returns an entry by its number.
func (c *cohort) entry(i int) entry {
	from := uint32(0)
	if i > 0 {
		from = c.ends[i-1]
	}
	return entry{place{c.tags[i], c.times[i]}, c.names[from:c.ends[i]]}
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
func (o *order) enter(e entry) {
	o.keys++
	o.add(e)
}

func (o *order) leave() { o.keys-- }

func (o *order) add(e entry) {
	c := o.newest
	if c == nil || c.end == len(c.tags) {
		room := 0
		if c != nil {
			room = len(c.names) // names are about as long as those before
		}
		c = &cohort{names: make([]byte, 0, room)}
		o.newest = c
		o.last++
		o.cohorts.Add(o.last, c)
	}
	c.names = append(c.names, e.name...)
	c.tags[c.end], c.times[c.end], c.ends[c.end] = e.tag, e.times, uint32(len(c.names))
	c.end++
	o.places++
}

// pop takes the oldest place out, which may be an old one of its key. It must
// be given back by add if the key is to stay. There must be one.
func (o *order) pop() entry {
	_, c, _ := o.cohorts.GetOldest()
	e := c.entry(c.gone)
	c.gone++
	o.places--
	if c.gone == c.end {
		o.cohorts.RemoveOldest()
		if c == o.newest {
			o.newest = nil
		}
	}
	return e
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
		if e := o.pop(); holds(e.place) {
			o.add(e)
		}
	}
}
