package shadow

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/stats"
)

// Pair is a model that ranks a feed, and a version of a model that ranks it as a shadow.
type Pair struct {
	Feed    string `json:"feed"`
	Model   string `json:"model"` // the model's name; its versions count together
	Shadow  string `json:"shadow"`
	Version string `json:"version"` // the version of the shadow
}

func (p Pair) compare(q Pair) int {
	return cmp.Or(cmp.Compare(p.Feed, q.Feed), cmp.Compare(p.Model, q.Model), cmp.Compare(p.Shadow, q.Shadow), cmp.Compare(p.Version, q.Version))
}

// The bounds of a Tally.
const (
	maxPairs    = 200                      // how many pairs are counted; each has counts of up to a thousand authors
	silentFor   = millrace.Time(3_600_000) // a pair without answers for an hour, in milliseconds, makes room for another
	maxTypes    = 100                      // how many types of a pair's items are counted by name; later ones are counted as OtherTypes
	maxFeatures = 500                      // how many features of a model of a pair are counted; later ones are not
	// OtherTypes stands for all types beyond the first maxTypes.
	OtherTypes = "(others)"
)

// Tally counts how shadows differ, by pair. The zero value is empty. It is for
// one goroutine at a time.
type Tally struct {
	pairs  map[Pair]*tally
	beyond int64 // rankings that are in no report: see Beyond
}

// tally is the counts of one pair. Arrays of two have the side of the model that served,
// then that of the shadow.
type tally struct {
	last                    millrace.Time // the time of its newest answer
	answers, failed         int64         // see Report.Answers and Report.Failed
	overlap10, overlap, rbo stats.Mean
	tau, authorShift        stats.Mean
	served, shadow, shift   stats.Quantiles      // of the scores that Score describes
	types                   map[string]*[2]int64 // how many items there are of each type
	authors                 authors
	nanos, scored           [2]int64            // how long scoring took, and how many candidates were scored
	looked                  [2]int64            // how many items were checked for features that they lack
	lacking                 [2]map[string]int64 // by feature, how many of the checked items lack it
}

// Add counts an answer for each shadow that ranked it or failed to.
func (t *Tally) Add(r *exposure.Record) {
	if len(r.Models) == 0 {
		return
	}
	for i := range r.ShadowRankings {
		if of := t.of(r, &r.Shadows[i]); of != nil {
			of.add(r, i)
		}
	}
	failed := r.Failed()
	for i := range failed {
		if of := t.of(r, &failed[i]); of != nil {
			of.failed++
		}
	}
}

// of returns the tally of the answer's model and a shadow. It returns nil, and counts the
// ranking in beyond, if there is no room for the pair.
func (t *Tally) of(r *exposure.Record, shadow *exposure.Model) *tally {
	pair := Pair{r.Feed, r.Models[0].Name, shadow.Name, shadow.Version}
	of := t.pairs[pair]
	if of != nil {
		of.last = max(of.last, r.Time)
		return of
	}
	if len(t.pairs) >= maxPairs && !t.makeRoom(r.Time) {
		t.beyond++
		return nil
	}
	if t.pairs == nil {
		t.pairs = map[Pair]*tally{}
	}
	of = &tally{last: r.Time, types: map[string]*[2]int64{}, lacking: [2]map[string]int64{{}, {}}}
	t.pairs[pair] = of
	return of
}

// Forget removes the pairs without an answer since a time: the shadow does not rank any
// more, or has another version now.
func (t *Tally) Forget(since millrace.Time) {
	for p, of := range t.pairs {
		if of.last < since {
			t.forget(p)
		}
	}
}

// forget removes a pair, and counts its rankings in beyond.
func (t *Tally) forget(p Pair) {
	t.beyond += t.pairs[p].answers + t.pairs[p].failed
	delete(t.pairs, p)
}

// makeRoom removes the pair whose newest answer is the oldest, if that answer is at least
// silentFor (an hour) older than now. It reports whether it removed a pair. It is needed
// since each version of a shadow is a pair of its own, and a broker may run longer than
// many of them. Pairs that still rank are not removed: else all would replace each other,
// and no report would mean anything.
func (t *Tally) makeRoom(now millrace.Time) bool {
	var oldest Pair
	for p, of := range t.pairs {
		if was := t.pairs[oldest]; was == nil || of.last < was.last {
			oldest = p
		}
	}
	if now-t.pairs[oldest].last < silentFor {
		return false
	}
	t.forget(oldest)
	return true
}

// add counts the i-th shadow ranking of an answer.
func (t *tally) add(r *exposure.Record, i int) {
	x := &r.ShadowRankings[i]
	t.answers++
	t.overlap10.Add(x.Overlap10)
	t.overlap.Add(x.Overlap)
	t.rbo.Add(x.RBO)
	if !math.IsNaN(x.Tau) {
		t.tau.Add(x.Tau)
	}
	t.nanos[0], t.scored[0] = t.nanos[0]+x.ServedNanos, t.scored[0]+x.ServedScored
	t.nanos[1], t.scored[1] = t.nanos[1]+x.Nanos, t.scored[1]+x.Scored
	t.lack(0, r.Looked, r.Lacking)
	t.lack(1, x.Looked, x.Lacking)
	shares := map[string]*[2]int64{}
	count := func(entity, typ string, side int) {
		t.authors.add(entity, side)
		t.ofType(typ)[side]++
		if shares[entity] == nil {
			shares[entity] = &[2]int64{}
		}
		shares[entity][side]++
	}
	for k := range r.Items {
		it := &r.Items[k]
		count(it.Entity, it.Type, 0)
		t.served.Add(it.Score)
		if len(it.Shadows) > i {
			t.shift.Add(it.Shadows[i] - it.Score)
		}
	}
	for k := range x.Items {
		it := &x.Items[k]
		count(it.Entity, it.Type, 1)
		t.shadow.Add(it.Score)
	}
	if len(r.Items) > 0 && len(x.Items) > 0 {
		t.authorShift.Add(apart(shares, int64(len(r.Items)), int64(len(x.Items))))
	}
}

// apart returns the share of the items that would be of other authors, from 0 to 1: half the
// sum of the differences of the authors' shares. of has the items of each author on both
// sides, and served and shadow are their sums.
func apart(of map[string]*[2]int64, served, shadow int64) (sum float64) {
	for _, name := range slices.Sorted(maps.Keys(of)) {
		n := of[name]
		sum += math.Abs(part(n[1], shadow)-part(n[0], served)) / 2
	}
	return sum
}

// lack counts items of a side that were checked, and the features that they lack.
func (t *tally) lack(side, looked int, lacking []exposure.Lacked) {
	t.looked[side] += int64(looked)
	for _, l := range lacking {
		if _, known := t.lacking[side][l.Feature]; known || len(t.lacking[side]) < maxFeatures {
			t.lacking[side][l.Feature] += int64(l.Items)
		}
	}
}

// ofType returns the counts of a type's items, or those of OtherTypes.
func (t *tally) ofType(name string) *[2]int64 {
	if t.types[name] == nil {
		if len(t.types) >= maxTypes {
			name = OtherTypes
		}
		if t.types[name] == nil {
			t.types[name] = &[2]int64{}
		}
	}
	return t.types[name]
}
