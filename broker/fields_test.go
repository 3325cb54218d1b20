package broker

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/limits"
)

// Items carry the fields of their records that a request names; of those that
// only other schemas have, nothing.
func TestFields(t *testing.T) {
	w := newWorld(t, 1, 1)
	for i := range 3 {
		w.add(timelineOf(i), recordID(i), timeAt(i), "")
	}
	b := w.broker()
	for _, c := range []struct{ ask, want []string }{
		{nil, []string{"at", "author", "id", "kind", "stars", "text"}},
		{[]string{"id"}, []string{"id"}},
		{[]string{"stars", "author", "likes"}, []string{"author", "stars"}}, // activity has likes
	} {
		req := recentRequest(3)
		req.Fields = c.ask
		resp, err := b.GetFeed(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if len(resp.Items) != 3 {
			t.Fatalf("%d items", len(resp.Items))
		}
		for _, it := range resp.Items {
			var got []string
			for name := range it.Record.GetFields() {
				got = append(got, name)
			}
			if slices.Sort(got); !slices.Equal(got, c.want) {
				t.Errorf("%q: item %s has the fields %q, want %q", c.ask, it.Id, got, c.want)
			}
		}
	}
	many := make([]string, limits.MaxFields+1)
	for i := range many {
		many[i] = fmt.Sprint("f", i)
	}
	for field, ask := range map[string][]string{"fields": many, "fields[1]": {"id", ""}} {
		req := recentRequest(3)
		req.Fields = ask
		if _, err := b.GetFeed(t.Context(), req); refusal(t, err).Field != field {
			t.Errorf("%d fields: %v", len(ask), err)
		}
	}
	first := recentRequest(3)
	first.Limit = new(int64(2))
	page, err := b.GetFeed(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	next := &feedv1.GetFeedRequest{Feed: first.Feed, Viewer: first.Viewer, Entities: first.Entities, Limit: first.Limit, PageToken: page.NextPageToken, Fields: []string{"id"}}
	if page, err = b.GetFeed(t.Context(), next); err != nil || len(page.Items) != 1 {
		t.Errorf("the next page with other fields: %v, %v", page, err)
	}
}

// A field that no schema has is refused, with the one that was meant; the
// broker asks for schemas that it has not met before it says so.
func TestUnknownFieldsAreRefused(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.add(timelineOf(0), recordID(0), timeAt(0), "")
	b := w.broker()
	for _, c := range []struct{ ask, field, wayOut string }{
		{"star", "fields[1]", "did you mean stars?"},
		{"headline", "fields[1]", "known are "},
		{"like", "fields[1]", "did you mean likes?"}, // of a schema that only the nodes have met
		{"engagement", "fields[1]", "known are "},    // of features, which are no records
	} {
		req := recentRequest(1)
		req.Fields = []string{"id", c.ask}
		_, err := b.GetFeed(t.Context(), req)
		if e := refusal(t, err); e.Reason != millrace.ReasonUnknown || e.Field != c.field || !strings.HasPrefix(e.WayOut, c.wayOut) {
			t.Errorf("%s: %v", c.ask, e)
		}
	}
	// One that asks for it again and again costs nodes nothing.
	before := w.nodes["n0"].told
	for range 20 {
		req := recentRequest(1)
		req.Fields = []string{"star"}
		if _, err := b.GetFeed(t.Context(), req); refusal(t, err).Reason != millrace.ReasonUnknown {
			t.Error(err)
		}
	}
	if n := w.nodes["n0"].told - before; n > 5 { // one a second, by whatever clock
		t.Errorf("20 requests asked %d times for the fields of all schemas", n)
	}
	// Nor do many at the same time.
	w.nodes["n0"].tells = 200 * time.Millisecond
	b, before = w.broker(), w.nodes["n0"].told
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			req := recentRequest(1)
			req.Fields = []string{"star"}
			if _, err := b.GetFeed(t.Context(), req); err == nil {
				t.Error("taken")
			}
		})
	}
	all.Wait()
	if n := w.nodes["n0"].told - before; n > 5 {
		t.Errorf("16 requests at a time asked %d times for the fields of all schemas", n)
	}
	// A node that does not tell what it knows leaves the question open.
	w.nodes["n0"].silent = true
	req := recentRequest(1)
	req.Fields = []string{"star"}
	if resp, err := w.broker().GetFeed(t.Context(), req); err != nil || len(resp.Items) != 1 {
		t.Errorf("%v, %v", resp, err)
	}
}
