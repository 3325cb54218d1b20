package codegen

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
)

// columnsLayout is a schema of as many numbers as the stored models have
// columns.
func columnsLayout() *column.Layout {
	var fields []column.Field
	for i := range 30 {
		fields = append(fields, column.Field{Name: fmt.Sprintf("Column_%d", i), Kind: column.Double})
	}
	l, err := column.NewLayout(fields)
	if err != nil {
		panic(err)
	}
	return l
}

// TestStoredPredictions scores the inputs of trained models through specs, by
// generated code and by the interpreter, and compares with what LightGBM
// predicted.
func TestStoredPredictions(t *testing.T) {
	const dir = "../relevance/trees/testdata/lightgbm/"
	for _, c := range []struct {
		name, inputs, predictions string
		skip, class               int
	}{
		{"trees_stored", "breast_cancer_test.tsv", "lg_dart_breast_cancer_true_predictions.txt", 0, 0},
		{"trees_stored_class", "multiclass_test.tsv", "lgmulticlass_true_predictions.txt", 1, 3},
	} {
		m, err := relevance.ParseFile(os.DirFS("testdata/"+c.name), "spec.yaml", known())
		if err != nil {
			t.Fatal(err)
		}
		inputs, want := numbers(t, dir+c.inputs), numbers(t, dir+c.predictions)
		a := column.New(columnsLayout(), len(inputs), 0).Append()
		sel := make([]int32, len(inputs))
		for i, row := range inputs {
			r := a.Begin()
			for f, x := range row[c.skip:] {
				r.SetDouble(f, x)
			}
			if err := a.End(r); err != nil {
				t.Fatal(err)
			}
			sel[i] = int32(i)
		}
		for _, m := range []*relevance.Model{m, m.Interpreted()} {
			s, err := m.Bind(a.Slab().Layout(), nil, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			out := make([]float64, len(sel))
			s.Score(a.Slab(), sel, nil, out)
			for i, got := range out {
				if !(math.Abs(got-want[i][c.class]) <= 1e-9) {
					t.Fatalf("%s, %s: row %d scores %v, want %v", c.name, s.Execution(), i, got, want[i][c.class])
				}
			}
		}
	}
}

// numbers reads rows of numbers separated by white space.
func numbers(t *testing.T, path string) [][]float64 {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]float64
	for line := range strings.Lines(string(text)) {
		var row []float64
		for _, w := range strings.Fields(line) {
			x, err := strconv.ParseFloat(w, 64)
			if err != nil {
				t.Fatal(err)
			}
			row = append(row, x)
		}
		rows = append(rows, row)
	}
	return rows
}
