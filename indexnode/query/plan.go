package query

import (
	"slices"

	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/filter"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/schemas"
)

// plan is a filter and a model bound to one pair of layouts and to a question.
type plan struct {
	planKey
	filter       *filter.Bound          // nil: every candidate stays
	scorer       *relevance.Scorer      // computes the model's scores, whole or with folded numbers
	shadow       *relevance.JointScorer // scores rows by the models of Spec.Shadow; nil until it is needed
	modelID      cache.ModelID          // the id of planKey.model in the cache
	folder       folder                 // computes the numbers that are folded
	full, folded batch                  // the rows that are gathered, of the kinds whole and folded
	passed       batch                  // the gathered rows of the kind passed, which are only filtered and counted
	ceilings     ceilings               // bounds of the scores of the rows in folded
	columns

	filtered, kept int64 // rows that the filter saw and kept lately: see tally
}

// planKey is what must be equal for a later question to use a plan again.
type planKey struct {
	filter       *filter.Filter
	model        *relevance.Model
	rows, entity *column.Layout // of the rows, and of the features of their entity; entity is nil for entities without features
	counts       bool           // whether the filter counts what each of its clauses drops
}

// columns are the indexes of the columns of a layout that rank and identify a row.
type columns struct {
	id, time, object, body, schema int // object is -1 when the schema has none
}

// columnsOf returns the columns of a layout of records.
func columnsOf(rows *column.Layout) columns {
	return columns{
		id: rows.Role("id"), time: rows.Time(), object: rows.Role("object"),
		body: rows.Index(schemas.BodyColumn), schema: rows.Index(schemas.SchemaColumn),
	}
}

// plan returns the index in q.plans of the plan for rows of a layout and features of an
// entity, which may be none. It makes the plan if there is none yet.
func (q *Query) plan(rows *column.Layout, features column.Packed) (int32, error) {
	var entity *column.Layout
	if !features.None() {
		entity = features.Layout()
	}
	for i := range q.plans {
		if p := q.plans[i]; p.rows == rows && p.entity == entity {
			return int32(i), nil
		}
	}
	p := q.sparePlan(planKey{q.spec.Filter, q.spec.Model, rows, entity, q.spec.Explain})
	if err := p.bind(&q.spec); err != nil {
		return 0, err
	}
	if q.plans = append(q.plans, p); folding {
		q.model = p.modelID
	}
	return int32(len(q.plans) - 1), nil
}

// bind binds the plan to a question, again if it was bound to one before.
func (p *plan) bind(s *Spec) error {
	var err error
	p.ceilings.told = false // what the ceilings know is of the question before
	switch {
	case p.planKey.filter == nil:
	case p.filter == nil && p.counts:
		p.filter, err = s.Filter.BindCounting(p.rows, p.entity, s.Viewer, s.AsOf)
	case p.filter == nil:
		p.filter, err = s.Filter.Bind(p.rows, p.entity, s.Viewer, s.AsOf)
	default:
		err = p.filter.Rebind(s.Viewer, s.AsOf)
	}
	if err != nil {
		return err
	}
	if p.scorer == nil {
		p.scorer, err = s.Model.Bind(p.rows, p.entity, s.Viewer, s.AsOf)
	} else {
		err = p.scorer.Rebind(s.Viewer, s.AsOf)
	}
	return err
}

// maxSpare is how many plans a query keeps for later questions. A plan has memory for its
// batches, and holds its model.
const maxSpare = 8

// sparePlan returns a plan for a key: one of an earlier question if there is one, else a
// new one. If there are maxSpare plans already, the new one takes the memory of the plan
// that was not used for the longest time.
func (q *Query) sparePlan(k planKey) *plan {
	at := slices.IndexFunc(q.spare, func(p *plan) bool { return p.planKey == k })
	if at < 0 && len(q.spare) < maxSpare {
		return &plan{planKey: k, modelID: cache.IDOf(k.model), columns: columnsOf(k.rows)}
	}
	known := at >= 0
	at = max(at, 0)
	p := q.spare[at]
	q.spare = slices.Delete(q.spare, at, at+1)
	if !known {
		*p = plan{planKey: k, modelID: cache.IDOf(k.model), columns: columnsOf(k.rows), full: p.full, folded: p.folded, passed: p.passed}
		p.full.kind, p.folded.kind, p.passed.kind = unready, unready, unready
	}
	return p
}

// releasePlans puts the plans aside for the next question.
func (q *Query) releasePlans() {
	for _, p := range q.plans {
		p.full.end()
		p.folded.end()
		p.passed.end()
		p.folder.forget()
		if p.scorer != nil { // it is nil only in tests
			p.scorer.LetGo()
		}
		p.shadow = nil
		if q.spare = append(q.spare, p); len(q.spare) > maxSpare {
			q.spare = slices.Delete(q.spare, 0, 1)
		}
	}
	clear(q.plans)
	q.plans = q.plans[:0]
}
