package broker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/internal/partition"
)

func timelineOf(i int) millrace.Timeline               { return millrace.Timeline{Entity: entity(i), Type: "post"} }
func recordID(i int) millrace.RecordID                 { return millrace.RecordID(fmt.Sprintf("r%03d", i)) }
func timeAt(i int) millrace.Time                       { return millrace.Time(1_700_000_000_000 + 1000*int64(i)) }
func partitionOf(m *feedv1.Missing) millrace.Partition { return millrace.Partition(m.Partition) }

func recentRequest(entities int) *feedv1.GetFeedRequest {
	return &feedv1.GetFeedRequest{Feed: "recent", Viewer: &feedv1.Viewer{Id: "member:0"}, Entities: entityNames(entities)}
}

// refusal returns err as the refusal that it must be.
func refusal(t *testing.T, err error) *millrace.Error {
	t.Helper()
	var e *millrace.Error
	if !errors.As(err, &e) {
		t.Fatalf("%v is not a refusal", err)
	}
	return e
}

func TestHostileRequestsAreRefused(t *testing.T) {
	b := newWorld(t, 1, 1).broker()
	list := func(v ...any) *structpb.Value {
		l, err := structpb.NewList(v)
		if err != nil {
			t.Fatal(err)
		}
		return structpb.NewListValue(l)
	}
	attribute := func(name string, v *structpb.Value) func(*feedv1.GetFeedRequest) {
		return func(r *feedv1.GetFeedRequest) { r.Viewer.Attributes = map[string]*structpb.Value{name: v} }
	}
	feature := func(name string, v float64) func(*feedv1.GetFeedRequest) {
		return func(r *feedv1.GetFeedRequest) { r.Viewer.Features = map[string]float64{name: v} }
	}
	limit := func(n int64) func(*feedv1.GetFeedRequest) {
		return func(r *feedv1.GetFeedRequest) { r.Limit = proto.Int64(n) }
	}
	filter := func(f string) func(*feedv1.GetFeedRequest) {
		return func(r *feedv1.GetFeedRequest) { r.Filter = f }
	}
	year := func(y int) *timestamppb.Timestamp { return timestamppb.New(time.Date(y, 1, 1, 0, 0, 0, 0, time.UTC)) }
	for name, c := range map[string]struct {
		change func(*feedv1.GetFeedRequest)
		reason millrace.Reason
		field  string
	}{
		"no feed":              {func(r *feedv1.GetFeedRequest) { r.Feed = "" }, millrace.ReasonInvalid, "feed"},
		"unknown feed":         {func(r *feedv1.GetFeedRequest) { r.Feed = "recnet" }, millrace.ReasonUnknown, "feed"},
		"no entities":          {func(r *feedv1.GetFeedRequest) { r.Entities = nil }, millrace.ReasonInvalid, "entities"},
		"100,000 entities":     {func(r *feedv1.GetFeedRequest) { r.Entities = entityNames(100_000) }, millrace.ReasonTooLarge, "entities"},
		"20,001 entities":      {func(r *feedv1.GetFeedRequest) { r.Entities = entityNames(20_001) }, millrace.ReasonTooLarge, "entities"},
		"empty entity":         {func(r *feedv1.GetFeedRequest) { r.Entities[1] = "" }, millrace.ReasonInvalid, "entities[1]"},
		"long entity":          {func(r *feedv1.GetFeedRequest) { r.Entities[1] = strings.Repeat("x", 513) }, millrace.ReasonInvalid, "entities[1]"},
		"entity not UTF-8":     {func(r *feedv1.GetFeedRequest) { r.Entities[1] = "\xff" }, millrace.ReasonInvalid, "entities[1]"},
		"empty type":           {func(r *feedv1.GetFeedRequest) { r.Types = []string{"post", ""} }, millrace.ReasonInvalid, "types[1]"},
		"type not of the feed": {func(r *feedv1.GetFeedRequest) { r.Feed, r.Types = "home", []string{"job"} }, millrace.ReasonUnknown, "types[0]"},
		"101 types":            {func(r *feedv1.GetFeedRequest) { r.Types = make([]string, 101) }, millrace.ReasonTooLarge, "types"},
		"limit 0":              {limit(0), millrace.ReasonInvalid, "limit"},
		"limit -1":             {limit(-1), millrace.ReasonInvalid, "limit"},
		"limit 1,001":          {limit(1001), millrace.ReasonInvalid, "limit"},
		"limit 2^31":           {limit(1 << 31), millrace.ReasonInvalid, "limit"},
		"limit 2^32+1":         {limit(1<<32 + 1), millrace.ReasonInvalid, "limit"},
		"limit 2^63-1":         {limit(math.MaxInt64), millrace.ReasonInvalid, "limit"},
		"from after to":        {func(r *feedv1.GetFeedRequest) { r.From, r.To = year(2026), year(2025) }, millrace.ReasonInvalid, "from"},
		"from before 1970":     {func(r *feedv1.GetFeedRequest) { r.From = year(1969) }, millrace.ReasonInvalid, "from"},
		"to malformed":         {func(r *feedv1.GetFeedRequest) { r.To = &timestamppb.Timestamp{Seconds: 1 << 60} }, millrace.ReasonInvalid, "to"},
		"nanos negative":       {func(r *feedv1.GetFeedRequest) { r.To = &timestamppb.Timestamp{Nanos: -1} }, millrace.ReasonInvalid, "to"},
		"as_of before 1970":    {func(r *feedv1.GetFeedRequest) { r.AsOf = year(1900) }, millrace.ReasonInvalid, "as_of"},
		"filter too long":      {filter(strings.Repeat(" ", 8001)), millrace.ReasonFilter, "filter"},
		"filter with NUL":      {filter("true\x00"), millrace.ReasonFilter, "filter"},
		"filter not UTF-8":     {filter("\xff"), millrace.ReasonFilter, "filter"},
		"model with a slash":   {func(r *feedv1.GetFeedRequest) { r.Model = "../x" }, millrace.ReasonInvalid, "model"},
		"min_coverage 1.1":     {func(r *feedv1.GetFeedRequest) { r.MinCoverage = 1.1 }, millrace.ReasonInvalid, "min_coverage"},
		"min_coverage NaN":     {func(r *feedv1.GetFeedRequest) { r.MinCoverage = math.NaN() }, millrace.ReasonInvalid, "min_coverage"},
		"long viewer id":       {func(r *feedv1.GetFeedRequest) { r.Viewer.Id = strings.Repeat("x", 513) }, millrace.ReasonInvalid, "viewer.id"},
		"attribute id":         {attribute("id", structpb.NewStringValue("x")), millrace.ReasonInvalid, "viewer.attributes.id"},
		"attribute 1x":         {attribute("1x", structpb.NewStringValue("x")), millrace.ReasonInvalid, "viewer.attributes.1x"},
		"attribute null":       {attribute("a", structpb.NewNullValue()), millrace.ReasonInvalid, "viewer.attributes.a"},
		"attribute unset":      {attribute("a", &structpb.Value{}), millrace.ReasonInvalid, "viewer.attributes.a"},
		"attribute object":     {attribute("a", structpb.NewStructValue(&structpb.Struct{})), millrace.ReasonInvalid, "viewer.attributes.a"},
		"attribute mixed":      {attribute("a", list("x", 1)), millrace.ReasonInvalid, "viewer.attributes.a"},
		"attribute booleans":   {attribute("a", list(true)), millrace.ReasonInvalid, "viewer.attributes.a"},
		"attribute nested":     {attribute("a", list([]any{})), millrace.ReasonInvalid, "viewer.attributes.a"},
		"attribute NaN":        {attribute("a", structpb.NewNumberValue(math.NaN())), millrace.ReasonInvalid, "viewer.attributes.a"},
		"feature infinite":     {feature("f", math.Inf(1)), millrace.ReasonInvalid, "viewer.features.f"},
		"feature id":           {feature("id", 1), millrace.ReasonInvalid, "viewer.features.id"},
		"several faults": {func(r *feedv1.GetFeedRequest) {
			r.Viewer.Attributes = map[string]*structpb.Value{}
			for _, name := range []string{"c", "a", "b", "d", "e", "f", "g"} {
				r.Viewer.Attributes[name] = structpb.NewNullValue()
			}
			feature("1", 1)(r)
		}, millrace.ReasonInvalid, "viewer.attributes.a"},
		"name in both": {func(r *feedv1.GetFeedRequest) {
			attribute("a", structpb.NewBoolValue(true))(r)
			feature("a", 1)(r)
		}, millrace.ReasonInvalid, "viewer.features.a"},
	} {
		t.Run(name, func(t *testing.T) {
			req := recentRequest(2)
			c.change(req)
			_, err := b.GetFeed(t.Context(), req)
			e := refusal(t, err)
			if e.Reason != c.reason || e.Field != c.field || e.WayOut == "" || e.Detail == "" {
				t.Errorf("got %+v, want reason %s, field %s and a way out", e, c.reason, c.field)
			}
		})
	}
}

func TestAtTheLimits(t *testing.T) {
	b := newWorld(t, 1, 1).broker()
	req := recentRequest(20_000)
	req.Entities = append(req.Entities, req.Entities...) // duplicates count once
	req.Limit = proto.Int64(1000)
	req.From, req.To = timestamp(5), timestamp(5)
	req.Viewer.Attributes = map[string]*structpb.Value{"empty": structpb.NewListValue(&structpb.ListValue{})}
	resp, err := b.GetFeed(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if got := resp.Coverage.TimelinesAsked; got != 20_000 {
		t.Errorf("%d timelines asked", got)
	}
}

// What a request leaves out comes from its feed; times are rounded so that
// whole milliseconds decide alike.
func TestNodesAreAsked(t *testing.T) {
	w := newWorld(t, 1, 1)
	b := w.broker(feeds.Feed{Name: "f", Model: "m", Types: []millrace.ContentType{"post", "like"}, Filter: "record.a == 1 // one", Window: time.Hour, CapPerEntity: 2, DistinctObjects: true, Limit: 7, Shadow: []string{"other"}})
	b.gaps.Every = 0
	now := time.UnixMilli(1_700_000_000_123)
	req := &feedv1.GetFeedRequest{Feed: "f", Entities: []string{"a", "a"}, Filter: " record.b "}
	q, err := b.read(t.Context(), req, now)
	if err != nil {
		t.Fatal(err)
	}
	want := &nodev1.QueryRequest{
		Entities: partition.AppendEntity(nil, partition.Of("a"), "a"), Types: []string{"like", "post"}, FromMs: now.UnixMilli() - 3_600_000, ToMs: int64(millrace.MaxTime) + 1, AsOfMs: now.UnixMilli(),
		Filter: "record.a == 1 // one", RequestFilter: "record.b", Model: "m", Limit: 7, CapPerEntity: 2, DistinctObjects: true,
		GivesWay: true,
	}
	if got := q.Ask(q.Groups[0], q.Want, 0); !proto.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	q.Query.Explain = true // only then shadows score
	want.Explain, want.Shadow = true, []*nodev1.Model{{Name: "other"}}
	if got := q.Ask(q.Groups[0], q.Want, 0); !proto.Equal(got, want) {
		t.Errorf("to explain: got  %v\nwant %v", got, want)
	}
	req.From, req.To, req.AsOf = &timestamppb.Timestamp{Nanos: 1}, &timestamppb.Timestamp{Nanos: 2_000_001}, &timestamppb.Timestamp{Nanos: 5_999_999}
	req.Types, req.Model = []string{"post"}, "other"
	if q, err = b.read(t.Context(), req, now); err != nil {
		t.Fatal(err)
	}
	if got := q.Query; got.FromMs != 1 || got.ToMs != 3 || got.AsOfMs != 5 || got.Model != "other" || len(got.Types) != 1 {
		t.Errorf("got %v", got)
	}
}

// A refusal by a node is the request's fault and comes through as it is.
func TestNodesRefusalComesThrough(t *testing.T) {
	w := newWorld(t, 3, 2)
	for _, n := range w.nodes {
		n.err = &millrace.Error{Reason: millrace.ReasonFilter, Field: "filter", Detail: "no field x", WayOut: "try y"}
	}
	_, err := w.broker().GetFeed(t.Context(), recentRequest(30))
	if e := refusal(t, err); e.Reason != millrace.ReasonFilter || e.WayOut != "try y" {
		t.Errorf("got %+v", e)
	}
}

// What one node refuses is refused at once, whoever else is still at work; a filter
// once there was time for another node that has read a schema of which the first has
// not heard.
func TestRefusalWaitsForNobody(t *testing.T) {
	for reason, wait := range map[millrace.Reason]time.Duration{millrace.ReasonInvalid: 0, millrace.ReasonFilter: filterWait} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 2, 1)
			w.nodes["n0"].err = &millrace.Error{Reason: reason, Field: "filter", Detail: "no field x", WayOut: "try y"}
			w.nodes["n1"].frozen = true
			start := time.Now()
			_, err := w.broker().GetFeed(t.Context(), recentRequest(30))
			if e := refusal(t, err); e.Reason != reason || time.Since(start) != wait {
				t.Errorf("%s: %+v after %v", reason, e, time.Since(start))
			}
		})
	}
}

// A node that has not read a schema is asked no more of a filter that others take:
// they answer in its place, and what nobody else has is missing.
func TestANodeThatLacksASchema(t *testing.T) {
	unread := &millrace.Error{Reason: millrace.ReasonFilter, Field: "filter", Detail: "no field x", WayOut: "try y"}
	for replicas, missing := range map[int]bool{1: true, 2: false} {
		w := newWorld(t, 3, replicas)
		for i := range 30 {
			w.add(timelineOf(i), recordID(i), timeAt(i), "")
		}
		b := w.broker()
		for _, late := range []millrace.NodeID{"none", "n0", "n1", "n2"} {
			for id, n := range w.nodes {
				if n.err = nil; id == late {
					n.err = unread
				}
			}
			resp, err := b.GetFeed(t.Context(), recentRequest(30))
			if err != nil || len(resp.Coverage.Missing) > 0 != (missing && late != "none") || len(resp.Items) == 0 {
				t.Fatalf("%d replicas, %s is late: %v, %v", replicas, late, err, resp.GetCoverage())
			}
			for _, m := range resp.Coverage.Missing {
				if m.Reason != fanout.MissBehind {
					t.Errorf("%d replicas, %s is late: %v", replicas, late, m)
				}
			}
		}
		for id, n := range w.nodes {
			if n.err = unread; id == "n2" {
				n.err, n.frozen = nil, true
			}
		}
		_, err := b.GetFeed(t.Context(), recentRequest(30))
		if e := refusal(t, err); e.Reason != millrace.ReasonFilter {
			t.Errorf("two refuse it, and the third says nothing: %v", e)
		}
	}
}

func TestNobodyAnswers(t *testing.T) {
	for _, c := range []struct {
		err  error
		want millrace.Reason
	}{
		{errors.New("broken"), millrace.ReasonUnavailable},
		{&millrace.Error{Reason: millrace.ReasonOverloaded}, millrace.ReasonOverloaded},
		{context.DeadlineExceeded, millrace.ReasonDeadline},
	} {
		w := newWorld(t, 2, 2)
		for _, n := range w.nodes {
			n.err = c.err
		}
		_, err := w.broker().GetFeed(t.Context(), recentRequest(5))
		if e := refusal(t, err); e.Reason != c.want {
			t.Errorf("%v gave %+v", c.err, e)
		}
	}
}

func TestExpiredAndCancelledRequestsAskNobody(t *testing.T) {
	w := newWorld(t, 1, 1)
	b := w.broker()
	expired, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	_, err := b.GetFeed(expired, recentRequest(1))
	if e := refusal(t, err); e.Reason != millrace.ReasonDeadline {
		t.Errorf("expired: %+v", e)
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := b.GetFeed(gone, recentRequest(1)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if n := len(w.nodes["n0"].asked); n > 0 {
		t.Errorf("%d calls", n)
	}
}

// Where nodes shed load, trying others is bounded, lest the overload spread.
func TestShedLoadIsNotSpread(t *testing.T) {
	w := newWorld(t, 2, 2)
	for _, n := range w.nodes {
		n.err = &millrace.Error{Reason: millrace.ReasonOverloaded}
	}
	b := w.broker()
	for range 200 {
		_, err := b.GetFeed(t.Context(), recentRequest(5))
		if e := refusal(t, err); e.Reason != millrace.ReasonOverloaded {
			t.Fatalf("got %+v", e)
		}
	}
	if n := w.calls(); n > 200+3*mostHedges { // one a request, and what the budget allows
		t.Errorf("%d calls for 200 requests", n)
	}
}

// A partition that no replica can answer has nobody asked again for the others.
func TestOnePartitionThatNobodyHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // or a busy machine is hedged
		w := newWorld(t, 3, 3)
		for i := range 60 {
			w.add(timelineOf(i), recordID(i), timeAt(i), "")
		}
		gone := partition.Of(entity(7))
		for _, n := range w.nodes {
			n.behind.Add(gone)
		}
		resp, err := w.broker().GetFeed(t.Context(), recentRequest(60))
		if err != nil || len(resp.Coverage.Missing) != 1 || resp.Coverage.Missing[0].Reason != fanout.MissBehind {
			t.Fatalf("%v, %v", resp.GetCoverage(), err)
		}
		asked := map[millrace.Partition]int{}
		for _, n := range w.nodes {
			for _, req := range n.asked {
				for p := range partitionsAsked(t, req) {
					asked[p]++
				}
			}
		}
		for p, n := range asked {
			if p != gone && n != 1 {
				t.Errorf("partition %d, which all have, is asked for %d times", p, n)
			}
		}
	})
}

func partitionsAsked(t *testing.T, req *nodev1.QueryRequest) map[millrace.Partition]bool {
	all := map[millrace.Partition]bool{}
	for _, e := range splitEntities(t, req.Entities) {
		all[partition.Of(e)] = true
	}
	return all
}

// Who asks for a type that is new does not wait for a node that answers nobody: it may
// know.
func TestTypesAreNotAskedOfTheMute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, 1)
		for _, n := range w.nodes {
			n.types = []string{"post"}
		}
		var req *feedv1.GetFeedRequest
		for i := 0; req == nil; i++ { // an entity of n0
			if w.m.Replicas(partition.Of(entity(i)))[0] == "n0" {
				w.add(timelineOf(i), recordID(i), timeAt(i), "")
				req = &feedv1.GetFeedRequest{Feed: "recent", Entities: []string{string(entity(i))}, Types: []string{"story"}}
			}
		}
		w.nodes["n1"].set(func() { w.nodes["n1"].frozen = true })
		b := w.broker()
		asks := func(within time.Duration) {
			t.Helper()
			begin := time.Now()
			if resp, err := b.GetFeed(t.Context(), req); err != nil || len(resp.Coverage.Missing) > 0 || time.Since(begin) > within {
				t.Errorf("%v, %v after %v", resp, err, time.Since(begin))
			}
		}
		asks(2 * typesWithin)
		_, _ = b.GetFeed(t.Context(), recentRequest(60)) // which finds that it is unresponsive
		asks(typesWithin / 2)
	})
}
