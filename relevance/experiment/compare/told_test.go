package compare

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/outcome"
	"github.com/millrace/millrace/internal/stats"
	"github.com/millrace/millrace/relevance/experiment"
)

// What a ramp waits for is shown when the variant that is shown least was shown.
func TestShownAndStandsFor(t *testing.T) {
	for least, want := range map[time.Duration]time.Duration{
		0: 10 * time.Second, 100 * time.Second: 10 * time.Second, 101 * time.Second: 10100 * time.Millisecond, time.Hour: 6 * time.Minute, 100 * time.Minute: 10 * time.Minute, 101 * time.Minute: 10 * time.Minute,
	} {
		if got := StandsFor(least); got != want {
			t.Errorf("a step of %s: %s, want %s", least, got, want)
		}
	}
	r := Report{Arms: []Arm{{Variant: "a", Weight: 0, Latest: 1}, {Variant: "b", Weight: 0.5, Latest: 9}, {Variant: "c", Weight: 0.3, Latest: 5}, {Variant: "d", Weight: 0.2, Latest: 5}}}
	if variant, at := r.Shown(); variant != "c" || at != 5 {
		t.Errorf("%s at %d", variant, at)
	}
	if variant, at := (&Report{}).Shown(); variant != "" || at != 0 {
		t.Errorf("nothing: %q at %d", variant, at)
	}
}

// What is judged by is told in words, with the unit of each effect.
func TestEffectsInWords(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	e := &experiment.Experiment{Guards: &experiment.Guards{Refused: 1.5, Empty: 1.25, Millis: 20, Cost: 2, ShareOfEntity: 0.1, More: map[string]float64{"hide": 3}, Fewer: map[string]float64{"click": 0.5}}}
	effect := func(what What, value, low, high float64) Effect {
		return Effect{Variant: "v", What: what, Effect: stats.Effect{Value: value, Interval: stats.Interval{Low: low, High: high}}}
	}
	r := Report{
		Units: "viewers", Misdealt: 3, Implausible: 2, Arms: []Arm{{Variant: "v", Units: 9, Fresh: 4, Refused: 1, Empty: 2, Partial: 3, NaN: 5, Millis: [3]float64{1, 2, 3.14159}}},
		Effects: []Effect{effect(Refused, 1.25, 0.5, 2), effect(Empty, inf, 1.1, inf), effect(Partial, 2, 1, 3), effect(Millis, 7, -3, 12.5), effect(Cost, 1.5, 0, inf), effect(Share, nan, nan, nan), effect(Did("click"), 0.7, 0.25, 0.9), effect(Did("hide"), 2, 1, 4)},
	}
	want := []string{
		"v: 9 viewers, 4 at this share; refused 1, empty 2, partial 3, nan 5; p99 3.14 ms",
		"3 answers " + Misdealt, "2 answers " + Implausible,
		"refused of v: 1.25 times as many (0.5 to 2); guard 1.5",
		"empty of v: any number times as many (at least 1.1); guard 1.25",
		"milliseconds of v: 7 more (-3 to 12.5); guard 20",
		"cost of v: too little is known; guard 2",
		"share of one entity of v: too little is known; guard 0.1",
		"did click of v: 0.7 times as many (0.25 to 0.9); guard 0.5",
		"did hide of v: 2 times as many (1 to 4); guard 3",
	}
	if got := Inputs(e, &r); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := Inputs(&experiment.Experiment{}, &r); !slices.Equal(got, want[:3]) {
		t.Errorf("without guards: %q", got)
	}
	r.Misdealt, r.Implausible = 0, 0
	if got := Inputs(&experiment.Experiment{}, &r); len(got) != 1 {
		t.Errorf("without either: %q", got)
	}
	for what, want := range map[What]string{Refused: "times as many", NaN: "times as many", Cost: "times as much", Did("x"): "times as many", Items: "more", P99: "more", Missing: "more", TypeShare: "more"} {
		if what.unit() != want || what.Rate() != strings.HasPrefix(want, "times") {
			t.Errorf("%s: %s, a rate: %v", what, what.unit(), what.Rate())
		}
	}
	for _, c := range []struct {
		e       Effect
		unknown bool
	}{
		{effect(Refused, nan, 0, inf), true}, {effect(Refused, 1, 0, inf), true}, {effect(Refused, 1, 0.5, inf), false}, {effect(Refused, 1, 0, 2), false},
		{effect(Millis, 1, math.Inf(-1), 2), true}, {effect(Millis, 1, -1, 2), false},
	} {
		if c.e.Unknown() != c.unknown {
			t.Errorf("%+v is unknown: %v", c.e, !c.unknown)
		}
	}
}

// Without room for a unit it is counted as beyond, whatever it brings.
func TestWithoutRoomUnitsAreBeyond(t *testing.T) {
	d := defined(t, halves)
	d.Experiment.Outcomes = &experiment.Outcomes{Topic: "t", Actions: []string{"click", "hide"}}
	tally := believing(d)
	room := true
	tally.Within(func() bool { return room })
	tally.Add(shown("a", "new", 3, 10))
	room = false
	tally.Add(shown("a", "new", 3, 5)) // which is known
	tally.Add(shown("b", "new", 3, 10))
	tally.On(Basis{Feeds: map[string][]int64{"f": {7}}})
	tally.Add(shown("c", "new", 3, 10)) // no evidence
	act := &outcome.Act{Action: "click", Shown: 12, At: 13, Experiments: []exposure.Experiment{{Experiment: "e", Variant: "new", Unit: "a"}}}
	tally.Did(act)
	r, err := tally.Report(0.05)
	if err != nil {
		t.Fatal(err)
	}
	if r.Beyond != 2 || r.BeyondActs != 1 || r.Arms[0].Units != 1 || tally.Units() != 1 || r.Arms[0].Did[0] != 0 {
		t.Errorf("%d beyond, %d acts, %d units, %d kept", r.Beyond, r.BeyondActs, r.Arms[0].Units, tally.Units())
	}
	if !slices.Equal(r.Actions, []string{"click", "hide"}) || !slices.Equal(r.Acted, []millrace.Time{12, 0}) {
		t.Errorf("the actions are %q, the newest answers %v", r.Actions, r.Acted)
	}
	room = true
	tally.Did(act)
	if again, err := tally.Report(0.05); err != nil || again.Arms[0].Did[0] != 1 || tally.Units() != 2 || r.Arms[0].Did[0] != 0 {
		t.Errorf("with room %d did it, %d are kept: %v", again.Arms[0].Did[0], tally.Units(), err)
	}
}

// A step begins once at a time: the same time again forgets nobody.
func TestCountSinceTheSameTime(t *testing.T) {
	tally := believing(defined(t, halves))
	tally.CountSince(5)
	for i := range 4 {
		tally.Add(shown(fmt.Sprint(i), "new", 3, millrace.Time(3+i)))
	}
	if tally.arms[0].Fresh != 2 {
		t.Errorf("%d since 5", tally.arms[0].Fresh)
	}
	tally.CountSince(5)
	if tally.arms[0].Fresh != 2 {
		t.Errorf("%d since 5 again", tally.arms[0].Fresh)
	}
	tally.Add(shown("4", "new", 3, 9))
	if tally.CountSince(6); tally.arms[0].Fresh != 0 {
		t.Errorf("%d since 6", tally.arms[0].Fresh)
	}
}

// Named units are added only as far as the counts fit the shares better.
func TestNamedUnitsMakeUpForOthers(t *testing.T) {
	for _, c := range []struct{ counts, named, want []int64 }{
		{[]int64{10, 10}, []int64{5, 5}, []int64{10, 10}},
		{[]int64{10, 4}, []int64{0, 3}, []int64{10, 7}},
		{[]int64{10, 4}, []int64{9, 9}, []int64{10, 10}},
		{[]int64{4, 10}, []int64{2, 0}, []int64{6, 10}},
		{[]int64{0, 0}, []int64{5, 0}, []int64{0, 0}},
	} {
		if got := withNamed(c.counts, c.named, []float64{5000, 5000}); !slices.Equal(got, c.want) {
			t.Errorf("%v and %v named: %v, want %v", c.counts, c.named, got, c.want)
		}
	}
	if got := withNamed([]int64{10, 10, 1}, []int64{0, 100, 100}, []float64{2500, 5000, 2500}); !slices.Equal(got, []int64{10, 20, 10}) {
		t.Errorf("by their shares: %v", got)
	}
}

// Which brokers are late is said with their last answer, as long as that is new.
func TestOutdatedSaysTheLast(t *testing.T) {
	placed := time.UnixMilli(1_000_000)
	o := NewOutdated(experiment.Defined{Checksum: "new", Experiment: experiment.Experiment{Name: "e", State: experiment.Running}}, placed)
	for at, checksum := range map[millrace.Time]string{1_014_999: "old", 1_015_000: "old", 1_020_000: "old", 1_018_000: "old", 1_030_000: "new", 1_040_000: ""} {
		o.Add(&exposure.Record{Time: at, Broker: "b", Experiments: []exposure.Experiment{{Experiment: "e", Checksum: checksum}}})
	}
	if says := o.Says(1_020_000); !strings.Contains(says, `3 by broker "b", the last at `+millrace.Time(1_020_000).String()) {
		t.Errorf("%q", says)
	}
	if says := o.Says(1_020_001); says != "" {
		t.Errorf("since later: %q", says)
	}
}
