package cli

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace/relevance/modelpack"
)

// The features of records are what golden rows say that they are, whichever
// way they are written.
func TestModelFeatures(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	spec := filepath.Join(dir, "spec.yaml")
	text := `name: seen
version: "1"
schemas: [millrace.Activity]
viewer:
  country: string
features:
  age_hours: age(record.created_at) / 3600
  talk: record.comments / (record.likes + record.comments)
  verb: record.verb
  near: viewer.country != "" && record.text.contains(viewer.country)
scorer: linear
parameters:
  weights: {age_hours: 1, talk: 1, near: 1, verb: {post: 1}}
`
	if err := os.WriteFile(spec, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	const record = `"record":{"id":"a","actor":"m","verb":"post","created_at":"2026-01-02T15:04:05Z","text":"from Peru, with \"love\"","likes":3,"comments":1}`
	lines := []string{
		`{` + record + `,"as_of":"2026-01-02T17:04:05Z","viewer":{"id":"v","country":"Peru"},"label":1,"group":"a,b"}`,
		"",
		`{"label":0.5,"group":null,"record":{"id":"b","actor":"m","verb":"like","created_at":"2026-01-02T15:04:05Z"}}`,
	}
	file := filepath.Join(dir, "seen.ndjson")
	write := func(lines ...string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(lines...)
	out, err := execute(t.Context(), "model", "features", spec, "--records", file, "--keep", "label,group")
	want := "label,group,age_hours,talk,verb,near\n1,\"a,b\",2,0.25,post,1\n0.5,,0,,like,0\n"
	if err != nil || out != want {
		t.Errorf("%v\n%s\nnot\n%s", err, out, want)
	}
	out, err = execute(t.Context(), "model", "features", spec, "--records", file, "--keep", "group,label", "-o", "ndjson")
	want = `{"group":"a,b","label":1,"features":{"age_hours":2,"talk":0.25,"verb":"post","near":1}}
{"group":null,"label":0.5,"features":{"age_hours":0,"talk":null,"verb":"like","near":0}}
`
	if err != nil || out != want {
		t.Errorf("%v\n%s\nnot\n%s", err, out, want)
	}
	for _, args := range [][]string{{"features", spec, "--keep", "label,group", "--records", file}, {"golden", spec, file}} {
		if args[0] == "golden" {
			write(`{` + record + `}`)
		}
		if out, err := execute(cancelled(t), append([]string{"model"}, args...)...); err == nil || err.Error() != "interrupted" {
			t.Errorf("%s goes on when it is told to stop: %v\n%s", args[0], err, out)
		}
	}
	// What a spec does not read may be there, for another model.
	write(`{` + record + `,"entity":{"karma":1},"object":{"x":2}}`)
	const note = "seen.ndjson: 1 rows give features under entity, where the spec reads none: they are left out\n"
	for _, args := range [][]string{{"model", "features", spec, "--records", file}, {"model", "golden", spec, file}} {
		out, err := output(args...)
		if err != nil || !strings.Contains(out, note) || !strings.Contains(out, "under object") || strings.Contains(out, "karma") {
			t.Errorf("%s: %v\n%s", args[1], err, out)
		}
	}
	for name, c := range map[string]struct{ line, keep, want string }{
		"a name that is mistyped": {strings.Replace(lines[0], `"viewer"`, `"viewr"`, 1), "label,group", "seen.ndjson:2: viewr is no field of a row; did you mean viewer?"},
		"what nobody keeps":       {lines[0], "label", "seen.ndjson:2: group is no field of a row; known are"},
		"what is not there":       {strings.Replace(lines[2], `"label":0.5,`, "", 1), "label,group", "seen.ndjson:2: there is no label, which --keep names"},
		"no field of the schema":  {strings.Replace(lines[2], `"actor"`, `"author"`, 1), "label,group", "seen.ndjson:2: no field author in record"},
		"no JSON":                 {`{"record":`, "label,group", "seen.ndjson:2: "},
		"a name twice":            {strings.Replace(lines[2], `"label":0.5,`, `"label":0.5,"label":1,`, 1), "label,group", `seen.ndjson:2: "label" stands twice in one object`},
		"a field twice":           {`{"record":{"likes":1,"likes":2},"label":1,"group":2}`, "label,group", `seen.ndjson:2: "likes" stands twice in one object`},
		"no UTF-8":                {strings.Replace(lines[2], `"label":0.5`, "\"label\":\"\xff\"", 1), "label,group", "seen.ndjson:2: the text is not UTF-8"},
		"a request's viewer":      {`{` + record + `,"viewer":{"id":"m:1","attributes":{"country":"de"}},"label":1,"group":2}`, "label,group", "seen.ndjson:2: viewer.attributes is an object, and no attribute is; write attributes beside id"},
		"no record":               {`{"viewer":{},"label":1,"group":2}`, "label,group", "seen.ndjson:2: the row has no record"},
	} {
		good := lines[0]
		if c.keep == "label" {
			good = strings.Replace(good, `,"group":"a,b"`, "", 1)
		}
		write(good, c.line)
		out, err := execute(t.Context(), "model", "features", spec, "--records", file, "--keep", c.keep)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
		if rows := strings.Count(out, "\n"); rows != 2 { // titles, and the line that is good
			t.Errorf("%s: %d lines are written:\n%s", name, rows, out)
		}
	}
	for keep, want := range map[string]string{
		"label,label":      `keep: "label" is named twice`,
		"label,verb":       `keep: "verb" is what the features have as a name`,
		"features -o json": "say csv or ndjson",
		// What stands under features in NDJSON is no column of CSV, and the other way round.
		"features -o ndjson": `keep: "features" is what the features have as a name`,
		"verb -o ndjson":     "there is no verb, which --keep names",
	} {
		write(lines[2])
		args := append([]string{"model", "features", spec, "--records", file, "--keep"}, strings.Fields(keep)...)
		if out, err := execute(t.Context(), args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v\n%s", keep, err, out)
		}
	}
	if _, err := execute(t.Context(), "model", "features", spec, "--records", file, "-o", "xml"); err == nil || !strings.Contains(err.Error(), "say csv or ndjson") {
		t.Errorf("xml: %v", err)
	}
	write("")
	if out, err := execute(t.Context(), "model", "features", "home", "--records", file); err != nil || !strings.HasSuffix(out, "\n") || strings.Count(out, "\n") != 1 {
		t.Errorf("no records: %v\n%s", err, out)
	}
}

// Of the tutorial's model, the features of every golden row's record are those
// that the row gives.
func TestModelFeaturesEqualGoldenRows(t *testing.T) {
	t.Parallel()
	file := filepath.Join("..", "..", "docs", "models", "golden.ndjson")
	golden, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := modelpack.ReadGolden(file, golden)
	if err != nil {
		t.Fatal(err)
	}
	out, err := execute(t.Context(), "model", "features", likesSpec(t), "--records", file)
	if err != nil {
		t.Fatal(err)
	}
	table, err := csv.NewReader(bytes.NewBufferString(out)).ReadAll()
	if err != nil || len(table) != len(rows)+1 {
		t.Fatalf("%d lines of %d rows: %v", len(table), len(rows), err)
	}
	for i, row := range rows {
		if len(row.Features) != len(table[0]) {
			t.Fatalf("row %d has %d features, and %d are written", i, len(row.Features), len(table[0]))
		}
		for j, name := range table[0] {
			want, cell := row.Features[name], table[i+1][j]
			got, err := strconv.ParseFloat(cell, 64)
			if x, ok := want.(float64); ok && (err != nil || got-x > 1e-9*max(1, x) || x-got > 1e-9*max(1, x)) || want == nil && cell != "" {
				t.Errorf("row %d: %s is %q, and the row says %v", i, name, cell, want)
			}
		}
	}
}

// likesSpec is the spec of docs/models.md, with what it mistypes mended, and
// weights in place of its trees.
func likesSpec(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "models.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "```yaml likes/spec.yaml\n")
	text, _, closed := strings.Cut(text, "```")
	before, after, trees := strings.Cut(text, "scorer: trees\ntrees:\n  model: model.txt\n")
	if !found || !closed || !trees {
		t.Fatal("docs/models.md has no such spec any more")
	}
	text = strings.NewReplacer("coments", "comments", "lookup(verb,", "lookup(verbs,").Replace(before + "scorer: linear\n" + after)
	_, features, _ := strings.Cut(text, "features:\n")
	features, _, _ = strings.Cut(features, "\nscorer")
	weights := map[string]float64{}
	for line := range strings.Lines(features) {
		if name, _, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && !strings.HasPrefix(name, "#") {
			weights[name] = 1
		}
	}
	w, err := json.Marshal(weights)
	if err != nil {
		t.Fatal(err)
	}
	spec := filepath.Join(t.TempDir(), "spec.yaml")
	if err := os.WriteFile(spec, []byte(strings.Replace(text, "parameters:\n", "parameters:\n  weights: "+string(w)+"\n", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	return spec
}
