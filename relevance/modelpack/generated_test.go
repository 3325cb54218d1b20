package modelpack

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/millrace/millrace/codegen"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/plan"
)

// Generated code that somebody has edited is found. Code that scores as the spec says, and no code, are not at fault.
func TestEditedGeneratedCodeIsFound(t *testing.T) {
	known := relevance.ShippedSchemas()
	const golden = `{"record":{"id":"p","actor":"a","verb":"post","created_at":1000,"likes":1000},"as_of":2000,"features":{"a":%},"score":%}` + "\n"
	shape := regexp.MustCompile(`Shape: "([0-9a-f]+)"`)
	for name, c := range map[string]struct {
		code  func(weight float64) compute.ModelFunc
		fault string
	}{
		"right": {func(float64) compute.ModelFunc { return likesTimes(1) }, ""},
		"wrong": {func(float64) compute.ModelFunc { return likesTimes(-1) }, "it gives -1000 where the spec gives 1001"},
		"once":  {func(float64) compute.ModelFunc { return thousandTimes(-1) }, "it gives -1000 where the spec gives 1000"}, // for the record of the rows alone
		"panic": {func(float64) compute.ModelFunc { return func(*compute.ModelArgs) { panic("edited") } }, "edited"},
		"none":  {nil, ""},
	} {
		// Each has a shape of its own, so that the others' code is not found for it.
		feature := map[string]string{"right": "record.likes + 0.0", "wrong": "record.likes * 1.0 + 1.0", "panic": "record.likes * 1.0 + 2.0", "none": "record.likes * 1.0 + 3.0", "once": "record.likes * 1.0"}[name]
		spec := "name: " + name + "\nversion: \"1\"\nschemas: [millrace.Activity]\nfeatures: {a: \"" + feature + "\"}\nscorer: linear\nparameters: {weights: {a: 1}}\n"
		score := map[string]string{"right": "1000", "wrong": "1001", "panic": "1002", "none": "1003", "once": "1000"}[name]
		p, err := sealed(map[string]string{SpecFile: spec, GoldenFile: strings.ReplaceAll(golden, "%", score), "card.md": "a card"})
		if err != nil {
			t.Fatal(name, err)
		}
		if c.code != nil {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "spec.yaml"), []byte(spec), 0o600); err != nil {
				t.Fatal(err)
			}
			files, err := codegen.Generate("gen", known, codegen.Spec{Name: "spec.yaml", Dir: os.DirFS(dir)})
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range shape.FindAllStringSubmatch(string(files[0].Text), -1)[:1] {
				compute.RegisterModel(compute.Model{Name: name, Shape: m[1], Score: c.code(1)})
			}
		}
		m, err := Validate(p, known)
		if err != nil {
			t.Fatal(name, err)
		}
		why := p.CheckGenerated(m, known)
		if (why == nil) != (c.fault == "") || why != nil && !strings.Contains(why.Error(), c.fault) {
			t.Errorf("%s: %v", name, why)
		}
		// Without a record in any row, records are made up.
		p.files[GoldenFile] = []byte(`{"features":{"a":1},"score":1}` + "\n")
		why = p.CheckGenerated(m, known)
		if fails := c.fault != "" && name != "once"; (why != nil) != fails {
			t.Errorf("%s, of made-up records: %v", name, why)
		}
		p.files[GoldenFile] = []byte("{")
		if why := p.CheckGenerated(m, known); why == nil || !strings.Contains(why.Error(), "golden.ndjson:1: ") {
			t.Errorf("%s, of rows that cannot be read: %v", name, why)
		}
		p.files[GoldenFile] = []byte(`{"record":{"lieks":1}}`)
		if why := p.CheckGenerated(m, known); why != nil {
			t.Errorf("%s, of rows that are at fault: %v", name, why)
		}
	}
}

// thousandTimes is the code of a model whose score is the likes, and wrong where there are a
// thousand, unless the sign is 1.
func thousandTimes(sign float64) compute.ModelFunc {
	return func(k *compute.ModelArgs) {
		likesTimes(1)(k)
		for i, x := range k.Out[:len(k.Sel)] {
			if x == 1000 {
				k.Out[i] = sign * x
			}
		}
	}
}

// likesTimes is the code of a model whose score is the likes, times a sign that is 1.
func likesTimes(sign float64) compute.ModelFunc {
	return func(k *compute.ModelArgs) {
		likes := k.Rows.Column(k.Columns[0])
		for i, r := range k.Sel {
			k.Out[i] = sign * float64(int64(likes[r]))
		}
	}
}

// Code of the folded part of a score is compared as well, of models that read the entity too.
func TestEditedFoldsAreFound(t *testing.T) {
	known := relevance.ShippedSchemas()
	rows, entity := known["millrace.Activity"].Layout, known["millrace.Features"].Layout
	spec := "name: folds\nversion: \"1\"\nschemas: [millrace.Activity]\nentity: millrace.Features\nfeatures: {own: record.likes * 3.0 + 4.0, rest: \"record.shares * entity.embedding[0]\"}\nscorer: linear\nparameters: {weights: {own: 1, rest: 1}}\n"
	p, err := sealed(map[string]string{SpecFile: spec, GoldenFile: `{"record":{"likes":2,"shares":5},"entity":{"embedding":[7]},"features":{"own":10,"rest":35},"score":45}`, "card.md": "a card"})
	if err != nil {
		t.Fatal(err)
	}
	check := func() error {
		m, err := Validate(p, known)
		if err != nil {
			t.Fatal(err)
		}
		return p.CheckGenerated(m, known)
	}
	if err := check(); err != nil {
		t.Errorf("without code: %v", err)
	}
	m, err := Validate(p, known)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := plan.Build(m.Spec().Source(), rows, entity)
	if err != nil {
		t.Fatal(err)
	}
	fold, _ := whole.Split()
	compute.RegisterModel(compute.Model{Name: "folds", Shape: fold.Shape(), Score: func(k *compute.ModelArgs) {
		for i := range k.Sel {
			k.Out[i] = -5
		}
	}})
	if err := check(); err == nil || err.Error() != "it gives 30 where the spec gives 45" {
		t.Errorf("a fold that was edited: %v", err)
	}
}
