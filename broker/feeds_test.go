package broker

import (
	"log/slog"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/internal/cluster"
)

// definitions is a cluster's documents, in memory.
type definitions struct {
	docs    map[string]cluster.Document
	changed chan struct{}
}

func (d *definitions) Current() map[string]cluster.Document { return d.docs }
func (d *definitions) Changed() <-chan struct{}             { return d.changed }

func (d *definitions) set(docs ...cluster.Document) {
	d.docs = map[string]cluster.Document{}
	for _, doc := range docs {
		d.docs[doc.Name] = doc
	}
	close(d.changed)
	d.changed = make(chan struct{})
}

func TestDefinedFeeds(t *testing.T) {
	d := &definitions{changed: make(chan struct{})}
	book := newFeedBook(append(BuiltIn(), Feed{Name: "file", Model: "m"}), d, slog.New(slog.DiscardHandler))
	served := func(want ...string) {
		t.Helper()
		if got := sortedKeys(book.current()); !slices.Equal(got, want) {
			t.Errorf("serves %v, want %v", got, want)
		}
	}
	served("file", "home", "recent")

	d.set(cluster.Document{Name: "jobs", Version: 5, Body: "name: jobs\nmodel: j1"}, cluster.Document{Name: "file", Version: 6, Body: "name: file\nmodel: m2"})
	served("file", "home", "jobs", "recent")
	if f := book.current()["file"]; f.Model != "m2" || f.Version != 6 || f.Limit != defaultLimit {
		t.Errorf("file is %+v", f)
	}

	// Bad ones change nothing: the last good one stays, a new one is not there.
	before := book.current()
	d.set(cluster.Document{Name: "jobs", Version: 7, Body: "name: jobs\nmodle: x"}, cluster.Document{Name: "other", Version: 8, Body: "name: another\nmodel: x"},
		cluster.Document{Name: "file", Version: 6, Body: "name: file\nmodel: m2"})
	served("file", "home", "jobs", "recent")
	if f := book.current()["jobs"]; f.Model != "j1" || f.Version != 5 {
		t.Errorf("jobs is %+v", f)
	}
	if before["jobs"].Version != 5 || len(before) != 4 {
		t.Error("a set that was handed out has changed")
	}

	// One that is deleted uncovers what came with the broker.
	d.set()
	served("file", "home", "recent")
	if f := book.current()["file"]; f.Model != "m" || f.Version != 0 {
		t.Errorf("file is %+v", f)
	}
}

func TestReceiptNamesTheFeedsVersion(t *testing.T) {
	w := newWorld(t, 1, 1)
	d := &definitions{changed: make(chan struct{})}
	b, err := New(Config{Maps: w, Dial: w.dial, Definitions: d, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	d.set(cluster.Document{Name: "recent", Version: 9, Body: "name: recent\nmodel: recency\nlimit: 1"})
	w.add(timelineOf(0), "a", timeAt(0), "")
	w.add(timelineOf(1), "b", timeAt(1), "")
	req := recentRequest(2)
	resp, err := b.GetFeed(t.Context(), req)
	if err != nil || resp.Receipt.FeedVersion != 9 || len(resp.Items) != 1 {
		t.Fatalf("%v, %v", resp, err)
	}
	// A definition that deduplicates otherwise ends the pages under way.
	d.set(cluster.Document{Name: "recent", Version: 10, Body: "name: recent\nmodel: recency\ndistinct_objects: true"})
	req.PageToken, req.Limit = resp.NextPageToken, proto.Int64(1)
	if _, err = b.GetFeed(t.Context(), req); refusal(t, err).Field != "page_token" {
		t.Errorf("got %v", err)
	}
}
