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

// tiny64 is the largest number that LightGBM takes for zero, and tiny its text.
func tiny64(sign float64) float64 { return sign * zeroThreshold }
func tiny(sign float64) string    { return strconv.FormatFloat(tiny64(sign), 'g', -1, 64) }

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
		{none | right, "0", 1e-36, 1}, // as good as zero, as is a threshold
		{none | right, "-1e-36", -1e-36, 2},
		{none | right, tiny(-1), tiny64(-1), 2},
		{none | right, tiny(-1), 0, 2},
		{none | right, tiny(-1), -1e-34, 1},
		{none | right, tiny(1), tiny64(1), 1},
		{none | right, tiny(1), 1e-34, 2},
		{zero | right, "1", tiny64(1), 2},
		{zero | right, "1", tiny64(-1), 2},
		{zero | left, "-1", math.Nextafter(tiny64(1), 1), 2},
		{none | right, "inf", math.Inf(1), 1}, // which keys do not have
		{none | right, "-inf", math.Inf(-1), 1},
		{zero | right, "inf", tiny64(1), 2},
		{nanType | right, "inf", nan, 2},
		{nanType | left | categorical, "0", 1, 1}, // the set is 1 and 2
		{categorical, "0", 1, 1},
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
		"gamma":                math.Exp(2),
		"tweedie":              math.Exp(2),
		"multiclassova":        1 / (1 + math.Exp(-2)),
		"xentropy sigmoid:3":   1 / (1 + math.Exp(-2)),
		"xentlambda":           math.Log1p(math.Exp(2)),
		"multiclass":           1, // of one class
		"":                     2,
	} {
		f := lgb(t, []byte(strings.Replace(strings.Replace(src, "num_cat=1", "num_cat=0", 1), "objective=regression", "objective="+objective, 1)))
		near(t, objective, f.Score1([]float64{1, 0}), want, 1e-12)
	}
}

const linearLeaves = "is_linear=1\nleaf_const=10 20\nnum_features=0 2\nleaf_features= 0 1 \nleaf_coeff= 2 3 \n"

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
	f := lgb(t, []byte(strings.Replace(src, "shrinkage", linearLeaves+"shrinkage", 1)))
	if got := f.Steps(); got != 1+2 {
		t.Errorf("a split and two coefficients are %d steps", got)
	}
	if got := lgb(t, []byte(two)).Steps(); got != 2 {
		t.Errorf("two splits are %d steps", got)
	}
	for _, c := range []struct{ a, b, want float64 }{{0, 7, 10}, {1, 7, 43}, {1, math.NaN(), 2}} {
		if got := f.Score1([]float64{c.a, c.b}); got != c.want {
			t.Errorf("%v %v scores %v, want %v", c.a, c.b, got, c.want)
		}
	}
}

func TestLightGBMRefuses(t *testing.T) {
	good := strings.Replace(stump(0, "0.5"), "num_cat=1", "num_cat=0", 1)
	sets := stump(categorical, "0")
	linear := strings.Replace(good, "shrinkage", linearLeaves+"shrinkage", 1)
	names := func(n int) string {
		return fmt.Sprintf("max_feature_idx=%d\nobjective=regression\nfeature_names=%s", n-1, strings.TrimSpace(strings.Repeat("x ", n)))
	}
	for _, c := range []struct{ src, old, new, want string }{
		{good, "tree\n", "forest\n", `begins with "forest", not with "tree"`},
		{good, "tree\n", strings.Repeat("t", 41) + "\n", `"` + strings.Repeat("t", 40) + `..."`},
		{good, "tree\n", strings.Repeat("t", 40) + "\n", `"` + strings.Repeat("t", 40) + `",`},
		{good, "version=v3", "version=v9", "v9"},
		{good, "split_feature=0\n", "", "split_feature has 0 values, not 1"},
		{good, "threshold=0.5\n", "", "threshold has 0 values, not 1"},
		{good, "version=v3", "version=v3\nversion=v3", "line 3: version stands twice"},
		{good, "max_feature_idx=1", "max_feature_idx=-1", `max_feature_idx is "-1"`},
		{good, "max_feature_idx=1", "max_feature_idx=x", `max_feature_idx is "x"`},
		{good, "max_feature_idx=1", "max_feature_idx=65535", "feature_names has 2 names, and max_feature_idx says 65536"},
		{good, "max_feature_idx=1", "max_feature_idx=65536", `max_feature_idx is "65536"`},
		{good, "tree_per_iteration=1", "tree_per_iteration=0", `num_tree_per_iteration is "0"`},
		{good, "tree_per_iteration=1", "tree_per_iteration=x", `num_tree_per_iteration is "x"`},
		{good, "tree_per_iteration=1", "tree_per_iteration=1024", "1 trees for 1024 classes"},
		{good, "tree_per_iteration=1", "tree_per_iteration=1025", `num_tree_per_iteration is "1025"`},
		{good, "objective=regression", "objective=mystery", "mystery"},
		{good, "objective=regression", "objective=binary sigmoid:0", `sigmoid is "0"`},
		{good, "objective=regression", "objective=binary sigmoid:x", `sigmoid is "x"`},
		{good, "objective=regression", "objective=binary sigmoid:inf", `sigmoid is "inf"`},
		{good, "feature_names=a b", "feature_names=a", "feature_names has 1 names"},
		{good, "num_leaves=2", "num_leaves=0", `num_leaves is "0"`},
		{good, "num_leaves=2", "num_leaves=2097152", "leaf_value has 2 values, not 2097152"},
		{good, "num_leaves=2", "num_leaves=2097153", `num_leaves is "2097153"`},
		{good, "split_feature=0", "split_feature=2", "tree 0, which ends before this line: split 0: feature 2 of 2"},
		{good, "split_feature=0", "split_feature=-1", "feature -1 of 2"},
		{good, "split_feature=0", "split_feature=0 0", "split_feature has 2 values, not 1"},
		{good, "split_feature=0", "split_feature=4294967296", "split_feature has 4294967296"},
		{good, "split_feature=0", "split_feature=x", `split_feature has "x"`},
		{good, "left_child=-1", "left_child=0", "twice"},
		{good, "left_child=-1", "left_child=-2147483648", "a child is leaf 2147483647 of "},
		{good, "left_child=-1", "left_child=-3", "a child is leaf 2 of 2"},
		{good, "left_child=-1", "left_child=3", "a child is node 3 of 3"},
		{good, "left_child=-1", "left_child=7", "node 7"},
		{good, "leaf_value=1 2", "leaf_value=1", "leaf_value"},
		{good, "leaf_value=1 2", "leaf_value=1 2 3", "leaf_value has 3 values, not 2"},
		{good, "leaf_value=1 2", "leaf_value=1 nan", "nan"},
		{good, "leaf_value=1 2", "leaf_value=1 inf", "inf"},
		{good, "leaf_value=1 2", "leaf_value=1 x", `leaf_value has "x"`},
		{good, "threshold=0.5", "threshold=nan", `threshold has "nan"`},
		{good, "decision_type=0", "decision_type=12", "decision_type"},
		{good, "decision_type=0", "decision_type=-1", "decision_type"},
		{good, "end of trees", "", "ends before"},
		{good, "Tree=0", "end of trees\nTree=0", "no trees"},
		{good, "max_feature_idx", "Tree=0\nmax_feature_idx", "max_feature_idx is"},
		{sets, "threshold=0\n", "threshold=-1\n", "set -1 of 1"},
		{sets, "threshold=0\n", "threshold=1\n", "set 1 of 1"},
		{sets, "num_cat=1", "num_cat=x", `num_cat is "x"`},
		{sets, "num_cat=1", "num_cat=-1", `num_cat is "-1"`},
		{sets, "num_cat=1", "num_cat=2", `num_cat is "2"`},
		{sets, "num_cat=1", "num_cat=0", "set 0 of 0"},
		{sets, "cat_boundaries=0 1", "cat_boundaries=0 1 1", "cat_boundaries has 3 values, not 2"},
		{sets, "cat_boundaries=0 1", "cat_boundaries=-1 1", "cat_boundaries -1 to 1 of 1"},
		{sets, "cat_boundaries=0 1", "cat_boundaries=1 0", "cat_boundaries 1 to 0 of 1"},
		{sets, "cat_boundaries=0 1", "cat_boundaries=0 2", "cat_boundaries 0 to 2 of 1"},
		{sets, "cat_threshold=6", "cat_threshold=-1", "cat_threshold -1"},
		{sets, "cat_threshold=6", "cat_threshold=4294967296", "cat_threshold 4294967296"},
		{sets, "cat_threshold=6", "cat_threshold=x", `cat_threshold has "x"`},
		{linear, "leaf_const=10 20", "leaf_const=10", "leaf_const has 1 values, not 2"},
		{linear, "num_features=0 2", "num_features=0", "num_features has 1 values, not 2"},
		{linear, "num_features=0 2", "num_features=0 3", "leaf 1 has 3 features, and 2 are left"},
		{linear, "num_features=0 2", "num_features=0 -1", "leaf 1 has -1 features"},
		{linear, "leaf_features= 0 1", "leaf_features= 0", "leaf 1 has 2 features, and 1 are left"},
		{linear, "leaf_features= 0 1", "leaf_features= 0 2", "leaf 1: feature 2 of 2"},
		{linear, "leaf_features= 0 1", "leaf_features= 0 -1", "leaf 1: feature -1 of 2"},
		{linear, "leaf_coeff= 2 3", "leaf_coeff= 2", "leaf 1 has 2 features"},
	} {
		if !strings.Contains(c.src, c.old) {
			t.Fatalf("no %s", c.old)
		}
		_, err := LightGBM([]byte(strings.Replace(c.src, c.old, c.new, 1)))
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "trees: LightGBM model: line ") {
			t.Errorf("%s: %v", c.new, err)
		}
	}
	if _, err := LightGBM(nil); err == nil || !strings.Contains(err.Error(), "the file is empty") {
		t.Errorf("nothing is accepted: %v", err)
	}
	// What stands at a limit is accepted, and so is a list that is empty.
	for what, src := range map[string]string{
		"most features":      strings.Replace(good, "max_feature_idx=1\nobjective=regression\nfeature_names=a b", names(maxFeatures), 1),
		"most classes":       strings.Replace(strings.Replace(good, "tree_per_iteration=1", "tree_per_iteration=1024", 1), "end of trees", strings.Repeat("Tree=1\nnum_leaves=1\nleaf_value=1\n", 1023)+"end of trees", 1),
		"no sets":            strings.Replace(good, "num_cat=0", "", 1),
		"an empty set":       strings.Replace(sets, "cat_boundaries=0 1", "cat_boundaries=1 1", 1),
		"the largest word":   strings.Replace(sets, "cat_threshold=6", "cat_threshold=4294967295", 1),
		"lines of Windows":   strings.ReplaceAll(good, "\n", "\r\n"),
		"a file of v2":       strings.Replace(strings.Replace(good, "end of trees", "feature importances:", 1), "v3", "v2", 1),
		"a file of v4":       strings.Replace(good, "v3", "v4", 1),
		"no internal values": strings.Replace(good, "decision_type=0\n", "", 1),
	} {
		if _, err := Import([]byte(src)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
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
		{`"threshold": 1, "decision_type": "<="`, `"threshold": "1||16777216", "decision_type": "=="`, `the category "16777216"`},
		{`"threshold": 1, "decision_type": "<="`, `"threshold": "1||-1", "decision_type": "=="`, `the category "-1"`},
		{`{"leaf_value": 1}`, `{"leaf_value": 1, "leaf_const": 1, "leaf_features": [0, 1], "leaf_coeff": [1]}`, "2 leaf_features and 1 leaf_coeff"},
		{`{"leaf_value": 1}`, `{"leaf_value": 1, "leaf_const": 1, "leaf_features": [2], "leaf_coeff": [1]}`, "tree 0: node 1: feature 2 of 2"},
		{`{"leaf_value": 1}`, `{"leaf_value": 1, "leaf_const": 1, "leaf_features": [-1], "leaf_coeff": [1]}`, "feature -1 of 2"},
		{`"right_child": {"leaf_value": 2, "leaf_index": 1}`, `"right_child": {"leaf_value": 2, "leaf_index": 1, "leaf_const": 1}`, "some leaves have leaf_const"},
		{`"leaf_index": 1}}}]}`, `"leaf_index": 1}}}]} {}`, "text behind the document"},
		{`"version"`, `version`, "trees: LightGBM dump: "},
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
