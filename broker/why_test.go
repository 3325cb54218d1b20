package broker

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/api/millrace/feed/v1/feedv1connect"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/feedstest"
	"github.com/millrace/millrace/broker/findings"
	"github.com/millrace/millrace/broker/pagetoken"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/relevance/experiment"
)

// why asks, and looks at what every answer must have.
// An inquiry costs index nodes much more than an answer, and is bounded apart.
func TestInquiriesAreBounded(t *testing.T) {
	w := newWorld(t, 1, 1)
	req := recentRequest(501)
	req.Types = distinct(100)
	_, err := w.broker().Why(t.Context(), &feedv1.WhyRequest{Request: req, Record: "r"})
	if e := refusal(t, err); e.Reason != millrace.ReasonTooLarge || e.Field != "request.entities" || w.calls() > 0 {
		t.Errorf("%+v, after %d calls", e, w.calls())
	}
}

func (w *world) why(b *Broker, req *feedv1.WhyRequest) *feedv1.WhyResponse {
	w.t.Helper()
	resp, err := b.Why(w.t.Context(), req)
	if err != nil {
		w.t.Fatal(err)
	}
	if resp.Detail == "" || len(resp.Findings) > 0 && resp.Stage != resp.Findings[0].Stage {
		w.t.Errorf("%v", resp)
	}
	return resp
}

// What a lost partition hides is told from what was never there.
func TestWhyUnanswered(t *testing.T) {
	w := newWorld(t, 2, 1)
	for i := range 5 {
		w.add(timelineOf(i), recordID(i), timeAt(i), "")
	}
	b := w.broker()
	req := &feedv1.WhyRequest{Request: recentRequest(20), Record: string(recordID(1)), Entity: string(timelineOf(1).Entity)}
	if resp := w.why(b, req); resp.Stage != findings.Shown {
		t.Errorf("with every node there: %v", resp)
	}
	lost := w.m.Replicas(partition.Of(timelineOf(1).Entity))[0]
	w.nodes[lost].err = errors.New("broken")
	for _, entity := range []string{req.Entity, ""} {
		req.Entity = entity
		if resp := w.why(b, req); resp.Stage != findings.Unanswered || !strings.Contains(resp.Detail, fanout.MissError) {
			t.Errorf("of %q on a lost partition: %v", entity, resp)
		}
	}
	for i := range 5 { // another, on the node that answers
		if e := timelineOf(i).Entity; w.m.Replicas(partition.Of(e))[0] != lost {
			req.Entity = string(e)
			if resp := w.why(b, req); resp.Stage != findings.Never {
				t.Errorf("of %s: %v", e, resp)
			}
			return
		}
	}
	t.Error("every entity is on the lost node")
}

// A second page tells of what the first has shown; and where a feed keeps
// items apart, a place is that of the answer.
func TestWhyOnPages(t *testing.T) {
	w := newWorld(t, 2, 1)
	post := func(e string) millrace.Timeline { return millrace.Timeline{Entity: millrace.Entity(e), Type: "post"} }
	for i, e := range []string{"member:1", "member:1", "member:2", "member:2", "member:3"} {
		w.add(post(e), millrace.RecordID(rune('a'+i)), millrace.Time(1000*(10-i)), "")
	}
	b := w.broker(feeds.Feed{Name: "apart", Model: "recency", Spacing: feeds.Spacing{Entity: 1}})
	req := &feedv1.GetFeedRequest{Feed: "apart", Entities: []string{"member:1", "member:2", "member:3"}, Limit: new(int64(3))}
	stages := func() string {
		var all []string
		for i, id := range []string{"a", "b", "c", "d", "e"} {
			resp := w.why(b, &feedv1.WhyRequest{Request: req, Record: id})
			line := id + " " + resp.Stage
			f := resp.Findings[0]
			if f.Place > 0 {
				line += " " + string(rune('0'+f.Place))
			}
			if f.Rank != int64(i+1) {
				t.Errorf("%s is number %d of those scored", id, f.Rank)
			}
			all = append(all, line)
		}
		return strings.Join(all, ", ")
	}
	if got, want := stages(), "a shown 1, b shown 3, c shown 2, d below_cut, e below_cut"; got != want {
		t.Errorf("first page: %s, want %s", got, want)
	}
	page, err := b.GetFeed(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	req.PageToken = page.NextPageToken
	if got, want := stages(), "a served, b served, c served, d shown 1, e shown 2"; got != want {
		t.Errorf("second page: %s, want %s", got, want)
	}
}

// What became of a record is told by what the variants of its entity set, which
// are named; those of the viewer are in the receipt.
func TestWhyNamesVariants(t *testing.T) {
	w := variantedWorld(t)
	b, _ := w.divided(`
layers: [{name: authors, salt: a, unit: entity}, {name: kinds, salt: k, unit: entity}, {name: viewers, salt: v, unit: viewer}]
experiments:
  - {name: reach, layer: authors, feeds: [f], state: running, slots: [0-9999], share: 10000, forced: {member:1: short, member:2: long}, variants: [{name: long, weight: 10000}, {name: short, weight: 0, set: {window: 8s}}]}
  - {name: kinds, layer: kinds, feeds: [f], state: draft, slots: [0-99], share: 0, forced: {member:2: likes}, variants: [{name: likes, weight: 10000, set: {types: [like]}}]}
  - {name: page, layer: viewers, feeds: [f], state: running, slots: [0-9999], share: 10000, variants: [{name: even, weight: 10000}]}
`, nil, feeds.Feed{Name: "f", Model: "recency", Limit: 60, Window: time.Minute})
	for _, c := range []struct {
		entity, record int
		apart          bool // the request asks for others
		stage, says    string
		variants       map[string]string
	}{
		{1, 49, false, findings.Outside, "before the window, which begins at " + timeAt(52).String(), map[string]string{"reach": "short"}},
		{1, 49, true, findings.NotAsked, "does not ask for member:1", map[string]string{"reach": "short"}},
		{2, 50, false, findings.NotAsked, "the types asked are like", map[string]string{"reach": "long", "kinds": "likes"}},
		{3, 51, false, findings.Shown, "", map[string]string{"reach": "long"}},
	} {
		req := recentRequest(12)
		req.Feed, req.AsOf = "f", timestamp(timeAt(60))
		ask := &feedv1.WhyRequest{Request: req, Record: string(recordID(c.record))}
		if c.apart {
			ask.Entity, req.Entities = string(entity(c.entity)), []string{"member:9"}
		}
		resp := w.why(b, ask)
		if len(resp.Findings) != 1 {
			t.Fatalf("%v", resp)
		}
		if f := resp.Findings[0]; f.Stage != c.stage || f.Entity != string(entity(c.entity)) || !strings.Contains(f.Detail, c.says) || !maps.Equal(f.Variants, c.variants) {
			t.Errorf("of %v: %v", c, f)
		}
		if !maps.Equal(resp.Receipt.Variants, map[string]string{"page": "even"}) {
			t.Errorf("of the viewer: %v", resp.Receipt)
		}
	}
}

// Of a feed that two models draft an inquiry explains the ranking by the first alone, and says so.
func TestWhyOfDrafts(t *testing.T) {
	w := variantedWorld(t)
	b, _ := w.drafts(nil, feeds.Feed{Name: "f", Model: "recency"})
	for viewer, says := range map[string]string{"alice": "by recency alone, which coarse drafts the pages with: ", "bob": ""} {
		req := recentRequest(12)
		req.Feed, req.Viewer = "f", &feedv1.Viewer{Id: viewer}
		resp := w.why(b, &feedv1.WhyRequest{Request: req, Record: string(recordID(49))})
		if len(resp.Findings) != 1 || !strings.HasPrefix(resp.Detail, says) || says == "" && strings.Contains(resp.Detail, "drafts") {
			t.Errorf("%s: %v", viewer, resp)
		}
	}
	for _, n := range w.nodes {
		for _, asked := range n.asked {
			if len(asked.Beside) > 0 {
				t.Errorf("a node ranked by %v", asked.Beside)
			}
		}
	}
}

// An inquiry takes its time: it is not hedged, and nobody draws conclusions
// from how long it took.
func TestWhyIsNotHedged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, 3)
		w.add(timelineOf(1), recordID(1), timeAt(1), "")
		b := w.broker()
		for _, n := range w.nodes {
			n.delay = func() time.Duration { return 2 * time.Second }
		}
		for range 4 {
			if resp := w.why(b, &feedv1.WhyRequest{Request: recentRequest(3), Record: string(recordID(1))}); resp.Stage != findings.Shown {
				t.Errorf("%v", resp)
			}
		}
		if n := w.calls(); n != 8 { // the answer and the rank
			t.Errorf("%d calls for four inquiries", n)
		}
		for _, n := range w.nodes { // which do not count as silent either
			if b.fanout.Unresponsive(n.id) {
				t.Errorf("%s is thought unresponsive", n.id)
			}
			n.delay = func() time.Duration { // the first that is asked is slow
				if w.calls() == 9 {
					return 10 * usualDelay
				}
				return 0
			}
		}
		began := time.Now()
		if _, err := b.GetFeed(t.Context(), recentRequest(3)); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != usualDelay {
			t.Errorf("a hedge starts after %s now", took)
		}
	})
}

func TestWhyByCurl(t *testing.T) {
	s := served(t)
	status, _, body := post(t, s.URL+"/v1/why", curl, `{"record":"`+string(recordID(1))+`","request":{"feed":"recent","entities":["member:1","member:2"]}}`)
	if status != 200 || !strings.Contains(body, `"stage":"shown"`) || !strings.Contains(body, `"place":`) {
		t.Errorf("%d %s", status, body)
	}
	for body, want := range map[string]string{
		`{"request":{"feed":"recent","entities":["a"]}}`:                        `"field":"record"`,
		`{"record":"r","request":{"feed":"recent","entities":["a"],"limit":0}}`: `"field":"request.limit"`,
		`{"record":"r","request":{"feed":"recent","entities":["a"],"limt":0}}`:  `"field":"request.limt"`,
		`{"record":"r","requests":{"feed":"recent","entities":["a"]}}`:          `"field":"requests"`,
		`{"record":"r"}`: `"field":"request.feed"`,
		`{"record":"r","entity":"` + strings.Repeat("x", 600) + `","request":{"feed":"recent","entities":["a"]}}`: `"field":"entity"`,
	} {
		if status, _, got := post(t, s.URL+"/v1/why", curl, body); status != 400 || !strings.Contains(got, want) {
			t.Errorf("%s: %d %s, want %s", body, status, got, want)
		}
	}
}

// An inquiry by Connect is one by JSON, answered and refused.
func TestWhyByConnect(t *testing.T) {
	s := served(t)
	c := feedv1connect.NewFeedServiceClient(s.Client(), s.URL)
	resp, err := c.Why(t.Context(), &feedv1.WhyRequest{Record: string(recordID(1)), Request: recentRequest(3)})
	if err != nil || resp.Stage != findings.Shown {
		t.Errorf("%v, %v", resp, err)
	}
	if resp, err := c.Why(t.Context(), &feedv1.WhyRequest{Request: recentRequest(3)}); connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), "record") {
		t.Errorf("%v, %v", resp, err)
	}
}

// An inquiry that cannot be answered says why, by the request's own field.
func TestWhyIsRefused(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.add(timelineOf(1), recordID(1), timeAt(1), "")
	b := w.broker(feeds.Feed{Name: "quiet", Model: "recency", Forbid: feeds.Forbid{Why: true}})
	ask := &feedv1.WhyRequest{Request: recentRequest(3), Record: string(recordID(1))}
	w.nodes["n0"].err = &millrace.Error{Reason: millrace.ReasonUnknown, Field: "types[0]", Detail: "x"}
	if _, err := b.Why(t.Context(), ask); refusal(t, err).Reason != millrace.ReasonUnavailable && refusal(t, err).Field != "request.types[0]" {
		t.Errorf("%v", err)
	}
	calls := 0
	w.nodes["n0"].err = nil
	w.nodes["n0"].refusal = func(*nodev1.QueryRequest) error { // the rank is asked for second
		if calls++; calls > 1 {
			return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "limit", Detail: "x"}
		}
		return nil
	}
	if _, err := b.Why(t.Context(), ask); refusal(t, err).Field != "request.limit" {
		t.Errorf("%v", err)
	}
	w.nodes["n0"].refusal = nil
	ask.Request.Feed = "quiet"
	if _, err := b.Why(t.Context(), ask); refusal(t, err).Reason != millrace.ReasonForbidden || refusal(t, err).Field != "request.feed" {
		t.Errorf("%v", err)
	}
	ask.Request.Feed = "recent"
	gone, end := context.WithCancel(t.Context())
	if end(); true {
		if _, err := b.Why(gone, ask); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	}
}

// Of a private feed no experiment has a part that could show what the feed drops, of viewers
// or of entities; others go on.
func TestAPrivateFeedIsNotOpenedByExperiments(t *testing.T) {
	w := variantedWorld(t)
	const src = `
layers: [{name: authors, salt: a, unit: entity}, {name: kinds, salt: k, unit: entity}, {name: v, salt: v, unit: viewer}, {name: u, salt: u, unit: viewer}]
experiments:
  - {name: reach, layer: authors, feeds: [f], state: running, slots: [0-9999], share: 10000, variants: [{name: short, weight: 10000, set: {window: 8s}}]}
  - {name: caps, layer: kinds, feeds: [f], state: running, slots: [0-9999], share: 10000, variants: [{name: none, weight: 5000}, {name: one, weight: 5000, set: {cap_per_entity: 1}}]}
  - {name: types, layer: v, feeds: [f], state: running, slots: [0-9999], share: 10000, variants: [{name: likes, weight: 10000, set: {types: [like]}}]}
  - {name: pages, layer: u, feeds: [f], state: running, slots: [0-9999], share: 10000, variants: [{name: few, weight: 10000, set: {limit: 5}}]}
`
	defs, docs := feedstest.New(), feedstest.New()
	const open = "name: f\nmodel: recency\nwindow: 1m\n"
	defs.Serve("f", 1, open)
	docs.Serve("doc", 1, src)
	b, err := New(Config{Maps: w, Definitions: defs, Experiments: docs, Log: slog.New(slog.DiscardHandler), Dial: w.dial})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, private := range []bool{false, true} {
		want := map[string]string{"pages": "few", "types": "likes"}
		if private { // which it was not when the experiments were defined
			delete(want, "types")
			defs.Serve("f", 2, open+"private: true\n")
			defs.Settle()
		}
		req := recentRequest(12)
		req.Feed = "f"
		q, err := b.read(t.Context(), req, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		got, entities := map[string]string{}, slices.Sorted(maps.Keys(q.variantsOf(entity(1))))
		for _, x := range q.variants.dealt {
			got[x.Experiment] = x.Variant
		}
		wantOfEntities, groups := []string{"caps", "reach"}, 3 // the first has none
		if private {
			wantOfEntities, groups = wantOfEntities[:1], 2
		}
		if !maps.Equal(got, want) || !slices.Equal(entities, wantOfEntities) || len(q.Groups) != groups {
			t.Errorf("private %t: %v and %v of entities, in %d groups", private, got, entities, len(q.Groups))
		}
		for _, dealt := range b.experiments.Current().Division("f").Dealt() { // by a token of a page before
			c := &pagetoken.Cursor{Issued: millrace.TimeOf(time.Now()), Divided: []experiment.Dealt{dealt}}
			_, err := q.dividing(b.experiments.Current(), req, c)
			if refused := private && dealt.Experiment == "reach"; (err != nil) != refused || refused && !strings.Contains(err.Error(), "experiment reach, which divided") {
				t.Errorf("private %t: a page divided by %s: %v", private, dealt.Experiment, err)
			}
		}
	}
}
