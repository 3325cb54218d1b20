package trees

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
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
	} {
		f := xg(t, xgbModel(c.objective, c.base, "0", "[0]", xgbTree))
		near(t, c.objective, f.Score1([]float64{1, 0}), c.want, 2e-7)
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

func TestXGBoostDartAndLinear(t *testing.T) {
	gbtree := xgbModel("reg:squarederror", "0", "0", "[0]", xgbTree)
	dart := strings.Replace(gbtree, `"gradient_booster": {"name": "gbtree",`, `"gradient_booster": {"name": "dart", "weight_drop": [0.5], "gbtree": {"name": "gbtree",`, 1)
	dart = strings.Replace(dart, "]}},\n\t\t\"learner_model_param\"", "]}}},\n\t\t\"learner_model_param\"", 1)
	if got := xg(t, dart).Score1([]float64{1, 0}); got != float64(float32(0.3)*0.5) {
		t.Errorf("dart scores %v", got)
	}
	linear := gbtree[:strings.Index(gbtree, `"gradient_booster"`)] + `"gradient_booster": {"name": "gblinear", "model": {"weights": [2, -1, 0.5]}},` + gbtree[strings.Index(gbtree, `"learner_model_param"`):]
	f := xg(t, linear)
	for _, c := range []struct{ a, b, want float64 }{{1, 2, 0.5}, {3, math.NaN(), 6.5}} {
		if got := f.Score1([]float64{c.a, c.b}); got != c.want {
			t.Errorf("linear %v %v scores %v, want %v", c.a, c.b, got, c.want)
		}
	}
}

func TestXGBoostRefuses(t *testing.T) {
	good := xgbModel("reg:squarederror", "0", "0", "[0]", xgbTree)
	for _, c := range []struct{ old, new, want string }{
		{`"name": "gbtree"`, `"name": "gbforest"`, "gbforest"},
		{"reg:squarederror", "reg:mystery", "reg:mystery"},
		{`"num_target": "1"`, `"num_target": "2"`, "num_target"},
		{`"size_leaf_vector": "1"`, `"size_leaf_vector": "3"`, "vectors"},
		{`"num_feature": "2", "num_target"`, `"num_feature": "1", "num_target"`, "feature_names"},
		{`"split_indices": [0, 0, 1`, `"split_indices": [0, 0, 2`, "feature 2 of 2"},
		{`"left_children": [1, -1, 3`, `"left_children": [1, -1, 9`, "node 9"},
		{`"left_children": [1, -1, 3`, `"left_children": [1, -1, 0`, "twice"},
		{`"tree_info": [0]`, `"tree_info": [1]`, "class 1"},
		{`"tree_info": [0]`, `"tree_info": []`, "tree_info"},
		{`[0.5, 0.1, -1`, `["x", 0.1, -1`, "split_conditions"},
		{`"base_score": "0"`, `"base_score": "nan"`, "base_score"},
	} {
		if !strings.Contains(good, c.old) {
			t.Fatalf("no %s", c.old)
		}
		_, err := XGBoost([]byte(strings.Replace(good, c.old, c.new, 1)))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.new, err)
		}
	}
	for _, src := range []string{"", "{", "[]", "binf\x00\x00", good + "x", good[:len(good)-1]} {
		if _, err := XGBoost([]byte(src)); err == nil {
			t.Errorf("%q is accepted", clip(src))
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
