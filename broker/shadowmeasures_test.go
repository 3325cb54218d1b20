package broker

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/relevance/shadow"
)

// What shadows make of a sampled answer is in its exposure, and in metrics: the
// shadow's ranking is the answer by that model, and each item that was shown has
// the shadow's score.
func TestExposuresOfShadows(t *testing.T) {
	w := newWorld(t, 3, 2)
	w.fill(rand.New(rand.NewPCG(8, 8)), 20, 30)
	plain := shadowedFeed
	plain.Shadow, plain.ShadowShare = nil, 0
	var told shows
	b, without := w.broker(shadowedFeed), w.broker(plain)
	b.exposures = &told
	for i := range 10 {
		req := rankedRequest(int64(5 + i))
		req.Feed, req.AsOf = "shadowed", timestamp(timeAt(1000+i))
		served, err := b.GetFeed(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		req.Model = "recency"
		other, err := without.GetFeed(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		b.shadows.Wait()
		if len(told.all) != i+1 {
			t.Fatalf("%d exposures of %d answers", len(told.all), i+1)
		}
		r := &told.all[i]
		if _, err := r.Append(nil); err != nil {
			t.Fatal(err)
		}
		if r.ID != served.Receipt.AnswerId || r.ShadowShare != 1 || len(r.Experiments) > 0 || len(r.Shadows) != 1 || r.Shadows[0].Name != "recency" || r.Shadows[0].Version != "1" {
			t.Fatalf("%+v", r)
		}
		if len(r.Items) != len(served.Items) || len(r.ShadowRankings[0].Items) != len(other.Items) {
			t.Fatalf("%d items served and %d by the shadow, not %d and %d", len(r.Items), len(r.ShadowRankings[0].Items), len(served.Items), len(other.Items))
		}
		for k, it := range served.Items {
			if got := r.Items[k]; got.ID != it.Id || len(got.Shadows) != 1 || got.Shadows[0] != float64(it.Time.AsTime().UnixMilli()) {
				t.Fatalf("%+v is %+v", it, got)
			}
		}
		x := r.ShadowRankings[0]
		for k, it := range other.Items {
			if got := x.Items[k]; got != (exposure.ShadowItem{ID: it.Id, Entity: it.Entity, Type: it.Type, Score: it.Score}) {
				t.Fatalf("%+v is %+v", it, got)
			}
		}
		if x.Scored == 0 || x.Nanos != 30*x.Scored || x.ServedNanos != 10*x.ServedScored || r.Looked == 0 || r.Looked != x.Looked || len(x.Lacking) != 1 || x.Lacking[0].Items != x.Looked {
			t.Fatalf("cost and features: %+v, %d looked at", x, r.Looked)
		}
	}
	metrics := shadowMetrics(t, b.shadows.Collectors()[5])
	for name, want := range map[string]float64{
		"candidate_seconds of=shadow":              3e-8,
		"candidate_seconds of=served":              1e-8,
		"features_missing of=shadow feature=taste": 1,
		"features_missing of=served feature=age":   0,
		"type_share of=served type=post":           math.NaN(), // there is one
		"score of=shift quantile=0.5":              math.NaN(),
		"author_shift":                             math.NaN(),
	} {
		if got, told := metrics[name]; !told || want == want && math.Abs(got-want) > 1e-12 {
			t.Errorf("%s is %v, want %v, of %v", name, got, want, metrics)
		}
	}
}

// An answer that a shadow failed to rank is exposed with that shadow's name behind
// those that ranked it, also where all of them failed.
func TestExposuresOfShadowsThatFail(t *testing.T) {
	w := newWorld(t, 2, 1)
	w.fill(rand.New(rand.NewPCG(8, 8)), 12, 30)
	b, _ := w.experimental(newPointers(coarseVersion(1)), feeds.Feed{Name: "f", Model: "recency", Shadow: []string{"coarse", "other"}, ShadowShare: 1})
	log := &shownLog{}
	b.exposures = log
	for _, n := range w.nodes {
		n.set(func() { n.models = map[artefacts.Version]bool{} }) // none has the first shadow
	}
	ask(t, b, "alice", nil)
	b.shadows.Wait()
	for _, n := range w.nodes {
		n.set(func() {
			n.refusal = func(r *nodev1.QueryRequest) error {
				if r.Measure {
					return fanout.ErrUnreachable
				}
				return nil
			}
		})
	}
	ask(t, b, "alice", nil)
	b.shadows.Wait()
	if len(log.all) != 2 {
		t.Fatalf("%d exposures of two answers", len(log.all))
	}
	var tally shadow.Tally
	for i, want := range []string{"coarse 1", "coarse 1, other "} {
		r := log.all[i]
		if _, err := r.Append(nil); err != nil {
			t.Fatal(err)
		}
		var failed []string
		for _, m := range r.Failed() {
			failed = append(failed, m.Name+" "+m.Version)
		}
		if got := strings.Join(failed, ", "); got != want || len(r.ShadowRankings) != 1-i || r.ShadowShare != 1 {
			t.Errorf("answer %d: %q failed, want %q: %+v", i+1, got, want, r)
		}
		tally.Add(r)
	}
	if r := tally.Reports()[0]; r.Shadow != "coarse" || r.Answers != 0 || r.Failed != 2 {
		t.Errorf("%+v", r)
	}
	if metrics := shadowMetrics(t, b.shadows.Collectors()[5]); len(metrics) == 0 {
		t.Error("the other shadow has no metrics")
	}
}

// shadowMetrics returns the metrics of shadows, by their names and the labels that
// tell them apart.
func shadowMetrics(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range all {
		for _, m := range f.Metric {
			labels := map[string]string{}
			for _, l := range m.Label {
				if labels[l.GetName()] = l.GetValue(); strings.Contains(l.GetValue(), "member:") {
					t.Errorf("an author is a label: %v", m)
				}
			}
			name := strings.TrimPrefix(f.GetName(), "millrace_broker_shadow_")
			for _, l := range []string{"of", "type", "feature", "quantile"} {
				if labels[l] != "" {
					name += " " + l + "=" + labels[l]
				}
			}
			out[name] = m.Gauge.GetValue()
		}
	}
	return out
}

// An answer of an experiment is exposed once, whether shadows rank it or there is
// no room for that.
func TestAnswersAreExposedOnce(t *testing.T) {
	w := newWorld(t, 2, 1)
	w.fill(rand.New(rand.NewPCG(5, 13)), 12, 200)
	var told shows
	b, docs := w.experimental(nil, feeds.Feed{Name: "f", Model: "recency", Shadow: []string{"coarse"}, ShadowShare: 1})
	b.exposures = &told
	define(t, b, docs, 1, halves("running", "limit: 5"))
	const answers = 40
	for i := range answers {
		ask(t, b, string(recordID(i)), nil)
	}
	b.shadows.Wait()
	ids, shadowed := map[string]bool{}, 0
	for i := range told.all {
		r := &told.all[i]
		ids[r.ID] = true
		if len(r.Experiments) != 1 {
			t.Errorf("%+v", r)
		}
		if len(r.ShadowRankings) > 0 {
			shadowed++
		}
	}
	if len(told.all) != answers || len(ids) != answers || shadowed == 0 {
		t.Errorf("%d exposures of %d answers, %d with shadows", len(told.all), len(ids), shadowed)
	}
	if math.IsNaN(told.all[0].Millis) {
		t.Error("no time")
	}
}
