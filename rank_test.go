package millrace

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// Best first, each rule deciding once.
var ordered = []Rank{
	{math.Inf(1), 0, "z", Timeline{"z", "z"}},
	{1, 5, "b", Timeline{"b", "b"}},
	{math.SmallestNonzeroFloat64, 0, "b", Timeline{"b", "b"}},
	{0, 6, "b", Timeline{"b", "b"}},
	{0, 5, "B", Timeline{"b", "b"}},
	{0, 5, "b", Timeline{"a", "b"}},
	{math.Copysign(0, -1), 5, "b", Timeline{"b", "a"}}, // -0 is 0
	{0, 5, "b", Timeline{"b", "b"}},
	{0, 5, "b\x00", Timeline{"a", "a"}},
	{0, 5, "é", Timeline{"a", "a"}}, // by bytes, after every ASCII letter
	{-1, 9, "a", Timeline{"a", "a"}},
	{math.Inf(-1), 9, "a", Timeline{"a", "a"}},
	{math.NaN(), 9, "a", Timeline{"a", "a"}},
	{-math.NaN(), 8, "a", Timeline{"a", "a"}},
}

func TestRankOrderIsTotal(t *testing.T) {
	for i, a := range ordered {
		for j, b := range ordered {
			want := 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if got := a.Compare(b); got != want {
				t.Errorf("%v and %v: %d, want %d", a, b, got, want)
			}
		}
	}
	shuffled := slices.Clone(ordered)
	rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	slices.SortFunc(shuffled, Rank.Compare)
	for i := range ordered {
		if shuffled[i].Compare(ordered[i]) != 0 {
			t.Errorf("place %d has %v, want %v", i, shuffled[i], ordered[i])
		}
	}
}

func TestCompareScores(t *testing.T) {
	for _, c := range []struct {
		a, b float64
		want int
	}{
		{2, 1, -1},
		{1, 2, 1},
		{1, 1, 0},
		{0, math.Copysign(0, -1), 0},
		{math.NaN(), math.NaN(), 0},
		{math.NaN(), math.Inf(-1), 1},
		{math.Inf(-1), math.NaN(), -1},
		{math.Inf(1), math.MaxFloat64, -1},
	} {
		if got := CompareScores(c.a, c.b); got != c.want {
			t.Errorf("%v and %v: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
