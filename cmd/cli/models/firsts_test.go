package models

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/cli/export"
	"github.com/millrace/millrace/relevance"
)

// logs are pages for a file, of a model lin.
type logs struct {
	sum    string
	chance map[string]float64 // of variants
	rows   [][]export.Item
}

// page adds one of a viewer at a minute, whose items have likes, and are fresh in the
// order in which they are shown; fewer that are clicked on.
func (l *logs) page(viewer string, minute int, variant string, likes []float64, clicked ...int) []export.Item {
	var rows []export.Item
	name, version := "lin", "1"
	for i, x := range likes {
		place, id, fresh := int64(i+1), fmt.Sprint("r", i), float64(len(likes)-i)
		row := export.Item{
			Answer: fmt.Sprint("a", len(l.rows)), Viewer: viewer, Time: time.UnixMilli(int64(minute) * 60_000).UTC(), Place: &place, ID: &id,
			Model: &name, ModelVersion: &version, ModelChecksum: &l.sum,
			Experiments: []export.Variant{{Experiment: "tune", Variant: variant, Checksum: "c", ProbabilityInside: l.chance[variant]}},
			Features:    []export.Feature{{Name: "likes", Number: &x}, {Name: "fresh", Number: &fresh}},
		}
		if slices.Contains(clicked, i) {
			row.Outcomes = []export.Outcome{{Action: "click", Count: 1}}
		}
		rows = append(rows, row)
	}
	l.rows = append(l.rows, rows)
	return rows
}

// save writes the pages as they stand.
func (l *logs) save(t *testing.T) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "shown.ndjson")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := export.RowsTo(f, "ndjson")
	for _, rows := range l.rows {
		if err := w.Write(rows); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return file
}

// said is what model replay prints.
func said(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c := replayCommand(new([]string))
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	c.SilenceUsage = true
	err := c.ExecuteContext(t.Context())
	return out.String(), err
}

// rising are likes of so many items, of which the last has the most.
func rising(n int) (likes []float64) {
	for i := range n {
		likes = append(likes, float64(i+1))
	}
	return likes
}

// A ranking that gives all items one score has no order: it is not as good as the one
// that was shown, at whose top the clicks are, but as all orders are in the mean; and it
// begins no page as it was shown.
func TestTiesDoNotLeanToWhatWasShown(t *testing.T) {
	dir, sum := lin(t, "1")
	l := &logs{sum: sum, chance: map[string]float64{"control": 1}}
	for i := range 200 {
		l.page(fmt.Sprint("v", i), i, "control", rising(10), i%2)
	}
	file := l.save(t)
	shown := told(t, dir, "--exposures", file, "--experiment", "tune", "--weights", "fresh=0")
	mrr, ndcg := 0., 0.4543559338 // the mean over places of 1/log2(place+1), and of 1/place
	for place := range 10 {
		mrr += 1 / float64(place+1) / 10
	}
	for i, want := range []float64{ndcg, mrr} {
		if m := shown.Measures[i]; m.New < want-1e-9 || m.New > want+1e-9 || *m.Difference.High >= 0 {
			t.Errorf("want %v in %+v", want, m)
		}
	}
	if e := shown.Estimate; e.Alike != 0 || e.Open != 200 || e.Unknown == "" {
		t.Errorf("%+v", e)
	}
}

// A page begins as it was shown if its first items do in every order of equal scores.
func TestBeginsWithTies(t *testing.T) {
	for _, c := range []struct {
		items, tied []int
		of          int
		want        begun
	}{
		{[]int{0, 1, 2}, []int{1, 1, 1}, 2, begun{true, true}},
		{[]int{0, 1, 2}, []int{1, 2}, 1, begun{true, true}},
		{[]int{0, 1, 2}, []int{1, 2}, 2, begun{true, false}},
		{[]int{0, 1, 2}, []int{2, 1}, 1, begun{true, false}},
		{[]int{0, 1, 2}, []int{3}, 5, begun{true, false}},
		{[]int{0, 2, 1}, []int{1, 1, 1}, 1, begun{true, true}},
		{[]int{0, 2, 1}, []int{1, 1, 1}, 2, begun{}},
		{[]int{1, 2, 0}, []int{2, 1}, 1, begun{}},
	} {
		if got := (ordered{c.items, c.tied}).begins(c.of); got != c.want {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}

// Variants that rank by one model, as those of an A/A test and such as set a limit alone,
// show together what it earns, of that model itself and of another.
func TestEstimatesOfVariantsOfOneModel(t *testing.T) {
	dir, sum := lin(t, "1")
	another, _ := lin(t, "2")
	l := &logs{sum: sum, chance: map[string]float64{"control": 0.5, "longer": 0.5}}
	for i := range 400 {
		l.page(fmt.Sprint("v", i), i, []string{"control", "longer"}[i%2], rising(10+i%2), []int{0, 1, 2}[:i%4]...)
	}
	definition := filepath.Join(t.TempDir(), "tune.yaml")
	write(t, definition, strings.NewReplacer("3333", "5000", "6667", "5000", "name: a,", "name: longer,", "set: {weights: {likes: 1, fresh: 0}}", "set: {limit: 11}").Replace(tune))
	file := l.save(t)
	for name, args := range map[string][]string{"itself": {dir}, "another": {another, "--beside", dir}} {
		e := told(t, append(args, "--exposures", file, "--experiment", "tune", "--definition", definition)...).Estimate
		if e.Unknown != "" || e.Unbelieved != "" || *e.MeanWeight != 1 || *e.Effective != 400 || *e.IPS.Value != *e.Shown || e.IPS.Low == nil || (len(e.Alone) == 2) != (name == "itself") {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

// A variant that keeps the items of one entity apart has a say in all of a page but its
// first item.
func TestVariantsThatSpreadEntities(t *testing.T) {
	dir, sum := lin(t, "1")
	another, _ := lin(t, "2")
	l := &logs{sum: sum, chance: map[string]float64{"control": 0.5, "each": 0.5}}
	for i := range 400 {
		l.page(fmt.Sprint("v", i), i, []string{"control", "each"}[i%2], rising(20), []int{0, 1, 2}[:i%4]...)
	}
	definition := filepath.Join(t.TempDir(), "tune.yaml")
	write(t, definition, strings.NewReplacer("3333", "5000", "6667", "5000", "name: a,", "name: each,", "set: {weights: {likes: 1, fresh: 0}}", "set: {cap_per_entity: 1}").Replace(tune))
	args := []string{another, "--beside", dir, "--exposures", l.save(t), "--experiment", "tune", "--definition", definition}
	if e := told(t, args...).Estimate; e.Unknown != "" || *e.MeanWeight != 1 {
		t.Errorf("%+v", e)
	}
	if e := told(t, append(args, "--match", "2")...).Estimate; !strings.Contains(e.Unknown, "not known of variant each: it sets cap_per_entity, and so has a say in all but the first item") {
		t.Errorf("%+v", e)
	}
}

// A model that gives all items one score begins a page as another arm of that very model
// did; of a page of another model it is open.
func TestArmsWhoseItemsScoreTheSame(t *testing.T) {
	_, sum := lin(t, "1")
	l := &logs{sum: sum}
	page := l.page("v", 1, "control", []float64{1, 1, 1})
	m, err := relevance.Builtin().Get("recency")
	if err != nil {
		t.Fatal(err)
	}
	same := rankerOf(m)
	for i := range page {
		page[i].Features = nil
		for _, name := range same.features {
			one := 1.
			page[i].Features = append(page[i].Features, export.Feature{Name: name, Number: &one})
		}
	}
	armed := func(variant, model string) *arm {
		return &arm{dealt: dealt{"c", variant}, chance: 0.25, by: same, rankings: map[ranking]bool{{name: model}: true}}
	}
	shown, again, other := armed("shown", "m"), armed("again", "m"), armed("other", "o")
	r := &replay{match: 1, all: []*arm{shown, again, other}, firsts: map[string]*loggedPage{}}
	if err := r.log("v", &loggedPage{of: shown, own: begun{true, true}}, page); err != nil {
		t.Fatal(err)
	}
	r.settle()
	if chance := r.logged[0].alike(); chance != 0.5 || other.open != 1 || again.open != 0 || shown.other != 0 || shown.began != 1 {
		t.Errorf("chance %v, %+v, %+v, %+v", chance, shown, again, other)
	}
}

// The first page of a viewer is the earliest, wherever it stands in the file.
func TestTheFirstPageIsTheEarliest(t *testing.T) {
	dir, sum := lin(t, "1")
	l := &logs{sum: sum, chance: map[string]float64{"control": 1}}
	for i := range 150 {
		viewer := fmt.Sprint("v", i)
		l.page(viewer, 3, "control", rising(10), 0)
		l.page(viewer, 1, "control", rising(10))
		l.page(viewer, 2, "control", rising(10), 9, 8+i%2)
		l.page(viewer, 2, "control", rising(10), 0) // of the same time, and the later id
	}
	args := []string{dir, "--experiment", "tune", "--weights", "likes=1,fresh=0", "--definition", filepath.Join(t.TempDir(), "tune.yaml")}
	write(t, args[len(args)-1], tune)
	first := told(t, append(args, "--exposures", l.save(t))...)
	if m := first.Measures[1]; m.New != 1 || m.Shown > 0.12 || first.Viewers != 150 {
		t.Errorf("%+v", first)
	}
	slices.Reverse(l.rows)
	again := told(t, append(args, "--exposures", l.save(t))...)
	if again.File = first.File; !reflect.DeepEqual(first, again) {
		t.Errorf("%+v\n%+v\n%+v\n%+v", first, again, first.Estimate, again.Estimate)
	}
	// Of the estimates the earliest page counts, on which nobody clicked.
	e := told(t, dir, "--experiment", "tune", "--exposures", l.save(t)).Estimate
	if e.Unknown != "" || *e.Shown != 0 || e.IPS.Low != nil || *e.IPS.Value != 0 {
		t.Errorf("%+v", e)
	}
}

// Of few pages there is no interval, and it is said in words.
func TestTooLittleIsKnownOfEstimates(t *testing.T) {
	dir, sum := lin(t, "1")
	l := &logs{sum: sum, chance: map[string]float64{"control": 1}}
	l.page("v", 1, "control", rising(4), 0, 1, 2, 3)
	l.rows[0][3].Outcomes = nil
	text, err := said(t, dir, "--experiment", "tune", "--exposures", l.save(t))
	for _, want := range []string{"\nNDCG@10  1      1    none, for every viewer\n", "\n  by inverse propensity: too little is known\n  self-normalised:       too little is known\n  mean weight 1; they say as much as 1 pages would\n"} {
		if err != nil || !strings.Contains(text, want) {
			t.Errorf("%v: no %q in\n%s", err, want, text)
		}
	}
}

// Pages of which rows are missing are no pages.
func TestPagesThatLackRows(t *testing.T) {
	dir, sum := lin(t, "1")
	l := &logs{sum: sum, chance: map[string]float64{"control": 1}}
	for i := range 120 {
		l.page(fmt.Sprint("v", i), 1, "control", rising(5), 1, 3)
	}
	whole := slices.Clone(l.rows)
	l.rows[7] = slices.Delete(slices.Clone(whole[7]), 2, 3)
	l.rows[119] = whole[119][:3]
	text, err := said(t, dir, "--experiment", "tune", "--exposures", l.save(t))
	for _, want := range []string{"120 answers are in", "; 1 are left out, of which rows are missing; 119 are left\nthe last answer has fewer items than it says, or than others: if the file was cut, rows of it are missing\n", "of 119 viewers who did click:"} {
		if err != nil || !strings.Contains(text, want) {
			t.Errorf("%v: no %q in\n%s", err, want, text)
		}
	}
	l.rows = slices.Clone(whole)
	if text, err := said(t, dir, "--exposures", l.save(t)); err != nil || strings.Contains(text, "cut") || strings.Contains(text, "left") {
		t.Errorf("%v: %s", err, text)
	}
	for name, keep := range map[string][]int{"with gaps": {1, 3}, "without": {3}} {
		for i, page := range whole {
			l.rows[i] = nil
			for _, k := range keep {
				l.rows[i] = append(l.rows[i], page[k])
			}
		}
		if text, err := said(t, dir, "--exposures", l.save(t)); err == nil || !strings.Contains(err.Error(), "lacks rows of its answers") {
			t.Errorf("clicked rows alone, %s: %v\n%s", name, err, text)
		}
	}
}

// A page that says how many items it had is whole or not, wherever its rows are missing.
func TestPagesThatLackRowsAtTheirEnds(t *testing.T) {
	dir, sum := lin(t, "1")
	l := &logs{sum: sum, chance: map[string]float64{"control": 1}}
	for i := range 120 {
		l.page(fmt.Sprint("v", i), 1, "control", rising(3+i%3), 1)
		items := int64(len(l.rows[i]))
		for k := range l.rows[i] {
			l.rows[i][k].Items = &items
		}
	}
	whole := slices.Clone(l.rows)
	if text, err := said(t, dir, "--exposures", l.save(t)); err != nil || strings.Contains(text, "cut") || strings.Contains(text, "left") {
		t.Errorf("%v: %s", err, text)
	}
	l.rows[7], l.rows[8], l.rows[119] = whole[7][:2], whole[8][1:], whole[119][:3]
	text, err := said(t, dir, "--experiment", "tune", "--exposures", l.save(t))
	for _, want := range []string{"120 answers are in", "; 3 are left out, of which rows are missing; 117 are left\nthe last answer has fewer items than it says, or than others: if the file was cut, rows of it are missing\n", "of 117 viewers who did click:"} {
		if err != nil || !strings.Contains(text, want) {
			t.Errorf("%v: no %q in\n%s", err, want, text)
		}
	}
	too := int64(1 << 40)
	l.rows[7][0].Items = &too
	if text, err := said(t, dir, "--exposures", l.save(t)); err == nil || !strings.Contains(err.Error(), "no answer has more than") {
		t.Errorf("%v: %s", err, text)
	}
}

// A few pages that are too short to tell of another model are left out where no variant
// has a say in how long pages are.
func TestShortPagesAreLeftOut(t *testing.T) {
	dir, sum := lin(t, "1")
	another, _ := lin(t, "2")
	l := &logs{sum: sum, chance: map[string]float64{"control": 1}}
	for i := range 300 {
		l.page(fmt.Sprint("v", i), 1, "control", rising(12), []int{0, 1, 2}[:i%4]...)
	}
	l.page("short", 1, "control", rising(3), 0)
	file, definition := l.save(t), filepath.Join(t.TempDir(), "tune.yaml")
	args := []string{another, "--beside", dir, "--experiment", "tune", "--exposures", file}
	write(t, definition, tune)
	e := told(t, append(args, "--definition", definition)...).Estimate
	if e.Unknown != "" || e.Short != 1 || e.Viewers != 300 || *e.MeanWeight != 1 || math.Abs(*e.IPS.Value-1.5) > 1e-9 {
		t.Errorf("%+v", e)
	}
	if text, err := said(t, append(args, "--definition", definition)...); err != nil || !strings.Contains(text, "\nof 300 viewers' first pages 300 would begin with the same 1 items\n1 more are left out, of fewer than 10 items for each of --match: estimates are of viewers with longer pages\n") {
		t.Errorf("%v\n%s", err, text)
	}
	if e := told(t, args...).Estimate; e.Short != 0 || !strings.Contains(e.Unknown, "1 pages have fewer than 10 items for each of --match") || !strings.Contains(e.Unknown, "They are not left out, since what variant control sets is not known") {
		t.Errorf("%+v", e)
	}
	write(t, definition, strings.Replace(tune, "weight: 3333}", "weight: 3333, set: {limit: 12}}", 1))
	if e := told(t, append(args, "--definition", definition)...).Estimate; !strings.Contains(e.Unknown, "They are not left out, since variant control sets limit, so that the number of items of a page depends on the variant") {
		t.Errorf("%+v", e)
	}
}

// Where pages of a variant are missing it is that which is said, and not that no variant
// shows what the new ranking would.
func TestVariantsWhosePagesAreMissing(t *testing.T) {
	dir, sum := lin(t, "1")
	l := &logs{sum: sum, chance: map[string]float64{"control": 0.5, "other": 0.5}}
	for i := range 400 {
		l.page(fmt.Sprint("v", i), 1, "control", rising(10), i%2)
		if i >= 200 {
			page, name := l.page(fmt.Sprint("w", i), 1, "other", rising(10), i%2), "gone"
			for k := range page {
				page[k].Model = &name
			}
		}
	}
	want := "variant control has 400 of 600 first pages, by a chance of 0.5; variant other has 200 of 600 first pages, by a chance of 0.5"
	if e := told(t, dir, "--experiment", "tune", "--exposures", l.save(t)).Estimate; !strings.HasSuffix(e.Unbelieved, "should be 1; pages are missing, or were not dealt by their chances: "+want) {
		t.Errorf("%+v", e)
	}
}

// Why there is no estimate is said in words, with a way out where there is one.
func TestWhyThereIsNoEstimate(t *testing.T) {
	dir, sum := lin(t, "1")
	another, _ := lin(t, "2")
	l := &logs{sum: sum, chance: map[string]float64{"control": 1}}
	for i := range 120 {
		l.page(fmt.Sprint("v", i), 1, "control", rising(10), i%2)
	}
	of := func(args ...string) string {
		t.Helper()
		return told(t, append(args, "--experiment", "tune", "--exposures", l.save(t))...).Estimate.Unknown
	}
	if why := of(another, "--beside", dir, "--weights", "likes=1,fresh=0"); why != "no first page begins as the new ranking begins it, so that none tells what it would earn" {
		t.Error(why)
	}
	if why := of(another, "--beside", dir, "--weights", "fresh=0"); why != "no first page begins as the new ranking begins it, so that none tells what it would earn; 120 may, in some order of items that score the same" {
		t.Error(why)
	}
	if why := of(another); !strings.Contains(why, "(give its pack by --beside, or name the cluster that has it by --etcd and --cluster)") {
		t.Error(why)
	}
	for _, rows := range l.rows {
		for i := range rows {
			place := *rows[i].Place + 10
			rows[i].Place = &place
		}
	}
	if why := of(dir); why != "no viewer has a first page, which is one of experiment tune that begins at place 1 and is not left out" {
		t.Error(why)
	}
}
