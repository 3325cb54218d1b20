package broker

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/feedstest"
	"github.com/millrace/millrace/internal/cluster/artefacts"
)

// An experiment whose feed, filter or weights are no longer what it needs gives
// nobody a variant, and a metric tells of its document; nobody is refused for it.
func TestVariantsThatDoNotFit(t *testing.T) {
	like := artefacts.Version{Name: "like", Version: "2", Sum: "two"}
	for name, c := range map[string]struct {
		set     string
		private bool
		refuse  *millrace.Error // of index nodes
		fault   string
	}{
		"all is well":   {set: `filter: "record.even"`},
		"a filter":      {set: `filter: "record.even"`, refuse: &millrace.Error{Reason: millrace.ReasonFilter, Field: "filter", Detail: "no field even in record"}, fault: "no field even in record"},
		"weights":       {set: "model: like, weights: {age: 1}", refuse: &millrace.Error{Reason: millrace.ReasonUnknown, Field: "weights", Detail: "model like 2 has no parameter age"}, fault: "no parameter age"},
		"nobody is up":  {set: `filter: "record.even"`, refuse: &millrace.Error{Reason: millrace.ReasonUnavailable, Detail: "it starts"}},
		"private":       {set: `filter: "record.even"`, private: true, fault: "feed f is private"},
		"private, else": {set: "limit: 3", private: true},
	} {
		w := variantedWorld(t)
		for _, n := range w.nodes {
			if c.refuse != nil {
				n.err = c.refuse
			}
		}
		metrics, docs := prometheus.NewRegistry(), feedstest.New()
		docs.Serve("doc", 1, halves("running", c.set))
		docs.Serve("other", 1, `
layers: [{name: l2, salt: s2, unit: viewer}]
experiments: [{name: e2, layer: l2, feeds: [f], state: running, slots: [0-9999], share: 10000, variants: [{name: c, weight: 10000, set: {cap_per_entity: 1}}]}]
`)
		b, err := New(Config{Maps: w, Feeds: []feeds.Feed{{Name: "f", Model: "recency", Private: c.private}}, Experiments: docs, Models: newPointers(like), Metrics: metrics, Log: slog.New(slog.DiscardHandler), Dial: w.dial})
		if err != nil {
			t.Fatal(err)
		}
		asked := w.calls()
		for _, n := range w.nodes {
			n.set(func() { n.err = nil })
		}
		want := map[string]string{"e": "b", "e2": "c"}
		if c.fault != "" {
			want = map[string]string{"e2": "c"}
		}
		if got := ask(t, b, "alice", nil).Receipt.Variants; !maps.Equal(got, want) {
			t.Errorf("%s: alice has %v, want %v", name, got, want)
		}
		told := ""
		all, err := metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range all {
			if f.GetName() == "millrace_broker_experiment_fault" {
				for _, m := range f.Metric {
					told += fmt.Sprint(label(m, "document"), m.GetGauge().GetValue())
				}
			}
		}
		if fault := b.experiments.Faults()["doc"]; !strings.Contains(fault, c.fault) || (told == "doc1") != (c.fault != "") || told != "" && c.fault == "" {
			t.Errorf("%s: %q, the metric is of %q; want %q", name, fault, told, c.fault)
		}
		if asked > 3 {
			t.Errorf("%s: index nodes were asked %d times", name, asked)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Weights of a feed's own model that is gone fit nothing, as a variant does not that names
// it, whatever nodes say, and fit again once the model is back. The feed itself is refused
// as a fault of whoever runs it; who names the model is told that it does not serve.
func TestTheOwnModelOfAFeedIsGone(t *testing.T) {
	like := artefacts.Version{Name: "like", Version: "2", Sum: "two"}
	w, models, docs := variantedWorld(t), newPointers(), feedstest.New()
	for _, n := range w.nodes {
		n.set(func() {
			n.refusal = func(r *nodev1.QueryRequest) error {
				if r.Model != "like" || r.ModelVersion != "" {
					return nil
				}
				return &millrace.Error{Reason: millrace.ReasonUnknown, Field: "model", Detail: `no version of model "like" serves`, WayOut: "let one serve"}
			}
		})
	}
	docs.Serve("doc", 1, halves("running", "weights: {age: 1}"))
	b, err := New(Config{Maps: w, Feeds: []feeds.Feed{{Name: "f", Model: "like"}}, Experiments: docs, Models: models, Log: slog.New(slog.DiscardHandler), Dial: w.dial})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if fault := b.experiments.Faults()["doc"]; !strings.Contains(fault, "no model like serves, by which feed f is ranked") {
		t.Errorf("the experiment's fault: %q", fault)
	}
	req := &feedv1.GetFeedRequest{Feed: "f", Viewer: &feedv1.Viewer{Id: "alice"}, Entities: entityNames(3)}
	_, err = b.GetFeed(t.Context(), req)
	if e := refusal(t, err); e.Reason != millrace.ReasonUnavailable || e.Field != "feed" || e.Detail != `feed "f" cannot be ranked: no version of model "like" serves` || e.WayOut != feeds.FaultWayOut {
		t.Errorf("who names no model: %+v", e)
	}
	req.Model = "like"
	_, err = b.GetFeed(t.Context(), req)
	if e := refusal(t, err); e.Reason != millrace.ReasonUnknown || e.Field != "model" {
		t.Errorf("who names it: %+v", e)
	}
	models.serve(like)
	if fault := newReferred(b).CheckWeights("f", "", map[string]float64{"age": 1}); fault != nil {
		t.Errorf("once it is back: %v", fault)
	}
}

// What nodes accepted is not asked again for a while, what they refused for less, and is
// forgotten once no experiment asks; a filter that is too long is asked of nobody.
func TestNodesAreNotAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 1)
		r := newReferred(w.broker())
		w.nodes["n0"].refusal = func(q *nodev1.QueryRequest) error {
			if q.Filter == "bad" {
				return &millrace.Error{Reason: millrace.ReasonFilter, Detail: "no"}
			}
			return nil
		}
		check := func(src string, calls int, refused bool) {
			t.Helper()
			before := w.calls()
			var e *millrace.Error
			if err := r.CheckFilter(src); errors.As(err, &e) != refused || refused && e.Reason != millrace.ReasonFilter || w.calls() != before+calls {
				t.Errorf("%.20s: %v, after %d calls", src, err, w.calls()-before)
			}
		}
		check(strings.Repeat("x", 1<<20), 0, true)
		check("a", 1, false)
		check("bad", 1, true)
		time.Sleep(refusedFor - 1)
		check("bad", 0, true)
		time.Sleep(time.Nanosecond)
		check("bad", 1, true)
		time.Sleep(takenFor - refusedFor - 1)
		check("a", 0, false)
		time.Sleep(time.Nanosecond)
		check("a", 1, false)
		time.Sleep(2 * takenFor)
		if check("b", 1, false); len(r.asked) != 2 {
			t.Errorf("%d are remembered, want a and b", len(r.asked))
		}
		time.Sleep(time.Nanosecond)
		if check("c", 1, false); len(r.asked) != 2 {
			t.Errorf("%d are remembered, want b and c", len(r.asked))
		}
	})
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.Label {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}
