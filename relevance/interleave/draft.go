package interleave

import (
	"fmt"
	"math/bits"

	"github.com/millrace/millrace"
)

// MaxTeams is how many rankings a draft takes at most.
const MaxTeams = 8

// Team is the number of a ranking, from 0, as the rankings are given to [Draft].
type Team int8

// Nobody is the team of an item that no team drafted: its clicks count for no ranking.
const Nobody Team = -1

// Cursor is how far a draft is. It is all that the next page needs to know, besides
// what has been served. The first page has a seed and no turns.
type Cursor struct {
	// Seed decides the order of the teams in every round. It must be 64 random bits, or
	// a hash of something that differs from one first page to the next.
	Seed uint64
	// Turns is how many turns teams have had: the items that they drafted, and the turns
	// that they lost. Items of [Nobody] do not count.
	Turns uint64
}

// Pick is an item of an answer.
type Pick struct {
	Ranking int  // the number of the ranking that it was taken from
	Place   int  // the item's place in that ranking, from 0
	Team    Team // the team that drafted it: Ranking, or Nobody
}

// Depth returns how many items of each ranking [Draft] needs for an answer of limit items,
// unless the ranking has fewer.
func Depth(limit, teams int) int { return limit + teams - 1 }

// Draft picks the next items of an answer, limit at most, and no item twice. It returns
// fewer if the rankings have no more. next is the cursor for the page after.
//
// Each ranking has its best item first. It has [Depth] items, or all there are, and none
// that an earlier page has served. An item that is in a ranking twice counts once, at its
// first place.
//
// A draft goes by rounds. At the beginning of a round:
//
//  1. If a ranking has fewer items left than there are teams, one team might
//     find nothing in this round. Then the next item is the first one left of the
//     first ranking that has any, in the order that the round would have had. It
//     is nobody's. So are all items after it.
//  2. If all rankings have the same item next, that item is placed. It is nobody's,
//     since it does not tell the teams apart. The round begins again.
//  3. Otherwise the teams take turns in a random order: every permutation is equally
//     likely. Each drafts the best item of its ranking that is left.
//
// The error is a [*millrace.Error] of the field "rankings" or "limit".
func Draft[K comparable](at Cursor, limit int, rankings ...[]K) (picks []Pick, next Cursor, err error) {
	switch n := len(rankings); {
	case n < 2 || n > MaxTeams:
		return nil, at, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "rankings", Detail: fmt.Sprintf("%d rankings", n), WayOut: fmt.Sprintf("interleave 2 to %d", MaxTeams)}
	case limit < 0:
		return nil, at, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "limit", Detail: fmt.Sprintf("%d items", limit), WayOut: "ask for 0 or more"}
	}
	items := 0
	for _, r := range rankings {
		items += len(r)
	}
	d := draft[K]{rankings: rankings, place: make([]int, len(rankings)), drafted: make(map[K]bool, min(limit, items))}
	teams := uint64(len(rankings))
	for len(d.picks) < limit {
		round, turn := at.Turns/teams, at.Turns%teams
		order := orderOf(at.Seed, round, len(rankings))
		switch {
		case turn == 0 && d.short():
			if !d.rest(order) {
				return d.picks, at, nil
			}
		case turn == 0 && d.alike():
			d.pick(0, Nobody)
		default:
			// A team without an item loses its turn. That happens only if records
			// went away between two pages of one round.
			team := order[turn]
			if d.left(team, 1) {
				d.pick(team, Team(team))
			}
			at.Turns++
		}
	}
	return d.picks, at, nil
}

// draft is the state of one call of Draft.
type draft[K comparable] struct {
	rankings [][]K
	place    []int // of each ranking: all items before it are in drafted
	drafted  map[K]bool
	picks    []Pick
}

// left reports whether a ranking has n different items left that were not drafted, and
// moves its place to the first of them. n is from 1 to MaxTeams.
func (d *draft[K]) left(ranking, n int) bool {
	items := d.rankings[ranking]
	for d.place[ranking] < len(items) && d.drafted[items[d.place[ranking]]] {
		d.place[ranking]++
	}
	var found [MaxTeams]K
	k := 0
	for _, item := range items[d.place[ranking]:] {
		if d.drafted[item] || contains(found[:k], item) {
			continue
		}
		found[k] = item
		if k++; k == n {
			return true
		}
	}
	return false
}

func contains[K comparable](items []K, item K) bool {
	for _, x := range items {
		if x == item {
			return true
		}
	}
	return false
}

// short reports whether a team might find nothing to draft in a round. A team whose ranking
// has as many items left as there are teams always finds one. short moves all places to
// items that are left.
func (d *draft[K]) short() (short bool) {
	for i := range d.rankings {
		if !d.left(i, len(d.rankings)) {
			short = true
		}
	}
	return short
}

// alike reports whether all rankings have the same item next. Each must have one left, and
// its place must be there: call short first.
func (d *draft[K]) alike() bool {
	first := d.rankings[0][d.place[0]]
	for i, items := range d.rankings {
		if items[d.place[i]] != first {
			return false
		}
	}
	return true
}

// rest picks an item for nobody, of the first ranking in order that has any left. It
// reports false if none has.
func (d *draft[K]) rest(order []int) bool {
	for _, i := range order {
		if d.left(i, 1) {
			d.pick(i, Nobody)
			return true
		}
	}
	return false
}

// pick takes the item at a ranking's place for a team.
func (d *draft[K]) pick(ranking int, team Team) {
	at := d.place[ranking]
	d.drafted[d.rankings[ranking][at]] = true
	d.picks = append(d.picks, Pick{Ranking: ranking, Place: at, Team: team})
}

// orderOf returns the order in which teams draft in a round: a permutation by
// Fisher and Yates (Durstenfeld, algorithm 235, Communications of the ACM, 1964),
// each as likely as any other to within 2^-60.
func orderOf(seed, round uint64, teams int) []int {
	order := make([]int, teams)
	for i := range order {
		order[i] = i
	}
	draws := uint64(teams - 1) // a round
	for i := teams - 1; i > 0; i-- {
		high, _ := bits.Mul64(random(seed, round*draws+uint64(i-1)), uint64(i+1))
		order[i], order[high] = order[high], order[i]
	}
	return order
}

// random returns the i-th output, from 0, of SplitMix64 with a seed (Steele, Lea
// and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014, with
// the constants of Vigna's splitmix64.c).
func random(seed, i uint64) uint64 {
	z := seed + (i+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
