package broker

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/feedstest"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/secrets"
)

// TestDefinitionsAreReadOffTheRequestPath: while one is read for ever,
// requests are answered by the feeds of before, and nobody waits.
func TestDefinitionsAreReadOffTheRequestPath(t *testing.T) {
	w := newWorld(t, 1, 1)
	d := feedstest.New()
	d.Serve("jobs", 1, "name: jobs\nmodel: recency\nlimit: 1")
	b, err := New(Config{Maps: w, Dial: w.dial, Definitions: d, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	begun, free := make(chan struct{}), make(chan struct{})
	d.Mu.Lock()
	d.Read = func(artefacts.Version) error {
		begun <- struct{}{}
		<-free
		return nil
	}
	d.Mu.Unlock()
	defer func() { _ = b.Close() }()
	defer close(free)
	d.Serve("jobs", 2, "name: jobs\nmodel: recency\nlimit: 2")
	<-begun
	for range 100 {
		req := recentRequest(1)
		req.Feed, req.Limit = "jobs", nil
		resp, err := b.GetFeed(t.Context(), req)
		if err != nil || resp.Receipt.FeedVersion != 1 {
			t.Fatalf("%v, %v", resp.GetReceipt(), err)
		}
	}
}

// TestADefinitionThatNodesRefuseIsNotTakenOver: it was stored by other means
// than the command, and no caller meets it.
func TestADefinitionThatNodesRefuseIsNotTakenOver(t *testing.T) {
	w := newWorld(t, 2, 1)
	d := feedstest.New()
	d.Serve("jobs", 1, "name: jobs\nmodel: recency\nfilter: record.stars > 1")
	b := w.defined(d)
	refuse := &millrace.Error{Reason: millrace.ReasonFilter, Field: "filter", Detail: "no field strs"}
	for _, n := range w.nodes {
		n.set(func() { n.err = refuse })
	}
	d.Serve("jobs", 2, "name: jobs\nmodel: recency\nfilter: record.strs > 1")
	d.Settle()
	if f := b.feeds.Current()["jobs"]; f.Version != 1 {
		t.Errorf("serves %+v", f)
	}
	if got := feedstest.FaultsOf(t, b.feeds.Collectors()[0]); !slices.Equal(got, []string{"jobs"}) {
		t.Errorf("faults are told of %v", got)
	}
	// Who asks for one of which no version was ever good is not to blame.
	d.Serve("news", 1, "name: news\nmodel: recency\nfilter: record.strs > 1")
	d.Settle()
	for name, want := range map[string]millrace.Reason{"news": millrace.ReasonUnavailable, "nosuch": millrace.ReasonUnknown} {
		_, err := b.GetFeed(t.Context(), &feedv1.GetFeedRequest{Feed: name, Entities: entityNames(1)})
		if e := refusal(t, err); e.Reason != want || e.Field != "feed" {
			t.Errorf("feed %s: %+v", name, e)
		}
	}
	d.Drop("news")
	// One node that takes it is enough: the other does not know a schema yet.
	w.nodes["n1"].set(func() { w.nodes["n1"].err = nil })
	d.Serve("", 0, "")
	d.Settle()
	if f := b.feeds.Current()["jobs"]; f.Version != 2 {
		t.Errorf("serves %+v", f)
	}
	// Where nobody can be asked nothing is known against it.
	for _, n := range w.nodes {
		n.set(func() { n.err = errors.New("away") })
	}
	d.Serve("jobs", 3, "name: jobs\nmodel: recency\nfilter: record.stars > 3")
	d.Settle()
	if f := b.feeds.Current()["jobs"]; f.Version != 3 {
		t.Errorf("serves %+v", f)
	}
}

// TestCheckFeed: everything that requests would meet is found before a
// definition is stored.
func TestCheckFeed(t *testing.T) {
	w := newWorld(t, 3, 1)
	checks := feeds.Checks{Models: []string{"recency", "home"}, Nodes: map[millrace.NodeID]fanout.Node{"n0": w.nodes["n0"], "n1": w.nodes["n1"], "n2": w.nodes["n2"]}}
	f := feeds.Feed{Name: "a", Model: "recency", Filter: "record.stars > 1", Shadow: []string{"home"}}
	if unheard, err := feeds.Check(t.Context(), f, checks); err != nil || len(unheard) > 0 {
		t.Errorf("%v, %v", unheard, err)
	}
	w.nodes["n1"].err = errors.New("away")
	if unheard, err := feeds.Check(t.Context(), f, checks); err != nil || !slices.Equal(unheard, []millrace.NodeID{"n1"}) {
		t.Errorf("one of three can't be asked: %v, %v", unheard, err)
	}
	w.nodes["n2"].err = &millrace.Error{Reason: millrace.ReasonFilter, Field: "filter", Detail: "no field strs", WayOut: "did you mean stars?"}
	f.Model, f.Shadow = "nope", []string{"home", "none"}
	_, err := feeds.Check(t.Context(), f, checks)
	for _, want := range []string{`model: no model "nope" serves; push it first, or name one of recency, home`, `shadow[1]: no model "none" serves`, "index node n2: filter: no field strs; did you mean stars?"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in %v", want, err)
		}
	}
	_, err = feeds.Check(t.Context(), feeds.Feed{Model: "recency", Filter: "true"}, feeds.Checks{Models: []string{"recency"}})
	if r := refusal(t, err); r.Reason != millrace.ReasonUnavailable || r.Field != "filter" {
		t.Errorf("no node: %v", err)
	}
	if _, err = feeds.Check(t.Context(), feeds.Feed{Model: "recency"}, feeds.Checks{Models: []string{"recency"}}); err != nil {
		t.Errorf("without a filter nobody has to be asked: %v", err)
	}
}

// A type of a definition that no record has is told, however many there are, unless
// a node that may know it is not heard, or there are no records.
func TestUnseenTypes(t *testing.T) {
	w := newWorld(t, 2, 1)
	checks := feeds.Checks{Nodes: map[millrace.NodeID]fanout.Node{"n0": w.nodes["n0"], "n1": w.nodes["n1"]}}
	types := []millrace.ContentType{"post", "nosuch"}
	for i := range 150 {
		types = append(types, millrace.ContentType(fmt.Sprintf("a%03d", i)))
	}
	for _, n := range w.nodes {
		n.types = []string{"like"}
	}
	w.nodes["n1"].types = []string{"like", "post"}
	for _, n := range w.nodes {
		for i := range 150 {
			n.types = append(n.types, fmt.Sprintf("a%03d", i))
		}
	}
	if unseen, known := checks.Unseen(t.Context(), types); !slices.Equal(unseen, []string{"nosuch"}) || !strings.HasSuffix(known, "a149, like, post") {
		t.Errorf("%v, of %s", unseen, known)
	}
	for _, quiet := range []func(){
		func() { checks.Absent = true },
		func() { w.nodes["n0"].err = errors.New("away") },
		func() { w.nodes["n0"].types = nil },
		func() { w.nodes["n0"].types, w.nodes["n1"].types = []string{}, []string{} },
	} {
		quiet()
		if unseen, _ := checks.Unseen(t.Context(), types); len(unseen) > 0 {
			t.Errorf("%v", unseen)
		}
		checks.Absent, w.nodes["n0"].err = false, nil
	}
}

func TestReceiptNamesTheFeedsVersion(t *testing.T) {
	w := newWorld(t, 1, 1)
	d := feedstest.New()
	b := w.defined(d)
	d.Serve("recent", 9, "name: recent\nmodel: recency\nlimit: 1")
	d.Settle()
	w.add(timelineOf(0), "a", timeAt(0), "")
	w.add(timelineOf(1), "b", timeAt(1), "")
	req := recentRequest(2)
	resp, err := b.GetFeed(t.Context(), req)
	if err != nil || resp.Receipt.FeedVersion != 9 || len(resp.Items) != 1 {
		t.Fatalf("%v, %v", resp, err)
	}
	// One that deduplicates otherwise begins with the next first page.
	d.Serve("recent", 10, "name: recent\nmodel: recency\ndistinct_objects: true")
	d.Settle()
	req.PageToken, req.Limit = resp.NextPageToken, proto.Int64(1)
	if resp, err = b.GetFeed(t.Context(), req); err != nil || resp.Receipt.FeedVersion != 9 {
		t.Errorf("%v, %v", resp, err)
	}
}

// TestPagesKeepTheirDefinition: what serves may change between two pages, on a
// broker that knew the first definition and on one that did not; a page is by
// the definition of the first, and by nothing once that is gone.
func TestPagesKeepTheirDefinition(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.fill(rand.New(rand.NewPCG(1, 1)), 20, 100)
	d := feedstest.New()
	brokerOf := func() *Broker {
		b, err := New(Config{Maps: w, Dial: w.dial, Definitions: d, Log: slog.New(slog.DiscardHandler), PageKeys: func() []secrets.Generation {
			return []secrets.Generation{{Secret: []byte("0123456789abcdef0123456789abcdef")}}
		}})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	d.Serve("ranked", 1, "name: ranked\nmodel: recency\nfilter: record.likes > 1\ncap_per_entity: 2")
	knows := brokerOf()
	defer func() { _ = knows.Close() }()
	req := rankedRequest(5)
	first, err := knows.GetFeed(t.Context(), req)
	if err != nil || first.NextPageToken == "" {
		t.Fatalf("%v, %v", first, err)
	}
	d.Serve("ranked", 2, "name: ranked\nmodel: recency\nfilter: record.likes > 2\ndistinct_objects: true\ntypes: [like]\nforbid: {explain: true}")
	d.Settle()
	another := brokerOf()
	for name, b := range map[string]*Broker{"one that served it": knows, "another": another} {
		next := proto.Clone(req).(*feedv1.GetFeedRequest)
		next.PageToken = first.NextPageToken
		resp, err := b.GetFeed(t.Context(), next)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		n := w.nodes["n0"]
		asked := n.asked[len(n.asked)-1]
		if resp.Receipt.FeedVersion != 1 || asked.Filter != "record.likes > 1" || asked.CapPerEntity != 2 || asked.DistinctObjects || len(asked.Types) > 0 {
			t.Errorf("%s: a later page is by version %d: %v", name, resp.Receipt.FeedVersion, asked)
		}
		next.Explain = true
		if _, err := b.GetFeed(t.Context(), next); refusal(t, err).Reason != millrace.ReasonForbidden {
			t.Errorf("%s: what is forbidden since is not: %v", name, err)
		}
		fresh := proto.Clone(req).(*feedv1.GetFeedRequest)
		fresh.Types = []string{"like"}
		if resp, err := b.GetFeed(t.Context(), fresh); err != nil || resp.Receipt.FeedVersion != 2 {
			t.Errorf("%s: a first page is by %v, %v", name, resp.GetReceipt(), err)
		}
	}
	if err := another.Close(); err != nil { // so that knows alone settles
		t.Fatal(err)
	}
	for _, name := range []string{"recent", "other"} { // one that came with the broker, and one beside it
		d.Serve("other", 1, "name: other\nmodel: recency")
		d.Settle()
		next := proto.Clone(req).(*feedv1.GetFeedRequest)
		next.Feed, next.PageToken = name, first.NextPageToken
		_, err := knows.GetFeed(t.Context(), next)
		if e := refusal(t, err); e.Reason != millrace.ReasonPageToken || e.Detail != "it is of another feed than "+name {
			t.Errorf("a page of ranked in the name of %s: %+v", name, e)
		}
	}
	other := proto.Clone(req).(*feedv1.GetFeedRequest)
	other.Feed = "recent"
	if of, err := knows.GetFeed(t.Context(), other); err != nil || of.NextPageToken == "" {
		t.Errorf("%v, %v", of, err)
	} else {
		next := proto.Clone(req).(*feedv1.GetFeedRequest)
		next.PageToken = of.NextPageToken
		if _, err := knows.GetFeed(t.Context(), next); refusal(t, err).Detail != "it is of another feed than ranked" {
			t.Errorf("a page of recent in the name of ranked: %v", err)
		}
	}
	d.Drop("ranked")
	d.Serve("ranked", 1, "name: ranked\nmodel: recency")
	d.Settle()
	req.PageToken = first.NextPageToken
	_, err = knows.GetFeed(t.Context(), req)
	if e := refusal(t, err); e.Reason != millrace.ReasonPageToken || e.Detail != "no definition that feed ranked has made the first page: it is of another feed, or its definition is no longer there" {
		t.Errorf("a page of a definition that is gone: %+v", e)
	}
}
