package cli

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/export"
)

const replaySpec = `name: likes
version: "1"
schemas: [millrace.Activity]
features:
  likes: record.likes
  verb: record.verb
scorer: linear
parameters:
  weights: {likes: 1, verb: {post: 100}}
`

// shownPage is a page of five items in a variant, of which the viewer clicks on
// some. Likes are by place as it is shown.
func shownPage(n int, viewer, variant string, chance float64, likes []float64, clicked ...int) (rows []export.Item) {
	model, version := "recency", "1"
	for i, x := range likes {
		place, id, post := int64(i+1), fmt.Sprint("r", i), "post"
		row := export.Item{
			Answer: fmt.Sprint("a", n), Viewer: viewer, Place: &place, ID: &id, Model: &model, ModelVersion: &version,
			Experiments: []export.Variant{{Experiment: "other", ProbabilityInside: 0.1}, {Experiment: "e", Variant: variant, Checksum: "c", Probability: chance / 5, ProbabilityInside: chance}},
			Features:    []export.Feature{{Name: "unread"}, {Name: "verb", Text: &post}, {Name: "likes", Number: &x}},
		}
		if math.IsNaN(x) {
			row.Features[2].Number = nil
		}
		if slices.Contains(clicked, i) {
			row.Outcomes = []export.Outcome{{Action: "look", Count: 1}, {Action: "click", Count: 3}}
		}
		rows = append(rows, row)
	}
	return rows
}

// replayed writes a file, as Parquet and as NDJSON, and replays both.
func replayed(t *testing.T, rows []export.Item, args ...string) (told string, err error) {
	t.Helper()
	dir := t.TempDir()
	spec := filepath.Join(dir, "likes.yaml")
	if err := os.WriteFile(spec, []byte(replaySpec), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{"parquet", "ndjson"} {
		name := filepath.Join(dir, "shown."+form)
		f, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		w := export.RowsTo(f, form)
		for _, r := range rows {
			if err := w.Write([]export.Item{r}); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		f.Close()
		out, err := output(append([]string{"model", "replay", spec, "--exposures", name}, args...)...)
		out = strings.ReplaceAll(strings.ReplaceAll(out, name, "FILE"), spec, "SPEC")
		if told != "" && out != told {
			t.Fatalf("Parquet:\n%s\nNDJSON:\n%s", told, out)
		}
		if told = out; err != nil {
			return told, err
		}
	}
	return told, nil
}

// Pages are ranked again by what was written, each viewer's once.
func TestReplay(t *testing.T) {
	t.Parallel()
	rising := []float64{1, 2, 3, 4, 5}
	var rows []export.Item
	for i := range 200 {
		page := shownPage(i, fmt.Sprint("v", i/2), "a", 0.5, rising, 4)    // the last is the best,
		page[3].CopyOf, page[3].Outcomes = page[0].Place, page[4].Outcomes // and what is done with a copy counts further up
		rows = append(rows, page...)
	}
	rows = append(rows, shownPage(200, "w", "a", 0.5, []float64{9, 8, math.NaN(), 7, 6}, 3, 1)...)
	bare := shownPage(201, "x", "a", 0.5, rising, 0)
	bare[2].Features = nil
	rows = append(rows, bare...)
	forced := shownPage(202, "y", "a", 0, rising, 0)
	forced[0].Experiments[1].Forced = true
	rows = append(rows, forced...)
	empty := shownPage(203, "z", "a", 0.5, rising, 0)[:1]
	empty[0].ID, empty[0].Place = nil, nil
	rows = append(rows, empty...)
	other := shownPage(204, "u", "a", 0.5, rising, 0)
	for i := range other {
		other[i].Experiments = nil
	}
	rows = append(rows, other...)
	told, err := replayed(t, rows, "--experiment", "e", "--depth", "3")
	const want = `model likes 1, of SPEC
205 answers are in FILE; 1 are left out, which showed nothing; 1 are left out, whose variant was forced; 1 are left out, in which experiment e had no part; 1 are left out, whose items have no features; 201 are left
of 101 viewers who did click:

        SHOWN    NEW    DIFFERENCE
NDCG@3  0.00383  0.997  +0.993 `
	if err != nil || !strings.HasPrefix(told, want) || !strings.Contains(told, "\nof 101 viewers' first pages 1 would begin with the same 1 items\n") || !strings.Contains(told, "\nMRR     0.203    0.995") {
		t.Errorf("%v\n%s", err, told)
	}
	if told, err := replayed(t, rows); err != nil || strings.Contains(told, "propensity") || !strings.HasPrefix(told, "model likes 1, of SPEC\n205 answers are in FILE; 1 are left out, which showed nothing; 1 are left out, whose items have no features; 203 are left\n") {
		t.Errorf("%v\n%s", err, told)
	}
}

// As JSON it says what the text says, with null for what is not known; and what it
// knows beside the reason of a failure.
func TestReplayAsJSON(t *testing.T) {
	t.Parallel()
	var rows []export.Item
	for i := range 150 {
		rows = append(rows, shownPage(i, fmt.Sprint("v", i), "a", 0.5, []float64{1, float64(3 + i%2), 2}, 1)...)
	}
	bare := shownPage(150, "x", "a", 0.5, []float64{1, 2, 3}, 0)
	bare[0].Features = nil
	rows = append(rows, bare...)
	type bounds struct{ Value, Low, High *float64 }
	read := func(rows []export.Item, args ...string) (shown struct {
		Model, Version, Weights string
		Answers, Left, Viewers  int
		LeftOut                 []struct{ Answers int } `json:"left_out"`
		Measures                []struct {
			Measure    string
			Shown, New float64
			Difference bounds
			Same       bool `json:"same_for_all"`
		}
		Estimate *struct {
			Viewers, Alike int
			Unknown        string
			IPS            bounds   `json:"inverse_propensity"`
			MeanWeight     *float64 `json:"mean_weight"`
		}
	}, err error) {
		t.Helper()
		told, err := replayed(t, rows, append(args, "-o", "json")...)
		if bad := json.NewDecoder(strings.NewReader(told)).Decode(&shown); bad != nil {
			t.Fatalf("%v in\n%s", bad, told)
		}
		return shown, err
	}
	shown, err := read(rows, "--experiment", "e")
	if err != nil || shown.Model != "likes" || shown.Version != "1" || shown.Answers != 151 || shown.Left != 150 || shown.Viewers != 150 || len(shown.LeftOut) != 1 || len(shown.Measures) != 2 {
		t.Fatalf("%v %+v", err, shown)
	}
	if m := shown.Measures[1]; m.Measure != "MRR" || m.Shown != 0.5 || m.New != 1 || m.Difference.Value == nil || *m.Difference.Value != 0.5 || m.Difference.Low != nil || m.Difference.High != nil || !m.Same {
		t.Errorf("%+v", m)
	}
	if e := shown.Estimate; e == nil || e.Viewers != 150 || e.Alike != 0 || e.Unknown == "" || e.IPS.Value != nil || e.MeanWeight != nil {
		t.Errorf("%+v", e)
	}
	if shown, err := read(rows); err != nil || shown.Estimate != nil {
		t.Errorf("%v %+v", err, shown.Estimate)
	}
	shown, err = read(rows, "--action", "hide")
	if err == nil || shown.Answers != 151 || shown.Viewers != 0 || shown.Measures == nil || len(shown.Measures) != 0 {
		t.Errorf("%v %+v", err, shown)
	}
}

// A model may be named that serves in a cluster.
func TestReplayOfAServedModel(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	s.Answer("n1", clitest.Admits)
	file := filepath.Join(t.TempDir(), "shown") // it is read whatever it is called
	f, err := os.Create(file)
	s.Check(err)
	w := export.RowsTo(f, "ndjson")
	s.Check(w.Write(shownPage(1, "v", "a", 0.5, []float64{1, 2}, 1)))
	s.Check(w.Close())
	s.Check(f.Close())
	for _, version := range []string{"1", "2"} {
		if out, err := s.run("model", "push", s.RatePack(version, "likes"), "--timeout", "1m"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if out, err := s.run("model", "replay", "rate", "--exposures", file, "-o", "json"); err != nil || !strings.Contains(out, `"model":"rate","version":"`+version+`"`) || !strings.Contains(out, `"viewers":1,`) {
			t.Errorf("%v\n%s", err, out)
		}
	}
	if out, err := s.run("model", "replay", "rat", "--exposures", file); err == nil || !strings.Contains(err.Error(), `no version of model "rat" serves`) {
		t.Errorf("%v\n%s", err, out)
	}
}

// A model that serves is read by the schemas of the cluster's log.
func TestReplayByTheSchemasOfTheLog(t *testing.T) {
	t.Parallel()
	ctx, addr := logOfTest(t)
	s := newStage(t, "n1")
	s.Answer("n1", clitest.Admits)
	avsc := s.File("talk.avsc", `{"type":"record","name":"team.Talk","fields":[{"name":"id","type":"string","millrace":"id"},{"name":"who","type":"string","millrace":"entity"},{"name":"kind","type":"string","millrace":"type"},{"name":"at","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"},{"name":"claps","type":"long","default":0}]}`)
	file := filepath.Join(t.TempDir(), "shown.ndjson")
	f, err := os.Create(file)
	s.Check(err)
	w := export.RowsTo(f, "ndjson")
	s.Check(w.Write(shownPage(1, "v", "a", 0.5, []float64{1, 2}, 1)))
	s.Check(w.Close())
	s.Check(f.Close())
	dir := t.TempDir()
	for name, text := range map[string]string{
		"spec.yaml":     "name: talks\nversion: \"1\"\nschemas: [team.Talk]\nfeatures: {likes: record.claps}\nscorer: linear\nparameters: {weights: {likes: 1}}\n",
		"golden.ndjson": `{"features":{"likes":2},"score":2,"record":{"claps":2}}`,
		"card.md":       "Talks.\n",
	} {
		s.Check(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	if out, err := output("model", "seal", dir, "--schema", avsc); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := s.run("model", "push", dir, "--timeout", "1m"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := s.run("model", "replay", "talks", "--exposures", file, "--brokers", addr); err == nil || !strings.Contains(err.Error(), "no schema team.Talk") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := execute(ctx, "schema", "define", avsc, "--brokers", addr, "--etcd", s.Etcd[0], "--cluster", "test"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := s.run("model", "replay", "talks", "--exposures", file, "--brokers", addr); err != nil || !strings.HasPrefix(out, "model talks 1, which serves in cluster test\n") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestReplayRefuses(t *testing.T) {
	t.Parallel()
	page := shownPage(1, "v", "a", 0.5, []float64{1, 2}, 0)
	change := func(f func(*export.Item)) []export.Item {
		rows := slices.Clone(page)
		for i := range rows {
			rows[i].Features = slices.Clone(rows[i].Features)
			f(&rows[i])
		}
		return rows
	}
	for _, c := range []struct {
		rows []export.Item
		args []string
		want string
	}{
		{page, []string{"--action", "hide"}, "action: nobody did hide with what they were shown"},
		{page, []string{"--experiment", "none"}, "experiment: FILE has no answer of experiment none; known are e, other"},
		{page, []string{"--experiment", "othr"}, "did you mean other?"},
		{change(func(r *export.Item) { r.Experiments = nil }), []string{"--experiment", "e"}, "it has answers of no experiment"},
		{change(func(r *export.Item) { r.Experiments = []export.Variant{{Experiment: "e", Forced: true}} }), []string{"--experiment", "e"}, "every answer of experiment e in FILE was forced"},
		{change(func(r *export.Item) { r.Features = nil }), nil, "exposures: no answer has the features of its items"},
		{change(func(r *export.Item) { r.Features[2].Name = "like" }), nil, "the model reads a feature likes, which was not written; did you mean like"},
		{change(func(r *export.Item) { r.Features[1] = export.Feature{Name: "verb", Number: r.Features[2].Number} }), nil, "feature verb was written as another kind"},
		{nil, nil, "no answer has the features"},
		{page, []string{"--depth", "0"}, "depth: 0 is no number"},
		{page, []string{"--match", "0"}, "match: 0 is no number"},
		{page, []string{"--depth", "1001"}, "depth: 1001 is no number of places of a page; say one from 1 to 1000"},
		{page, []string{"--match", "1000000"}, "match: 1000000 is no number of items of a page; say one from 1 to 1000"},
		{page, []string{"--alpha", "1"}, "alpha: 1 is no probability"},
		{page, []string{"--alpha", "1e-300"}, "alpha: 1e-300 is no probability of being wrong that serves; say one from 1e-12 to 0.5"},
		{shownPage(1, "v", "a", 0, []float64{1, 2}, 0), []string{"--experiment", "e"}, "probability_inside of experiment e is 0"},
		{shownPage(1, "v", "a", 2, []float64{1, 2}, 0), nil, `row 1: probability_inside of experiment "e" is 2, which is no chance`},
		{shownPage(1, "v", "a", 1e308, []float64{1, 2}, 0), nil, `probability_inside of experiment "e" is 1e+308`},
		{shownPage(1, "v", "a", -1, []float64{1, 2}, 0), nil, `probability_inside of experiment "e" is -1`},
		{change(func(r *export.Item) { place := *r.Place - 2; r.Place = &place }), nil, "row 1: its place is -1"},
		{change(func(r *export.Item) { r.Place = nil }), nil, "row 1: it has an item without a place"},
		{change(func(r *export.Item) { r.Outcomes = []export.Outcome{{Action: "click", Count: -3}} }), nil, `row 1: its outcome "click" has the count -3`},
		{change(func(r *export.Item) { id := "x"; r.ID = &id }), nil, `record "x" stands at place 1 and at place 2, of the same entity`},
	} {
		if told, err := replayed(t, c.rows, c.args...); err == nil || !strings.Contains(told, c.want) {
			t.Errorf("%q: want %q in\n%s", c.args, c.want, told)
		}
	}
	two := append(slices.Clone(page), shownPage(2, "w", "a", 0.5, []float64{1, 2}, 0)...)
	for _, c := range []struct {
		rows []export.Item
		want string
	}{
		{[]export.Item{two[0], two[2], two[1], two[3]}, "FILE, row 3: it is of answer a1, of which rows stand further up, before other answers; sort the rows by answer_id and place"},
		{append(slices.Clone(two), two...), "FILE, row 5: place 1 of answer a1 has been there before; give each answer once"},
		{[]export.Item{two[0], two[0], two[1], two[1], two[2]}, "the answer before row 5: place 1 stands twice: the file has rows of one export twice"},
		{[]export.Item{two[0], {Answer: "empty"}, two[1]}, "row 3: it is of answer a1"},
	} {
		if told, err := replayed(t, c.rows); err == nil || !strings.Contains(told, c.want) {
			t.Errorf("want %q in\n%s", c.want, told)
		}
	}
	// A text that a Parquet file has once, and every row of it again.
	text := strings.Repeat("v", 1<<20)
	var dear []export.Item
	for i := range 1200 {
		row, place, id := page[0], int64(i+1), "x"
		row.Place, row.ID, row.Viewer = &place, &id, text
		dear = append(dear, row)
	}
	for _, c := range []struct {
		rows   int
		change func(*export.Item)
		want   string
	}{
		{2, func(*export.Item) {}, "FILE, row 1: its viewer has 1048576 bytes, more than 512; name a file that millrace export exposures wrote"},
		{1200, func(r *export.Item) { r.Viewer = "v" }, "FILE, row 1001: the rows of its answer, of which it is the 1001th, are more than 1000 or have more than 67108864 bytes"},
		{70, func(r *export.Item) { r.Viewer, r.Features = "v", []export.Feature{{Name: "verb", Text: &text}} }, "FILE, row 64: the rows of its answer"},
		{2, func(r *export.Item) { r.Viewer, r.Experiments = "v", []export.Variant{{Unit: text}} }, "FILE, row 1: its experiments.unit has 1048576 bytes, more than 16384"},
	} {
		for i := range dear {
			c.change(&dear[i])
		}
		if told, err := replayed(t, dear[:c.rows]); err == nil || !strings.Contains(told, c.want) {
			t.Errorf("want %q in\n%.2000s", c.want, told)
		}
	}
	file := filepath.Join(t.TempDir(), "shown.parquet")
	if err := os.WriteFile(file, []byte("no Parquet"), 0o644); err != nil {
		t.Fatal(err)
	}
	if told, err := output("model", "replay", "recency", "--exposures", file); err == nil || !strings.Contains(told, "millrace export exposures wrote") {
		t.Errorf("%s", told)
	}
}

// Of pages by a model that reads other features none is ranked again, and the
// rest is: chances are then those among the variants of the rest.
func TestReplayLeavesOutPagesThatLackFeatures(t *testing.T) {
	t.Parallel()
	likes, gone := []float64{5, 4, 3, 2, 1}, "gone"
	var rows []export.Item
	for i := range 400 {
		var clicked []int
		if i%8 < 4 {
			clicked = []int{0}
		}
		page := shownPage(i, fmt.Sprint("v", i), []string{"control", "next"}[i%2], 0.5, likes, clicked...)
		for k := range page {
			if i%2 == 0 {
				page[k].Features = page[k].Features[:2] // no likes
			} else {
				page[k].Model = &gone
			}
		}
		rows = append(rows, page...)
	}
	told, err := replayed(t, rows, "--experiment", "e")
	for _, want := range []string{
		"400 answers are in FILE; 200 are left out, which lack a feature that the model reads (likes); 200 are left\nof 100 viewers who did click:",
		"all pages of control are left out: chances are those among the other variants\n",
		"of 200 viewers' first pages 200 would begin with the same 1 items\n",
		"which is not known of variant next: model gone 1 is not at hand (it is built in; a millrace that has version 1 can replay it)\n",
	} {
		if err != nil || !strings.Contains(told, want) {
			t.Errorf("%v: no %q in\n%s", err, want, told)
		}
	}
}
