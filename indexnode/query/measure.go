package query

import (
	"time"

	"github.com/millrace/millrace/relevance"
)

// measuredItems is how many items of a ranking are checked for features that they lack.
// Each check evaluates the model once more. A few items are enough, since most answers are
// measured.
const measuredItems = 4

// Measured is what was measured while a model ranked.
type Measured struct {
	Took   time.Duration // how long scoring rows took: CPU time or wall time, see [Watcher]
	Scored int64         // candidates, with those that bounds left out
	Finite bool          // at least one candidate has a score that is a finite number

	Lacking map[string]int64 // by feature, how many of the checked items have no value; nil unless Spec.Measure
	Looked  int              // how many items were checked
}

// Measured returns what was measured while the question's model ranked.
func (q *Query) Measured() Measured {
	return q.measured(q.spent.time)
}

// MeasuredBeside returns what was measured of each model of j, in j's order. j must be that
// of the last call of [Query.Beside]. The time that all models took together is divided
// among them by j.Shares.
func (q *Query) MeasuredBeside(j *relevance.Joint) (all []Measured) {
	upTo, charged := 0.0, time.Duration(0)
	shares := j.Shares()
	for i, r := range q.beside[q.ranked-len(shares) : q.ranked] {
		upTo += shares[i]
		took := time.Duration(float64(q.besideSpent.time) * upTo)
		if i == len(shares)-1 {
			took = q.besideSpent.time // so that rounding loses nothing
		}
		all = append(all, r.measured(took-charged))
		charged = took
	}
	return all
}

// measured returns what was measured of a ranking. took is how long its scoring took. Bounds
// leave rows out only once a score above -Inf is known, which counts as a finite one.
func (q *Query) measured(took time.Duration) Measured {
	return Measured{
		Took: took, Scored: q.stages.Scored, Finite: q.finite || q.unscored > 0,
		Lacking: q.lacking, Looked: q.looked,
	}
}

// measure counts which features an item lacks. It does so for the first [measuredItems]
// items of a ranking.
func (q *Query) measure(s segment, row int) {
	if q.looked >= measuredItems {
		return
	}
	w, p := s.widen(row, row+1), q.plans[s.plan]
	scorer := p.scorer
	if q.measures != nil { // this query ranks by another model than its plans': see Beside
		var err error
		if scorer, err = q.measures.Bind(p.rows, p.entity, q.spec.Viewer, q.spec.AsOf); err != nil {
			return // scoring met the same error, and reported it
		}
	}
	if q.objectsOf(scorer, &p.columns, w) != nil {
		return // scoring reported this error as well
	}
	q.looked++
	if q.lacking == nil {
		q.lacking = map[string]int64{}
	}
	e, _ := scorer.Features(w.slab, 0, w.features)
	for _, f := range e.Features {
		if x, is := f.Value.(float64); is && x != x || f.Value == "" {
			q.lacking[f.Name]++
		} else if _, known := q.lacking[f.Name]; !known {
			q.lacking[f.Name] = 0
		}
	}
}
