package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/limits"
	"github.com/millrace/millrace/broker/questions"
	"github.com/millrace/millrace/internal/door"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/internal/permit"
)

// What became of a record, as WhyResponse.stage says it. Of several stages that
// would keep it out the first of docs/feeds.md is named: below_cut goes before
// capped and deduplicated, since without a better score nothing else helps.
const (
	stageNever        = "never_ingested"
	stageUnanswered   = "unanswered"
	stageDeleted      = "deleted"
	stageExpired      = "expired"
	stageNotAsked     = "not_asked"
	stageOutside      = "outside_window"
	stageFiltered     = "filtered"
	stageServed       = "served"
	stageBelowCut     = "below_cut"
	stageCapped       = "capped"
	stageDeduplicated = "deduplicated"
	stageShown        = "shown"
)

// furthest orders stages by how far a record came.
var furthest = []string{
	stageShown, stageServed, stageDeduplicated, stageCapped, stageBelowCut, stageFiltered, stageOutside, stageNotAsked, stageExpired, stageDeleted,
}

// Why answers a request and tells what became of a record in the answer. Its
// errors are those of [Broker.GetFeed].
func (b *Broker) Why(ctx context.Context, req *feedv1.WhyRequest) (*feedv1.WhyResponse, error) {
	visit, err := b.admission.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer visit.Leave() // silently: it takes longer than what the gate is for
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	ctx = b.trace(ctx, req.GetRequest().GetViewer().GetId())
	ctx, span := tracer.Start(ctx, "broker.Why", trace.WithSpanKind(trace.SpanKindServer))
	resp, err := b.why(ctx, req)
	endSpan(span, err)
	return resp, err
}

// inquiry is the search for what became of a record.
type inquiry struct {
	b      *Broker
	q      *question
	id     millrace.RecordID
	entity string // whose timelines are looked at; empty: all that were asked
	asked  bool   // the request asks for entity

	fanout.Outcome
	entries []fanout.Entry // of the answer, in rank order
	places  map[candidateKey]int
	groups  map[*feedv1.Finding]*questions.Group // that their entities are of
}

// candidateKey is a record in a timeline.
type candidateKey struct {
	millrace.Timeline
	id millrace.RecordID
}

func (b *Broker) why(ctx context.Context, req *feedv1.WhyRequest) (*feedv1.WhyResponse, error) {
	if err := permit.Who(ctx).Right(permit.Why, "request"); err != nil {
		door.From(ctx).Refused(door.Forbidden, err)
		return nil, err
	}
	if err := b.entitled(ctx, req.GetRequest()); err != nil {
		return nil, under("request", err)
	}
	i, err := b.inquire(req)
	if err != nil {
		return nil, err
	}
	end, _ := ctx.Deadline()
	loan, over := b.admission.Loan(ctx)
	defer over()
	i.q.Loan = loan
	o, f, err := b.ask(ctx, i.q, end)
	switch {
	case err != nil:
		return nil, under("request", err)
	case ctx.Err() != nil:
		return nil, late(ctx.Err())
	}
	i.take(o)
	resp := &feedv1.WhyResponse{Coverage: coverage(i.q, o), Receipt: b.receipt(i.q, f, o, nil)}
	if resp.Findings, err = i.findings(); err != nil {
		return nil, err
	}
	if err := i.rank(ctx, resp.Findings); err != nil {
		return nil, err
	}
	for _, found := range resp.Findings {
		found.Detail = i.detail(found)
		if d := i.q.draft; d != nil {
			found.Detail = fmt.Sprintf("by %s alone, which %s drafts the pages with: %s", i.q.Query.Model, d.Beside.Name, found.Detail)
		}
	}
	resp.Stage, resp.Detail = i.nothing()
	if len(resp.Findings) > 0 {
		resp.Stage, resp.Detail = resp.Findings[0].Stage, resp.Findings[0].Detail
	}
	return resp, nil
}

// inquire checks a request.
func (b *Broker) inquire(req *feedv1.WhyRequest) (*inquiry, error) {
	i := &inquiry{b: b, id: millrace.RecordID(req.GetRecord()), entity: req.GetEntity(), asked: true}
	if err := limits.CheckText(req.GetRecord(), millrace.MaxIDBytes); err != nil {
		return nil, limits.Invalid("record", "name the record to look for by its id", "%v", err)
	}
	feed := req.GetRequest()
	if i.entity != "" {
		if err := limits.CheckText(i.entity, millrace.MaxEntityBytes); err != nil {
			return nil, limits.Invalid("entity", "name an entity such as member:42, or leave it out", "%v", err)
		}
		i.asked = slices.Contains(feed.GetEntities(), i.entity)
	}
	var err error
	if i.q, err = b.read(feed, time.Now()); err == nil && !i.asked {
		// What the request says holds; but the entity is looked at alone.
		feed = proto.Clone(feed).(*feedv1.GetFeedRequest)
		feed.Entities, feed.PageToken = []string{i.entity}, ""
		i.q, err = b.read(feed, time.Now())
	}
	if err != nil {
		return nil, under("request", err)
	}
	if err := i.q.Affordable(limits.MaxInquired); err != nil {
		return nil, under("request", err)
	}
	if b.forbid.Why || i.q.feed.Forbids().Why {
		return nil, &millrace.Error{Reason: millrace.ReasonForbidden, Field: "request.feed", Detail: fmt.Sprintf("what became of records of feed %s may not be asked", i.q.feed.Name), WayOut: "ask another feed, or who runs this one"}
	}
	if d := i.q.draft; d != nil { // it accounts for the ranking by one model
		d.fault = fmt.Errorf("this is of the ranking by %s alone, which %s drafts the pages with", i.q.Query.Model, d.Beside.Name)
		i.q.Query.Beside, i.q.Depth = nil, 0
	}
	i.q.Query.Examine = req.GetRecord()
	return i, nil
}

// under puts the field that err names, if any, under a message.
func under(field string, err error) error {
	var e *millrace.Error
	if !errors.As(err, &e) || e.Field == "" {
		return err
	}
	inner := *e
	inner.Field = field + "." + e.Field
	return &inner
}

// take makes the answer of what the nodes answered.
func (i *inquiry) take(o fanout.Outcome) {
	i.Outcome = o
	i.entries = fanout.Merge(o.Parts, int(i.q.Query.Limit), i.q.Query.DistinctObjects)
	shown := slices.Clone(i.entries)
	i.q.feed.Spacing.Apart(shown)
	i.places = make(map[candidateKey]int, len(shown))
	for at := range shown {
		i.places[candidateKey{shown[at].Timeline, shown[at].ID}] = at + 1
	}
}

// findings says what became of the record wherever a node has found it.
func (i *inquiry) findings() ([]*feedv1.Finding, error) {
	var all []*feedv1.Finding
	i.groups = map[*feedv1.Finding]*questions.Group{}
	for _, pt := range i.Parts {
		for _, n := range pt.Resp.GetFindings() {
			e := millrace.Entity(n.GetEntity())
			if !pt.Covered.Has(partition.Of(e)) || i.entity != "" && n.GetEntity() != i.entity {
				continue
			}
			f, err := i.finding(n)
			if err != nil {
				return nil, err
			}
			f.Variants = i.q.variantsOf(e)
			i.groups[f] = pt.Group
			all = append(all, f)
		}
	}
	slices.SortFunc(all, func(a, b *feedv1.Finding) int {
		return cmp.Or(
			cmp.Compare(slices.Index(furthest, a.Stage), slices.Index(furthest, b.Stage)),
			millrace.CompareScores(a.GetScore(), b.GetScore()),
			strings.Compare(a.Entity, b.Entity), strings.Compare(a.Type, b.Type))
	})
	return all, nil
}

// finding judges what a node has found in one timeline.
func (i *inquiry) finding(n *nodev1.Finding) (*feedv1.Finding, error) {
	f := &feedv1.Finding{
		Entity: n.GetEntity(), Type: n.GetType(), Time: timestamp(millrace.Time(n.GetTimeMs())), Version: n.GetVersion(), Object: n.GetObject(),
		Stage: n.GetDropped(), Clause: n.GetClause(),
	}
	gone := f.Stage == stageDeleted || f.Stage == stageExpired
	if !i.asked && !gone {
		f.Stage, f.Clause = stageNotAsked, nil
	}
	if f.Stage != "" {
		return f, nil
	}
	f.Score = new(n.GetScore())
	r := fanout.RankOf(&nodev1.Item{Score: n.GetScore(), TimeMs: n.GetTimeMs(), Id: string(i.id), Entity: f.Entity, Type: f.Type})
	return f, i.place(f, n, r)
}

// place judges a record that was scored.
func (i *inquiry) place(f *feedv1.Finding, n *nodev1.Finding, r millrace.Rank) error {
	of := slices.IndexFunc(i.entries, func(e fanout.Entry) bool { return e.Item.GetObject() == f.Object })
	last := len(i.entries) - 1
	switch {
	case i.places[candidateKey{r.Timeline, r.ID}] > 0:
		f.Stage, f.Place = stageShown, int32(i.places[candidateKey{r.Timeline, r.ID}])
	case n.GetServed():
		f.Stage = stageServed
	case len(i.entries) == int(i.q.Query.Limit) && i.entries[last].Compare(r) < 0:
		f.Stage, f.Rivals = stageBelowCut, []*feedv1.Rival{rival(i.entries[last].Rank)}
	case len(n.GetCappedBy()) > 0:
		f.Stage = stageCapped
		for _, it := range n.GetCappedBy() {
			f.Rivals = append(f.Rivals, rival(fanout.RankOf(it)))
		}
	case i.q.Query.DistinctObjects && of >= 0:
		e := &i.entries[of]
		f.Stage, f.Rivals, f.Place = stageDeduplicated, []*feedv1.Rival{rival(e.Rank)}, int32(i.places[candidateKey{e.Timeline, e.ID}])
		f.Also = slices.ContainsFunc(e.Also, func(a fanout.Ranked) bool {
			also := fanout.RankOf(a.Item)
			return also.ID == r.ID && also.Timeline == r.Timeline
		})
	default:
		return fmt.Errorf("broker: record %q of %s is neither in the answer nor kept out of it", r.ID, r.Timeline)
	}
	return nil
}

func rival(r millrace.Rank) *feedv1.Rival {
	return &feedv1.Rival{Id: string(r.ID), Entity: string(r.Entity), Type: string(r.Type), Time: timestamp(r.Time), Score: r.Score}
}

// rank asks again, for how many rank above what was scored.
func (i *inquiry) rank(ctx context.Context, findings []*feedv1.Finding) error {
	q := *i.q
	q.Query = proto.Clone(i.q.Query).(*nodev1.QueryRequest)
	q.Query.Examine, q.Query.Limit = "", 1
	var scored []*feedv1.Finding
	for _, f := range findings {
		if f.Score != nil {
			scored = append(scored, f)
			q.Query.Above = append(q.Query.Above, &nodev1.Item{
				Score: f.GetScore(), TimeMs: f.GetTime().AsTime().UnixMilli(), Id: string(i.id), Entity: f.Entity, Type: f.Type,
			})
		}
	}
	if len(scored) == 0 {
		return nil
	}
	end, _ := ctx.Deadline()
	o, _, err := i.b.ask(ctx, &q, end)
	if err != nil {
		return under("request", err)
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
