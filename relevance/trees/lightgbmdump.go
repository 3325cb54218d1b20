package trees

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// lgbDump is a model as Booster.dump_model gives it. Dumps of LightGBM before 2.2 do not
// name their objective: the score of such a model is the sum of the leaves.
type lgbDump struct {
	Version  string   `json:"version"`
	Inputs   int      `json:"max_feature_idx"`        // the number of columns less one
	Classes  int      `json:"num_tree_per_iteration"` // each iteration has a tree for each class
	Forest   bool     `json:"average_output"`         // the sum of the leaves is divided by the number of trees of a class
	Object   string   `json:"objective"`
	Names    []string `json:"feature_names"`
	TreeInfo []struct {
		Root *lgbDumpNode `json:"tree_structure"`
	} `json:"tree_info"`
}

// lgbDumpNode is a split or a leaf. The first part is of splits, the second of leaves.
type lgbDumpNode struct {
	Left        *lgbDumpNode    `json:"left_child"`
	Right       *lgbDumpNode    `json:"right_child"`
	Feature     int32           `json:"split_feature"`
	Threshold   json.RawMessage `json:"threshold"`      // a number; of a categorical split, a text such as "1||3"
	Decision    string          `json:"decision_type"`  // "<=", or "==" for a categorical split
	DefaultLeft bool            `json:"default_left"`   // missing values go left
	Missing     string          `json:"missing_type"`   // which values are missing: see missingTypes
	Internal    float64         `json:"internal_value"` // what the tree would give if it ended here

	Leaf     int32     `json:"leaf_index"` // the leaf's number within the tree
	Value    *float64  `json:"leaf_value"`
	Constant *float64  `json:"leaf_const"` // of a linear leaf, with Features and Factors; else nil
	Features []int32   `json:"leaf_features"`
	Factors  []float64 `json:"leaf_coeff"`
}

// isLightGBMDump reports whether a JSON document is a dump of LightGBM and not a model of
// XGBoost.
func isLightGBMDump(src []byte) bool {
	return bytes.Contains(src, []byte(`"tree_structure"`)) && !bytes.Contains(src, []byte(`"learner"`))
}

// LightGBMDump reads a model in JSON, as Booster.dump_model gives it.
func LightGBMDump(src []byte) (*Model, error) {
	var dump lgbDump
	d := json.NewDecoder(bytes.NewReader(src))
	err := d.Decode(&dump)
	if err == nil {
		if _, more := d.Token(); more != io.EOF {
			err = errors.New("text behind the document")
		}
	}
	r := lightgbm{m: &Model{average: 1, scale: 1}}
	if err == nil {
		err = r.dump(&dump)
	}
	if err != nil {
		return nil, fmt.Errorf("trees: LightGBM dump: %w", err)
	}
	return r.m, nil
}

// dump reads a dump into the model, as read reads a text model.
func (r *lightgbm) dump(d *lgbDump) error {
	r.head = map[string]string{
		"version":                d.Version,
		"max_feature_idx":        strconv.Itoa(d.Inputs),
		"num_tree_per_iteration": strconv.Itoa(d.Classes),
		"feature_names":          strings.Join(d.Names, " "),
		"objective":              d.Object,
	}
	if d.Forest {
		r.head["average_output"] = ""
	}
	if err := r.header(); err != nil {
		return err
	}
	for i, t := range d.TreeInfo {
		nodes, linear, err := r.dumpTree(t.Root)
		if err == nil {
			err = r.m.add(nodes, i%r.m.Classes)
		}
		if err != nil {
			return fmt.Errorf("tree %d: %w", i, err)
		}
		r.m.trees[i].linear = linear
	}
	return r.end()
}

// dumpTree returns the nodes of a tree, level by level, and whether its leaves are linear
// models.
func (r *lightgbm) dumpTree(root *lgbDumpNode) (nodes []node, linear bool, err error) {
	if root == nil {
		return nil, false, errors.New("no tree_structure")
	}
	queue, seen := []*lgbDumpNode{root}, map[int32]bool{}
	for at := 0; at < len(queue); at++ {
		d, n := queue[at], node{}
		switch {
		case (d.Left == nil) != (d.Right == nil):
			err = errors.New("a split with one child")
		case d.Left != nil:
			n, err = r.dumpSplit(d)
			n.child = [2]int32{int32(len(queue)), int32(len(queue) + 1)}
			queue = append(queue, d.Left, d.Right)
		case d.Value == nil:
			err = errors.New("a leaf without leaf_value")
		case seen[d.Leaf]:
			err = fmt.Errorf("leaf_index %d stands twice", d.Leaf)
		default:
			n = node{kind: leafNode, threshold: *d.Value, value: *d.Value, leaf: d.Leaf}
			linear, seen[d.Leaf] = linear || d.Constant != nil, true
		}
		if err == nil && d.Constant != nil {
			n.model, err = r.dumpLeaf(d)
		}
		if err != nil {
			return nil, false, fmt.Errorf("node %d: %w", at, err)
		}
		nodes = append(nodes, n)
	}
	return nodes, linear, checkLinear(queue, linear)
}

// checkLinear refuses a tree with leaves of both kinds, linear models and plain values.
func checkLinear(nodes []*lgbDumpNode, linear bool) error {
	for _, d := range nodes {
		if d.Left == nil && (d.Constant != nil) != linear {
			return errors.New("some leaves have leaf_const and some have not")
		}
	}
	return nil
}

// missingTypes are the names of the missing types in a dump.
var missingTypes = map[string]int32{"None": missingNone, "Zero": missingZero, "NaN": missingNaN}

// dumpSplit returns the node of a split, without its children.
func (r *lightgbm) dumpSplit(d *lgbDumpNode) (node, error) {
	n := node{feature: d.Feature, missing: 1, value: d.Internal, leaf: -1}
	missing, ok := missingTypes[d.Missing]
	if !ok {
		return n, fmt.Errorf("missing_type %q is not supported", clip(d.Missing))
	}
	switch d.Decision {
	case "<=":
		if err := json.Unmarshal(d.Threshold, &n.threshold); err != nil {
			return n, fmt.Errorf("threshold: %w", err)
		}
		n.numericSplit(missing, d.DefaultLeft)
	case "==":
		var text string
		if err := json.Unmarshal(d.Threshold, &text); err != nil {
			return n, fmt.Errorf("threshold: %w", err)
		}
		return n, r.dumpSet(&n, text)
	default:
		return n, fmt.Errorf("decision_type %q is not supported", clip(d.Decision))
	}
	return n, nil
}

// dumpSet makes n a categorical split. text has the categories that go left, such as 1||3.
func (r *lightgbm) dumpSet(n *node, text string) error {
	var codes []uint32
	for w := range strings.SplitSeq(text, "||") {
		c, err := strconv.ParseUint(w, 10, 31)
		if err != nil || c >= maxCategory {
			return fmt.Errorf("threshold has the category %q", clip(w))
		}
		codes = append(codes, uint32(c))
	}
	at, err := r.m.addSet(newSet(codes))
	n.kind, n.stray, n.threshold = inSet, 1, float64(at)
	return err
}

// dumpLeaf adds the model of a linear leaf, and returns its index in Model.leaves.
func (r *lightgbm) dumpLeaf(d *lgbDumpNode) (int32, error) {
	if len(d.Features) != len(d.Factors) {
		return 0, fmt.Errorf("%d leaf_features and %d leaf_coeff", len(d.Features), len(d.Factors))
	}
	for _, c := range d.Features {
		if c < 0 || int(c) >= r.m.Inputs {
			return 0, fmt.Errorf("feature %d of %d", c, r.m.Inputs)
		}
	}
	r.m.leaves = append(r.m.leaves, leafModel{constant: *d.Constant, features: d.Features, factors: d.Factors})
	return int32(len(r.m.leaves) - 1), nil
}
