package minicluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/relevance/weights"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/expr/celref"
	"github.com/millrace/millrace/internal/oracle"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/schemas"
)

// dealtFeeds is how many feeds random experiments are about.
const dealtFeeds = 6

func dealtFeed(i int) string { return fmt.Sprint("dealt-", i) }

// randomExperiments writes a document of random experiments on each feed: one
// layer of viewers that sets weights, or none, and two of entities.
func randomExperiments(r *rand.Rand) string {
	var layers, all []string
	weighted := func() string {
		return fmt.Sprintf("weights: {recency: %d, type.share: %.3f, likes: %d}", r.IntN(9)-4, r.Float64(), r.IntN(3))
	}
	ranks := []func() string{
		func() string { return "model: recency" },
		func() string { return "weights: {engagement: 7.5}" },
		weighted,
		func() string { return "model: home, " + weighted() },
		func() string { return "" },
	}
	picks := []func() string{
		func() string { return fmt.Sprintf("cap_per_entity: %d", r.IntN(4)) },
		func() string { return fmt.Sprintf("filter: record.likes > %d", r.IntN(3)) },
		func() string { return fmt.Sprintf("filter: record.verb != \"like\", cap_per_entity: %d", r.IntN(3)) },
		func() string { return "" },
	}
	for i := range dealtFeeds {
		add := func(of, unit string, sets []func() string) {
			name := fmt.Sprint(of, i)
			layers = append(layers, fmt.Sprintf("{name: %s, salt: %s-%d, unit: %s}", name, name, r.Uint32(), unit))
			var variants []string
			for k, weight := range []int{2000, 3000, 5000} {
				variants = append(variants, fmt.Sprintf("{name: v%d, weight: %d, set: {%s}}", k, weight, sets[r.IntN(len(sets))]()))
			}
			all = append(all, fmt.Sprintf("{name: %s, layer: %s, feeds: [%s], state: running, slots: [0-%d], share: %d, variants: [%s]}",
				name, name, dealtFeed(i), 3000+r.IntN(7000), 4000+r.IntN(6001), strings.Join(variants, ", ")))
		}
		if i%3 == 0 {
			add("viewers", "viewer", []func() string{weighted, ranks[0], ranks[4]})
		} else {
			add("ranks", "entity", ranks)
		}
		if i%2 == 1 {
			add("picks", "entity", append(picks, func() string { return "types: [post, share]" }))
		} else {
			add("picks", "entity", picks)
		}
	}
	return "layers: [" + strings.Join(layers, ", ") + "]\nexperiments:\n  - " + strings.Join(all, "\n  - ") + "\n"
}

// treated is what the oracle gives some entities.
type treated struct {
	score    oracle.Score
	sum      string // of the weights
	model    string
	filter   oracle.Filter
	types    []string
	variants []string
}

// deals are experiments as their documents say it, by the rules that callers have.
type deals struct {
	t       *testing.T
	set     *experiment.Set
	eval    *oracle.Eval
	scorers map[string]oracle.Score
}

// treat returns how a unit is treated by the layers of a kind.
func (d *deals) treat(feed, unit, id string, x treated) (treated, *int) {
	d.t.Helper()
	var most *int
	for _, e := range d.set.Experiments() {
		if e.Rule.Unit != unit || !slices.Contains(e.Experiment.Feeds, feed) {
			continue
		}
		name, ok := e.Rule.Assign(feed, id)
		if !ok {
			continue
		}
		x.variants = append(x.variants, e.Experiment.Name+"/"+name)
		at := slices.IndexFunc(e.Experiment.Variants, func(v experiment.Variant) bool { return v.Name == name })
		s := e.Experiment.Variants[at].Set
		if s.Model != "" || len(s.Weights) > 0 {
			x.model = s.Model
			if x.model == "" {
				x.model = "home"
			}
			form := weights.Form(s.Weights)
			x.sum = weights.Sum(form)
			x.score = d.scorer(x.model, form, s.Weights)
		}
		if s.Filter != nil {
			f, err := d.eval.Filter(*s.Filter)
			if err != nil {
				d.t.Fatal(err)
			}
			x.filter = f
		}
		for _, ty := range s.Types {
			x.types = append(x.types, string(ty))
		}
		if s.CapPerEntity != nil {
			most = s.CapPerEntity
		}
	}
	return x, most
}

func (d *deals) scorer(model, form string, set map[string]float64) oracle.Score {
	key := model + form
	if d.scorers[key] == nil {
		m, err := relevance.Builtin().Get(model)
		if err == nil && len(set) > 0 {
			m, err = m.Weighted(set)
		}
		if err != nil {
			d.t.Fatal(err)
		}
		d.scorers[key] = d.eval.Score(m)
	}
	return d.scorers[key]
}

// waitDealt returns once the broker deals the entities of a feed that has an
// experiment of entities.
func waitDealt(t *testing.T, cl *client.Client, everybody []millrace.Timeline) {
	t.Helper()
	req := &feedv1.GetFeedRequest{Feed: dealtFeed(0), Viewer: &feedv1.Viewer{Id: "member:1"}}
	for _, tl := range everybody[:min(len(everybody), 500)] {
		req.Entities = append(req.Entities, string(tl.Entity))
	}
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		resp, err := cl.GetFeed(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if len(resp.Receipt.EntityVariants) > 0 {
			return
		}
		if time.Since(began) > 30*time.Second {
			t.Fatal("the broker does not deal")
		}
	}
}

// TestRandomExperimentsEqualTheOracle deals viewers and entities by random
// experiments, which set weights, models, filters, types and caps. Each answer,
// and what became of records in it, is the oracle's, which treats each candidate
// as the variants of its entity say; the receipt counts the entities, and the
// second page goes on behind the first.
func TestRandomExperimentsEqualTheOracle(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	truth := oracle.New()
	for line, err := range withDeletions() {
		must(err)
		must(truth.Load(schemas.Activity(), line))
	}
	r := rand.New(rand.NewPCG(seedOf(t), 15))
	var all []feeds.Feed
	for i := range dealtFeeds {
		all = append(all, feeds.Feed{Name: dealtFeed(i), Model: "home", DistinctObjects: r.IntN(2) == 0, CapPerEntity: r.IntN(4), Limit: 20})
	}
	c, err := Start(ctx, Config{Dir: t.TempDir(), Nodes: 3, Feeds: all, Broker: patient})
	must(err)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	_, err = c.Produce(ctx, c.ContentTopic(), schemas.Activity(), withDeletions())
	must(err)
	must(errors.Join(c.WaitReady(ctx), c.WaitIndexed(ctx)))
	documents, err := artefacts.Watch(ctx, c.client, experiments.Kind)
	must(err)
	src := randomExperiments(r)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(src)
		}
	})
	store := &experiments.Store{Documents: documents, Known: everything{}, Who: "a test"}
	_, err = store.Define(ctx, "random", []byte(src))
	must(err)
	doc, err := experiment.Parse("random", []byte(src))
	must(err)
	d := &deals{t: t, scorers: map[string]oracle.Score{}}
	d.set, err = experiment.Admit([]experiment.Document{doc}, nil)
	must(err)
	d.eval, err = oracle.NewEval(schemas.Activity(), schemas.Features())
	must(err)
	cl, err := client.Dial(c.GRPC)
	must(err)
	t.Cleanup(func() { _ = cl.Close() })

	draw, long, everybody := oracle.NewQuestions(truth), records(truth), truth.Timelines()
	waitDealt(t, cl, everybody)
	questions := 150
	if testing.Short() {
		questions = 40
	}
	met, stages, groups := map[string]int{}, map[string]int{}, 0
	for n := range questions {
		drawn := draw.Draw(r)
		feed := r.IntN(dealtFeeds)
		drawn.Entities = atMost(drawn.Entities, long)
		drawn.Model, drawn.Types, drawn.Filter, drawn.From = "home", nil, "", 0
		drawn.Distinct, drawn.Cap = all[feed].DistinctObjects, all[feed].CapPerEntity
		if r.IntN(2) == 0 {
			drawn.Limit = 1 + r.IntN(10)
		}
		drawn.Viewer.ID = fmt.Sprint("member:", r.IntN(1000))
		q, err := d.eval.Query(drawn)
		must(err)
		whole, _ := d.treat(dealtFeed(feed), "viewer", drawn.Viewer.ID, treated{score: q.Score, model: "home"})
		of, counted := map[millrace.Entity]treated{}, map[string]int32{}
		q.Caps = map[millrace.Entity]int{}
		named := map[string]bool{}
		for _, e := range slices.Compact(slices.Sorted(slices.Values(drawn.Entities))) {
			plain := whole
			plain.variants = nil
			x, most := d.treat(dealtFeed(feed), "entity", string(e), plain)
			of[e] = x
			if most != nil {
				q.Caps[e] = *most
			}
			for _, v := range x.variants {
				counted[v]++
				met[v]++
			}
			named[x.model+" "+x.sum] = true
		}
		groups = max(groups, len(named))
		q.Score = func(c *oracle.Candidate, v *millrace.Viewer, at millrace.Time) float64 {
			if x, asked := of[c.Entity]; asked {
				return x.score(c, v, at)
			}
			return 0
		}
		q.Filter = func(c *oracle.Candidate, v *millrace.Viewer, at millrace.Time) celref.Outcome {
			x := of[c.Entity]
			if len(x.types) > 0 && !slices.Contains(x.types, string(c.Type)) {
				return celref.False
			}
			if x.filter != nil {
				return x.filter(c, v, at)
			}
			return celref.True
		}
		req := request(&drawn)
		req.Feed, req.Model, req.From = dealtFeed(feed), "", nil
		resp, err := cl.GetFeed(ctx, req)
		must(err)
		want := truth.Query(q).Items
		if diff := oracle.Diff(want, oracle.FeedItems(resp.Items)); diff != "" {
			t.Fatalf("question %d, %v:\n%s", n, req, diff)
		}
		got := map[string]int32{}
		for _, v := range resp.Receipt.EntityVariants {
			got[v.Experiment+"/"+v.Variant] = v.Entities
		}
		if !maps.Equal(got, counted) {
			t.Fatalf("question %d: %v, want %v", n, got, counted)
		}
		if len(named) == 1 {
			for s := range named {
				if r := resp.Receipt; r.Model+" "+r.WeightsSum != s {
					t.Fatalf("question %d: by %s %s, want %s", n, r.Model, r.WeightsSum, s)
				}
			}
		}
		if feed%2 == 0 { // types would be "not_asked" of an entity, which the oracle asks
			w := &whyAsker{t: t, client: cl, truth: truth, judge: oracle.NewJudge(truth, q), req: req, entities: drawn.Entities, met: stages}
			w.nextPage(ctx)
			for range 6 {
				e := drawn.Entities[r.IntN(len(drawn.Entities))]
				if r.IntN(6) == 0 {
					e = everybody[r.IntN(len(everybody))].Entity
				}
				if ids := w.ids(e); len(ids) > 0 {
					w.ask(ctx, ids[r.IntN(len(ids))], e)
				}
			}
		}
		if t.Failed() {
			t.Fatalf("question %d, of %v", n, req)
		}
	}
	t.Logf("%d variants, %d models with weights in one answer, %v", len(met), groups, stages)
	if len(met) < 10 || groups < 2 || stages["shown"] == 0 || stages["filtered"]+stages["capped"]+stages["below_cut"] == 0 {
		t.Error("the questions try too little")
	}
}
