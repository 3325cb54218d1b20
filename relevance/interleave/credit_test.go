package interleave

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// creditOf is the credit of an answer by who drafted its items, and the places
// that were clicked.
func creditOf(drafted []Team, clicked []int) Credit {
	var p Impression
	for _, place := range clicked {
		p.Add(Click{Place: int32(place), Team: drafted[place]})
	}
	return p.Credit()
}

// The preferences are those of mpkato/interleaving, tests/test_team_draft.py,
// test_evaluate: answers whose items were drafted by teams 0 1, and by 0 1 1.
func TestCredit(t *testing.T) {
	two, three := []Team{0, 1}, []Team{0, 1, 1}
	for _, c := range []struct {
		drafted    []Team
		clicked    []int
		want       Credit
		preference int
	}{
		{two, []int{0, 1}, Credit{1, 1}, 0},
		{two, []int{0}, Credit{1, 0}, 1},
		{two, []int{1}, Credit{0, 1}, -1},
		{two, nil, Credit{0, 0}, 0},
		{three, []int{0, 1, 2}, Credit{1, 2}, -1},
		{three, []int{0, 1}, Credit{1, 1}, 0},
		{three, []int{0, 2}, Credit{1, 1}, 0},
		{three, []int{1, 2}, Credit{0, 2}, -1},
		{three, []int{0}, Credit{1, 0}, 1},
		{three, []int{1}, Credit{0, 1}, -1},
		{three, []int{2}, Credit{0, 1}, -1},
		{three, nil, Credit{0, 0}, 0},
		// Beyond these: twice is once, and nobody's items count for nobody.
		{two, []int{1, 1, 0, 1}, Credit{1, 1}, 0},
		{[]Team{Nobody, 0, 1, Nobody}, []int{0, 3, 2}, Credit{0, 1}, -1},
		{nil, nil, Credit{0, 0}, 0},
	} {
		got := creditOf(c.drafted, c.clicked)
		if got != c.want || got.Preference(0, 1) != c.preference || got.Preference(1, 0) != -c.preference {
			t.Errorf("drafted %v, clicked %v: %v, %d; want %v, %d", c.drafted, c.clicked, got, got.Preference(0, 1), c.want, c.preference)
		}
	}
}

// Which places were clicked is known, in whatever order they were.
func TestImpressionHasItsClicks(t *testing.T) {
	var p Impression
	for _, place := range []int32{7, 2, 9, 2, 7} {
		p.Add(Click{Place: place, Team: Team(place % 2)})
	}
	if want := (Impression{{2, 0}, {7, 1}, {9, 1}}); !slices.Equal(p, want) {
		t.Errorf("%v, want %v", p, want)
	}
	for place := range int32(12) {
		if want := place == 2 || place == 7 || place == 9; p.Has(place) != want {
			t.Errorf("place %d: %v", place, !want)
		}
	}
}

func TestTally(t *testing.T) {
	for _, c := range []struct {
		preferences []int
		want        Tally
		delta       float64 // (wins + ties/2) / all - 1/2
	}{
		{nil, Tally{}, math.NaN()},
		{[]int{1}, Tally{Wins: 1}, 0.5},
		{[]int{-1, -3}, Tally{Losses: 2}, -0.5},
		{[]int{1, -1, 0, 0}, Tally{1, 1, 2}, 0},
		{[]int{1, 2, -1, 0}, Tally{2, 1, 1}, 2.5/4 - 0.5},
		{[]int{-1, 0, 0, 0, 0}, Tally{0, 1, 4}, 2./5 - 0.5},
	} {
		var got Tally
		for _, p := range c.preferences {
			got.Add(p)
		}
		if off := math.Abs(got.Delta() - c.delta); got != c.want || off > 1e-15 || math.IsNaN(got.Delta()) != math.IsNaN(c.delta) {
			t.Errorf("%v: %+v, Δ %v", c.preferences, got, got.Delta())
		}
	}
}

// Over a million clicks, page by page, of viewers with several answers each,
// credit is what the items' teams say: by impression, by viewer, and together.
func TestCreditEqualsTheDrafts(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 6))
	const wanted = 1_000_000
	var byItem, byCredit [3]int // clicks by team; the last is nobody's
	var viewers, wantViewers Tally
	for clicks := 0; clicks < wanted; {
		viewer, wins := 0, 0
		for range 1 + rng.IntN(3) { // impressions of a viewer
			teams := 2
			rankings := someRankings(rng, teams, 40)
			// Who drafted what, by item: what the answer's caller sees.
			team := map[int]Team{}
			picks, _ := mustDraft(t, Cursor{Seed: rng.Uint64()}, 40, rankings...)
			answer, drafted := make([]int, len(picks)), make([]Team, len(picks))
			for place, p := range picks {
				answer[place], drafted[place] = rankings[p.Ranking][p.Place], p.Team
				team[answer[place]] = p.Team
			}
			var clicked []int
			difference := 0
			for place, item := range answer {
				if rng.IntN(2) > 0 {
					continue
				}
				clicks++
				clicked = append(clicked, place)
				switch team[item] {
				case 0:
					byItem[0]++
					difference++
				case 1:
					byItem[1]++
					difference--
				default:
					byItem[2]++
				}
			}
			rng.Shuffle(len(clicked), func(i, j int) { clicked[i], clicked[j] = clicked[j], clicked[i] })
			c := creditOf(drafted, clicked)
			byCredit[0] += c[0]
			byCredit[1] += c[1]
			byCredit[2] += len(clicked) - c[0] - c[1]
			if c[0]-c[1] != difference {
				t.Fatalf("drafted %v, clicked %v: %v", drafted, clicked, c)
			}
			viewer += c.Preference(0, 1)
			wins += cmp.Compare(difference, 0)
		}
		viewers.Add(viewer)
		wantViewers.Add(wins)
	}
	if byItem != byCredit || byItem[0] < wanted/10 || byItem[1] < wanted/10 {
		t.Errorf("clicks by team %v, credit %v", byItem, byCredit)
	}
	if viewers != wantViewers {
		t.Errorf("viewers %+v, want %+v", viewers, wantViewers)
	}
}
