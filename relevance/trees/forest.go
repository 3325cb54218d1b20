// Package trees scores forests of decision trees as the libraries do that trained them. It
// imports LightGBM's text models and dumps, and XGBoost's JSON and UBJSON models, into one
// table of nodes. There are two ways to bring rows to the leaves of a tree. A walk takes
// eight rows at a time from the root to their leaves. It compares keys: integers in the
// order of the inputs. A sweep applies each split of the tree to all rows of a batch. It
// compares ranks: bytes that say how many thresholds of an input are below its value; see
// sweep.go.
//
// The importers follow the formats' definitions. They refuse a file that uses something
// that is not supported, and the error names it.
package trees

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace/compute"
)

// The bounds of a model.
const (
	maxNodes    = 1 << 22 // of all trees; some 350 MB of memory
	maxFeatures = 1 << 16
	maxClasses  = 1 << 10
)

// Model is an imported file. It is immutable. Its method Forest returns what scores.
type Model struct {
	// Names are the features as the file names them, in the order of its
	// columns. A file may have none.
	Names []string
	// Inputs is the number of columns, one for each feature.
	Inputs int
	// Classes is the number of scores that a row has: 1 except for multiclass models.
	Classes int
	// Objective is what the model was trained for, as the file names it.
	Objective string

	trees    []tree
	nodes    []node      // of all trees, one tree after the other
	sets     []set       // the sets of categorical splits
	setBytes int         // what the sets take, in bytes
	leaves   []leafModel // the models of linear leaves
	base     []float64   // the base score of each class: what the sum of a row has besides its leaves
	baseLast bool        // base is added after all leaves (XGBoost before 1.3, dart before 1.4); else the sum begins with it
	weights  []float64   // the weights of a linear booster, by column and class, then its bias by class; nil for trees
	link     link        // turns the sum of a row into its score
	scale    float64     // what the sigmoid link multiplies the sum by
	average  float64     // what sums are divided by: in a random forest the number of trees of a class; 1 for boosting
	single   bool        // the library computes in float32
	class    int         // the class whose score Score returns
}

// Forest is a model laid out for scoring. It is immutable.
type Forest struct {
	Model

	splits  []split      // the trees that the fast walk can take, each with its root first
	origins []int32      // for each of splits, the number of its node within the tree
	values  []float64    // for each of splits, what it gives if it is a leaf
	keys    []keyColumn  // the columns of keys that the fast walk reads of a row
	moves   []move       // the splits of the trees that can be swept, as sweeps apply them
	gains   []float64    // what the leaves of those trees give, from left to right
	ranks   []rankColumn // the columns of ranks that sweeps read of a row
	cuts    [][]float64  // by input: the thresholds that sweeps compare it with, ascending, padded
	walks   bool         // some tree can be walked by keys, but not swept, so that Score always needs keys
	begins  []float64    // by class: the sum up to its first tree that is not folded, with the base unless baseLast
}

// tree is a range of nodes, its root first.
type tree struct {
	start, end int32 // where the tree begins and ends in Model.nodes
	class      int32 // the class to which its leaves count
	depth      int32 // how many splits lead to the deepest leaf
	sure       int32 // how many splits lead to the leaf that is nearest to the root
	fast       int32 // where its splits start in Forest.splits; -1 if it has none: it is walked plainly, or folded
	fastEnd    int32 // where its splits end
	linear     bool  // its leaves are linear models
	folded     bool  // it is a single leaf, which is part of Forest.begins

	moves, movesEnd, gains int32 // where its moves are in Forest.moves, and its gains in Forest.gains; moves is -1 if it cannot be swept
}

// node is a split or a leaf. A leaf's children are the leaf itself, so that a row that has
// arrived there stays. A leaf's threshold is its value.
type node struct {
	threshold float64  // numbers above it go right; of a categorical split, the index of its set
	child     [2]int32 // left and right, within the tree
	feature   int32    // the column that a split reads
	missing   uint8    // which child gets missing values: 0 left, 1 right
	stray     uint8    // of a categorical split: which child gets a category at most -1 (LightGBM) or below 0 (XGBoost), or from set.end on
	zero      bool     // zeros are missing, as well as NaN
	kind      uint8    // numeric, leafNode, inSet or notInSet
	model     int32    // the index of a linear leaf's model in Model.leaves
	leaf      int32    // the number of a leaf in the file's order; -1 for a split
	value     float64  // what the tree would give if it ended here
}

// split is what the fast walk reads of a node, a split or a leaf. It has 16 bytes, so that
// a tree stays in the first-level cache. A leaf's left child is itself, and no key is above
// its threshold.
type split struct {
	threshold uint64 // a key; greater ones go right
	// place has in its high half the left child, in words from the root; the right child
	// follows it. The low half has the column of keys, in bytes from the block's start.
	place uint64
}

// keyColumn is an input as keys: integers in the order of the numbers. A missing value has
// the least or the greatest key, so that one comparison sends numbers and missing values to
// the right side.
type keyColumn struct {
	input int32 // the index of the input
	low   bool  // a missing value goes left
	zero  bool  // zeros are missing too
}

// keyColumns is how many columns of keys an input can have.
const keyColumns = 4

// index returns the number of a column among the possible ones of all inputs.
func (c keyColumn) index() int {
	return keyColumns*int(c.input) + 2*compute.One(c.low) + compute.One(c.zero)
}

// The kinds of a node.
const (
	numeric uint8 = iota
	leafNode
	inSet    // categories in the set go left: LightGBM
	notInSet // categories in the set go right: XGBoost
)

// leafModel is a linear leaf: constant + the sum of coefficient × feature.
type leafModel struct {
	constant float64
	features []int32
	factors  []float64
}

// Class returns the model with the score of another class. class counts from 0.
func (m *Model) Class(class int) (*Model, error) {
	if class < 0 || class >= m.Classes {
		return nil, fmt.Errorf("trees: no class %d; the model has classes 0 to %d", class, m.Classes-1)
	}
	g := *m
	g.class = class
	return &g, nil
}

// Raw returns the model without its link and without averaging: the score is the base plus
// the sum of the leaves.
func (m *Model) Raw() *Model {
	g := *m
	g.link, g.average = identity, 1
	return &g
}

// Labels reports whether the score is the number of the best class, as XGBoost's
// multi:softmax gives it, and not a score of one class.
func (m *Model) Labels() bool { return m.link == argmax }

// Single reports whether the library computes in float32, as XGBoost does, so that scores
// have about seven digits.
func (m *Model) Single() bool { return m.single }

// Trees returns the number of trees.
func (m *Model) Trees() int { return len(m.trees) }

// Import reads a model file of any supported format.
func Import(src []byte) (*Model, error) {
	switch {
	case bytes.HasPrefix(src, []byte("tree\n")), bytes.HasPrefix(src, []byte("tree\r\n")):
		return LightGBM(src)
	case bytes.HasPrefix(src, []byte("{")) && isLightGBMDump(src):
		return LightGBMDump(src)
	case bytes.HasPrefix(src, []byte("{")):
		return XGBoost(src)
	case bytes.HasPrefix(src, []byte("[")):
		return nil, errors.New("trees: a list of trees, as XGBoost's dump_model writes for people; save the model with save_model")
	case bytes.HasPrefix(src, []byte("binf")), bytes.HasPrefix(src, []byte("\x00\x00\x00?")): // base_score 0.5 as a float32, of files without a magic
		return nil, errors.New("trees: XGBoost's old binary format; load it and save it as model.json")
	}
	return nil, errors.New("trees: neither a LightGBM text model or dump nor an XGBoost JSON or UBJSON model")
}

// Columns returns the number of columns of the matrix that [Forest.Score] takes.
func (m *Model) Columns() int { return m.Inputs }

// Used returns for each column whether a split, a linear leaf or a weight reads it.
func (m *Model) Used() []bool {
	used := make([]bool, m.Inputs)
	for i := range m.nodes {
		if n := &m.nodes[i]; n.kind != leafNode {
			used[n.feature] = true
		}
	}
	for _, leaf := range m.leaves {
		for _, c := range leaf.features {
			used[c] = true
		}
	}
	for c := range used {
		used[c] = used[c] || m.weights != nil
	}
	return used
}

// Forest returns the model laid out for scoring.
func (m *Model) Forest() *Forest {
	f := &Forest{Model: *m}
	f.compile()
	return f
}

// Renumbered is Forest for a matrix of n columns, in which column to[c] is the model's
// column c. to[c] is -1 for a column that is not used.
func (m *Model) Renumbered(to []int, n int) *Forest {
	g := *m
	g.Inputs, g.Names = n, nil
	g.nodes = slices.Clone(m.nodes)
	for i := range g.nodes {
		if n := &g.nodes[i]; n.kind != leafNode {
			n.feature = int32(to[n.feature])
		}
	}
	g.leaves = make([]leafModel, len(m.leaves))
	for i, leaf := range m.leaves {
		g.leaves[i] = leaf
		g.leaves[i].features = make([]int32, len(leaf.features))
		for k, c := range leaf.features {
			g.leaves[i].features[k] = int32(to[c])
		}
	}
	if m.weights != nil {
		g.weights = make([]float64, (n+1)*m.Classes)
		for c := range m.Inputs + 1 {
			at := n
			if c < m.Inputs {
				at = to[c]
			}
			copy(g.weights[at*m.Classes:], m.weights[c*m.Classes:(c+1)*m.Classes])
		}
	}
	return g.Forest()
}

// add appends a tree to the model. The children of nodes are numbers within nodes. add
// checks the nodes, and that none is reached from the root twice. Nodes that no path reaches
// become leaves of 0: pruned ones, which files may have, name a feature that is not there.
func (m *Model) add(nodes []node, class int) error {
	if len(m.nodes)+len(nodes) > maxNodes {
		return fmt.Errorf("more than %d nodes", maxNodes)
	}
	t := tree{start: int32(len(m.nodes)), end: int32(len(m.nodes) + len(nodes)), class: int32(class), sure: math.MaxInt32}
	reached := make([]bool, len(nodes))
	type place struct{ node, depth int32 }
	stack := []place{{}}
	for len(stack) > 0 {
		i, depth := stack[len(stack)-1].node, stack[len(stack)-1].depth
		stack = stack[:len(stack)-1]
		t.depth = max(t.depth, depth)
		if i < 0 || int(i) >= len(nodes) {
			return fmt.Errorf("a child is node %d of %d", i, len(nodes))
		}
		if reached[i] {
			return fmt.Errorf("node %d is reached twice", i)
		}
		reached[i] = true
		n := &nodes[i]
		if err := m.check(n); err != nil {
			return fmt.Errorf("node %d: %w", i, err)
		}
		if n.kind == leafNode {
			n.child = [2]int32{i, i}
			t.sure = min(t.sure, depth)
			continue
		}
		stack = append(stack, place{n.child[0], depth + 1}, place{n.child[1], depth + 1})
	}
	for i := range nodes {
		if !reached[i] {
			nodes[i] = node{child: [2]int32{int32(i), int32(i)}, kind: leafNode}
		}
	}
	if need := len(m.nodes) + len(nodes); need > cap(m.nodes) { // double it, since append grows large slices only by a quarter
		m.nodes = slices.Grow(m.nodes, max(len(nodes), len(m.nodes)))
	}
	m.nodes = append(m.nodes, nodes...)
	m.trees = append(m.trees, t)
	return nil
}

var errNotFinite = errors.New("a number is not finite")

// check refuses a node with a threshold that is NaN, a leaf that is not finite, and a feature
// or a set that is not there. The threshold of a split may be infinite.
func (m *Model) check(n *node) error {
	switch {
	case math.IsNaN(n.threshold) || math.IsInf(n.threshold, 0) && n.kind == leafNode:
		return errNotFinite
	case n.feature < 0 || int(n.feature) >= m.Inputs:
		return fmt.Errorf("feature %d of %d", n.feature, m.Inputs)
	case (n.kind == inSet || n.kind == notInSet) && (n.threshold < 0 || int(n.threshold) >= len(m.sets)):
		return errors.New("a categorical split without categories")
	}
	return nil
}

// Steps returns about how much work it is to score a row that takes the longest way in all
// trees. Each split counts as a step, and so do a tree without a split, each coefficient of
// a linear leaf, and each weight of a linear booster.
func (f *Forest) Steps() int {
	steps := len(f.weights)
	for i := range f.trees {
		if t := &f.trees[i]; !t.folded {
			steps += max(int(t.depth), 1) + f.coefficients(t)
		}
	}
	return steps
}

// coefficients returns how many coefficients the longest linear leaf of a tree has.
func (f *Forest) coefficients(t *tree) (most int) {
	if !t.linear {
		return 0
	}
	for i := range f.nodes[t.start:t.end] {
		if n := &f.nodes[int(t.start)+i]; n.kind == leafNode {
			most = max(most, len(f.leaves[n.model].factors))
		}
	}
	return most
}
