package broker

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/pagetoken"
)

func named[T any](n int, value T) map[string]T {
	m := make(map[string]T, n)
	for i := range n {
		m[fmt.Sprint("x", i)] = value
	}
	return m
}

func distinct(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint("x", i)
	}
	return names
}

// Of each thing that a request may have many of, the most is taken and one
// more is refused by name.
func TestTheLimitsOfARequest(t *testing.T) {
	b := newWorld(t, 1, 1).broker()
	attribute := func(r *feedv1.GetFeedRequest, v *structpb.Value) {
		r.Viewer.Attributes = map[string]*structpb.Value{"a": v}
	}
	for what, c := range map[string]struct {
		most   int
		have   func(r *feedv1.GetFeedRequest, n int)
		reason millrace.Reason
		field  string
	}{
		"types":      {100, func(r *feedv1.GetFeedRequest, n int) { r.Types = distinct(n) }, millrace.ReasonTooLarge, "types"},
		"fields":     {100, func(r *feedv1.GetFeedRequest, n int) { r.Fields = distinct(n) }, millrace.ReasonInvalid, "fields"},
		"entities":   {20_000, func(r *feedv1.GetFeedRequest, n int) { r.Entities = distinct(n) }, millrace.ReasonTooLarge, "entities"},
		"timelines":  {2000, func(r *feedv1.GetFeedRequest, n int) { r.Entities, r.Types = distinct(n), distinct(100) }, millrace.ReasonTooLarge, "entities"},
		"attributes": {1000, func(r *feedv1.GetFeedRequest, n int) { r.Viewer.Attributes = named(n, structpb.NewBoolValue(true)) }, millrace.ReasonTooLarge, "viewer.attributes"},
		"features":   {10_000, func(r *feedv1.GetFeedRequest, n int) { r.Viewer.Features = named(n, 1.0) }, millrace.ReasonTooLarge, "viewer.features"},
		"values": {10_000, func(r *feedv1.GetFeedRequest, n int) {
			attribute(r, structpb.NewListValue(&structpb.ListValue{Values: numbers(n)}))
		}, millrace.ReasonInvalid, "viewer.attributes.a"},
		"text":        {16 << 10, func(r *feedv1.GetFeedRequest, n int) { attribute(r, structpb.NewStringValue(strings.Repeat("x", n))) }, millrace.ReasonInvalid, "viewer.attributes.a"},
		"a viewer id": {512, func(r *feedv1.GetFeedRequest, n int) { r.Viewer.Id = strings.Repeat("x", n) }, millrace.ReasonInvalid, "viewer.id"},
		"a model":     {63, func(r *feedv1.GetFeedRequest, n int) { r.Model = strings.Repeat("x", n) }, millrace.ReasonInvalid, "model"},
		"a filter":    {8000, func(r *feedv1.GetFeedRequest, n int) { r.Filter = strings.Repeat(" ", n) }, millrace.ReasonFilter, "filter"},
		"an entity":   {millrace.MaxEntityBytes, func(r *feedv1.GetFeedRequest, n int) { r.Entities = []string{strings.Repeat("x", n)} }, millrace.ReasonInvalid, "entities[0]"},
		"a type":      {millrace.MaxTypeBytes, func(r *feedv1.GetFeedRequest, n int) { r.Types = []string{strings.Repeat("x", n)} }, millrace.ReasonInvalid, "types[0]"},
		"a name": {128, func(r *feedv1.GetFeedRequest, n int) {
			r.Viewer.Features = map[string]float64{strings.Repeat("x", n): 1}
		}, millrace.ReasonInvalid, "viewer.features." + strings.Repeat("x", 129)},
		"served items": {9999, func(r *feedv1.GetFeedRequest, n int) {
			r.PageToken = ""
			q, err := b.read(t.Context(), r, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			hashes := make([]uint64, n)
			for i := range hashes {
				hashes[i] = uint64(i) * (math.MaxUint64 / 20_000)
			}
			c := pagetoken.Cursor{Issued: millrace.TimeOf(time.Now()), AsOf: q.asOf, Request: q.request, Model: "recency", Feed: q.feed.Edition().Version, FeedSum: q.feed.Edition().Sum, Served: hashes}
			r.PageToken = c.Encode(b.pages.Signing(time.Now()))
		}, millrace.ReasonTooLarge, "page_token"},
	} {
		t.Run(what, func(t *testing.T) {
			req := recentRequest(2)
			c.have(req, c.most)
			if _, err := b.read(t.Context(), req, time.Now()); err != nil {
				t.Errorf("%d: %.300v", c.most, err)
			}
			c.have(req, c.most+1)
			_, err := b.read(t.Context(), req, time.Now())
			if e := refusal(t, err); e.Reason != c.reason || e.Field != c.field || e.WayOut == "" {
				t.Errorf("%d: %.300v", c.most+1, e)
			}
		})
	}
}

func numbers(n int) []*structpb.Value {
	values := make([]*structpb.Value, n)
	for i := range values {
		values[i] = structpb.NewNumberValue(1)
	}
	return values
}

// What is longer than any request may be is not read, by whichever door.
func TestLongMessagesAreRefused(t *testing.T) {
	b := newWorld(t, 1, 1).broker()
	req := recentRequest(2)
	for range 17 {
		req.Fields = append(req.Fields, strings.Repeat("x", 1<<20))
	}
	for name, ask := range doorsOf(t, b) {
		if name == "in process" || strings.Contains(name, "POST") || strings.Contains(name, "UTF-8") {
			continue // TestHTTPRefusals has the last two
		}
		if _, err := ask(req); err == nil || !strings.Contains(strings.ToLower(err.Error()), "larger than") {
			t.Errorf("%s: %.300v", name, err)
		}
	}
}

// An item names three others of its object at most, from however many nodes.
func TestAlsoIsBounded(t *testing.T) {
	w := newWorld(t, 3, 1)
	for i := range 20 {
		w.add(timelineOf(i), recordID(i), timeAt(i), "o1")
	}
	req := recentRequest(20)
	req.Feed = "objects"
	resp, err := w.broker(feeds.Feed{Name: "objects", Model: "recency", DistinctObjects: true, Limit: 5}).GetFeed(t.Context(), req)
	if err != nil || len(resp.Items) != 1 || len(resp.Items[0].Also) != 3 {
		t.Errorf("%v, %v", resp, err)
	}
}
