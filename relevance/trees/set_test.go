package trees

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// Sets of either form have the categories that they were made of, and end behind
// the 32 of the largest.
func TestSets(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	forms := [2]int{}
	for round := range 200 {
		most := []int{1, 32, 33, 4095, 4096, 4097, 100_000, maxCategory - 1}[round%8]
		var codes []uint32
		for range r.IntN(40) + 1 {
			codes = append(codes, uint32(r.IntN(most)))
		}
		s := newSet(slices.Clone(codes))
		if want := float64(slices.Max(codes)/32*32 + 32); s.end != want {
			t.Fatalf("%v ends at %v, not %v", codes, s.end, want)
		}
		if s.bits != nil {
			forms[0]++
		} else {
			forms[1]++
		}
		for range 100 {
			c := codes[r.IntN(len(codes))] + uint32(r.IntN(3)) - 1
			if float64(c) < s.end && (s.has(c) == 1) != slices.Contains(codes, c) {
				t.Fatalf("%v has %d: %d", codes, c, s.has(c))
			}
		}
	}
	if forms[0] == 0 || forms[1] == 0 {
		t.Errorf("%d sets of bits and %d of codes", forms[0], forms[1])
	}
	if s := newSet(nil); s.end != 0 {
		t.Errorf("an empty set ends at %v", s.end)
	}
	if newSet([]uint32{4095}).bits == nil {
		t.Error("a category below 4096 is no bit")
	}
	if near, far := newSet([]uint32{4351}), newSet([]uint32{4352}); near.bits == nil || far.bits != nil {
		t.Errorf("one category of 4351 is of %d words, one of 4352 of %d", len(near.bits), len(far.bits))
	}
}

// A set of codes splits as one of bits does.
func TestCategoriesFarApart(t *testing.T) {
	far := strings.Replace(setTree, "[1, 33]", "[1, 16777215]", 1)
	f := xg(t, xgbModel("reg:squarederror", "0", "0", "[0]", far))
	for x, want := range map[float64]float64{0: 10, 1: 20, 1.5: 20, 2: 10, 16777215: 20, 16777214: 10, 16777216: 10, -1: 10, -0.5: 10} {
		if got := f.Score1([]float64{x, 0}); got != want {
			t.Errorf("%v scores %v, want %v", x, got, want)
		}
	}
	checkWalk(t, f)
}

// Splits cannot share categories: loading would cost their product.
func TestOverlappingCategories(t *testing.T) {
	_, err := XGBoost([]byte(amplified(t, 3, "[16777215]")))
	if err == nil || !strings.Contains(err.Error(), "tree 0: categories_sizes: node 1 has categories of another node") {
		t.Error(err)
	}
}

// All sets of a model together have a bound, and who breaks it is named.
func TestSetsTogether(t *testing.T) {
	m := &Model{setBytes: maxSetBytes - 512}
	for i := range 2 {
		if _, err := m.addSet(newSet([]uint32{4095})); (err != nil) != (i == 1) {
			t.Errorf("set %d: %v", i, err)
		}
	}
	for what, add := range map[string]func(*Model) error{
		"a dump": func(m *Model) error { return (&lightgbm{m: m}).dumpSet(&node{}, "1") },
		"a text": func(m *Model) error {
			return (&lightgbm{m: m}).categories(&lgbTree{leaves: 2, fields: map[string]string{"num_cat": "1", "cat_boundaries": "0 1", "cat_threshold": "6"}})
		},
		"XGBoost": func(m *Model) error {
			x := xgb{m: m}
			x.categories(map[string]any{"categories_nodes": []int64{0}, "categories_segments": []int64{0}, "categories_sizes": []int64{1}, "categories": []int64{1}}, 1)
			return x.err
		},
	} {
		if err := add(&Model{}); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if err := add(&Model{setBytes: maxSetBytes}); err == nil || !strings.Contains(err.Error(), "the categories of all splits up to here take more than 128 MiB") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A node of a tree names a feature and a set that are there, whoever made it.
func TestNodesAreChecked(t *testing.T) {
	m := &Model{Inputs: 2, sets: make([]set, 1)}
	for _, c := range []struct {
		node node
		ok   bool
	}{
		{node{feature: 1}, true}, {node{feature: 2}, false}, {node{feature: -1}, false},
		{node{threshold: math.Inf(1)}, true}, {node{threshold: math.NaN()}, false}, {node{kind: leafNode, threshold: math.Inf(-1)}, false},
		{node{kind: inSet}, true}, {node{kind: inSet, threshold: 1}, false}, {node{kind: notInSet, threshold: 1}, false}, {node{kind: notInSet, threshold: -1}, false},
	} {
		if err := m.check(&c.node); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.node, err)
		}
	}
}

// All trees of a model together have so many nodes and no more.
func TestNodesTogether(t *testing.T) {
	m := &Model{Inputs: 1, nodes: make([]node, maxNodes-1, maxNodes)} // memory that nothing touches
	for i := range 2 {
		if err := m.add([]node{{kind: leafNode}}, 0); (err != nil) != (i == 1) {
			t.Errorf("node %d: %v", maxNodes+i, err)
		}
	}
}

// amplified is a model of one tree of n categorical splits, which all name all
// categories there are.
func amplified(t testing.TB, n int, categories string) string {
	t.Helper()
	list := func(word func(i int) int) string {
		var b strings.Builder
		for i := range 2*n + 1 {
			fmt.Fprintf(&b, ",%d", word(i))
		}
		return "[" + b.String()[1:] + "]"
	}
	each := func(n int, x string) string { return "[" + strings.TrimPrefix(strings.Repeat(","+x, n), ",") + "]" }
	nodes := make([]string, n)
	for i := range nodes {
		nodes[i] = fmt.Sprint(i)
	}
	split := func(child int) func(i int) int {
		return func(i int) int {
			switch {
			case i >= n:
				return -1
			case child == 0: // a chain of splits, each with a leaf
				return n + i
			case i == n-1:
				return 2 * n
			}
			return i + 1
		}
	}
	tree := fmt.Sprintf(`{"categories": %s, "categories_nodes": [%s], "categories_segments": %s, "categories_sizes": %s,
		"default_left": %s, "left_children": %s, "right_children": %s, "split_conditions": %s, "split_indices": %s}`,
		categories, strings.Join(nodes, ","), each(n, "0"), each(n, "1"), each(2*n+1, "0"), list(split(0)), list(split(1)), each(2*n+1, "0"), each(2*n+1, "0"))
	return xgbModel("reg:squarederror", "0", "0", "[0]", tree)
}

// farEach is amplified with a category for each split.
func farEach(t testing.TB, n, category int) string {
	t.Helper()
	var starts, categories strings.Builder
	for i := range n {
		fmt.Fprintf(&starts, ",%d", i)
		fmt.Fprintf(&categories, ",%d", category)
	}
	src := amplified(t, n, "["+categories.String()[1:]+"]")
	return strings.Replace(src, `"categories_segments": [`+strings.Repeat("0,", n-1)+"0]", `"categories_segments": [`+starts.String()[1:]+"]", 1)
}

// allocated is how much a call allocates, what is garbage by then too.
func allocated(call func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	call()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
