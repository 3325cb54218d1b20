package trees

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/millrace/millrace/compute"
)

// TestWalkEqualsPlain: random forests of every missing type, over rows with
// NaN, zeros and infinities, give the same bits walked eight at a time and
// node by node, and whichever order their columns have.
func TestWalkEqualsPlain(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 0))
	row := func(n int) []float64 {
		x := make([]float64, n)
		for c := range x {
			switch r.IntN(8) {
			case 0:
				x[c] = []float64{math.NaN(), 0, math.Copysign(0, -1), 1e-36, -1e-36, zeroThreshold, -zeroThreshold, math.Inf(1), math.Inf(-1), 1e-34}[r.IntN(10)]
			default:
				x[c] = r.NormFloat64()
			}
		}
		return x
	}
	for round := range 30 {
		features := 1 + r.IntN(12)
		var data [][]float64
		for range 400 {
			x := make([]float64, features)
			for c := range x {
				x[c] = r.NormFloat64()
			}
			data = append(data, x)
		}
		f := lgb(t, []byte(benchForest(r, 5, 31, data, 0, 2, 4, 6, 8, 10)))
		to := r.Perm(features)
		g := f.Renumbered(to, features)
		var rows, moved [][]float64
		for range 70 {
			x := row(features)
			y := make([]float64, features)
			for c, v := range x {
				y[to[c]] = v
			}
			rows, moved = append(rows, x), append(moved, y)
		}
		fast, renumbered := scoreAll(f, rows), scoreAll(g, moved)
		for i := range rows {
			if want := plain(f, rows[i]); fast[i] != want || renumbered[i] != want {
				t.Fatalf("round %d: row %v scores %v, renumbered %v, plainly %v", round, rows[i], fast[i], renumbered[i], want)
			}
		}
	}
}

// TestKeyOrder: keys are in the order of their numbers, and between the two of
// what is missing.
func TestKeyOrder(t *testing.T) {
	inf := math.Inf(1)
	xs := []float64{-inf, -math.MaxFloat64, -1, -math.SmallestNonzeroFloat64, math.Copysign(0, -1), 0, math.SmallestNonzeroFloat64, 1, math.Nextafter(1, 2), math.MaxFloat64, inf}
	for _, x := range xs {
		if k := key(x); k <= lowKey || k >= highKey {
			t.Errorf("key(%v) = %x", x, k)
		}
		for _, y := range xs {
			if (key(x) > key(y)) != (x > y) {
				t.Errorf("key(%v) = %x and key(%v) = %x are in another order", x, key(x), y, key(y))
			}
		}
	}
}

// leafTree is a tree of XGBoost that is one leaf, as pruning leaves it.
func leafTree(value float32) string {
	return fmt.Sprintf(`{"categories": [], "categories_nodes": [], "categories_segments": [], "categories_sizes": [], "default_left": [false],
		"left_children": [-1], "right_children": [-1], "split_conditions": [%v], "split_indices": [0], "split_type": [0]}`, value)
}

// TestSingleLeaves: trees of one leaf, before and behind those with splits, change no bit
// of a sum, whether they are folded or not; and each that is not folded costs a step.
func TestSingleLeaves(t *testing.T) {
	r := rand.New(rand.NewPCG(10, 0))
	var rows [][]float64
	for range 70 {
		rows = append(rows, []float64{r.NormFloat64(), 3 * r.NormFloat64()})
	}
	for round := range 60 {
		classes, objective := 1, "reg:squarederror"
		if round%3 == 0 {
			classes, objective = 3, "multi:softprob"
		}
		var all, info []string
		want, met := 0, make([]bool, classes)
		for i := range classes * (1 + r.IntN(30)) {
			class := i % classes
			leaf := i < classes*r.IntN(12) || r.IntN(2) == 0
			if info = append(info, fmt.Sprint(class)); leaf {
				all = append(all, leafTree(float32(r.NormFloat64())))
				want += compute.One(met[class])
				continue
			}
			all, met[class] = append(all, xgbTree), true
			want += 2
		}
		src := xgbModel(objective, fmt.Sprint(r.Float32()), fmt.Sprint(classes/3*3), "["+strings.Join(info, ", ")+"]", all...)
		if round%2 == 0 { // the base comes last
			src = strings.Replace(src, `"version": [2, 1, 0]`, `"version": [1, 0, 0]`, 1)
		}
		f := xg(t, src)
		if f.baseLast != (round%2 == 0) || f.Steps() != want {
			t.Errorf("round %d: %v, %d steps, want %d", round, f.baseLast, f.Steps(), want)
		}
		for i, got := range scoreAll(f, rows) {
			if want := plain(f, rows[i]); got != want {
				t.Fatalf("round %d: row %v scores %v, plainly %v", round, rows[i], got, want)
			}
		}
	}
}

// TestPrunedNodes: a node that no path reaches, whose feature is not there, hurts nothing.
func TestPrunedNodes(t *testing.T) {
	pruned := `{"categories": [], "categories_nodes": [], "categories_segments": [], "categories_sizes": [], "default_left": [false, false],
		"left_children": [-1, 1], "right_children": [-1, 1], "split_conditions": [0.25, 7], "split_indices": [0, 2147483647], "split_type": [0, 0]}`
	f := xg(t, xgbModel("reg:squarederror", "0", "0", "[0, 0]", pruned, xgbTree))
	alone := xg(t, xgbModel("reg:squarederror", "0", "0", "[0]", xgbTree))
	rows := [][]float64{{0, 0}, {1, -2}, {-3, 4}}
	got, want := scoreAll(f, rows), scoreAll(alone, rows)
	for i := range rows {
		if float32(got[i]) != float32(0.25)+float32(want[i]) && math.Abs(got[i]-want[i]-0.25) > 1e-6 {
			t.Errorf("row %v scores %v, and %v without the tree of one leaf", rows[i], got[i], want[i])
		}
	}
	if used := f.Used(); len(used) != 2 {
		t.Errorf("uses %v", used)
	}
}
