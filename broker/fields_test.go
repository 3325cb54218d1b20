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
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
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
	many := make([]string, maxFields+1)
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

// A wrong name costs look-ups, however many fields there are: it is not compared
// with all of them, no node is asked while what one told is fresh, and names
// that have not changed are not told again.
func TestWrongFieldsAreCheap(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.add(timelineOf(0), recordID(0), timeAt(0), "")
	b := w.broker()
	resp := &nodev1.GetSchemaResponse{FieldsSum: 7}
	for i := range 100_000 {
		resp.Fields = append(resp.Fields, fmt.Sprintf("a_field_of_a_wide_schema_%d", i))
	}
	known := func(n int) {
		b.records.learn(&fieldBook{}, &nodev1.GetSchemaResponse{FieldsSum: 7, Fields: resp.Fields[:n]})
	}
	req := recentRequest(1)
	req.Fields = []string{"a_field_of_a_wide_schema_99x"}
	refused := func() {
		if _, err := b.GetFeed(t.Context(), req); refusal(t, err).Reason != millrace.ReasonUnknown {
			t.Fatal(err)
		}
	}
	asked := w.nodes["n0"].told
	known(100)
	few := testing.AllocsPerRun(20, refused)
	known(100_000)
	questions := w.nodes["n0"].calls()
	refused()
	if n := w.nodes["n0"].calls() - questions; n > 0 && b.records.told.Load().sum == 7 {
		t.Errorf("a wrong name among fields that are known was a question to %d nodes", n)
	}
	many := testing.AllocsPerRun(20, refused)
	if many > 3*few+50 {
		t.Errorf("a refusal takes %v allocations among 100,000 fields, and %v among 100", many, few)
	}
	if n := w.nodes["n0"].told - asked; n > 2 { // one a second, by whatever clock
		t.Errorf("nodes were asked %d times", n)
	}
	known(100_000) // whatever the node was asked meanwhile
	before := b.records.told.Load()
	b.records.learn(before, &nodev1.GetSchemaResponse{FieldsSum: 7})
	if now := b.records.told.Load(); len(now.names) != 100_000 || !now.closed || now.at.Before(before.at) || now == before {
		t.Errorf("%d names are known once a node has said that they are the same", len(now.names))
	}
	// Where nodes have too many fields to tell, a wrong one passes, and nodes are
	// not asked each time.
	w.nodes["n0"].silent = true
	b.records.learn(before, &nodev1.GetSchemaResponse{})
	asked = w.nodes["n0"].told
	for range 20 {
		if _, err := b.GetFeed(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	if n := w.nodes["n0"].told - asked; n > 2 {
		t.Errorf("nodes were asked %d times", n)
	}
}

// Beyond the bound a schema is fetched anew each time, and records are shown
// all the same.
func TestSchemasAreBounded(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.add(timelineOf(0), recordID(0), timeAt(0), "")
	b := w.broker()
	b.records.mu.bytes = maxSchemaBytes
	for range 2 {
		resp, err := b.GetFeed(t.Context(), recentRequest(1))
		if err != nil || len(resp.Items) != 1 || len(resp.Items[0].Record.GetFields()) == 0 {
			t.Fatalf("%v, %v", resp, err)
		}
	}
	if n := len(b.records.mu.known); n != 0 {
		t.Errorf("%d schemas are kept beyond the bound", n)
	}
}
