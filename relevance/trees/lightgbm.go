package trees

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// zeroThreshold is how near to zero a value must be for LightGBM to take it for zero: the
// float32 1e-35.
const zeroThreshold = float64(float32(1e-35))

// LightGBM reads a text model, as Booster.save_model writes it (format
// versions v2 to v4).
func LightGBM(src []byte) (*Model, error) {
	r := lightgbm{rest: string(src), m: &Model{average: 1, scale: 1}}
	if err := r.read(); err != nil {
		return nil, fmt.Errorf("trees: LightGBM model: line %d: %w", r.line, err)
	}
	return r.m, nil
}

// lightgbm is a file while it is read. The texts that it reads are parts of one string, so
// the model must keep copies of them.
type lightgbm struct {
	rest string // what is not read yet
	line int    // the number of the last line that was read
	m    *Model
	head map[string]string // the fields before the first tree
}

// next returns the next line without its end. ok is false at the end of the file.
func (r *lightgbm) next() (line string, ok bool) {
	if r.rest == "" {
		return "", false
	}
	r.line++
	line, r.rest, _ = strings.Cut(r.rest, "\n")
	return strings.TrimRight(line, "\r"), true
}

func (r *lightgbm) read() error {
	first, ok := r.next()
	if !ok {
		return errors.New("the file is empty")
	}
	if first != "tree" {
		return fmt.Errorf("begins with %q, not with \"tree\"", clip(first))
	}
	fields, tree, err := r.fields()
	if err != nil {
		return err
	}
	r.head = fields
	if err := r.header(); err != nil {
		return err
	}
	for n := 0; tree; n++ {
		if fields, tree, err = r.fields(); err != nil {
			return err
		}
		if err := r.tree(fields, n); err != nil {
			return fmt.Errorf("tree %d, which ends before this line: %w", n, err)
		}
	}
	return r.end()
}

// clip returns s, cut to 40 bytes: errors quote the file, which anybody may have written.
func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "..."
	}
	return s
}

// fields reads lines of key=value up to the beginning of the next tree, and reports whether
// there is one.
func (r *lightgbm) fields() (fields map[string]string, tree bool, err error) {
	fields = map[string]string{}
	for {
		line, ok := r.next()
		if !ok {
			return nil, false, errors.New("ends before \"end of trees\"")
		}
		switch {
		case line == "":
		case strings.HasPrefix(line, "Tree="):
			return fields, true, nil
		case line == "end of trees", line == "feature importances:": // files of v2 may lack "end of trees"
			return fields, false, nil
		default:
			key, value, _ := strings.Cut(line, "=")
			if _, twice := fields[key]; twice {
				return nil, false, fmt.Errorf("%s stands twice", clip(key))
			}
			fields[key] = value
		}
	}
}

// header reads the fields before the first tree, in head, into the model.
func (r *lightgbm) header() error {
	m := r.m
	switch v := r.head["version"]; v {
	case "v2", "v3", "v4":
	default:
		return fmt.Errorf("version %q is not supported; v2, v3 and v4 are", v)
	}
	last, err := strconv.Atoi(r.head["max_feature_idx"])
	if err != nil || last < 0 || last >= maxFeatures {
		return fmt.Errorf("max_feature_idx is %q", clip(r.head["max_feature_idx"]))
	}
	m.Inputs = last + 1
	m.Classes = 1
	if s, ok := r.head["num_tree_per_iteration"]; ok {
		if m.Classes, err = strconv.Atoi(s); err != nil || m.Classes < 1 || m.Classes > maxClasses {
			return fmt.Errorf("num_tree_per_iteration is %q", clip(s))
		}
	}
	m.base = make([]float64, m.Classes)
	m.Names = strings.Fields(strings.Clone(r.head["feature_names"]))
	if len(m.Names) != m.Inputs {
		return fmt.Errorf("feature_names has %d names, and max_feature_idx says %d", len(m.Names), m.Inputs)
	}
	return r.objective()
}

// identities are the objectives whose score is the sum itself.
var identities = []string{
	"", "custom", "none", "regression", "regression_l2", "regression_l1", "l2", "l1", "mse", "mae", "huber", "fair", "quantile", "mape",
	"lambdarank", "rank_xendcg",
}

// objective sets the link of the model by the objective in head.
func (r *lightgbm) objective() error {
	m := r.m
	m.Objective = strings.Clone(r.head["objective"])
	words := strings.Fields(m.Objective)
	name := ""
	if len(words) > 0 {
		name = words[0]
	}
	for _, w := range words[min(1, len(words)):] {
		key, value, _ := strings.Cut(w, ":")
		switch key {
		case "sigmoid":
			x, err := strconv.ParseFloat(value, 64)
			if err != nil || !(x > 0) || math.IsInf(x, 0) {
				return fmt.Errorf("the objective's sigmoid is %q", clip(value))
			}
			m.scale = x
		case "sqrt":
			m.link = square
		}
	}
	switch {
	case slices.Contains(identities, name):
	case name == "binary" || name == "multiclassova":
		m.link = sigmoid
	case name == "cross_entropy" || name == "xentropy":
		m.link, m.scale = sigmoid, 1
	case name == "cross_entropy_lambda" || name == "xentlambda":
		m.link = log1pExp
	case name == "poisson" || name == "gamma" || name == "tweedie":
		m.link = exponent
	case name == "multiclass":
		m.link = softmax
	default:
		return fmt.Errorf("the objective %q is not supported", clip(name))
	}
	return nil
}

// end checks the number of trees, and sets what sums are divided by.
func (r *lightgbm) end() error {
	m := r.m
	if len(m.trees) == 0 {
		return errors.New("no trees")
	}
	if len(m.trees)%m.Classes != 0 {
		return fmt.Errorf("%d trees for %d classes", len(m.trees), m.Classes)
	}
	if _, ok := r.head["average_output"]; ok {
		m.average = float64(len(m.trees) / m.Classes)
	}
	return nil
}

// The bits of a decision_type.
const (
	categorical = 1
	defaultLeft = 2
)

// The missing types of a decision_type, in the bits above those: which values are missing.
const (
	missingNone = iota
	missingZero
	missingNaN
)

// lgbTree is a tree as the file has it, with lists of splits and lists of leaves.
type lgbTree struct {
	fields      map[string]string // the lines of the file, by key
	leaves      int               // how many leaves it has
	sets        int               // the index in Model.sets of the first set of this tree
	cats        int               // how many sets this tree has
	isLinear    bool              // its leaves are linear models
	splitOf     []int32           // by split: the column that it reads
	left, right []int32           // by split: a child; below 0: leaf ^child
	threshold   []float64         // by split; of a categorical one, the number of its set within the tree
	decision    []int32           // by split: its decision_type
	value       []float64         // by leaf: what it gives
	internal    []float64         // by split: what the tree would give if it ended here
}

// tree adds the n-th tree of the file to the model. Trees of the classes take turns.
func (r *lightgbm) tree(fields map[string]string, n int) error {
	t := lgbTree{fields: fields, sets: len(r.m.sets)}
	leaves, err := strconv.Atoi(fields["num_leaves"])
	if err != nil || leaves < 1 || leaves > maxNodes/2 {
		return fmt.Errorf("num_leaves is %q", clip(fields["num_leaves"]))
	}
	t.leaves = leaves
	if err := t.read(); err != nil {
		return err
	}
	if err := r.categories(&t); err != nil {
		return err
	}
	nodes := make([]node, 2*leaves-1)
	for i := range leaves - 1 {
		if nodes[i], err = r.split(&t, i); err != nil {
			return fmt.Errorf("split %d: %w", i, err)
		}
	}
	for i := range leaves {
		nodes[leaves-1+i] = node{kind: leafNode, threshold: t.value[i], value: t.value[i], leaf: int32(i)}
	}
	if t.isLinear {
		if err := r.linear(&t, nodes[leaves-1:]); err != nil {
			return err
		}
	}
	if err := r.m.add(nodes, n%r.m.Classes); err != nil {
		return err
	}
	r.m.trees[len(r.m.trees)-1].linear = t.isLinear
	return nil
}

// read parses the fields of the tree into its lists. It needs leaves, their number.
func (t *lgbTree) read() error {
	splits := t.leaves - 1
	var errs []error
	note := func(err error) { errs = append(errs, err) }
	if t.value = floats(t.fields, "leaf_value", t.leaves, true, note); len(errs) > 0 {
		return errs[0] // before num_leaves, which may be wrong, decides how much memory is allocated
	}
	t.splitOf = ints(t.fields, "split_feature", splits, true, note)
	t.threshold = floats(t.fields, "threshold", splits, true, note)
	t.left = ints(t.fields, "left_child", splits, true, note)
	t.right = ints(t.fields, "right_child", splits, true, note)
	t.decision = ints(t.fields, "decision_type", splits, false, note)
	t.internal = floats(t.fields, "internal_value", splits, false, note)
	t.isLinear = t.fields["is_linear"] == "1"
	return errors.Join(errs...)
}

// split returns the node of the i-th split. In the file, a child below 0 is a leaf; in
// nodes, the leaves follow the splits.
func (r *lightgbm) split(t *lgbTree, i int) (node, error) {
	n := node{threshold: t.threshold[i], feature: t.splitOf[i], missing: 1, value: t.internal[i], leaf: -1}
	if n.feature < 0 || int(n.feature) >= r.m.Inputs {
		return n, fmt.Errorf("feature %d of %d", n.feature, r.m.Inputs)
	}
	for side, c := range []int32{t.left[i], t.right[i]} {
		if c < 0 {
			if ^c > int32(t.leaves-1) { // checked here, since the sum below might overflow
				return n, fmt.Errorf("a child is leaf %d of %d", ^c, t.leaves)
			}
			c = int32(t.leaves-1) + ^c
		}
		n.child[side] = c
	}
	d := t.decision[i]
	if d < 0 || d > categorical|defaultLeft|missingNaN<<2 {
		return n, fmt.Errorf("decision_type %d is not supported", d)
	}
	if d&categorical != 0 {
		return n, r.categoricalSplit(t, &n)
	}
	n.numericSplit(d>>2, d&defaultLeft != 0)
	return n, nil
}

// numericSplit corrects a threshold near zero (see besideZero), and sets to which side
// missing values go. missing is the missing type of the file, and left its default_left.
func (n *node) numericSplit(missing int32, left bool) {
	n.threshold = besideZero(n.threshold)
	if left {
		n.missing = 0
	}
	switch missing {
	case missingNone: // LightGBM takes NaN for 0
		n.missing = 0
		if 0 > n.threshold {
			n.missing = 1
		}
	case missingZero:
		n.zero = true
	}
}

// besideZero returns a threshold that sends every number to the side to which LightGBM
// sends it with the threshold t. LightGBM takes numbers within zeroThreshold of zero for
// zero. Its own thresholds below zero are often -zeroThreshold.
func besideZero(t float64) float64 {
	switch {
	case t >= 0 && t < zeroThreshold:
		return zeroThreshold
	case t < 0 && t >= -zeroThreshold:
		return math.Nextafter(-zeroThreshold, -1)
	}
	return t
}

// categoricalSplit makes n a categorical split, whose threshold is the number of its set. A
// missing category goes right, whatever the missing type.
func (r *lightgbm) categoricalSplit(t *lgbTree, n *node) error {
	if !(n.threshold >= 0 && n.threshold < float64(t.cats)) {
		return fmt.Errorf("set %v of %d", n.threshold, t.cats)
	}
	n.kind, n.stray = inSet, 1
	n.threshold += float64(t.sets)
	return nil
}

// categories reads the sets of a tree's categorical splits into the model.
func (r *lightgbm) categories(t *lgbTree) error {
	s := t.fields["num_cat"]
	if s == "" || s == "0" {
		return nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n >= t.leaves {
		return fmt.Errorf("num_cat is %q", clip(s))
	}
	var errs []error
	note := func(err error) { errs = append(errs, err) }
	bounds := ints(t.fields, "cat_boundaries", n+1, true, note)
	words := ints64(t.fields, "cat_threshold", note)
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	for i := range n {
		from, to := bounds[i], bounds[i+1]
		if from < 0 || to < from || int(to) > len(words) {
			return fmt.Errorf("cat_boundaries %d to %d of %d", from, to, len(words))
		}
		s := set{bits: make([]uint32, 0, to-from), end: float64(32 * (to - from))} // also if the last words are 0
		for _, w := range words[from:to] {
			if w < 0 || w > math.MaxUint32 {
				return fmt.Errorf("cat_threshold %d", w)
			}
			s.bits = append(s.bits, uint32(w))
		}
		if _, err := r.m.addSet(s); err != nil {
			return fmt.Errorf("set %d: %w", i, err)
		}
	}
	t.cats = n
	return nil
}

// linear reads the models of a tree's linear leaves.
func (r *lightgbm) linear(t *lgbTree, leaves []node) error {
	var errs []error
	note := func(err error) { errs = append(errs, err) }
	constants := floats(t.fields, "leaf_const", t.leaves, true, note)
	counts := ints(t.fields, "num_features", t.leaves, true, note)
	features := ints64(t.fields, "leaf_features", note)
	factors := floats(t.fields, "leaf_coeff", -1, true, note)
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	for i := range leaves {
		n := int(counts[i])
		if n < 0 || n > len(features) || n > len(factors) {
			return fmt.Errorf("leaf %d has %d features, and %d are left", i, n, len(features))
		}
		m := leafModel{constant: constants[i], factors: factors[:n:n]}
		for _, c := range features[:n] {
			if c < 0 || c >= int64(r.m.Inputs) {
				return fmt.Errorf("leaf %d: feature %d of %d", i, c, r.m.Inputs)
			}
			m.features = append(m.features, int32(c))
		}
		features, factors = features[n:], factors[n:]
		leaves[i].leaf = int32(i)
		leaves[i].model = int32(len(r.m.leaves))
		r.m.leaves = append(r.m.leaves, m)
	}
	return nil
}

// floats parses a field of n numbers; n is -1 for any number of them. If must is false, an
// empty field is n zeros. It calls note with what is wrong.
func floats(fields map[string]string, key string, n int, must bool, note func(error)) []float64 {
	if fields[key] == "" && !must {
		return make([]float64, max(n, 0))
	}
	out := make([]float64, 0, min(max(n, 0), len(fields[key])/2+1)) // no more than the text can have
	for w := range strings.FieldsSeq(fields[key]) {
		x, err := strconv.ParseFloat(w, 64)
		if math.IsNaN(x) || math.IsInf(x, 0) && key != "threshold" || err != nil && !errors.Is(err, strconv.ErrRange) {
			note(fmt.Errorf("%s has %q", key, clip(w)))
			return nil
		}
		out = append(out, x)
	}
	if n >= 0 && len(out) != n {
		note(fmt.Errorf("%s has %d values, not %d", key, len(out), n))
		return nil
	}
	return out
}

// ints is floats for n integers of 32 bits.
func ints(fields map[string]string, key string, n int, must bool, note func(error)) []int32 {
	if fields[key] == "" && !must {
		return make([]int32, n)
	}
	x := ints64(fields, key, note)
	if len(x) != n {
		note(fmt.Errorf("%s has %d values, not %d", key, len(x), n))
		return nil
	}
	out := make([]int32, n)
	for i, v := range x {
		if v != int64(int32(v)) {
			note(fmt.Errorf("%s has %d", key, v))
			break
		}
		out[i] = int32(v)
	}
	return out
}

// ints64 parses a field of any number of integers. It calls note with what is wrong.
func ints64(fields map[string]string, key string, note func(error)) []int64 {
	text := fields[key]
	out := make([]int64, 0, (len(text)+1)/2)
	for w := range strings.FieldsSeq(text) {
		x, err := strconv.ParseInt(w, 10, 64)
		if err != nil {
			note(fmt.Errorf("%s has %q", key, clip(w)))
			break
		}
		out = append(out, x)
	}
	return out
}
