package relevance

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/relevance/trees/trained"
	"github.com/millrace/millrace/schemas"
)

// TestGoldenRowsOfLibraries: a pack whose golden rows are what the library
// predicted is sealed, and one with other predictions is not.
func TestGoldenRowsOfLibraries(t *testing.T) {
	models, err := trained.Models()
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, m := range models {
		switch path.Base(m.Name) {
		case "binary", "softprob", "poisson", "tweedie", "rf", "logistic_ubj", "categories_40":
			tried++
			if _, err := Seal(writePack(t, goldenPack(t, m, 0), 0), ShippedSchemas()); err != nil {
				t.Errorf("%s: %v", m.Name, err)
			}
			if _, err := Seal(writePack(t, goldenPack(t, m, 1e-6), 0), ShippedSchemas()); err == nil || !strings.Contains(err.Error(), "golden rows are off") {
				t.Errorf("%s, other scores: %v", m.Name, err)
			}
		}
	}
	if tried < 9 {
		t.Errorf("%d models", tried)
	}
}

// goldenPack is the files of a pack with the library's scores and more.
func goldenPack(t *testing.T, m *trained.Model, more float64) map[string]string {
	t.Helper()
	spec := "name: golden\nversion: \"1\"\nschemas: [millrace.Activity]\nfeatures:\n"
	var names []string
	for c := range trained.Columns {
		names = append(names, fmt.Sprintf("x%d", c))
		spec += fmt.Sprintf("  x%d: record.likes * %d.0\n", c, c+1)
	}
	class := len(m.Scores[0]) - 1
	spec += fmt.Sprintf("scorer: trees\ntrees: {model: model, class: %d, inputs: [%s]}\n", class, strings.Join(names, ", "))
	var golden strings.Builder
	for n := 0; n < minGoldenTrained; {
		for i, row := range m.Rows {
			features := map[string]any{}
			for c, x := range row {
				if !math.IsNaN(x) && !math.IsInf(x, 0) {
					features[names[c]] = x
				} else if math.IsInf(x, 0) {
					features = nil
					break
				}
			}
			score := m.Scores[i][class]
			score += more * max(1, math.Abs(score))
			if features == nil || math.IsInf(score, 0) {
				continue
			}
			line, err := json.Marshal(Golden{Features: features, Score: &score})
			if err != nil {
				t.Fatal(err)
			}
			golden.Write(append(line, '\n'))
			n++
		}
	}
	return map[string]string{SpecFile: spec, "model": string(m.File), GoldenFile: golden.String(), CardFile: "x"}
}

const ratioSpec = `name: ratio
version: "1"
schemas: [millrace.Activity]
viewer: {calm: bool}
features:
  likes: log1p(record.likes)
  ratio: record.likes / record.shares
  fresh: decay(record.created_at, 3600)
  calm: viewer.calm
scorer: linear
parameters: {weights: {likes: 1, ratio: 1, fresh: 1, calm: 2}}
`

// TestGoldenRowsCatchExpressions: a feature that the expression makes nothing
// of, where the row says a number, is caught when the pack is sealed and when
// it is admitted, and so is one that no row with a record tests.
func TestGoldenRowsCatchExpressions(t *testing.T) {
	const (
		features = `{"features":{"likes":0,"ratio":3,"fresh":0.5,"calm":true},"score":5.5}`
		good     = `{"features":{"likes":0.6931471805599453,"ratio":0.5,"fresh":0.5,"calm":true},"score":3.6931471805599454,"record":{"likes":1,"shares":2,"created_at":"2026-01-02T15:00:00Z"},"viewer":{"id":"m","calm":true},"as_of":"2026-01-02T16:00:00Z"}`
		zero     = `{"features":{"likes":0.6931471805599453,"ratio":0.5,"fresh":0.5,"calm":true},"score":3.6931471805599454,"record":{"likes":1,"created_at":1767366000000},"viewer":{"calm":true},"as_of":1767369600000}`
		zeroNull = `{"features":{"likes":0.6931471805599453,"ratio":null,"fresh":0.5,"calm":true},"score":0,"record":{"likes":1,"created_at":1767366000000},"viewer":{"calm":true},"as_of":1767369600000}`
	)
	for name, c := range map[string]struct{ rows, want string }{
		"features and a record":    {features + "\n" + good, ""},
		"no record at all":         {features, "no row has a record"},
		"divided by zero":          {good + "\n" + zero, "feature ratio is"},
		"another score":            {strings.Replace(good, "3.69", "4.69", 1), "golden rows are off"},
		"another instant":          {strings.Replace(good, "T16", "T17", 1), "feature fresh is 0.25, and the row says 0.5"},
		"a field that is not":      {strings.Replace(good, `"shares"`, `"sharse"`, 1), "no field sharse in record; did you mean shares?"},
		"a field of another type":  {strings.Replace(good, `"shares":2`, `"shares":"two"`, 1), "record.shares"},
		"a viewer of another type": {strings.Replace(good, `"viewer":{"id":"m","calm":true}`, `"viewer":{"calm":1}`, 1), "viewer.calm"},
	} {
		files := map[string]string{SpecFile: ratioSpec, GoldenFile: c.rows, CardFile: "x"}
		dir := t.TempDir()
		for file, text := range files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		_, err := Seal(dir, ShippedSchemas())
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, sealed: %v", name, err)
		}
		if err == nil {
			continue
		}
		// The same, as somebody seals it who checks nothing.
		p, err := sealed(files)
		if err == nil {
			_, err = Validate(p, ShippedSchemas())
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, admitted: %v", name, err)
		}
	}
	// A feature that never has a value.
	files := map[string]string{SpecFile: strings.Replace(ratioSpec, "record.likes / record.shares", "record.likes / (record.shares - record.shares)", 1), GoldenFile: zeroNull, CardFile: "x"}
	p, err := sealed(files)
	if err == nil {
		_, err = Validate(p, ShippedSchemas())
	}
	if err == nil || !strings.Contains(err.Error(), "ratio") {
		t.Errorf("a feature that is always divided by zero: %v", err)
	}
}

// TestGoldenRecordsAreAsLoaded: a record of a golden row is written as for
// millrace load, and what it leaves out has the default of its schema.
func TestGoldenRecordsAreAsLoaded(t *testing.T) {
	shop, err := schemas.Parse([]byte(`{"type":"record","name":"Visit","namespace":"shop","fields":[
	 {"name":"id","type":"string","millrace":"id"},{"name":"who","type":"string","millrace":"entity"},{"name":"kind","type":"string","millrace":"type"},
	 {"name":"at","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"},
	 {"name":"stars","type":"int","default":3},{"name":"notes","type":{"type":"map","values":"string"},"default":{}},
	 {"name":"place","type":{"type":"record","name":"Place","fields":[
	  {"name":"country","type":"string","default":"IN"},{"name":"size","type":"long"},
	  {"name":"owner","type":["null",{"type":"record","name":"Owner","fields":[{"name":"age","type":"long"}]}],"default":null}]}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	known := Schemas{shop.Name(): {Layout: shop.Layout()}}
	m, err := Parse(SpecFile, []byte(`name: visits
version: "1"
schemas: [shop.Visit]
features: {stars: record.stars, country: record.place.country, size: record.place.size, age: record.place.owner.age, kind: record.kind}
scorer: linear
parameters: {weights: {stars: 1, country: {IN: 10, PE: 20}, size: 100, age: 1000, kind: {a: 0}}}
`), known)
	if err != nil {
		t.Fatal(err)
	}
	for record, want := range map[string]string{
		`{}`:                                      "3 IN 0 <nil>",
		`{"stars":5,"notes":{"a":"b"}}`:           "5 IN 0 <nil>",
		`{"place":{"size":2}}`:                    "3 IN 2 <nil>",
		`{"place":{"country":"PE","size":"2"}}`:   "3 PE 2 <nil>",
		`{"place.country":"PE","place.size":2}`:   "3 PE 2 <nil>",
		`{"place":{"size":2,"owner":{"age":40}}}`: "3 IN 2 40",
		`{"place":{"size":2,"owner":null}}`:       "3 IN 2 <nil>",
		`{"stras":1,"place":{"sise":2}}`:          "no field place.sise in record; did you mean place.size?\nno field stras in record; did you mean stars?",
		`{"place":{"size":{"x":1}}}`:              "record.place.size: it is a int, and here is map[x:1]",
	} {
		rows, err := ReadGolden("golden", []byte(`{"record":`+record+`}`))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if err = m.Complete(&rows[0], known); err != nil && !strings.Contains(err.Error(), "score") {
			got = err.Error()
		} else {
			f := rows[0].Features
			got = fmt.Sprint(f["stars"], " ", f["country"], " ", f["size"], " ", f["age"])
		}
		if got != want {
			t.Errorf("%s: %s, want %s", record, got, want)
		}
	}
}

// sealed makes a pack of files without a look at them.
func sealed(files map[string]string) (*Pack, error) {
	m, err := Parse(SpecFile, []byte(files[SpecFile]), ShippedSchemas())
	if err != nil {
		return nil, err
	}
	manifest := Manifest{Format: packFormat, Name: m.Name(), Version: m.Version(), Features: m.FeatureTypes(), Files: map[string]string{}}
	raw := map[string][]byte{}
	for name, text := range files {
		raw[name], manifest.Files[name] = []byte(text), checksum([]byte(text))
	}
	if raw[ManifestFile], err = json.Marshal(manifest); err != nil {
		return nil, err
	}
	return newPack(raw)
}

// TestOldPacksSayTheWayOut: a pack whose golden rows test no expression is
// refused with what to do.
func TestOldPacksSayTheWayOut(t *testing.T) {
	_, err := newPack(map[string][]byte{ManifestFile: []byte(`{"format":1,"name":"x","version":"1","features":[],"files":{}}`)})
	if err == nil || !strings.Contains(err.Error(), "model golden") {
		t.Error(err)
	}
}
