package relevance

import (
	"math"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/millrace/millrace"
)

// TestExplainAddsUp: base and contributions are the score before its link.
func TestExplainAddsUp(t *testing.T) {
	forest := fstest.MapFS{"spec.yaml": {Data: []byte("name: f\nversion: 1\nschemas: [millrace.Activity]\nfeatures: {X1: record.likes, X2: record.shares}\nscorer: trees\ntrees: {model: model.txt, output: raw}\n")}}
	model, err := os.ReadFile("trees/testdata/lightgbm/model_simple.txt")
	if err != nil {
		t.Fatal(err)
	}
	forest["model.txt"] = &fstest.MapFile{Data: model}
	layout := ShippedSchemas()["millrace.Activity"].Layout
	rows := activities(t, layout,
		map[string]any{"verb": "post", "likes": 7, "created_at": 1000, "language": "en"},
		map[string]any{"verb": "share", "shares": 100, "likes": 500})
	viewer := &millrace.Viewer{Attributes: map[string]any{"languages": []string{"en"}}}
	trees, err := ParseFile(forest, "spec.yaml", ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	logistic, err := ParseFile(os.DirFS("modelpack/testdata/team"), "spec.yaml", ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]*Model{"home": builtinModel(t, "home"), "logistic": logistic, "trees": trees} {
		s, err := m.Bind(layout, nil, viewer, 3_600_000)
		if err != nil {
			t.Fatal(err)
		}
		want := score(t, m, rows, viewer, 3_600_000)
		for row := range 2 {
			e := s.Explain(rows, row, nil)
			sum := e.Base
			for _, f := range e.Features {
				sum += f.Contribution
			}
			if name == "logistic" {
				sum = 1 / (1 + math.Exp(-sum))
			}
			if e.Score != want[row] || !(math.Abs(sum-e.Score) < 1e-12*max(1, math.Abs(sum))) {
				t.Errorf("%s, row %d: adds up to %v, explains %v, scores %v", name, row, sum, e.Score, want[row])
			}
		}
	}
	s, err := builtinModel(t, "home").Bind(layout, nil, viewer, 3_600_000)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range s.Explain(rows, 0, nil).Features {
		if f.Name == "type" && (f.Value != "post" || f.Contribution != 0.6) || strings.HasPrefix(f.Name, "language") && f.Contribution != 0.7 {
			t.Errorf("got %+v", f)
		}
	}
}

// What is explained stays when the next row is, for another viewer too.
func TestExplainOneAfterTheOther(t *testing.T) {
	layout := ShippedSchemas()["millrace.Activity"].Layout
	rows := activities(t, layout, map[string]any{"verb": "post", "language": "en"}, map[string]any{"verb": "comment", "language": "de"})
	m, err := Parse("crossed.yaml", []byte(`
name: crossed
version: "1"
schemas: [millrace.Activity]
viewer: {country: string}
features: {where: "cross(record.language, viewer.country)"}
scorer: linear
parameters: {weights: {where: {en|India: 1, de|Spain: 2}}}
`), ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	of := func(country string) *millrace.Viewer {
		return &millrace.Viewer{Attributes: map[string]any{"country": country}}
	}
	s, err := m.Bind(layout, nil, of("India"), 0)
	if err != nil {
		t.Fatal(err)
	}
	first := s.Explain(rows, 0, nil)
	if err := s.Rebind(of("Spain"), 0); err != nil {
		t.Fatal(err)
	}
	second := s.Explain(rows, 1, nil)
	if f := first.Features[0]; f.Value != "en|India" || first.Score != 1 {
		t.Errorf("the first is %+v", first)
	}
	if f := second.Features[0]; f.Value != "de|Spain" || second.Score != 2 {
		t.Errorf("the second is %+v", second)
	}
}
