package gaps

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
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
