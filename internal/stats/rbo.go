package stats

import "math"

// Ties says what ties of a ranking mean.
type Ties string

// The meanings of ties (Corsi and Urbano, "The treatment of ties in rank-biased
// overlap", SIGIR 2024).
const (
	// TiesEqual are items that truly share a rank: RBO^w, as Webber et al. had
	// it.
	TiesEqual Ties = "w"
	// TiesAverage are items whose order is not known: RBO^a, the mean over every
	// order they might have.
	TiesAverage Ties = "a"
	// TiesCorrected is RBO^b: TiesAverage, corrected for what ties hide, so that
	// a ranking agrees with itself completely. It relates to TiesAverage as
	// Kendall's τ-b to τ-a.
	TiesCorrected Ties = "b"
)

// RBO is the rank-biased overlap of two rankings of which only the beginnings
// are known; each figure is in [0, 1].
type RBO struct {
	Ext float64 // extrapolated: if the unknown rest agrees as much as the known beginnings
	Min float64 // if the rest agrees in nothing
	Max float64 // if the rest agrees as much as it can; Max-Min is the residual
}

// RankBiasedOverlap compares two rankings, of any lengths and with any items,
// so that the top counts most (Webber, Moffat and Zobel 2010): p, in (0, 1), is
// the chance to look one rank further, and 1/(1-p) the ranks that one looks at
// in the mean. With 0.9 the first ten ranks have 86 % of the weight. Ext, Min
// and Max with ties are those of Corsi and Urbano 2024. An empty ranking agrees
// with an empty one completely and with no other at all, as far as is known.
func RankBiasedOverlap[T comparable](a, b Ranking[T], p float64, ties Ties) (RBO, error) {
	if !(p > 0 && p < 1) {
		return RBO{}, refuse("p", "give the chance to look one rank further, like 0.9", "%v is not between 0 and 1", p)
	}
	if ties != TiesEqual && ties != TiesAverage && ties != TiesCorrected {
		return RBO{}, refuse("ties", `give "w", "a" or "b"`, "%q is no treatment", string(ties))
	}
	inA, err := a.places("a")
	if err != nil {
		return RBO{}, err
	}
	inB, err := b.places("b")
	if err != nil {
		return RBO{}, err
	}
	short, long := ranked[T]{a.Items, inA}, ranked[T]{b.Items, inB}
	if len(short.items) > len(long.items) {
		short, long = long, short
	}
	return prefixes[T]{short, long, ties}.rbo(p), nil
}

// ranked is a ranking whose items' places are known.
type ranked[T comparable] struct {
	items []T
	in    map[T]place
}

// prefixes are the known beginnings of two rankings.
type prefixes[T comparable] struct {
	short, long ranked[T]
	ties        Ties
}

// contribution returns which part of an item belongs to the first depth ranks: nothing
// before its place begins, and all from where it ends. Within its place it is a part that
// grows evenly with depth, or all of it for TiesEqual (Corsi and Urbano 2024).
func (t Ties) contribution(p place, depth int) float64 {
	switch {
	case depth < p.top:
		return 0
	case depth >= p.bottom || t == TiesEqual:
		return 1
	}
	return float64(depth-p.top+1) / float64(p.bottom-p.top+1)
}

// sums are sums over items, by depth from 1; index 0 is not used.
type sums struct {
	at    []float64 // added at this depth alone
	whole []float64 // added at this depth and at every later one
}

func newSums(depth int) sums { return sums{make([]float64, depth+1), make([]float64, depth+1)} }

// add adds the product of two places' contributions at every depth.
func (s sums) add(t Ties, a, b place) {
	settled := max(a.bottom, b.bottom)
	if t == TiesEqual {
		settled = max(a.top, b.top)
	}
	for d := max(a.top, b.top); d < settled; d++ {
		s.at[d] += t.contribution(a, d) * t.contribution(b, d)
	}
	s.whole[settled]++
}

// settle returns the sums by depth.
func (s sums) settle() []float64 {
	var whole float64
	for d := range s.at {
		whole += s.whole[d]
		s.at[d] += whole
	}
	return s.at
}

// rbo works out the figures as Corsi and Urbano 2024 do; without ties that is Webber et
// al. 2010, with equation 32 for Ext. It sums over three parts: the ranks that both
// rankings have, those that only the long one has, and those that neither has.
func (x prefixes[T]) rbo(p float64) RBO {
	s, l := len(x.short.items), len(x.long.items)
	if l == 0 {
		return RBO{Ext: 1, Min: 0, Max: 1}
	}
	overlaps := newSums(l)
	var alone []place // of the long ranking's items that the short one lacks
	for _, item := range x.long.items {
		at := x.long.in[item]
		if other, ok := x.short.in[item]; ok {
			overlaps.add(x.ties, other, at)
		} else {
			alone = append(alone, at)
		}
	}
	seen := overlaps.settle()
	sizeShort, sizeLong := x.sizes(x.short, l), x.sizes(x.long, l)
	agreement := func(overlap float64, d int) float64 {
		switch x.ties {
		case TiesEqual:
			return 2 * overlap / (sizeShort[d] + sizeLong[d])
		case TiesCorrected:
			return overlap / math.Sqrt(sizeShort[d]) / math.Sqrt(sizeLong[d])
		}
		return overlap / float64(d)
	}
	var ext, least, most float64
	var known float64 // the agreement at the short ranking's end
	weight := 1.0
	for d := 1; d <= l; d++ {
		weight *= p
		a := agreement(seen[d], d)
		if d <= s {
			known = a
			ext, least, most = ext+weight*a, least+weight*a, most+weight*a
			continue
		}
		mean, best := x.unseen(alone, d)
		rest := float64(d - s)
		ext += weight * agreement(seen[d]+rest*known*mean, d)
		least += weight * a
		most += weight * agreement(seen[d]+best, d)
	}
	ends := float64(l)
	ext += (seen[l] + float64(l-s)*known) / ends * weight * p / (1 - p)
	least += seen[l] * logTail(p, l)
	// At most, every further rank brings two matches, until all known items are matched.
	all := l + s - int(math.Round(seen[l]))
	for d := l + 1; d <= all; d++ {
		weight *= p
		most += weight * float64(2*d-all) / float64(d)
	}
	most += weight * p / (1 - p)
	scale := (1 - p) / p
	return RBO{Ext: scale * ext, Min: scale * least, Max: scale * most}
}

// sizes returns, by depth, the sum of the squared contributions of a ranking's items, by
// which agreement divides; for TiesEqual that is how many items belong to the depth.
// Beyond its end a ranking counts as having an untied item at each rank.
func (x prefixes[T]) sizes(r ranked[T], depth int) []float64 {
	size := newSums(depth)
	for _, item := range r.items {
		size.add(x.ties, r.in[item], r.in[item])
	}
	for d := len(r.items) + 1; d <= depth; d++ {
		size.whole[d]++
	}
	return size.settle()
}

// unseen returns what the items that only the long ranking has, alone, contribute at
// depth d, beyond the end of the short one. mean is the mean over those whose places have
// begun. best is the sum that they can contribute at most, if the short ranking goes on
// with the first of them, one a rank.
func (x prefixes[T]) unseen(alone []place, d int) (mean, best float64) {
	var begun float64
	for i, at := range alone {
		c := x.ties.contribution(at, d)
		if c == 0 {
			break // they are in rank order
		}
		begun++
		mean += c
		if i < d-len(x.short.items) {
			best += c
		}
	}
	return mean / begun, best
}

// logTail returns the sum of p^d/d over all depths d beyond l.
func logTail(p float64, l int) float64 {
	sum, weight := -math.Log1p(-p), 1.0
	for d := 1; d <= l; d++ {
		weight *= p
		sum -= weight / float64(d)
	}
	return max(0, sum)
}
