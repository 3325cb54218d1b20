package trees

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/millrace/millrace/compute"
)

// XGBoost reads a model as Booster.save_model writes it, in JSON or UBJSON. The booster may
// be gbtree, dart or gblinear.
func XGBoost(src []byte) (*Model, error) {
	root, err := document(src)
	if err != nil {
		return nil, fmt.Errorf("trees: XGBoost model: %w", err)
	}
	x := xgb{m: &Model{average: 1, scale: 1, single: true}}
	x.read(root)
	if x.err != nil {
		return nil, fmt.Errorf("trees: XGBoost model: %w", x.err)
	}
	return x.m, nil
}

// document decodes either format, which it knows by the second byte. After the brace of an
// object, UBJSON has a marker, and JSON a quote or white space.
func document(src []byte) (any, error) {
	if len(src) < 2 || src[0] != '{' {
		return nil, errors.New("is not an object of JSON or UBJSON")
	}
	if _, binary := sizes[src[1]]; binary || src[1] == '#' || src[1] == '$' {
		return ubjson(src)
	}
	return decodeJSON(src)
}

// xgb reads a decoded document into a model. Its methods keep the first fault in err, and go
// on with empty values.
type xgb struct {
	m       *Model
	err     error
	version int       // the version of the library that wrote the file: 107 for 1.7; math.MaxInt if the file does not say
	drop    []float64 // of the booster dart: by which factor the leaves of each tree count; else nil
}

// fail notes a fault, unless there was one before.
func (x *xgb) fail(format string, args ...any) {
	if x.err == nil {
		x.err = fmt.Errorf(format, args...)
	}
}

// read reads a document into the model.
func (x *xgb) read(root any) {
	x.version = math.MaxInt
	if m, ok := root.(map[string]any); ok && m["version"] != nil {
		if v := x.wide(m, "version"); len(v) > 1 {
			x.version = int(v[0]*100 + v[1])
		}
	}
	learner := x.object(root, "learner")
	objective := x.object(learner, "objective")
	x.m.Objective = x.text(objective, "name")
	x.params(x.object(learner, "learner_model_param"))
	x.names(learner["feature_names"])
	base := x.objective()
	if x.err != nil {
		return
	}
	x.m.base = base
	booster := x.object(learner, "gradient_booster")
	switch name := x.text(booster, "name"); name {
	case "gbtree":
		x.m.baseLast = x.version < 103
		x.trees(x.object(booster, "model"))
	case "dart":
		x.m.baseLast = x.version < 104
		x.drop = x.numbers(booster, "weight_drop")
		x.trees(x.object(x.object(booster, "gbtree"), "model"))
	case "gblinear":
		for c := range base {
			base[c] = base[0] // the library takes only the first one
		}
		x.linear(x.object(booster, "model"))
	default:
		x.fail("the booster %q is not supported", clip(name))
	}
}

// object returns the object under a key of v, which must be an object too. If there is
// none, it notes a fault and returns nil.
func (x *xgb) object(v any, key string) map[string]any {
	m, _ := v.(map[string]any)
	o, ok := m[key].(map[string]any)
	if !ok {
		x.fail("no %s", key)
	}
	return o
}

func (x *xgb) text(m map[string]any, key string) string {
	s, ok := m[key].(string)
	if !ok {
		x.fail("no %s", key)
	}
	return s
}

// param reads the number under a key of m, which the format has as text, such as "5E-1". It
// returns the argument otherwise if m has no such key.
func (x *xgb) param(m map[string]any, key string, otherwise float64) float64 {
	v, ok := m[key]
	if !ok {
		return otherwise
	}
	s, ok := v.(string)
	if !ok {
		s = fmt.Sprint(v)
	}
	n, err := strconv.ParseFloat(s, 32)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
		x.fail("%s is %q", key, clip(s))
	}
	return n
}

// params reads the numbers of inputs and classes, and the base scores.
func (x *xgb) params(m map[string]any) {
	inputs, classes := x.param(m, "num_feature", 0), x.param(m, "num_class", 0)
	if targets := x.param(m, "num_target", 1); targets > 1 {
		x.fail("num_target is %v; one target is supported", targets)
	}
	if !(inputs >= 1 && inputs <= maxFeatures) {
		x.fail("num_feature is %v", inputs)
		inputs = 1
	}
	if !(classes >= 0 && classes <= maxClasses) {
		x.fail("num_class is %v", classes)
		classes = 0
	}
	x.m.Inputs, x.m.Classes = int(inputs), max(1, int(classes))
	x.m.base = x.bases(m)
}

// bases reads base_score: one number, or since version 3.1 a list of one for each class. It
// returns one for each class.
func (x *xgb) bases(m map[string]any) []float64 {
	s, ok := m["base_score"].(string)
	if !ok || !strings.HasPrefix(s, "[") {
		base := x.param(m, "base_score", 0.5)
		out := make([]float64, x.m.Classes)
		for i := range out {
			out[i] = base
		}
		return out
	}
	if n := strings.Count(s, ","); n >= maxClasses {
		x.fail("base_score has %d values for %d classes", n+1, x.m.Classes)
		return make([]float64, x.m.Classes)
	}
	words := strings.Split(strings.Trim(s, "[] "), ",")
	if len(words) != 1 && len(words) != x.m.Classes {
		x.fail("base_score has %d values for %d classes", len(words), x.m.Classes)
		words = words[:1]
	}
	out := make([]float64, x.m.Classes)
	for i := range out {
		w := strings.TrimSpace(words[i%len(words)])
		out[i] = x.param(map[string]any{"base_score": w}, "base_score", 0)
	}
	return out
}

// names reads the names of the features. A file may have none.
func (x *xgb) names(v any) {
	list, _ := v.([]any)
	for _, n := range list {
		s, ok := n.(string)
		if !ok {
			x.fail("feature_names has %v", n)
			return
		}
		x.m.Names = append(x.m.Names, s)
	}
	if len(list) > 0 && len(list) != x.m.Inputs {
		x.fail("feature_names has %d names, and num_feature is %d", len(list), x.m.Inputs)
	}
}

// objective sets the link, the function from the sum of the trees (the margin) to the score.
// It returns the base scores as margins, since the file has them as scores.
func (x *xgb) objective() []float64 {
	m := x.m
	name := m.Objective
	margin := func(p float32) float32 { return p }
	logit := func(p float32) float32 {
		p = max(p, 1e-6)
		p = min(p, 1-float32(1e-6))
		return -float32(compute.Log(float64(1/p - 1)))
	}
	log := func(p float32) float32 { return float32(compute.Log(float64(p))) }
	switch name {
	case "binary:logistic", "reg:logistic":
		m.link, margin = sigmoid, logit
	case "binary:logitraw":
		if x.version < 103 {
			margin = logit // the files of later versions have the margin itself
		}
	case "count:poisson", "reg:gamma", "reg:tweedie", "survival:cox", "survival:aft":
		m.link, margin = exponent, log
	case "binary:hinge":
		m.link = step
	case "multi:softprob":
		m.link = softmax
	case "multi:softmax":
		m.link = argmax
	case "reg:squarederror", "reg:linear", "reg:squaredlogerror", "reg:pseudohubererror", "reg:absoluteerror", "reg:quantileerror", "reg:expectileerror",
		"rank:pairwise", "rank:ndcg", "rank:map":
	default:
		x.fail("the objective %q is not supported", clip(name))
	}
	out := make([]float64, len(m.base))
	for i, b := range m.base {
		out[i] = float64(margin(float32(b)))
		if math.IsNaN(out[i]) || math.IsInf(out[i], 0) {
			x.fail("base_score %v is out of range for %s", b, name)
		}
	}
	return out
}

// trees reads the trees of a booster. tree_info has the class of each.
func (x *xgb) trees(model map[string]any) {
	list, _ := model["trees"].([]any)
	info := x.ints(model, "tree_info")
	if x.err == nil && len(info) != len(list) {
		x.fail("tree_info has %d trees, and trees %d", len(info), len(list))
	}
	if x.err == nil && x.drop != nil && len(x.drop) != len(list) {
		x.fail("weight_drop has %d trees, and trees %d", len(x.drop), len(list))
	}
	for i, t := range list {
		if x.err != nil {
			return
		}
		if info[i] < 0 || int(info[i]) >= x.m.Classes {
			x.fail("tree %d is of class %d of %d", i, info[i], x.m.Classes)
			return
		}
		m, _ := t.(map[string]any)
		nodes := x.tree(m, i)
		if x.err == nil {
			x.err = x.m.add(nodes, int(info[i]))
		}
		if x.err != nil {
			x.err = fmt.Errorf("tree %d: %w", i, x.err)
		}
	}
}

// numbers reads a list of numbers, which the library reads as float32s.
func (x *xgb) numbers(m map[string]any, key string) []float64 {
	switch v := m[key].(type) {
	case []float64:
		return v
	case []int64:
		out := make([]float64, len(v))
		for i, n := range v {
			out[i] = float64(float32(n))
		}
		return out
	case []any:
		x.fail("%s has what is no number", key)
	}
	x.fail("no %s", key)
	return nil
}

// ints reads a list of integers or booleans.
func (x *xgb) ints(m map[string]any, key string) []int32 {
	wide := x.wide(m, key)
	out := make([]int32, len(wide))
	for i, n := range wide {
		if n != int64(int32(n)) {
			x.fail("%s has %d", key, n)
			return nil
		}
		out[i] = int32(n)
	}
	return out
}

// wide reads a list of integers of 64 bits.
func (x *xgb) wide(m map[string]any, key string) []int64 {
	switch v := m[key].(type) {
	case []int64:
		return v
	case []float64, []any:
		x.fail("%s has what is no integer", key)
	}
	x.fail("no %s", key)
	return nil
}

// tree returns the nodes of the i-th tree. In the file, a node without a left child is a
// leaf, and its split condition is its value. At a split, a number below the condition goes
// left.
func (x *xgb) tree(m map[string]any, i int) []node {
	if p, ok := m["tree_param"].(map[string]any); ok && x.param(p, "size_leaf_vector", 0) > 1 {
		x.fail("leaves are vectors; one target is supported")
	}
	left, right := x.ints(m, "left_children"), x.ints(m, "right_children")
	features, conditions := x.ints(m, "split_indices"), x.numbers(m, "split_conditions")
	defaults := x.ints(m, "default_left")
	n := len(left)
	if x.err == nil && (n == 0 || len(right) != n || len(features) != n || len(conditions) != n || len(defaults) != n) {
		x.fail("%d left_children, %d right_children, %d split_indices, %d split_conditions, %d default_left", n, len(right), len(features), len(conditions), len(defaults))
	}
	if x.err != nil {
		return nil
	}
	sets := x.categories(m, n)
	var means []float64
	if _, ok := m["base_weights"]; ok {
		means = x.numbers(m, "base_weights")
	}
	nodes := make([]node, n)
	for k := range nodes {
		v := node{threshold: conditions[k], child: [2]int32{left[k], right[k]}, feature: features[k], leaf: -1}
		if len(means) == n && means[k] == means[k] {
			v.value = means[k]
		}
		switch set, categorical := sets[k]; {
		case left[k] < 0:
			v.kind, v.leaf, v.feature = leafNode, int32(k), 0
			if x.drop != nil {
				v.threshold = float64(float32(v.threshold) * float32(x.drop[i]))
			}
			v.value = v.threshold
		case categorical:
			v.kind, v.threshold = notInSet, float64(set)
			if x.version < 107 && defaults[k] == 0 {
				v.stray = 1 // since 1.7, a value that is no category goes left
			}
		default:
			v.threshold = below(v.threshold)
		}
		if defaults[k] == 0 {
			v.missing = 1
		}
		nodes[k] = v
	}
	return nodes
}

// below returns the greatest float32 below t. For float32s, x < t is the same as
// x <= below(t).
func below(t float64) float64 {
	return float64(math.Nextafter32(float32(t), float32(math.Inf(-1))))
}

// categories reads the sets of a tree's categorical splits. It returns the index of the set
// in Model.sets by the number of the node. XGBoost lists the categories that go right.
func (x *xgb) categories(m map[string]any, n int) map[int]int {
	if _, ok := m["categories_nodes"]; !ok {
		return nil
	}
	at, starts, counts := x.ints(m, "categories_nodes"), x.wide(m, "categories_segments"), x.wide(m, "categories_sizes")
	all := x.wide(m, "categories")
	if x.err == nil && (len(starts) != len(at) || len(counts) != len(at)) {
		x.fail("%d categories_nodes, %d categories_segments, %d categories_sizes", len(at), len(starts), len(counts))
	}
	left := int64(len(all)) // splits may not share categories: else a small file could make very many sets
	if x.err != nil {
		return nil
	}
	sets := map[int]int{}
	for i, k := range at {
		from, count := starts[i], counts[i]
		if k < 0 || int(k) >= n || from < 0 || count < 0 || from > int64(len(all)) || count > int64(len(all))-from {
			x.fail("categories_nodes: node %d has categories %d to %d of %d", k, from, from+count, len(all))
			return nil
		}
		if left -= count; left < 0 {
			x.fail("categories_sizes: node %d has categories of another node: the sizes add up to more than %d", k, len(all))
			return nil
		}
		codes := make([]uint32, 0, count)
		for _, c := range all[from : from+count] {
			if c < 0 || c >= maxCategory {
				x.fail("categories has %d", c)
				return nil
			}
			codes = append(codes, uint32(c))
		}
		var err error
		if sets[int(k)], err = x.m.addSet(newSet(codes)); err != nil {
			x.fail("node %d: %w", k, err)
			return nil
		}
	}
	return sets
}

// linear reads the weights of a linear booster: one for each class of each feature, then
// the bias of each class.
func (x *xgb) linear(model map[string]any) {
	w := x.numbers(model, "weights")
	if x.err == nil && len(w) != (x.m.Inputs+1)*x.m.Classes {
		x.fail("weights has %d values for %d features and %d classes", len(w), x.m.Inputs, x.m.Classes)
	}
	for _, v := range w {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			x.fail("weights: %w", errNotFinite)
		}
	}
	x.m.weights = w
}
