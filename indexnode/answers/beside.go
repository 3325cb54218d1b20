package answers

import (
	"context"
	"fmt"
	"slices"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/panics"
	"github.com/millrace/millrace/indexnode/query"
	"github.com/millrace/millrace/internal/rpcerr"
	"github.com/millrace/millrace/relevance"
)

// otherRanking is the ranking of a question's records by a further model, beside the one that
// makes the answer. If it fails, the answer says so, and the question does not fail.
type otherRanking struct {
	asked *nodev1.Model    // the model, as the request names it
	model *relevance.Model // nil: it is not here, and err says why
	items []query.Item     // valid as long as the items of the question's query
	alone bool             // its model scored alone, so Measured has the model's own time and not a share of the time of several
	cost  costWatch        // used while it ranks alone
	query.Measured
	err error // why there are no items
}

func (o *otherRanking) id() relevance.ID {
	return relevance.ID{Name: o.asked.GetName(), Version: o.asked.GetVersion(), Sum: o.asked.GetSum()}
}

// besideOf returns the models that are to rank beside the question's own. For a model that is
// not here, or that this node does not use any more since it failed (see condemner), err is
// set.
func (s *Server) besideOf(req *nodev1.QueryRequest) []otherRanking {
	if len(req.Beside) == 0 {
		return nil
	}
	all := make([]otherRanking, len(req.Beside))
	for i, m := range req.Beside {
		all[i].asked = m
		id := all[i].id()
		if all[i].model, all[i].err = s.models.Find(id); all[i].err != nil {
			continue
		}
		if why := s.condemned.why(id); why != "" {
			all[i].err = refusal(id, why)
		}
	}
	return all
}

// rankBeside ranks the records that q scanned by the other models of r, and adds their items
// to room. The models score together, which is faster but does not tell which of them fails,
// or how long each takes. So each scores alone if scoring together failed, if one is suspected
// of taking too long, and in one of aloneOf questions.
func (s *Server) rankBeside(ctx context.Context, r *question, q *query.Query, room *itemRoom) {
	var here []*otherRanking
	for i := range r.beside {
		if o := &r.beside[i]; o.err == nil {
			here = append(here, o)
		}
	}
	if len(here) == 0 {
		return
	}
	alone := len(here) == 1 || s.condemned.joint.Add(1)%aloneOf == 1
	if slices.ContainsFunc(here, func(o *otherRanking) bool { return s.condemned.suspect(o.model) }) {
		alone = true
	}
	if !alone {
		err := s.rankTogether(ctx, q, here)
		s.panics.Tell(err) // which model panicked shows below, where each scores alone
		if alone = err != nil && ctx.Err() == nil; err != nil && !alone {
			for _, o := range here {
				o.err = err
			}
		}
	}
	for i := 0; alone && i < len(here); i++ {
		o := here[i]
		q.WatchBeside(o.cost.begin(s.condemned, o.id(), o.model, true))
		o.alone, o.err = true, s.rankTogether(ctx, q, here[i:i+1])
		s.blameBeside(q, o)
	}
	q.WatchBeside(nil)
	for _, o := range here {
		room.measure(o.items)
	}
}

// aloneOf says how often the other models score each alone although nothing is wrong: in one of
// aloneOf questions.
const aloneOf = 16

// blameBeside logs a panic of a ranking that was made alone. It condemns the version of its
// model if the panic was in scoring.
func (s *Server) blameBeside(q *query.Query, o *otherRanking) {
	s.panics.Tell(o.err)
	if panics.In(o.err) && q.Scoring() {
		s.condemned.condemn(o.id(), causePanic, "it panicked on %s: %v", s.id, o.err)
	}
}

// rankTogether ranks by all models at once, and sets their items and what was measured. A
// panic is an error.
func (s *Server) rankTogether(ctx context.Context, q *query.Query, all []*otherRanking) (err error) {
	defer panics.Contain(&err)
	models := make([]*relevance.Model, len(all))
	for i, o := range all {
		models[i] = o.model
	}
	joint := s.models.Joined(models...)
	items, err := q.Beside(ctx, joint)
	if err != nil {
		return err
	}
	measured := q.MeasuredBeside(joint)
	for i, o := range all {
		o.items, o.Measured = items[i], measured[i]
	}
	return nil
}

// tellBeside adds the other rankings to an answer, with what was measured if measure is true.
func (s *Server) tellBeside(resp *nodev1.QueryResponse, all []otherRanking, room *itemRoom, measure bool) {
	for i := range all {
		b := &all[i]
		to := &nodev1.Ranking{Model: b.asked.GetName(), ModelVersion: b.asked.GetVersion(), ModelSum: b.asked.GetSum()}
		switch {
		case b.err == nil:
			to.ModelVersion = b.model.Version() // the request has no version of a built-in model
			to.Items = room.of(b.items)
			if measure {
				to.ScoringNs, to.Scored, to.Lacking, to.Looked = b.Took.Nanoseconds(), b.Scored, b.Lacking, int32(b.Looked)
			}
		case b.model == nil:
			to.Error, to.Absent = b.err.Error(), true
		case rpcerr.Refused(b.err):
			to.Error = b.err.Error()
		default:
			to.Error = fmt.Sprintf("it could not rank: %v", b.err)
		}
		resp.Beside = append(resp.Beside, to)
	}
}
