package query

import (
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/filter"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/schemas"
)

// plan is a spec bound to one pair of layouts.
type plan struct {
	rows, entity *column.Layout
	filter       *filter.Bound
	scorer       *relevance.Scorer
	folder       *relevance.Scorer // of the record-only part; nil until it is needed
	unfoldable   bool              // the model has no such part
	foldColumns  []int             // that folder reads
	full, folded batch             // of rows being gathered
	columns
}

// columns tells where a layout keeps what ranks and identifies a row.
type columns struct {
	id, time, object, body, schema int // object is -1 when the schema has none
}

func columnsOf(rows *column.Layout) columns {
	return columns{
		id: rows.Role("id"), time: rows.Time(), object: rows.Role("object"),
		body: rows.Index(schemas.BodyColumn), schema: rows.Index(schemas.SchemaColumn),
	}
}

// plan returns the place in plans of that for rows of one layout with features
// of another, or none.
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
	p := q.newPlan()
	p.rows, p.entity, p.columns = rows, entity, columnsOf(rows)
	var err error
	if q.spec.Filter != nil {
		if p.filter, err = q.spec.Filter.Bind(rows, entity, q.spec.Viewer, q.spec.AsOf); err != nil {
			return 0, err
		}
	}
	if p.scorer, err = q.spec.Model.Bind(rows, entity, q.spec.Viewer, q.spec.AsOf); err != nil {
		return 0, err
	}
	return int32(len(q.plans) - 1), nil
}

// newPlan returns a new last plan, with the memory of one of an earlier query.
func (q *Query) newPlan() *plan {
	n := len(q.plans)
	if n < cap(q.plans) && q.plans[:n+1][n] != nil {
		q.plans = q.plans[:n+1]
	} else {
		q.plans = append(q.plans, new(plan))
	}
	return q.plans[n]
}

// release lets go of all but memory.
func (p *plan) release() {
	p.full.clear()
	p.folded.clear()
	p.full.columns, p.folded.columns = p.full.columns[:0], p.folded.columns[:0]
	*p = plan{full: p.full, folded: p.folded, foldColumns: p.foldColumns[:0]}
}
