package shadow

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
)

func item(id, entity, typ string, score float64, shadow ...float64) exposure.Item {
	return exposure.Item{ID: id, Entity: entity, Type: typ, Score: score, Team: -1, Shadows: shadow}
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

// Two answers, by hand.
func TestReport(t *testing.T) {
	next := []exposure.Model{{Name: "next", Version: "2"}}
	var tally Tally
	tally.Add(&exposure.Record{
		Feed: "home", Models: []exposure.Model{{Name: "now", Version: "1"}}, Shadows: next,
		Items:  []exposure.Item{item("1", "a", "post", 4, 5), item("2", "a", "post", 3, 2), item("3", "b", "like", 2, 2), item("4", "b", "like", 1, 4)},
		Looked: 4, Lacking: []exposure.Lacked{{Feature: "age", Items: 0}, {Feature: "text", Items: 2}},
		ShadowRankings: []exposure.ShadowRanking{{
			Overlap10: 0.5, Overlap: 0.75, RBO: 0.6, Tau: 0.2, ServedNanos: 1000, ServedScored: 100, Nanos: 300, Scored: 10, Looked: 4,
			Lacking: []exposure.Lacked{{Feature: "age", Items: 0}, {Feature: "taste", Items: 4}},
			Items:   []exposure.ShadowItem{{ID: "1", Entity: "a", Type: "post", Score: 5}, {ID: "4", Entity: "b", Type: "like", Score: 4}, {ID: "9", Entity: "c", Type: "like", Score: 3}, {ID: "8", Entity: "c", Type: "like", Score: math.NaN()}},
		}},
	})
	tally.Add(&exposure.Record{
		Feed: "home", Models: []exposure.Model{{Name: "now", Version: "1"}}, Shadows: next,
		Items:          []exposure.Item{item("5", "a", "post", 2)},
		ShadowRankings: []exposure.ShadowRanking{{Overlap10: 1, Overlap: 1, RBO: 1, Tau: math.NaN(), ServedScored: 100, ServedNanos: 1000, Scored: 10, Nanos: 500, Items: []exposure.ShadowItem{{ID: "5", Entity: "a", Type: "post", Score: 1}}}},
	})
	tally.Add(&exposure.Record{Feed: "home", Models: []exposure.Model{{Name: "now"}}, Items: []exposure.Item{item("1", "a", "post", 1)}}) // which no shadow ranked
	all := tally.Reports()
	if len(all) != 1 {
		t.Fatalf("%d pairs", len(all))
	}
	r := all[0]
	if r.Pair != (Pair{"home", "now", "next", "2"}) || r.Answers != 2 || !near(r.Overlap10, 0.75) || !near(r.Overlap, 0.875) || !near(r.RBO, 0.8) || r.Tau == nil || !near(*r.Tau, 0.2) {
		t.Errorf("%+v", r)
	}
	if !near(r.ServedCost.Nanos, 10) || !near(r.ShadowCost.Nanos, 40) || r.ShadowCost.Candidates != 20 {
		t.Errorf("cost %v and %v", r.ServedCost, r.ShadowCost)
	}
	// Of the first answer a has 1/2 and then 1/4, b 1/2 and 1/4, c none and 1/2.
	if !near(r.AuthorShift, 0.25) {
		t.Errorf("author shift %v", r.AuthorShift)
	}
	if a := r.Authors[0]; a.Entity != "c" || !near(a.Served, 0) || !near(a.Shadow, 0.4) || a.Missed != 0 {
		t.Errorf("authors %+v", r.Authors)
	}
	if len(r.Types) != 2 || r.Types[0].Type != "like" || !near(r.Types[0].Served, 0.4) || !near(r.Types[0].Shadow, 0.6) {
		t.Errorf("types %+v", r.Types)
	}
	median := r.Scores[2]
	if median.Quantile != 0.5 || math.Abs(*median.Served-2) > 0.03 || math.Abs(*median.Shadow-3) > 0.04 || math.Abs(*median.Shift-0) > 0.02 {
		t.Errorf("median %v, %v, %v", *median.Served, *median.Shadow, *median.Shift)
	}
	for _, s := range r.Scores {
		for _, x := range []*float64{s.Served, s.Shadow, s.Shift} {
			if text := fmt.Sprintf("%.4g", *x); fmt.Sprint(*x) != text && fmt.Sprintf("%g", *x) != text {
				t.Errorf("a score is told as %v, and only %s is known", *x, text)
			}
		}
	}
	want := []string{"taste - 1", "text 0.5 -", "age 0 0"}
	if len(r.Lacking) != len(want) {
		t.Fatalf("%d features are lacking", len(r.Lacking))
	}
	for i, f := range r.Lacking {
		text := func(x *float64) string {
			if x == nil {
				return "-"
			}
			return fmt.Sprint(*x)
		}
		if got := f.Feature + " " + text(f.Served) + " " + text(f.Shadow); got != want[i] {
			t.Errorf("missing %q, want %q", got, want[i])
		}
	}
	if _, err := json.Marshal(all); err != nil {
		t.Error(err)
	}
}

// What is not known is told as nothing, and pairs stand in their order.
func TestReportsOfLittle(t *testing.T) {
	var tally Tally
	model := func(name, version string) exposure.Model { return exposure.Model{Name: name, Version: version} }
	add := func(feed, by string, shadow exposure.Model, ranked bool) {
		r := &exposure.Record{Feed: feed, Models: []exposure.Model{model(by, "1")}, Shadows: []exposure.Model{shadow}}
		if ranked {
			r.ShadowRankings = []exposure.ShadowRanking{{Tau: math.NaN(), Items: []exposure.ShadowItem{{Entity: "a", Score: 1}}}}
		}
		tally.Add(r)
	}
	for _, c := range [][3]string{{"b", "m", "1"}, {"a", "n", "1"}, {"a", "m", "2"}, {"a", "m", "1"}} {
		add(c[0], c[1], model("s", c[2]), true)
		add(c[0], c[1], model("s", c[2]), false)
		add(c[0], c[1], model("s", c[2]), false)
	}
	add("a", "m", model("r", "1"), false)
	tally.Add(&exposure.Record{Feed: "a", Shadows: []exposure.Model{model("s", "1")}, ShadowRankings: make([]exposure.ShadowRanking, 1)}) // of no model
	var order []string
	for _, r := range tally.Reports() {
		order = append(order, fmt.Sprintln(r.Feed, r.Model, r.Shadow, r.Version, r.Answers, r.Failed))
		if r.Tau != nil || r.ServedCost != (Cost{}) || r.Scores[2].Served != nil || r.Scores[2].Shift != nil || (r.Scores[2].Shadow != nil) != (r.Answers > 0) || r.AuthorShift != 0 || len(r.Lacking) != 0 {
			t.Errorf("%+v", r)
		}
	}
	if got := strings.Join(order, ""); got != "a m r 1 0 1\na m s 1 1 2\na m s 2 1 2\na n s 1 1 2\nb m s 1 1 2\n" {
		t.Errorf("%s", got)
	}
}

// Features are counted up to a number of them, those that are known further too.
func TestFeaturesAreBounded(t *testing.T) {
	of := tally{lacking: [2]map[string]int64{{}, {}}}
	for i := range maxFeatures + 3 {
		of.lack(0, 2, []exposure.Lacked{{Feature: fmt.Sprint(i), Items: 1}})
	}
	of.lack(0, 2, []exposure.Lacked{{Feature: "0", Items: 2}, {Feature: fmt.Sprint(maxFeatures - 1), Items: 3}, {Feature: "another", Items: 1}})
	if n := of.lacking[0]; len(n) != maxFeatures || n["0"] != 3 || n[fmt.Sprint(maxFeatures-1)] != 4 || of.looked[0] != 2*(maxFeatures+4) {
		t.Errorf("%d features, %d and %d items, of %d looked at", len(n), n["0"], n[fmt.Sprint(maxFeatures-1)], of.looked[0])
	}
	if all := of.features(); all[0].Feature != fmt.Sprint(maxFeatures-1) || all[1].Feature != "0" || all[0].Shadow != nil {
		t.Errorf("%+v lack most", all[:2])
	}
}

// Of a side of which no item was looked at nothing is known.
func TestFeaturesOfNoItem(t *testing.T) {
	of := tally{lacking: [2]map[string]int64{{}, {}}}
	of.lack(0, 0, []exposure.Lacked{{Feature: "age"}})
	of.lack(1, 4, []exposure.Lacked{{Feature: "age", Items: 1}})
	if f := of.features()[0]; f.Served != nil || f.Shadow == nil || *f.Shadow != 0.25 {
		t.Errorf("%+v", f)
	}
}

// The author who is shown least makes room, of equals the last by name; those whose shares
// differ most are told, of equals the first by name.
func TestAuthorsMakeRoomInOrder(t *testing.T) {
	var s authors
	for i := range maxAuthors {
		s.add(fmt.Sprintf("a%04d", i), 0)
		s.add(fmt.Sprintf("a%04d", i), i%2)
	}
	s.add("a0000", 1)
	if got := s.least().name; got != fmt.Sprintf("a%04d", maxAuthors-1) {
		t.Errorf("%s is least", got)
	}
	s.add("new", 1)
	if a := s.of["new"]; a == nil || a.missed != 2 || a.items != [2]int64{0, 1} || s.of[fmt.Sprintf("a%04d", maxAuthors-1)] != nil || len(s.of) != maxAuthors {
		t.Errorf("the new one is %+v of %d", a, len(s.of))
	}
	if got := s.least().name; got != fmt.Sprintf("a%04d", maxAuthors-2) {
		t.Errorf("%s is least then", got)
	}
	s = authors{}
	for i := range 30 {
		for range 1 + i {
			s.add(fmt.Sprintf("b%02d", i), 0)
		}
		s.add(fmt.Sprintf("b%02d", i), 1)
	}
	all := s.shift(topAuthors)
	if len(all) != topAuthors || all[0].Entity != "b00" || all[1].Entity != "b29" || !near(all[1].Served, 30./465) || !near(all[0].Shadow, 1./30) {
		t.Errorf("%d authors, the first %+v", len(all), all[:2])
	}
	if few := s.shift(100); len(few) != 30 {
		t.Errorf("%d authors", len(few))
	}
}

// Of many authors those are kept who are shown most, and what is not known of
// them is no more than is said.
func TestAuthorsAreBounded(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(rng, 1.2, 1, 100_000)
	var s authors
	exact := map[string][2]int64{}
	for i := range 20_000 {
		name, side := fmt.Sprint(zipf.Uint64()), i%2
		s.add(name, side)
		n := exact[name]
		n[side]++
		exact[name] = n
	}
	if len(s.of) > maxAuthors || len(exact) <= maxAuthors {
		t.Fatalf("%d of %d authors are told apart", len(s.of), len(exact))
	}
	for name, n := range exact {
		a := s.of[name]
		if a == nil {
			if n[0]+n[1] > 20_000/maxAuthors {
				t.Errorf("%s has %v items and is not told apart", name, n)
			}
			continue
		}
		if missed := n[0] - a.items[0] + n[1] - a.items[1]; missed < 0 || missed > a.missed {
			t.Errorf("%s: %v items, counted %v, %d missed at most", name, n, a.items, a.missed)
		}
	}
}

// A broker sees more versions of a shadow than pairs are told apart: those that rank no
// more make room, and those that rank stay.
func TestPairsThatAreSilentMakeRoom(t *testing.T) {
	const hour = 3_600_000
	var tally Tally
	rank := func(version int, at millrace.Time) {
		for _, feed := range []string{"home", "news"} {
			shadow := exposure.Model{Name: "next", Version: fmt.Sprint(version)}
			if feed == "news" {
				shadow.Version = "1"
			}
			tally.Add(&exposure.Record{Feed: feed, Time: at, Models: []exposure.Model{{Name: "now"}}, Shadows: []exposure.Model{shadow}, ShadowRankings: make([]exposure.ShadowRanking, 1)})
		}
	}
	for i := range millrace.Time(maxPairs + 50) {
		rank(int(i), i*hour)
	}
	told := map[string]int64{}
	for _, r := range tally.Reports() {
		told[r.Feed+" "+r.Version] = r.Answers
	}
	newest := fmt.Sprint("home ", maxPairs+49)
	if len(told) != maxPairs || told[newest] != 1 || told["home 50"] != 0 || told["home 51"] != 1 || told["news 1"] != maxPairs+50 || tally.Beyond() != 51 {
		t.Errorf("%d pairs, of the newest %d, of one that ranks all the time %d; %d beyond", len(told), told[newest], told["news 1"], tally.Beyond())
	}
}

// Pairs are forgotten of which no answer has come for long, and counted as beyond.
func TestPairsThatAreSilentAreForgotten(t *testing.T) {
	var tally Tally
	for version, at := range map[string][]millrace.Time{"1": {1000, 2000}, "2": {1000, 3000}} {
		for _, at := range at {
			tally.Add(&exposure.Record{Feed: "home", Time: at, Models: []exposure.Model{{Name: "now"}}, Shadows: []exposure.Model{{Name: "next", Version: version}}, ShadowRankings: make([]exposure.ShadowRanking, 1)})
		}
	}
	tally.Forget(2000)
	if all := tally.Reports(); len(all) != 2 || tally.Beyond() != 0 {
		t.Errorf("%+v, %d beyond", all, tally.Beyond())
	}
	tally.Forget(2001)
	if all := tally.Reports(); len(all) != 1 || all[0].Version != "2" || tally.Beyond() != 2 {
		t.Errorf("%+v, %d beyond", all, tally.Beyond())
	}
}

// Pairs and types are bounded too.
func TestPairsAndTypesAreBounded(t *testing.T) {
	var tally Tally
	for i := range maxPairs + 5 {
		tally.Add(&exposure.Record{
			Feed: fmt.Sprint(i), Models: []exposure.Model{{Name: "now"}}, Shadows: []exposure.Model{{Name: "next"}}, ShadowRankings: make([]exposure.ShadowRanking, 1),
		})
	}
	if len(tally.Reports()) != maxPairs || tally.Beyond() != 5 {
		t.Errorf("%d pairs, %d beyond", len(tally.Reports()), tally.Beyond())
	}
	r := &exposure.Record{Feed: "0", Models: []exposure.Model{{Name: "now"}}, Shadows: []exposure.Model{{Name: "next"}}, ShadowRankings: make([]exposure.ShadowRanking, 1)}
	for i := range 2 * maxTypes {
		r.Items = append(r.Items, item(fmt.Sprint(i), "a", fmt.Sprint("t", i), 1))
	}
	tally.Add(r)
	if got := tally.Reports()[0].Types; len(got) != maxTypes+1 || got[0].Type != OtherTypes || !near(got[0].Served, 0.5) {
		t.Errorf("%d types, the first %+v", len(got), got[0])
	}
}
