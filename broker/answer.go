package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
)

// answer makes the response out of what the nodes answered.
func (b *Broker) answer(ctx context.Context, f *fanout, o outcome) (*feedv1.GetFeedResponse, error) {
	covered := coverage(f.q, o)
	err := covers(covered, f.q.minCoverage)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	entries := merge(o.parts, int(f.q.query.Limit), f.q.query.DistinctObjects)
	f.q.feed.Spacing.apart(entries)
	resp := &feedv1.GetFeedResponse{
		Coverage: covered, Receipt: receipt(f, o, entries),
		NextPageToken: b.nextToken(f.q, entries, len(o.missing) == 0, time.Now()),
	}
	b.metrics.fates(f.q.feed.Name, o)
	merged := time.Now()
	f.q.times.merge = merged.Sub(began)
	if resp.Items, err = b.items(ctx, f, entries); err != nil {
		return nil, err
	}
	f.q.times.records = time.Since(merged)
	if f.q.query.Explain {
		resp.Explain = explain(f, o)
	}
	return resp, nil
}

// scratch is memory for one record after the other, until it is copied.
var scratch = sync.Pool{New: func() any { return new([]byte) }}

// maxScratch is the largest piece that is kept for the next request.
const maxScratch = 1 << 20

func (b *Broker) items(ctx context.Context, f *fanout, entries []entry) ([]*feedv1.Item, error) {
	room := scratch.Get().(*[]byte)
	defer func() {
		if cap(*room) <= maxScratch {
			scratch.Put(room)
		}
	}()
	all := make([]*feedv1.Item, len(entries))
	for i := range entries {
		var err error
		if all[i], err = b.item(ctx, f, &entries[i], room); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (b *Broker) item(ctx context.Context, f *fanout, e *entry, room *[]byte) (*feedv1.Item, error) {
	it := &feedv1.Item{
		Id: string(e.ID), Entity: string(e.Entity), Type: string(e.Type), Time: timestamp(e.Time), Score: e.Score,
		Object: e.item.GetObject(), Explain: e.item.GetExplain(),
	}
	record, err := b.records.append(ctx, (*room)[:0], f.m, &e.ranked, f.q.fields)
	var refused *millrace.Error
	switch {
	case errors.As(err, &refused):
		return nil, err
	case err != nil: // damaged; the item is still right in all else
		b.log.Error("a record could not be decoded", "node", e.node, "err", err)
	default:
		setRecord(it, record)
		*room = record
	}
	for _, a := range e.also {
		it.Also = append(it.Also, &feedv1.Also{
			Id: string(a.ID), Entity: string(a.Entity), Type: string(a.Type), Time: timestamp(a.Time), Score: a.Score,
		})
	}
	return it, nil
}

func timestamp(t millrace.Time) *timestamppb.Timestamp { return timestamppb.New(t.Std()) }

// coverage says how much of the question the parts answer.
func coverage(q *question, o outcome) *feedv1.Coverage {
	c := &feedv1.Coverage{}
	for p := range q.want.All() {
		n := int32(q.timelines(p))
		c.PartitionsAsked++
		c.TimelinesAsked += n
		if why, ok := o.missing[p]; ok {
			c.Missing = append(c.Missing, &feedv1.Missing{Partition: int32(p), Timelines: n, Reason: why})
			continue
		}
		c.PartitionsAnswered++
		c.TimelinesAnswered += n
	}
	for _, pt := range o.parts {
		for a := range pt.answers() {
			if a.lag > 0 {
				c.TimelinesBehind += int32(q.timelines(a.partition))
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
			WayOut: "try again after a pause, or accept less",
		}
	}
	return nil
}

// receipt says what the answer was made from. While a model is rolled out,
// nodes may answer by different versions; all are named then.
func receipt(f *fanout, o outcome, entries []entry) *feedv1.Receipt {
	r := &feedv1.Receipt{MapEpoch: f.m.Epoch(), FeedVersion: f.q.feed.Version, AsOf: timestamp(f.q.asOf)}
	var models, versions, executions []string
	for _, pt := range o.parts {
		models = append(models, pt.resp.GetModel())
		versions = append(versions, pt.resp.GetModelVersion())
		executions = append(executions, pt.resp.GetExecution())
		r.Applied = append(r.Applied, applied(&pt))
	}
	r.Schemas = schemasOf(entries)
	r.Model, r.ModelVersion, r.Execution = each(models), each(versions), each(executions)
	return r
}

// applied says how much of the log a part includes.
func applied(pt *part) *feedv1.Applied {
	n := pt.covered.Len()
	offsets := make([]int64, 2*n)
	a := &feedv1.Applied{Node: string(pt.node), Partitions: make([]int32, 0, n), Content: offsets[:0:n], Features: offsets[n:n]}
	for of := range pt.answers() {
		a.Partitions, a.Content, a.Features = append(a.Partitions, int32(of.partition)), append(a.Content, of.content), append(a.Features, of.features)
		if of.lag > 0 && a.LagSeconds == nil {
			a.LagSeconds = make([]float64, len(a.Partitions)-1, n)
		}
		if a.LagSeconds != nil {
			a.LagSeconds = append(a.LagSeconds, of.lag.Seconds())
		}
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
	for _, pt := range o.parts {
		s := pt.resp.GetStages()
		e.Candidates += s.GetCandidates()
		e.FilteredFalse += s.GetFilteredFalse()
		e.FilteredNull += s.GetFilteredNull()
		e.FilteredError += s.GetFilteredError()
		e.FilteredNan += s.GetFilteredNan()
		e.Scored += s.GetScored()
		e.Capped += s.GetCapped()
		e.Clauses = addClauses(e.Clauses, pt.resp.GetClauses())
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
