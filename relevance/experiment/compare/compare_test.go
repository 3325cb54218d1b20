package compare

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/relevance/experiment"
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
	s, err := experiment.Compile([]experiment.Document{d}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s.Experiments()[0]
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
	tally := New(defined(t, halves))
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
		want[i].Millis, want[i].Share = got.Arms[i].Millis, math.Round(want[i].Share*1e9)/1e9
		got.Arms[i].Share = math.Round(got.Arms[i].Share*1e9) / 1e9
	}
	if !slices.Equal(got.Arms, want) {
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

func TestControl(t *testing.T) {
	for variants, want := range map[string]string{
		halves: "old",
		"[{name: a, weight: 5000, set: {limit: 3}}, {name: control, weight: 5000, set: {limit: 4}}]": "control",
		"[{name: a, weight: 5000, set: {limit: 3}}, {name: b, weight: 5000, set: {limit: 4}}]":       "a",
		"[{name: a, weight: 5000}, {name: control, weight: 5000}]":                                   "control",
		"[{name: a, weight: 10000}]": "a",
	} {
		r, err := New(defined(t, variants)).Report(0.05)
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
			tally, says := New(defined(t, halves)), false
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
