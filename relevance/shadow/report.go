package shadow

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"github.com/millrace/millrace/internal/stats"
)

// Quantiles are the quantiles of scores that a report has.
var Quantiles = []float64{0.05, 0.25, 0.5, 0.75, 0.95}

// scoreDigits is how many digits a quantile of scores has. More would mean nothing, since a
// quantile is only known to within [stats.QuantileError].
const scoreDigits = 4

// topAuthors is how many authors a report names: those whose shares differ most.
const topAuthors = 20

// Report is how the rankings of one shadow differ from those served. Overlaps, RBO, Tau and
// AuthorShift are means over the answers.
type Report struct {
	Pair
	Answers     int64     `json:"answers"`          // how many were compared
	Failed      int64     `json:"failed"`           // how many other answers the shadow failed to rank
	Overlap10   float64   `json:"overlap_10"`       // the share of the first ten items that are in both rankings
	Overlap     float64   `json:"overlap"`          // the share of all items that are in both
	RBO         float64   `json:"rbo"`              // rank-biased overlap: see [stats.RankBiasedOverlap]
	Tau         *float64  `json:"tau"`              // Kendall's, of items in both; nil: no answer has two items that both rankings order
	AuthorShift float64   `json:"author_shift"`     // the share of an answer's items that would be of other authors
	Scores      []Score   `json:"scores"`           // one for each of Quantiles
	Types       []Type    `json:"types"`            // sorted by name
	Authors     []Author  `json:"authors"`          // whose shares differ most
	ServedCost  Cost      `json:"served_cost"`      // of the model that ranked the answers
	ShadowCost  Cost      `json:"shadow_cost"`      // of the shadow
	Lacking     []Feature `json:"features_missing"` // the features of either model, those that most items lack first
}

// Score is a quantile of scores, within 1 % of its value, rounded to 4 digits. A field is nil
// if there are no finite scores for it.
type Score struct {
	Quantile float64  `json:"quantile"`
	Served   *float64 `json:"served"` // the scores of the items served, by the model that ranked them
	Shadow   *float64 `json:"shadow"` // the scores of the shadow's items, by the shadow
	// Shift is a quantile of differences: for each item served, the shadow's score less
	// that of its model.
	Shift *float64 `json:"shift"`
}

// Type is the share of items that have one content type, from 0 to 1.
type Type struct {
	Type   string  `json:"type"`
	Served float64 `json:"served"`
	Shadow float64 `json:"shadow"`
}

// Cost is what it costs to score a candidate. The zero Cost is not known.
type Cost struct {
	Nanos      float64 `json:"nanoseconds"` // the mean time to score one candidate
	Candidates int64   `json:"candidates"`  // how many were measured
}

// Feature is the share of items that lack a feature, from 0 to 1.
type Feature struct {
	Feature string   `json:"feature"` // the feature's name
	Served  *float64 `json:"served"`  // the share of items served; nil: no answer says that their model has the feature, or no item was checked
	Shadow  *float64 `json:"shadow"`  // the same share of the shadow's items
}

// Reports returns a report of each pair, sorted by feed, model, shadow and version.
func (t *Tally) Reports() []Report {
	all := make([]Report, 0, len(t.pairs))
	for _, p := range slices.SortedFunc(maps.Keys(t.pairs), Pair.compare) {
		all = append(all, t.pairs[p].report(p))
	}
	return all
}

// Beyond returns how many rankings are in no report: those of pairs for which there was no
// room, and those of pairs that were forgotten.
func (t *Tally) Beyond() int64 { return t.beyond }

// report returns the report of the pair p. t has the counts of p.
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

// features returns the shares of items that lack each feature, the largest first.
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

// quantile returns a quantile, rounded to scoreDigits; nil if there are no values.
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
