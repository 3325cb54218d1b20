package interleave

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/millrace/millrace"
)

func mustDraft[K comparable](t testing.TB, at Cursor, limit int, rankings ...[]K) ([]Pick, Cursor) {
	t.Helper()
	picks, next, err := Draft(at, limit, rankings...)
	if err != nil {
		t.Fatal(err)
	}
	return picks, next
}

// The outputs of SplitMix64 for the seed 1234567: Rosetta Code, "Pseudo-random
// numbers/Splitmix64", which has them of Vigna's splitmix64.c.
func TestRandomIsSplitMix64(t *testing.T) {
	for i, want := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821} {
		if got := random(1234567, uint64(i)); got != want {
			t.Errorf("output %d is %d, want %d", i, got, want)
		}
	}
}

// show writes an answer as items with their teams: "1a 2b 3-".
func show(picks []Pick, rankings ...[]int) (s string) {
	for _, p := range picks {
		team := "-"
		if p.Team != Nobody {
			team = string(rune('a' + p.Team))
		}
		s += fmt.Sprintf(" %d%s", rankings[p.Ranking][p.Place], team)
	}
	return s
}

// Every answer that a draft can give, each with its share of a thousand seeds.
// The orders of the first five are those of the tests of mpkato/interleaving,
// tests/test_team_draft.py; there, what a longer ranking has left is its team's.
func TestDraftsAreThese(t *testing.T) {
	for _, c := range []struct {
		name     string
		rankings [][]int
		limit    int
		want     []string
	}{
		{"two that overlap", [][]int{{1, 2}, {2, 3}}, 2, []string{" 1a 2b", " 2b 1a"}},
		{"the rest is nobody's", [][]int{{1, 2}, {2, 3}}, 4, []string{" 1a 2b 3-", " 2b 1a 3-"}},
		{"two with nothing in common", [][]int{{1, 2}, {3, 4}}, 2, []string{" 1a 3b", " 3b 1a"}},
		{"the last round is short", [][]int{{1, 2}, {3, 4}}, 3, []string{" 1a 3b 2-", " 1a 3b 4-", " 3b 1a 2-", " 3b 1a 4-"}},
		{"three", [][]int{{1, 2, 9}, {3, 4, 9}, {5, 6, 9}}, 2, []string{" 1a 3b", " 1a 5c", " 3b 1a", " 3b 5c", " 5c 1a", " 5c 3b"}},
		{"twice in one", [][]int{{1, 1}, {3, 4, 5}}, 3, []string{" 1- 3- 4-", " 3- 4- 5-"}},
		{"twice in one, and more", [][]int{{1, 1, 2}, {3, 4, 5}}, 2, []string{" 1a 3b", " 3b 1a"}},
		{"alike in all", [][]int{{1, 2, 3}, {1, 2, 3}}, 3, []string{" 1- 2- 3-"}},
		{"alike at first", [][]int{{1, 2, 3, 4}, {1, 3, 2, 4}}, 4, []string{" 1- 2a 3b 4-", " 1- 3b 2a 4-"}},
		{"alike later", [][]int{{1, 2, 3, 4, 5}, {2, 1, 3, 5, 4}}, 5, []string{" 1a 2b 3- 4a 5b", " 1a 2b 3- 5b 4a", " 2b 1a 3- 4a 5b", " 2b 1a 3- 5b 4a"}},
		{"two want the same", [][]int{{1, 2, 3}, {1, 3, 2}, {2, 1, 3}}, 3, []string{" 1a 2c 3b", " 1a 3b 2c", " 1b 2a 3c", " 1b 2c 3a", " 2c 1a 3b", " 2c 1b 3a"}},
		{"twice in a ranking", [][]int{{1, 1, 2, 1}, {3, 3, 3, 4}}, 4, []string{" 1a 3b 2- 4-", " 1a 3b 4- 2-", " 3b 1a 2- 4-", " 3b 1a 4- 2-"}},
		{"twice is one left", [][]int{{1, 1}, {1, 1, 1}}, 3, []string{" 1-"}},
		{"one is empty", [][]int{{}, {1, 2}}, 3, []string{" 1- 2-"}},
		{"one is short", [][]int{{1}, {1, 2, 3}}, 3, []string{" 1- 2- 3-"}},
		{"all are empty", [][]int{{}, {}}, 3, []string{""}},
		{"nothing is asked for", [][]int{{1}, {2}}, 0, []string{""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			seen := map[string]int{}
			for seed := range 1000 {
				picks, _ := mustDraft(t, Cursor{Seed: random(7, uint64(seed))}, c.limit, c.rankings...)
				seen[show(picks, c.rankings...)]++
			}
			for answer, n := range seen {
				if !slices.Contains(c.want, answer) {
					t.Errorf("%q, %d times", answer, n)
				}
			}
			for _, answer := range c.want {
				if seen[answer] < 100 {
					t.Errorf("%q: %d of 1000", answer, seen[answer])
				}
			}
		})
	}
}

func TestDraftRefuses(t *testing.T) {
	one := []int{1}
	if picks, _, err := Draft(Cursor{}, 0, one, one, one, one, one, one, one, one); err != nil || len(picks) != 0 {
		t.Errorf("no item of the most rankings: %v, %v", picks, err)
	}
	for _, c := range []struct {
		field    string
		limit    int
		rankings [][]int
	}{
		{"rankings", 1, nil},
		{"rankings", 1, [][]int{one}},
		{"rankings", 1, [][]int{one, one, one, one, one, one, one, one, one}},
		{"limit", -1, [][]int{one, one}},
	} {
		_, next, err := Draft(Cursor{Seed: 5, Turns: 3}, c.limit, c.rankings...)
		var e *millrace.Error
		if !errors.As(err, &e) || e.Field != c.field || e.WayOut == "" || next != (Cursor{5, 3}) {
			t.Errorf("%d rankings, limit %d: %v, %+v", len(c.rankings), c.limit, err, next)
		}
	}
}

// someRankings returns rankings of items 0 to n: orders of most of them that are
// alike by more or less.
func someRankings(rng *rand.Rand, teams, n int) [][]int {
	spread := math.Exp(rng.Float64()*6 - 2)
	rankings := make([][]int, teams)
	for i := range rankings {
		score := map[int]float64{}
		for item := range n {
			if rng.IntN(8) > 0 {
				score[item] = float64(item) + spread*rng.NormFloat64()
				rankings[i] = append(rankings[i], item)
			}
		}
		slices.SortFunc(rankings[i], func(a, b int) int { return int(math.Copysign(1, score[a]-score[b])) })
		if rng.IntN(3) == 0 && len(rankings[i]) > 0 {
			rankings[i] = rankings[i][:rng.IntN(len(rankings[i]))]
		}
	}
	return rankings
}

// without returns the first items of a ranking that are not served.
func without(ranking []int, served map[int]bool, n int) (left []int) {
	for _, item := range ranking {
		if !served[item] && len(left) < n {
			left = append(left, item)
		}
	}
	return left
}

// Random rankings: an answer is as long as there are items, has none twice, has
// the best of each ranking that is left; teams draft as often as each other; and
// through pages of any length it is the one long draft, from no more of each
// ranking than Depth.
func TestPagesAreOneLongDraft(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	drafts, cut := 0, 0
	for range 4000 {
		teams := 2 + rng.IntN(MaxTeams-1)
		rankings := someRankings(rng, teams, rng.IntN(60))
		all := map[int]bool{}
		for _, r := range rankings {
			for _, item := range r {
				all[item] = true
			}
		}
		seed := rng.Uint64()
		long, end := mustDraft(t, Cursor{Seed: seed}, 1000, rankings...)
		if len(long) != len(all) {
			t.Fatalf("seed %d: %d items of %d: %v", seed, len(long), len(all), rankings)
		}
		byTeam := map[Team]int{}
		got := map[int]bool{}
		for place, p := range long {
			item := rankings[p.Ranking][p.Place]
			if best := without(rankings[p.Ranking], got, 1); got[item] || best[0] != item {
				t.Fatalf("seed %d, place %d: item %d, best left %v, %v", seed, place, item, best, rankings)
			}
			got[item] = true
			if p.Team != Nobody {
				byTeam[p.Team]++
				drafts++
			}
		}
		for team := range teams {
			if byTeam[Team(team)] != byTeam[0] || end.Turns != uint64(teams*byTeam[0]) {
				t.Fatalf("seed %d: drafts by team %v, %d turns: %v", seed, byTeam, end.Turns, rankings)
			}
		}

		at, served := Cursor{Seed: seed}, map[int]bool{}
		var paged []string
		for len(paged) < len(long) {
			limit := 1 + rng.IntN(9)
			page := make([][]int, teams)
			for i := range page {
				page[i] = without(rankings[i], served, Depth(limit, teams))
			}
			var picks []Pick
			picks, at = mustDraft(t, at, limit, page...)
			if len(picks) == 0 {
				t.Fatalf("seed %d: no more after %d of %d items", seed, len(paged), len(long))
			}
			if at.Turns%uint64(teams) > 0 {
				cut++
			}
			for _, p := range picks {
				item := page[p.Ranking][p.Place]
				if served[item] {
					t.Fatalf("seed %d: item %d twice", seed, item)
				}
				served[item] = true
				paged = append(paged, show([]Pick{p}, page...))
			}
		}
		var want []string
		for _, p := range long {
			want = append(want, show([]Pick{p}, rankings...))
		}
		if !reflect.DeepEqual(paged, want) {
			t.Fatalf("seed %d: pages\n%v\nlong\n%v\n%v", seed, paged, want, rankings)
		}
	}
	if drafts < 10_000 || cut < 1000 {
		t.Errorf("only %d drafts, %d pages that end within a round", drafts, cut)
	}
}

// algorithm2 is team draft as Radlinski, Kurup and Joachims 2008 write it down:
// while both rankings have an item left, the team with fewer drafts picks, or, if
// each has as many, the one that a coin says.
func algorithm2(a, b []int, coin func(round int) Team) (answer []int, teams []Team) {
	next := func(ranking []int) int {
		return slices.IndexFunc(ranking, func(item int) bool { return !slices.Contains(answer, item) })
	}
	drafts := [2]int{}
	for next(a) >= 0 && next(b) >= 0 {
		team := Team(0)
		if drafts[1] < drafts[0] || drafts[0] == drafts[1] && coin(drafts[0]) == 1 {
			team = 1
		}
		drafts[team]++
		ranking := [][]int{a, b}[team]
		answer, teams = append(answer, ranking[next(ranking)]), append(teams, team)
	}
	return answer, teams
}

// With the same coins, and as long as the rankings do not agree on an item, a
// draft is the published algorithm's.
func TestDraftEqualsThePublishedAlgorithm(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	compared := 0
	for range 3000 {
		rankings := someRankings(rng, 2, 30)
		seed := rng.Uint64()
		answer, teams := algorithm2(rankings[0], rankings[1], func(round int) Team { return Team(orderOf(seed, uint64(round), 2)[0]) })
		picks, _ := mustDraft(t, Cursor{Seed: seed}, 30, rankings...)
		for place, p := range picks {
			if p.Team == Nobody {
				break
			}
			if p.Team != teams[place] || rankings[p.Ranking][p.Place] != answer[place] {
				t.Fatalf("seed %d, place %d: item %d of team %d, want %d of %d: %v", seed, place, rankings[p.Ranking][p.Place], p.Team, answer[place], teams[place], rankings)
			}
			compared++
		}
	}
	if compared < 5000 {
		t.Errorf("only %d items compared", compared)
	}
}

// chiSquare of counts that should be equal.
func chiSquare(counts []int) (chi float64) {
	n := 0
	for _, c := range counts {
		n += c
	}
	expected := float64(n) / float64(len(counts))
	for _, c := range counts {
		chi += (float64(c) - expected) * (float64(c) - expected) / expected
	}
	return chi
}

// oneInAMillion are the χ² that chance exceeds once in a million, by degrees of
// freedom (Abramowitz and Stegun, table 26.8, has 20.5 for P = 0.999994 and one
// degree; these are -2 ln P at two, and by the incomplete gamma function else).
var oneInAMillion = map[int]float64{1: 23.93, 2: 27.64, 3: 30.67, 4: 33.38, 5: 35.89, 7: 40.52, 23: 71.86}

// fits fails the test where counts are not as equal as chance leaves them.
func fits(t *testing.T, counts []int, what string, args ...any) {
	t.Helper()
	limit, ok := oneInAMillion[len(counts)-1]
	if !ok {
		t.Fatalf("no limit for %d degrees of freedom", len(counts)-1)
	}
	if chi := chiSquare(counts); chi > limit {
		t.Errorf("%s: %v: χ² = %.1f", fmt.Sprintf(what, args...), counts, chi)
	}
}

// Every place belongs to every team as often, whatever the rankings: those that
// overlap, that are of other lengths, of several teams. So a viewer who clicks
// places and not items prefers nobody.
func TestEveryPlaceIsFair(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	const seeds = 10_000
	for trial := range 12 {
		teams := 2 + trial%4
		var rankings [][]int
		for short := true; short; { // those that leave something to draft
			rankings = someRankings(rng, teams, 20)
			short = slices.ContainsFunc(rankings, func(r []int) bool { return len(r) < 2*teams })
		}
		places := map[int][]int{} // drafts by team
		for range seeds {
			picks, _ := mustDraft(t, Cursor{Seed: rng.Uint64()}, 20, rankings...)
			for place, p := range picks {
				if p.Team == Nobody {
					continue
				}
				if places[place] == nil {
					places[place] = make([]int, teams)
				}
				places[place][p.Team]++
			}
		}
		for place, counts := range places {
			fits(t, counts, "trial %d, place %d", trial, place)
		}
		if len(places) == 0 {
			t.Errorf("trial %d drafts nothing: %v", trial, rankings)
		}
	}
}

// Every order of a round is as likely as any other, and says nothing of the
// next round's.
func TestOrdersAreFair(t *testing.T) {
	factorial := map[int]int{2: 2, 3: 6, 4: 24}
	for teams, orders := range factorial {
		counts := map[string]int{}
		pairs := [4]int{} // who is first, in two rounds that follow each other
		const seeds = 20_000
		for seed := range uint64(seeds) { // seeds that follow each other, too
			first, second := orderOf(seed, 3, teams), orderOf(seed, 4, teams)
			counts[fmt.Sprint(first)]++
			if first[0] < 2 && second[0] < 2 {
				pairs[2*first[0]+second[0]]++
			}
		}
		var flat []int
		for _, n := range counts {
			flat = append(flat, n)
		}
		if len(flat) != orders {
			t.Fatalf("%d orders of %d teams, want %d", len(flat), teams, orders)
		}
		fits(t, flat, "orders of %d teams", teams)
		fits(t, pairs[:], "first of two rounds of %d teams", teams)
	}
}

// Records come and go between pages: what has been served is not served again,
// and a round goes on with the teams that have something left.
func TestRecordsGoBetweenPages(t *testing.T) {
	a, b := []int{1, 2, 3, 4, 5}, []int{11, 12, 13, 14, 15}
	for seed := range uint64(20) {
		picks, at := mustDraft(t, Cursor{Seed: seed}, 1, a, b)
		first := picks[0].Team
		if at.Turns != 1 || first == Nobody {
			t.Fatalf("seed %d: %+v, %+v", seed, picks, at)
		}
		left := [][]int{a[1:], b[1:]}
		left[1-first] = nil // all that the other team had
		picks, at = mustDraft(t, at, 3, left...)
		if len(picks) != 3 || at.Turns != 2 || picks[0].Team != Nobody {
			t.Fatalf("seed %d: %+v, %+v", seed, picks, at)
		}
		// What comes back is drafted again.
		picks, _ = mustDraft(t, at, 2, []int{21, 22}, []int{31, 32})
		if picks[0].Team == Nobody || picks[1].Team == Nobody || picks[0].Team == picks[1].Team {
			t.Fatalf("seed %d: %+v", seed, picks)
		}
	}
}

func BenchmarkDraft(b *testing.B) {
	rng := rand.New(rand.NewPCG(5, 5))
	rankings := [][]uint64{make([]uint64, 51), make([]uint64, 51)}
	for i := range rankings[0] {
		rankings[0][i] = rng.Uint64()
		rankings[1][(i*7)%51] = rankings[0][i]
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := Draft(Cursor{Seed: 1}, 50, rankings...); err != nil {
			b.Fatal(err)
		}
	}
}
