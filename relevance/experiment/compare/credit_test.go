package compare

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/outcome"
	"github.com/millrace/millrace/internal/stats"
	"github.com/millrace/millrace/relevance/interleave"
	"github.com/millrace/millrace/schemas"
)

// Over a million clicks on the items of drafted pages, on the way that they have
// through the log, each is the team's that drafted the item; each page counts once,
// by the sign of its clicks, and each viewer once, by the sign of their pages', and
// for the team whose item they clicked on first.
func TestCreditOfAMillionClicks(t *testing.T) {
	wanted := 1_000_000
	if testing.Short() {
		wanted = 50_000
	}
	r := rand.New(rand.NewPCG(15, 16))
	teams := []string{"home", "next"}
	tally := believing(defined(t, drafting))
	tally.CreditDrafts()
	byTeam, want := map[string]int{}, map[string]int{} // clicks
	var first [2]int64
	var pages, viewers interleave.Tally
	unit, clicks := 0, 0
	for clicks < wanted {
		ledger, answers := outcome.NewLedger(time.Hour), []*exposure.Record(nil)
		for range 2000 {
			unit++
			viewer, at, before, ahead, clicking := fmt.Sprint("v", unit), millrace.Time(1), clicks, 0, false
			rankings, served := [2][]int{r.Perm(24), r.Perm(24)}, map[int]bool{}
			if r.IntN(2) == 0 { // that agree in half of their places
				copy(rankings[1], rankings[0])
				r.Shuffle(12, func(i, j int) { rankings[1][i], rankings[1][j] = rankings[1][j], rankings[1][i] })
			}
			cursor := interleave.Cursor{Seed: r.Uint64()}
			for page := range 1 + r.IntN(2) {
				var left [2][]int
				for i := range left {
					left[i] = slices.DeleteFunc(slices.Clone(rankings[i]), func(item int) bool { return served[item] })
				}
				x := &exposure.Record{ID: fmt.Sprint(viewer, ".", page), Time: at, Viewer: viewer, Feed: "f", Models: []exposure.Model{{Name: "home"}, {Name: "next"}}}
				x.Experiments = []exposure.Experiment{{Layer: "l", Experiment: "e", Variant: "both", Unit: viewer, Probability: 0.5, ProbabilityInside: 0.5}}
				x.Interleaving = &exposure.Interleaving{Experiment: "e", Seed: cursor.Seed, Turns: cursor.Turns, Teams: teams}
				picks, next, err := interleave.Draft(cursor, 10, left[0], left[1])
				if err != nil {
					t.Fatal(err)
				}
				cursor = next
				for i, p := range picks {
					item := left[p.Ranking][p.Place]
					served[item] = true
					x.Items = append(x.Items, exposure.Item{Place: i + 1, ID: fmt.Sprint("i", item), Team: int(p.Team)})
				}
				page := map[string]int{}
				for _, i := range r.Perm(len(x.Items))[:r.IntN(len(x.Items)+1)] {
					clicks++
					at++
					o := outcome.Outcome{ID: fmt.Sprint(viewer, ".", at), Viewer: viewer, Record: x.Items[i].ID, Action: "click", At: at}
					if r.IntN(2) == 0 {
						o.Answer = x.ID
					}
					if err := ledger.Add(o); err != nil {
						t.Fatal(err)
					}
					team := ""
					if drafted := x.Items[i].Team; drafted >= 0 {
						team = teams[drafted]
						if !clicking {
							clicking = true
							first[drafted]++
						}
					}
					want[team]++
					page[team]++
				}
				if len(page) > 0 {
					net := page["next"] - page["home"]
					pages.Add(net)
					ahead += min(1, max(-1, net))
				}
				at++
				answers = append(answers, x)
			}
			if clicks > before {
				viewers.Add(ahead)
			}
		}
		var acts []outcome.Act
		_, err := ledger.Acts("", func(take func(*exposure.Record)) error {
			for _, x := range answers {
				body, err := x.Append(nil)
				if err != nil {
					return err
				}
				read, err := exposure.Decode(schemas.Exposure().Fingerprint(), body)
				if err != nil {
					return err
				}
				take(read)
			}
			return nil
		}, func(a *outcome.Act) { acts = append(acts, *a) })
		if err != nil {
			t.Fatal(err)
		}
		for i := range acts {
			team := ""
			if acts[i].Team >= 0 {
				team = acts[i].Teams[acts[i].Team]
			}
			byTeam[team]++
		}
		for _, i := range r.Perm(2 * len(acts)) { // twice, in any order
			tally.Did(&acts[i/2])
		}
	}
	for _, team := range append(teams, "") {
		if byTeam[team] != want[team] || want[team] < wanted/10 {
			t.Errorf("%d clicks are of team %q, want %d", byTeam[team], team, want[team])
		}
	}
	report, err := tally.Report(0.05)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(report.Drafts, func(d Draft) bool { return d.Action == "click" })
	if d := report.Drafts[i]; d.Impressions != pages || d.Units != viewers || d.First != first || !slices.Equal(d.Teams, teams) || min(pages.Wins, pages.Losses, pages.Ties, viewers.Ties) < wanted/100 {
		t.Errorf("%+v, want %+v of pages, %+v of viewers, %v of first clicks", d, pages, viewers, first)
	}
}

// Random acts, in any order and some of them twice, give what a search of all of
// them gives, one impression and one viewer after the other.
func TestCreditEqualsASearch(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	actions, teams := []string{"hide", "click"}, []string{"home", "next"}
	var met Draft // what there was, over all
	for range 500 {
		var acts []outcome.Act
		for answer := range 1 + r.IntN(12) {
			unit, seed := fmt.Sprint("v", r.IntN(4)), r.Uint64()
			picks, _, err := interleave.Draft(interleave.Cursor{Seed: seed}, 6, r.Perm(8), r.Perm(8))
			if err != nil {
				t.Fatal(err)
			}
			of := exposure.Experiment{Experiment: "e", Variant: "both", Unit: unit, Forced: r.IntN(10) == 0}
			drafted, by := "e", teams
			switch r.IntN(10) {
			case 0:
				drafted = "another"
			case 1:
				by = []string{"home", "before"}
			}
			for range r.IntN(10) {
				place := r.IntN(len(picks))
				acts = append(acts, outcome.Act{
					Item: outcome.Place{Answer: fmt.Sprint("a", answer), Place: place + 1}, Action: actions[r.IntN(2)], At: millrace.Time(r.IntN(20)),
					Experiments: []exposure.Experiment{of}, Drafted: drafted, Teams: by, Team: int(picks[place].Team),
				})
			}
		}
		tally := believing(defined(t, drafting))
		tally.CreditDrafts()
		for _, i := range r.Perm(2 * len(acts)) {
			tally.Did(&acts[i/2])
		}
		report, err := tally.Report(0.05)
		if err != nil {
			t.Fatal(err)
		}
		for i, action := range actions {
			want := search(acts, action)
			got := report.Drafts[i]
			if got.Action != action || got.Impressions != want.Impressions || got.Units != want.Units || got.First != want.First {
				t.Fatalf("%s: %+v, want %+v, of %+v", action, got, want, acts)
			}
			met.Impressions.Wins += min(want.Impressions.Wins, want.Units.Losses, want.Units.Ties)
		}
	}
	if met.Impressions.Wins < 20 {
		t.Errorf("only %d viewers with what is to be seen", met.Impressions.Wins)
	}
}

// search finds what an action says of home and next, as the rule is told.
func search(acts []outcome.Act, action string) (d Draft) {
	counts := func(a *outcome.Act) bool {
		return a.Action == action && !a.Experiments[0].Forced && a.Drafted == "e" && a.Teams[1] == "next"
	}
	for v := range 4 {
		unit, ahead, has := fmt.Sprint("v", v), 0, false
		for answer := range 12 {
			net, any := 0, false
			for place := 1; place <= 6; place++ {
				is := func(a outcome.Act) bool {
					return counts(&a) && a.Experiments[0].Unit == unit && a.Item == outcome.Place{Answer: fmt.Sprint("a", answer), Place: place}
				}
				if i := slices.IndexFunc(acts, is); i >= 0 {
					any = true
					net += map[int]int{-1: 0, 0: -1, 1: 1}[acts[i].Team]
				}
			}
			if any {
				has = true
				d.Impressions.Add(net)
				ahead += min(1, max(-1, net))
			}
		}
		if has {
			d.Units.Add(ahead)
		}
		var first *outcome.Act
		for i := range acts {
			a := &acts[i]
			if !counts(a) || a.Experiments[0].Unit != unit || a.Team < 0 {
				continue
			}
			if first == nil || a.At < first.At || a.At == first.At && (a.Item.Place < first.Item.Place || a.Item.Place == first.Item.Place && a.Item.Answer < first.Item.Answer) {
				first = a
			}
		}
		if first != nil {
			d.First[first.Team]++
		}
	}
	return d
}

// What there is no room for is told, changes nothing, and is no harm to what has
// come again; whoever credits no drafts keeps nothing of them.
func TestCreditIsBounded(t *testing.T) {
	tally, guards := believing(defined(t, drafting)), believing(defined(t, drafting))
	tally.CreditDrafts()
	tally.most = 3
	for _, unit := range []string{"a", "b", "c"} {
		tally.Add(shown(unit, "both", 1, 1))
		guards.Add(shown(unit, "both", 1, 1))
	}
	for _, a := range []*outcome.Act{
		act("a", "both", "click", "next"), act("a", "both", "hide", "next"), act("b", "both", "click", "home"),
		act("c", "both", "click", "home"), // beyond
		act("a", "both", "click", ""),     // beyond, of an answer that is not
		act("a", "both", "click", "next"), act("b", "both", "click", "home"),
	} {
		tally.Did(a)
		guards.Did(a)
	}
	got, err := tally.Report(0.05)
	if err != nil {
		t.Fatal(err)
	}
	want := interleave.Tally{Wins: 1, Losses: 1}
	if d := got.Drafts[1]; d.Impressions != want || d.Units != want || d.First != [2]int64{1, 1} || got.BeyondActs != 2 || got.Arms[0].Did[1] != 3 {
		t.Errorf("%+v; %d acts are beyond, and %d did it", d, got.BeyondActs, got.Arms[0].Did[1])
	}
	if got, err = guards.Report(0.05); err != nil || len(got.Drafts) > 0 || got.BeyondActs > 0 || got.Arms[0].Did[1] != 3 {
		t.Errorf("%v, %+v", err, got)
	}
}

// Why the interval is of first items: viewers who come back again and again to two
// rankings that are liked equally change what they prefer. A sequence of what they
// prefer now, looked at after every ten pages, says far more often than its chance
// that there is a difference; one of their first items does not.
func TestPreferencesThatChangeAreNoSequence(t *testing.T) {
	const runs, viewers, chance = 400, 20, 0.05
	r := rand.New(rand.NewPCG(17, 18))
	s, err := stats.NewSequence(chance, horizon)
	if err != nil {
		t.Fatal(err)
	}
	known := map[[2]int64]bool{}
	says := func(counts [2]int64) bool {
		if _, ok := known[counts]; !ok {
			e, err := s.RateRatio(counts[0], counts[1], 0.5)
			if err != nil {
				t.Fatal(err)
			}
			known[counts] = e.P <= chance
		}
		return known[counts]
	}
	var byNow, byFirst int
	for range runs {
		var ahead [viewers]int
		var met [viewers]bool
		var first [2]int64
		saidNow, saidFirst := false, false
		for page := range 20_000 {
			v, won := r.IntN(viewers), r.IntN(2)
			ahead[v] += 2*won - 1
			if !met[v] {
				met[v] = true
				first[won]++
			}
			if page%10 > 0 {
				continue
			}
			var now [2]int64
			for _, n := range ahead {
				if n != 0 {
					now[min(1, max(0, n))]++
				}
			}
			saidNow, saidFirst = saidNow || says(now), saidFirst || says(first)
		}
		if saidNow {
			byNow++
		}
		if saidFirst {
			byFirst++
		}
	}
	t.Logf("%d of %d by what viewers prefer now, %d by their first item", byNow, runs, byFirst)
	if byFirst > runs*chance || byNow <= runs*chance {
		t.Errorf("%d of %d by what viewers prefer now, %d by their first item", byNow, runs, byFirst)
	}
}
