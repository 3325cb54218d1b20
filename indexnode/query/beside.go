package query

import (
	"context"

	"github.com/millrace/millrace/relevance"
)

// Beside ranks the candidates of a question again, by each model of j on its own. Each pass
// gathers and filters a row once, and computes what the models have in common once. Call
// it after Scan; it may be called again with other models. items has the ranked items of
// each model, in j's order; nil with an error. They are valid as long as those of the query.
func (q *Query) Beside(ctx context.Context, j *relevance.Joint) (items [][]Item, err error) {
	p := besidePass{q: q, joint: j, plans: make([]*besidePlan, len(q.plans))}
	q.scoring, q.besideSpent = false, spent{watcher: q.besideSpent.watcher} // what Scan or an earlier call spent does not count for these models
	done := false
	defer func() {
		if !done { // an error or a panic: the queries are in an unknown state, so they are dropped
			q.beside, q.ranked = nil, 0
		}
	}()
	ranks := q.rankers(j.Models())
	p.open = append(p.open, ranks...)
	for len(p.live()) > 0 {
		if err := p.run(ctx); err != nil {
			return nil, err
		}
	}
	for _, r := range ranks {
		items = append(items, r.items)
	}
	done = true
	return items, nil
}

// rankers returns a query for each model, to rank the segments of q. These queries share q's
// segments and plans, and have a top and items of their own.
func (q *Query) rankers(models []*relevance.Model) []*Query {
	before := q.ranked // the items of q.beside[:before] are still in use
	q.ranked += len(models)
	for len(q.beside) < q.ranked {
		q.beside = append(q.beside, newQuery())
	}
	for _, r := range q.beside[q.ranked:] {
		r.measures = nil
	}
	spec := q.spec
	spec.Explain, spec.Features, spec.Shadow, spec.ShadowErr = false, false, nil, nil
	for i, r := range q.beside[before:q.ranked] {
		r.objects = nil // it may still be the map of another query
		r.begin(spec)
		r.measures, r.lacking, r.looked = models[i], nil, 0
		r.asked, r.places, r.plans, r.objects = q.asked, q.places, q.plans, q.objects
	}
	return q.beside[before:q.ranked]
}

// besidePass is the state of one call of Beside, which may pass over the segments several
// times.
type besidePass struct {
	q      *Query
	joint  *relevance.Joint
	plans  []*besidePlan // by the index of the query's plan; nil until it is needed
	open   []*Query      // by model: the query that ranks; nil once it has its items
	out    [][]float64   // by model: the scores of a batch
	piece  [][]float64   // by model: the part of out that is scored now
	scored int64         // rows that this pass has scored
}

// besidePlan is a plan of the query with a scorer of all models.
type besidePlan struct {
	*plan
	scorer *relevance.JointScorer // it hides plan.scorer, which is of the question's model
	batch  batch
}

// live returns the queries of open that have no items yet.
func (p *besidePass) live() (all []*Query) {
	for _, r := range p.open {
		if r != nil {
			all = append(all, r)
		}
	}
	return all
}

// run scans all segments once for the open queries, and ranks. A query whose top has kept
// too few candidates stays open, and keeps more in the next pass.
func (p *besidePass) run(ctx context.Context) error {
	p.scored = 0
	for i := range p.q.places {
		if err := p.gather(ctx, int32(i)); err != nil {
			return err
		}
	}
	for _, pl := range p.plans {
		if pl != nil {
			if err := p.scan(ctx, pl); err != nil {
				return err
			}
		}
	}
	for i, r := range p.open {
		if r == nil {
			continue
		}
		r.stages.Scored = p.scored
		if r.rank() {
			p.open[i] = nil
			continue
		}
		r.unrank()
		r.top.keep(moreTimes * r.top.size)
	}
	return nil
}

// gather adds the rows of the i-th segment to the batch of its plan, and scans the batch
// whenever it is full.
func (p *besidePass) gather(ctx context.Context, i int32) error {
	s := p.q.segment(i)
	pl, err := p.plan(s.plan)
	if err != nil {
		return err
	}
	for lo := s.lo; lo < s.hi; {
		if pl.batch.filled(s.features) {
			if err := p.scan(ctx, pl); err != nil {
				return err
			}
		}
		n, err := p.q.add(pl.plan, &pl.batch, i, &s, lo, s.hi)
		if err != nil {
			return err
		}
		lo += n
	}
	return nil
}

// plan returns the besidePlan of the query's i-th plan, and makes it if there is none.
func (p *besidePass) plan(i int32) (*besidePlan, error) {
	if p.plans[i] != nil {
		return p.plans[i], nil
	}
	pl, s := &besidePlan{plan: p.q.plans[i]}, &p.q.spec
	var err error
	if pl.scorer, err = p.joint.Bind(pl.rows, pl.entity, s.Viewer, s.AsOf); err != nil {
		return nil, err
	}
	b := &pl.batch
	b.full = batchRows
	b.columns, b.entity = pl.scorer.Reads(append(b.columns, pl.time))
	b.pieces.bind(pl.scorer.Readings(), p.joint.Models()...)
	b.reads(pl.plan, pl.scorer.ObjectLayout())
	p.plans[i] = pl
	return pl, nil
}

// scan filters and scores the rows of a plan's batch, offers them to the open queries, and
// empties the batch.
func (p *besidePass) scan(ctx context.Context, pl *besidePlan) error {
	b := &pl.batch
	if b.Len() == 0 {
		return nil
	}
	defer b.clear()
	if err := p.q.watch(ctx, b.Len()); err != nil {
		return err
	}
	rows, features := b.Slab(), b.widened()
	sel, err := p.q.filter(ctx, pl.plan, rows, features)
	if err != nil || len(sel) == 0 {
		return err
	}
	p.scored += int64(len(sel))
	for len(p.out) < len(p.open) {
		p.out = append(p.out, make([]float64, batchRows))
	}
	for i := range p.out {
		p.out[i] = p.out[i][:len(sel)]
	}
	of := slabs{rows: rows, entity: features}
	if b.objects != nil {
		of.objects = b.objects.Slab()
		pl.scorer.SetObjects(of.objects)
	}
	if err := p.q.pieces(ctx, &p.q.besideSpent, &b.pieces, of, sel, func(lo, hi int) {
		p.piece = p.piece[:0]
		for _, out := range p.out {
			p.piece = append(p.piece, out[lo:hi])
		}
		pl.scorer.Score(rows, sel[lo:hi], features, p.piece)
	}); err != nil {
		return err
	}
	for i, r := range p.open {
		if r != nil {
			r.take(b.spans, sel, rows.Column(pl.time), p.out[i])
		}
	}
	return nil
}
