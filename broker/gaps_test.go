package broker

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
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
			b, docs := w.experimental(nil, Feed{Name: "f", Model: "recency", Limit: 40})
			b.exposures, b.gaps.every = &told, c.every
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
				if got := testutil.ToFloat64(b.gaps.looked.WithLabelValues(labels...)); got != c.want*n {
					t.Errorf("looked at %v of type %s, %v expected", got, typ, c.want*n)
				}
				lacking := 0.0
				if typ == c.lacks {
					lacking = c.want * n
				}
				if got := testutil.ToFloat64(b.gaps.missing.WithLabelValues(append(labels, "id")...)); got != lacking {
					t.Errorf("%v of type %s lack id, %v expected", got, typ, lacking)
				}
				if got := testutil.ToFloat64(b.gaps.missing.WithLabelValues(append(labels, "score")...)); got != 0 {
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

// Feeds have a turn each, and labels are bounded whatever nodes tell.
func TestGapsAreBounded(t *testing.T) {
	g, now := newGaps(), time.Unix(1e9, 0)
	for _, c := range []struct {
		feed string
		at   time.Duration
		want bool
	}{{"a", 0, true}, {"b", 0, true}, {"a", time.Second - 1, false}, {"a", time.Second, true}, {"a", time.Second, false}, {"b", 5 * time.Second, true}} {
		if got := g.due(c.feed, now.Add(c.at)); got != c.want {
			t.Errorf("%s at %s: %t", c.feed, c.at, got)
		}
	}
	room := 0
	for i := range maxGaps + 10 {
		if g.room([5]string{"f", "m", "1", "post", fmt.Sprint(i)}) {
			room++
		}
	}
	if room != maxGaps || !g.room([5]string{"f", "m", "1", "post", "0"}) {
		t.Errorf("%d series", room)
	}
	all := prometheus.NewPedanticRegistry()
	all.MustRegister(g.looked, g.missing)
	g.missing.WithLabelValues("f", "m", "1", "post", "likes").Add(2)
	const want = `
# HELP millrace_broker_features_missing_total Items that lack a feature, of those in millrace_broker_features_looked_total.
# TYPE millrace_broker_features_missing_total counter
millrace_broker_features_missing_total{feature="likes",feed="f",model="m",type="post",version="1"} 2
`
	if err := testutil.GatherAndCompare(all, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
