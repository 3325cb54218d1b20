package answers

import (
	"context"
	"math"
	"slices"
	"strings"
	"time"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/query"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/filter"
)

// examination finds out what became of one record in the timelines, of all types, of the
// entities that a question asks for. If the record was a candidate in a timeline, the query
// says what became of it; otherwise the store says why it was none.
type examination struct {
	node     *Server
	r        *question
	id       millrace.RecordID
	accounts []query.Account   // what the query says, for each timeline in which the record was a candidate
	found    []*nodev1.Finding // the result
	moved    bool              // the record has changed in the store since the query read it
}

// maxExamined bounds how many timelines are looked through for a record, each by a read of the
// store.
const maxExamined = 100_000

// maxExaminations is how many times a question is answered at most, until the record to
// examine does not change meanwhile. If it changes in the last try too, the caller gets
// errMoved.
const maxExaminations = 5

var errMoved error = &millrace.Error{Reason: millrace.ReasonUnavailable, Detail: "the record changes while it is examined", WayOut: "try again after a pause"}

// explain adds to an answer what the request asks for beside the items. It is called after
// q.Answer.
func (s *Server) explain(ctx context.Context, r *question, q *query.Query, req *nodev1.QueryRequest, resp *nodev1.QueryResponse) (err error) {
	if req.Examine != "" {
		x, err := s.examine(ctx, r, q, millrace.RecordID(req.Examine))
		switch {
		case err != nil:
			return err
		case x.moved:
			return errMoved
		}
		resp.Findings = x.found
	}
	if len(req.Above) > 0 {
		ranks := make([]millrace.Rank, len(req.Above))
		for i, it := range req.Above {
			ranks[i] = rankOf(it)
		}
		if resp.Above, err = q.Above(ctx, ranks); err != nil {
			return err
		}
	}
	if req.Explain {
		r.explain(resp)
		resp.Clauses = clauses(q, r.spec.Filter)
	}
	return nil
}

// explain adds how many timelines were read from the store and how long that took, and for
// each item whether it came from the cache of records (fat) or from the store.
func (q *question) explain(resp *nodev1.QueryResponse) {
	before := map[millrace.Timeline]millrace.Time{} // records of the timeline with earlier times came from the store
	for m := range q.Misses() {
		before[m.Key] = m.Before
		resp.Times.Misses++
		resp.Times.ReadMillis += millis(m.Took)
	}
	for _, it := range resp.Items {
		it.Explain.Cache = "fat"
		if rank := rankOf(it); rank.Time < before[rank.Timeline] {
			it.Explain.Cache = "store"
		}
	}
}

// examine returns what became of the record id in a question. With moved set in it, the
// question is to be answered again.
func (s *Server) examine(ctx context.Context, r *question, q *query.Query, id millrace.RecordID) (*examination, error) {
	x := &examination{node: s, r: r, id: id}
	var err error
	if x.accounts, err = q.Account(ctx, id); err != nil {
		return nil, err
	}
	types, all := s.store.Types()
	if !all { // the store lists only some types: add those that the question names
		types = slices.Compact(slices.Sorted(slices.Values(slices.Concat(types, r.types))))
	}
	if err := r.Affordable(max(len(types), len(r.types)), maxExamined); err != nil {
		return nil, err
	}
	for p, entities := range r.Answers() {
		for _, e := range entities {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			for _, t := range types {
				if err := x.look(p, millrace.Timeline{Entity: e, Type: t}); err != nil {
					return nil, err
				}
			}
		}
	}
	return x, nil
}

// look adds what became of the record in one timeline.
func (x *examination) look(p millrace.Partition, t millrace.Timeline) error {
	kept, ok, err := x.node.store.Find(p, t, x.id)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(x.accounts, func(a query.Account) bool { return a.Timeline == t })
	why := ""
	if ok {
		why = x.droppedBefore(&kept, t)
	}
	x.moved = x.moved || (at >= 0) != (ok && why == "") // query and store disagree on whether the record is a candidate
	if !ok || x.moved {
		return nil
	}
	f := &nodev1.Finding{
		Entity: string(t.Entity), Type: string(t.Type), TimeMs: int64(kept.Time), Version: kept.Version, Object: string(kept.Object), Dropped: why,
	}
	if f.Object == "" { // a record without an object is its own object
		f.Object = string(x.id)
	}
	if at >= 0 {
		x.account(f, &x.accounts[at])
	}
	x.found = append(x.found, f)
	return nil
}

// droppedBefore returns why a record in the store is no candidate; "" if it is one.
func (x *examination) droppedBefore(f *store.Found, t millrace.Timeline) string {
	switch {
	case f.Expired:
		return "expired"
	case f.Deleted:
		return "deleted"
	case len(x.r.types) > 0 && !slices.Contains(x.r.types, t.Type):
		return "not_asked"
	case f.Time < x.r.spec.From || f.Time >= x.r.spec.To:
		return "outside_window"
	}
	return ""
}

// account adds to f what became of a candidate.
func (x *examination) account(f *nodev1.Finding, a *query.Account) {
	f.Served = a.Served
	if a.Dropped.Outcome == filter.Kept {
		f.Score = a.Score
		for _, r := range a.CappedBy {
			f.CappedBy = append(f.CappedBy, itemOf(r))
		}
		return
	}
	f.Dropped = "filtered"
	f.Clause = &feedv1.FilterClause{Clause: x.r.spec.Filter.Sources()[a.Dropped.Clause], Outcome: a.Dropped.Outcome.String()}
	for _, o := range a.Operands {
		f.Clause.Operands = append(f.Clause.Operands, &feedv1.Operand{Name: o.Name, Value: valueOf(o.Value)})
	}
}

func itemOf(r millrace.Rank) *nodev1.Item {
	return &nodev1.Item{Score: r.Score, TimeMs: int64(r.Time), Id: strings.Clone(string(r.ID)), Entity: string(r.Entity), Type: string(r.Type)}
}

func rankOf(it *nodev1.Item) millrace.Rank {
	return millrace.Rank{
		Score: it.GetScore(), Time: millrace.Time(it.GetTimeMs()), ID: millrace.RecordID(it.GetId()),
		Timeline: millrace.Timeline{Entity: millrace.Entity(it.GetEntity()), Type: millrace.ContentType(it.GetType())},
	}
}

// valueOf returns a value that a filter read as a message.
func valueOf(v any) *structpb.Value {
	switch v := v.(type) {
	case bool:
		return structpb.NewBoolValue(v)
	case int64:
		return structpb.NewNumberValue(float64(v))
	case float64:
		return numberOf(v)
	case string:
		return structpb.NewStringValue(strings.Clone(v))
	case millrace.Time:
		return structpb.NewStringValue(v.String())
	case []string:
		return listOf(v, structpb.NewStringValue)
	case []float64:
		return listOf(v, numberOf)
	}
	return structpb.NewNullValue()
}

// numberOf returns a number as a message. NaN and the infinities, which JSON does not have, are
// the texts that ProtoJSON writes for them.
func numberOf(v float64) *structpb.Value {
	switch {
	case math.IsNaN(v):
		return structpb.NewStringValue("NaN")
	case math.IsInf(v, 1):
		return structpb.NewStringValue("Infinity")
	case math.IsInf(v, -1):
		return structpb.NewStringValue("-Infinity")
	}
	return structpb.NewNumberValue(v)
}

func listOf[T any](values []T, of func(T) *structpb.Value) *structpb.Value {
	l := &structpb.ListValue{}
	for _, v := range values {
		l.Values = append(l.Values, of(v))
	}
	return structpb.NewListValue(l)
}

// clauses returns how many candidates each clause of the filter dropped.
func clauses(q *query.Query, f *filter.Filter) (all []*feedv1.ClauseCounts) {
	for i, c := range q.Clauses() {
		all = append(all, &feedv1.ClauseCounts{Clause: f.Sources()[i], False: c.False, Null: c.Null, Error: c.Error, Nan: c.NaN})
	}
	return all
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
