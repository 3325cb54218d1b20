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
	"github.com/millrace/millrace/relevance/interleave"
	"github.com/millrace/millrace/schemas"
)

// Over a million clicks on the items of drafted pages, on the way that they have
// through the log, each is the team's that drafted the item, and each viewer counts
// for the team whose item they clicked on first.
func TestCreditOfAMillionClicks(t *testing.T) {
	wanted := 1_000_000
	if testing.Short() {
		wanted = 50_000
	}
	r := rand.New(rand.NewPCG(15, 16))
	teams := []string{"home", "next"}
	tally := New(defined(t, drafting))
	byTeam, want := map[string]int{}, map[string]int{} // clicks
	var viewers [2]int64
	unit, clicks := 0, 0
	for clicks < wanted {
		ledger, answers := outcome.NewLedger(time.Hour), []*exposure.Record(nil)
		for range 2000 {
			unit++
			viewer, at, first := fmt.Sprint("v", unit), millrace.Time(1), ""
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
						if first == "" {
							first = team
							viewers[drafted]++
						}
					}
					want[team]++
				}
				at++
				answers = append(answers, x)
			}
		}
		acts, err := ledger.Acts(func(take func(*exposure.Record)) error {
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
		})
		if err != nil {
			t.Fatal(err)
		}
		for i := range acts {
			byTeam[acts[i].Team]++
			tally.Did(&acts[i])
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
	if d := report.Drafts[i]; d.Units != viewers || !slices.Equal(d.Teams, teams) || viewers[0] < int64(wanted/100) {
		t.Errorf("%v of viewers are of %v, want %v", d.Units, d.Teams, viewers)
	}
}
