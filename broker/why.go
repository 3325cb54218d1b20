package broker

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/findings"
	"github.com/millrace/millrace/broker/limits"
	"github.com/millrace/millrace/internal/door"
	"github.com/millrace/millrace/internal/permit"
	"github.com/millrace/millrace/internal/tracing"
)

// Why answers a request, and tells what became of one record: whether the answer shows it,
// and if not, what dropped it. Its errors are those of [Broker.GetFeed].
func (b *Broker) Why(ctx context.Context, req *feedv1.WhyRequest) (*feedv1.WhyResponse, error) {
	inFlight, err := b.admission.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer inFlight.Leave() // with no Ending: admission control learns from how long answers take, and an inquiry takes longer
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	ctx = b.trace(ctx, req.GetRequest().GetViewer().GetId())
	ctx, span := tracer.Start(ctx, "broker.Why", trace.WithSpanKind(trace.SpanKindServer))
	resp, err := b.why(ctx, req)
	tracing.End(span, err)
	return resp, err
}

// inquiry is a request for what became of a record.
type inquiry struct {
	b *Broker
	q *question
	findings.Search
}

// why is Why after admission, within the time of ctx.
func (b *Broker) why(ctx context.Context, req *feedv1.WhyRequest) (*feedv1.WhyResponse, error) {
	if err := permit.Who(ctx).Right(permit.Why, "request"); err != nil {
		door.From(ctx).Refused(door.Forbidden, err)
		return nil, err
	}
	if err := b.entitled(ctx, req.GetRequest()); err != nil {
		return nil, limits.Under("request", err)
	}
	i, err := b.inquire(ctx, req)
	if err != nil {
		return nil, err
	}
	if err := entitledTo(ctx, &i.q.feed); err != nil {
		return nil, limits.Under("request", err)
	}
	end, _ := ctx.Deadline()
	loan, over := b.admission.Loan(ctx)
	defer over()
	i.q.Loan = loan
	o, f, err := b.ask(ctx, i.q, end)
	switch {
	case err != nil:
		return nil, limits.Under("request", err)
	case ctx.Err() != nil:
		return nil, late(ctx)
	}
	i.Take(o)
	resp := &feedv1.WhyResponse{Coverage: coverage(i.q, o), Receipt: b.receipt(i.q, f, o, nil)}
	if resp.Findings, err = i.Findings(); err != nil {
		return nil, err
	}
	if err := i.rank(ctx, resp.Findings); err != nil {
		return nil, err
	}
	for _, found := range resp.Findings {
		found.Detail = i.Detail(found)
		if d := i.q.draft; d != nil {
			found.Detail = fmt.Sprintf("by %s alone, which %s drafts the pages with: %s", i.q.Query.Model, d.Beside.Name, found.Detail)
		}
	}
	resp.Stage, resp.Detail = i.Nothing()
	if len(resp.Findings) > 0 {
		resp.Stage, resp.Detail = resp.Findings[0].Stage, resp.Findings[0].Detail
	}
	return resp, nil
}

// inquire checks a request, and returns the inquiry that it asks for.
func (b *Broker) inquire(ctx context.Context, req *feedv1.WhyRequest) (*inquiry, error) {
	i := &inquiry{b: b, Search: findings.Search{ID: millrace.RecordID(req.GetRecord()), Entity: req.GetEntity(), Asked: true}}
	if err := limits.CheckText(req.GetRecord(), millrace.MaxIDBytes); err != nil {
		return nil, limits.Invalid("record", "name the record to look for by its id", "%v", err)
	}
	feed := req.GetRequest()
	if i.Entity != "" {
		if err := limits.CheckText(i.Entity, millrace.MaxEntityBytes); err != nil {
			return nil, limits.Invalid("entity", "name an entity such as member:42, or leave it out", "%v", err)
		}
		i.Asked = slices.Contains(feed.GetEntities(), i.Entity)
	}
	var err error
	if i.q, err = b.read(ctx, feed, time.Now()); err == nil && !i.Asked {
		// The request does not name this entity: ask all that it asks, of this entity alone.
		feed = proto.Clone(feed).(*feedv1.GetFeedRequest)
		feed.Entities, feed.PageToken = []string{i.Entity}, ""
		i.q, err = b.read(ctx, feed, time.Now())
	}
	if err != nil {
		return nil, limits.Under("request", err)
	}
	if err := i.q.Affordable(limits.MaxInquired); err != nil {
		return nil, limits.Under("request", err)
	}
	if b.forbid.Why || i.q.feed.Forbids().Why {
		return nil, &millrace.Error{Reason: millrace.ReasonForbidden, Field: "request.feed", Detail: fmt.Sprintf("what became of records of feed %s may not be asked", i.q.feed.Name), WayOut: "ask another feed, or who runs this one"}
	}
	if d := i.q.draft; d != nil { // an inquiry explains the ranking by one model
		d.fault = fmt.Errorf("this is of the ranking by %s alone, which %s drafts the pages with", i.q.Query.Model, d.Beside.Name)
		i.q.Query.Beside, i.q.Depth = nil, 0
	}
	i.q.Query.Examine = req.GetRecord()
	i.Query, i.Spacing, i.Variants = i.q.Query, i.q.feed.Spacing, i.q.variantsOf
	return i, nil
}

// rank asks the nodes again, for how many candidates rank above each finding that has a
// score, and sets the findings' Rank: 1 is the best.
func (i *inquiry) rank(ctx context.Context, findings []*feedv1.Finding) error {
	q := *i.q
	q.Query = proto.Clone(i.q.Query).(*nodev1.QueryRequest)
	q.Query.Examine, q.Query.Limit = "", 1
	var scored []*feedv1.Finding
	for _, f := range findings {
		if f.Score != nil {
			scored = append(scored, f)
			q.Query.Above = append(q.Query.Above, &nodev1.Item{
				Score: f.GetScore(), TimeMs: f.GetTime().AsTime().UnixMilli(), Id: string(i.ID), Entity: f.Entity, Type: f.Type,
			})
		}
	}
	if len(scored) == 0 {
		return nil
	}
	end, _ := ctx.Deadline()
	o, _, err := i.b.ask(ctx, &q, end)
	if err != nil {
		return limits.Under("request", err)
	}
	for at, f := range scored {
		f.Rank = 1
		for _, pt := range o.Parts {
			if above := pt.Resp.GetAbove(); at < len(above) {
				f.Rank += above[at]
			}
		}
	}
	return nil
}
