package broker

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/limits"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/relevance/interleave"
)

// drafts is a broker whose feed f two models draft for alice.
func (w *world) drafts(models Models, f feeds.Feed) (*Broker, *shows) {
	w.t.Helper()
	log := &shows{}
	b, docs := w.experimental(models, f)
	b.exposures = log
	define(w.t, b, docs, 1, halves("running", "interleave: [recency, coarse]"))
	return b, log
}

func (s *shows) last(t *testing.T) exposure.Record {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) == 0 {
		t.Fatal("nothing was exposed")
	}
	return s.all[len(s.all)-1]
}

// rankedBy is all that a model ranks of a feed.
func rankedBy(t *testing.T, b *Broker, model string) *feedv1.GetFeedResponse {
	t.Helper()
	most := int64(limits.MaxLimit)
	return ask(t, b, "bob", func(req *feedv1.GetFeedRequest) {
		req.Model, req.Limit, req.AsOf = model, &most, timestamp(timeAt(300))
	})
}

// Pages of any length, joined, are the draft of the two rankings by the seed of
// the receipt; and the exposures say who drafted what.
func TestPagesAreDrafted(t *testing.T) {
	for _, f := range []feeds.Feed{{Name: "f", Model: "recency", Limit: 7}, {Name: "f", Model: "recency", Limit: 7, DistinctObjects: true}} {
		w := newWorld(t, 3, 2)
		w.fill(rand.New(rand.NewPCG(5, 8)), 12, 200)
		b, log := w.drafts(nil, f)
		own, other := rankedBy(t, b, "recency"), rankedBy(t, b, "coarse")
		name := func(it *feedv1.Item) string {
			if f.DistinctObjects {
				return it.Object
			}
			return it.Entity + "\x00" + it.Type + "\x00" + it.Id
		}
		rankings := [2]*feedv1.GetFeedResponse{own, other}
		var names [2][]string
		for i, r := range rankings {
			for _, it := range r.Items {
				names[i] = append(names[i], name(it))
			}
		}
		if len(names[0]) < 40 || slices.Equal(names[0], names[1]) {
			t.Fatalf("%d items, alike: %v", len(names[0]), slices.Equal(names[0], names[1]))
		}
		rng := rand.New(rand.NewPCG(1, 1))
		for range 20 {
			var want []interleave.Pick
			var seed, turns int64
			token, served := "", 0
			for page := 0; ; page++ {
				limit := int64(1 + rng.IntN(30))
				got := ask(t, b, "alice", func(req *feedv1.GetFeedRequest) {
					req.PageToken, req.Limit, req.AsOf = token, &limit, timestamp(timeAt(300))
				})
				d := got.Receipt.Draft
				if d == nil || d.Model != "coarse" || d.ModelVersion != "1" || d.Fault != "" || got.Receipt.Model != "recency" {
					t.Fatalf("receipt: %v", got.Receipt)
				}
				if page == 0 {
					var err error
					if want, _, err = interleave.Draft(interleave.Cursor{Seed: uint64(d.Seed)}, len(names[0])+1, names[0], names[1]); err != nil {
						t.Fatal(err)
					}
					seed = d.Seed
				}
				r := log.last(t)
				if d.Seed != seed || d.Turns != turns || r.Interleaving == nil || r.Interleaving.Turns != uint64(turns) || r.Interleaving.Seed != uint64(seed) || r.Interleaving.Experiment != "e" {
					t.Fatalf("page %d: %v after %d turns, exposed %+v", page, d, turns, r.Interleaving)
				}
				if !slices.Equal(r.Interleaving.Teams, []string{"recency", "coarse"}) || len(r.Models) != 2 || r.Models[1].Name != "coarse" || r.Models[1].Version != "1" {
					t.Fatalf("exposed: %+v by %+v", r.Interleaving, r.Models)
				}
				if len(got.Items) != min(int(limit), len(want)-served) {
					t.Fatalf("page %d has %d items of %d, of %d left", page, len(got.Items), limit, len(want)-served)
				}
				for i, it := range got.Items {
					p := want[served+i]
					if from := rankings[p.Ranking].Items[p.Place]; name(it) != name(from) || millrace.CompareScores(it.Score, from.Score) != 0 {
						t.Fatalf("page %d, place %d: %v, want %v", page, i, it, from)
					}
					if x := r.Items[i]; x.Model != p.Ranking || x.Team != int(p.Team) || x.ID != it.Id {
						t.Fatalf("page %d, place %d: exposed %+v, want %+v", page, i, x, p)
					}
					if p.Team != interleave.Nobody {
						turns++
					}
				}
				served += len(got.Items)
				if token = got.NextPageToken; token == "" {
					break
				}
			}
			if served != len(want) {
				t.Errorf("%d items of %d were served", served, len(want))
			}
		}
	}
}

// No page has more of an entity than the cap, and none is short for it.
func TestADraftKeepsToTheCap(t *testing.T) {
	w := newWorld(t, 3, 2)
	w.fill(rand.New(rand.NewPCG(5, 9)), 12, 200)
	b, log := w.drafts(nil, feeds.Feed{Name: "f", Model: "recency", CapPerEntity: 2})
	both := 0
	for limit := int64(1); limit <= 24; limit++ {
		got := ask(t, b, "alice", func(req *feedv1.GetFeedRequest) { req.Limit, req.AsOf = &limit, timestamp(timeAt(300)) })
		if len(got.Items) != int(limit) {
			t.Errorf("%d items of %d", len(got.Items), limit)
		}
		of, have := map[string]int{}, map[string]bool{}
		for i, it := range got.Items {
			if of[it.Entity]++; of[it.Entity] > 2 {
				t.Errorf("of %d items %d are of %s", limit, of[it.Entity], it.Entity)
			}
			key := it.Entity + "\x00" + it.Type + "\x00" + it.Id
			if have[key] {
				t.Errorf("%q is there twice", key)
			}
			have[key] = true
			if log.last(t).Items[i].Team == 1 {
				both++
			}
		}
	}
	if both == 0 {
		t.Error("the second model drafted nothing: the test shows nothing")
	}
	// What found no room on a page is on a later one: pages of any size show all
	// that either model ranks.
	all := map[int64]int{}
	for _, limit := range []int64{1, 3, 8, 100} {
		for token, more := "", true; more; more = token != "" {
			got := ask(t, b, "alice", func(req *feedv1.GetFeedRequest) {
				req.Limit, req.AsOf, req.PageToken, req.Entities = &limit, timestamp(timeAt(300)), token, entityNames(3)
			})
			all[limit] += len(got.Items)
			token = got.NextPageToken
		}
	}
	if all[1] <= 6 || all[3] != all[1] || all[8] != all[1] || all[100] != all[1] {
		t.Errorf("items by the size of a page: %v", all)
	}
}

// Where a node cannot rank by the second model, the page is the first one's,
// and says so; nobody drafted it, and the next page is drafted again.
func TestADraftWithoutItsSecondModel(t *testing.T) {
	second := artefacts.Version{Name: "coarse", Version: "7", Sum: "5e7e"}
	first := artefacts.Version{Name: "recency", Version: "1", Sum: "5e71"}
	w := newWorld(t, 2, 1)
	w.fill(rand.New(rand.NewPCG(5, 10)), 12, 200)
	models := newPointers(first, second)
	b, log := w.drafts(models, feeds.Feed{Name: "f", Model: "recency"})
	plain := rankedBy(t, b, "recency")
	for what, c := range map[string]struct {
		do, undo func()
		fault    string
	}{
		"a node lacks it": {
			func() {
				w.nodes["n1"].set(func() { w.nodes["n1"].models = map[artefacts.Version]bool{first: true} })
			},
			func() { w.nodes["n1"].set(func() { w.nodes["n1"].models = nil }) }, "no model coarse",
		},
		"an older node": {
			func() { w.nodes["n1"].set(func() { w.nodes["n1"].old = true }) },
			func() { w.nodes["n1"].set(func() { w.nodes["n1"].old = false }) }, "one model alone",
		},
		"a second attempt that covers less": {
			func() {
				w.nodes["n1"].set(func() { w.nodes["n1"].models = map[artefacts.Version]bool{first: true} })
				w.nodes["n0"].set(func() {
					before := len(w.nodes["n0"].asked)
					w.nodes["n0"].refusal = func(*nodev1.QueryRequest) error {
						if len(w.nodes["n0"].asked) > before+1 {
							return fanout.ErrUnreachable
						}
						return nil
					}
				})
			},
			func() {
				w.nodes["n1"].set(func() { w.nodes["n1"].models = nil })
				w.nodes["n0"].set(func() { w.nodes["n0"].refusal = nil })
			}, "no model coarse",
		},
	} {
		limit := int64(9)
		page := func(token string) *feedv1.GetFeedResponse {
			return ask(t, b, "alice", func(req *feedv1.GetFeedRequest) {
				req.Limit, req.AsOf, req.PageToken = &limit, timestamp(timeAt(300)), token
			})
		}
		c.do()
		got := page("")
		c.undo()
		if d := got.Receipt.Draft; d == nil || !strings.Contains(d.Fault, c.fault) || d.Turns != 0 {
			t.Errorf("%s: %v", what, got.Receipt.Draft)
		}
		if !slices.Equal(itemsOf(got), itemsOf(plain)[:9]) {
			t.Errorf("%s: the page is not the first model's", what)
		}
		if r := log.last(t); r.Interleaving != nil || len(r.Models) != 1 || r.Items[0].Team != -1 {
			t.Errorf("%s: exposed %+v by %+v", what, r.Interleaving, r.Models)
		}
		next := page(got.NextPageToken)
		if d := next.Receipt.Draft; d == nil || d.Fault != "" || d.Seed != got.Receipt.Draft.Seed || d.ModelVersion != "7" {
			t.Errorf("%s, the page after: %v", what, next.Receipt.Draft)
		}
		if slices.ContainsFunc(itemsOf(next), func(it string) bool { return slices.Contains(itemsOf(got), it) }) {
			t.Errorf("%s: an item is on both pages", what)
		}
		models.drop(second)
		last := page(next.NextPageToken)
		models.serve(second)
		if d := last.Receipt.Draft; d == nil || !strings.Contains(d.Fault, "has been dropped") {
			t.Errorf("%s, then it is dropped: %v", what, last.Receipt.Draft)
		}
	}
}

// A node that lacks the second model leaves no page undrafted while another
// replica has it, and is asked last for a moment.
func TestADraftGoesToWhoHasTheModel(t *testing.T) {
	first, second := artefacts.Version{Name: "recency", Version: "1", Sum: "5e71"}, artefacts.Version{Name: "coarse", Version: "7", Sum: "5e7e"}
	w := newWorld(t, 3, 2)
	w.fill(rand.New(rand.NewPCG(5, 12)), 12, 200)
	lacks := w.nodes["n1"]
	lacks.set(func() { lacks.models = map[artefacts.Version]bool{first: true} })
	b, _ := w.drafts(newPointers(first, second), feeds.Feed{Name: "f", Model: "recency"})
	drafted := 0
	for i := range 60 { // who is asked first differs by viewer
		got := ask(t, b, fmt.Sprint("viewer:", i), nil)
		if got.Receipt.Variants["e"] != "b" {
			continue
		}
		if d := got.Receipt.Draft; d == nil || d.Fault != "" {
			t.Fatalf("page %d: %v", i, d)
		}
		drafted++
	}
	asked := 0
	for _, q := range lacks.asked {
		if len(q.Beside) > 0 {
			asked++
		}
	}
	if asked == 0 || asked > drafted/2 {
		t.Errorf("for %d drafted pages the node that lacks the model was asked %d times", drafted, asked)
	}
}

// A request that names a model, and who is in no variant, get no draft.
func TestWhoGetsNoDraft(t *testing.T) {
	w := newWorld(t, 2, 1)
	w.fill(rand.New(rand.NewPCG(5, 11)), 12, 200)
	b, _ := w.drafts(nil, feeds.Feed{Name: "f", Model: "recency"})
	for viewer, model := range map[string]string{"bob": "", "alice": "coarse"} {
		got := ask(t, b, viewer, func(req *feedv1.GetFeedRequest) { req.Model = model })
		if got.Receipt.Draft != nil {
			t.Errorf("%s with model %q: %v", viewer, model, got.Receipt.Draft)
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
