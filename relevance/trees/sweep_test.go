package trees

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// walked is a forest of which no tree is swept.
func walked(f *Forest) *Forest {
	g := *f
	g.moves, g.trees = nil, slices.Clone(f.trees)
	for i := range g.trees {
		g.trees[i].moves = -1
	}
	return &g
}

// normal returns rows of features, of which one in so many is missing; 0: none.
func normal(r *rand.Rand, rows, features, missing int) [][]float64 {
	data := make([][]float64, rows)
	for i := range data {
		data[i] = make([]float64, features)
		for c := range data[i] {
			data[i][c] = r.NormFloat64()
			if missing > 0 && r.IntN(missing) == 0 {
				data[i][c] = math.NaN()
			}
		}
	}
	return data
}

// nasty changes some of a row, to what forests of data compare it with among others.
func nasty(r *rand.Rand, row []float64, data [][]float64) []float64 {
	row = slices.Clone(row)
	for c := range row {
		switch r.IntN(8) {
		case 0:
			row[c] = []float64{math.NaN(), 0, math.Copysign(0, -1), 1e-36, -1e-36, zeroThreshold, -zeroThreshold, math.Inf(1), math.Inf(-1), math.MaxFloat64}[r.IntN(10)]
		case 1, 2:
			row[c] = data[r.IntN(len(data))][c]
		case 3:
			row[c] = math.Nextafter(data[r.IntN(len(data))][c], float64(r.IntN(3)-1))
		}
	}
	return row
}

// TestSweepEqualsPlain: random forests score the same bits whether they are
// swept, walked eight rows at a time, or node by node; with the most leaves of
// a tree that is swept and one more, with more cuts than a column has, in
// float64 and float32, in batches of any length.
func TestSweepEqualsPlain(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	leaves := []int{2, 3, 31, 64, maxLeaves - 1, maxLeaves, maxLeaves + 1}
	paged := 0
	for round := range 40 {
		features, n := 1+r.IntN(9), leaves[round%len(leaves)]
		data := normal(r, 600, features, 0)
		f := lgb(t, []byte(benchForest(r, 1+r.IntN(7), n, data, 0, 2, 4, 6, 8, 10)))
		f.single = r.IntN(3) == 0
		if swept := len(f.moves) > 0; swept != (n <= maxLeaves) {
			t.Fatalf("trees of %d leaves are swept: %t", n, swept)
		}
		if slices.ContainsFunc(f.ranks, func(c rankColumn) bool { return c.page > 0 }) {
			paged++
		}
		rows := make([][]float64, Batch+1+r.IntN(Batch))
		for i := range rows {
			rows[i] = nasty(r, data[r.IntN(len(data))], data)
		}
		swept, walked := scoreAll(f, rows), scoreAll(walked(f), rows)
		for i, row := range rows {
			if want := plain(f, row); swept[i] != want || walked[i] != want {
				t.Fatalf("round %d, %d leaves: row %d %v scores %v swept, %v walked, %v plainly", round, n, i, row, swept[i], walked[i], want)
			}
		}
	}
	if paged < 5 {
		t.Errorf("%d forests have more cuts of an input than a column", paged)
	}
}

// TestSomeTreesAreSwept: where one tree has too many leaves, the others are
// swept all the same.
func TestSomeTreesAreSwept(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 2))
	data := normal(r, 600, 5, 0)
	f := lgb(t, []byte(benchForest(r, 3, 20, data, 2, 10)))
	large := lgb(t, []byte(benchForest(r, 1, maxLeaves+1, data, 2, 10)))
	if err := f.add(slices.Clone(large.nodes), 0); err != nil {
		t.Fatal(err)
	}
	f.compile()
	if f.trees[2].moves < 0 || f.trees[3].moves >= 0 || !f.walks {
		t.Fatalf("moves are at %d and %d", f.trees[2].moves, f.trees[3].moves)
	}
	for i, got := range scoreAll(f, data[:Batch]) {
		if want := plain(f, data[i]); got != want {
			t.Errorf("row %d scores %v, want %v", i, got, want)
		}
	}
}

// TestSweepOfProcessor: what the processor's instructions do is what the words
// say, for any moves.
func TestSweepOfProcessor(t *testing.T) {
	if !canSweep {
		t.Log("this processor does not sweep")
	}
	r := rand.New(rand.NewPCG(3, 3))
	ranks := make([]uint8, 9*Batch)
	for range 300 {
		for i := range ranks {
			ranks[i] = uint8(r.IntN(1 << (1 + r.IntN(8))))
		}
		moves := make([]move, r.IntN(300))
		for i := range moves {
			moves[i] = move{uint32(r.IntN(9)) * Batch, four(r.IntN(256)), four(r.IntN(1 + i%256)), four(r.IntN(256))}
		}
		var got, want [Batch]uint8
		sweepPortably(moves, ranks, &want)
		if canSweep {
			sweep(moves, ranks, &got)
		} else {
			got = want
		}
		if got != want {
			t.Fatalf("%v\nwant %v", got, want)
		}
	}
}

// BenchmarkSweep gives the figure trees_swept_vs_walked: 500 trees of 64 leaves,
// all rows of a batch a split, against eight rows at a time on their ways.
func BenchmarkSweep(b *testing.B) {
	if !canSweep {
		b.Skip("this processor does not sweep")
	}
	const features, rows = 30, 1024
	r := rand.New(rand.NewPCG(7, 1))
	data := normal(r, rows, features, 50)
	swept := lgb(b, []byte(benchForest(r, 500, 64, data, 0, 2, 8, 10)))
	compare(b, "trees_swept_vs_walked", "walked", rows, scorer(swept, data), scorer(walked(swept), data))
}
