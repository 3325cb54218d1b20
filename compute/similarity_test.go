package compute_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
)

// Similarities of packed lists are Dot, Cosine and L2 of the numbers that were packed, to the
// bit: of bytes, float32s and doubles, of other lengths than the probe's and of none.
func TestSimilarities(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 64))
	l, err := column.NewLayout([]column.Field{{Name: "vec", Kind: column.Doubles, Nullable: true}})
	if err != nil {
		t.Fatal(err)
	}
	minus := math.Copysign(0, -1)
	draw := []func() float64{
		func() float64 { return float64(r.IntN(256) - 128) },
		func() float64 { return []float64{-128, 127, 0}[r.IntN(3)] },
		func() float64 { return []float64{-128, 127, 0, minus}[r.IntN(4)] },
		func() float64 { return float64(r.IntN(260) - 130) },
		func() float64 { return float64(float32(r.NormFloat64())) },
		func() float64 { return r.NormFloat64() * 1e-170 }, // whose squares vanish
		func() float64 { return []float64{1, -1, math.NaN(), math.Inf(1), math.MaxFloat64, minus}[r.IntN(6)] },
	}
	probes := append(draw,
		func() float64 { return float64(r.IntN(1<<16) - 1<<15) },
		func() float64 { return []float64{math.MinInt16, math.MaxInt16}[r.IntN(2)] },
		func() float64 { return []float64{math.MinInt16 - 1, math.MaxInt16 + 1, 0}[r.IntN(3)] },
		func() float64 { return float64(int64(r.Uint64())) },
		func() float64 { return []float64{0, minus}[r.IntN(2)] },
	)
	list := func(n int, of func() float64) []float64 {
		items := make([]float64, n)
		for i := range items {
			items[i] = of()
		}
		return items
	}
	var probe column.Probe
	for round := range 903 {
		n := round % 301
		a, items := column.New(l, 1, 0).Append(), draw[r.IntN(len(draw))]
		var want [][]float64
		for range 1 + r.IntN(150) {
			row, length := a.Begin(), n
			if r.IntN(8) == 0 {
				length = []int{0, 1, max(0, n-1), n + 1}[r.IntN(4)]
			}
			if v := list(length, items); r.IntN(9) == 0 {
				row.SetNull(0)
				want = append(want, nil)
			} else {
				row.SetDoubles(0, v)
				want = append(want, v)
			}
			if err := a.End(row); err != nil {
				t.Fatal(err)
			}
		}
		packed, err := column.Pack(nil, a.Slab())
		if err != nil {
			t.Fatal(err)
		}
		var batch column.Batch
		batch.Reset(l, []int{0}, len(want))
		batch.Add(column.PackedAt(packed), 0, len(want))
		against := list(n, probes[r.IntN(len(probes))])
		probe.Set(against)
		for _, rows := range []*column.Slab{a.Slab(), batch.Slab()} {
			sel := make([]int32, len(want))
			for i := range sel {
				sel[i] = int32(i)
			}
			lists, dots, cosines, l2s := make([]column.List, len(sel)), make([]float64, len(sel)), make([]float64, len(sel)), make([]float64, len(sel))
			rows.ListsAt(lists, 0, sel)
			compute.Dots(dots, lists, &probe)
			compute.Cosines(cosines, lists, &probe)
			compute.L2s(l2s, lists, &probe)
			for i, v := range want {
				for _, x := range []struct {
					of        string
					got, want float64
				}{{"dot", dots[i], compute.Dot(v, against)}, {"cosine", cosines[i], compute.Cosine(v, against)}, {"l2", l2s[i], compute.L2(v, against)}} {
					if math.Float64bits(compute.Score(x.got)) != math.Float64bits(compute.Score(x.want)) {
						t.Fatalf("round %d: %s of %v and %v is %v, want %v", round, x.of, v, against, x.got, x.want)
					}
				}
			}
		}
	}
}
