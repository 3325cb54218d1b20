package gaps

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/questions"
)

// Feeds have a turn each, and labels are bounded whatever nodes tell.
func TestGapsAreBounded(t *testing.T) {
	g, now := New(), time.Unix(1e9, 0)
	for _, c := range []struct {
		feed string
		at   time.Duration
		want bool
	}{{"a", 0, true}, {"b", 0, true}, {"a", time.Second - 1, false}, {"a", time.Second, true}, {"a", time.Second, false}, {"b", 5 * time.Second, true}} {
		if got := g.Due(c.feed, now.Add(c.at)); got != c.want {
			t.Errorf("%s at %s: %t", c.feed, c.at, got)
		}
	}
	g.missing.WithLabelValues("f", "m", "0", "post", "old").Inc()
	for i := range maxGaps + 10 {
		g.meet([5]string{"f", "m", "1", "post", fmt.Sprint(i)})
	}
	if n := len(g.mu.series); n != 10 { // what serves now has room, whatever served before
		t.Errorf("%d series", n)
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

// Of items whose features were sent, those that lack one are counted by it; a number that
// stands for a text lacks nothing.
func TestGapsAreCounted(t *testing.T) {
	g := New()
	part := &fanout.Part{Group: &questions.Group{Query: &nodev1.QueryRequest{Model: "m"}}, Resp: &nodev1.QueryResponse{ModelVersion: "7", FeatureNames: []string{"age", "word"}}}
	older := &fanout.Part{Group: part.Group, Resp: &nodev1.QueryResponse{}}
	entry := func(of *fanout.Part, typ string, texts map[int32]string, numbers ...float64) fanout.Entry {
		return fanout.Entry{Rank: millrace.Rank{Timeline: millrace.Timeline{Type: millrace.ContentType(typ)}}, Ranked: fanout.Ranked{From: of, Item: &nodev1.Item{Features: &nodev1.Vector{Numbers: numbers, Texts: texts}}}}
	}
	nan := math.NaN()
	g.Look("f", []fanout.Entry{
		entry(part, "post", map[int32]string{1: "x"}, 1, nan), entry(part, "post", nil, nan, nan), entry(part, "like", map[int32]string{1: ""}, 0, nan),
		entry(part, "post", nil), entry(part, "post", nil, nan), entry(older, "post", nil, nan, nan), entry(older, "post", nil),
	})
	all := prometheus.NewPedanticRegistry()
	for _, c := range g.Collectors() {
		all.MustRegister(c)
	}
	const want = `
# HELP millrace_broker_features_looked_total Items whose features were looked at, of one answer of a feed a second.
# TYPE millrace_broker_features_looked_total counter
millrace_broker_features_looked_total{feed="f",model="m",type="like",version="7"} 1
millrace_broker_features_looked_total{feed="f",model="m",type="post",version="7"} 2
# HELP millrace_broker_features_missing_total Items that lack a feature, of those in millrace_broker_features_looked_total.
# TYPE millrace_broker_features_missing_total counter
millrace_broker_features_missing_total{feature="age",feed="f",model="m",type="post",version="7"} 1
millrace_broker_features_missing_total{feature="word",feed="f",model="m",type="like",version="7"} 1
millrace_broker_features_missing_total{feature="word",feed="f",model="m",type="post",version="7"} 1
`
	if err := testutil.GatherAndCompare(all, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	if n := len(g.mu.series); n != 5 {
		t.Errorf("%d series", n)
	}
	// Feeds that are gone make room, and without a period none is looked at.
	now := time.Unix(1e9, 0)
	for i := range maxFeeds {
		g.Due(fmt.Sprint(i), now)
	}
	if !g.Due("another", now) || len(g.mu.next) != 1 {
		t.Errorf("%d feeds are known", len(g.mu.next))
	}
	if g.Every = 0; g.Due("new", now) {
		t.Error("it is due")
	}
}
