package query

import (
	"fmt"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
)

// Item is one ranked candidate. Its strings and its body share the memory of the timelines
// or of the query, and are valid as long as both are.
type Item struct {
	millrace.Rank
	Object millrace.Object        // what the record is about: the object that it names, or else its own id
	Schema millrace.Fingerprint   // the schema under which Body was written
	Body   []byte                 // the record's Avro body
	Also   []Item                 // further candidates of the object, without bodies
	Why    *relevance.Explanation // nil unless Spec.Explain
	Shadow Shadow                 // zero unless Spec.Explain or Spec.Shadow

	Features []relevance.Explained // nil unless Spec.Features; their contributions to the score may be missing
}

// Answer is what a node contributes to the answer of a question. It is valid until
// [Query.Release], and only as long as the timelines are.
type Answer struct {
	Items     []Item // best first, at most Spec.Limit
	Stages    Stages // how many candidates there were, by what became of them
	Execution string // how the model was computed: "generated" or "interpreted" code; "" if no plan was needed
}

// maxAlso is how many further candidates of its object an item names at most, as
// ARCHITECTURE.md says.
const maxAlso = 3

// Answer returns the ranked items of the last Scan.
func (q *Query) Answer() Answer {
	a := Answer{Items: q.items, Stages: q.stages}
	for _, p := range q.plans {
		a.Execution = p.scorer.Execution()
	}
	return a
}

// rank makes items of the candidates that top has kept, best first, until there are
// Spec.Limit items. It reports false if there are fewer, and top has dropped candidates that
// might still become items.
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

// unrank drops the items, so that the candidates can be ranked anew.
func (q *Query) unrank() {
	q.dropItems()
	clear(q.perEntity)
	clear(q.byObject)
	q.lacking, q.looked = nil, 0
	q.stages.Capped = 0
}

// dropItems drops the items but keeps their memory for reuse.
func (q *Query) dropItems() {
	for i := range q.items {
		it := &q.items[i]
		clear(it.Also)
		*it = Item{Also: it.Also[:0]}
	}
	q.items = q.items[:0]
}

// excluded is the value in byObject of an object that an earlier page served.
const excluded = -1

// admit takes the next best candidate. It makes an item of it, or adds it to Item.Also if
// its object has an item already. It drops the candidate if the cap or an earlier page
// says so.
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

// account adds to an item what the question asks for of its row: features, the
// explanation of its score, and scores by shadow models.
func (q *Query) account(it *Item, s segment, row int) {
	w, p := s.widen(row, row+1), q.plans[s.plan]
	if err := q.objectsOf(p.scorer, &p.columns, w); err != nil {
		panic(err) // the scan joined the same features without an error
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

// nextItem appends an item and returns it. It may reuse the memory of an item of an
// earlier query.
func (q *Query) nextItem() *Item {
	n := len(q.items)
	if n == cap(q.items) {
		q.items = append(q.items, Item{})
	} else {
		q.items = q.items[:n+1]
	}
	return &q.items[n]
}

// Shadow is an item's scores by shadow models: models that are compared with the one that
// ranks, and rank nothing themselves.
type Shadow struct {
	Scores []float64 // one for each model of Spec.Shadow; the first is the item's own score
	Err    error     // why there are no scores; nil also if none were asked for
}

// shadow scores a row by the models of Spec.Shadow.
func (q *Query) shadow(p *plan, w *widened) (s Shadow) {
	defer func() { // a panic of a shadow model must not fail the answer
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
