package cache

import (
	"math"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// order is the keys of a list in the order in which they are evicted, the oldest first.
//
// Keys that came at about the same time are a cohort, and simplelru keeps the cohorts. With
// an entry of simplelru for each key, the garbage collector would have more to mark for the
// order than for all else of a node. The place of a key that has left is an old place. It
// stays in its cohort, and a caller that pops a place must check whether it is old. tidy
// bounds the number of old places.
//
// The names of keys are here and nowhere else in the cache. A look-up does not need names.
// Only [Cache.Hot] and the counts of [Cache.Held] do.
type order struct {
	cohorts *simplelru.LRU[uint64, *cohort] // by number: each new cohort has the next one
	newest  *cohort                         // nil if there are none
	last    uint64                          // the number of the cohort newest
	keys    int                             // how many keys have entered and not left
	places  int                             // how many places are in cohorts, with the old ones
}

// place is what a key got when it entered a list: the tag of its id, and how many times it
// had entered one by then, modulo 16. A place is old unless the key's slot has both.
type place struct {
	tag   uint64
	times uint8
}

// entry is a key at its place.
type entry struct {
	place
	name []byte // as appendName makes it; it shares the cohort's memory
}

// cohort is entries in the order they came. Its entries are those with a number in
// [gone, end): those before gone were popped already.
type cohort struct {
	gone, end int
	tags      [cohortPlaces]uint64 // tags and times are the places: see place
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

// cohortPlaces is how many entries a cohort has room for. A million keys make a thousand
// cohorts, which the garbage collector has to mark.
const cohortPlaces = 1024

// newOrder returns an order without keys. simplelru never evicts a cohort: its size has no
// bound.
func newOrder() order {
	cohorts, err := simplelru.NewLRU[uint64, *cohort](math.MaxInt, nil)
	if err != nil {
		panic(err) // only for a size that is not positive
	}
	return order{cohorts: cohorts}
}

// enter adds a key as the last to be evicted.
func (o *order) enter(e entry) {
	o.keys++
	o.add(e)
}

// leave counts that a key has left. Its place stays, as an old one, unless it was popped.
func (o *order) leave() { o.keys-- }

// add adds a place at the new end.
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

// pop takes out the place that came first. It may be an old one. If it is not, and the key
// is to stay, the caller must give it back by add. There must be a place.
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

// maxOld is how many old places tidy leaves in any case. Without it, the order of a small
// list would be tidied very often.
const maxOld = 1 << 12

// tidy takes out all old places once there are more of them than keys and maxOld
// together. holds reports whether a place is not old.
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
