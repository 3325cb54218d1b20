package broker

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/feedstest"
	"github.com/millrace/millrace/broker/pagetoken"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/relevance/weights"
)

// experimental is a broker with documents of experiments, and what defines them.
func (w *world) experimental(models Models, feeds ...feeds.Feed) (*Broker, *feedstest.Definitions) {
	w.t.Helper()
	docs := feedstest.New()
	b, err := New(Config{Maps: w, Feeds: feeds, Experiments: docs, Models: models, Log: slog.New(slog.DiscardHandler), Dial: w.dial})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = b.Close() })
	return b, docs
}

// define lets a document serve and waits until the broker has it, or tells a
// fault of it.
func define(t *testing.T, b *Broker, docs *feedstest.Definitions, version int, src string) {
	t.Helper()
	d, err := experiment.Parse("doc", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	want, err := experiment.Admit([]experiment.Document{d}, nil)
	if err != nil {
		t.Fatal(err)
	}
	docs.Serve("doc", version, src)
	waitFor(t, "a definition", func() bool {
		return len(b.experiments.Faults()) > 0 || len(b.experiments.Current().Diff(want)) == 0
	})
}

// halves divides all viewers in two by what the second half gets.
func halves(state, set string) string {
	return fmt.Sprintf(`
layers: [{name: l, salt: s, unit: viewer}]
experiments:
  - {name: e, layer: l, feeds: [f], state: %s, slots: [0-9999], share: 10000,
     variants: [{name: a, weight: 5000}, {name: b, weight: 5000, set: {%s}}], forced: {alice: b, bob: a}}
`, state, set)
}

func ask(t *testing.T, b *Broker, viewer string, change func(*feedv1.GetFeedRequest)) *feedv1.GetFeedResponse {
	t.Helper()
	req := recentRequest(12)
	req.Feed, req.Limit, req.Viewer = "f", nil, &feedv1.Viewer{Id: viewer}
	if change != nil {
		change(req)
	}
	resp, err := b.GetFeed(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func variantedWorld(t *testing.T) *world {
	w := newWorld(t, 3, 2)
	for i := range 60 {
		w.add(timelineOf(i%12), recordID(i), timeAt(i), "")
	}
	return w
}

// Each parameter that a variant sets answers as a feed does that is defined so,
// and control as the feed itself.
func TestVariantsSetTheFeed(t *testing.T) {
	w := variantedWorld(t)
	base := feeds.Feed{Name: "f", Model: "recency", Limit: 20}
	for set, change := range map[string]func(*feeds.Feed){
		"limit: 7":                        func(f *feeds.Feed) { f.Limit = 7 },
		"cap_per_entity: 1":               func(f *feeds.Feed) { f.CapPerEntity = 1 },
		`filter: 'record.id != "r:0007"'`: func(f *feeds.Feed) { f.Filter = `record.id != "r:0007"` },
		"window: 20s":                     func(f *feeds.Feed) { f.Window = 20 * time.Second },
		"types: [like]":                   func(f *feeds.Feed) { f.Types = []millrace.ContentType{"like"} },
		"spacing: {entity: 3}":            func(f *feeds.Feed) { f.Spacing.Entity = 3 },
		"model: coarse":                   func(f *feeds.Feed) { f.Model = "coarse" },
	} {
		b, docs := w.experimental(nil, base)
		define(t, b, docs, 1, halves("running", set))
		other := base
		change(&other)
		other.Name = "g"
		want := w.broker(base, other)
		at := func(req *feedv1.GetFeedRequest) { req.AsOf = timestamp(timeAt(60)) }
		for viewer, feed := range map[string]string{"alice": "g", "bob": "f"} {
			got := ask(t, b, viewer, at)
			plain := ask(t, want, viewer, func(req *feedv1.GetFeedRequest) { at(req); req.Feed = feed })
			if !slices.EqualFunc(got.Items, plain.Items, func(a, b *feedv1.Item) bool { return proto.Equal(a, b) }) || got.Receipt.Model != plain.Receipt.Model {
				t.Errorf("%s, %s: %d items by %s, want %d by %s", set, viewer, len(got.Items), got.Receipt.Model, len(plain.Items), plain.Receipt.Model)
			}
			if v := got.Receipt.Variants["e"]; v != map[string]string{"alice": "b", "bob": "a"}[viewer] {
				t.Errorf("%s: %s has %q", set, viewer, v)
			}
		}
	}
}

// Weights of a variant go to the nodes with the version of the model that they
// are of, which pages keep, and come back in the receipt and in the exposure; a
// shadow ranks beside them.
func TestVariantsSetWeights(t *testing.T) {
	w := variantedWorld(t)
	first := coarseVersion(1)
	models := newPointers(first)
	b, docs := w.experimental(models, feeds.Feed{Name: "f", Model: "coarse", Limit: 5, Shadow: []string{"recency"}, ShadowShare: 1})
	var told shows
	b.exposures = &told
	define(t, b, docs, 1, halves("running", "weights: {scale: -2}"))
	sum := weights.Sum(`{"scale":-2}`)
	resp := ask(t, b, "alice", nil)
	b.shadows.Wait() // for which the exposure waits
	models.serve(coarseVersion(2))
	next := ask(t, b, "alice", func(r *feedv1.GetFeedRequest) { r.PageToken = resp.NextPageToken })
	anew := ask(t, b, "alice", nil)
	if len(resp.Items) == 0 || len(next.Items) == 0 {
		t.Fatal("nothing is shown")
	}
	for i, r := range []*feedv1.GetFeedResponse{resp, next, anew} {
		if version := []string{"1", "1", "2"}[i]; r.Receipt.WeightsSum != sum || r.Receipt.Model != "coarse" || r.Receipt.ModelVersion != version {
			t.Errorf("answer %d: %v", i+1, r.Receipt)
		}
		for _, it := range r.Items {
			if it.Score > 0 {
				t.Errorf("answer %d: %s scores %v", i+1, it.Id, it.Score)
			}
		}
	}
	b.shadows.Wait()
	if m := told.all[0].Models[0]; m.Checksum != first.Sum+"+"+sum {
		t.Errorf("the exposure has %+v", m)
	}
	told.all = nil
	bob := ask(t, b, "bob", nil)
	b.shadows.Wait()
	if r := bob.Receipt; r.WeightsSum != "" || told.all[0].Models[0].Checksum != coarseVersion(2).Sum {
		t.Errorf("control: %v, %+v", r, told.all[0].Models)
	}
	overridden := ask(t, b, "alice", func(r *feedv1.GetFeedRequest) { r.Model = "coarse" })
	if overridden.Receipt.WeightsSum != "" || len(overridden.Receipt.Overridden) != 1 {
		t.Errorf("a request that names its model: %v", overridden.Receipt)
	}
	b.shadows.Wait()
	var m dto.Metric
	if err := shadowAnswers(b).WithLabelValues("f", "coarse+"+sum[:12], "recency", "", "compared").Write(&m); err != nil || m.Counter.GetValue() != 2 {
		t.Errorf("%v, %v", &m, err)
	}
	define(t, b, docs, 2, halves("running", "weights: {scale: -3}"))
	req := recentRequest(12)
	req.Feed, req.Limit, req.Viewer, req.PageToken = "f", nil, &feedv1.Viewer{Id: "alice"}, anew.NextPageToken
	if _, err := b.GetFeed(t.Context(), req); err == nil || refusal(t, err).Reason != millrace.ReasonPageToken {
		t.Errorf("other weights: %v", err)
	}
}

// A version that ranks in the place of a condemned one scores by the weights that
// a variant sets, on every page, also when the condemned one is asked for again
// meanwhile.
func TestWeightsOfACondemnedVersion(t *testing.T) {
	w := variantedWorld(t)
	b, docs := w.experimental(newPointers(coarseVersion(1), coarseVersion(2)), feeds.Feed{Name: "f", Model: "coarse", Limit: 5})
	log := &shownLog{}
	b.exposures = log
	verdict := &verdicts{why: map[artefacts.Version]string{coarseVersion(2): "it panicked"}}
	b.condemned.cluster = verdict
	define(t, b, docs, 1, halves("running", "weights: {scale: -2}"))
	resp := ask(t, b, "alice", nil)
	verdict.set(coarseVersion(2), "")
	next := ask(t, b, "alice", func(r *feedv1.GetFeedRequest) { r.PageToken = resp.NextPageToken })
	for i, r := range []*feedv1.GetFeedResponse{resp, next} {
		if r.Receipt.ModelVersion != "1" || r.Receipt.WeightsSum == "" || len(r.Receipt.Unapplied) > 0 || r.Receipt.Variants["e"] != "b" || len(r.Items) == 0 {
			t.Errorf("page %d: %v", i+1, r.Receipt)
		}
		for _, it := range r.Items {
			if it.Score > 0 {
				t.Errorf("page %d: %s scores %v", i+1, it.Id, it.Score)
			}
		}
	}
	for _, n := range w.nodes { // between what is chosen and what is asked
		n.refuses(coarseVersion(2))
	}
	if r := ask(t, b, "alice", nil).Receipt; r.ModelVersion != "1" || r.WeightsSum == "" {
		t.Errorf("a node refuses it: %v", r)
	}
	if n := log.count("b"); n != 3 {
		t.Errorf("%d answers count for the variant, of 3", n)
	}
}

// So it is where a layer divides entities, whichever variants those of a request
// have, and on later pages as on the first.
func TestWeightsOfEntitiesThatTheLastGoodVersionLacks(t *testing.T) {
	w := variantedWorld(t)
	b, docs := w.experimental(newPointers(coarseVersion(1), coarseVersion(2)), feeds.Feed{Name: "f", Model: "coarse", Limit: 2})
	log := &shownLog{}
	b.exposures = log
	verdict := &verdicts{why: map[artefacts.Version]string{coarseVersion(2): "it panicked"}}
	b.condemned.cluster = verdict
	for _, n := range w.nodes {
		n.set(func() { n.weightless = map[artefacts.Version]bool{coarseVersion(1): true} })
	}
	define(t, b, docs, 1, `
layers: [{name: l, salt: s, unit: entity}]
experiments:
  - {name: e, layer: l, feeds: [f], state: running, slots: [0-9999], share: 10000, variants: [{name: a, weight: 5000}, {name: b, weight: 5000, set: {weights: {scale: -2}}}]}
`)
	variantOf := func(e string) string {
		for _, x := range b.experiments.Current().Division("f").Deal(nil, millrace.Entity(e)) {
			return x.Variant
		}
		return ""
	}
	of := map[string][]string{} // entities by variant
	for _, e := range recentRequest(12).Entities {
		of[variantOf(e)] = append(of[variantOf(e)], e)
	}
	page := func(variants, token string) *feedv1.GetFeedResponse {
		return ask(t, b, "alice", func(r *feedv1.GetFeedRequest) {
			r.PageToken, r.Entities = token, nil
			for _, v := range variants {
				r.Entities = append(r.Entities, of[string(v)]...)
			}
		})
	}
	if len(of["a"]) < 2 || len(of["b"]) < 2 {
		t.Fatal(of)
	}
	lacking := map[string]string{} // page tokens
	for _, variants := range []string{"b", "ab", "a"} {
		first := page(variants, "")
		lacking[variants] = page(variants, first.NextPageToken).NextPageToken
		if r := first.Receipt; r.InPlaceOf != "coarse 2" || !slices.Equal(r.Unapplied, []string{"e"}) || len(r.EntityVariants) != len(variants) {
			t.Errorf("%s: %v", variants, r)
		}
	}
	if n := log.count("a") + log.count("b"); n != 0 || len(log.all) != 0 {
		t.Errorf("%d items count for the experiment, in %d answers", n, len(log.all))
	}
	verdict.set(coarseVersion(2), "")
	for _, variants := range []string{"b", "ab", "a"} {
		if r := page(variants, lacking[variants]).Receipt; r.ModelVersion != "1" || !slices.Equal(r.Unapplied, []string{"e"}) {
			t.Errorf("%s, a later page: %v", variants, r)
		}
		if r := page(variants, "").Receipt; r.ModelVersion != "2" || len(r.Unapplied) > 0 {
			t.Errorf("%s, when it is asked for again: %v", variants, r)
		}
	}
	if log.count("a") == 0 || log.count("b") == 0 {
		t.Errorf("when it is asked for again, %d and %d answers count", log.count("a"), log.count("b"))
	}
}

// One that lacks the weights scores by its own. Its answers say so, and count for
// no variant of the experiment: the control is by the same model.
func TestWeightsThatTheLastGoodVersionLacks(t *testing.T) {
	for name, good := range map[string][]artefacts.Version{"it has no such parameter": {coarseVersion(1)}, "it is another model": nil} {
		t.Run(name, func(t *testing.T) {
			w := variantedWorld(t)
			b, docs := w.experimental(newPointers(append(good, coarseVersion(2))...), feeds.Feed{Name: "f", Model: "coarse", Limit: 5})
			log := &shownLog{}
			b.exposures = log
			verdict := &verdicts{why: map[artefacts.Version]string{coarseVersion(2): "it panicked"}}
			b.condemned.cluster = verdict
			for _, n := range w.nodes {
				n.set(func() { n.weightless = map[artefacts.Version]bool{coarseVersion(1): true} })
			}
			define(t, b, docs, 1, halves("running", "weights: {scale: -2}"))
			first := map[string]*feedv1.GetFeedResponse{}
			for i, viewer := range []string{"alice", "bob", "alice"} {
				before := w.calls()
				resp := ask(t, b, viewer, nil)
				if r := resp.Receipt; r.InPlaceOf != "coarse 2" || r.WeightsSum != "" || !slices.Equal(r.Unapplied, []string{"e"}) || r.Variants["e"] == "" {
					t.Errorf("%s: %v", viewer, r)
				}
				if calls := w.calls() - before; i > 0 && calls > len(w.nodes) {
					t.Errorf("%d: nodes are asked again for what they lack: %d calls", i, calls)
				}
				first[viewer] = resp
			}
			later := func(when string) {
				for viewer, page := range first {
					next := ask(t, b, viewer, func(r *feedv1.GetFeedRequest) { r.PageToken = page.NextPageToken })
					if r := next.Receipt; r.WeightsSum != "" || !slices.Equal(r.Unapplied, []string{"e"}) {
						t.Errorf("%s, the next page of %s: %v", when, viewer, r)
					}
				}
			}
			later("while it is condemned")
			verdict.set(coarseVersion(2), "")
			later("once it is asked for again")
			if n := log.count("a") + log.count("b"); n != 0 {
				t.Errorf("%d answers count for the experiment", n)
			}
			for _, viewer := range []string{"alice", "bob"} {
				if r := ask(t, b, viewer, nil).Receipt; r.InPlaceOf != "" || len(r.Unapplied) > 0 {
					t.Errorf("when it is asked for again: %v", r)
				}
			}
			if log.count("a") != 1 || log.count("b") != 1 {
				t.Errorf("when it is asked for again, %d and %d answers count", log.count("a"), log.count("b"))
			}
		})
	}
}

// Where another version ranks in the place of one that an experiment compares,
// answers count for none of its variants: not for the model that a variant sets, nor
// for the feed's own that its control ranks by, nor for either of two that draft; on
// further pages neither, whatever ranks by then. What is compared on one model alone
// counts all the same.
func TestComparedModelsThatAreCondemned(t *testing.T) {
	const of = `
layers: [{name: l, salt: s, unit: %s}]
experiments:
  - {name: e, layer: l, feeds: [f], state: running, slots: [0-9999], share: 10000, variants: [{name: a, weight: 5000}, {name: b, weight: 5000, set: {%s}}]%s}
`
	for _, c := range []struct {
		unit, own, sets string
		applied         bool
	}{
		{"viewer", "recency", "model: coarse", false},
		{"viewer", "coarse", "model: recency", false},
		{"viewer", "recency", "interleave: [recency, coarse]", false},
		{"viewer", "recency", "interleave: [coarse, recency]", false},
		{"viewer", "coarse", "limit: 4", true},
		{"entity", "recency", "model: coarse", false},
		{"entity", "coarse", "model: recency", false},
		{"entity", "coarse", "cap_per_entity: 9", true},
	} {
		t.Run(c.unit+", "+c.own+", "+c.sets, func(t *testing.T) {
			w := variantedWorld(t)
			b, docs := w.experimental(newPointers(coarseVersion(1), coarseVersion(2)), feeds.Feed{Name: "f", Model: c.own, Limit: 5})
			log := &shownLog{}
			b.exposures = log
			verdict := &verdicts{why: map[artefacts.Version]string{coarseVersion(2): "it panicked"}}
			b.condemned.cluster = verdict
			forced := ", forced: {alice: b, bob: a}"
			if c.unit == "entity" {
				forced = ""
			}
			define(t, b, docs, 1, fmt.Sprintf(of, c.unit, c.sets, forced))
			says := func(when string, resp *feedv1.GetFeedResponse, counts bool) {
				t.Helper()
				if got := resp.Receipt.Unapplied; (len(got) == 0) != counts || !counts && !slices.Equal(got, []string{"e"}) {
					t.Errorf("%s: %v", when, resp.Receipt)
				}
				if n := log.count("a") + log.count("b"); (n > 0) != counts {
					t.Errorf("%s, %d answers count", when, n)
				}
				log.all = nil
			}
			var first []*feedv1.GetFeedResponse
			for _, viewer := range []string{"alice", "bob"} {
				first = append(first, ask(t, b, viewer, nil))
				says("while it is condemned", first[len(first)-1], c.applied)
			}
			verdict.set(coarseVersion(2), "")
			for i, viewer := range []string{"alice", "bob"} {
				says("a further page", ask(t, b, viewer, func(r *feedv1.GetFeedRequest) { r.PageToken = first[i].NextPageToken }), c.applied)
				says("when it is asked for again", ask(t, b, viewer, nil), true)
			}
		})
	}
}

// shownLog keeps exposures.
type shownLog struct{ all []*exposure.Record }

func (l *shownLog) Add(r *exposure.Record) { l.all = append(l.all, r) }

// count returns how many are of a variant of experiment e.
func (l *shownLog) count(variant string) (n int) {
	for _, r := range l.all {
		for _, e := range r.Experiments {
			if e.Experiment == "e" && e.Variant == variant {
				n++
			}
		}
	}
	return n
}

// A request that sets what an experiment is about is in no variant of it, and is
// told so.
func TestRequestsOverrideVariants(t *testing.T) {
	w := variantedWorld(t)
	b, docs := w.experimental(nil, feeds.Feed{Name: "f", Model: "recency"})
	for set, change := range map[string]func(*feedv1.GetFeedRequest){
		"limit: 7":                func(r *feedv1.GetFeedRequest) { r.Limit = proto.Int64(9) },
		"model: coarse, limit: 7": func(r *feedv1.GetFeedRequest) { r.Model = "recency" },
		"types: [like]":           func(r *feedv1.GetFeedRequest) { r.Types = []string{"post"} },
		"window: 1s, spacing: {}": func(r *feedv1.GetFeedRequest) { r.From = timestamp(timeAt(0)) },
	} {
		docs.Drop("doc")
		define(t, b, docs, 1, halves("running", set))
		for _, viewer := range []string{"alice", "bob"} {
			if got := ask(t, b, viewer, change).Receipt; len(got.Variants) > 0 || !slices.Equal(got.Overridden, []string{"e"}) {
				t.Errorf("%s: %v, overridden %v", set, got.Variants, got.Overridden)
			}
			if got := ask(t, b, viewer, nil).Receipt; len(got.Variants) != 1 || len(got.Overridden) > 0 {
				t.Errorf("%s: %v, overridden %v", set, got.Variants, got.Overridden)
			}
		}
	}
}

// Every viewer gets what the definitions alone say, and the half of them b.
func TestVariantsAreTheDefinitions(t *testing.T) {
	b, docs := variantedWorld(t).experimental(nil, feeds.Feed{Name: "f", Model: "recency"})
	src := halves("running", "limit: 7")
	define(t, b, docs, 1, src)
	d, _ := experiment.Parse("doc", []byte(src))
	set, _ := experiment.Admit([]experiment.Document{d}, nil)
	n := 0
	for i := range 400 {
		viewer := fmt.Sprintf("member:%d", i)
		got := ask(t, b, viewer, nil)
		want := set.Assign("f", &millrace.Viewer{ID: viewer}).Experiments[0].Variant
		if got.Receipt.Variants["e"] != want || (len(got.Items) == 7) != (want == "b") {
			t.Fatalf("%s: %v with %d items, want %s", viewer, got.Receipt.Variants, len(got.Items), want)
		}
		if want == "b" {
			n++
		}
	}
	if n < 150 || n > 250 {
		t.Errorf("%d of 400 have b", n)
	}
	for name, change := range map[string]func(*feedv1.GetFeedRequest){
		"another feed": func(r *feedv1.GetFeedRequest) { r.Feed = "recent" }, "no id": func(r *feedv1.GetFeedRequest) { r.Viewer.Id = "" }, "no viewer": func(r *feedv1.GetFeedRequest) { r.Viewer = nil },
	} {
		if got := ask(t, b, "alice", change); got.Receipt.Variants != nil {
			t.Errorf("%s: %v", name, got.Receipt.Variants)
		}
	}
}

// Pages keep the variant of the first, whatever is dealt by then; they end with
// an error, and no page of two variants, when it is gone, or another experiment has
// its name.
func TestPagesKeepTheirVariant(t *testing.T) {
	w := variantedWorld(t)
	b, docs := w.experimental(nil, feeds.Feed{Name: "f", Model: "recency", Limit: 4})
	const set = `filter: 'record.id != "r:0007"', limit: 5`
	define(t, b, docs, 1, halves("running", set))
	first := ask(t, b, "alice", nil)
	control := ask(t, b, "bob", nil)
	next := func(viewer, token string, change func(*feedv1.GetFeedRequest)) (*feedv1.GetFeedResponse, error) {
		req := recentRequest(12)
		req.Feed, req.Limit, req.Viewer, req.PageToken = "f", nil, &feedv1.Viewer{Id: viewer}, token
		if change != nil {
			change(req)
		}
		return b.GetFeed(t.Context(), req)
	}
	for state, want := range map[string]int{"paused": 5, "stopped": 5} {
		define(t, b, docs, 2, halves(state, set))
		if again := ask(t, b, "alice", nil); len(again.Receipt.Variants) > 0 || len(again.Items) != 4 {
			t.Errorf("%s: a first page is of %v", state, again.Receipt.Variants)
		}
		page, err := next("alice", first.NextPageToken, nil)
		if err != nil || len(page.Items) != want || page.Receipt.Variants["e"] != "b" {
			t.Errorf("%s: %v, %d items, %v", state, err, len(page.GetItems()), page.GetReceipt().GetVariants())
		}
		// The request may name another limit, as for every page.
		if page, err = next("alice", first.NextPageToken, func(r *feedv1.GetFeedRequest) { r.Limit = proto.Int64(3) }); err != nil || len(page.Items) != 3 || page.Receipt.Variants["e"] != "b" {
			t.Errorf("%s: %v", state, err)
		}
	}
	if v := control.Receipt.Variants["e"]; v != "a" {
		t.Errorf("bob has %q", v)
	}
	running := halves("running", set)
	for i, c := range []struct {
		old, new string
		another  bool // the name is that of another experiment
	}{
		{"share: 10000", "share: 9000", false},
		{"slots: [0-9999]", "slots: [0-4999]", false},
		{"forced: {alice: b, bob: a}", "forced: {alice: a}", false},
		{"limit: 5", "limit: 6", true},
		{"salt: s", "salt: other", true},
		{"unit: viewer", "unit: attribute country", true},
		{"name: l,", "name: m,", true},
		{"feeds: [f]", "feeds: [f, recent]", true},
		{"forced", "targeting: viewer.age > 1.0, forced", true},
		{"weight: 5000", "weight: 2500, set: {}}, {name: c, weight: 2500", true},
	} {
		changed := strings.Replace(running, c.old, c.new, 1)
		if c.old == "name: l," {
			changed = strings.Replace(changed, "layer: l", "layer: m", 1)
		}
		define(t, b, docs, 3+i, changed)
		for viewer, token := range map[string]string{"alice": first.NextPageToken, "bob": control.NextPageToken} {
			page, err := next(viewer, token, nil)
			switch want := map[string]string{"alice": "b", "bob": "a"}[viewer]; {
			case !c.another && (err != nil || page.Receipt.Variants["e"] != want):
				t.Errorf("%s, %s: %v, %v", c.new, viewer, err, page.GetReceipt().GetVariants())
			case c.another && (err == nil || refusal(t, err).Reason != millrace.ReasonPageToken || !strings.Contains(err.Error(), "variant "+want+" of experiment e")):
				t.Errorf("%s, %s: %v", c.new, viewer, err)
			}
		}
	}
	docs.Drop("doc")
	waitFor(t, "no definition", func() bool { return !b.experiments.Current().Has("f") })
	if _, err := next("alice", first.NextPageToken, nil); err == nil || refusal(t, err).Reason != millrace.ReasonPageToken {
		t.Errorf("%v", err)
	}
	define(t, b, docs, 20, running) // as it was, but another
	for viewer, token := range map[string]string{"alice": first.NextPageToken, "bob": control.NextPageToken} {
		if _, err := next(viewer, token, nil); err == nil || refusal(t, err).Reason != millrace.ReasonPageToken {
			t.Errorf("%s, of the one before: %v", viewer, err)
		}
		if _, err := next(viewer, ask(t, b, viewer, nil).NextPageToken, nil); err != nil {
			t.Errorf("%s, of this one: %v", viewer, err)
		}
	}
}

// An experiment whose model serves no longer deals nothing, and a metric's fault
// says so; the others go on.
func TestVariantsOfAMissingModel(t *testing.T) {
	w := variantedWorld(t)
	models := newPointers()
	b, docs := w.experimental(models, feeds.Feed{Name: "f", Model: "recency"})
	docs.Serve("other", 1, `
layers: [{name: l2, salt: s2, unit: attribute country}]
experiments:
  - {name: e2, layer: l2, feeds: [f], state: running, slots: [0-9999], share: 10000, variants: [{name: c, weight: 10000, set: {cap_per_entity: 1}}]}
`)
	define(t, b, docs, 1, halves("running", "model: gone"))
	waitFor(t, "both", func() bool { return b.experiments.Current().Has("f") && len(b.experiments.Faults()) == 1 })
	got := ask(t, b, "alice", func(r *feedv1.GetFeedRequest) {
		r.Viewer.Attributes = map[string]*structpb.Value{"country": structpb.NewStringValue("de")}
	})
	if !maps.Equal(got.Receipt.Variants, map[string]string{"e2": "c"}) {
		t.Errorf("%v", got.Receipt.Variants)
	}
	if fault := b.experiments.Faults()["doc"]; !strings.Contains(fault, "no model gone serves") {
		t.Errorf("%q", fault)
	}
}

// shows keeps what answers showed.
type shows struct {
	mu  sync.Mutex
	all []exposure.Record
}

func (s *shows) Add(r *exposure.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, *r)
}

// What a request is refused for is told of its variant; what its caller did
// wrong before it had one is not.
func TestRefusalsAreExposed(t *testing.T) {
	w := variantedWorld(t)
	var told shows
	b, docs := w.experimental(nil, feeds.Feed{Name: "f", Model: "recency"})
	b.exposures = &told
	define(t, b, docs, 1, halves("running", "limit: 3"))
	for want, err := range map[string]error{"TOO_LARGE": &millrace.Error{Reason: millrace.ReasonTooLarge, Field: "limit", Detail: "it is too much"}, "UNAVAILABLE": errors.New("it is gone"), "": nil} {
		for _, n := range w.nodes {
			n.set(func() { n.err = err })
		}
		req := recentRequest(3)
		req.Feed, req.Limit, req.Viewer = "f", nil, &feedv1.Viewer{Id: "alice"}
		if _, err := b.GetFeed(t.Context(), req); (err == nil) != (want == "") {
			t.Fatal(err)
		}
		if len(told.all) != 1 || told.all[0].Refusal != want || told.all[0].Viewer != "alice" || told.all[0].ID == "" || told.all[0].Millis <= 0 {
			t.Fatalf("%q: %+v", want, told.all)
		}
		if _, err := told.all[0].Append(nil); err != nil {
			t.Error(err)
		}
		told.all = nil
	}
	for what, change := range map[string]func(*feedv1.GetFeedRequest){
		"no feed": func(r *feedv1.GetFeedRequest) { r.Feed = "nosuch" }, "no viewer": func(r *feedv1.GetFeedRequest) { r.Viewer.Id = strings.Repeat("x", 1000) },
		"another feed": func(r *feedv1.GetFeedRequest) { r.Feed, r.Limit = "recent", proto.Int64(-1) },
	} {
		req := recentRequest(3)
		req.Feed, req.Limit, req.Viewer = "f", nil, &feedv1.Viewer{Id: "alice"}
		change(req)
		if _, err := b.GetFeed(t.Context(), req); err == nil || len(told.all) > 0 {
			t.Errorf("%s: %v, %+v", what, err, told.all)
		}
	}
}

// No variant shows what a private feed drops, be it one that was defined before
// the feed was private, nor does a token of one.
func TestVariantsOfAPrivateFeed(t *testing.T) {
	w := variantedWorld(t)
	drops := feeds.Feed{Name: "f", Model: "recency", Limit: 2, Filter: `record.id == "r:0007"`, Private: true}
	for set, dealt := range map[string]bool{"filter: ''": false, "window: 0s": false, "types: [like]": false, "limit: 1": true, "cap_per_entity: 1": true} {
		b, docs := w.experimental(nil, drops)
		define(t, b, docs, 1, halves("running", set))
		for _, viewer := range []string{"alice", "bob"} {
			if got := ask(t, b, viewer, nil); (len(got.Receipt.Variants) == 1) != dealt {
				t.Errorf("%s: %v", set, got.Receipt.Variants)
			}
		}
	}
	open := drops
	open.Private = false
	b, docs := w.experimental(nil, open)
	define(t, b, docs, 1, halves("running", "filter: ''"))
	c := &pagetoken.Cursor{Issued: 1, Variants: b.experiments.Current().Assign("f", &millrace.Viewer{ID: "alice"}).Experiments}
	if _, err := dealtBefore(b.experiments.Current(), c, false); err != nil {
		t.Error(err)
	}
	if _, err := dealtBefore(b.experiments.Current(), c, true); err == nil {
		t.Error("a token opens a private feed")
	}
}

// What it costs to judge a viewer is bounded whatever their attributes hold, and
// what is refused for less is refused before.
func TestTargetingReadsShortTexts(t *testing.T) {
	b, docs := variantedWorld(t).experimental(nil, feeds.Feed{Name: "f", Model: "recency"})
	define(t, b, docs, 1, strings.Replace(halves("running", "limit: 7"), "variants:", `targeting: 'viewer.a.startsWith("x") || viewer.n > 0.0', variants:`, 1))
	for text, want := range map[string]int{"x": 1, strings.Repeat("x", 256): 1, strings.Repeat("x", 257): 0} {
		got := ask(t, b, "member:1", func(r *feedv1.GetFeedRequest) {
			r.Viewer.Attributes = map[string]*structpb.Value{"a": structpb.NewStringValue(text)}
		})
		if len(got.Receipt.Variants) != want {
			t.Errorf("%d bytes: %v", len(text), got.Receipt.Variants)
		}
	}
}
