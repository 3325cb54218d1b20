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
	"github.com/millrace/millrace/internal/offsets"
)

// answer makes the response out of what the nodes answered.
func (b *Broker) answer(ctx context.Context, f *fanout, o outcome) (*feedv1.GetFeedResponse, error) {
	covered := coverage(f.q, o)
	err := covers(covered, f.q.minCoverage)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	entries := f.q.ranking(o)
	f.q.feed.Spacing.apart(entries)
	resp := &feedv1.GetFeedResponse{
		Coverage: covered, Receipt: receipt(f, o, entries),
		NextPageToken: b.nextToken(f.q, entries, len(o.missing) == 0),
	}
	b.metrics.fates(f.q.feed.Name, o)
	if v := f.q.inPlaceOf; v.Name != "" {
		b.metrics.inPlaceOf.WithLabelValues(f.q.feed.Name, v.Name, v.Version).Inc()
	}
	merged := time.Now()
	f.q.times.merge = merged.Sub(began)
	items, err := b.items(ctx, f, entries)
	if err != nil {
		return nil, err
	}
	if err := b.records.checkFields(ctx, f, f.q, entries); err != nil {
		return nil, err
	}
	resp.ProtoReflect().SetUnknown(items)
	if len(entries) == 0 {
		resp.Hints = hints(f.q, o)
		if no := b.forbid.or(f.q.feed.forbids()); no.Explain || no.Why {
			// What was dropped, and that there was anything, is nobody's to know.
			resp.Hints, resp.Receipt.Execution = nil, ""
		}
	}
	f.q.shown = len(entries)
	f.q.times.records = time.Since(merged)
	if f.q.query.Explain {
		resp.Explain = explain(f, o)
	}
	if f.q.counted {
		b.gaps.look(f.q.feed.Name, entries)
	}
	b.expose(f.q, o, resp, entries)
	return resp, nil
}

// scratch is memory for the items of an answer, until they are copied.
var scratch = sync.Pool{New: func() any { return new([]byte) }}

// maxScratch is the largest piece that is kept for the next request.
const maxScratch = 1 << 20

// items returns the items of an answer as [appendItem] writes them. The loan of
// the request is then for these and a copy, and no more for the nodes' parts.
func (b *Broker) items(ctx context.Context, f *fanout, entries []entry) ([]byte, error) {
	room := scratch.Get().(*[]byte)
	all := (*room)[:0]
	held := 0
	for i := range entries {
		var err error
		if all, err = b.appendItem(ctx, all, f, &entries[i]); err != nil {
			return nil, err
		}
		if len(all) > maxAnswerBytes {
			return nil, answerTooLarge(fewerOrFields, maxAnswerBytes)
		}
		if more := len(all) - held; more >= holdStep {
			if err := f.q.hold(2 * int64(more)); err != nil {
				return nil, err
			}
			held = len(all)
		}
	}
	if *room = all; cap(all) <= maxScratch {
		defer scratch.Put(room)
	}
	return bytes.Clone(all), f.q.loan.Hold(2*int64(len(all)) + leastRoom)
}

func timestamp(t millrace.Time) *timestamppb.Timestamp { return timestamppb.New(t.Std()) }

// coverage says how much of the question the parts answer.
func coverage(q *question, o outcome) *feedv1.Coverage {
	c := &feedv1.Coverage{PartitionsAsked: int32(q.want.Len()), TimelinesAsked: int32(q.asked())}
	c.PartitionsAnswered, c.TimelinesAnswered = c.PartitionsAsked, c.TimelinesAsked
	missing := o.left()
	for p := range missing.All() {
		n := int32(q.timelines(p))
		c.Missing = append(c.Missing, &feedv1.Missing{Partition: int32(p), Timelines: n, Reason: o.missing[p]})
		c.PartitionsAnswered--
		c.TimelinesAnswered -= n
	}
	for _, pt := range o.parts {
		if len(pt.resp.GetPartitions().GetLagMs()) == 0 {
			continue
		}
		for a := range pt.answers() {
			if a.lag > 0 {
				c.TimelinesBehind += int32(pt.group.timelines(a.partition))
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
func receipt(f *fanout, o outcome, entries []entry) *feedv1.Receipt {
	r := &feedv1.Receipt{AnswerId: newAnswerID(), MapEpoch: f.m.Epoch(), FeedVersion: f.q.feed.Version, AsOf: timestamp(f.q.asOf)}
	var models, versions, executions, sums []string
	var digest offsets.Digest
	for _, pt := range o.parts {
		models = append(models, pt.resp.GetModel())
		versions = append(versions, pt.resp.GetModelVersion())
		if execution := pt.resp.GetExecution(); execution != "" { // where there was something to score
			executions = append(executions, execution)
		}
		if sum := pt.resp.GetWeightsSum(); sum != "" {
			sums = append(sums, sum)
		}
	}
	parts := o.parts
	if len(f.q.groups) > 1 {
		parts = together(parts)
	}
	for i := range parts {
		r.Applied = append(r.Applied, applied(&parts[i], f.q.fullReceipt, &digest))
	}
	if r.AppliedDigest = digest.String(); f.q.feed.Private {
		// Where nothing new is shown and the log has gone on, something was dropped.
		r.Applied, r.AppliedDigest = nil, ""
	}
	r.Schemas = schemasOf(entries)
	f.q.variants.receipt(r)
	r.Unapplied = f.b.unapplied(f.q)
	r.Draft, r.InPlaceOf = f.q.draft.receipt(), f.q.condemned()
	r.Model, r.ModelVersion, r.Execution, r.WeightsSum = each(models), each(versions), each(executions), each(sums)
	return r
}

// applied says how much of the log a part includes, packed unless it is to be
// full, and adds it to the digest.
func applied(pt *part, full bool, digest *offsets.Digest) *feedv1.Applied {
	a := &feedv1.Applied{Node: string(pt.node)}
	parts := make([]offsets.Part, 0, pt.covered.Len())
	for of := range pt.answers() {
		parts = append(parts, offsets.Part{Partition: of.partition, Next: offsets.Next{Content: of.content, Features: of.features}})
		digest.Add(parts[len(parts)-1])
		if of.lag > 0 && a.LagSeconds == nil {
			a.LagSeconds = make([]float64, len(parts)-1, cap(parts))
		}
		if a.LagSeconds != nil {
			a.LagSeconds = append(a.LagSeconds, of.lag.Seconds())
		}
	}
	if !full && slices.IsSortedFunc(parts, offsets.Part.Compare) { // as nodes send them
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

// schemasOf returns the fingerprints of the schemas of entries, sorted.
func schemasOf(entries []entry) (names []string) {
	var met []uint64
	for i := range entries {
		if fp := entries[i].item.GetSchema(); !slices.Contains(met, fp) {
			met = append(met, fp)
			names = append(names, millrace.Fingerprint(fp).String())
		}
	}
	slices.Sort(names)
	return names
}

// each joins the distinct values.
func each(values []string) string {
	slices.Sort(values)
	return strings.Join(slices.Compact(values), ",")
}

// explain adds up the stages of the parts, and lists every call of a node.
func explain(f *fanout, o outcome) *feedv1.Explain {
	e := &feedv1.Explain{}
	clauses := map[*group][]*feedv1.ClauseCounts{}
	for _, pt := range o.parts {
		s := pt.resp.GetStages()
		e.Candidates += s.GetCandidates()
		e.FilteredFalse += s.GetFilteredFalse()
		e.FilteredNull += s.GetFilteredNull()
		e.FilteredError += s.GetFilteredError()
		e.FilteredNan += s.GetFilteredNan()
		e.Scored += s.GetScored()
		e.Capped += s.GetCapped()
		clauses[pt.group] = addClauses(clauses[pt.group], pt.resp.GetClauses())
	}
	for _, g := range f.q.groups { // each has a filter of its own
		e.Clauses = append(e.Clauses, clauses[g]...)
	}
	t := &f.q.times
	e.Times = &feedv1.BrokerTimes{
		ReadMillis: millis(t.read), RouteMillis: millis(t.route), FanOutMillis: millis(t.fanOut), MergeMillis: millis(t.merge), RecordsMillis: millis(t.records),
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	e.Calls, e.HedgesFired, e.HedgesWon, e.HedgeSavedMillis = f.mu.calls, f.mu.fired, f.mu.won, millis(f.mu.saved)
	return e
}

// addClauses adds a node's counts to those of others, which have the same
// filter.
func addClauses(sum, more []*feedv1.ClauseCounts) []*feedv1.ClauseCounts {
	if len(sum) != len(more) {
		return more // sum is that of none yet
	}
	for i, c := range more {
		s := sum[i]
		s.False, s.Null, s.Error, s.Nan = s.False+c.False, s.Null+c.Null, s.Error+c.Error, s.Nan+c.Nan
	}
	return sum
}
