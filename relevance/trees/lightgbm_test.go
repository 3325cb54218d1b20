package trees

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
)

func read(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// table reads numbers separated by white space, a row a line.
func table(t testing.TB, name string) [][]float64 {
	t.Helper()
	var rows [][]float64
	for line := range strings.Lines(string(read(t, name))) {
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

func lgb(t testing.TB, src []byte) *Forest {
	t.Helper()
	m, err := LightGBM(src)
	if err != nil {
		t.Fatal(err)
	}
	return m.Forest()
}

// scoreAll scores rows in batches.
func scoreAll(f *Forest, rows [][]float64) []float64 {
	var s Scores
	m, out := f.Matrix(), make([]float64, len(rows))
	for from := 0; from < len(rows); from += Batch {
		n := min(Batch, len(rows)-from)
		for r, row := range rows[from : from+n] {
			for c, x := range row {
				m[(r/Block*f.Columns()+c)*Block+r%Block] = x
			}
		}
		f.Score(&s, m, n, out[from:from+n])
	}
	return out
}

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tolerance) {
		t.Fatalf("%s is %v, want %v", what, got, want)
	}
}

func TestLightGBMBinary(t *testing.T) {
	f := lgb(t, read(t, "lightgbm/lg_dart_breast_cancer.model"))
	rows, want := table(t, "lightgbm/breast_cancer_test.tsv"), table(t, "lightgbm/lg_dart_breast_cancer_true_predictions.txt")
	for i, got := range scoreAll(f, rows) {
		near(t, "row "+strconv.Itoa(i), got, want[i][0], 1e-9)
	}
}

func TestLightGBMMulticlass(t *testing.T) {
	f := lgb(t, read(t, "lightgbm/lgmulticlass.model"))
	rows := table(t, "lightgbm/multiclass_test.tsv")
	for i := range rows {
		rows[i] = rows[i][1:] // behind the label
	}
	want, raw := table(t, "lightgbm/lgmulticlass_true_predictions.txt"), table(t, "lightgbm/lgmulticlass_true_raw_predictions.txt")
	for class := range f.Classes {
		g, err := f.Class(class)
		if err != nil {
			t.Fatal(err)
		}
		for i, got := range scoreAll(g.Forest(), rows) {
			near(t, "row "+strconv.Itoa(i), got, want[i][class], 1e-9)
		}
		for i, got := range scoreAll(g.Raw().Forest(), rows) {
			near(t, "raw row "+strconv.Itoa(i), got, raw[i][class], 1e-9)
		}
	}
}

// head is the head of a model with two features, to put trees behind.
const head = "tree\nversion=v3\nnum_class=1\nnum_tree_per_iteration=1\nlabel_index=0\nmax_feature_idx=1\nobjective=regression\nfeature_names=a b\nfeature_infos=none none\n\n"

func TestLightGBMSingleTrees(t *testing.T) {
	for _, c := range []struct {
		file string
		row  []float64
		leaf int
		want float64
	}{
		{"tree_1leaf.txt", []float64{1, 2}, 0, 0.123},
		{"tree_2leaves.txt", []float64{5, 0}, 0, 0.43},
		{"tree_2leaves.txt", []float64{5.1, 0}, 1, 0.59},
		{"tree_3leaves.txt", []float64{0, 100}, 0, 0.54}, // bit 100: in the set
		{"tree_3leaves.txt", []float64{756, 99}, 1, 0.35},
		{"tree_3leaves.txt", []float64{757, 1e9}, 2, 0.38},
		{"tree_3leaves.txt", []float64{757, -1}, 2, 0.38},
	} {
		f := lgb(t, []byte(head+string(read(t, "lightgbm/"+c.file))+"\n\nend of trees\n"))
		if got := f.Score1(c.row); got != c.want {
			t.Errorf("%s: %v scores %v, want %v", c.file, c.row, got, c.want)
		}
		if got := f.Leaves(c.row)[0]; got != c.leaf {
			t.Errorf("%s: %v is in leaf %d, want %d", c.file, c.row, got, c.leaf)
		}
	}
}

// stump is a tree of one split on feature a.
func stump(decision int, threshold string) string {
	return head + "Tree=0\nnum_leaves=2\nnum_cat=1\nsplit_feature=0\nthreshold=" + threshold + "\ndecision_type=" + strconv.Itoa(decision) +
		"\nleft_child=-1\nright_child=-2\nleaf_value=1 2\ncat_boundaries=0 1\ncat_threshold=6\nshrinkage=1\n\nend of trees\n"
}

// TestLightGBMMissing holds every missing type to LightGBM's definition.
func TestLightGBMMissing(t *testing.T) {
	nan := math.NaN()
	const none, zero, nanType, left, right = 0 << 2, 1 << 2, 2 << 2, 2, 0
	for _, c := range []struct {
		decision  int
		threshold string
		x, want   float64
	}{
		{none | right, "1.5", 1.5, 1},
		{none | right, "1.5", 1.6, 2},
		{none | right, "1.5", nan, 1}, // NaN is 0
		{none | left, "-1", nan, 2},
		{zero | left, "-1", 0, 1},
		{zero | right, "1", 0, 2},
		{zero | right, "1", 1e-36, 2},
		{zero | right, "1", 1e-34, 1},
		{zero | right, "1", nan, 2},
		{zero | left, "-1", nan, 1},
		{nanType | left, "-1", nan, 1},
		{nanType | left, "-1", 0, 2},
		{nanType | right, "1", nan, 2},
		{nanType | right, "1", 0, 1},
		{none | right, "1", math.Inf(1), 2},
		{none | right, "1", math.Inf(-1), 1},
		{categorical, "0", 1, 1}, // the set is 1 and 2
		{categorical, "0", 2.9, 1},
		{categorical, "0", 0, 2},
		{categorical, "0", -0.5, 2},
		{categorical, "0", -1, 2},
		{categorical, "0", 33, 2},
		{categorical, "0", 1e10, 2},
		{categorical, "0", nan, 2},
	} {
		f := lgb(t, []byte(strings.Replace(stump(c.decision, c.threshold), "num_cat=1", "num_cat="+strconv.Itoa(c.decision&1), 1)))
		if got := f.Score1([]float64{c.x, 0}); got != c.want {
			t.Errorf("decision_type %d, threshold %s: %v scores %v, want %v", c.decision, c.threshold, c.x, got, c.want)
		}
	}
}

func TestLightGBMLinks(t *testing.T) {
	src := stump(0, "0.5")
	for objective, want := range map[string]float64{
		"regression":           2,
		"regression sqrt":      4,
		"binary sigmoid:1":     1 / (1 + math.Exp(-2)),
		"binary sigmoid:0.5":   1 / (1 + math.Exp(-1)),
		"poisson":              math.Exp(2),
		"cross_entropy":        1 / (1 + math.Exp(-2)),
		"cross_entropy_lambda": math.Log1p(math.Exp(2)),
		"lambdarank":           2,
	} {
		f := lgb(t, []byte(strings.Replace(strings.Replace(src, "num_cat=1", "num_cat=0", 1), "objective=regression", "objective="+objective, 1)))
		near(t, objective, f.Score1([]float64{1, 0}), want, 1e-12)
	}
}

func TestLightGBMForestAndLinear(t *testing.T) {
	src := strings.Replace(stump(0, "0.5"), "num_cat=1", "num_cat=0", 1)
	two := strings.Replace(src, "end of trees", strings.TrimPrefix(src, head), 1)
	average := strings.Replace(two, "feature_infos", "average_output\nfeature_infos", 1)
	if got := lgb(t, []byte(two)).Score1([]float64{1, 0}); got != 4 {
		t.Errorf("two trees score %v", got)
	}
	if got := lgb(t, []byte(average)).Score1([]float64{1, 0}); got != 2 {
		t.Errorf("two averaged trees score %v", got)
	}
	linear := strings.Replace(src, "shrinkage", "is_linear=1\nleaf_const=10 20\nnum_features=0 2\nleaf_features= 0 1 \nleaf_coeff= 2 3 \nshrinkage", 1)
	f := lgb(t, []byte(linear))
	for _, c := range []struct{ a, b, want float64 }{{0, 7, 10}, {1, 7, 43}, {1, math.NaN(), 2}} {
		if got := f.Score1([]float64{c.a, c.b}); got != c.want {
			t.Errorf("%v %v scores %v, want %v", c.a, c.b, got, c.want)
		}
	}
}

func TestLightGBMRefuses(t *testing.T) {
	good := strings.Replace(stump(0, "0.5"), "num_cat=1", "num_cat=0", 1)
	for _, c := range []struct{ old, new, want string }{
		{"version=v3", "version=v9", "v9"},
		{"objective=regression", "objective=mystery", "mystery"},
		{"feature_names=a b", "feature_names=a", "feature_names"},
		{"split_feature=0", "split_feature=2", "feature 2 of 2"},
		{"left_child=-1", "left_child=0", "twice"},
		{"left_child=-1", "left_child=-2147483648", "a child is leaf 2147483647 of "},
		{"left_child=-1", "left_child=7", "node 7"},
		{"leaf_value=1 2", "leaf_value=1", "leaf_value"},
		{"leaf_value=1 2", "leaf_value=1 nan", "nan"},
		{"leaf_value=1 2", "leaf_value=1 inf", "inf"},
		{"decision_type=0", "decision_type=12", "decision_type"},
		{"end of trees", "", "ends before"},
	} {
		_, err := LightGBM([]byte(strings.Replace(good, c.old, c.new, 1)))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.new, err)
		}
	}
	if _, err := LightGBM(nil); err == nil {
		t.Error("nothing is accepted")
	}
}

// FuzzLightGBM: what is accepted scores without a fault, and the fast walk
// finds the leaves that the plain one finds.
func FuzzLightGBM(f *testing.F) {
	f.Add([]byte(stump(0, "0.5")))
	f.Add([]byte(stump(categorical, "0")))
	f.Add(read(f, "lightgbm/model_simple.txt"))
	f.Fuzz(func(t *testing.T, src []byte) {
		m, err := LightGBM(bytes.Clone(src))
		if err != nil || m.Columns() > 1000 {
			return
		}
		checkWalk(t, m.Forest())
	})
}

// FuzzLightGBMDump: as FuzzLightGBM, of dumps.
func FuzzLightGBMDump(f *testing.F) {
	head := `{"name": "tree", "version": "v4", "num_tree_per_iteration": 1, "max_feature_idx": 1, "feature_names": ["a", "b"], "tree_info": [{"tree_structure": `
	split := `{"split_feature": 0, "threshold": %s, "decision_type": "%s", "default_left": true, "missing_type": "NaN", "left_child": {"leaf_index": 0, "leaf_value": 1}, "right_child": {"leaf_index": 1, "leaf_value": 2}}`
	f.Add([]byte(head + `{"leaf_value": 3}}]}`))
	f.Add([]byte(head + fmt.Sprintf(split, "0.5", "<=") + `}]}`))
	f.Add([]byte(head + fmt.Sprintf(split, `"1||33"`, "==") + `}]}`))
	f.Add([]byte(head + fmt.Sprintf(split, `"16777215"`, "==") + `}]}`))
	f.Add([]byte(head + `{"leaf_value": 3, "leaf_const": 1, "leaf_features": [1], "leaf_coeff": [2]}}]}`))
	f.Fuzz(func(t *testing.T, src []byte) {
		m, err := LightGBMDump(src)
		if err != nil || m.Columns() > 1000 {
			return
		}
		checkWalk(t, m.Forest())
	})
}

func TestLightGBMDumpRefuses(t *testing.T) {
	good := `{"version": "v4", "num_tree_per_iteration": 1, "max_feature_idx": 1, "feature_names": ["a", "b"], "tree_info": [{"tree_structure": ` +
		`{"split_feature": 0, "threshold": 1, "decision_type": "<=", "missing_type": "NaN", "left_child": {"leaf_value": 1}, "right_child": {"leaf_value": 2, "leaf_index": 1}}}]}`
	if _, err := Import([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, want string }{
		{`"v4"`, `"v9"`, "v9"},
		{`"<="`, `"<"`, `decision_type "<"`},
		{`"NaN"`, `"Some"`, `missing_type "Some"`},
		{`"threshold": 1`, `"threshold": "1"`, "threshold"},
		{`"<="`, `"=="`, "threshold"},
		{`"split_feature": 0`, `"split_feature": 2`, "feature 2 of 2"},
		{`"left_child"`, `"left"`, "one child"},
		{`{"leaf_value": 1}`, `{}`, "leaf_value"},
		{`"leaf_index": 1`, `"leaf_index": 0`, "leaf_index 0"},
		{`{"leaf_value": 1}`, `{"leaf_value": 1, "leaf_const": 1}`, "leaf_const"},
		{`"tree_structure"`, `"tree_structures"`, "tree_structure"},
		{`[{"tree_structure"`, `[], "x": [{"tree_structure"`, "no trees"},
	} {
		if !strings.Contains(good, c.old) {
			t.Fatalf("no %s", c.old)
		}
		if _, err := LightGBMDump([]byte(strings.Replace(good, c.old, c.new, 1))); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.new, err)
		}
	}
}

// checkWalk scores a few rows, NaN and zeros among them, both ways.
func checkWalk(t *testing.T, f *Forest) {
	t.Helper()
	values := []float64{0, 1, math.NaN(), -5, 1e9, 1e-36, 100, math.Inf(1), 0.5}
	var rows [][]float64
	for r := range 11 {
		row := make([]float64, f.Inputs)
		for c := range row {
			row[c] = values[(r*7+c*5)%len(values)]
		}
		rows = append(rows, row)
	}
	for i, got := range scoreAll(f, rows) {
		if want := plain(f, rows[i]); math.Float64bits(got) != math.Float64bits(want) && !(math.IsNaN(got) && math.IsNaN(want)) {
			t.Fatalf("row %v scores %v, plainly %v", rows[i], got, want)
		}
	}
}

// plain scores a row from the leaves it reaches.
func plain(f *Forest, row []float64) float64 {
	sums := append([]float64(nil), f.base...)
	if f.baseLast {
		clear(sums)
	}
	block := f.row(row)
	if f.weights != nil {
		all := make([]float64, f.Classes*Batch)
		for c, x := range sums {
			all[c*Batch] = x
		}
		f.linear(all, block, 1)
		for c := range sums {
			sums[c] = all[c*Batch]
		}
	}
	for i, leaf := range f.Leaves(row) {
		t := f.trees[i]
		for _, n := range f.nodes[t.start:t.end] {
			if n.kind != leafNode || int(n.leaf) != leaf {
				continue
			}
			x := n.threshold
			if t.linear {
				x = f.leafValue(&n, block)
			}
			if f.single {
				sums[t.class] = float64(float32(sums[t.class]) + float32(x))
			} else {
				sums[t.class] += x
			}
		}
	}
	for c := range sums {
		sums[c] = f.sum(sums[c], c)
	}
	if f.link.needsAllClasses() {
		return f.linkedAll(sums)
	}
	return f.linked(sums[f.class])
}
