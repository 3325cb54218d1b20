package interleave

import (
	"cmp"
	"math"
	"slices"
)

// Click is an item of an impression that was clicked.
type Click struct {
	Place int32 // in the answer
	Team  Team  // that drafted it, or Nobody
}

// Impression is what was clicked of an answer that was shown once to one viewer,
// by place. The zero value has no click.
type Impression []Click

func (p Impression) find(place int32) (at int, has bool) {
	return slices.BinarySearchFunc(p, place, func(c Click, place int32) int { return cmp.Compare(c.Place, place) })
}

// Has reports whether the item of a place was clicked.
func (p Impression) Has(place int32) bool {
	_, has := p.find(place)
	return has
}

// Add takes a click. An item that is clicked again counts once.
func (p *Impression) Add(c Click) {
	if at, has := p.find(c.Place); !has {
		*p = slices.Insert(*p, at, c)
	}
}

// Credit gives each click to the team that drafted what was clicked.
func (p Impression) Credit() (c Credit) {
	for _, click := range p {
		if click.Team != Nobody {
			c[click.Team]++
		}
	}
	return c
}

// Credit is the clicks of one impression by team.
type Credit [MaxTeams]int

// Preference returns 1 if the impression's clicks prefer team a to team b, -1 if
// they prefer b, and 0 if each has as many, as Radlinski, Kurup and Joachims judge
// a query.
func (c Credit) Preference(a, b Team) int { return cmp.Compare(c[a], c[b]) }

// Tally counts preferences between two teams: of the impressions of an
// experiment, or of its viewers.
type Tally struct {
	Wins, Losses, Ties int
}

// Add counts the preference of an impression, as [Credit.Preference] returns it,
// or the sum of those of a viewer's, which counts each viewer once, however many
// impressions they have: a win above 0, a loss below, a tie at 0.
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
// 2012: (wins + ties/2) / (wins + losses + ties) - 1/2, from -1/2 to 1/2; NaN of
// an empty tally.
func (t Tally) Delta() float64 {
	n := t.Wins + t.Losses + t.Ties
	if n == 0 {
		return math.NaN()
	}
	return float64(t.Wins-t.Losses) / float64(2*n)
}
