package broker

import (
	"cmp"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/pagetoken"
	"github.com/millrace/millrace/broker/questions"
	"github.com/millrace/millrace/internal/cluster/artefacts"
)

// versionAnswers is how many answers a test of versions compares:
// go test ./broker -run Rollouts -versions 100000
var versionAnswers = flag.Int("versions", 2000, "answers while models are pushed and rolled back")

// pointers is which versions are there and which of each name serves.
type pointers struct {
	mu     sync.Mutex
	serves map[string]artefacts.Version
	there  map[artefacts.Version]bool
	before []artefacts.Version // the last one first
}

func newPointers(serves ...artefacts.Version) *pointers {
	p := &pointers{serves: map[string]artefacts.Version{}, there: map[artefacts.Version]bool{}}
	for _, v := range serves {
		p.serve(v)
	}
	return p
}

func (p *pointers) serve(v artefacts.Version) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now, ok := p.serves[v.Name]; ok {
		p.before = slices.Insert(p.before, 0, now)
	}
	p.serves[v.Name], p.there[v] = v, true
}

func (p *pointers) drop(v artefacts.Version) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.there, v)
}

func (p *pointers) Changed() <-chan struct{} { return nil }

func (p *pointers) Served(name string) (artefacts.Version, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v, ok := p.serves[name]
	return v, ok
}

func (p *pointers) Before(name string) (all []artefacts.Version) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, v := range p.before {
		if v.Name == name && p.there[v] && v != p.serves[name] {
			all = append(all, v)
		}
	}
	return all
}

func (p *pointers) Has(v artefacts.Version) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.there[v]
}

func coarseVersion(n int) artefacts.Version {
	return artefacts.Version{Name: "coarse", Version: fmt.Sprint(n), Sum: fmt.Sprintf("%064x", n)}
}

func (w *world) brokerOf(models Models, feeds ...feeds.Feed) *Broker {
	w.t.Helper()
	b, err := New(Config{Maps: w, Feeds: feeds, Models: models, Log: slog.New(slog.DiscardHandler), Dial: w.dial})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = b.Close() })
	return b
}

var rankedFeed = feeds.Feed{Name: "ranked", Model: "coarse"}

func rankedRequest(limit int64) *feedv1.GetFeedRequest {
	return &feedv1.GetFeedRequest{Feed: "ranked", Entities: entityNames(20), Limit: proto.Int64(limit)}
}

// A model that one node of two has answers every request in full.
func TestModelOnOneNodeOfTwo(t *testing.T) {
	w := newWorld(t, 2, 2)
	w.fill(rand.New(rand.NewPCG(1, 1)), 20, 100)
	v := coarseVersion(1)
	w.nodes["n0"].models = map[artefacts.Version]bool{v: true}
	w.nodes["n1"].models = map[artefacts.Version]bool{}
	b := w.brokerOf(newPointers(v), rankedFeed)
	for i := range 20 {
		req := rankedRequest(10)
		req.Viewer = &feedv1.Viewer{Id: fmt.Sprint(i)} // some begin at each node
		resp, err := b.GetFeed(t.Context(), req)
		if err != nil {
			t.Fatalf("request %d is refused: %v", i, err)
		}
		if c := resp.Coverage; c.TimelinesAnswered != c.TimelinesAsked || resp.Receipt.ModelVersion != "1" {
			t.Fatalf("request %d: %v, %v", i, c, resp.Receipt)
		}
	}
	if w.nodes["n1"].calls() == 0 {
		t.Error("the node without the model was never asked")
	}
}

// Replicas that only lack the model do not use up how many may be asked.
func TestModelOnTheLastReplica(t *testing.T) {
	w := newWorld(t, 6, 6)
	w.fill(rand.New(rand.NewPCG(1, 1)), 20, 100)
	v := coarseVersion(1)
	for _, n := range w.nodes {
		n.models = map[artefacts.Version]bool{}
	}
	w.nodes["n3"].models[v] = true
	b := w.brokerOf(newPointers(v), rankedFeed)
	resp, err := b.GetFeed(t.Context(), rankedRequest(10))
	if err != nil || len(resp.Coverage.Missing) > 0 {
		t.Fatalf("%v, %v", resp.GetCoverage(), err)
	}
}

// A request is refused when no replica has the model, and says who lacks what;
// where only some have it the rest is missing by name.
func TestModelOnNoReplica(t *testing.T) {
	w := newWorld(t, 3, 2)
	w.fill(rand.New(rand.NewPCG(1, 1)), 20, 100)
	v := coarseVersion(7)
	for _, n := range w.nodes {
		n.models = map[artefacts.Version]bool{}
	}
	b := w.brokerOf(newPointers(v), rankedFeed)
	_, err := b.GetFeed(t.Context(), rankedRequest(10))
	e := refusal(t, err)
	if e.Reason != millrace.ReasonUnavailable || e.Field != "model" || !strings.Contains(e.Detail, "coarse 7") || !strings.Contains(e.Detail, "n0, n1, n2") || e.WayOut == "" {
		t.Fatalf("refused with %+v", e)
	}
	w.nodes["n0"].set(func() { w.nodes["n0"].models[v] = true })
	resp, err := b.GetFeed(t.Context(), rankedRequest(10))
	if err != nil {
		t.Fatal(err)
	}
	hosted := w.m.Hosted("n0")
	for _, m := range resp.Coverage.Missing {
		if m.Reason != fanout.MissModel || hosted.Has(millrace.Partition(m.Partition)) {
			t.Errorf("missing %v", m)
		}
	}
	if len(resp.Coverage.Missing) == 0 || resp.Coverage.TimelinesAnswered == 0 {
		t.Errorf("coverage %v", resp.Coverage)
	}
}

// A node that answers by another version than it was asked for is not
// believed.
func TestAnswerOfAnotherVersion(t *testing.T) {
	q := &questions.Group{Query: rankedQuery("coarse", "2", "b")}
	for _, c := range []struct {
		model, version, sum string
		good                bool
	}{
		{"coarse", "2", "b", true}, {"coarse", "1", "b", false}, {"coarse", "2", "a", false}, {"coarse", "2", "", false}, {"home", "2", "b", false},
	} {
		if err := q.AnsweredBy(rankedResponse(c.model, c.version, c.sum)); (err == nil) != c.good {
			t.Errorf("%v: %v", c, err)
		}
	}
	q = &questions.Group{Query: rankedQuery("recency", "", "")}
	if err := q.AnsweredBy(rankedResponse("recency", "1", "")); err != nil {
		t.Error(err)
	}
	if err := q.AnsweredBy(rankedResponse("recency", "1", "a")); err == nil {
		t.Error("a pushed model answered for one that is built in")
	}
}

// Pages keep the version of the first one while another serves, and say so
// when it is gone.
func TestPagesKeepTheirModel(t *testing.T) {
	w := newWorld(t, 2, 2)
	w.fill(rand.New(rand.NewPCG(1, 1)), 20, 100)
	first, second := coarseVersion(1), coarseVersion(2)
	models := newPointers(first)
	b := w.brokerOf(models, rankedFeed)
	req := rankedRequest(5)
	next := func() *feedv1.GetFeedResponse {
		t.Helper()
		resp, err := b.GetFeed(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		req.PageToken = resp.NextPageToken
		return resp
	}
	next()
	models.serve(second)
	for range 3 {
		if got := next().Receipt.ModelVersion; got != "1" {
			t.Fatalf("a later page is ranked by version %s", got)
		}
	}
	models.drop(first)
	_, err := b.GetFeed(t.Context(), req)
	if e := refusal(t, err); e.Reason != millrace.ReasonPageToken || !strings.Contains(e.Detail, "coarse 1") || !strings.Contains(e.WayOut, "first page") {
		t.Fatalf("refused with %+v", e)
	}
	req.PageToken = ""
	if got := next().Receipt.ModelVersion; got != "2" {
		t.Fatalf("the first page is ranked by version %s", got)
	}
}

// Shadows are named by version too, and only where a request asks to explain.
func TestShadowVersions(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.fill(rand.New(rand.NewPCG(1, 1)), 20, 20)
	shadow := artefacts.Version{Name: "shade", Version: "3", Sum: "ff"}
	b := w.brokerOf(newPointers(coarseVersion(1), shadow), feeds.Feed{Name: "ranked", Model: "coarse", Shadow: []string{"shade", "home"}})
	for _, explain := range []bool{false, true} {
		req := rankedRequest(5)
		req.Explain = explain
		if _, err := b.GetFeed(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		n := w.nodes["n0"]
		asked := n.asked[len(n.asked)-1]
		if !explain && len(asked.Shadow) > 0 || explain && (len(asked.Shadow) != 2 || asked.Shadow[0].Version != "3" || asked.Shadow[0].Sum != "ff" || asked.Shadow[1].Version != "") {
			t.Errorf("explain %v: asked for %v", explain, asked.Shadow)
		}
	}
}

// TestRollouts pushes, rolls back, drops and restarts while pages are asked
// for. No answer and no sequence of pages has two versions, and none is refused
// or incomplete while a replica of each partition has the version (P19).
func TestRollouts(t *testing.T) {
	const nodes, keep = 4, 6
	w := newWorld(t, nodes, 3)
	w.fill(rand.New(rand.NewPCG(5, 5)), 20, 150)
	assignment := w.m.Assignment()
	names := assignment.Nodes()
	for _, n := range w.nodes {
		n.models = map[artefacts.Version]bool{coarseVersion(1): true}
	}
	models := newPointers(coarseVersion(1))
	b := w.brokerOf(models, rankedFeed)

	var answers, refused, mixed, partial, crossed atomic.Int64
	var changes atomic.Int64 // of what a node has
	stop, beats := make(chan struct{}), make(chan struct{})
	someAnswers := func() {
		for range 6 {
			select {
			case <-beats:
			case <-stop:
			}
		}
	}
	var changer sync.WaitGroup
	changer.Go(func() { // one node at a time, so that two of three replicas have what serves
		r := rand.New(rand.NewPCG(6, 6))
		for n := 2; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			v := coarseVersion(n)
			for _, id := range names { // admitted one after the other, at most one last
				w.nodes[id].set(func() { w.nodes[id].models[v] = true })
				if id == names[len(names)-2] {
					models.serve(v) // the last node does not have it yet
				}
			}
			changes.Add(1) // the last has it now
			if back := coarseVersion(n - 1); r.IntN(3) == 0 {
				models.serve(back)
			}
			lost := w.nodes[names[r.IntN(nodes)]] // a restart: it has nothing, and then all
			var had map[artefacts.Version]bool
			changes.Add(1)
			lost.set(func() { had, lost.models = lost.models, map[artefacts.Version]bool{} })
			if r.IntN(2) == 0 {
				lost.set(func() { lost.err = fmt.Errorf("it is restarting") })
			}
			someAnswers()
			lost.set(func() { lost.models, lost.err = had, nil })
			changes.Add(1)
			someAnswers()
			if n > keep {
				old := coarseVersion(n - keep)
				changes.Add(2) // pages that go on by it
				models.drop(old)
				for _, node := range w.nodes {
					node.set(func() { delete(node.models, old) })
				}
			}
		}
	})
	var askers sync.WaitGroup
	for range 4 {
		askers.Go(func() {
			for answers.Load() < int64(*versionAnswers) {
				req, version := rankedRequest(20), ""
				for range 4 {
					before := changes.Load()
					resp, err := b.GetFeed(t.Context(), req)
					answers.Add(1)
					select {
					case beats <- struct{}{}:
					case <-stop:
					}
					if changes.Load() > before+1 { // several nodes, one after the other, were without it
						crossed.Add(1)
						if err != nil {
							break
						}
						resp.Coverage.Missing = nil
					}
					if err != nil {
						if e := refusal(t, err); e.Reason != millrace.ReasonPageToken { // of a version that was dropped
							refused.Add(1)
							t.Errorf("refused: %v", err)
						}
						break
					}
					if len(resp.Coverage.Missing) > 0 {
						partial.Add(1)
					}
					version = cmp.Or(version, resp.Receipt.ModelVersion)
					if resp.Receipt.ModelVersion != version {
						mixed.Add(1)
						t.Errorf("a page by version %s after one by %s", resp.Receipt.ModelVersion, version)
					}
					if req.PageToken = resp.NextPageToken; req.PageToken == "" {
						break
					}
				}
			}
		})
	}
	askers.Wait()
	close(stop)
	changer.Wait()
	t.Logf("%d answers: %d with two versions, %d refused, %d incomplete; %d met more changes than one and count for versions alone", answers.Load(), mixed.Load(), refused.Load(), partial.Load(), crossed.Load())
	if crossed.Load() > answers.Load()/2 {
		t.Error("the changes come too fast to say anything")
	}
	if partial.Load() > 0 {
		t.Error("some answers are incomplete though a replica of each partition had the version")
	}
}

// A later page keeps the weights of the first, or none where another version ranked.
func TestPagesKeepTheirWeights(t *testing.T) {
	b := newWorld(t, 1, 1).brokerOf(newPointers(coarseVersion(1)), rankedFeed)
	for sum, refused := range map[string]bool{"": false, "+mine": false, "+others": true} {
		q, err := b.read(t.Context(), rankedRequest(5), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		q.Query.Weights, q.Query.WeightsSum = "scale=2", "mine"
		v := coarseVersion(1)
		err = b.keepModel(q, &pagetoken.Cursor{Model: v.Name, Version: v.Version, Sum: v.Sum + sum})
		if (err != nil) != refused || refused && refusal(t, err).Reason != millrace.ReasonPageToken {
			t.Errorf("%q: %v", sum, err)
		}
		if err == nil && (q.plain != (sum == "") || (q.Query.Weights == "") != q.plain || (q.Query.WeightsSum == "") != q.plain || q.Model() != v || !q.later) {
			t.Errorf("%q: %+v", sum, q)
		}
	}
}

func rankedQuery(model, version, sum string) *nodev1.QueryRequest {
	return &nodev1.QueryRequest{Model: model, ModelVersion: version, ModelSum: sum}
}

func rankedResponse(model, version, sum string) *nodev1.QueryResponse {
	return &nodev1.QueryResponse{Model: model, ModelVersion: version, ModelSum: sum}
}

// A pointer that somebody wrote under the name of a built-in model is not followed:
// no node has what it says.
func TestABuiltInNameIsNotLookedForAmongThePushed(t *testing.T) {
	v := artefacts.Version{Name: "home", Version: "1", Sum: fmt.Sprintf("%064x", 1)}
	m := unshadowed(newPointers(v, coarseVersion(1)))
	if got, is := m.Served("home"); is {
		t.Errorf("home is %v", got)
	}
	if got, is := m.Served("coarse"); !is || got != coarseVersion(1) {
		t.Errorf("coarse is %v", got)
	}
}
