package shadow

import (
	"cmp"
	"math"
	"slices"
)

// maxAuthors bounds the authors that are told apart.
const maxAuthors = 1000

// authors counts the items of the authors that are shown most, on either side,
// in bounded memory: Space-Saving (Metwally, Agrawal and El Abbadi, "Efficient
// computation of frequent and top-k elements in data streams", ICDT 2005). Who
// has more than a thousandth of all items is among them.
type authors struct {
	of    map[string]*author
	items [2]int64 // of all authors: served, and by the shadow
}

// author is who items are of.
type author struct {
	name   string
	items  [2]int64 // served, and by the shadow, since it is told apart
	missed int64    // items of before, at most
}

func (a *author) weight() int64 { return a.items[0] + a.items[1] + a.missed }

// add counts an item, served (0) or by the shadow (1).
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

// least returns the author with the fewest items; of several, the last by name,
// so that the same items leave the same authors.
func (s *authors) least() (least *author) {
	for _, a := range s.of {
		if least == nil || a.weight() < least.weight() || a.weight() == least.weight() && a.name > least.name {
			least = a
		}
	}
	return least
}

// Author is how much more or less an author is shown by a shadow.
type Author struct {
	Entity string  `json:"entity"`
	Served float64 `json:"served"` // its share of the items served,
	Shadow float64 `json:"shadow"` // and of the shadow's
	Missed int64   `json:"missed"` // items of before it was told apart, at most, that neither share has
}

// shift returns the authors whose share moves most.
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

// part returns the share of n in all; 0 of none.
func part(n, all int64) float64 {
	if all == 0 {
		return 0
	}
	return float64(n) / float64(all)
}
