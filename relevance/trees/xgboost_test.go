package trees

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

// xgbTree is a tree of two splits: a < 0.5 (missing left), then b < -1
// (missing right); leaves are nodes 1, 3 and 4.
const xgbTree = `{
	"base_weights": [0.1, 1, 0.2, 2, 3], "categories": [], "categories_nodes": [], "categories_segments": [], "categories_sizes": [],
	"default_left": [true, false, false, false, false], "id": 0,
	"left_children": [1, -1, 3, -1, -1], "right_children": [2, -1, 4, -1, -1], "parents": [2147483647, 0, 0, 2, 2],
	"split_conditions": [0.5, 0.1, -1, 0.2, 0.3], "split_indices": [0, 0, 1, 0, 0], "split_type": [0, 0, 0, 0, 0],
	"tree_param": {"num_deleted": "0", "num_feature": "2", "num_nodes": "5", "size_leaf_vector": "1"}
}`

// setTree is a tree of one categorical split: a in {1, 33} goes right.
const setTree = `{
	"categories": [1, 33], "categories_nodes": [0], "categories_segments": [0], "categories_sizes": [2],
	"default_left": [1, 0, 0], "left_children": [1, -1, -1], "right_children": [2, -1, -1],
	"split_conditions": [1, 10, 20], "split_indices": [0, 0, 0], "split_type": [1, 0, 0]
}`

func xgbModel(objective, base, classes string, info string, trees ...string) string {
	return fmt.Sprintf(`{"version": [2, 1, 0], "learner": {"attributes": {}, "feature_names": ["a", "b"], "feature_types": ["float", "float"],
		"gradient_booster": {"name": "gbtree", "model": {"gbtree_model_param": {"num_parallel_tree": "1", "num_trees": "%d"}, "tree_info": %s, "trees": [%s]}},
		"learner_model_param": {"base_score": %q, "boost_from_average": "1", "num_class": %q, "num_feature": "2", "num_target": "1"},
		"objective": {"name": %q}}}`, len(trees), info, strings.Join(trees, ","), base, classes, objective)
}

func xg(t testing.TB, src string) *Forest {
	t.Helper()
	m, err := XGBoost([]byte(src))
	if err != nil {
		t.Fatal(err)
	}
	inBinary, err := XGBoost(toUBJSON(t, src))
	if err != nil {
		t.Fatalf("UBJSON: %v", err)
	}
	f, binary := m.Forest(), inBinary.Forest()
	for _, row := range [][]float64{{0, 0}, {1, -2}, {math.NaN(), math.NaN()}} {
		if a, b := f.Score1(row), binary.Score1(row); a != b {
			t.Fatalf("%v scores %v in JSON, %v in UBJSON", row, a, b)
		}
	}
	return f
}

func sum32(x ...float32) float64 {
	var s float32
	for _, v := range x {
		s += v
	}
	return float64(s)
}

func TestXGBoostTree(t *testing.T) {
	f := xg(t, xgbModel("reg:squarederror", "5E-1", "0", "[0, 0]", xgbTree, xgbTree))
	nan := math.NaN()
	for _, c := range []struct {
		a, b float64
		leaf int
		want float64
	}{
		{0.4, 0, 1, sum32(0.5, 0.1, 0.1)},
		{0.5, -2, 3, sum32(0.5, 0.2, 0.2)},
		{0.5, -1, 4, sum32(0.5, 0.3, 0.3)},
		{nan, 0, 1, sum32(0.5, 0.1, 0.1)},
		{1, nan, 4, sum32(0.5, 0.3, 0.3)},
		{math.Nextafter(0.5, 0), 0, 4, sum32(0.5, 0.3, 0.3)}, // 0.5 as a float32
		{float64(math.Nextafter32(0.5, 0)), 0, 1, sum32(0.5, 0.1, 0.1)},
		{math.Inf(-1), 0, 1, sum32(0.5, 0.1, 0.1)},
	} {
		row := []float64{c.a, c.b}
		if got := f.Score1(row); got != c.want {
			t.Errorf("%v scores %v, want %v", row, got, c.want)
		}
		if got := f.Leaves(row)[0]; got != c.leaf {
			t.Errorf("%v is in leaf %d, want %d", row, got, c.leaf)
		}
	}
	checkWalk(t, f)
}

func TestXGBoostCategories(t *testing.T) {
	f := xg(t, xgbModel("reg:squarederror", "0", "0", "[0]", setTree))
	for x, want := range map[float64]float64{0: 10, 1: 20, 1.5: 20, 2: 10, 33: 20, 34: 10, 1e8: 10, -1: 10, -0.5: 10} {
		if got := f.Score1([]float64{x, 0}); got != want {
			t.Errorf("%v scores %v, want %v", x, got, want)
		}
	}
	if got := f.Score1([]float64{math.NaN(), 0}); got != 10 {
		t.Errorf("a missing category scores %v", got)
	}
	checkWalk(t, f)
}

func TestXGBoostLinks(t *testing.T) {
	for _, c := range []struct {
		objective, base string
		want            float64
	}{
		{"binary:logistic", "5E-1", 1 / (1 + math.Exp(-0.3))},
		{"binary:logistic", "2E-1", 1 / (1 + math.Exp(-0.3-math.Log(0.25)))},
		{"binary:logitraw", "2E-1", 0.5},
		{"count:poisson", "2", 2 * math.Exp(0.3)},
		{"reg:gamma", "[2E0]", 2 * math.Exp(0.3)},
		{"rank:ndcg", "[5E-1]", 0.8},
		{"binary:hinge", "0", 1},
		{"binary:hinge", "-3E-1", 0}, // a sum of 0
		{"reg:logistic", "0", 1 / (1 + math.Exp(-0.3-math.Log(1e-6)))},
		{"reg:logistic", "1", 1 / (1 + math.Exp(-0.3+math.Log(1e-6)))},
		{"reg:pseudohubererror", "[-5E-1]", -0.2},
		{"binary:logistic", "[1E-30]", 1 / (1 + math.Exp(-0.3-math.Log(1e-6)))},
	} {
		f := xg(t, xgbModel(c.objective, c.base, "0", "[0]", xgbTree))
		near(t, c.objective, f.Score1([]float64{1, 0}), c.want, 2e-7)
	}
	labels := xg(t, xgbModel("multi:softmax", "[1E1, 0, 3E1]", "3", "[0, 1, 2]", xgbTree, setTree, xgbTree))
	if got := labels.Score1([]float64{1, 0}); got != 2 || !labels.Labels() || !labels.Single() || labels.Trees() != 3 {
		t.Errorf("the best class is %v, labels %v, float32 %v, of %d trees", got, labels.Labels(), labels.Single(), labels.Trees())
	}
	if got := xg(t, xgbModel("multi:softmax", "0", "3", "[0, 1, 2]", xgbTree, xgbTree, xgbTree)).Score1([]float64{1, 0}); got != 0 {
		t.Errorf("of equal classes the best is %v", got)
	}
	for class := range 3 {
		g, err := labels.Class(class)
		if got := g.Raw().Forest().Score1([]float64{1, 0}); err != nil || got != []float64{float64(float32(10) + float32(0.3)), 20, float64(float32(30) + float32(0.3))}[class] || g.Raw().Labels() {
			t.Errorf("class %d has %v: %v", class, got, err)
		}
	}
	for _, class := range []int{-1, 3} {
		if _, err := labels.Class(class); err == nil || !strings.Contains(err.Error(), "the model has classes 0 to 2") {
			t.Errorf("class %d: %v", class, err)
		}
	}
	f := xg(t, xgbModel("multi:softprob", "5E-1", "3", "[0, 1, 2]", xgbTree, setTree, xgbTree))
	total := 0.0
	for class := range 3 {
		g, err := f.Class(class)
		if err != nil {
			t.Fatal(err)
		}
		total += g.Forest().Score1([]float64{1, 0})
	}
	near(t, "the sum over classes", total, 1, 1e-6)
}

// Files of old versions mean something else by some of their fields.
func TestXGBoostVersions(t *testing.T) {
	far := strings.Replace(setTree, `"default_left": [1`, `"default_left": [0`, 1)
	for _, c := range []struct {
		objective, tree, version string
		x, want                  float64
	}{
		{"binary:logitraw", xgbTree, "[1, 2, 1]", 1, 0.3 + math.Log(0.25)}, // a score, and not its sum
		{"binary:logitraw", xgbTree, "[1, 3, 0]", 1, 0.5},
		{"reg:squarederror", far, "[1, 6, 2]", 64, 20.2}, // what is no category goes with what is missing
		{"reg:squarederror", far, "[1, 7, 0]", 64, 10.2},
		{"reg:squarederror", far, "[1, 6, 2]", -1, 20.2},
		{"reg:squarederror", far, "[1, 6, 2]", 33, 20.2},
		{"reg:squarederror", far, "[1, 6, 2]", 32, 10.2},
		{"reg:squarederror", far, "[]", 64, 10.2}, // no version
		{"reg:squarederror", setTree, "[1, 6, 2]", 64, 10.2},
	} {
		f := xg(t, strings.Replace(xgbModel(c.objective, "2E-1", "0", "[0]", c.tree), "[2, 1, 0]", c.version, 1))
		near(t, c.objective+" of "+c.version, f.Score1([]float64{c.x, 0}), c.want, 1e-6)
	}
	for version, last := range map[string]bool{"[1, 2, 9]": true, "[1, 3, 0]": false, "[0, 90, 0]": true} {
		if f := xg(t, strings.Replace(xgbModel("reg:squarederror", "0", "0", "[0]", xgbTree), "[2, 1, 0]", version, 1)); f.baseLast != last {
			t.Errorf("%s: the base comes last: %v", version, f.baseLast)
		}
		if f := xg(t, strings.Replace(dart(xgbModel("reg:squarederror", "0", "0", "[0]", xgbTree)), "[2, 1, 0]", strings.Replace(version, "1, 3", "1, 4", 1), 1)); f.baseLast != last {
			t.Errorf("dart of %s: the base comes last: %v", version, f.baseLast)
		}
	}
	if f := xg(t, strings.Replace(dart(xgbModel("reg:squarederror", "0", "0", "[0]", xgbTree)), "[2, 1, 0]", "[1, 3, 9]", 1)); !f.baseLast {
		t.Error("dart of 1.3: the base comes first")
	}
}

// dart is a model with the booster dart instead of gbtree, which takes half of each tree.
func dart(gbtree string) string {
	dart := strings.Replace(gbtree, `"gradient_booster": {"name": "gbtree",`, `"gradient_booster": {"name": "dart", "weight_drop": [0.5], "gbtree": {"name": "gbtree",`, 1)
	return strings.Replace(dart, "]}},\n\t\t\"learner_model_param\"", "]}}},\n\t\t\"learner_model_param\"", 1)
}

// gblinear is a model with a linear booster.
func gblinear(gbtree string) string {
	return gbtree[:strings.Index(gbtree, `"gradient_booster"`)] + `"gradient_booster": {"name": "gblinear", "model": {"weights": [2, -1, 0.5]}},` + gbtree[strings.Index(gbtree, `"learner_model_param"`):]
}

func TestXGBoostDartAndLinear(t *testing.T) {
	gbtree := xgbModel("reg:squarederror", "0", "0", "[0]", xgbTree)
	if got := xg(t, dart(gbtree)).Score1([]float64{1, 0}); got != float64(float32(0.3)*0.5) {
		t.Errorf("dart scores %v", got)
	}
	f := xg(t, gblinear(gbtree))
	if got := f.Steps(); got != 3 || !slices.Equal(f.Used(), []bool{true, true}) {
		t.Errorf("two weights and a bias are %d steps, and read %v", got, f.Used())
	}
	for _, c := range []struct{ a, b, want float64 }{{1, 2, 0.5}, {3, math.NaN(), 6.5}} {
		if got := f.Score1([]float64{c.a, c.b}); got != c.want {
			t.Errorf("linear %v %v scores %v, want %v", c.a, c.b, got, c.want)
		}
	}
}

func TestXGBoostRefuses(t *testing.T) {
	good := xgbModel("reg:squarederror", "0", "0", "[0]", xgbTree)
	sets := xgbModel("reg:squarederror", "0", "0", "[0]", setTree)
	for _, c := range []struct{ src, old, new, want string }{
		{good, `"name": "gbtree"`, `"name": "gbforest"`, "gbforest"},
		{good, "reg:squarederror", "reg:mystery", "reg:mystery"},
		{good, `"learner":`, `"teacher":`, "no learner"},
		{good, `"objective": {"name": "reg:squarederror"}`, `"objective": {"name": 1}`, "no name"},
		{good, `"objective": {`, `"objectives": {`, "no objective"},
		{good, `"learner_model_param": {`, `"params": {`, "no learner_model_param"},
		{good, `"num_target": "1"`, `"num_target": "2"`, "num_target"},
		{good, `"num_target": "1"`, `"num_target": 2`, "num_target is 2"},
		{good, `"size_leaf_vector": "1"`, `"size_leaf_vector": "3"`, "vectors"},
		{good, `"num_feature": "2", "num_target"`, `"num_feature": "1", "num_target"`, "feature_names has 2 names, and num_feature is 1"},
		{good, `"num_feature": "2", "num_target"`, `"num_feature": "0", "num_target"`, "num_feature is 0"},
		{good, `"num_feature": "2", "num_target"`, `"num_feature": "65536", "num_target"`, "feature_names has 2 names, and num_feature is 65536"},
		{good, `"num_feature": "2", "num_target"`, `"num_feature": "65537", "num_target"`, "num_feature is 65537"},
		{good, `"num_class": "0"`, `"num_class": "-1"`, "num_class is -1"},
		{good, `"num_class": "0"`, `"num_class": "1025"`, "num_class is 1025"},
		{good, `"num_class": "0"`, `"num_class": "inf"`, `num_class is "inf"`},
		{good, `["a", "b"]`, `["a", []]`, "feature_names has []"},
		{good, `"version": [2, 1, 0]`, `"version": ["2"]`, "version has what is no integer"},
		{good, `"version": [2, 1, 0]`, `"version": [2.5, 1]`, "version has what is no integer"},
		{good, `"split_indices": [0, 0, 1`, `"split_indices": [0, 0, 2`, "feature 2 of 2"},
		{good, `"split_indices": [0, 0, 1`, `"split_indices": [0, 0, 4294967296`, "split_indices has 4294967296"},
		{good, `"split_indices": [0, 0, 1, 0, 0]`, `"split_indices": [0, 0, 1, 0]`, "5 left_children, 5 right_children, 4 split_indices, 5 split_conditions, 5 default_left"},
		{good, `"right_children": [2, -1, 4, -1, -1]`, `"right_children": [2, -1, 4, -1]`, "4 right_children"},
		{good, `"split_conditions": [0.5,`, `"split_conditions": [`, "4 split_conditions"},
		{good, `"default_left": [true,`, `"default_left": [`, "4 default_left"},
		{good, `"left_children": [1, -1, 3`, `"left_children": [1, -1, 9`, "node 9"},
		{good, `"left_children": [1, -1, 3`, `"left_children": [1, -1, 0`, "twice"},
		{good, `"left_children": [1, -1, 3, -1, -1]`, `"left_children": []`, "0 left_children"},
		{good, `"left_children"`, `"left"`, "no left_children"},
		{good, `[0.5, 0.1, -1`, `[NaN, 0.1, -1`, "tree 0: node 0: a number is not finite"},
		{good, `[0.5, 0.1, -1`, `[0.5, Infinity, -1`, "a number is not finite"},
		{good, `[0.5, 0.1, -1`, `[0.5, -Infinity, -1`, "a number is not finite"},
		{good, `"tree_info": [0]`, `"tree_info": [1]`, "tree 0 is of class 1 of 1"},
		{good, `"tree_info": [0]`, `"tree_info": [-1]`, "class -1"},
		{good, `"tree_info": [0]`, `"tree_info": []`, "tree_info has 0 trees, and trees 1"},
		{good, `[0.5, 0.1, -1`, `["x", 0.1, -1`, "split_conditions"},
		{good, `"split_conditions": [0.5, 0.1, -1, 0.2, 0.3]`, `"split_conditions": ["x"]`, "split_conditions has what is no number"},
		{good, `"split_conditions": [0.5, 0.1, -1, 0.2, 0.3]`, `"split_conditions": "x"`, "no split_conditions"},
		{good, `"base_weights": [0.1, 1, 0.2, 2, 3]`, `"base_weights": ["x"]`, "base_weights has what is no number"},
		{good, `"base_score": "0"`, `"base_score": "nan"`, `base_score is "nan"`},
		{good, `"base_score": "0"`, `"base_score": "inf"`, `base_score is "inf"`},
		{good, `"base_score": "0"`, `"base_score": "x"`, `base_score is "x"`},
		{good, `"base_score": "0"`, `"base_score": "[0, 1]"`, "base_score has 2 values for 1 classes"},
		{good, `"base_score": "0"`, `"base_score": "[0` + strings.Repeat(",0", maxClasses) + `]"`, "base_score has 1025 values"},
		{good, `"base_score": "0"`, `"base_score": "[x]"`, `base_score is "x"`},
		{strings.Replace(good, "reg:squarederror", "count:poisson", 1), "{", "{", "base_score 0 is out of range for count:poisson"},
		{sets, `"categories_segments": [0]`, `"categories_segments": []`, "1 categories_nodes, 0 categories_segments, 1 categories_sizes"},
		{sets, `"categories_sizes": [2]`, `"categories_sizes": []`, "1 categories_nodes, 1 categories_segments, 0 categories_sizes"},
		{sets, `"categories_nodes": [0]`, `"categories_nodes": [3]`, "categories_nodes: node 3 has"},
		{sets, `"categories_nodes": [0]`, `"categories_nodes": [-1]`, "categories_nodes: node -1 has"},
		{sets, `"categories_segments": [0]`, `"categories_segments": [-1]`, "has categories -1 to 1 of 2"},
		{sets, `"categories_segments": [0]`, `"categories_segments": [3]`, "has categories 3 to 5 of 2"},
		{sets, `"categories_sizes": [2]`, `"categories_sizes": [3]`, "has categories 0 to 3 of 2"},
		{sets, `"categories_sizes": [2]`, `"categories_sizes": [-1]`, "has categories 0 to -1 of 2"},
		{sets, `"categories": [1, 33]`, `"categories": [1, 16777216]`, "categories has 16777216"},
		{sets, `"categories": [1, 33]`, `"categories": [1, -1]`, "categories has -1"},
		{sets, `"categories": [1, 33]`, `"categories": "x"`, "no categories"},
		{dart(good), `"weight_drop": [0.5]`, `"weight_drop": [0.5, 1]`, "weight_drop has 2 trees, and trees 1"},
		{dart(good), `"weight_drop"`, `"drop"`, "no weight_drop"},
		{dart(good), `"weight_drop": [0.5]`, `"weight_drop": [1e30]`, ""},
		{gblinear(good), `[2, -1, 0.5]`, `[2, -1]`, "weights has 2 values for 2 features and 1 classes"},
		{gblinear(good), `[2, -1, 0.5]`, `[2, NaN, 0.5]`, "weights: a number is not finite"},
		{gblinear(good), `[2, -1, 0.5]`, `[2, Infinity, 0.5]`, "weights: a number is not finite"},
		{gblinear(good), `"weights"`, `"weight"`, "no weights"},
	} {
		if !strings.Contains(c.src, c.old) {
			t.Fatalf("no %s", c.old)
		}
		_, err := XGBoost([]byte(strings.Replace(c.src, c.old, c.new, 1)))
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: %v", c.new, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "trees: XGBoost model: ") {
			t.Errorf("%s: %v, want %q", c.new, err, c.want)
		}
	}
	for _, src := range []string{"", "{", "[]", "binf\x00\x00", good + "x", good[:len(good)-1]} {
		if _, err := XGBoost([]byte(src)); err == nil {
			t.Errorf("%q is accepted", clip(src))
		}
	}
}

// A file of another format is refused by its name.
func TestImportTellsFormatsApart(t *testing.T) {
	for src, want := range map[string]string{
		"":                                   "neither a LightGBM text model or dump nor an XGBoost JSON or UBJSON model",
		"tree":                               "neither a LightGBM",
		"[{}]":                               "save the model with save_model",
		"binf\x00":                           "XGBoost's old binary format",
		"\x00\x00\x00?\x00":                  "XGBoost's old binary format",
		"tree\n":                             "trees: LightGBM model: ",
		"tree\r\n":                           "trees: LightGBM model: ",
		`{"tree_structure": 1}`:              "trees: LightGBM dump: ",
		`{"tree_structure": {"learner": 1}}`: "trees: XGBoost model: no learner",
		"{":                                  "trees: XGBoost model: is not an object of JSON or UBJSON",
		"{}":                                 "trees: XGBoost model: no learner",
		"{#":                                 "trees: XGBoost model: byte 2: the document ends too early",
		"{$":                                 "trees: XGBoost model: byte 2: the document ends too early",
		"{ZU":                                "byte 1: 'Z', not '\"'",
		"{Lx":                                "the document ends too early",
	} {
		if _, err := Import([]byte(src)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", src, err, want)
		}
	}
}

// toUBJSON writes a JSON document as XGBoost writes UBJSON: lists of integers
// and of floats typed.
func toUBJSON(t testing.TB, src string) []byte {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(src))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return appendUBJ(nil, v, "")
}

func appendUBJ(b []byte, v any, key string) []byte {
	count := func(n int) { b = binary.BigEndian.AppendUint64(append(b, 'L'), uint64(n)) }
	switch v := v.(type) {
	case map[string]any:
		b = append(b, '{')
		for k, x := range v {
			count(len(k))
			b = append(b, k...)
			b = appendUBJ(b, x, k)
		}
		return append(b, '}')
	case []any:
		floats := key == "split_conditions" || key == "base_weights" || key == "weights" || key == "weight_drop"
		if _, number := first(v).(json.Number); number || floats {
			b = append(b, "[$l#"...)
			if floats {
				b[len(b)-2] = 'd'
			}
			count(len(v))
			for _, x := range v {
				n, _ := x.(json.Number).Float64()
				if floats {
					b = binary.BigEndian.AppendUint32(b, math.Float32bits(float32(n)))
				} else {
					b = binary.BigEndian.AppendUint32(b, uint32(int32(n)))
				}
			}
			return b
		}
		b = append(b, "[#"...)
		count(len(v))
		for _, x := range v {
			b = appendUBJ(b, x, "")
		}
		return b
	case string:
		b = append(b, 'S')
		count(len(v))
		return append(b, v...)
	case bool:
		if v {
			return append(b, 'T')
		}
		return append(b, 'F')
	case json.Number:
		n, _ := v.Int64()
		return binary.BigEndian.AppendUint64(append(b, 'L'), uint64(n))
	}
	return append(b, 'Z')
}

func first(v []any) any {
	if len(v) == 0 {
		return nil
	}
	return v[0]
}

// FuzzXGBoost covers both formats, which the second byte tells apart.
func FuzzXGBoost(f *testing.F) {
	for _, src := range []string{
		xgbModel("reg:squarederror", "5E-1", "0", "[0, 0]", xgbTree, setTree),
		xgbModel("multi:softprob", "5E-1", "3", "[0, 1, 2]", xgbTree, setTree, xgbTree),
	} {
		f.Add([]byte(src))
		f.Add(toUBJSON(f, src))
	}
	f.Add([]byte(amplified(f, 3, "[16777215]")))
	f.Add([]byte(farEach(f, 3, 16777215)))
	f.Add([]byte("{l\x00\x00\x00\x01x[$[#l\x00\x00\x00\x20[$T#l\x00\x00\x00\x20"))
	f.Add([]byte("{[$Z#L\x7f\xff\xff\xff\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, src []byte) {
		m, err := XGBoost(src)
		if err != nil || m.Columns() > 1000 {
			return
		}
		checkWalk(t, m.Forest())
	})
}
