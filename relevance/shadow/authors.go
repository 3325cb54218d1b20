package shadow

import (
	"cmp"
	"math"
	"slices"
)

// maxAuthors bounds how many authors have counts of their own: see authors.
const maxAuthors = 1000

// authors counts the items of the authors that are shown most, in bounded memory. It counts
// two sides: items that were served, and items in the shadow's rankings. It is the algorithm
// Space-Saving (Metwally, Agrawal and El Abbadi, "Efficient computation of frequent and
// top-k elements in data streams", ICDT 2005). An author with more than a thousandth of all
// items always has counts.
type authors struct {
	of    map[string]*author
	items [2]int64 // how many items of all authors were served, and are in the shadow's rankings
}

// author is the counts of an author, the entity that items are of.
type author struct {
	name   string
	items  [2]int64 // served, and by the shadow, since the author has counts
	missed int64    // the most items that the author may have had before that, on both sides together
}

// weight returns the most items that the author may have had, on both sides together.
func (a *author) weight() int64 { return a.items[0] + a.items[1] + a.missed }

// add counts an item of an author, served (side 0) or by the shadow (side 1). If there are
// maxAuthors already, a new author takes the place of the least.
func (s *authors) add(name string, side int) {
	if s.of == nil {
		s.of = map[string]*author{}
	}
	s.items[side]++
	a := s.of[name]
	if a == nil {
		a = &author{name: name}
		if len(s.of) >= maxAuthors {
			least := s.least()
			a.missed = least.weight()
			delete(s.of, least.name)
		}
		s.of[name] = a
	}
	a.items[side]++
}

// least returns the author with the least weight. Of several it returns the last by name,
// so that the same items always lead to the same counts.
func (s *authors) least() (least *author) {
	for _, a := range s.of {
		if least == nil || a.weight() < least.weight() || a.weight() == least.weight() && a.name > least.name {
			least = a
		}
	}
	return least
}

// Author is an author's share of the items served, and of the items of a shadow.
type Author struct {
	Entity string  `json:"entity"`
	Served float64 `json:"served"` // the share of the items served, from 0 to 1
	Shadow float64 `json:"shadow"` // the share of the shadow's items
	Missed int64   `json:"missed"` // the most items that both shares may lack, from before the author was counted
}

// shift returns the authors whose two shares differ most, the largest difference first. most
// is how many authors it returns at most.
func (s *authors) shift(most int) []Author {
	all := make([]Author, 0, len(s.of))
	for _, a := range s.of {
		all = append(all, Author{a.name, part(a.items[0], s.items[0]), part(a.items[1], s.items[1]), a.missed})
	}
	slices.SortFunc(all, func(a, b Author) int {
		return cmp.Or(-cmp.Compare(math.Abs(a.Shadow-a.Served), math.Abs(b.Shadow-b.Served)), cmp.Compare(a.Entity, b.Entity))
	})
	return all[:min(most, len(all))]
}

// part returns n as a share of all; 0 if all is 0.
func part(n, all int64) float64 {
	if all == 0 {
		return 0
	}
	return float64(n) / float64(all)
}
