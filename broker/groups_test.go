package broker

import (
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/feedstest"
	"github.com/millrace/millrace/broker/questions"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/expr/celref"
	"github.com/millrace/millrace/internal/oracle"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/relevance/experiment"
)

// dividing divides entities twice, and viewers beside.
const dividing = `
layers: [{name: authors, salt: a-1, unit: entity}, {name: kinds, salt: k-1, unit: entity}, {name: viewers, salt: v-1, unit: viewer}]
experiments:
  - {name: ranks, layer: authors, feeds: [divided, objects], state: running, slots: [0-9999], share: 8000, forced: {member:3: recent}, variants: [
      {name: control, weight: 2000}, {name: recent, weight: 3000, set: {model: recency}}, {name: flipped, weight: 3000, set: {weights: {scale: -1}}},
      {name: short, weight: 2000, set: {window: 8s}}]}
  - {name: kinds, layer: kinds, feeds: [divided, objects], state: running, slots: [0-4999], share: 10000, variants: [
      {name: all, weight: 2000}, {name: likes, weight: 4000, set: {types: [like]}}, {name: even, weight: 4000, set: {filter: record.even}}]}
  - {name: page, layer: viewers, feeds: [divided, objects], state: running, slots: [0-9999], share: 10000, variants: [
      {name: a, weight: 5000}, {name: b, weight: 5000, set: {cap_per_entity: 2}}]}
`

// divided is a broker by a document, with all its experiments from the start.
func (w *world) divided(src string, models Models, feeds ...feeds.Feed) (*Broker, *feedstest.Definitions) {
	w.t.Helper()
	docs := feedstest.New()
	docs.Serve("doc", 1, src)
	b, err := New(Config{Maps: w, Feeds: feeds, Experiments: docs, Models: models, Log: slog.New(slog.DiscardHandler), Dial: w.dial})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = b.Close() })
	if len(b.experiments.Faults()) > 0 {
		w.t.Fatal(b.experiments.Faults())
	}
	return b, docs
}

// setsOf returns what the variants of an entity set, by the rules that callers
// have; of experiments that the request overrides nothing.
func setsOf(t *testing.T, src string, req *feedv1.GetFeedRequest, e millrace.Entity) (all experiment.Sets, variants []string) {
	t.Helper()
	d, err := experiment.Parse("doc", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	set, err := experiment.Admit([]experiment.Document{d}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range set.Experiments() {
		if x.Rule.Unit != "entity" || x.Experiment.Name == "ranks" && (req.From != nil || req.Model != "") || x.Experiment.Name == "kinds" && len(req.Types) > 0 {
			continue
		}
		name, ok := x.Rule.Assign(x.Rule.Feeds[0], string(e))
		if !ok {
			continue
		}
		variants = append(variants, x.Experiment.Name+"/"+name)
		for _, v := range x.Experiment.Variants {
			if v.Name != name {
				continue
			}
			if v.Set.Model != "" || v.Set.Weights != nil {
				all.Model, all.Weights = v.Set.Model, v.Set.Weights
			}
			if v.Set.Filter != nil {
				all.Filter = v.Set.Filter
			}
			if v.Set.Window != nil {
				all.Window = v.Set.Window
			}
			if v.Set.Types != nil {
				all.Types = v.Set.Types
			}
		}
	}
	return all, variants
}

// wantDivided is the answer of one machine that scores the candidates of each
// entity by what its variants set, and then caps, deduplicates and merges once.
func (w *world) wantDivided(b *Broker, src string, req *feedv1.GetFeedRequest, keep func(millrace.Partition) bool) []oracle.Item {
	q, err := b.read(w.t.Context(), req, time.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	of := map[millrace.Entity]experiment.Sets{}
	var entities []millrace.Entity
	for _, name := range req.Entities {
		if e := millrace.Entity(name); keep(partition.Of(e)) {
			of[e], _ = setsOf(w.t, src, req, e)
			entities = append(entities, e)
		}
	}
	query := w.query(q.Query, entities)
	own := query.Score
	query.Score = func(c *oracle.Candidate, v *millrace.Viewer, at millrace.Time) float64 {
		x := own(c, v, at)
		if of[c.Entity].Model == "recency" {
			x = recency(c, v, at)
		}
		if s, ok := of[c.Entity].Weights["scale"]; ok {
			x *= s
		}
		return x
	}
	query.Filter = func(c *oracle.Candidate, _ *millrace.Viewer, at millrace.Time) celref.Outcome {
		s := of[c.Entity]
		if s.Filter != nil && !even(c) || s.Window != nil && c.Time < at-millrace.Time(s.Window.Milliseconds()) || s.Types != nil && !slices.Contains(s.Types, c.Type) {
			return celref.False
		}
		return celref.True
	}
	if len(entities) == 0 {
		return nil
	}
	return w.feed.Query(query).Items
}

// Whatever the assignment of partitions, and whichever nodes are slow, broken or
// behind, an answer whose entities are divided is that of one machine which
// treats each entity as its variants say.
func TestDividedAnswersEqualOneMachine(t *testing.T) {
	met := map[int]int{}
	for seed := range worlds() {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 26))
			w := randomWorld(t, r)
			b, _ := w.divided(dividing, nil, feeds.Feed{Name: "divided", Model: "coarse", CapPerEntity: r.IntN(4)}, feeds.Feed{Name: "objects", Model: "coarse", DistinctObjects: true, CapPerEntity: r.IntN(4)})
			for range 3 {
				req := randomRequest(r)
				req.Feed, req.AsOf = []string{"divided", "objects"}[r.IntN(2)], timestamp(20_000)
				if r.IntN(6) == 0 {
					req.Model = "recency"
				}
				want := func(b *Broker, req *feedv1.GetFeedRequest, keep func(millrace.Partition) bool) []oracle.Item {
					return w.wantDivided(b, dividing, req, keep)
				}
				if msg := w.checkAgainst(b, req, want); msg != "" {
					t.Fatalf("seed %d: %s\nrequest %v", seed, msg, req)
				}
				if q, err := b.read(t.Context(), req, time.Now()); err == nil {
					met[len(q.Groups)]++
				}
			}
		})
	}
	if met[1] == 0 || met[3]+met[4]+met[5]+met[6]+met[7]+met[8] == 0 {
		t.Errorf("questions by groups: %v; the test tries too little", met)
	}
}

// The receipt tells how many entities have which variant, by whose models and
// weights; the exposure, which entity and item has which.
func TestDividedAnswersSayWho(t *testing.T) {
	w := variantedWorld(t)
	src := strings.ReplaceAll(dividing, "divided, objects", "f")
	models := newPointers(coarseVersion(4))
	b, _ := w.divided(src, models, feeds.Feed{Name: "f", Model: "coarse", Limit: 30})
	var told shows
	b.exposures = &told
	at := func(r *feedv1.GetFeedRequest) { r.AsOf = timestamp(timeAt(60)) }
	resp := ask(t, b, "alice", at)
	counted := map[string]int32{}
	for _, v := range resp.Receipt.EntityVariants {
		counted[v.Experiment+"/"+v.Variant] = v.Entities
	}
	want, of := map[string]int32{}, map[string][]string{}
	for _, e := range entityNames(12) {
		_, variants := setsOf(t, src, &feedv1.GetFeedRequest{}, millrace.Entity(e))
		of[e] = variants
		for _, v := range variants {
			want[v]++
		}
	}
	if fmt.Sprint(counted) != fmt.Sprint(want) || want["ranks/recent"] == 0 || want["ranks/flipped"] == 0 {
		t.Errorf("%v, want %v", counted, want)
	}
	if r := resp.Receipt; r.Model != "coarse,recency" || r.ModelVersion != "1,4" || len(r.WeightsSum) != 64 || len(r.Variants) != 1 {
		t.Errorf("%v", r)
	}
	if len(told.all) != 1 || len(resp.Items) < 10 {
		t.Fatalf("%d exposures of %d items", len(told.all), len(resp.Items))
	}
	record := &told.all[0]
	if _, err := record.Append(nil); err != nil {
		t.Error(err)
	}
	exposed := map[string][]string{}
	for _, e := range record.Experiments {
		if e.Experiment != "page" {
			exposed[e.Unit] = append(exposed[e.Unit], e.Experiment+"/"+e.Variant)
			chance := map[string]float64{"control": 0.16, "recent": 0.24, "flipped": 0.24, "short": 0.16, "all": 0.1, "likes": 0.2, "even": 0.2}[e.Variant]
			if e.Forced {
				chance = 0
			}
			if e.Forced != (e.Unit == "member:3" && e.Experiment == "ranks") || len(e.Checksum) != 64 || math.Abs(e.Probability-chance) > 1e-9 {
				t.Errorf("%+v", e)
			}
		}
	}
	for i, it := range record.Items {
		slices.Sort(exposed[it.Entity]) // which are by layer, and not by experiment
		if got := exposed[it.Entity]; !slices.Equal(got, of[it.Entity]) {
			t.Errorf("%s has %q, want %q", it.Entity, got, of[it.Entity])
		}
		m, sets := record.Models[it.Model], of[it.Entity]
		model, weighted := "coarse", slices.Contains(sets, "ranks/flipped")
		if slices.Contains(sets, "ranks/recent") {
			model = "recency"
		}
		if m.Name != model || strings.Contains(m.Checksum, "+") != weighted || it.Score != resp.Items[i].Score && it.Score == it.Score {
			t.Errorf("item %d of %s, which has %q: by %+v", i, it.Entity, sets, m)
		}
	}
	plain := ask(t, b, "alice", func(r *feedv1.GetFeedRequest) { at(r); r.Feed, r.Limit = "recent", proto.Int64(30) })
	if len(plain.Receipt.EntityVariants) > 0 || len(told.all) != 1 {
		t.Errorf("another feed: %v", plain.Receipt)
	}
}

// Pages go on as the first began, whatever is ramped, paused or pushed
// meanwhile: together they are the one long answer.
func TestPagesKeepTheirDivision(t *testing.T) {
	w := variantedWorld(t)
	src := `
layers: [{name: l, salt: s, unit: entity}]
experiments: [{name: e, layer: l, feeds: [f], state: running, slots: [0-9999], share: 5000, variants: [{name: flipped, weight: 10000, set: {model: coarse, weights: {scale: -1}}}]}]
`
	models := newPointers(coarseVersion(1))
	b, docs := w.divided(src, models, feeds.Feed{Name: "f", Model: "recency", Limit: 5})
	long := ask(t, b, "alice", func(r *feedv1.GetFeedRequest) { r.Limit = proto.Int64(60) })
	if v := long.Receipt.EntityVariants; len(v) != 1 || v[0].Entities < 2 || v[0].Entities > 10 {
		t.Fatalf("%v of 12 are in the experiment: the test tries too little", v)
	}
	changes := []func(){
		func() { models.serve(coarseVersion(2)) },
		func() { define(t, b, docs, 2, strings.Replace(src, "share: 5000", "share: 10000", 1)) },
		func() {
			define(t, b, docs, 3, strings.NewReplacer("running", "paused", "share: 5000", "share: 10000").Replace(src))
		},
		func() {
			docs.Serve("new", 1, strings.NewReplacer("name: l,", "name: l2,", "salt: s,", "salt: s2,", "layer: l,", "layer: l2,", "name: e,", "name: e2,", "model: coarse, weights: {scale: -1}", "cap_per_entity: 1").Replace(src))
		},
	}
	token := ""
	var got []*feedv1.Item
	for i := 0; len(got) < len(long.Items); i++ {
		page := ask(t, b, "alice", func(r *feedv1.GetFeedRequest) { r.PageToken = token })
		if version := page.Receipt.ModelVersion; strings.Contains(version, "2") {
			t.Fatalf("page %d is of version %s", i, version)
		}
		if v := page.Receipt.EntityVariants; len(v) != 1 || v[0].Entities != long.Receipt.EntityVariants[0].Entities {
			t.Fatalf("page %d: %v", i, v)
		}
		if got, token = append(got, page.Items...), page.NextPageToken; len(page.Items) == 0 {
			break
		}
		if i < len(changes) {
			changes[i]()
		}
	}
	if !slices.EqualFunc(got, long.Items, func(a, b *feedv1.Item) bool { return proto.Equal(a, b) }) {
		t.Errorf("%d items on pages are not the %d of one answer", len(got), len(long.Items))
	}
	// Who is dealt otherwise now, or by a model that is gone, is told so.
	first := ask(t, b, "alice", nil)
	if len(first.Receipt.EntityVariants) == 1 && first.Receipt.EntityVariants[0].Experiment == "e" {
		t.Error("a paused experiment divides")
	}
	docs.Drop("new")
	define(t, b, docs, 4, src)
	models.serve(coarseVersion(1))
	first = ask(t, b, "alice", nil)
	next := func() error {
		req := recentRequest(12)
		req.Feed, req.Limit, req.Viewer, req.PageToken = "f", nil, &feedv1.Viewer{Id: "alice"}, first.NextPageToken
		_, err := b.GetFeed(t.Context(), req)
		return err
	}
	models.drop(coarseVersion(1))
	if err := next(); err == nil || !strings.Contains(err.Error(), "model coarse 1") {
		t.Errorf("a model that is gone: %v", err)
	}
	models.serve(coarseVersion(1))
	if err := next(); err != nil {
		t.Error(err)
	}
	define(t, b, docs, 5, strings.Replace(src, "0-9999", "0-8999", 1))
	if err := next(); err == nil || refusal(t, err).Reason != millrace.ReasonPageToken || !strings.Contains(err.Error(), "experiment e, which divided") {
		t.Errorf("other slots: %v", err)
	}
}

// The experiments that set weights for some entity of a group are noted, each once.
func TestWeighers(t *testing.T) {
	var g questions.Group
	for _, names := range []string{"ab", "b", "ca"} { // a sets none
		var dealt []experiment.Assigned
		for _, name := range names {
			sets := &experiment.Sets{}
			if name != 'a' {
				sets.Weights = map[string]float64{"age": 1}
			}
			dealt = append(dealt, experiment.Assigned{Experiment: string(name), Sets: sets})
		}
		weighedBy(&g, dealt)
	}
	if !slices.Equal(g.Weighers, []string{"b", "c"}) {
		t.Errorf("%q", g.Weighers)
	}
}

// A node asked for several groups is asked for each at the same time; what one
// of them lacks is asked elsewhere, all of it together.
func TestGroupsAreOneLeg(t *testing.T) {
	w := newWorld(t, 2, 2)
	w.fill(rand.New(rand.NewPCG(1, 1)), 20, 100)
	src := `
layers: [{name: l, salt: s, unit: entity}]
experiments: [{name: e, layer: l, feeds: [ranked], state: running, slots: [0-9999], share: 10000, variants: [{name: a, weight: 5000}, {name: b, weight: 5000, set: {weights: {scale: 2}}}]}]
`
	w.nodes["n0"].old = true // knows no weights
	b, _ := w.divided(src, nil, rankedFeed)
	for i := range 10 {
		req := rankedRequest(10)
		req.Viewer = &feedv1.Viewer{Id: fmt.Sprint(i)}
		resp, err := b.GetFeed(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if c := resp.Coverage; c.TimelinesAnswered != c.TimelinesAsked || c.TimelinesAsked != 20 || len(c.Missing) > 0 {
			t.Fatalf("%v", c)
		}
		for _, a := range resp.Receipt.Applied {
			if a.Node != "n1" {
				t.Fatalf("a part is of %s", a.Node)
			}
		}
	}
	w.nodes["n1"].set(func() { w.nodes["n1"].old = true })
	if _, err := b.GetFeed(t.Context(), rankedRequest(10)); err == nil || !strings.Contains(err.Error(), fanout.MissOlder) {
		t.Errorf("%v", err)
	}
}

// A window that an entity's variant sets ends where the caller's does, also where the
// feed's begins later than that.
func TestWindowsOfEntitiesEndWithTheCallers(t *testing.T) {
	w := newWorld(t, 2, 1)
	now := time.Now()
	for i := range 200 {
		w.add(millrace.Timeline{Entity: entity(i % 20), Type: "post"}, millrace.RecordID(fmt.Sprint(i)), millrace.TimeOf(now.Add(-time.Duration(i)*time.Minute)), "")
	}
	b, _ := w.divided(`
layers: [{name: l, salt: s, unit: entity}]
experiments: [{name: e, layer: l, feeds: [narrow], state: running, slots: [0-9999], share: 10000, variants: [{name: a, weight: 1}, {name: b, weight: 9999, set: {window: 3h}}]}]
`, nil, feeds.Feed{Name: "narrow", Model: "recency", Window: time.Hour, Forbid: feeds.Forbid{Window: true}})
	to := now.Add(-2 * time.Hour)
	req := rankedRequest(100)
	req.Feed, req.To = "narrow", timestamppb.New(to)
	resp, err := b.GetFeed(t.Context(), req)
	if err != nil || len(resp.Items) == 0 {
		t.Fatalf("%d items, %v", len(resp.GetItems()), err)
	}
	for _, it := range resp.Items {
		if !it.Time.AsTime().Before(to) {
			t.Errorf("%s is %v behind the end", it.Id, it.Time.AsTime().Sub(to))
		}
	}
}

// A version that is condemned gives way in the groups that it ranks for, and
// nowhere else; pages go on so.
func TestCondemnedInGroups(t *testing.T) {
	src := `
layers: [{name: l, salt: s, unit: entity}]
experiments: [{name: e, layer: l, feeds: [f], state: running, slots: [0-9999], share: 10000, variants: [{name: a, weight: 3000}, {name: other, weight: 3000, set: {model: coarse}}, {name: flipped, weight: 4000, set: {model: coarse, weights: {scale: -1}}}]}]
`
	for _, lacks := range []bool{false, true} {
		t.Run(fmt.Sprintf("the last good one lacks the weights: %v", lacks), func(t *testing.T) { condemnedInGroups(t, src, lacks) })
	}
}

func condemnedInGroups(t *testing.T, src string, lacks bool) {
	w := variantedWorld(t)
	b, _ := w.divided(src, newPointers(coarseVersion(1), coarseVersion(2)), feeds.Feed{Name: "f", Model: "recency", Limit: 5})
	verdict := &verdicts{why: map[artefacts.Version]string{}}
	b.condemned.cluster = verdict
	for _, n := range w.nodes {
		n.set(func() { n.weightless = map[artefacts.Version]bool{coarseVersion(1): lacks} })
	}
	inPlace := func(what string, resp *feedv1.GetFeedResponse, of string) {
		t.Helper()
		if r := resp.Receipt; r.Model != "coarse,recency" || r.ModelVersion != "1" || (r.WeightsSum == "") != lacks || r.InPlaceOf != of || len(resp.Coverage.Missing) > 0 {
			t.Errorf("%s: %v", what, r)
		}
	}
	if r := ask(t, b, "alice", nil).Receipt; r.ModelVersion != "1,2" || len(r.WeightsSum) != 64 || r.InPlaceOf != "" {
		t.Fatalf("%v", r)
	}
	verdict.set(coarseVersion(2), "it panicked")
	first := ask(t, b, "alice", nil)
	inPlace("the cluster says so", first, "coarse 2")
	verdict.set(coarseVersion(2), "")
	b.condemned.mu.lacks = nil // as of a broker that has not met it
	inPlace("a further page", ask(t, b, "alice", func(r *feedv1.GetFeedRequest) { r.PageToken = first.NextPageToken }), "")
	for _, n := range w.nodes {
		n.refuses(coarseVersion(2))
	}
	inPlace("nodes say so", ask(t, b, "alice", nil), "coarse 2")
	verdict.set(coarseVersion(1), "it panicked")
	req := recentRequest(12)
	req.Feed, req.Limit, req.Viewer, req.PageToken = "f", nil, &feedv1.Viewer{Id: "alice"}, first.NextPageToken
	if _, err := b.GetFeed(t.Context(), req); err == nil || refusal(t, err).Reason != millrace.ReasonPageToken || !strings.Contains(err.Error(), "coarse 1") {
		t.Errorf("a page by a version that is condemned since: %v", err)
	}
	if r := ask(t, b, "alice", nil).Receipt; r.Model != "recency" || r.InPlaceOf != "coarse 2" {
		t.Errorf("the last resort: %v", r)
	}
}
