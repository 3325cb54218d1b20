package trees

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/figure"
)

// benchForest writes a LightGBM model of trees of 31 leaves, grown leaf by
// leaf as LightGBM grows them.
func benchForest(r *rand.Rand, trees, features int) string {
	var names strings.Builder
	for c := range features {
		fmt.Fprintf(&names, " f%d", c)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "tree\nversion=v4\nnum_class=1\nnum_tree_per_iteration=1\nmax_feature_idx=%d\nobjective=regression\nfeature_names=%s\n\n", features-1, names.String()[1:])
	const leaves = 31
	for n := range trees {
		left, right := make([]int, leaves-1), make([]int, leaves-1)
		at := [][2]int{{-1, 0}} // where each leaf hangs: its parent and side
		for s := range leaves - 1 {
			k := r.IntN(len(at))
			if p := at[k]; p[0] >= 0 {
				[][]int{left, right}[p[1]][p[0]] = s
			}
			left[s], right[s] = ^k, ^len(at)
			at[k] = [2]int{s, 0}
			at = append(at, [2]int{s, 1})
		}
		list := func(n int, f func(i int) any) string {
			var s []string
			for i := range n {
				s = append(s, fmt.Sprint(f(i)))
			}
			return strings.Join(s, " ")
		}
		fmt.Fprintf(&b, "Tree=%d\nnum_leaves=%d\nnum_cat=0\nsplit_feature=%s\nthreshold=%s\ndecision_type=%s\nleft_child=%s\nright_child=%s\nleaf_value=%s\n\n", n, leaves,
			list(leaves-1, func(int) any { return r.IntN(features) }), list(leaves-1, func(int) any { return r.NormFloat64() }),
			list(leaves-1, func(int) any { return []int{0, 2, 8, 10}[r.IntN(4)] }),
			list(leaves-1, func(i int) any { return left[i] }), list(leaves-1, func(i int) any { return right[i] }),
			list(leaves, func(int) any { return r.NormFloat64() }))
	}
	return b.String() + "end of trees\n"
}

// walker is the plain way: a tree of pointers, one row and one node at a time.
type walker struct {
	leaf        bool
	value       float64
	feature     int
	threshold   float64
	missing     uint8
	left, right *walker
}

func newWalker(nodes []node, i int32) *walker {
	n := &nodes[i]
	w := &walker{leaf: n.kind == leafNode, value: n.threshold, feature: int(n.feature), threshold: n.threshold, missing: n.missing}
	if !w.leaf {
		w.left, w.right = newWalker(nodes, n.child[0]), newWalker(nodes, n.child[1])
	}
	return w
}

func (w *walker) score(row []float64) float64 {
	for !w.leaf {
		x := row[w.feature]
		switch {
		case math.IsNaN(x):
			if w.missing == 0 {
				w = w.left
			} else {
				w = w.right
			}
		case x <= w.threshold:
			w = w.left
		default:
			w = w.right
		}
	}
	return w.value
}

// BenchmarkTrees gives the figure trees_vs_walker: a hundred trees of 31
// leaves, as flat tables against a walk over pointers.
func BenchmarkTrees(b *testing.B) {
	const features, rows = 30, 1024
	r := rand.New(rand.NewPCG(7, 0))
	f := lgb(b, []byte(benchForest(r, 100, features)))
	data := make([][]float64, rows)
	for i := range data {
		data[i] = make([]float64, features)
		for c := range data[i] {
			data[i][c] = r.NormFloat64()
			if r.IntN(50) == 0 {
				data[i][c] = math.NaN()
			}
		}
	}
	var walkers []*walker
	for _, t := range f.trees {
		walkers = append(walkers, newWalker(f.nodes[t.start:t.end], 0))
	}
	var s Scores
	m, out, want := f.Matrix(), make([]float64, rows), make([]float64, rows)
	flat := func() {
		for from := 0; from < rows; from += Batch {
			for k, row := range data[from : from+Batch] {
				for c, x := range row {
					m[(k/Block*f.Columns()+c)*Block+k%Block] = x
				}
			}
			f.Score(&s, m, Batch, out[from:from+Batch])
		}
	}
	plain := func() {
		for i, row := range data {
			sum := 0.0
			for _, w := range walkers {
				sum += w.score(row)
			}
			want[i] = sum
		}
	}
	flat()
	plain()
	if !slices.Equal(out, want) {
		b.Fatal("the two walks differ")
	}
	if n := testing.AllocsPerRun(3, flat); n != 0 {
		b.Fatalf("%v allocations", n)
	}
	var table, pointers []float64
	for range 7 {
		table = append(table, cpu(flat)/rows)
		pointers = append(pointers, cpu(plain)/rows)
	}
	slices.Sort(table)
	slices.Sort(pointers)
	b.ReportAllocs()
	for b.Loop() {
		flat()
	}
	b.ReportMetric(table[3], "ns/record")
	b.ReportMetric(pointers[3], "ns/record-walker")
	figure.Print("trees_vs_walker", pointers[3]/table[3], "x", 5)
}

// cpu is the process's time in nanoseconds, since a busy machine stretches any
// other.
func cpu(f func()) float64 {
	began := cpuTime()
	f()
	return float64(cpuTime() - began)
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
