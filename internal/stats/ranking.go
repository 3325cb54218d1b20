package stats

import (
	"cmp"
	"math"
	"slices"
)

// Ranking is items in rank order, best first, each at most once. Items whose scores are
// equal are tied; NaN counts as equal to NaN. Without scores there are no ties. Two items
// are the same if they are equal as values of T, such as ids of records, or of objects if
// an answer shows each object once.
type Ranking[T comparable] struct {
	Items  []T
	Scores []float64 // none, or one an item, never rising, NaN last
}

// place is the first and the last of the ranks, counted from 1, that an item shares with
// the items it is tied with.
type place struct{ top, bottom int }

// places returns the place of each item of a ranking. name is the ranking's name in errors.
func (r Ranking[T]) places(name string) (map[T]place, error) {
	if len(r.Scores) != 0 && len(r.Scores) != len(r.Items) {
		return nil, refuse(name, "give one score for each item, or none", "%d scores for %d items", len(r.Scores), len(r.Items))
	}
	all := make(map[T]place, len(r.Items))
	for top := 0; top < len(r.Items); {
		end := top + 1
		for ; len(r.Scores) != 0 && end < len(r.Items) && !below(r.Scores[end], r.Scores[end-1]); end++ {
			if below(r.Scores[end-1], r.Scores[end]) {
				return nil, refuse(name, "give items in rank order", "the score rises from %v to %v at rank %d", r.Scores[end-1], r.Scores[end], end+1)
			}
		}
		for _, item := range r.Items[top:end] {
			all[item] = place{top + 1, end}
		}
		top = end
	}
	if len(all) != len(r.Items) {
		return nil, refuse(name, "give each item once", "%d of %d items repeat another", len(r.Items)-len(all), len(r.Items))
	}
	return all, nil
}

// below reports whether score a ranks strictly below b; NaN is the last.
func below(a, b float64) bool { return a < b || math.IsNaN(a) && !math.IsNaN(b) }

// Overlap returns which part of the first k items of two rankings is the same, in [0, 1]:
// the agreement at depth k of Webber, Moffat and Zobel ("A similarity measure for
// indefinite rankings", ACM TOIS 2010). If both are shorter than k, the length of the
// longer one takes the place of k. Ties do not count. For two empty rankings it is 1.
func Overlap[T comparable](a, b Ranking[T], k int) (float64, error) {
	if k < 1 {
		return 0, refuse("k", "ask for the overlap of the first 1 or more", "%d is no depth", k)
	}
	first := Ranking[T]{Items: a.Items[:min(k, len(a.Items))]}
	second := Ranking[T]{Items: b.Items[:min(k, len(b.Items))]}
	in, err := first.places("a")
	if err != nil {
		return 0, err
	}
	if _, err := second.places("b"); err != nil {
		return 0, err
	}
	depth := max(len(first.Items), len(second.Items))
	if depth == 0 {
		return 1, nil
	}
	var shared int
	for _, item := range second.Items {
		if _, ok := in[item]; ok {
			shared++
		}
	}
	return float64(shared) / float64(depth), nil
}

// KendallTau returns Kendall's τ-b of the items that both rankings have, in
// [-1, 1]: the surplus of pairs in the same order, divided by the geometric mean
// of the pairs that each ranking does not tie (Kendall, "The treatment of ties
// in ranking problems", Biometrika 1945). It is NaN where there is no such pair.
// Time is quadratic in the shared items.
func KendallTau[T comparable](a, b Ranking[T]) (float64, error) {
	inA, err := a.places("a")
	if err != nil {
		return 0, err
	}
	inB, err := b.places("b")
	if err != nil {
		return 0, err
	}
	var x, y []int
	for _, item := range a.Items {
		if other, ok := inB[item]; ok {
			x, y = append(x, inA[item].top), append(y, other.top)
		}
	}
	var surplus, untiedA, untiedB int
	for i := range x {
		for j := range i {
			inX, inY := sign(x[i]-x[j]), sign(y[i]-y[j])
			surplus += inX * inY
			untiedA += inX * inX
			untiedB += inY * inY
		}
	}
	return float64(surplus) / math.Sqrt(float64(untiedA)) / math.Sqrt(float64(untiedB)), nil
}

func sign(x int) int {
	switch {
	case x < 0:
		return -1
	case x > 0:
		return 1
	}
	return 0
}

// NDCG returns the normalised discounted cumulative gain of the first k places,
// in [0, 1]: each gain divided by log2(place+1), over what the best order of
// all gains reaches (Järvelin and Kekäläinen, "Cumulated gain-based evaluation
// of IR techniques", ACM TOIS 2002, with the discount of Burges et al. 2005).
// gains has the gains by place. all has those of everything that could have been
// shown, in any order; nil: nothing else could. Gains are taken as they are: for
// 2^grade-1, give that. The result is NaN if no gain is above 0.
func NDCG(gains, all []float64, k int) (float64, error) {
	if k < 1 {
		return 0, refuse("k", "ask for the first 1 or more", "%d is no depth", k)
	}
	if all == nil {
		all = gains
	}
	for _, set := range [][]float64{gains, all} {
		if err := finite(set); err != nil {
			return 0, err
		}
	}
	best := slices.Clone(all)
	slices.SortFunc(best, func(a, b float64) int { return cmp.Compare(b, a) })
	reached, most := discounted(gains, k), discounted(best, k)
	if reached > most*(1+1e-9) {
		return 0, refuse("all", "give the gains of everything that could have been shown", "what was shown gains %v, and all only %v", reached, most)
	}
	return min(1, reached/most), nil
}

// DCG returns the discounted cumulative gain of the first k places, at least 0: NDCG
// before it is divided by what the best order reaches. If gains are estimates without
// bias, so is its mean over answers; the mean of NDCG is not. An example of such gains:
// viewers look at place p with propensity q(p), whatever is shown there; then a click
// there is a gain of 1/q(p) for the item, wherever another ranking puts it
// (Joachims, Swaminathan and Schnabel, "Unbiased learning-to-rank with biased
// feedback", WSDM 2017; for any sum over places, Agarwal, Takatsu, Zaitsev and
// Joachims, "A general framework for counterfactual learning-to-rank", SIGIR 2019).
func DCG(gains []float64, k int) (float64, error) {
	if k < 1 {
		return 0, refuse("k", "ask for the first 1 or more", "%d is no depth", k)
	}
	return discounted(gains, k), finite(gains)
}

// finite refuses gains that are none.
func finite(gains []float64) error {
	for i, g := range gains {
		if !(g >= 0) || math.IsInf(g, 0) {
			return refuse("gains", "give finite gains from 0", "%v at place %d", g, i+1)
		}
	}
	return nil
}

// discounted returns the discounted cumulative gain of the first k places.
func discounted(gains []float64, k int) (sum float64) {
	for i, g := range gains[:min(k, len(gains))] {
		sum += g / math.Log2(float64(i+2))
	}
	return sum
}

// ReciprocalRank returns 1 over the place of the first gain above 0, and 0 if there is
// none. Its mean over answers is MRR (Voorhees, "The TREC-8 question answering track
// report", 1999). tied has the sizes of groups of tied places, as for MeanOfTied; the
// result is then the mean over all orders of the tied items.
func ReciprocalRank(gains []float64, tied []int) (float64, error) {
	if err := groups(gains, tied); err != nil {
		return 0, err
	}
	at := 0
	for _, size := range tied {
		if found := above0(gains[at : at+size]); found > 0 {
			return firstFound(at, size, found), nil
		}
		at += size
	}
	for i, g := range gains[at:] { // without ties
		if g > 0 {
			return 1 / float64(i+1), nil
		}
	}
	return 0, nil
}

func above0(gains []float64) (n int) {
	for _, g := range gains {
		if g > 0 {
			n++
		}
	}
	return n
}

// firstFound returns the mean, over all orders of a group of size tied items, of 1 over
// the place of the first item with a gain. found of the items have one. at places come
// before the group. In the loop others is the chance that the first i items of the group
// have no gain.
func firstFound(at, size, found int) (mean float64) {
	others := 1.
	for i := range size - found + 1 {
		chance := float64(found) / float64(size-i)
		mean += others * chance / float64(at+i+1)
		others *= 1 - chance
	}
	return mean
}

// MeanOfTied returns gains by place for items that are tied, and so may be in any order
// among themselves: each place has the mean gain of the group that it is in. DCG of these
// gains is the mean of DCG over all orders, each as likely. So is NDCG of these gains, if
// its parameter all has the original ones (McSherry and Najork, "Computing information
// retrieval performance measures efficiently in the presence of tied scores", ECIR 2008).
// tied has the sizes of the groups, by place; an item that is not tied is a group of 1.
// nil: nothing is tied, and gains is returned.
func MeanOfTied(gains []float64, tied []int) ([]float64, error) {
	if err := groups(gains, tied); err != nil || tied == nil {
		return gains, err
	}
	means, at := make([]float64, 0, len(gains)), 0
	for _, size := range tied {
		var sum float64
		for _, g := range gains[at : at+size] {
			sum += g
		}
		for range size {
			means = append(means, sum/float64(size))
		}
		at += size
	}
	return means, nil
}

// groups refuses sizes of groups that do not sum up to the number of gains.
func groups(gains []float64, tied []int) error {
	if tied == nil {
		return nil
	}
	sum := 0
	for i, size := range tied {
		if size < 1 || size > len(gains)-sum {
			return refuse("tied", "give the sizes of all groups, which sum to the places", "group %d of %d items, from place %d of %d", i+1, size, sum+1, len(gains))
		}
		sum += size
	}
	if sum < len(gains) {
		return refuse("tied", "give the sizes of all groups, which sum to the places", "they sum to %d of %d places", sum, len(gains))
	}
	return nil
}
