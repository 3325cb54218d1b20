package broker

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/pagetoken"
	"github.com/millrace/millrace/broker/questions"
	"github.com/millrace/millrace/internal/offsets"
)

// answer makes the response out of what the nodes answered. The response has its items
// as unknown fields, already encoded.
func (b *Broker) answer(ctx context.Context, q *question, f *fanout.Asking, o fanout.Outcome) (*feedv1.GetFeedResponse, error) {
	covered := coverage(q, o)
	err := covers(covered, q.minCoverage)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	entries := q.ranking(o)
	q.feed.Spacing.Apart(entries)
	resp := &feedv1.GetFeedResponse{
		Coverage: covered, Receipt: b.receipt(q, f, o, entries),
		NextPageToken: b.nextToken(q, entries, len(o.Missing) == 0),
	}
	b.metrics.countCandidates(q.feed.Name, o)
	if v := q.inPlaceOf; v.Name != "" {
		b.metrics.inPlaceOf.WithLabelValues(q.feed.Name, v.Name, v.Version).Inc()
	}
	merged := time.Now()
	q.Times.Merge = merged.Sub(began)
	items, err := b.items(ctx, q, f, entries)
	if err != nil {
		return nil, err
	}
	if err := b.records.CheckFields(ctx, f, &q.fields, entries); err != nil {
		return nil, err
	}
	resp.ProtoReflect().SetUnknown(items)
	if len(entries) == 0 {
		resp.Hints = hints(q, o)
		if no := b.forbid.Or(q.feed.Forbids()); no.Explain || no.Why {
			// The caller may not learn what was dropped, nor that anything was.
			resp.Hints, resp.Receipt.Execution = nil, ""
		}
	}
	q.shown = len(entries)
	q.Times.Records = time.Since(merged)
	if q.Query.Explain {
		resp.Explain = explain(q, f, o)
	}
	if q.counted {
		b.gaps.Look(q.feed.Name, entries)
	}
	b.expose(q, o, resp, entries)
	return resp, nil
}

// scratch is memory for the items of an answer, until they are copied.
var scratch = sync.Pool{New: func() any { return new([]byte) }}

// maxScratch is the largest scratch memory, in bytes, that is kept for the next request.
const maxScratch = 1 << 20

// holdStep is how many bytes of items, at least, are written between two times that the
// request's loan grows. A loan is the memory that a request may use, counted in
// [admission.Control].
const holdStep = 64 << 10

// items returns the items of an answer as [items.Records.Append] writes them. If they take
// more than [questions.MaxAnswerBytes] or than the loan can hold, it returns a refusal.
// When it returns, the request's loan counts these bytes and one copy of them, but no
// longer the nodes' parts.
func (b *Broker) items(ctx context.Context, q *question, f *fanout.Asking, entries []fanout.Entry) ([]byte, error) {
	room := scratch.Get().(*[]byte)
	all := (*room)[:0]
	held := 0
	for i := range entries {
		var err error
		if all, err = b.records.Append(ctx, all, &q.fields, f, &entries[i]); err != nil {
			return nil, err
		}
		if len(all) > questions.MaxAnswerBytes {
			return nil, questions.TooLarge(questions.FewerOrFields, questions.MaxAnswerBytes)
		}
		if more := len(all) - held; more >= holdStep {
			if err := q.Hold(2 * int64(more)); err != nil {
				return nil, err
			}
			held = len(all)
		}
	}
	if *room = all; cap(all) <= maxScratch {
		defer scratch.Put(room)
	}
	return bytes.Clone(all), q.Loan.Hold(2*int64(len(all)) + questions.LeastRoom)
}

func timestamp(t millrace.Time) *timestamppb.Timestamp { return timestamppb.New(t.Std()) }

// coverage says how much of the question the parts answer. A part is what one node
// answered for some of the partitions.
func coverage(q *question, o fanout.Outcome) *feedv1.Coverage {
	c := &feedv1.Coverage{PartitionsAsked: int32(q.Want.Len()), TimelinesAsked: int32(q.Asked())}
	c.PartitionsAnswered, c.TimelinesAnswered = c.PartitionsAsked, c.TimelinesAsked
	missing := o.Left()
	for p := range missing.All() {
		n := int32(q.Timelines(p))
		c.Missing = append(c.Missing, &feedv1.Missing{Partition: int32(p), Timelines: n, Reason: o.Missing[p]})
		c.PartitionsAnswered--
		c.TimelinesAnswered -= n
	}
	for _, pt := range o.Parts {
		if len(pt.Resp.GetPartitions().GetLagMs()) == 0 {
			continue
		}
		for a := range pt.Answers() {
			if a.Lag > 0 {
				c.TimelinesBehind += int32(pt.Group.Timelines(a.Partition))
			}
		}
	}
	return c
}

// covers refuses an answer that covers less than the caller demands.
func covers(c *feedv1.Coverage, least float64) error {
	if share := float64(c.GetTimelinesAnswered()) / float64(c.GetTimelinesAsked()); share < least {
		return &millrace.Error{
			Reason: millrace.ReasonCoverage, Field: "min_coverage", Detail: fmt.Sprintf("the answer covers %d of %d timelines, %.4g and not %.4g of them", c.GetTimelinesAnswered(), c.GetTimelinesAsked(), share, least),
			WayOut: "try again after a pause, or accept less; if it lasts, see what millrace cluster show says of the index nodes",
		}
	}
	return nil
}

// receipt says what the answer was made from.
func (b *Broker) receipt(q *question, f *fanout.Asking, o fanout.Outcome, entries []fanout.Entry) *feedv1.Receipt {
	r := &feedv1.Receipt{AnswerId: newAnswerID(), MapEpoch: f.Map.Epoch(), FeedVersion: q.feed.Version, AsOf: timestamp(q.asOf)}
	var models, versions, executions, sums []string
	var digest offsets.Digest
	for _, pt := range o.Parts {
		models = append(models, pt.Resp.GetModel())
		versions = append(versions, pt.Resp.GetModelVersion())
		if execution := pt.Resp.GetExecution(); execution != "" { // where there was something to score
			executions = append(executions, execution)
		}
		if sum := pt.Resp.GetWeightsSum(); sum != "" {
			sums = append(sums, sum)
		}
	}
	parts := o.Parts
	if len(q.Groups) > 1 {
		parts = together(parts)
	}
	for i := range parts {
		r.Applied = append(r.Applied, applied(&parts[i], q.fullReceipt, &digest))
	}
	if r.AppliedDigest = digest.String(); q.feed.Private {
		// From offsets that rise while nothing new is shown, a caller would learn that
		// something was dropped.
		r.Applied, r.AppliedDigest = nil, ""
	}
	r.Schemas = schemasOf(entries)
	q.variants.receipt(r)
	r.Unapplied = b.unapplied(q)
	r.Draft, r.InPlaceOf = q.draft.receipt(), q.condemned()
	r.Model, r.ModelVersion, r.Execution, r.WeightsSum = each(models), each(versions), each(executions), each(sums)
	return r
}

// applied says how much of the log a part includes, and adds that to the digest. The
// offsets are packed, unless full is true or the node sent the partitions unsorted.
func applied(pt *fanout.Part, full bool, digest *offsets.Digest) *feedv1.Applied {
	a := &feedv1.Applied{Node: string(pt.Node)}
	parts := make([]offsets.Part, 0, pt.Covered.Len())
	for of := range pt.Answers() {
		parts = append(parts, offsets.Part{Partition: of.Partition, Next: offsets.Next{Content: of.Content, Features: of.Features}})
		digest.Add(parts[len(parts)-1])
		if of.Lag > 0 && a.LagSeconds == nil {
			a.LagSeconds = make([]float64, len(parts)-1, cap(parts))
		}
		if a.LagSeconds != nil {
			a.LagSeconds = append(a.LagSeconds, of.Lag.Seconds())
		}
	}
	if !full && slices.IsSortedFunc(parts, offsets.Part.Compare) { // nodes send them sorted
		a.Packed = offsets.Pack(parts)
		return a
	}
	both := make([]int64, 2*len(parts))
	a.Partitions, a.Content, a.Features = make([]int32, len(parts)), both[:len(parts):len(parts)], both[len(parts):]
	for i, p := range parts {
		a.Partitions[i], a.Content[i], a.Features[i] = int32(p.Partition), p.Content, p.Features
	}
	return a
}

// schemasOf returns the fingerprints of the schemas of entries, each once, sorted.
func schemasOf(entries []fanout.Entry) (names []string) {
	var met []uint64
	for i := range entries {
		if fp := entries[i].Item.GetSchema(); !slices.Contains(met, fp) {
			met = append(met, fp)
			names = append(names, millrace.Fingerprint(fp).String())
		}
	}
	slices.Sort(names)
	return names
}

// each returns the distinct values, sorted and joined by commas. It sorts values in place.
func each(values []string) string {
	slices.Sort(values)
	return strings.Join(slices.Compact(values), ",")
}

// explain adds up the stages of the parts, and lists every call of a node.
func explain(q *question, f *fanout.Asking, o fanout.Outcome) *feedv1.Explain {
	e := &feedv1.Explain{}
	clauses := map[*questions.Group][]*feedv1.ClauseCounts{}
	for _, pt := range o.Parts {
		s := pt.Resp.GetStages()
		e.Candidates += s.GetCandidates()
		e.FilteredFalse += s.GetFilteredFalse()
		e.FilteredNull += s.GetFilteredNull()
		e.FilteredError += s.GetFilteredError()
		e.FilteredNan += s.GetFilteredNan()
		e.Scored += s.GetScored()
		e.Capped += s.GetCapped()
		clauses[pt.Group] = addClauses(clauses[pt.Group], pt.Resp.GetClauses())
	}
	for _, g := range q.Groups { // each has a filter of its own
		e.Clauses = append(e.Clauses, clauses[g]...)
	}
	t := &q.Times
	e.Times = &feedv1.BrokerTimes{
		ReadMillis: millis(t.Read), RouteMillis: millis(t.Route), FanOutMillis: millis(t.FanOut), MergeMillis: millis(t.Merge), RecordsMillis: millis(t.Records),
	}
	f.Explain(e)
	return e
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// addClauses adds a node's counts, one for each clause of the filter, to the sum of other
// nodes' counts, and returns the sum. All these nodes were asked with the same filter.
func addClauses(sum, more []*feedv1.ClauseCounts) []*feedv1.ClauseCounts {
	if len(sum) != len(more) {
		return more // this is the first node's
	}
	for i, c := range more {
		s := sum[i]
		s.False, s.Null, s.Error, s.Nan = s.False+c.False, s.Null+c.Null, s.Error+c.Error, s.Nan+c.Nan
	}
	return sum
}

// nextToken returns the token of the page that follows these entries; "" if there is none.
// complete says that no partition is missing. A short page is the last, with two
// exceptions: missing partitions may hold more items, and so may a drafted page that the
// cap on an entity shortened.
func (b *Broker) nextToken(q *question, entries []fanout.Entry, complete bool) string {
	complete = complete && !(q.draft != nil && q.draft.left)
	if len(entries) == 0 || complete && len(entries) < int(q.Query.Limit) {
		return ""
	}
	distinct := q.Query.DistinctObjects
	served := slices.Clone(q.Query.Exclude)
	for i := range entries {
		e := &entries[i]
		served = append(served, millrace.ServedHash(q.keys.Served, distinct, millrace.Object(e.Item.GetObject()), e.Timeline, e.ID))
	}
	slices.Sort(served)
	c := pagetoken.Cursor{
		Issued: q.issued, AsOf: q.asOf, Request: q.request, Model: q.Query.Model, Version: q.Query.ModelVersion, Sum: sumOf(q.Query.ModelSum, q.Query.WeightsSum),
		Feed: q.feed.Edition().Version, FeedSum: q.keys.Definition(q.feed.Edition().Sum, q.feed.Private), Variants: q.variants.dealt, HeldOut: q.variants.heldOut, Served: slices.Compact(served),
		Divided: q.variants.division.Dealt(), Models: q.models(), Unapplied: b.unapplied(q),
	}
	if q.draft != nil {
		c.Draft = &q.draft.Draft
	}
	return c.Encode(q.keys)
}
