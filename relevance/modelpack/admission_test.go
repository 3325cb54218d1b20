package modelpack

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/millrace/millrace/relevance"
)

// TestCostIsOfTheSpecAlone: what is admitted does not depend on the machine.
func TestCostIsOfTheSpecAlone(t *testing.T) {
	for _, name := range relevance.Builtin().Names() {
		m, err := relevance.Builtin().Get(name)
		if err == nil {
			err = affordable(m)
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for n, fits := range map[int]bool{400: true, 1200: false} { // products of lists, which cost their lists
		var features, weights strings.Builder
		for i := range n {
			fmt.Fprintf(&features, "f%d: 'dot(record.features, viewer.v)', ", i)
			fmt.Fprintf(&weights, "f%d: 1, ", i)
		}
		spec := fmt.Sprintf("name: team\nversion: \"2\"\nschemas: [millrace.Activity]\nviewer: {v: list(double)}\nfeatures: {%s}\nscorer: linear\nparameters: {weights: {%s}}\n", &features, &weights)
		p, err := sealed(map[string]string{SpecFile: spec, CardFile: "x", GoldenFile: `{"score":0}`})
		if err != nil {
			t.Fatal(err)
		}
		_, err = Validate(p, relevance.ShippedSchemas()) // which has more to say of the row
		if fits == strings.Contains(err.Error(), "a record costs") {
			t.Errorf("%d products of lists: %v", n, err)
		}
	}
}

// allocated is how many bytes a call allocates, garbage included.
func allocated(call func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	call()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// What golden rows cost to try is bounded by the pack alone: by how many they are, by
// what a row costs, and by the texts that are read in them. No row of what is refused
// is tried, and one plan is made for all rows of what is not.
func TestGoldenRowsCost(t *testing.T) {
	var features, weights, values []string
	for i := range 10 {
		terms := "0.0"
		for j := range 30 {
			terms += fmt.Sprintf(` + (record.text.contains("%d") ? 1.0 : 2.0)`, 100+30*i+j)
		}
		features = append(features, fmt.Sprintf("f%d: '%s'", i, terms))
		weights, values = append(weights, fmt.Sprintf("f%d: 1", i)), append(values, fmt.Sprintf(`"f%d":60`, i))
	}
	spec := fmt.Sprintf("name: team\nversion: \"1\"\nschemas: [millrace.Activity]\nfeatures:\n  %s\nscorer: linear\nparameters: {weights: {%s}}\n", strings.Join(features, "\n  "), strings.Join(weights, ", "))
	for _, c := range []struct {
		rows, text int
		refused    string
	}{
		{rows: 1000, text: 10},
		{rows: 5, text: 30_000},
		{rows: 10_000, text: 10, refused: "for each of 10000 rows"},
		{rows: 50, text: 30_000, refused: "for 300 functions that read texts"},
	} {
		row := fmt.Sprintf(`{"record":{"text":"%s"},"features":{%s},"score":600}`+"\n", strings.Repeat("z", c.text), strings.Join(values, ","))
		p, err := sealed(map[string]string{SpecFile: spec, CardFile: "# team\n", GoldenFile: strings.Repeat(row, c.rows)})
		if err != nil {
			t.Fatal(err)
		}
		took := allocated(func() { _, err = Validate(p, relevance.ShippedSchemas()) })
		if (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%d rows of %d bytes: %v", c.rows, c.text, err)
		}
		if took > 64<<20 {
			t.Errorf("%d rows of %d bytes: %d MiB are allocated", c.rows, c.text, took>>20)
		}
	}
}

// A pack says by itself what is no parameter of its model, in the model's words,
// whatever schemas are known.
func TestPacksTellTheirWeights(t *testing.T) {
	p := seal(t, writePack(t, teamFiles(), 4))
	m, err := Validate(p, relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	p.files[SpecFile] = []byte(strings.Replace(packSpec, "millrace.Activity", "team.Talk", 1))
	if _, err := Validate(p, relevance.ShippedSchemas()); err == nil {
		t.Fatal("team.Talk is known")
	}
	for _, name := range []string{"likes", "bias", "verb.share", "hour.1", "verb", "verb.like", "hour.3", "clicks", "tables.a.b"} {
		_, want := m.Weighted(map[string]float64{name: 1, "language": 3})
		if got := p.CheckWeights(map[string]float64{name: 1, "language": 3}); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	p.files[SpecFile] = []byte(strings.Replace(packSpec, "logistic", "trees", 1))
	if err := p.CheckWeights(map[string]float64{"likes": 1}); err == nil || !strings.Contains(err.Error(), "model team 1.9 is of trees, which have no weights") {
		t.Errorf("trees: %v", err)
	}
	delete(p.files, "parameters.yaml")
	if err := p.CheckWeights(map[string]float64{"likes": 1}); err == nil || !strings.Contains(err.Error(), "no file parameters.yaml in the pack") {
		t.Errorf("without parameters: %v", err)
	}
}
