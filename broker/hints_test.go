package broker

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/feeds"
)

// An empty first page says what left no candidate; a page with items, and the
// end of a feed, say nothing.
func TestHints(t *testing.T) {
	w := newWorld(t, 2, 1)
	for i := range 3 {
		w.add(timelineOf(i), recordID(i), timeAt(i), "")
	}
	b := w.broker(feeds.Feed{Name: "typed", Types: []millrace.ContentType{"post"}, Model: "recency"})
	ask := func(change func(*feedv1.GetFeedRequest)) *feedv1.GetFeedResponse {
		t.Helper()
		req := recentRequest(3)
		change(req)
		resp, err := b.GetFeed(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	hint := func(want string, change func(*feedv1.GetFeedRequest)) {
		t.Helper()
		if resp := ask(change); len(resp.Items) != 0 || len(resp.Hints) != 1 || !strings.Contains(resp.Hints[0], want) {
			t.Errorf("%d items, hints %q, want %q", len(resp.Items), resp.Hints, want)
		}
	}
	hint("none of the 1 entities has a record:", func(r *feedv1.GetFeedRequest) { r.Entities = []string{"nobody"} })
	hint("has a record of type podcast:", func(r *feedv1.GetFeedRequest) { r.Types = []string{"podcast"} })
	hint("has a record of type a, b, c, d, e:", func(r *feedv1.GetFeedRequest) { r.Types = []string{"a", "b", "c", "d", "e"} })
	hint("has a record of a, b, c, d, e or 2 other types:", func(r *feedv1.GetFeedRequest) { r.Types = []string{"a", "b", "c", "d", "e", "f", "g"} })
	hint("has a record from 2100-01-01T00:00:00.000Z to 2100-01-02T00:00:00.000Z:", func(r *feedv1.GetFeedRequest) {
		day := time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)
		r.From, r.To = timestamppb.New(day), timestamppb.New(day.AddDate(0, 0, 1))
	})
	hint("has a record of type post:", func(r *feedv1.GetFeedRequest) { r.Feed, r.Entities = "typed", []string{"nobody"} })

	one := int64(2)
	first := ask(func(r *feedv1.GetFeedRequest) { r.Limit = &one })
	if len(first.Items) != 2 || len(first.Hints) != 0 {
		t.Errorf("%d items, hints %q", len(first.Items), first.Hints)
	}
	for token := first.NextPageToken; token != ""; {
		next := ask(func(r *feedv1.GetFeedRequest) { r.Limit, r.PageToken = &one, token })
		if len(next.Hints) != 0 {
			t.Errorf("a later page has hints %q", next.Hints)
		}
		token = next.NextPageToken
	}
	q, err := b.read(t.Context(), recentRequest(3), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	dropped := &nodev1.QueryResponse{Stages: &nodev1.Stages{Candidates: 4, FilteredFalse: 2, FilteredNull: 1, FilteredNan: 1}}
	got := hints(q, fanout.Outcome{Parts: []fanout.Part{{Resp: dropped}, {Resp: dropped}}, Missing: map[millrace.Partition]string{3: fanout.MissTimeout}})
	if len(got) != 2 || !strings.HasPrefix(got[0], "1 of 3 partitions did not answer") || !strings.HasPrefix(got[1], "the filter drops all 8 candidates: it is false for 4 and has no value for 4") {
		t.Errorf("hints %q", got)
	}
}
