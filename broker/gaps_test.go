package broker

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/millrace/millrace/broker/feeds"
)

func TestGapsAreCounted(t *testing.T) {
	for name, c := range map[string]struct {
		lacks string
		bare  bool
		every time.Duration
		want  float64 // answers looked at, of three
	}{
		"one an hour":        {"like", false, time.Hour, 1},
		"each":               {"like", false, 1, 3},
		"nothing is missing": {"", false, 1, 3},
		"of an older node":   {"like", true, 1, 0},
		"never":              {"like", false, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1, 1)
			w.fill(rand.New(rand.NewPCG(5, 13)), 12, 200)
			w.nodes["n0"].gap, w.nodes["n0"].bare = c.lacks, c.bare
			var told shows
			b, docs := w.experimental(nil, feeds.Feed{Name: "f", Model: "recency", Limit: 40})
			b.exposures, b.gaps.Every = &told, c.every
			define(t, b, docs, 1, halves("running", "limit: 40"))
			types := map[string]float64{}
			for range 3 {
				resp := ask(t, b, "alice", nil)
				clear(types)
				for _, it := range resp.Items {
					types[it.Type]++
				}
			}
			if types["like"] == 0 || types["post"] == 0 {
				t.Fatalf("items: %v", types)
			}
			for typ, n := range types {
				labels := []string{"f", "recency", told.all[0].Models[0].Version, typ}
				if got := testutil.ToFloat64(gapsOf(b, 0).WithLabelValues(labels...)); got != c.want*n {
					t.Errorf("looked at %v of type %s, %v expected", got, typ, c.want*n)
				}
				lacking := 0.0
				if typ == c.lacks {
					lacking = c.want * n
				}
				if got := testutil.ToFloat64(gapsOf(b, 1).WithLabelValues(append(labels, "id")...)); got != lacking {
					t.Errorf("%v of type %s lack id, %v expected", got, typ, lacking)
				}
				if got := testutil.ToFloat64(gapsOf(b, 1).WithLabelValues(append(labels, "score")...)); got != 0 {
					t.Errorf("%v of type %s lack score", got, typ)
				}
			}
			for i := range told.all { // nobody asked for them to be written
				if r := &told.all[i]; r.Models[0].Features != nil {
					t.Errorf("an exposure has features: %+v", r)
				}
			}
		})
	}
}

// gapsOf counts the items that were looked at, 0, or that lack a feature, 1.
func gapsOf(b *Broker, i int) *prometheus.CounterVec {
	return b.gaps.Collectors()[i].(*prometheus.CounterVec)
}
