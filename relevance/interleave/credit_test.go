package interleave

import (
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/millrace/millrace"
)

func mustCount(t testing.TB, teams int, drafted []Team, clicked []int) Credit {
	t.Helper()
	c, err := Count(teams, drafted, clicked)
	if err != nil {
		t.Fatal(err)
	}
	return c
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
		got := mustCount(t, 2, c.drafted, c.clicked)
		if !reflect.DeepEqual(got, c.want) || got.Preference(0, 1) != c.preference || got.Preference(1, 0) != -c.preference {
			t.Errorf("drafted %v, clicked %v: %v, %d; want %v, %d", c.drafted, c.clicked, got, got.Preference(0, 1), c.want, c.preference)
		}
	}
}

func TestCountRefuses(t *testing.T) {
	for _, c := range []struct {
		field   string
		teams   int
		drafted []Team
		clicked []int
	}{
		{"teams", 1, nil, nil},
		{"teams", MaxTeams + 1, nil, nil},
		{"drafted", 2, []Team{0, 2}, nil},
		{"drafted", 2, []Team{-2}, nil},
		{"clicked", 2, []Team{0, 1}, []int{2}},
		{"clicked", 2, []Team{0, 1}, []int{-1}},
	} {
		var e *millrace.Error
		if _, err := Count(c.teams, c.drafted, c.clicked); !errors.As(err, &e) || e.Field != c.field || e.WayOut == "" {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestTally(t *testing.T) {
	for _, c := range []struct {
		preferences []int
		want        Tally
		preference  int
		mean        float64 // twice Δ of Chapelle et al. 2012
	}{
		{nil, Tally{}, 0, 0},
		{[]int{1}, Tally{Wins: 1}, 1, 1},
		{[]int{-1, -1}, Tally{Losses: 2}, -1, -1},
		{[]int{1, -1, 0, 0}, Tally{1, 1, 2}, 0, 0},
		{[]int{1, 1, -1, 0}, Tally{2, 1, 1}, 1, 0.25}, // Δ = 2.5/4 - 1/2
		{[]int{-1, 0, 0, 0, 0}, Tally{0, 1, 4}, -1, -0.2},
	} {
		var got Tally
		for _, p := range c.preferences {
			got.Add(p)
		}
		if got != c.want || got.Preference() != c.preference || got.Mean() != c.mean {
			t.Errorf("%v: %+v, %d, %v", c.preferences, got, got.Preference(), got.Mean())
		}
		if n := len(c.preferences); n > 0 {
			if delta := (float64(got.Wins)+float64(got.Ties)/2)/float64(n) - 0.5; math.Abs(got.Mean()-2*delta) > 1e-15 {
				t.Errorf("%v: the mean is %v, Δ %v", c.preferences, got.Mean(), delta)
			}
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
		var viewer Tally
		wins := 0
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
			c := mustCount(t, teams, drafted, clicked)
			byCredit[0] += c[0]
			byCredit[1] += c[1]
			byCredit[2] += len(clicked) - c[0] - c[1]
			if c[0]-c[1] != difference {
				t.Fatalf("drafted %v, clicked %v: %v", drafted, clicked, c)
			}
			viewer.Add(c.Preference(0, 1))
			wins += sign(difference)
		}
		viewers.Add(viewer.Preference())
		wantViewers.Add(wins)
	}
	if byItem != byCredit || byItem[0] < wanted/10 || byItem[1] < wanted/10 {
		t.Errorf("clicks by team %v, credit %v", byItem, byCredit)
	}
	if viewers != wantViewers {
		t.Errorf("viewers %+v, want %+v", viewers, wantViewers)
	}
}
