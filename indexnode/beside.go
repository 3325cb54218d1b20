package indexnode

import (
	"context"
	"fmt"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/query"
	"github.com/millrace/millrace/internal/rpcerr"
	"github.com/millrace/millrace/relevance"
)

// otherRanking ranks what a question resolved by another model too. What goes wrong
// with it is its own, and none of the answer's.
type otherRanking struct {
	asked *nodev1.Model
	model *relevance.Model // nil: err says why it is not here
	query *query.Query     // nil until it has ranked
	items []query.Item
	err   error
}

// besideOf finds the models that rank beside the question's.
func (n *Node) besideOf(req *nodev1.QueryRequest) []otherRanking {
	if len(req.Beside) == 0 {
		return nil
	}
	all := make([]otherRanking, len(req.Beside))
	for i, m := range req.Beside {
		all[i].asked = m
		all[i].model, all[i].err = n.models.Find(relevance.ID{Name: m.GetName(), Version: m.GetVersion(), Sum: m.GetSum()})
	}
	return all
}

// rankBeside ranks what r resolved by its other models, and measures their items.
func (n *Node) rankBeside(ctx context.Context, r *resolution, room *itemRoom) {
	for i := range r.beside {
		b := &r.beside[i]
		if b.err != nil {
			continue
		}
		if b.err = b.rank(ctx, r); b.err != nil {
			n.tellPanic(b.err)
			continue
		}
		room.measure(b.items)
	}
}

func (b *otherRanking) rank(ctx context.Context, r *resolution) (err error) {
	defer contain(&err)
	spec := *r.spec
	spec.Model, spec.Explain, spec.Shadow, spec.ShadowErr = b.model, false, nil, nil
	q := query.New(spec)
	r.add(q)
	if err := q.Scan(ctx); err != nil {
		q.Release()
		return err
	}
	b.query, b.items = q, q.Answer().Items
	return nil
}

// tellBeside puts the other rankings on the wire.
func (n *Node) tellBeside(resp *nodev1.QueryResponse, all []otherRanking, room *itemRoom) {
	for i := range all {
		b := &all[i]
		to := &nodev1.Ranking{Model: b.asked.GetName(), ModelVersion: b.asked.GetVersion(), ModelSum: b.asked.GetSum()}
		switch {
		case b.err == nil:
			to.ModelVersion = b.model.Version() // which the asker does not know of one that every binary has
			to.Items = room.of(b.items)
		case rpcerr.Refused(b.err):
			to.Error = b.err.Error()
		default:
			to.Error = fmt.Sprintf("it could not rank: %v", b.err)
		}
		resp.Beside = append(resp.Beside, to)
	}
}

// endBeside releases their queries, behind tellBeside.
func (r *resolution) endBeside() {
	for i := range r.beside {
		if q := r.beside[i].query; q != nil {
			q.Release()
		}
	}
	r.beside = nil
}
