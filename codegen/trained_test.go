package codegen

import (
	"fmt"
	"math"
	"os"
	"path"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/trees"
	"github.com/millrace/millrace/relevance/trees/trained"
)

// TestTrained serves every model that relevance/trees/trained holds from the
// spec of trees_trained, whose code is generated, and compares its sums with
// what the library stored: the bits of both executions. (That the leaves are
// the library's, and the links, the importers' own test says.)
func TestTrained(t *testing.T) {
	models, err := trained.Models()
	if err != nil {
		t.Fatal(err)
	}
	spec, err := os.ReadFile("testdata/trees_trained/spec.yaml")
	if err != nil {
		t.Fatal(err)
	}
	served := 0
	for _, m := range models {
		f, err := trees.Import(m.File)
		if err != nil {
			continue // the importers' test knows which
		}
		served++
		for class := range f.Classes {
			files := fstest.MapFS{
				"spec.yaml": {Data: []byte(strings.Replace(string(spec), "model: model.txt,", fmt.Sprintf("model: model, class: %d, output: raw,", class), 1))},
				"model":     {Data: m.File},
			}
			model, err := relevance.ParseFile(files, "spec.yaml", known())
			if err != nil {
				t.Fatalf("%s: %v", m.Name, err)
			}
			checkTrained(t, model, m, class)
		}
	}
	if served < 100 {
		t.Errorf("%d models", served)
	}
}

func checkTrained(t *testing.T, model *relevance.Model, m *trained.Model, class int) {
	t.Helper()
	rows, sel := trainedRows(t, m)
	for execution, model := range map[string]*relevance.Model{"generated": model, "interpreted": model.Interpreted()} {
		s, err := model.Bind(rows.Layout(), nil, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		if s.Execution() != execution {
			t.Fatalf("%s: %s, want %s", m.Name, s.Execution(), execution)
		}
		out := make([]float64, len(sel))
		s.Score(rows, sel, nil, out)
		for i, got := range out {
			if want := m.Raw[i][class]; got != want && !(math.IsNaN(got) && math.IsNaN(want)) {
				t.Fatalf("%s, %s: row %d %v, class %d: %v, want %v", m.Name, execution, i, m.Rows[i], class, got, want)
			}
		}
	}
}

// trainedRows makes records of a model's rows.
func trainedRows(t *testing.T, m *trained.Model) (*column.Slab, []int32) {
	t.Helper()
	a := column.New(columns, len(m.Rows), 0).Append()
	sel := make([]int32, len(m.Rows))
	for i, row := range m.Rows {
		r := a.Begin()
		for f, x := range row {
			r.SetDouble(f, x)
		}
		if err := a.End(r); err != nil {
			t.Fatal(err)
		}
		sel[i] = int32(i)
	}
	return a.Slab(), sel
}

// TestSoftmaxLabels: the number of a class is no score, the sum of one is.
func TestSoftmaxLabels(t *testing.T) {
	models, err := trained.Models()
	if err != nil {
		t.Fatal(err)
	}
	spec, err := os.ReadFile("testdata/trees_trained/spec.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range models {
		if path.Base(m.Name) != "softmax" {
			continue
		}
		files := fstest.MapFS{
			"spec.yaml": {Data: []byte(strings.Replace(string(spec), "model: model.txt,", "model: model, class: 1,", 1))},
			"model":     {Data: m.File},
		}
		if _, err := relevance.ParseFile(files, "spec.yaml", known()); err == nil || !strings.Contains(err.Error(), "add output: raw") {
			t.Errorf("%s: %v", m.Name, err)
		}
	}
}
