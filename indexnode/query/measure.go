package query

import (
	"time"

	"github.com/millrace/millrace/relevance"
)

// measuredItems is how many items of a ranking are looked at for features that
// they lack. A few are enough, because most answers are measured, and each look evaluates
// the model anew.
const measuredItems = 4

// Measured is what is known of how a model ranked.
type Measured struct {
	Took   time.Duration // to score rows
	Scored int64         // candidates, what bounds left out included
	Finite bool          // one of them has a score that is a finite number

	Lacking map[string]int64 // items without a value, by feature, of those looked at; nil unless Spec.Measure
	Looked  int              // how many items were looked at
}

// Measured returns what is known of how the question's model ranked.
func (q *Query) Measured() Measured {
	return q.measured(q.spent.time)
}

// MeasuredBeside returns the same of each model of j, in j's order. j must be what ranked
// beside the question last. The time that all took together is divided by j.Shares.
func (q *Query) MeasuredBeside(j *relevance.Joint) (all []Measured) {
	upTo, charged := 0.0, time.Duration(0)
	shares := j.Shares()
	for i, r := range q.beside[q.ranked-len(shares) : q.ranked] {
		upTo += shares[i]
		took := time.Duration(float64(q.besideSpent.time) * upTo)
		if i == len(shares)-1 {
			took = q.besideSpent.time // whatever was rounded
		}
		all = append(all, r.measured(took-charged))
		charged = took
	}
	return all
}

// measured is what is known of a ranking, of which scoring took so much. Rows
// are left out only once a score above -Inf is known, so that is taken for a finite one.
func (q *Query) measured(took time.Duration) Measured {
	return Measured{
		Took: took, Scored: q.stages.Scored, Finite: q.finite || q.unscored > 0,
		Lacking: q.lacking, Looked: q.looked,
	}
}

// measure counts which features an item lacks, of the first ones of a ranking.
func (q *Query) measure(s segment, row int) {
	if q.looked >= measuredItems {
		return
	}
	w, p := s.widen(row, row+1), q.plans[s.plan]
	scorer := p.scorer
	if q.measures != nil { // it ranks by another model than the plan's
		var err error
		if scorer, err = q.measures.Bind(p.rows, p.entity, q.spec.Viewer, q.spec.AsOf); err != nil {
			return // scoring met the same error, and reported it
		}
	}
	if q.objectsOf(scorer, &p.columns, w) != nil {
		return // the same
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
