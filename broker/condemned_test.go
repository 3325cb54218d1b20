package broker

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/questions"
	"github.com/millrace/millrace/internal/cluster/artefacts"
)

// verdicts is what the cluster says of versions.
type verdicts struct {
	mu  sync.Mutex
	why map[artefacts.Version]string
}

func (v *verdicts) Why(of artefacts.Version) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.why[of]
}

func (v *verdicts) set(of artefacts.Version, why string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.why[of] = why
}

func (w *world) condemning(models Models, all Condemned, feeds ...feeds.Feed) *Broker {
	w.t.Helper()
	b, err := New(Config{Maps: w, Feeds: feeds, Models: models, Condemned: all, Log: slog.New(slog.DiscardHandler), Dial: w.dial})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = b.Close() })
	return b
}

// refuses makes a node refuse to rank by a version.
func (n *fakeNode) refuses(v artefacts.Version) {
	n.set(func() {
		if n.condemned == nil {
			n.condemned = map[artefacts.Version]bool{}
		}
		n.condemned[v] = true
	})
}

// A version that one node refuses to rank by ranks for nobody: the answer is
// that of the version which served before, whole, and its receipt says so.
// The next one does not ask for it again.
func TestTheLastGoodVersionAnswers(t *testing.T) {
	w := newWorld(t, 3, 1)
	w.fill(rand.New(rand.NewPCG(1, 1)), 20, 100)
	models := newPointers(coarseVersion(1), coarseVersion(2), coarseVersion(3))
	b := w.brokerOf(models, rankedFeed)
	w.nodes["n1"].refuses(coarseVersion(3))
	for i := range 3 {
		before := w.calls()
		resp, err := b.GetFeed(t.Context(), rankedRequest(10))
		if err != nil {
			t.Fatal(err)
		}
		if r := resp.Receipt; r.ModelVersion != "2" || r.InPlaceOf != "coarse 3" || len(resp.Coverage.Missing) > 0 || len(resp.Items) != 10 {
			t.Fatalf("answer %d: %v, %v, %d items", i, r, resp.Coverage.Missing, len(resp.Items))
		}
		if calls := w.calls() - before; i > 0 && calls > 3 {
			t.Errorf("answer %d took %d calls", i, calls)
		}
	}
	// Nor is the one before any good: the newest first, by what every node has.
	w.nodes["n2"].refuses(coarseVersion(2))
	w.nodes["n0"].refuses(coarseVersion(1))
	resp, err := b.GetFeed(t.Context(), rankedRequest(10))
	if err != nil || resp.Receipt.Model != "recency" || resp.Receipt.InPlaceOf != "coarse 3" {
		t.Fatalf("%v, %v", resp.GetReceipt(), err)
	}
}

// However many versions nodes refuse, one of which nobody has heard, the feed is
// answered: at last by what every node has.
func TestManyCondemnedVersions(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.fill(rand.New(rand.NewPCG(1, 1)), 20, 100)
	var versions []artefacts.Version
	for n := range 2 * maxTurns {
		versions = append(versions, coarseVersion(n+1))
		w.nodes["n0"].refuses(versions[n])
	}
	b := w.brokerOf(newPointers(versions...), rankedFeed)
	resp, err := b.GetFeed(t.Context(), rankedRequest(10))
	if err != nil || resp.Receipt.Model != lastResort || resp.Receipt.InPlaceOf != versions[len(versions)-1].String() || w.calls() != maxTurns {
		t.Fatalf("%v, %v after %d calls", resp.GetReceipt(), err, w.calls())
	}
}

// What a node said of a version holds for a while, and of so many versions.
func TestWhatNodesSaidIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c condemned
		c.note(coarseVersion(1), "it panicked")
		time.Sleep(heardFor)
		if why := c.why(coarseVersion(1)); why != "it panicked" {
			t.Errorf("after %v: %q", heardFor, why)
		}
		time.Sleep(time.Nanosecond)
		if why := c.why(coarseVersion(1)); why != "" || len(c.mu.heard) != 0 {
			t.Errorf("after more than %v: %q", heardFor, why)
		}
		for n := range maxHeard {
			c.note(coarseVersion(n+1), "it panicked")
		}
		if why := c.why(coarseVersion(1)); why == "" || len(c.mu.heard) != maxHeard {
			t.Errorf("%d versions are remembered, the first with %q", len(c.mu.heard), why)
		}
		c.note(coarseVersion(0), "it panicked")
		if why := c.why(coarseVersion(0)); why == "" || len(c.mu.heard) != 1 {
			t.Errorf("%d versions are remembered, the last with %q", len(c.mu.heard), why)
		}
	})
}

// A ranking for comparison alone is of the models that it is to compare, or it is none.
func TestShadowsGiveNoWay(t *testing.T) {
	w := newWorld(t, 1, 1)
	b := w.brokerOf(newPointers(coarseVersion(1), coarseVersion(2)), rankedFeed)
	for _, aside := range []bool{false, true} {
		q, err := b.read(t.Context(), rankedRequest(5), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		q.Aside = aside
		refused := condemnedModel("model", "", q.Model(), "it panicked")
		again, err := b.givesWay(q, questions.Weighted{Version: q.Model()}, refused)
		if again == aside || !errors.Is(err, refused) || (q.Model() == coarseVersion(2)) != aside {
			t.Errorf("aside %t: asked again %t, by %v; %v", aside, again, q.Model(), err)
		}
		b.condemned.mu.heard = nil
	}
}

// Of several models that are condemned at once each gives way to its own last good
// version, and one whose versions are all bad to the last resort, in as many turns
// as there are versions to be tried, whatever the others have.
func TestManyCondemnedModels(t *testing.T) {
	for several := 1; several <= 5; several++ {
		t.Run(fmt.Sprint(several), func(t *testing.T) { manyCondemnedModels(t, several) })
	}
}

func manyCondemnedModels(t *testing.T, several int) {
	var src strings.Builder
	src.WriteString("layers: [{name: l, salt: s, unit: entity}]\nexperiments: [{name: e, layer: l, feeds: [ranked], state: running, slots: [0-9999], share: 10000, forced: {member:0: v0")
	for i := range several - 1 {
		fmt.Fprintf(&src, ", member:%d: v%d", i+1, i+1)
	}
	src.WriteString("}, variants: [{name: v0, weight: 10000}")
	for i := range several - 1 {
		fmt.Fprintf(&src, ", {name: v%d, weight: 0, set: {model: m%d}}", i+1, i+1)
	}
	src.WriteString("]}]\n")
	for bad := 1; bad <= 2*maxTurns; bad++ {
		w := newWorld(t, 1, 1)
		w.fill(rand.New(rand.NewPCG(1, 1)), several, 100)
		models, spoiled, ranks := newPointers(), 0, []string(nil)
		for i := range several {
			name := fmt.Sprint("m", i)
			if i == 0 {
				name = rankedFeed.Model
			}
			worst := bad
			if i%2 == 1 {
				worst = 1 // the others have a good one, whatever becomes of this
			}
			for n := range 1 + worst { // the first of which is good
				v := coarseVersion(n + 1)
				if v.Name = name; n > 0 {
					w.nodes["n0"].refuses(v)
				}
				models.serve(v)
			}
			if spoiled += min(worst, maxTurns-1); worst >= maxTurns-1 {
				name = lastResort
			}
			ranks = append(ranks, name)
		}
		b, _ := w.divided(src.String(), models, rankedFeed)
		resp, err := b.GetFeed(t.Context(), &feedv1.GetFeedRequest{Feed: rankedFeed.Name, Entities: entityNames(several), Limit: proto.Int64(10)})
		if err != nil {
			t.Fatalf("%d bad versions: %v", bad, err)
		}
		want := each(ranks)
		if r := resp.Receipt; r.Model != want || r.ModelVersion != "1" || len(resp.Coverage.Missing) > 0 {
			t.Errorf("%d bad versions: %s %s, want %s 1; missing %v", bad, r.Model, r.ModelVersion, want, resp.Coverage.Missing)
		}
		if most := several * (spoiled + 1); w.calls() > most {
			t.Errorf("%d bad versions: %d calls, more than %d", bad, w.calls(), most)
		}
	}
}

// What the cluster condemns no node is asked for, and what it releases ranks
// again. Who names the model gets it or a refusal, and no other version.
func TestWhatTheClusterCondemns(t *testing.T) {
	w := newWorld(t, 2, 2)
	w.fill(rand.New(rand.NewPCG(1, 1)), 20, 100)
	all := &verdicts{why: map[artefacts.Version]string{coarseVersion(2): "it panicked"}}
	shadowed := rankedFeed
	shadowed.Model, shadowed.Shadow, shadowed.ShadowShare, shadowed.Name = "recency", []string{"coarse"}, 1, "beside"
	b := w.condemning(newPointers(coarseVersion(1), coarseVersion(2)), all, rankedFeed, shadowed)
	answer := func(named bool) (string, error) {
		req := rankedRequest(5)
		if named {
			req.Model = "coarse"
		}
		resp, err := b.GetFeed(t.Context(), req)
		return resp.GetReceipt().GetModelVersion(), err
	}
	if v, err := answer(false); err != nil || v != "1" {
		t.Errorf("version %q, %v", v, err)
	}
	_, err := answer(true)
	if e := refusal(t, err); e.Reason != millrace.ReasonCondemned || e.Field != "model" || !strings.Contains(e.Detail, "coarse 2") || !strings.Contains(e.Detail, "it panicked") || e.WayOut == "" {
		t.Errorf("who names it: %+v", e)
	}
	req := rankedRequest(5)
	req.Feed = "beside"
	if _, err := b.GetFeed(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	b.shadows.Wait()
	for _, n := range w.nodes {
		for _, q := range n.asked {
			if q.ModelVersion == "2" || len(q.Beside) > 0 {
				t.Errorf("a node is asked for %v, and beside it %v", q.ModelVersion, q.Beside)
			}
		}
	}
	all.set(coarseVersion(2), "")
	for _, named := range []bool{false, true} {
		if v, err := answer(named); err != nil || v != "2" {
			t.Errorf("released: version %q, %v", v, err)
		}
	}
}

// A page does not go on in the order of another version: it is refused, with the
// reason and the way out.
func TestPagesOfACondemnedVersion(t *testing.T) {
	w := newWorld(t, 2, 2)
	w.fill(rand.New(rand.NewPCG(1, 1)), 20, 100)
	b := w.brokerOf(newPointers(coarseVersion(1), coarseVersion(2)), rankedFeed)
	first, err := b.GetFeed(t.Context(), rankedRequest(5))
	if err != nil || first.Receipt.ModelVersion != "2" {
		t.Fatalf("%v, %v", first, err)
	}
	for _, n := range w.nodes {
		n.refuses(coarseVersion(2))
	}
	for what := range 2 { // as the node says, and as the broker knows
		req := rankedRequest(5)
		req.PageToken = first.NextPageToken
		_, err = b.GetFeed(t.Context(), req)
		if e := refusal(t, err); e.Reason != millrace.ReasonPageToken || !strings.Contains(e.Detail, "condemned") || e.WayOut == "" {
			t.Errorf("%d: %+v", what, e)
		}
	}
	// The pages of what ranks in its place keep that.
	resp, err := b.GetFeed(t.Context(), rankedRequest(5))
	if err != nil || resp.Receipt.ModelVersion != "1" {
		t.Fatalf("%v, %v", resp, err)
	}
	req := rankedRequest(5)
	req.PageToken = resp.NextPageToken
	if next, err := b.GetFeed(t.Context(), req); err != nil || next.Receipt.ModelVersion != "1" || proto.Equal(next.Items[0], resp.Items[0]) {
		t.Errorf("%v, %v", next, err)
	}
}
