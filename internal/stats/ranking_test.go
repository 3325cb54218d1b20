package stats

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// ranking reads "a (b c) d": items in rank order, ties in brackets.
func ranking(text string) Ranking[string] {
	var r Ranking[string]
	score, tied := 0.0, false
	for _, item := range strings.Fields(text) {
		if !tied {
			score--
		}
		if strings.HasPrefix(item, "(") {
			tied = true
		}
		if strings.HasSuffix(item, ")") {
			tied = false
		}
		r.Items = append(r.Items, strings.Trim(item, "()"))
		r.Scores = append(r.Scores, score)
	}
	return r
}

// The agreements by depth of the example in Webber, Moffat and Zobel 2010, from
// which they work out its average overlap.
func TestOverlap(t *testing.T) {
	a, b := ranking("a b c d e f g"), ranking("z c a v w x y")
	for i, want := range []float64{0, 0, 2.0 / 3, 2.0 / 4, 2.0 / 5, 2.0 / 6, 2.0 / 7, 2.0 / 7} {
		got, err := Overlap(a, b, i+1)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "overlap", got, want)
	}
	for _, c := range []struct {
		a, b string
		want float64
	}{{"", "", 1}, {"a", "", 0}, {"a b", "b a", 1}, {"a b", "b a c", 2.0 / 3}} {
		got, err := Overlap(ranking(c.a), ranking(c.b), 10)
		if err != nil {
			t.Fatal(err)
		}
		same(t, c.a+" and "+c.b, got, c.want)
	}
}

// The values of scipy 1.17.1's kendalltau; the first is the example in its
// documentation.
func TestKendallTau(t *testing.T) {
	for _, c := range []struct {
		x, y []float64
		want float64
	}{
		{[]float64{12, 2, 1, 12, 2}, []float64{1, 4, 7, 1, 0}, -0.4714045207910316},
		{[]float64{1, 2, 3, 4, 5}, []float64{3, 1, 2, 5, 4}, 0.4},
		{[]float64{1, 2, 2, 3}, []float64{1, 2, 3, 3}, 0.8},
		{[]float64{5, 4, 4, 4, 2, 1, 1}, []float64{1, 2, 2, 5, 5, 3, 0}, -0.11128297681493143},
		{[]float64{1, 1, 1}, []float64{1, 2, 3}, math.NaN()},
		{[]float64{1}, []float64{1}, math.NaN()},
		{nil, nil, math.NaN()},
	} {
		got, err := KendallTau(byScore(c.x, 100), byScore(c.y, 200))
		if err != nil {
			t.Fatal(err)
		}
		same(t, "tau", got, c.want)
	}
}

// byScore ranks the items 0, 1, ... by their scores, best first, with another
// item, which the other ranking lacks, at the top.
func byScore(scores []float64, another int) Ranking[int] {
	r := Ranking[int]{Items: []int{another}, Scores: []float64{math.Inf(1)}}
	for i, s := range scores {
		at := len(r.Items)
		for at > 1 && r.Scores[at-1] < s {
			at--
		}
		r.Items = append(r.Items[:at], append([]int{i}, r.Items[at:]...)...)
		r.Scores = append(r.Scores[:at], append([]float64{s}, r.Scores[at:]...)...)
	}
	return r
}

// Scores that are NaN are tied with each other, at the end.
func TestNaNRanksLast(t *testing.T) {
	nan := math.NaN()
	r := Ranking[string]{[]string{"a", "b", "c"}, []float64{1, nan, nan}}
	in, err := r.places("a")
	if err != nil {
		t.Fatal(err)
	}
	if in["a"] != (place{1, 1}) || in["b"] != (place{2, 3}) || in["c"] != (place{2, 3}) {
		t.Errorf("places are %v", in)
	}
	r.Scores = []float64{nan, 1, 0}
	if _, err := r.places("a"); err == nil {
		t.Error("NaN before a number is taken for rank order")
	}
}

// Of scikit-learn 1.9.1: ndcg_score. The first and the last are the worked
// example of Wikipedia's article on discounted cumulative gain, 0.785 to its
// three digits.
func TestNDCG(t *testing.T) {
	for _, c := range []struct {
		gains, all []float64
		k          int
		want       float64
	}{
		{[]float64{3, 2, 3, 0, 1, 2}, nil, 6, 0.9608081943360616},
		{[]float64{3, 2, 3, 0, 1, 2}, nil, 3, 0.9777813616305048},
		{[]float64{0, 0, 1}, nil, 3, 0.5},
		{[]float64{0, 1, 0, 4, 0.5, 2}, nil, 4, 0.3937691323026103},
		{[]float64{1, 1, 1}, nil, 2, 1},
		{[]float64{1, 1}, nil, 20, 1},
		{[]float64{0, 0}, nil, 2, math.NaN()},
		{nil, nil, 2, math.NaN()},
		{nil, []float64{1}, 2, 0},
		{[]float64{3, 2, 3, 0, 1, 2}, []float64{3, 2, 3, 0, 1, 2, 3, 2}, 6, 6.861126688593501 / 8.740262365546286},
	} {
		got, err := NDCG(c.gains, c.all, c.k)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "ndcg", got, c.want)
	}
}

// The three queries of Wikipedia's article on the mean reciprocal rank: 11/18.
func TestReciprocalRank(t *testing.T) {
	var mrr Mean
	for _, gains := range [][]float64{{0, 0, 1}, {0, 1, 0}, {1, 0, 0}} {
		mrr.Add(reciprocal(t, gains, nil))
	}
	same(t, "mrr", mrr.Mean, 11.0/18)
	same(t, "of nothing", reciprocal(t, []float64{0, 0}, nil), 0)
	same(t, "of nothing that is tied", reciprocal(t, []float64{0, 0}, []int{2}), 0)
}

func reciprocal(t *testing.T, gains []float64, tied []int) float64 {
	t.Helper()
	x, err := ReciprocalRank(gains, tied)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// orders calls with every order of items that are tied.
func orders(gains []float64, tied []int, with func([]float64)) {
	if len(tied) == 0 {
		with(nil)
		return
	}
	var permute func(rest, taken []float64)
	permute = func(rest, taken []float64) {
		if len(rest) == 0 {
			orders(gains[tied[0]:], tied[1:], func(after []float64) { with(slices.Concat(taken, after)) })
		}
		for i := range rest {
			permute(slices.Delete(slices.Clone(rest), i, i+1), append(slices.Clone(taken), rest[i]))
		}
	}
	permute(gains[:tied[0]], nil)
}

// Of tied items measures are the means over every order that they may have, at every
// depth. The first is the example of ties in scikit-learn's documentation of dcg_score and
// ndcg_score, which take McSherry and Najork's mean.
func TestMeasuresOverTies(t *testing.T) {
	graded := []float64{10, 5, 0, 0, 1}
	means, err := MeanOfTied(graded, []int{2, 3})
	if err != nil {
		t.Fatal(err)
	}
	dcg, err1 := DCG(means, 1)
	ndcg, err2 := NDCG(means, graded, 1)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	same(t, "dcg", dcg, 7.5)
	same(t, "ndcg", ndcg, 0.75)
	for _, c := range []struct {
		gains []float64
		tied  []int
	}{
		{[]float64{1, 0, 0, 0, 0}, []int{5}},
		{[]float64{0, 1, 0, 2, 0, 3}, []int{1, 3, 2}},
		{[]float64{0, 0, 1, 1, 0, 0, 1}, []int{2, 4, 1}},
		{[]float64{1, 0, 1}, []int{1, 1, 1}},
	} {
		for k := 1; k <= len(c.gains); k++ {
			var dcg, ndcg, rr Mean
			orders(c.gains, c.tied, func(gains []float64) {
				d, err1 := DCG(gains, k)
				n, err2 := NDCG(gains, nil, k)
				if err1 != nil || err2 != nil {
					t.Fatal(err1, err2)
				}
				dcg.Add(d)
				ndcg.Add(n)
				rr.Add(reciprocal(t, gains, nil))
			})
			means, err := MeanOfTied(c.gains, c.tied)
			if err != nil {
				t.Fatal(err)
			}
			d, err1 := DCG(means, k)
			n, err2 := NDCG(means, c.gains, k)
			if err1 != nil || err2 != nil {
				t.Fatal(err1, err2)
			}
			same(t, "dcg", d, dcg.Mean)
			same(t, "ndcg", n, ndcg.Mean)
			same(t, "reciprocal rank", reciprocal(t, c.gains, c.tied), rr.Mean)
		}
	}
}

// A ranking agrees with itself completely by every measure, whatever its ties,
// and measures do not ask which of two rankings comes first.
func TestMeasuresOfRankings(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 3))
		a, b := randomRanking(r), randomRanking(r)
		for _, ties := range []Ties{TiesEqual, TiesAverage, TiesCorrected} {
			own, there, back := rbo(t, a, a, 0.9, ties), rbo(t, a, b, 0.9, ties), rbo(t, b, a, 0.9, ties)
			if ties != TiesAverage && !near(own.Ext, 1) {
				t.Errorf("seed %d: RBO^%s of a ranking and itself is %v", seed, ties, own.Ext)
			}
			if there != back && !(near(there.Ext, back.Ext) && near(there.Min, back.Min) && near(there.Max, back.Max)) {
				t.Errorf("seed %d: RBO^%s is %v, exchanged %v", seed, ties, there, back)
			}
			if there.Min < 0 || there.Max > 1+1e-9 || there.Min > there.Ext+1e-9 || there.Ext > there.Max+1e-9 {
				t.Errorf("seed %d: RBO^%s is out of order: %+v", seed, ties, there)
			}
		}
		x, err := KendallTau(a, b)
		if err != nil {
			t.Fatal(err)
		}
		y, err := KendallTau(b, a)
		if err != nil {
			t.Fatal(err)
		}
		if !near(x, y) || x < -1-1e-9 || x > 1+1e-9 {
			t.Errorf("seed %d: tau is %v, exchanged %v", seed, x, y)
		}
	}
}

// randomRanking is of up to 12 of 16 items, many of them tied.
func randomRanking(r *rand.Rand) Ranking[int] {
	var a Ranking[int]
	score := 100.0
	for _, item := range r.Perm(16)[:1+r.IntN(12)] {
		if r.IntN(2) == 0 {
			score--
		}
		a.Items = append(a.Items, item)
		a.Scores = append(a.Scores, score)
	}
	return a
}

// Gains 3, 2, 3, 0, 1, 2 at depth 6 are the textbook's: 3 + 2/log2(3) + 3/2 + 0 +
// 1/log2(6) + 2/log2(7).
func TestDCG(t *testing.T) {
	got, err := DCG([]float64{3, 2, 3, 0, 1, 2}, 6)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "DCG@6", got, 6.861126688593501)
	if got, _ = DCG([]float64{3, 2, 3, 0, 1, 2}, 2); math.Abs(got-(3+2/math.Log2(3))) > 1e-12 {
		t.Errorf("DCG@2 %v", got)
	}
}

// Viewers look at place p with chance 1/p and click on what is relevant there. Clicks
// over that chance estimate what each order is worth, whichever was shown; clicks as
// they are find the shown order better than one that is.
func TestDCGByPropensitiesOfPlaces(t *testing.T) {
	relevance := []float64{0.1, 0.2, 0.3, 0.6, 0.8} // of what stands at each place
	better := []int{4, 3, 2, 1, 0}
	was, is := 0., 0.
	for i, x := range relevance {
		was += x / math.Log2(float64(i+2))
		is += relevance[better[i]] / math.Log2(float64(i+2))
	}
	const runs = 400
	covers, fooled := 0, 0
	for seed := range uint64(runs) {
		r := rand.New(rand.NewPCG(seed, 8))
		var more, naive Mean
		for range 2000 {
			gains, clicks := make([]float64, 5), make([]float64, 5)
			for i, x := range relevance {
				if r.Float64() < x && r.Float64() < 1/float64(i+1) {
					gains[i], clicks[i] = float64(i+1), 1
				}
			}
			for _, x := range []struct {
				gains []float64
				in    *Mean
			}{{gains, &more}, {clicks, &naive}} {
				anew := make([]float64, 5)
				for i, at := range better {
					anew[i] = x.gains[at]
				}
				before, err := DCG(x.gains, 5)
				if err != nil {
					t.Fatal(err)
				}
				after, err := DCG(anew, 5)
				if err != nil {
					t.Fatal(err)
				}
				x.in.Add(after - before)
			}
		}
		if more.Once(0.05).Contains(is - was) {
			covers++
		}
		if !naive.Once(0.05).Contains(is - was) {
			fooled++
		}
	}
	if covers < 363 || covers > 397 || fooled < runs*9/10 {
		t.Errorf("%d of %d intervals cover the truth, want about 380; of clicks as they are %d miss it", covers, runs, fooled)
	}
}
