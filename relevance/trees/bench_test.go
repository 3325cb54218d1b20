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

// benchForest writes a LightGBM model of trees of so many leaves, grown as
// LightGBM grows them: the leaf with the most rows is split next, at a value that
// one of its rows has.
func benchForest(r *rand.Rand, trees, leaves int, data [][]float64, decisions ...int) string {
	features := len(data[0])
	var names strings.Builder
	for c := range features {
		fmt.Fprintf(&names, " f%d", c)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "tree\nversion=v4\nnum_class=1\nnum_tree_per_iteration=1\nmax_feature_idx=%d\nobjective=regression\nfeature_names=%s\n\n", features-1, names.String()[1:])
	for n := range trees {
		splits := func() []int { return make([]int, leaves-1) }
		feature, decision, left, right := splits(), splits(), splits(), splits()
		threshold, value := make([]float64, leaves-1), make([]float64, leaves)
		type leaf struct {
			parent *int // the child that it is
			rows   [][]float64
		}
		at := []leaf{{nil, data}}
		for s := range leaves - 1 {
			k := 0
			for i := range at {
				if len(at[i].rows) > len(at[k].rows) {
					k = i
				}
			}
			if at[k].parent != nil {
				*at[k].parent = s
			}
			decision[s] = decisions[r.IntN(len(decisions))]
			for threshold[s] = math.NaN(); math.IsNaN(threshold[s]); {
				feature[s] = r.IntN(features)
				threshold[s] = at[k].rows[r.IntN(len(at[k].rows))][feature[s]]
			}
			var below, above [][]float64
			for _, row := range at[k].rows {
				if row[feature[s]] <= threshold[s] {
					below = append(below, row)
				} else {
					above = append(above, row)
				}
			}
			left[s], right[s] = ^k, ^len(at)
			at[k] = leaf{&left[s], below}
			at = append(at, leaf{&right[s], above})
		}
		for i := range value {
			value[i] = r.NormFloat64()
		}
		list := func(x any) string { return strings.Trim(fmt.Sprint(x), "[]") }
		fmt.Fprintf(&b, "Tree=%d\nnum_leaves=%d\nnum_cat=0\nsplit_feature=%s\nthreshold=%s\ndecision_type=%s\nleft_child=%s\nright_child=%s\nleaf_value=%s\n\n", n, leaves,
			list(feature), list(threshold), list(decision), list(left), list(right), list(value))
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
	data := normal(r, rows, features, 50)
	f := lgb(b, []byte(benchForest(r, 100, 31, data, 0, 2, 8, 10)))
	var walkers []*walker
	for _, t := range f.trees {
		walkers = append(walkers, newWalker(f.nodes[t.start:t.end], 0))
	}
	plain := make([]float64, rows)
	compare(b, "trees_vs_walker", "walker", rows, scorer(f, data), func() []float64 {
		for i, row := range data {
			sum := 0.0
			for _, w := range walkers {
				sum += w.score(row)
			}
			plain[i] = sum
		}
		return plain
	})
}

// scorer returns what scores the rows of data, in batches.
func scorer(f *Forest, data [][]float64) func() []float64 {
	var s Scores
	m, out := f.Matrix(), make([]float64, len(data))
	return func() []float64 {
		for from := 0; from < len(data); from += Batch {
			for k, row := range data[from : from+Batch] {
				for c, x := range row {
					m[(k/Block*f.Columns()+c)*Block+k%Block] = x
				}
			}
			f.Score(&s, m, Batch, out[from:from+Batch])
		}
		return out
	}
}

// compare prints how many times faster fast scores rows than slow, by turns.
func compare(b *testing.B, name, than string, rows int, fast, slow func() []float64) {
	if !slices.Equal(fast(), slow()) {
		b.Fatal("the scores differ")
	}
	if n := testing.AllocsPerRun(3, func() { fast() }); n != 0 {
		b.Fatalf("%v allocations", n)
	}
	var is, was []float64
	for range 7 {
		is = append(is, spent(func() { fast() })/float64(rows))
		was = append(was, spent(func() { slow() })/float64(rows))
	}
	slices.Sort(is)
	slices.Sort(was)
	b.ReportAllocs()
	for b.Loop() {
		fast()
	}
	b.ReportMetric(is[3], "ns/record")
	b.ReportMetric(was[3], "ns/record-"+than)
	figure.Print(name, was[3]/is[3], "x")
}

// spent is the process's time in nanoseconds, since a busy machine stretches any
// other.
func spent(f func()) float64 {
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

// BenchmarkImport: what a node and a broker take to read a pushed model of some
// 10 MB, and to lay it out.
func BenchmarkImport(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	src := []byte(benchForest(r, 900, 255, normal(r, 2000, 2, 0), 2))
	b.SetBytes(int64(len(src)))
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			if _, err := Import(src); err != nil {
				b.Fatal(err)
			}
		}
	})
	m, err := Import(src)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("lay", func(b *testing.B) {
		for b.Loop() {
			m.Renumbered([]int{1, 0}, 2)
		}
	})
}
