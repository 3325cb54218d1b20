package stats

import (
	"errors"
	"math"
	"testing"
)

// Every refusal names the parameter, and says what to give instead.
func TestRefusals(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	s := sequence(t, 0.05, 1000)
	two := []Logged{{1, 0.5, 0.5}, {1, 0.5, 0.5}}
	with := func(l Logged) []Logged { return []Logged{two[0], l} }
	ab, twice := ranking("a b"), Ranking[string]{Items: []string{"a", "a"}}
	rising := Ranking[string]{[]string{"a", "b"}, []float64{1, 2}}
	uneven := Ranking[string]{[]string{"a", "b"}, []float64{1}}
	err2 := func(_ any, err error) error { return err }
	for _, c := range []struct {
		field string
		err   error
	}{
		{"alpha", err2(NewSequence(0, 10))},
		{"alpha", err2(NewSequence(1, 10))},
		{"alpha", err2(NewSequence(nan, 10))},
		{"horizon", err2(NewSequence(0.05, 0))},
		{"events", err2(s.RateRatio(-1, 2, 0.5))},
		{"share", err2(s.RateRatio(1, 2, 0))},
		{"share", err2(s.RateRatio(1, 2, 1))},
		{"share", err2(s.RateRatio(1, 2, nan))},
		{"counts", err2(SampleRatio([]int64{1}, []float64{1}))},
		{"counts", err2(SampleRatio([]int64{1, -1}, []float64{1, 1}))},
		{"shares", err2(SampleRatio([]int64{1, 1}, []float64{1}))},
		{"shares", err2(SampleRatio([]int64{1, 1}, []float64{1, 0}))},
		{"shares", err2(SampleRatio([]int64{1, 1}, []float64{1, nan}))},
		{"shares", err2(SampleRatio([]int64{1, 1}, []float64{1, inf}))},
		{"k", err2(Overlap(ab, ab, 0))},
		{"a", err2(Overlap(twice, ab, 5))},
		{"b", err2(Overlap(ab, twice, 5))},
		{"a", err2(KendallTau(rising, ab))},
		{"b", err2(KendallTau(ab, uneven))},
		{"p", err2(RankBiasedOverlap(ab, ab, 1, TiesEqual))},
		{"p", err2(RankBiasedOverlap(ab, ab, nan, TiesEqual))},
		{"ties", err2(RankBiasedOverlap(ab, ab, 0.9, "c"))},
		{"a", err2(RankBiasedOverlap(rising, ab, 0.9, TiesEqual))},
		{"b", err2(RankBiasedOverlap(ab, twice, 0.9, TiesEqual))},
		{"k", err2(NDCG([]float64{1}, nil, 0))},
		{"gains", err2(NDCG([]float64{-1}, nil, 1))},
		{"k", err2(DCG([]float64{1}, 0))},
		{"gains", err2(DCG([]float64{-1}, 1))},
		{"gains", err2(NDCG([]float64{nan}, nil, 1))},
		{"all", err2(NDCG([]float64{3, 2}, []float64{1}, 2))},
		{"logged", err2(CounterfactualReward(nil, 0, 0.05))},
		{"tied", err2(MeanOfTied([]float64{1, 0}, []int{1}))},
		{"tied", err2(MeanOfTied([]float64{1, 0}, []int{3, -1}))},
		{"tied", err2(ReciprocalRank([]float64{1, 0}, []int{0, 2}))},
		{"limit", err2(CounterfactualReward(two, -1, 0.05))},
		{"alpha", err2(CounterfactualReward(two, 0, 2))},
		{"logged[1].reward", err2(CounterfactualReward(with(Logged{nan, 0.5, 0.5}), 0, 0.05))},
		{"logged[1].old", err2(CounterfactualReward(with(Logged{1, 0, 0.5}), 0, 0.05))},
		{"logged[1].old", err2(CounterfactualReward(with(Logged{1, nan, 0.5}), 0, 0.05))},
		{"logged[1].new", err2(CounterfactualReward(with(Logged{1, 1, 1.5}), 0, 0.05))},
		{"logged", err2(CounterfactualReward([]Logged{{1, 1, 0}, {1, 1, 0}}, 0, 0.05))},
		{"logged", err2(CounterfactualReward(with(Logged{1, 1e-300, 1}), 0, 0.05))},
	} {
		var e *Error
		if !errors.As(c.err, &e) {
			t.Errorf("%s: not refused: %v", c.field, c.err)
			continue
		}
		if e.Field != c.field || e.Detail == "" || e.WayOut == "" {
			t.Errorf("%s: %q", c.field, e.Error())
		}
	}
}
