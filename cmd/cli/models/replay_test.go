package models

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/export"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/relevance/modelpack"
	"github.com/millrace/millrace/relevance/weights"
)

// lin is a sealed pack that ranks by fresh; a variant that sets byLikes of it ranks by
// likes.
func lin(t *testing.T, version string) (dir, sum string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range map[string]string{
		modelpack.SpecFile:   "name: lin\nversion: \"" + version + "\"\nschemas: [millrace.Activity]\nfeatures: {likes: record.likes, fresh: record.comments}\nscorer: linear\nparameters: {weights: {likes: 0, fresh: 1}}\n",
		modelpack.GoldenFile: `{"features":{"likes":1,"fresh":2},"score":2,"record":{"likes":1,"comments":2}}`,
		modelpack.CardFile:   "Lin.\n",
	} {
		write(t, filepath.Join(dir, name), text)
	}
	if err := Seal(new(bytes.Buffer), dir, nil); err != nil {
		t.Fatal(err)
	}
	p, err := modelpack.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if sum, err = p.Sum(); err != nil {
		t.Fatal(err)
	}
	return dir, sum
}

var byLikes = map[string]float64{"likes": 1, "fresh": 0}

const tune = `experiments:
  - {name: tune, layer: l, feeds: [home], state: running, slots: [0-9999], share: 10000, variants: [{name: control, weight: 3333}, {name: a, weight: 6667, set: {weights: {likes: 1, fresh: 0}}}]}
layers:
  - {name: l, salt: one, unit: viewer}
`

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// told runs model replay, and reads what it says as JSON.
func told(t *testing.T, args ...string) (shown replayed) {
	t.Helper()
	var out bytes.Buffer
	c := replayCommand(new([]string))
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(append(args, "-o", "json"))
	c.SilenceUsage = true
	if err := c.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out.String())
	}
	if err := json.Unmarshal(out.Bytes(), &shown); err != nil {
		t.Fatalf("%v in\n%s", err, out.String())
	}
	return shown
}

// dealtPages writes first pages of viewers, of whom two thirds have the variant a. Of
// ten items each, which are all that there are, they may click on the first: by chances
// of which those of control come to 0.5475.
func dealtPages(t *testing.T, file, sum string, seed uint64) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := export.RowsTo(f, "ndjson")
	rnd := rand.New(rand.NewPCG(seed, 3))
	name, version := "lin", "1"
	for i := range 500 {
		items := make([][2]float64, 10) // likes, fresh
		for k, x := range rnd.Perm(10) {
			items[k] = [2]float64{float64(k + 1), float64(x + 1)}
		}
		e := export.Variant{Experiment: "tune", Variant: "control", Checksum: "c", ProbabilityInside: 0.3333}
		by, checksum := 1, sum
		if rnd.Float64() < 0.6667 {
			e.Variant, e.ProbabilityInside, by, checksum = "a", 0.6667, 0, sum+"+"+weights.Sum(weights.Form(byLikes))
		}
		slices.SortFunc(items, func(a, b [2]float64) int { return cmp.Compare(b[by], a[by]) })
		for k := range items {
			place, id := int64(k+1), fmt.Sprint("r", k)
			row := export.Item{
				Answer: fmt.Sprint("a", i), Viewer: fmt.Sprint("v", i), Place: &place, ID: &id, Model: &name, ModelVersion: &version, ModelChecksum: &checksum, Experiments: []export.Variant{e},
				Features: []export.Feature{{Name: "likes", Number: &items[k][0]}, {Name: "fresh", Number: &items[k][1]}},
			}
			if k == 0 && rnd.Float64() < 0.03*items[k][1]+0.045*items[k][0] {
				row.Outcomes = []export.Outcome{{Action: "click", Count: 1}}
			}
			if err := w.Write([]export.Item{row}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// Two variants begin a tenth of the pages alike. What ranks as control does, and is
// another model, is worth what both show that begins so; control itself, what it showed
// alone. Either way intervals cover what control earns.
func TestEstimatesOfVariantsThatAgree(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	dir, sum := lin(t, "1")
	another, _ := lin(t, "2")
	file, definition := filepath.Join(t.TempDir(), "shown.ndjson"), filepath.Join(t.TempDir(), "tune.yaml")
	write(t, definition, tune)
	const runs, truth = 20, 0.5475
	covers := map[string]int{}
	for seed := range uint64(runs) {
		dealtPages(t, file, sum, seed)
		for how, args := range map[string][]string{"sum": {another, "--beside", dir, "--definition", definition}, "alone": {dir, "--definition", definition}} {
			e := told(t, append(args, "--exposures", file, "--experiment", "tune")...).Estimate
			if e.Unknown != "" || (len(e.Alone) == 1) != (how == "alone") || len(e.Unclear) != 0 {
				t.Fatalf("%s: %+v", how, e)
			}
			if e.Unbelieved != "" {
				covers[how+" is not believed"]++
				continue
			}
			for name, x := range map[string]between{" by propensity": e.IPS, " normalised": e.Normalised} {
				if *x.Low <= truth && truth <= *x.High {
					covers[how+name]++
				}
			}
		}
	}
	// 95 % of 20 are 19; four standard deviations of that are 4. Package stats tells it finer.
	for _, how := range []string{"sum", "alone"} {
		if covers[how+" by propensity"] < 15 || covers[how+" normalised"] < 15 || covers[how+" is not believed"] > 2 {
			t.Errorf("of %d runs: %v", runs, covers)
		}
	}
}

// A ranking of which variants show a part alone gets no estimate, with the reason; nor
// does one where it is not known what a variant shows.
func TestEstimatesThatAreNotBelievable(t *testing.T) {
	dir, sum := lin(t, "1")
	file, definition := filepath.Join(t.TempDir(), "shown.ndjson"), filepath.Join(t.TempDir(), "tune.yaml")
	dealtPages(t, file, sum, 1)
	write(t, definition, tune)
	args := []string{dir, "--exposures", file, "--experiment", "tune", "--weights", "fresh=-1"} // the stalest first
	e := told(t, append(args, "--definition", definition)...).Estimate
	if !strings.HasPrefix(e.Unbelieved, "mean weight 0.") || !strings.Contains(e.Unbelieved, "should be 1; variants are in the file as often as their chances say, so it seems that none shows some of what the new ranking would") || e.IPS.Low != nil || e.Normalised.Low != nil {
		t.Errorf("%+v", e)
	}
	e = told(t, args...).Estimate
	if !strings.Contains(e.Unknown, "which is not known of variant a: the weights of lin are not at hand") || e.IPS.Low != nil || e.MeanWeight != nil {
		t.Errorf("%+v", e)
	}
	write(t, definition, strings.Replace(tune, "set: {weights", "set: {window: 24h, weights", 1))
	e = told(t, append(args, "--definition", definition)...).Estimate
	if !strings.Contains(e.Unknown, "variant a: it sets window, and so chooses among other records") {
		t.Errorf("%+v", e)
	}
}

// What a page of few items does not have, another ranking may have chosen: they say
// nothing of one that no variant ranks by.
func TestShortPagesTellNothing(t *testing.T) {
	dir, sum := lin(t, "1")
	another, _ := lin(t, "2")
	file, definition := filepath.Join(t.TempDir(), "shown.ndjson"), filepath.Join(t.TempDir(), "tune.yaml")
	dealtPages(t, file, sum, 1)
	write(t, definition, tune)
	args := []string{"--exposures", file, "--experiment", "tune", "--match", "2", "--definition", definition}
	if e := told(t, append(args, another, "--beside", dir)...).Estimate; e.Unknown != "no variant ranks by this model, and 500 pages have fewer than 10 items for each of --match: what another ranking would have begun them with they cannot tell; an experiment with it can" {
		t.Errorf("%+v", e)
	}
	if e := told(t, append(args, dir)...).Estimate; e.Unknown != "" || len(e.Alone) != 1 {
		t.Errorf("%+v", e)
	}
}

// A variant whose pages do not begin as its model ranks them says nothing of how it would
// have begun others.
func TestArmsThatRankOtherwise(t *testing.T) {
	a := &arm{by: new(ranker), began: 1000, other: 10, rankings: map[ranking]bool{{name: "m"}: true}}
	if why := a.unclear(5000); why != "" {
		t.Error(why)
	}
	a.other++
	if why := a.unclear(5000); why != "11 of its 1000 first pages do not begin as model m  ranks them" {
		t.Errorf("%q", why)
	}
	a.other, a.blind = 0, 1
	if why := a.unclear(5000); !strings.Contains(why, "1 pages lack features") {
		t.Errorf("%q", why)
	}
	a.blind, a.open = 0, 50
	if why := a.unclear(5000); why != "" {
		t.Error(why)
	}
	a.open++
	if why := a.unclear(5000); why != "model m  gives the first items of 51 pages equal scores, which leaves open what it begins them with" {
		t.Errorf("%q", why)
	}
}

// Viewers look at place p with chance 1/p and click on what is liked. As they are, the
// clicks find the better order no better than it is by far; by propensities of places
// the interval has what it is worth.
func TestReplayByPositions(t *testing.T) {
	dir, sum := lin(t, "1")
	file, places := filepath.Join(t.TempDir(), "shown.ndjson"), filepath.Join(t.TempDir(), "places.csv")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	w := export.RowsTo(f, "ndjson")
	rnd := rand.New(rand.NewPCG(5, 3))
	name, version := "lin", "1"
	relevance := []float64{0.1, 0.3, 0.5} // as shown, which the model turns round
	truth := 0.
	for i, x := range relevance {
		truth += (relevance[2-i] - x) / math.Log2(float64(i+2))
	}
	for i := range 3000 {
		for k, x := range relevance {
			place, id, zero, fresh := int64(k+1), fmt.Sprint("r", k), 0., float64(k)
			row := export.Item{Answer: fmt.Sprint("a", i), Viewer: fmt.Sprint("v", i), Place: &place, ID: &id, Model: &name, ModelVersion: &version, ModelChecksum: &sum,
				Features: []export.Feature{{Name: "likes", Number: &zero}, {Name: "fresh", Number: &fresh}}}
			if rnd.Float64() < x && rnd.Float64() < 1/float64(k+1) {
				row.Outcomes = []export.Outcome{{Action: "click", Count: 1}}
			}
			if err := w.Write([]export.Item{row}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	f.Close()
	write(t, places, "place,propensity\n1,1\n2,0.5\n3,0.3333333333\n")
	shown := told(t, dir, "--exposures", file, "--positions", places)
	if d := shown.Measures[0].Difference; len(shown.Measures) != 1 || shown.Measures[0].Measure != "DCG@10" || shown.Viewers != 3000 || *d.Low > truth || *d.High < truth || *d.Low <= 0 || !strings.HasPrefix(shown.Bias, "corrected") {
		t.Errorf("want %v in %+v", truth, shown)
	}
	shown = told(t, dir, "--exposures", file)
	if d := shown.Measures[0].Difference; *d.High > 0.1 || !strings.Contains(shown.Bias, "favours the order that was shown") {
		t.Errorf("%+v", shown)
	}
	for text, want := range map[string]string{
		"":                                   "does not begin with place,propensity",
		"1,1\n":                              "does not begin with place,propensity",
		"place,propensity\n":                 "has no place",
		"place,propensity\n0,1\n":            `:2: "0" is no place`,
		"place,propensity\n1,1\n2,0\n":       `:3: "0" is no propensity`,
		"place,propensity\n1,NaN\n":          `:2: "NaN" is no propensity`,
		"place,propensity\n1,1.5\n":          `:2: "1.5" is no propensity`,
		"place,propensity\n1,1\n1,0.5\n":     ":3: place 1 stands twice",
		"place,propensity\n1,1,1\n":          "wrong number of fields",
		"place,propensity\n1,1\n2,0.5\n":     "has no place 3, at which viewers did click; give every place",
		"place,propensity\n2,0.5\n3,0.333\n": "has no place 1, at which viewers did click",
	} {
		write(t, places, text)
		c := replayCommand(new([]string))
		c.SetOut(new(bytes.Buffer))
		c.SetErr(new(bytes.Buffer))
		c.SetArgs([]string{dir, "--exposures", file, "--positions", places})
		if err := c.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// A directory goes before a model of that name that serves, and it is said.
func TestReplaySaysWhatWasTaken(t *testing.T) {
	dir, sum := lin(t, "1")
	file := filepath.Join(t.TempDir(), "shown.ndjson")
	dealtPages(t, file, sum, 1)
	t.Chdir(t.TempDir())
	if err := os.CopyFS("lin", os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"lin": "of lin in this directory, whatever serves under that name", "./lin": "of ./lin", dir: "of " + dir} {
		if from := told(t, name, "--exposures", file).From; from != want {
			t.Errorf("%q, want %q", from, want)
		}
	}
}

// Who names a model that serves in the default cluster has named the cluster, and what
// variants rank by is looked for there.
func TestAServedModelNamesItsCluster(t *testing.T) {
	s := clitest.NewStage(t, "n1")
	pack, err := modelpack.Open(s.RatePack("1", "likes"))
	s.Check(err)
	var tar bytes.Buffer
	s.Check(pack.WriteTar(&tar))
	v, _, err := s.Models.Publish(t.Context(), "rate", "1", tar.Bytes(), "somebody")
	s.Check(err)
	s.Check(s.Models.Serve(t.Context(), v, nil, "somebody"))
	at := source{cm: &clusters.Flags{Etcd: s.Etcd, Cluster: s.Name}, kafka: &reach.KafkaFlags{}, avsc: &[]string{}}
	if o, err := at.open(t.Context(), "recency"); err != nil || at.named {
		t.Errorf("built in: %+v, %v", o, err)
	}
	if o, err := at.open(t.Context(), "rate"); err != nil || !at.named {
		t.Errorf("served: %+v, %v", o, err)
	}
}
