package interleave

import (
	"cmp"
	"math"
	"slices"
)

// Click is an item of an impression that was clicked.
type Click struct {
	Place int32 // the item's place in the answer
	Team  Team  // the team that drafted the item, or Nobody
}

// Impression is the clicks on an answer that was shown once to one viewer, in the order of
// their places. The zero value has none.
type Impression []Click

// find returns the index of the click on a place, or where it would be inserted.
func (p Impression) find(place int32) (at int, has bool) {
	return slices.BinarySearchFunc(p, place, func(c Click, place int32) int { return cmp.Compare(c.Place, place) })
}

// Has reports whether the item at a place was clicked.
func (p Impression) Has(place int32) bool {
	_, has := p.find(place)
	return has
}

// Add adds a click. An item that is clicked again counts once.
func (p *Impression) Add(c Click) {
	if at, has := p.find(c.Place); !has {
		*p = slices.Insert(*p, at, c)
	}
}

// Credit returns how many of the clicks are on items that each team drafted.
func (p Impression) Credit() (c Credit) {
	for _, click := range p {
		if click.Team != Nobody {
			c[click.Team]++
		}
	}
	return c
}

// Credit is the number of clicks of one impression, by team.
type Credit [MaxTeams]int

// Preference returns 1 if team a has more clicks than team b, -1 if it has fewer, and 0 if
// both have as many. Radlinski, Kurup and Joachims judge a query in this way; see the
// comment of the package.
func (c Credit) Preference(a, b Team) int { return cmp.Compare(c[a], c[b]) }

// Tally counts preferences between two teams: of the impressions of an
// experiment, or of its viewers.
type Tally struct {
	Wins, Losses, Ties int
}

// Add counts a preference: above 0 as a win, below 0 as a loss, 0 as a tie. It is that of
// an impression, as [Credit.Preference] returns it, or the sum of those of a viewer. With
// sums each viewer counts once, however many impressions they have.
func (t *Tally) Add(preference int) {
	switch cmp.Compare(preference, 0) {
	case 1:
		t.Wins++
	case -1:
		t.Losses++
	default:
		t.Ties++
	}
}

// Delta returns Δ of Chapelle, Joachims, Radlinski and Yue, "Large-Scale
// Validation and Analysis of Interleaved Search Evaluation", ACM TOIS 30(1),
// 2012: (wins + ties/2) / (wins + losses + ties) - 1/2, from -1/2 to 1/2. It is NaN for
// an empty tally.
func (t Tally) Delta() float64 {
	n := t.Wins + t.Losses + t.Ties
	if n == 0 {
		return math.NaN()
	}
	return float64(t.Wins-t.Losses) / float64(2*n)
}
