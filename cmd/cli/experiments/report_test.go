package experiments

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/stats"
	"github.com/millrace/millrace/relevance/experiment/compare"
	"github.com/millrace/millrace/relevance/interleave"
)

// Of several variants each has its table below its own heading.
func TestStatusOfThreeVariants(t *testing.T) {
	r := compare.Report{First: 1, Units: "viewers", Control: "control", Effects: []compare.Effect{{Variant: "one", What: compare.Empty}, {Variant: "one", What: compare.Items}, {Variant: "two", What: compare.Empty}}}
	var out bytes.Buffer
	if err := printReport(&out, &r, 0.05, ""); err != nil {
		t.Fatal(err)
	}
	at := -1
	for _, want := range []string{"one beside control:\n", string(compare.Empty), string(compare.Items), "two beside control:\n", string(compare.Empty)} {
		next := strings.Index(out.String()[at+1:], want)
		if next < 0 {
			t.Fatalf("%q does not follow in\n%s", want, &out)
		}
		at += 1 + next
	}
}

// A report in which nothing is known yet is JSON, too, and says what the text says.
func TestReportAsJSON(t *testing.T) {
	none := compare.Effect{Variant: "b", What: compare.Items, Effect: stats.Effect{Value: math.NaN(), Interval: stats.Interval{Low: math.Inf(-1), High: math.Inf(1)}, P: 1}}
	same := none
	same.What, same.Same, same.Value = compare.Millis, true, 5
	less := compare.Effect{Variant: "b", What: compare.Refused, Effect: stats.Effect{Value: 0.5, Interval: stats.Interval{Low: 0.25, High: 0.75}, P: 0.001}}
	r := compare.Report{
		Control: "a", Units: "viewers", First: 1, Last: 2, Actions: []string{"click"}, Effects: []compare.Effect{none, less, same},
		Arms: []compare.Arm{{Variant: "a", Weight: 0.5, Items: math.NaN(), Millis: [3]float64{math.NaN(), 2, 3}, Did: []int64{7}}},
		Drafts: []compare.Draft{
			{Variant: "b", Action: "click", Teams: []string{"home", "next"}, Impressions: interleave.Tally{Wins: 5, Losses: 2, Ties: 3}, Units: interleave.Tally{Wins: 2, Ties: 2}, First: [2]int64{1, 3}, Effect: stats.Effect{Value: 3, Interval: stats.Interval{Low: 0.5, High: math.Inf(1)}, P: 0.5}},
			{Variant: "b", Action: "hide", Teams: []string{"home", "next"}, Effect: stats.Effect{Value: math.NaN(), Interval: stats.Interval{Low: 0, High: math.Inf(1)}, P: 1}},
		},
		BeyondActs: 4, OtherTeams: 6,
	}
	var text, out bytes.Buffer
	if err := errors.Join(printReport(&text, &r, 0.05, ""), display.WriteJSON(&out, reportOf(&r, 0.05))); err != nil {
		t.Fatal(err)
	}
	for said, field := range map[string]string{
		"too little is known":  `"what":"items","says":"unknown","times":false,"value":null,"low":null,"high":null,"p":1`,
		"+5, for every viewer": `"what":"milliseconds","says":"unknown","times":false,"value":5,"low":null,"high":null,"p":1,"same_for_all":true`,
		"LESS: 0.5 times":      `"what":"refused","says":"less","times":true,"value":0.5,"low":0.25,"high":0.75`,
		"DID CLICK":            `"did":{"click":7},"items":null,"millis":[null,2,3]`,
		"answers from 1970":    `"first_answer":"1970-01-01T00:00:00.001Z"`,
		"\nb, drafted by home and next; next wins by more of its items:\nACTION  BY          WINS  LOSSES  TIES  Δ\nclick   impression  5     2       3     +0.15\nclick   viewer      2     0       2     +0.25\nclick   first item  3     1             no difference seen: 0.5 to any number times\n": `{"variant":"b","action":"click","teams":["home","next"],"impressions":{"wins":5,"losses":2,"ties":3,"delta":0.15},"viewers":{"wins":2,"losses":0,"ties":2,"delta":0.25},"first_item":{"wins":3,"losses":1},"says":"no difference","times":true,"value":3,"low":0.5,"high":null,"p":0.5}`,
		"\nhide    impression  0     0       0     -\nhide    viewer      0     0       0     -\nhide    first item  0     0             too little is known\n":                                                                                                                                          `"impressions":{"wins":0,"losses":0,"ties":0,"delta":null}`,
		"\n4 acts are of viewers, or with items of drafts, beyond those that are told apart\n":                                                                                                                                                                                                           `"acts_beyond_those_told_apart":4`,
		"\n6 acts are with drafts of other models than the definition's, and credit nobody\n":                                                                                                                                                                                                            `"acts_with_other_drafts":6`,
	} {
		if !strings.Contains(text.String(), said) || !strings.Contains(out.String(), field) {
			t.Errorf("not %q, or not %q:\n%s\n%s", said, field, &text, &out)
		}
	}
	clitest.JSON(t, "experiment status", out.String())
}

// What a layer of an attribute counts is told as values of it, and a weight as it was
// written.
func TestStatusNamesTheUnit(t *testing.T) {
	r := compare.Report{
		First: 1, Units: "values of household", Control: "a", Crossed: 1, Split: &stats.Split{P: 0.5},
		Arms: []compare.Arm{{Variant: "a", Weight: 0.3334, Units: 736}, {Variant: "b", Weight: 0.6666}},
	}
	var out bytes.Buffer
	if err := printReport(&out, &r, 0.05, ""); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"VARIANT  WEIGHT  VALUES OF HOUSEHOLD  ANSWERS", "\na        33.34%  736 ", "values of household fit the weights", "1 values of household met two variants"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, &out)
		}
	}
	if strings.Contains(strings.ToLower(out.String()), "viewers") {
		t.Errorf("of viewers:\n%s", &out)
	}
	if shown := reportOf(&r, 0.05); shown.Units != r.Units || shown.Arms[0].Weight != 33.34 {
		t.Errorf("%+v", shown)
	}
}

// What was written by a clock that is ahead is told as that.
func TestAges(t *testing.T) {
	now := time.Now()
	for before, want := range map[time.Duration]string{3 * time.Second: "3s old", 0: "0s old", -4 * time.Minute: "4m0s ahead of this clock"} {
		if got := ageOf(now.Add(-before), now); got != want {
			t.Errorf("%s: %s", before, got)
		}
	}
}

// A time in which nothing was shown does not say that nothing ever was; and where no
// answer counts it is told why.
func TestReportsOfNothing(t *testing.T) {
	for want, c := range map[string]struct {
		r     compare.Report
		since string
	}{
		"nothing was shown yet: brokers write what they show if their configuration has exposures\n":                                      {},
		"nothing was shown since 2026-03-01T10:30:00.000Z; without --since all that the topic has is compared\n":                          {since: "2026-03-01T10:30:00.000Z"},
		"no answer counts\n7 answers are of variants that the definition does not have\n":                                                 {r: compare.Report{Unknown: 7}},
		"no answer counts\n3 answers are of a time in which variants were dealt by other chances, as while monitored, and do not count\n": {r: compare.Report{Otherwise: 3}},
	} {
		var out bytes.Buffer
		if err := printReport(&out, &c.r, 0.05, c.since); err != nil || out.String() != want {
			t.Errorf("%v: %q, want %q", err, out.String(), want)
		}
	}
	var out bytes.Buffer
	r := compare.Report{First: 1, Units: "viewers", Control: "t", Arms: []compare.Arm{{Variant: "control"}, {Variant: "t", Weight: 1}}}
	err := printReport(&out, &r, 0.05, "")
	if shown := reportOf(&r, 0.05); err != nil || !strings.Contains(out.String(), "all viewers are dealt one variant") || strings.Contains(out.String(), "NOT FIT") || !shown.Fits || shown.SplitP != nil {
		t.Errorf("%v, %+v\n%s", err, shown, out.String())
	}
}

// What only the coordinator before has read is told as that.
func TestOutcomesOfBefore(t *testing.T) {
	now := time.Now()
	for before, want := range map[bool]string{false: "\n    outcomes: all of clicks were read 6s ago; ", true: "\n    outcomes, as they were known before: all of clicks were read 6s ago; "} {
		var out bytes.Buffer
		printEvidence(&out, &experiments.Look{Whole: now, Outcomes: &experiments.OutcomesLook{Topic: "clicks", Whole: now.Add(-6 * time.Second), Before: before}}, now)
		if !strings.Contains(out.String(), want) {
			t.Errorf("%v: %s", before, &out)
		}
	}
}
