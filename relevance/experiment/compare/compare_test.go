package compare

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/outcome"
	"github.com/millrace/millrace/internal/stats"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/relevance/interleave"
	"github.com/millrace/millrace/schemas"
)

func defined(t *testing.T, variants string) experiment.Defined {
	t.Helper()
	d, err := experiment.Parse("d", []byte(`
layers: [{name: l, salt: s, unit: viewer}]
experiments: [{name: e, layer: l, feeds: [f], state: running, slots: [0-9999], share: 10000, variants: `+variants+`}]
`))
	if err != nil {
		t.Fatal(err)
	}
	s, err := experiment.Admit([]experiment.Document{d}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s.Experiments()[0]
}

// believing returns a tally that takes a unit's variant as its answers say it: most
// tests are not of the hash.
func believing(d experiment.Defined) *Tally {
	t := New(d)
	t.deals = func(string, string, string) bool { return true }
	return t
}

const halves = "[{name: new, weight: 5000, set: {limit: 3}}, {name: old, weight: 5000}]"

// shown is an answer of a variant.
func shown(unit, variant string, items int, at millrace.Time) *exposure.Record {
	r := &exposure.Record{ID: "r", Time: at, Feed: "f", TimelinesAsked: 4, TimelinesAnswered: 4, Millis: 2, Experiments: []exposure.Experiment{
		{Layer: "x", Experiment: "another", Variant: "new", Unit: unit}, {Layer: "l", Experiment: "e", Variant: variant, Unit: unit},
	}}
	for i := range items {
		r.Items = append(r.Items, exposure.Item{Place: i + 1, Entity: fmt.Sprint(i / 2)})
	}
	return r
}

// Each unit counts once, by its first answer, and all that is no chance apart.
func TestUnitsCountOnce(t *testing.T) {
	tally := believing(defined(t, halves))
	tally.CountSince(900)
	add := func(unit, variant string, items int, change func(*exposure.Record)) {
		r := shown(unit, variant, items, 1000)
		if change != nil {
			change(r)
		}
		tally.Add(r)
	}
	add("a", "new", 4, nil)
	add("a", "new", 0, nil) // not its first
	add("b", "new", 0, nil)
	add("c", "new", 0, func(r *exposure.Record) { r.Refusal, r.Time = "UNAVAILABLE", 899 })
	add("d", "old", 3, func(r *exposure.Record) { r.TimelinesAnswered = 3 })
	add("e", "old", 1, func(r *exposure.Record) { r.Items[0].Score = math.NaN(); r.Time = 3000 })
	add("e", "new", 1, nil) // of two variants
	add("e", "new", 1, nil) // told once
	add("f", "old", 0, func(r *exposure.Record) { r.Experiments[1].Forced = true })
	add("g", "gone", 1, nil)
	add("h", "new", 1, func(r *exposure.Record) { r.Experiments = r.Experiments[:1] }) // of another experiment
	got, err := tally.Report(0.05)
	if err != nil {
		t.Fatal(err)
	}
	want := []Arm{
		{Variant: "new", Weight: 0.5, Units: 3, Fresh: 2, Answers: 6, Refused: 1, Empty: 1, Items: 2, Share: 0.5},
		{Variant: "old", Weight: 0.5, Units: 2, Fresh: 2, Answers: 2, Forced: 1, Partial: 1, NaN: 1, Items: 2, Share: 5. / 6},
	}
	for i := range want {
		want[i].Latest = map[string]millrace.Time{"new": 1000, "old": 3000}[want[i].Variant]
		want[i].Did, want[i].Millis, want[i].Share = []int64{}, got.Arms[i].Millis, math.Round(want[i].Share*1e9)/1e9
		got.Arms[i].Share = math.Round(got.Arms[i].Share*1e9) / 1e9
	}
	if !reflect.DeepEqual(got.Arms, want) {
		t.Errorf("%+v\nwant\n%+v", got.Arms, want)
	}
	if got.Control != "old" || got.Crossed != 1 || got.Unknown != 1 || got.Beyond != 0 || got.First != 899 || got.Last != 3000 {
		t.Errorf("%+v", got)
	}
	if m := got.Arms[0].Millis[2]; math.Abs(m-2) > 0.05 {
		t.Errorf("%v ms", m)
	}
	if len(got.Effects) != effects {
		t.Errorf("%d effects", len(got.Effects))
	}
}

// Scores without end count as NaN does, as a record of an answer has them: a variant
// all of whose items have one is ranked by time alone.
func TestInfiniteScoresAreGuarded(t *testing.T) {
	for _, score := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		d := defined(t, halves)
		d.Experiment.Guards = &experiment.Guards{NaN: 1, Alpha: 0.05}
		tally := believing(d)
		for i := range 400 {
			r := shown(fmt.Sprint(i), []string{"new", "old"}[i%2], 2, millrace.Time(1000+i))
			r.Models, r.Experiments = []exposure.Model{{Name: "m"}}, r.Experiments[1:]
			r.Experiments[0].Probability, r.Experiments[0].ProbabilityInside = 0.5, 0.5
			for k := range r.Items {
				if r.Items[k].Team = -1; i%2 == 0 {
					r.Items[k].Score = score
				}
			}
			body, err := r.Append(nil)
			if err != nil {
				t.Fatal(err)
			}
			if r, err = exposure.Decode(schemas.Exposure().Fingerprint(), body); err != nil {
				t.Fatal(err)
			}
			tally.Add(r)
		}
		got, err := tally.Report(0.05)
		if err != nil {
			t.Fatal(err)
		}
		if got.Arms[0].NaN != 200 || got.Arms[1].NaN != 0 {
			t.Errorf("%v: %d of new's, %d of old's", score, got.Arms[0].NaN, got.Arms[1].NaN)
		}
		if v := Judge(&d.Experiment, &got, 0); !v.Pause || !strings.Contains(v.Why, "nan of new") {
			t.Errorf("%v: %+v", score, v)
		}
	}
}

// An answer counts only for who can have been dealt its variant, whatever they did:
// whoever may write to the topic can say anything.
func TestUnitsAreDealtByTheHash(t *testing.T) {
	d := defined(t, halves)
	d.Experiment.Outcomes = &experiment.Outcomes{Topic: "clicks", Actions: []string{"click"}}
	tally := New(d)
	right := 0
	for i := range 1000 {
		r := shown(fmt.Sprint("h-", i), "new", 0, millrace.Time(1000+i))
		tally.Add(r)
		tally.Did(&outcome.Act{Action: "click", Experiments: r.Experiments})
		if variant, _ := d.Rule.Assign(d.Rule.Feeds[0], fmt.Sprint("h-", i)); variant == "new" {
			right++
		}
	}
	got, err := tally.Report(0.05)
	if err != nil {
		t.Fatal(err)
	}
	if n := int64(right); right < 400 || right > 600 || got.Misdealt != 1000-n || got.Arms[0].Units != n || got.Arms[0].Answers != n || got.Arms[0].Did[0] != n || got.Last > 1999 {
		t.Errorf("%d are new's: %+v", right, got)
	}
	forced := shown("h-forced", "new", 1, 1000)
	forced.Experiments[1].Forced = true
	tally.Add(forced)
	if got, err = tally.Report(0.05); err != nil || got.Arms[0].Forced != 1 || got.Misdealt != int64(1000-right) {
		t.Errorf("%v: %+v", err, got)
	}
	if says := fmt.Sprint(Inputs(&d.Experiment, &got)); !strings.Contains(says, fmt.Sprintf("%d answers are of viewers whom the hash deals another variant", 1000-right)) {
		t.Error(says)
	}
}

// Whatever the order in which brokers' backlogs come, units count as if their
// answers came by time, and later pages count for none: as after an outage of
// the log, or where the broker is lost that had the first page.
func TestUnitsCountByTime(t *testing.T) {
	var all []*exposure.Record
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 300 {
		unit, variant := fmt.Sprint(i), []string{"new", "old"}[i%2]
		add := func(at millrace.Time, items, before int, refusal string) {
			x := shown(unit, variant, items, at)
			x.Refusal, x.ServedBefore, x.Millis, x.ScoringNanos = refusal, before, r.ExpFloat64(), int64(r.IntN(5000))
			all = append(all, x)
		}
		at := millrace.Time(1000 + 10*i)
		add(at, 1+i%3, 0, "")
		add(at+2, 0, 3, "") // a capped feed has no more
		if i%5 == 0 {
			add(at+4000, 0, 0, "UNAVAILABLE")
			add(at-1, 2, 0, []string{"", "UNAVAILABLE"}[i%20/10])
		}
	}
	report := func() Report {
		tally := believing(defined(t, halves))
		tally.CountSince(2000)
		for _, x := range all {
			tally.Add(x)
		}
		got, err := tally.Report(0.05)
		if err != nil {
			t.Fatal(err)
		}
		for i := range got.Arms {
			a := &got.Arms[i]
			for _, x := range []*float64{&a.Items, &a.Share, &a.Cost} {
				*x = math.Round(*x*1e6) / 1e6
			}
		}
		got.Effects = nil // of the same numbers
		return got
	}
	slices.SortFunc(all, func(a, b *exposure.Record) int { return int(a.Time - b.Time) })
	want := report()
	if a := want.Arms[0]; a.Units != 150 || a.Empty != 0 || a.Refused == 0 || a.Fresh == 0 || a.Fresh == a.Units {
		t.Fatalf("%+v", a)
	}
	for range 5 {
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		if got := report(); !reflect.DeepEqual(got, want) {
			t.Errorf("%+v\nby time\n%+v", got, want)
		}
	}
	all = slices.DeleteFunc(all, func(x *exposure.Record) bool { return x.ServedBefore == 0 })
	if got := report(); got.Arms[0].Units != 0 || got.Arms[0].Answers != 150 {
		t.Errorf("%+v", got.Arms[0])
	}
}

// Which versions have ranked a variant is told, and by how many answers of all pages;
// one that several of a model have is told to have changed, to coordinators too.
func TestVersionsThatRanked(t *testing.T) {
	tally := believing(defined(t, halves))
	add := func(unit, variant string, at millrace.Time, models ...string) {
		r := shown(unit, variant, 1, at)
		for _, m := range models {
			name, version, _ := strings.Cut(m, " ")
			r.Models = append(r.Models, exposure.Model{Name: name, Version: version})
		}
		tally.Add(r)
	}
	add("a", "old", 1000, "chef 1")
	add("a", "old", 2000, "chef 1")
	add("b", "old", 3000, "chef 12", "pop 3")
	add("c", "new", 1000, "chef 1", "chef 1") // by other weights for other entities
	add("d", "new", 4000, "pop 3")
	add("e", "new", 5000)
	r, err := tally.Report(0.05)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := r.Arms[0].Ranked, []Ranked{{"chef", "1", 1, 1000, 1000}, {"pop", "3", 1, 4000, 4000}}; !reflect.DeepEqual(got, want) || r.Arms[0].Changed() != nil {
		t.Errorf("new: %v, %v", got, r.Arms[0].Changed())
	}
	if got, want := r.Arms[1].Ranked, []Ranked{{"chef", "1", 2, 1000, 2000}, {"chef", "12", 1, 3000, 3000}, {"pop", "3", 1, 3000, 3000}}; !reflect.DeepEqual(got, want) {
		t.Errorf("old: %v", got)
	}
	const says = "old has been ranked by chef 1 (2 answers since 1970-01-01T00:00:01.000Z) and chef 12 (1 answers since 1970-01-01T00:00:03.000Z)"
	if got := r.Arms[1].Changed(); !reflect.DeepEqual(got, []string{says}) || !slices.Contains(Inputs(&experiment.Experiment{}, &r), says) {
		t.Errorf("%q", got)
	}
}

func TestControl(t *testing.T) {
	for variants, want := range map[string]string{
		halves: "old",
		"[{name: a, weight: 5000, set: {limit: 3}}, {name: control, weight: 5000, set: {limit: 4}}]": "control",
		"[{name: a, weight: 5000, set: {limit: 3}}, {name: b, weight: 5000, set: {limit: 4}}]":       "a",
		"[{name: a, weight: 5000}, {name: control, weight: 5000}]":                                   "control",
		"[{name: a, weight: 10000}]": "a",
		"[{name: a, weight: 5000, set: {limit: 3}}, {name: b, weight: 5000}, {name: control, weight: 0}]": "b",
		"[{name: a, weight: 10000, set: {limit: 3}}, {name: control, weight: 0}]":                         "control",
	} {
		r, err := believing(defined(t, variants)).Report(0.05)
		if err != nil || r.Control != want {
			t.Errorf("%s: %q, %v", variants, r.Control, err)
		}
	}
}

// Of tallies without a difference few ever say that there is one, looked at
// after every hundred units; of those whose empty answers are twice as many
// nearly all do.
func TestTalliesAtRandom(t *testing.T) {
	runs := 100
	if testing.Short() {
		runs = 20
	}
	r := rand.New(rand.NewPCG(5, 6))
	for _, c := range []struct {
		rate  float64 // of empty answers of the new variant; the old has 2 %
		least int     // runs, of all, that find it
		most  int
	}{{0.02, 0, runs / 10}, {0.05, runs * 9 / 10, runs}} {
		found := 0
		for range runs {
			tally, says := believing(defined(t, halves)), false
			for unit := range 10_000 {
				variant, rate := "old", 0.02
				if r.IntN(2) == 0 {
					variant, rate = "new", c.rate
				}
				items := 2 + r.IntN(5)
				if r.Float64() < rate {
					items = 0
				}
				tally.Add(shown(fmt.Sprint(unit), variant, items, 1))
				if unit%100 != 99 || says {
					continue
				}
				report, err := tally.Report(0.05)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range report.Effects {
					none := 0.
					if e.What.Rate() {
						none = 1
					}
					says = says || !e.Contains(none) && (e.What == Empty || c.rate == 0.02)
				}
			}
			if says {
				found++
			}
		}
		if found < c.least || found > c.most {
			t.Errorf("with %v empty %d of %d find a difference", c.rate, found, runs)
		}
	}
}

const drafting = "[{name: both, weight: 5000, set: {interleave: [home, next]}}, {name: old, weight: 5000}], outcomes: {topic: t, actions: [hide, click]}"

// act is something that a unit did, with an item of its only answer, that a team
// drafted.
func act(unit, variant, action, team string) *outcome.Act {
	a := &outcome.Act{Item: outcome.Place{Answer: "of " + unit, Place: 1 + len(team)}, Action: action, Experiments: []exposure.Experiment{{Experiment: "another", Variant: "old", Unit: unit}, {Experiment: "e", Variant: variant, Unit: unit}}}
	if variant == "both" {
		a.Drafted, a.Teams = "e", []string{"home", "next"}
		a.Team = slices.Index(a.Teams, team)
	}
	return a
}

// A unit counts once for each action, also of those whose acts credit no team; who
// was forced, who is of no variant, and what is of another experiment, do not.
func TestUnitsActOnce(t *testing.T) {
	tally := believing(defined(t, drafting))
	tally.CreditDrafts()
	forced, stranger, other, redefined := act("z", "both", "click", "home"), act("z", "both", "click", "home"), act("c", "both", "click", "home"), act("c", "both", "click", "home")
	forced.Experiments[1].Forced = true
	stranger.Experiments = stranger.Experiments[:1]
	other.Drafted = "another"
	redefined.Teams = []string{"home", "before"}
	for range 2 {
		for _, a := range []*outcome.Act{
			act("a", "both", "click", ""), // nobody's item
			act("b", "both", "click", "next"),
			act("b", "both", "hide", "home"),
			other, redefined,
			act("d", "old", "click", ""),
			act("d", "gone", "hide", ""),
			act("d", "old", "read", ""), // is not compared
			forced, stranger,
		} {
			tally.Did(a)
		}
	}
	for i, r := range []*exposure.Record{shown("a", "both", 1, 1), shown("a", "both", 1, 1), shown("a", "both", 1, 1), shown("d", "old", 1, 1), shown("b", "both", 0, 1), shown("c", "both", 1, 1)} {
		switch i {
		case 0:
			r.Interleaving = &exposure.Interleaving{Experiment: "e"}
		case 4:
			r.Refusal = "UNAVAILABLE"
		}
		tally.Add(r)
	}
	got, err := tally.Report(0.05)
	if err != nil {
		t.Fatal(err)
	}
	if both, old := got.Arms[0].Did, got.Arms[1].Did; !reflect.DeepEqual(both, []int64{1, 3}) || !reflect.DeepEqual(old, []int64{0, 1}) {
		t.Errorf("%d of both, %d of old", both, old)
	}
	want := []Draft{
		{Variant: "both", Action: "hide", Teams: []string{"home", "next"}, Impressions: interleave.Tally{Losses: 1}, Units: interleave.Tally{Losses: 1}, First: [2]int64{1, 0}},
		{Variant: "both", Action: "click", Teams: []string{"home", "next"}, Impressions: interleave.Tally{Wins: 1, Ties: 1}, Units: interleave.Tally{Wins: 1, Ties: 1}, First: [2]int64{0, 1}},
	}
	for i := range got.Drafts {
		got.Drafts[i].Effect = stats.Effect{}
	}
	if !reflect.DeepEqual(got.Drafts, want) || got.OtherTeams != 2 || got.BeyondActs != 0 {
		t.Errorf("%+v, %d of other teams, want %+v", got.Drafts, got.OtherTeams, want)
	}
	if len(got.Effects) != effects+2 || got.Arms[0].Undrafted != 3 || got.Arms[1].Undrafted != 0 {
		t.Errorf("%d effects, %+v", len(got.Effects), got.Arms)
	}
}

// Who did something counts if a first page of theirs does, whichever comes first: where
// the evidence begins while they are on later pages, nothing would stand beside them.
func TestActsCountOfWhomAPageCounts(t *testing.T) {
	d := defined(t, halves)
	d.Experiment.Outcomes = &experiment.Outcomes{Actions: []string{"click"}}
	tally := believing(d)
	later := shown("later", "new", 1, 1)
	later.ServedBefore = 20
	outside := shown("outside", "new", 1, 1)
	outside.FeedVersion = 9
	tally.On(Basis{Feeds: map[string][]int64{"f": {0}}})
	did := func(units ...string) {
		for _, unit := range units {
			tally.Did(act(unit, "new", "click", ""))
		}
	}
	did("before", "later", "outside", "crossed")
	for _, r := range []*exposure.Record{later, outside, shown("before", "new", 1, 1), shown("behind", "new", 1, 1), shown("idle", "new", 1, 1), shown("crossed", "old", 1, 1), shown("crossed", "new", 1, 1)} {
		tally.Add(r)
	}
	did("behind", "before", "later")
	got, err := tally.Report(0.05)
	if err != nil {
		t.Fatal(err)
	}
	if a := got.Arms[0]; a.Units != 3 || a.Did[0] != 2 || got.Arms[1].Did[0] != 0 {
		t.Errorf("%d of %d did it, and %d", a.Did[0], a.Units, got.Arms[1].Did[0])
	}
	tally.On(Basis{})
	tally.Add(shown("outside", "new", 1, 1)) // another answer, which is evidence
	tally.Add(shown("later", "new", 1, 1))
	if got, err = tally.Report(0.05); err != nil || got.Arms[0].Units != 5 || got.Arms[0].Did[0] != 4 {
		t.Errorf("%v, %+v", err, got.Arms[0])
	}
}

// Of rankings that are liked equally few are ever said to differ, looked at
// after every hundred viewers; of those of which one has three clicks of five
// nearly all are.
func TestDraftsAtRandom(t *testing.T) {
	runs := 100
	if testing.Short() {
		runs = 20
	}
	r := rand.New(rand.NewPCG(7, 8))
	for _, c := range []struct {
		next        float64
		least, most int
	}{{0.5, 0, runs / 10}, {0.6, runs * 9 / 10, runs}} {
		found := 0
		for range runs {
			tally, says := believing(defined(t, drafting)), false
			tally.CreditDrafts()
			for unit := range 2_000 {
				team := "home"
				if r.Float64() < c.next {
					team = "next"
				}
				tally.Did(act(fmt.Sprint(unit), "both", "click", team))
				if unit%100 != 99 || says {
					continue
				}
				report, err := tally.Report(0.05)
				if err != nil {
					t.Fatal(err)
				}
				says = !report.Drafts[1].Contains(1)
			}
			if says {
				found++
			}
		}
		if found < c.least || found > c.most {
			t.Errorf("with %v of the clicks %d of %d find a difference", c.next, found, runs)
		}
	}
}

// A unit takes as much as any other, however long its name is, and none beyond the room
// is taken: callers choose names, and how many.
func TestUnitsTakeLittle(t *testing.T) {
	const units = 100_000
	tally := believing(defined(t, halves))
	tally.Within(func() bool { return tally.Units() < units })
	name := func(i int) string { return fmt.Sprintf("%0450d", i) }
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for i := range units + 5 {
		tally.Add(shown(name(i), "new", 1, 1000))
	}
	tally.Add(shown(name(0), "new", 1, 999)) // which is known
	if took := (heap() - before) / units; took > 250 {
		t.Errorf("a unit takes %d bytes", took)
	}
	got, err := tally.Report(0.05)
	if err != nil || tally.Units() != units || got.Beyond != 5 || got.Arms[0].Units != units {
		t.Errorf("%d units, %d beyond, %+v, %v", tally.Units(), got.Beyond, got.Arms, err)
	}
}

// Of what does not vary it is said that it does not, as of pages that a limit fills; and
// not by a few, or where one unit differs.
func TestWhatIsTheSameForAll(t *testing.T) {
	for name, c := range map[string]struct {
		units, odd int
		same       bool
	}{"full pages": {150, 0, true}, "one that is not": {150, 1, false}, "a few": {20, 0, false}} {
		tally := believing(defined(t, halves))
		for i := range c.units {
			tally.Add(shown(fmt.Sprint("a", i), "new", 3, 1000))
			tally.Add(shown(fmt.Sprint("b", i), "old", 8-min(c.odd, i), 1000))
		}
		r, err := tally.Report(0.05)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range r.Effects {
			if e.What == Items && (e.Same != c.same || c.same && (e.Value != -5 || !e.Unknown())) {
				t.Errorf("%s: %+v", name, e)
			}
		}
	}
}
