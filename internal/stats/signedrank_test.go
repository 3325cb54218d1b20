package stats

import (
	"math"
	"math/rand/v2"
	"testing"
)

// The critical values of the test, two-sided at 0.05, are those of the tables
// (Hollander, Wolfe and Chicken, table A.4).
func TestSignedRankByTheTables(t *testing.T) {
	for n, want := range map[int]int{6: 0, 7: 2, 8: 3, 9: 5, 10: 8, 12: 13, 16: 29, 20: 52} {
		if got := signedRanksOut(n, 0.05); got != want {
			t.Errorf("of %d values %d are out, want %d", n, got, want)
		}
	}
}

func TestSignedRank(t *testing.T) {
	value, in, err := SignedRank([]float64{1, 2, 3, 4, 5, 6}, 0.05)
	if err != nil || value != 3.5 || in != (Interval{1, 6}) {
		t.Errorf("%v in %v, %v", value, in, err)
	}
	if value, _, _ = SignedRank([]float64{1, 2, 3, 4, 5, 1000}, 0.05); value > 5 {
		t.Errorf("one wild value moves it to %v", value)
	}
	for _, wrong := range [][]float64{{1, 2, 3, 4, 5}, {1, 2, 3, 4, 5, math.NaN()}, nil} {
		if _, _, err := SignedRank(wrong, 0.05); err == nil {
			t.Errorf("%v say something", wrong)
		}
	}
	if _, _, err := SignedRank(make([]float64, 10), 0); err == nil {
		t.Error("a level of 1 is taken")
	}
}

// The interval misses the centre as often as it may, and no more.
func TestSignedRankCovers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const runs = 20_000
	missed := 0
	for range runs {
		values := make([]float64, 8)
		for i := range values {
			values[i] = 7 + r.NormFloat64()*math.Exp(r.NormFloat64())
		}
		if _, in, err := SignedRank(values, 0.05); err != nil || !in.Contains(7) {
			missed++
		}
	}
	if share := float64(missed) / runs; share > 0.045 || share < 0.033 { // exactly 10 of 256
		t.Errorf("%.4f of the intervals miss", share)
	}
}
