package trees

import (
	"flag"
	"math"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/millrace/millrace/relevance/trees/trained"
)

var archive = flag.String("trained", "", "an archive of trained models to read instead of trained/models.tar.zst")

func trainedModels(t *testing.T) []*trained.Model {
	t.Helper()
	models, err := trained.Models()
	if *archive != "" {
		f, openErr := os.Open(*archive)
		if openErr != nil {
			t.Fatal(openErr)
		}
		defer f.Close()
		models, err = trained.Read(f)
	}
	if err != nil {
		t.Fatal(err)
	}
	return models
}

// refused are models that give more than a score a class, and what the
// refusal names. Old versions made others of them.
var refused = map[string]string{
	"two_targets":     "num_target is 2",
	"quantile_two":    "num_target is 2",
	"softprob_vector": "leaves are vectors",
}

// TestTrained: every model gives its library's leaves; its sums bit for bit;
// its scores to 1e-9 of LightGBM and to a unit in the last place of XGBoost's
// float32s, as their exponentials are not ours.
func TestTrained(t *testing.T) {
	for _, m := range trainedModels(t) {
		t.Run(m.Name, func(t *testing.T) {
			imported, err := Import(m.File)
			if why, ok := refused[path.Base(m.Name)]; ok && err != nil && strings.Contains(err.Error(), why) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			f := imported.Forest()
			checkLeaves(t, m, f)
			checkMoved(t, imported, m.Rows)
			checkExplained(t, f, m.Rows)
			for class := range f.Classes {
				g, err := f.Class(class)
				if err != nil {
					t.Fatal(err)
				}
				checkScores(t, m, scoreAll(g.Raw().Forest(), m.Rows), m.Raw, class, func(float64) float64 { return 0 })
				checkScores(t, m, scoreAll(g.Forest(), m.Rows), m.Scores, class, func(want float64) float64 {
					if m.Single() {
						return ulp32(want)
					}
					return 1e-9 * max(1, math.Abs(want))
				})
			}
		})
	}
}

// ulp32 is a unit in the last place of a float32.
func ulp32(x float64) float64 {
	y := math.Abs(float64(float32(x)))
	const tiny = 1.1754944e-38 // below, libraries differ in what they keep
	return max(tiny, float64(math.Nextafter32(float32(y), math.MaxFloat32))-y)
}

func checkLeaves(t *testing.T, m *trained.Model, f *Forest) {
	t.Helper()
	for i, row := range m.Rows {
		got := f.Leaves(row)
		if len(got) != len(m.Leaves[i]) {
			t.Fatalf("%d trees, want %d", len(got), len(m.Leaves[i]))
		}
		for k, leaf := range got {
			if float64(leaf) != m.Leaves[i][k] {
				t.Fatalf("row %d %v: tree %d: leaf %d, want %v", i, row, k, leaf, m.Leaves[i][k])
			}
		}
	}
}

// checkMoved scores by the columns that a model uses, behind one that it does not have.
func checkMoved(t *testing.T, m *Model, rows [][]float64) {
	t.Helper()
	used, to, n := m.Used(), make([]int, m.Inputs), 1
	for c := range m.Inputs { // in their order, as the sum of a linear booster depends on it
		if to[c] = -1; used[c] {
			to[c] = n
			n++
		}
	}
	moved := make([][]float64, len(rows))
	for i, row := range rows {
		moved[i] = make([]float64, n)
		for c, x := range row {
			if used[c] {
				moved[i][to[c]] = x
			}
		}
	}
	got, want := scoreAll(m.Renumbered(to, n), moved), scoreAll(m.Forest(), rows)
	for i := range rows {
		if got[i] != want[i] && !(math.IsNaN(got[i]) && math.IsNaN(want[i])) {
			t.Fatalf("row %d %v, moved to %v, scores %v, want %v", i, rows[i], to, got[i], want[i])
		}
	}
}

// checkExplained adds up what is explained to the score before its link.
func checkExplained(t *testing.T, f *Forest, rows [][]float64) {
	t.Helper()
	plain := *f
	if plain.link = identity; f.baseLast {
		plain.average = 1
	}
	want := scoreAll(&plain, rows)
	for i, row := range rows {
		base, columns := f.Explain(row)
		sum, size := base, math.Abs(base)
		for _, x := range columns {
			sum, size = sum+x, size+math.Abs(x)
		}
		if math.IsNaN(want[i]) || math.IsInf(want[i], 0) {
			continue
		}
		tolerance := 1e-12 * size
		if f.single {
			tolerance = 1e-5 * size
		}
		if !(math.Abs(sum-want[i]) <= tolerance) {
			t.Fatalf("row %d %v: %v and %v add up to %v, want %v", i, row, base, columns, sum, want[i])
		}
	}
}

func checkScores(t *testing.T, m *trained.Model, got []float64, want [][]float64, class int, tolerance func(float64) float64) {
	t.Helper()
	for i, x := range got {
		w := want[i][min(class, len(want[i])-1)] // multi:softmax has one
		if x == w || math.IsNaN(x) && math.IsNaN(w) {
			continue
		}
		if !(math.Abs(x-w) <= tolerance(w)) {
			t.Fatalf("row %d %v, class %d: %v, want %v", i, m.Rows[i], class, x, w)
		}
	}
}

// Leaves returns the number of the leaf, in the file's order, that one row
// reaches in each tree.
func (f *Forest) Leaves(row []float64) []int {
	block := f.row(row)
	out := make([]int, len(f.trees))
	for i := range f.trees {
		nodes := f.nodes[f.trees[i].start:f.trees[i].end]
		at := int32(0)
		for nodes[at].kind != leafNode {
			n := &nodes[at]
			at = n.child[f.side(n, block[int(n.feature)*Block])]
		}
		out[i] = int(nodes[at].leaf)
	}
	return out
}
