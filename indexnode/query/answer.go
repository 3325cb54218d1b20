package query

import (
	"fmt"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
)

// Item is one ranked candidate. Its strings and its body share the memory of
// the timelines, or of the query, and hold as long as both.
type Item struct {
	millrace.Rank
	Object millrace.Object
	Schema millrace.Fingerprint
	Body   []byte
	Also   []Item                 // further candidates of the object, without bodies
	Why    *relevance.Explanation // nil unless asked for
	Shadow Shadow

	Features []relevance.Explained // nil unless asked for; contributions may be missing
}

// Answer is what a node contributes. It holds until [Query.Release], and as
// long as the timelines.
type Answer struct {
	Items     []Item
	Stages    Stages
	Execution string // of the model: generated or interpreted
}

// maxAlso is how many further candidates an item names.
const maxAlso = 3

// Answer returns what was scanned, ranked.
func (q *Query) Answer() Answer {
	a := Answer{Items: q.items, Stages: q.stages}
	for _, p := range q.plans {
		a.Execution = p.scorer.Execution()
	}
	return a
}

// rank takes the best candidates, best first, until it has the items wanted.
// It reports whether it has them, or there are no more candidates.
func (q *Query) rank() bool {
	best := q.sorted()
	looked := 0
	for looked < len(best) && len(q.items) < q.spec.Limit {
		q.admit(best[looked])
		looked++
	}
	if len(q.items) < q.spec.Limit && int64(len(best)) < q.stages.Scored {
		return false
	}
	q.top.learn(&q.spec, looked)
	return true
}

// unrank forgets the items, to rank more candidates.
func (q *Query) unrank() {
	q.dropItems()
	clear(q.perEntity)
	clear(q.byObject)
	q.lacking, q.looked = nil, 0
	q.stages.Capped = 0
}

// dropItems forgets the items but for their memory.
func (q *Query) dropItems() {
	for i := range q.items {
		it := &q.items[i]
		clear(it.Also)
		*it = Item{Also: it.Also[:0]}
	}
	q.items = q.items[:0]
}

// excluded stands in byObject for an object that an earlier page served.
const excluded = -1

// admit makes an item of the next best candidate, or a further one of an
// object, unless the cap or an earlier page forbids it.
func (q *Query) admit(c candidate) {
	s := q.segment(c.segment)
	at := &q.plans[s.plan].columns
	if q.spec.Cap > 0 {
		n := q.perEntity[s.timeline.Entity] + 1
		if n > q.spec.Cap {
			q.stages.Capped++
			return
		}
		q.perEntity[s.timeline.Entity] = n
	}
	id := q.id(c)
	object := millrace.Object(id)
	if o := at.object; o >= 0 {
		if named := s.rows.StringAt(o, int(c.row)); named != "" {
			object = millrace.Object(named)
		}
	}
	rank := millrace.Rank{Score: c.score, Time: c.time, ID: id, Timeline: s.timeline}
	schema := millrace.Fingerprint(s.rows.Word(at.schema, int(c.row)))
	if q.spec.DistinctObjects {
		if i, seen := q.byObject[object]; seen {
			if i != excluded && len(q.items[i].Also) < maxAlso {
				q.items[i].Also = append(q.items[i].Also, Item{Rank: rank, Object: object, Schema: schema})
			}
			return
		}
		q.byObject[object] = len(q.items)
	}
	if len(q.spec.Exclude) > 0 {
		if _, served := q.spec.Exclude[millrace.ServedHash(q.spec.ServedKey, q.spec.DistinctObjects, object, s.timeline, id)]; served {
			if q.spec.DistinctObjects {
				q.byObject[object] = excluded
			}
			return
		}
	}
	it := q.nextItem()
	it.Rank, it.Object, it.Schema = rank, object, schema
	it.Body = s.rows.BytesAt(at.body, int(c.row))
	if q.spec.Measure {
		q.measure(s, int(c.row))
	}
	if q.spec.Explain || q.spec.Features || q.spec.Shadow != nil {
		q.account(it, s, int(c.row))
	}
}

// account adds to an item what it was scored by.
func (q *Query) account(it *Item, s segment, row int) {
	w, p := s.widen(row, row+1), q.plans[s.plan]
	if err := q.objectsOf(p.scorer, &p.columns, w); err != nil {
		panic(err) // the scan has joined the same
	}
	q.scoring = true
	if q.spec.Features {
		e, _ := p.scorer.Features(w.slab, 0, w.features)
		it.Features = e.Features
	}
	if q.spec.Explain {
		why := p.scorer.Explain(w.slab, 0, w.features)
		it.Why = &why
	}
	q.scoring = false
	if q.spec.Explain || q.spec.Shadow != nil {
		it.Shadow = q.shadow(p, w)
	}
}

// nextItem returns a new last item, with the memory of one of an earlier query.
func (q *Query) nextItem() *Item {
	n := len(q.items)
	if n == cap(q.items) {
		q.items = append(q.items, Item{})
	} else {
		q.items = q.items[:n+1]
	}
	return &q.items[n]
}

// Shadow is what models that rank nothing say of an item.
type Shadow struct {
	Scores []float64 // by model of Spec.Shadow; the first is the item's own
	Err    error     // why there are none
}

// shadow scores a row by the models of Spec.Shadow.
func (q *Query) shadow(p *plan, w *widened) (s Shadow) {
	defer func() { // which is the shadow's own, and nothing of the answer's
		if broken := recover(); broken != nil {
			p.shadow, s = nil, Shadow{Err: fmt.Errorf("a model that ranks nothing panicked: %v", broken)}
		}
	}()
	if q.spec.Shadow == nil {
		return Shadow{Err: q.spec.ShadowErr}
	}
	if p.shadow == nil {
		entity := (*column.Layout)(nil)
		if w.features != nil {
			entity = w.features.Layout()
		}
		s, err := q.spec.Shadow.Bind(w.slab.Layout(), entity, q.spec.Viewer, q.spec.AsOf)
		if err != nil {
			return Shadow{Err: err}
		}
		p.shadow = s
	}
	if err := q.objectsOf(p.shadow, &p.columns, w); err != nil {
		return Shadow{Err: err}
	}
	out := make([][]float64, len(q.spec.Shadow.Models()))
	for i := range out {
		out[i] = make([]float64, 1)
	}
	p.shadow.Score(w.slab, []int32{0}, w.features, out)
	scores := make([]float64, len(out))
	for i, s := range out {
		scores[i] = s[0]
	}
	return Shadow{Scores: scores}
}
