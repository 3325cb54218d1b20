package interleave

import (
	"fmt"

	"github.com/millrace/millrace"
)

// Credit is the clicks of one impression by team: the answer that was shown once
// to one viewer.
type Credit []int

// Count gives each click to the team that drafted what was clicked. Drafted has
// the teams of an answer's items in their places, clicked the places of the
// items that were clicked, from 0; one that was clicked twice counts once. The
// error is a [*millrace.Error] of the field "teams", "drafted" or "clicked".
func Count(teams int, drafted []Team, clicked []int) (Credit, error) {
	if teams < 2 || teams > MaxTeams {
		return nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "teams", Detail: fmt.Sprintf("%d teams", teams), WayOut: fmt.Sprintf("there are 2 to %d", MaxTeams)}
	}
	for place, team := range drafted {
		if team < Nobody || int(team) >= teams {
			return nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "drafted", Detail: fmt.Sprintf("the item in place %d is of team %d of %d", place, team, teams), WayOut: "count with the teams that drafted the answer"}
		}
	}
	c := make(Credit, teams)
	seen := make(map[int]bool, len(clicked))
	for _, place := range clicked {
		if place < 0 || place >= len(drafted) {
			return nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "clicked", Detail: fmt.Sprintf("place %d of an answer of %d items", place, len(drafted)), WayOut: "count places from 0, and each answer by itself"}
		}
		if team := drafted[place]; team != Nobody && !seen[place] {
			c[team]++
		}
		seen[place] = true
	}
	return c, nil
}

// Preference returns 1 if the impression's clicks prefer team a to team b, -1 if
// they prefer b, and 0 if each has as many, as Radlinski, Kurup and Joachims judge
// a query. Both are teams of the credit.
func (c Credit) Preference(a, b Team) int { return sign(c[a] - c[b]) }

func sign(x int) int {
	switch {
	case x > 0:
		return 1
	case x < 0:
		return -1
	}
	return 0
}

// Tally counts preferences between two teams: of the impressions of one viewer,
// of the viewers of an experiment, or of all impressions.
type Tally struct {
	Wins, Losses, Ties int
}

// Add counts a preference: 1, 0 or -1, as [Credit.Preference] and
// [Tally.Preference] return it.
func (t *Tally) Add(preference int) {
	switch sign(preference) {
	case 1:
		t.Wins++
	case -1:
		t.Losses++
	default:
		t.Ties++
	}
}

// Preference returns 1 if there are more wins than losses, -1 if fewer, else 0.
// That of a viewer's tally counts each viewer once, however many impressions
// they have.
func (t Tally) Preference() int { return sign(t.Wins - t.Losses) }

// Mean returns (wins - losses) / (wins + losses + ties), from -1 to 1; 0 of an
// empty tally. Half of it is the Δ of Chapelle, Joachims, Radlinski and Yue,
// "Large-Scale Validation and Analysis of Interleaved Search Evaluation", ACM
// TOIS 30(1), 2012: (wins + ties/2) / (wins + losses + ties) - 1/2.
func (t Tally) Mean() float64 {
	n := t.Wins + t.Losses + t.Ties
	if n == 0 {
		return 0
	}
	return float64(t.Wins-t.Losses) / float64(n)
}
