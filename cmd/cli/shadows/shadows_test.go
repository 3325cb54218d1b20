package shadows

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/relevance/shadow"
)

// Names of records are the producers': none makes a line of the report.
func TestShadowsHoldWhatOthersWrote(t *testing.T) {
	const evil = "member:\x1b[2Jevil\n99  fake"
	var b strings.Builder
	r := shadow.Report{Answers: 1, Authors: []shadow.Author{{Entity: evil, Missed: 3}}, Types: []shadow.Type{{Type: evil}}, Lacking: []shadow.Feature{{Feature: evil}}}
	if err := writeShadows(&b, []shadow.Report{r}, 0); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(b.String(), "\x1b") || strings.Contains(b.String(), "\n99") || strings.Count(b.String(), `member:\u001b[2Jevil\u000a99  fake  `) != 3 || !strings.Contains(b.String(), "%  but for 3 items at most\n") {
		t.Errorf("%s", b.String())
	}
}

// The first line says in how many answers a shadow failed, and of one that never
// ranked there is nothing else.
func TestShadowsThatFail(t *testing.T) {
	for answers, want := range map[int64]string{
		0: "next 7 as a shadow of plain, in 0 answers of feed home; it FAILED in 3 more: explain of such a request says why\n",
		9: "next 7 as a shadow of plain, in 9 answers of feed home; it FAILED in 3 more: explain of such a request says why\n  overlap at 10",
	} {
		var b strings.Builder
		r := shadow.Report{Pair: shadow.Pair{Feed: "home", Model: "plain", Shadow: "next", Version: "7"}, Answers: answers, Failed: 3}
		if err := writeShadows(&b, []shadow.Report{r}, 0); err != nil || !strings.HasPrefix(b.String(), want) || (answers == 0) != (b.String() == want) {
			t.Errorf("%v, %q", err, b.String())
		}
	}
}

// A status has a row for each shadow, and says where the rest of it is.
func TestShadowsInARow(t *testing.T) {
	tau := 0.25
	report := func(feed, model string) shadow.Report {
		return shadow.Report{Pair: shadow.Pair{Feed: feed, Model: "plain", Shadow: model, Version: "7"}, Answers: 12, Failed: 2, Overlap10: 0.5, Overlap: 0.75, RBO: 0.625, Tau: &tau, AuthorShift: 0.125, ServedCost: shadow.Cost{Nanos: 40}, ShadowCost: shadow.Cost{Nanos: 80}}
	}
	var b strings.Builder
	if err := Summarize(&b, []shadow.Report{report("home", "next"), report("home", "other"), report("town", "next")}, 3); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(b.String(), "\n")
	if len(lines) != 8 || strings.Join(strings.Fields(lines[1]), " ") != "next 7 plain home 12 2 0.5 0.75 0.625 0.25 12.5% 80 (served 40)" {
		t.Fatalf("%s", &b)
	}
	if want := "3 rankings are of pairs beyond those that are told apart\nscores, types, authors and features of its shadows: millrace feed shadows home\nscores, types, authors and features of its shadows: millrace feed shadows town\n"; strings.Join(lines[4:], "\n") != want {
		t.Errorf("%q", lines[4:])
	}
}
