package compare

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/outcome"
	"github.com/millrace/millrace/relevance/experiment"
)

// ramps is how many a test simulates: go test ./relevance/experiment/compare -ramps 1000
var ramps = flag.Int("ramps", 200, "simulated ramps")

// guarded is an experiment with every guard.
func guarded(t *testing.T) experiment.Defined {
	d := defined(t, halves)
	d.Experiment.Share = 100
	d.Experiment.Ramp = &experiment.Ramp{Steps: []int{100, 1000, 10_000}, Least: time.Hour, Viewers: 100}
	d.Experiment.Guards = &experiment.Guards{Refused: 1, Empty: 1, Partial: 1, NaN: 1, Millis: 1}
	return d
}

func verdict(t *testing.T, d *experiment.Defined, tally *Tally, at time.Duration) Verdict {
	t.Helper()
	r, err := tally.Report(d.Experiment.Guards.Chance())
	if err != nil {
		t.Fatal(err)
	}
	return Judge(&d.Experiment, &r, at)
}

// Viewers who are missing since experiments name them do not speak against the hash;
// more than these do.
func TestWhoIsNamedIsNotMissed(t *testing.T) {
	d := guarded(t)
	tally := believing(d)
	for i := range 600 {
		tally.Add(shown(fmt.Sprint(i), []string{"new", "old", "old"}[i%3], 3, 1))
	}
	if v := verdict(t, &d, tally, 0); !v.Pause || !strings.Contains(v.Why, "do not fit the weights") {
		t.Errorf("nobody is named: %+v", v)
	}
	ids := make([]string, 200)
	for i := range ids {
		ids[i] = fmt.Sprint("named:", i)
	}
	tally.Leaves([]experiment.Named{{Variant: "new", By: "thief", Units: ids}, {Variant: "old", By: "thief", Units: ids[:100]}})
	r, err := tally.Report(0.05)
	if err != nil {
		t.Fatal(err)
	}
	if v := verdict(t, &d, tally, 0); v.Pause || !slices.Contains(Inputs(&d.Experiment, &r), `experiment thief names 200 units ("named:0", "named:1", "named:2" and 197 more) whom the hash deals new`) {
		t.Errorf("200 are named: %+v, %q", v, Inputs(&d.Experiment, &r))
	}
	tally.Leaves([]experiment.Named{{Variant: "new", By: "thief", Units: ids[:20]}, {Variant: "old", By: "thief", Units: ids}})
	if v := verdict(t, &d, tally, 0); !v.Pause {
		t.Errorf("20 are named: %+v", v)
	}
}

// A ramp goes on when both the time and the viewers are there, and ends at its
// last step.
func TestRampGoesOn(t *testing.T) {
	d := guarded(t)
	tally := believing(d)
	add := func(n int) {
		for i := range n {
			tally.Add(shown(fmt.Sprint(tally.arms[0].Units, i), []string{"new", "old"}[i%2], 3, 1))
		}
	}
	add(150)
	if v := verdict(t, &d, tally, 2*time.Hour); v.Acts() || !strings.Contains(v.Waits, "100 viewers of each variant are to see something at 1%, and 75 of new have") {
		t.Errorf("75 of each: %+v", v)
	}
	add(250)
	if v := verdict(t, &d, tally, time.Minute); v.Acts() || !strings.Contains(v.Waits, "stay at 1% for 1h0m0s, and has for 1m0s") {
		t.Errorf("after a minute: %+v", v)
	}
	if v := verdict(t, &d, tally, 2*time.Hour); v.Share != 1000 || v.Pause || !strings.Contains(v.Why, "of new") {
		t.Errorf("%+v", v)
	}
	d.Experiment.Share = 10_000
	if v := verdict(t, &d, tally, 2*time.Hour); v.Acts() || !strings.Contains(v.Waits, "last step") {
		t.Errorf("at the end: %+v", v)
	}
	d.Experiment.Guards = nil
	if v := Judge(&d.Experiment, &Report{}, time.Hour); v.Acts() || v.Waits == "" {
		t.Errorf("without guards: %+v", v)
	}
}

// Each guard pauses for what it guards, soon where all is broken, and not for
// what is not guarded.
func TestGuards(t *testing.T) {
	for what, c := range map[What]struct {
		breaks func(*exposure.Record)
		off    func(*experiment.Guards)
	}{
		Refused: {func(r *exposure.Record) { r.Refusal = "UNAVAILABLE" }, func(g *experiment.Guards) { g.Refused = 0 }},
		Empty:   {func(r *exposure.Record) { r.Items = nil }, func(g *experiment.Guards) { g.Empty = 0 }},
		Partial: {func(r *exposure.Record) { r.TimelinesAnswered = 0 }, func(g *experiment.Guards) { g.Partial = 0 }},
		Millis:  {func(r *exposure.Record) { r.Millis *= 50 }, func(g *experiment.Guards) { g.Millis = 0 }},
	} {
		d := guarded(t)
		tally := believing(d)
		r := rand.New(rand.NewPCG(7, 8))
		at := 0
		for ; at < 1000; at++ {
			x := shown(fmt.Sprint(at), []string{"new", "old"}[at%2], 3, 1)
			x.Millis = 1 + r.Float64()
			if at%2 == 0 {
				c.breaks(x)
			}
			tally.Add(x)
			if v := verdict(t, &d, tally, time.Hour); v.Pause {
				if !strings.HasPrefix(v.Why, string(what)+" of new: ") {
					t.Errorf("%s: %+v", what, v)
				}
				break
			}
		}
		if at > 300 {
			t.Errorf("%s: after %d viewers", what, at)
		}
		c.off(d.Experiment.Guards)
		if v := verdict(t, &d, tally, time.Hour); v.Pause {
			t.Errorf("%s is not guarded: %+v", what, v)
		}
	}
	// Viewers who are there three times as often as they should be.
	d := guarded(t)
	tally := believing(d)
	for i := range 400 {
		tally.Add(shown(fmt.Sprint(i), []string{"new", "old", "new", "new"}[i%4], 3, 1))
	}
	if v := verdict(t, &d, tally, time.Hour); !v.Pause || !strings.Contains(v.Why, "fit the weights") {
		t.Errorf("%+v", v)
	}
}

// Guards of what answers cost, of their slowest, and of what they are made of
// pause for that, and not for what comes of chance; what they were judged by is
// told with them.
func TestGuardsOfAnswers(t *testing.T) {
	all := experiment.Guards{P99: 5, Cost: 1.5, ShareOfEntity: 0.1, ShareOfType: 0.1, FeaturesMissing: 0.1}
	for what, breaks := range map[What]func(r *rand.Rand, x *exposure.Record){
		"": func(*rand.Rand, *exposure.Record) {},
		P99: func(r *rand.Rand, x *exposure.Record) {
			if r.IntN(20) == 0 {
				x.Millis += 30
			}
		},
		Cost: func(_ *rand.Rand, x *exposure.Record) { x.ScoringNanos *= 50 },
		Share: func(_ *rand.Rand, x *exposure.Record) {
			for i := range x.Items {
				x.Items[i].Entity = "one"
			}
		},
		TypeShare: func(_ *rand.Rand, x *exposure.Record) {
			for i := range x.Items {
				x.Items[i].Type = "post"
			}
		},
		Missing: func(_ *rand.Rand, x *exposure.Record) {
			for i := range x.Items {
				x.Items[i].Features[0] = exposure.Missing()
			}
		},
	} {
		d := guarded(t)
		d.Experiment.Guards = &all
		tally := believing(d)
		r := rand.New(rand.NewPCG(13, 14))
		var paused Verdict
		for unit := range 6000 {
			x := shown(fmt.Sprint(unit), []string{"old", "new"}[r.IntN(2)], 4, 1)
			x.Millis, x.ScoringNanos = r.ExpFloat64(), int64(1000*r.ExpFloat64())
			for i := range x.Items {
				x.Items[i].Entity, x.Items[i].Type = fmt.Sprint(r.IntN(5)), fmt.Sprint(r.IntN(3))
				x.Items[i].Features = []exposure.Value{exposure.Number(1), exposure.Number(2), exposure.Text([]string{"", "x"}[min(1, r.IntN(10))])}
			}
			if x.Experiments[1].Variant == "new" {
				breaks(r, x)
			}
			tally.Add(x)
			if unit%100 != 99 {
				continue
			}
			if paused = verdict(t, &d, tally, 0); paused.Pause {
				break
			}
		}
		if paused.Pause != (what != "") || what != "" && !strings.HasPrefix(paused.Why, string(what)+" of new: ") {
			t.Errorf("%q: %+v", what, paused)
		}
		report, err := tally.Report(0.05)
		if err != nil {
			t.Fatal(err)
		}
		inputs := strings.Join(Inputs(&d.Experiment, &report), "\n")
		if strings.Contains(inputs, "Inf") || strings.Contains(inputs, "NaN") {
			t.Errorf("what is not known is told as if it were:\n%s", inputs)
		}
		for _, want := range []string{"new: ", " viewers, ", "p99 milliseconds of new: ", "; guard 5", "cost of new: ", "times as much", "; guard 1.5"} {
			if !strings.Contains(inputs, want) {
				t.Errorf("no %q in\n%s", want, inputs)
			}
		}
	}
}

// Few ramps of variants that are the same are paused, though they are looked at
// after every hundred viewers, and the others come to their last step; nearly all
// are paused whose empty answers double from one in a hundred, before there are
// 10,000 of each variant.
func TestRampsAtRandom(t *testing.T) {
	runs := *ramps
	if testing.Short() {
		runs = min(runs, 40)
	}
	r := rand.New(rand.NewPCG(9, 10))
	for _, c := range []struct {
		rate        float64
		least, most int
	}{{0.01, 0, runs / 20}, {0.02, runs * 95 / 100, runs}} {
		paused := 0
		for range runs {
			d := guarded(t)
			tally := believing(d)
			at := paused
			for unit := range 20_000 {
				variant, rate := "old", 0.01
				if r.IntN(2) == 0 {
					variant, rate = "new", c.rate
				}
				items := 1 + r.IntN(3)
				if r.Float64() < rate {
					items = 0
				}
				x := shown(fmt.Sprint(unit), variant, items, millrace.Time(unit))
				x.Millis = r.ExpFloat64()
				tally.Add(x)
				if unit%100 != 99 {
					continue
				}
				v := verdict(t, &d, tally, time.Hour)
				if v.Pause {
					paused++
					break
				}
				if v.Share > 0 {
					d.Experiment.Share = v.Share
					tally.CountSince(millrace.Time(unit + 1))
				}
			}
			if paused == at && d.Experiment.Share != 10_000 {
				t.Errorf("a ramp that nothing pauses is at %d", d.Experiment.Share)
			}
		}
		if paused < c.least || paused > c.most {
			t.Errorf("with %v empty %d of %d are paused", c.rate, paused, runs)
		}
	}
}

// Guards of outcomes pause when fewer viewers than the control's do one thing, or
// more do another, and for nothing else.
func TestGuardsOfOutcomes(t *testing.T) {
	clicks := strings.Replace(drafting, "set: {interleave: [home, next]}", "set: {limit: 3}", 1)
	for _, c := range []struct {
		action      string
		both, old   float64 // chance that a viewer does it
		guards      experiment.Guards
		least, most int // of 20 are paused
	}{
		{"click", 0.1, 0.3, experiment.Guards{Fewer: map[string]float64{"click": 0.9}}, 19, 20},
		{"click", 0.3, 0.3, experiment.Guards{Fewer: map[string]float64{"click": 0.9}}, 0, 1},
		{"click", 0.1, 0.3, experiment.Guards{More: map[string]float64{"click": 1.1}}, 0, 0},
		{"click", 0.1, 0.3, experiment.Guards{Fewer: map[string]float64{"hide": 0.9}}, 0, 0},
		{"hide", 0.3, 0.1, experiment.Guards{Fewer: map[string]float64{"click": 0.9}, More: map[string]float64{"hide": 1.1}}, 19, 20},
	} {
		r := rand.New(rand.NewPCG(11, 12))
		paused := 0
		for range 20 {
			d := defined(t, clicks)
			d.Experiment.Guards = &c.guards
			tally := believing(d)
			for unit := range 4_000 {
				variant, chance := "old", c.old
				if r.IntN(2) == 0 {
					variant, chance = "both", c.both
				}
				tally.Add(shown(fmt.Sprint(unit), variant, 3, 1))
				if r.Float64() < chance {
					tally.Did(act(fmt.Sprint(unit), variant, c.action, ""))
				}
				if unit%100 != 99 {
					continue
				}
				if v := verdict(t, &d, tally, 0); v.Pause {
					if !strings.HasPrefix(v.Why, "did "+c.action+" of both: ") {
						t.Errorf("%+v", v)
					}
					paused++
					break
				}
			}
		}
		if paused < c.least || paused > c.most {
			t.Errorf("%s by %v and %v: %d of 20 are paused", c.action, c.both, c.old, paused)
		}
	}
}

// What is judged is told by what the layer divides.
func TestUnitsAreNamed(t *testing.T) {
	for unit, want := range map[string]string{"viewer": "viewers", "attribute household": "values of household"} {
		d := defined(t, halves)
		d.Rule.Unit = unit
		r, err := New(d).Report(0.05)
		if err != nil {
			t.Fatal(err)
		}
		e := experiment.Experiment{Guards: &experiment.Guards{}, Ramp: &experiment.Ramp{Steps: []int{10_000}, Viewers: 9}}
		if says := Judge(&e, &r, 0).Waits; r.Units != want || !strings.Contains(says, "9 "+want+" of each variant") || !strings.Contains(Inputs(&e, &r)[0], "0 "+want+",") {
			t.Errorf("%s: %q, %q", unit, says, Inputs(&e, &r))
		}
	}
}

// What a variant is ranked by may not be what serves by etcd, as after etcd went back
// to before a version that brokers have: then its answers are no evidence, and those of
// the control are. Nobody was dealt otherwise by that, and no rate is compared.
func TestAVariantWithoutEvidenceIsNotPaused(t *testing.T) {
	for _, late := range []string{"new", "old"} {
		d := guarded(t)
		tally := believing(d)
		tally.On(Basis{Models: map[string]string{"rate": "1"}})
		add := func(from, to int, version string) {
			for i := from; i < to; i++ {
				x := shown(fmt.Sprint(i), []string{"new", "old"}[i%2], 3, millrace.Time(i))
				if x.Experiments[1].Variant == late {
					x.Broker = "cut-off"
					x.Models = []exposure.Model{{Name: "rate", Version: version}}
				}
				if i%10 < 2 {
					x.Items = nil // of both
				}
				tally.Add(x)
			}
		}
		add(0, 400, "4")
		r, err := tally.Report(0.05)
		if err != nil {
			t.Fatal(err)
		}
		if v := verdict(t, &d, tally, time.Hour); v.Acts() || r.Split.P < 0.5 || !strings.Contains(r.Lopsided(), "answers of "+late+" ") || !strings.Contains(r.Lopsided(), `viewers come again: 200 by broker "cut-off", the last at `) {
			t.Errorf("%s: %+v, %v, %q", late, v, r.Split, r.Lopsided())
		}
		add(0, 400, "1") // the same viewers, by what serves
		if r, err = tally.Report(0.05); err != nil || r.Lopsided() != "" || r.Arms[0].Units != 200 || r.Arms[1].Units != 200 {
			t.Errorf("%s: %q, %+v, %v", late, r.Lopsided(), r.Arms, err)
		}
	}
}

// Where chance deals one variant alone there are no weights that viewers could not fit,
// however many of them there are, also of a time in which the other one was dealt too.
// No guard has anything to compare with, and so no step is taken.
func TestOneDealtVariantIsNeitherPausedNorRamped(t *testing.T) {
	const control, other = "[{name: control, weight: 0}, {name: t, weight: 10000, set: {limit: 3}}]", "[{name: control, weight: 10000}, {name: t, weight: 0, set: {limit: 3}}]"
	for variants, dealt := range map[string]string{"[{name: all, weight: 10000, set: {limit: 3}}]": "all", control: "t", other: "control"} {
		d := defined(t, variants)
		d.Experiment.Share = 100
		d.Experiment.Ramp = &experiment.Ramp{Steps: []int{100, 1000}, Viewers: 10}
		d.Experiment.Guards = &experiment.Guards{Empty: 1}
		tally := believing(d)
		look := func(when string) {
			t.Helper()
			r, err := tally.Report(0.05)
			if err != nil {
				t.Fatal(err)
			}
			if v := Judge(&d.Experiment, &r, time.Hour); v.Acts() || !strings.Contains(v.Waits, "its guards compare with nothing: "+dealt+" alone has viewers") || r.Split != nil || !r.Fits(0.99) || r.Lopsided() != "" {
				t.Errorf("%s, %s: %+v, %+v, %q", variants, when, v, r.Split, r.Lopsided())
			}
		}
		look("before any viewer")
		for i := range 300 {
			tally.Add(shown(fmt.Sprint(i), dealt, 0, 1))
		}
		look("after 300")
		for i := range 200 {
			tally.Add(shown(fmt.Sprint("then:", i), d.Rule.Arms[i%len(d.Rule.Arms)].Variant, 3, 1))
		}
		look("with those of before")
	}
}

// A variant that chance does not deal is waited for by no ramp; each of the others is,
// also where the ramp names no number.
func TestRampsWaitForWhatIsDealt(t *testing.T) {
	d := defined(t, "[{name: a, weight: 0, set: {limit: 4}}, {name: new, weight: 5000, set: {limit: 3}}, {name: old, weight: 5000}]")
	d.Experiment.Share = 100
	d.Experiment.Ramp = &experiment.Ramp{Steps: []int{100, 1000}, Least: time.Second}
	d.Experiment.Guards = &experiment.Guards{Empty: 1}
	tally := believing(d)
	tally.Add(shown("1", "new", 3, 1))
	if v := verdict(t, &d, tally, time.Hour); v.Acts() || !strings.Contains(v.Waits, "1 viewers of each variant are to see something at 1%, and 0 of old have") {
		t.Errorf("old has none: %+v", v)
	}
	tally.Add(shown("2", "old", 3, 1))
	if v := verdict(t, &d, tally, time.Hour); v.Share != 1000 || !strings.HasSuffix(v.Why, " and 1 of new, 1 of old") {
		t.Errorf("both have: %+v", v)
	}
}

// What was dealt while an experiment was monitored is not held against the weights that
// it has after, nor compared with what was dealt by these.
func TestWhatWasDealtByOtherChancesIsApart(t *testing.T) {
	d := defined(t, "[{name: new, weight: 8000, set: {limit: 3}}, {name: old, weight: 2000}]")
	d.Experiment.Guards = &experiment.Guards{Empty: 1}
	d.Experiment.Outcomes = &experiment.Outcomes{Topic: "clicks", Actions: []string{"click"}}
	tally := believing(d)
	tally.On(Basis{})
	add := func(unit, variant string, chance float64) {
		r := shown(unit, variant, 0, 1)
		r.Experiments[1].ProbabilityInside = chance
		tally.Add(r)
		tally.Did(&outcome.Act{Action: "click", Experiments: r.Experiments})
	}
	for i := range 400 {
		add(fmt.Sprint("then:", i), []string{"new", "old"}[i%2], 0.5)
	}
	for i := range 100 {
		add(fmt.Sprint(i), []string{"new", "new", "old", "new", "new"}[i%5], []float64{0.8, 0.8, 0.2, 0.8, 0.8}[i%5])
	}
	r, err := tally.Report(0.05)
	if err != nil {
		t.Fatal(err)
	}
	if v := Judge(&d.Experiment, &r, 0); v.Pause || r.Split == nil || !r.Fits(0.5) || r.Otherwise != 400 || r.Arms[0].Units != 80 || r.Arms[1].Units != 20 || r.Arms[0].Did[0] != 80 {
		t.Errorf("%+v, %+v, %d apart, %+v", v, r.Split, r.Otherwise, r.Arms)
	}
}

// A time that no answer takes, as of a broken clock, neither decides a guard nor blinds it
// to what all others took, and is told.
func TestImplausibleTimesDecideNothing(t *testing.T) {
	for name, breaks := range map[string]func(x *exposure.Record){
		"most":      func(x *exposure.Record) { x.ScoringNanos = math.MaxInt64 },
		"an hour":   func(x *exposure.Record) { x.ScoringNanos = int64(time.Hour) },
		"negative":  func(x *exposure.Record) { x.ScoringNanos = -1 },
		"no answer": func(x *exposure.Record) { x.Millis = math.MaxFloat64 },
	} {
		for _, worse := range []int64{1, 50} {
			d := guarded(t)
			d.Experiment.Guards = &experiment.Guards{Cost: 1.5, Millis: 5}
			tally := believing(d)
			r := rand.New(rand.NewPCG(15, 16))
			for unit := range 4000 {
				x := shown(fmt.Sprint(unit), []string{"old", "new"}[r.IntN(2)], 4, 1)
				x.Millis, x.ScoringNanos = 1+r.ExpFloat64(), int64(1000*r.ExpFloat64())
				if x.Experiments[1].Variant == "new" {
					x.ScoringNanos *= worse
				}
				if unit < 5 {
					breaks(x)
				}
				tally.Add(x)
			}
			if v := verdict(t, &d, tally, 0); v.Pause != (worse > 1) || v.Pause && !strings.HasPrefix(v.Why, "cost of new: ") {
				t.Errorf("%s, %d times the cost: %+v", name, worse, v)
			}
			report, err := tally.Report(0.05)
			if err != nil {
				t.Fatal(err)
			}
			if told := strings.Join(Inputs(&d.Experiment, &report), "\n"); !strings.Contains(told, "5 answers say that they took longer than any answer does") {
				t.Errorf("%s is not told:\n%s", name, told)
			}
		}
	}
}
