package random

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/modelpack"
)

// model is features, and a scorer that makes a score of them.
type model struct {
	features []code
	tables   []string // for look-ups; each is the text of a map's entries
	vectors  []string // for products with records' vectors; each is the text of a list
	scorer   string   // linear, logistic or trees
	bias     float64
	weights  []float64 // of a linear or logistic one
	trees    []*tree
}

// tree is inner nodes, the first one the root, and leaves. A child below zero is the leaf
// ^child.
type tree struct {
	feature     []int     // by node, the feature that it compares with threshold
	threshold   []float64 // a value up to it goes to left, a larger one to right
	left, right []int
	leaves      []float64 // values
}

// drawModel draws the model of the world: its scorer, its features, and weights or trees.
func (w *world) drawModel() {
	m := &model{scorer: one(w.Rand, "linear", "linear", "logistic", "trees")}
	w.model = m
	for range int(between(w.Rand, 2, 40)) {
		for {
			if c, ok := w.feature(); ok {
				m.features = append(m.features, c)
				break
			}
		}
	}
	samples := w.sampled()
	if m.scorer == "trees" {
		n, leaves := int(between(w.Rand, 5, 200)), one(w.Rand, 4, 16, 64)
		for range n {
			m.trees = append(m.trees, w.drawTree(leaves, samples))
		}
		w.say("model: %d trees of %d leaves, %d features", n, leaves, len(m.features))
		return
	}
	m.bias = w.NormFloat64()
	for _, s := range samples {
		// Divided by the spread of its values, so that each feature counts for about as much as
		// another, whatever its unit.
		spread := s[len(s)*9/10] - s[len(s)/10]
		if spread == 0 {
			spread = max(1, math.Abs(s[len(s)-1]))
		}
		x := w.NormFloat64() / spread
		if m.scorer == "logistic" { // not so large that the curve is flat
			x /= float64(len(samples))
		}
		m.weights = append(m.weights, x)
	}
	w.say("model: %s of %d features", m.scorer, len(m.features))
}

// samples is how many records with viewers are drawn, to see what values a model's features
// have.
const samples = 400

// sampled returns the values of each feature on samples random records and viewers, sorted.
func (w *world) sampled() [][]float64 {
	all := make([][]float64, len(w.model.features))
	for range samples {
		x, q := one(w.Rand, w.records...), w.somebody()
		for i, c := range w.model.features {
			all[i] = append(all[i], c.eval(x, q))
		}
	}
	for i := range all {
		slices.Sort(all[i])
	}
	return all
}

// somebody draws a viewer's attributes; the question has no viewer's id and no follows.
func (w *world) somebody() *question {
	q := &question{}
	for _, a := range w.attrs {
		q.values = append(q.values, a.draw(w.Rand))
	}
	return q
}

// drawTree draws a tree with that many leaves. It begins with a single leaf and splits random
// leaves, each at a random feature.
func (w *world) drawTree(leaves int, samples [][]float64) *tree {
	t := &tree{leaves: []float64{w.NormFloat64()}}
	type place struct { // the child of a node that is a leaf
		node  int // -1: the leaf is the whole tree
		right bool
	}
	at := []place{{-1, false}}
	for len(t.leaves) < leaves {
		leaf, n := w.IntN(len(t.leaves)), len(t.feature)
		f := w.IntN(len(samples))
		s := samples[f]
		// The threshold lies between two sampled values, or a little beside them if they are
		// equal, so that no comparison depends on the last bit of a value.
		i := w.IntN(len(s) - 1)
		t.feature = append(t.feature, f)
		t.threshold = append(t.threshold, s[i]+(s[i+1]-s[i])*(0.3+0.4*w.Float64())+1e-6*(1+math.Abs(s[i]))*(w.Float64()-0.5))
		t.leaves = append(t.leaves, w.NormFloat64())
		t.left, t.right = append(t.left, ^leaf), append(t.right, ^(len(t.leaves)-1))
		if p := at[leaf]; p.node >= 0 {
			if p.right {
				t.right[p.node] = n
			} else {
				t.left[p.node] = n
			}
		}
		at[leaf] = place{n, false}
		at = append(at, place{n, true})
	}
	return t
}

// walk returns the value of the leaf that a row of features leads to.
func (t *tree) walk(x []float64) float64 {
	n := 0
	for n >= 0 {
		if x[t.feature[n]] <= t.threshold[n] {
			n = t.left[n]
		} else {
			n = t.right[n]
		}
	}
	return t.leaves[^n]
}

const modelName = "random"

// spec returns the model's spec, the YAML file that defines it in Millrace.
func (w *world) spec() string {
	var b strings.Builder
	m := w.model
	fmt.Fprintf(&b, "name: %s\nversion: \"1\"\nschemas: [random.Item]\n", modelName)
	if len(w.attrs) > 0 {
		b.WriteString("viewer:\n")
	}
	for _, a := range w.attrs {
		fmt.Fprintf(&b, "  %s: %s\n", a.name, map[kind]string{doubles: "double", texts: "string", tags: "list(string)", vectors: "list(double)"}[a.kind])
	}
	b.WriteString("features:\n")
	for i, c := range m.features {
		fmt.Fprintf(&b, "  x%d: %q\n", i, c.cel)
	}
	fmt.Fprintf(&b, "scorer: %s\n", m.scorer)
	if m.scorer == "trees" {
		b.WriteString("trees: {model: trees.txt}\n")
	}
	if m.weights == nil && len(m.tables) == 0 {
		return b.String()
	}
	b.WriteString("parameters:\n")
	if m.weights != nil {
		fmt.Fprintf(&b, "  bias: %s\n  weights:\n", double(m.bias))
		for i, x := range m.weights {
			fmt.Fprintf(&b, "    x%d: %s\n", i, double(x))
		}
	}
	if len(m.tables) > 0 {
		b.WriteString("  tables:\n")
	}
	for i, t := range m.tables {
		fmt.Fprintf(&b, "    t%d: {%s}\n", i, t)
	}
	return b.String()
}

// lightGBM returns the trees as the text file in which LightGBM saves them.
func (m *model) lightGBM() string {
	var b strings.Builder
	var names []string
	for i := range m.features {
		names = append(names, fmt.Sprintf("x%d", i))
	}
	fmt.Fprintf(&b, "tree\nversion=v4\nnum_class=1\nnum_tree_per_iteration=1\nlabel_index=0\nmax_feature_idx=%d\nobjective=regression\nfeature_names=%s\n\n", len(names)-1, strings.Join(names, " "))
	for i, t := range m.trees {
		fmt.Fprintf(&b, "Tree=%d\nnum_leaves=%d\nnum_cat=0\nsplit_feature=%s\nthreshold=%s\ndecision_type=%s\nleft_child=%s\nright_child=%s\nleaf_value=%s\nis_linear=0\nshrinkage=1\n\n",
			i, len(t.leaves), spaced(t.feature), spaced(t.threshold), strings.TrimSpace(strings.Repeat("2 ", len(t.feature))), spaced(t.left), spaced(t.right), spaced(t.leaves))
	}
	b.WriteString("end of trees\n")
	return b.String()
}

func spaced[T any](list []T) string { return strings.Trim(fmt.Sprint(list), "[]") }

// goldenRows is how many golden rows (records with the features and the score that they must
// have) the model gets. A model with trees needs at least 100.
const goldenRows = 100

// pack seals the model: it returns its spec, card, trees and golden rows as one file. The
// golden rows are computed by this package, not by Millrace.
func (w *world) pack(known relevance.Schemas) (_ *modelpack.Pack, err error) {
	dir, err := os.MkdirTemp("", "millrace-pack-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	files := map[string]string{modelpack.SpecFile: w.spec(), modelpack.CardFile: "# random\n\nOf a benchmark; its numbers mean nothing.\n"}
	if w.model.scorer == "trees" {
		files["trees.txt"] = w.model.lightGBM()
	}
	golden, err := w.golden()
	if err != nil {
		return nil, err
	}
	files[modelpack.GoldenFile] = golden
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	return modelpack.Seal(dir, known)
}

// golden returns the golden rows, a JSON object a line.
func (w *world) golden() (string, error) {
	var b strings.Builder
	for i := range goldenRows {
		x, q := w.records[i%len(w.records)], w.somebody()
		row := modelpack.Golden{Features: map[string]any{}, AsOf: float64(asOf), Viewer: map[string]any{"id": "viewer:0"}}
		values := make([]float64, len(w.model.features))
		for j, c := range w.model.features {
			values[j] = c.eval(x, q)
			row.Features[fmt.Sprintf("x%d", j)] = values[j]
		}
		score := w.model.score(values)
		row.Score = &score
		for j, a := range w.attrs {
			row.Viewer[a.name] = q.values[j]
		}
		line, err := w.line(x)
		if err != nil {
			return "", err
		}
		if err := json.Unmarshal(line, &row.Record); err != nil {
			return "", err
		}
		text, err := json.Marshal(row)
		if err != nil {
			return "", err
		}
		b.Write(append(text, '\n'))
	}
	return b.String(), nil
}

// score returns the model's score for values of its features.
func (m *model) score(x []float64) float64 {
	s := m.bias
	for i, w := range m.weights {
		s += w * x[i]
	}
	for _, t := range m.trees {
		s += t.walk(x)
	}
	if m.scorer == "logistic" {
		s = 1 / (1 + math.Exp(-s))
	}
	return s
}
