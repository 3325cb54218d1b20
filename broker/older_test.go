package broker

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/feeds"
)

// A node of an older version, which would score by the model's own weights,
// answers nothing that weights are set for.
func TestOlderNodesKnowNoWeights(t *testing.T) {
	w := variantedWorld(t)
	w.nodes["n0"].old = true
	b, docs := w.experimental(nil, feeds.Feed{Name: "f", Model: "recency", Limit: 20})
	define(t, b, docs, 1, halves("running", "weights: {scale: -1}"))
	for i := range 10 {
		viewer := fmt.Sprint("member:", i)
		resp := ask(t, b, viewer, nil)
		if c := resp.Coverage; c.TimelinesAnswered != c.TimelinesAsked {
			t.Fatalf("not whole: %v", c)
		}
		for _, it := range resp.Items {
			if want := resp.Receipt.Variants["e"] == "b"; (it.Score < 0) != want || (resp.Receipt.WeightsSum != "") != want {
				t.Fatalf("%s: %v scores %v by %q", viewer, it.Id, it.Score, resp.Receipt.WeightsSum)
			}
		}
	}
	for _, n := range w.nodes {
		n.set(func() { n.old = true })
	}
	req := recentRequest(12)
	req.Feed, req.Limit, req.Viewer = "f", nil, &feedv1.Viewer{Id: "alice"}
	if _, err := b.GetFeed(t.Context(), req); err == nil || !strings.Contains(err.Error(), fanout.MissOlder) {
		t.Errorf("all nodes are older: %v", err)
	}
	req.Viewer.Id = "bob"
	if _, err := b.GetFeed(t.Context(), req); err != nil {
		t.Errorf("without weights: %v", err)
	}
}

// A node of an older version, which would repeat what pages served, answers
// first pages only; the others are whole as long as another replica knows more.
func TestOlderNodesAnswerFirstPages(t *testing.T) {
	w := newWorld(t, 2, 2)
	w.fill(rand.New(rand.NewPCG(1, 1)), 20, 100)
	w.nodes["n0"].old = true
	b := w.broker()
	ask := func(req *feedv1.GetFeedRequest) *feedv1.GetFeedResponse {
		t.Helper()
		resp, err := b.GetFeed(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if c := resp.Coverage; c.TimelinesAnswered != c.TimelinesAsked {
			t.Fatalf("not whole: %v", c)
		}
		return resp
	}
	served := map[string]bool{}
	req := rankedRequest(10)
	req.Feed = "recent"
	for page := range 3 {
		req.Viewer = &feedv1.Viewer{Id: "v"}
		resp := ask(req)
		for _, it := range resp.Items {
			if key := fmt.Sprint(it.Entity, it.Type, it.Id); served[key] {
				t.Fatalf("page %d repeats %s", page+1, key)
			} else {
				served[key] = true
			}
		}
		req.PageToken = resp.NextPageToken
	}
	w.nodes["n1"].old = true
	if _, err := b.GetFeed(t.Context(), req); err == nil || !strings.Contains(err.Error(), fanout.MissOlder) || !strings.Contains(err.Error(), "upgrade the index nodes") {
		t.Errorf("all nodes are older: %v", err)
	}
	req.PageToken = ""
	ask(req)
}
