package shadow

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"github.com/millrace/millrace/internal/stats"
)

// Quantiles are those of scores that a report has.
var Quantiles = []float64{0.05, 0.25, 0.5, 0.75, 0.95}

// scoreDigits are those of a quantile of scores: more would be noise ([stats.QuantileError]).
const scoreDigits = 4

// topAuthors is how many authors a report names.
const topAuthors = 20

// Report is how one shadow differs.
type Report struct {
	Pair
	Answers     int64     `json:"answers"`      // that were compared
	Failed      int64     `json:"failed"`       // answers beside these, that the shadow failed to rank
	Overlap10   float64   `json:"overlap_10"`   // part of the first ten items that are in both
	Overlap     float64   `json:"overlap"`      // and of all items
	RBO         float64   `json:"rbo"`          // rank-biased overlap: see [stats.RankBiasedOverlap]
	Tau         *float64  `json:"tau"`          // Kendall's, of items in both; nil: in no answer did both rankings order two of them
	AuthorShift float64   `json:"author_shift"` // mean part of an answer's items that would be of other authors
	Scores      []Score   `json:"scores"`
	Types       []Type    `json:"types"`
	Authors     []Author  `json:"authors"` // whose share moves most
	ServedCost  Cost      `json:"served_cost"`
	ShadowCost  Cost      `json:"shadow_cost"`
	Lacking     []Feature `json:"features_missing"` // by either model
}

// Score is a quantile of scores, within 1 % of its value, in as many digits as that is worth.
type Score struct {
	Quantile float64  `json:"quantile"`
	Served   *float64 `json:"served"` // of items served, by their model; nil: none is a finite number
	Shadow   *float64 `json:"shadow"` // of the shadow's items, by the shadow
	// Shift is of items served: what the shadow gives more than their model.
	Shift *float64 `json:"shift"`
}

// Type is the part of items that one content type has.
type Type struct {
	Type   string  `json:"type"`
	Served float64 `json:"served"`
	Shadow float64 `json:"shadow"`
}

// Cost is what a candidate costs to score, in nanoseconds; 0: not known.
type Cost struct {
	Nanos      float64 `json:"nanoseconds"`
	Candidates int64   `json:"candidates"`
}

// Feature is the part of items that lack a feature.
type Feature struct {
	Feature string   `json:"feature"`
	Served  *float64 `json:"served"` // nil: not known to be a feature of the model, or no item was looked at
	Shadow  *float64 `json:"shadow"`
}

// Reports returns a report of each pair, in their order.
func (t *Tally) Reports() []Report {
	all := make([]Report, 0, len(t.pairs))
	for _, p := range slices.SortedFunc(maps.Keys(t.pairs), Pair.compare) {
		all = append(all, t.pairs[p].report(p))
	}
	return all
}

// Beyond returns how many rankings are of pairs beyond those that are told
// apart, or that are no more.
func (t *Tally) Beyond() int64 { return t.beyond }

func (t *tally) report(p Pair) Report {
	r := Report{
		Pair: p, Answers: t.answers, Failed: t.failed, Overlap10: t.overlap10.Mean, Overlap: t.overlap.Mean, RBO: t.rbo.Mean, AuthorShift: t.authorShift.Mean,
		ServedCost: costOf(t.nanos[0], t.scored[0]), ShadowCost: costOf(t.nanos[1], t.scored[1]), Authors: t.authors.shift(topAuthors),
	}
	if tau := t.tau.Mean; t.tau.N > 0 {
		r.Tau = &tau
	}
	for _, part := range Quantiles {
		r.Scores = append(r.Scores, Score{part, quantile(t.served, part), quantile(t.shadow, part), quantile(t.shift, part)})
	}
	for _, name := range slices.Sorted(maps.Keys(t.types)) {
		n := t.types[name]
		r.Types = append(r.Types, Type{name, part(n[0], t.authors.items[0]), part(n[1], t.authors.items[1])})
	}
	r.Lacking = t.features()
	return r
}

// features returns the parts of items that lack features, the largest first.
func (t *tally) features() (all []Feature) {
	names := maps.Clone(t.lacking[0])
	maps.Copy(names, t.lacking[1])
	most := func(f Feature) float64 {
		n := 0.
		for _, x := range []*float64{f.Served, f.Shadow} {
			if x != nil {
				n = max(n, *x)
			}
		}
		return n
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		f := Feature{Feature: name}
		for side, to := range []**float64{&f.Served, &f.Shadow} {
			if n, has := t.lacking[side][name]; has && t.looked[side] > 0 {
				share := part(n, t.looked[side])
				*to = &share
			}
		}
		all = append(all, f)
	}
	slices.SortStableFunc(all, func(a, b Feature) int { return cmp.Compare(most(b), most(a)) })
	return all
}

func quantile(q stats.Quantiles, part float64) *float64 {
	if q.N() == 0 {
		return nil
	}
	x, _ := strconv.ParseFloat(strconv.FormatFloat(q.At(part)[0], 'g', scoreDigits, 64), 64) // never fails
	return &x
}

func costOf(nanos, scored int64) Cost {
	if scored == 0 {
		return Cost{}
	}
	return Cost{float64(nanos) / float64(scored), scored}
}
