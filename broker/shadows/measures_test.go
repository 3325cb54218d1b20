package shadows

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/series"
	"github.com/millrace/millrace/internal/exposure"
)

// What a version of a shadow has shown is told as long as it ranks, and for a day more.
func TestMeasuresOfFormerShadowsGo(t *testing.T) {
	var m measures
	count := func(version string, ago time.Duration) int {
		m.tally.Add(&exposure.Record{
			Feed: "home", Time: millrace.TimeOf(time.Now().Add(-ago)), Models: []exposure.Model{{Name: "now"}}, Shadows: []exposure.Model{{Name: "next", Version: version}},
			ShadowRankings: make([]exposure.ShadowRanking, 1),
		})
		return testutil.CollectAndCount(prometheus.Collector(&m), "millrace_broker_shadow_author_shift")
	}
	if n := count("1", series.Idle-time.Minute); n != 1 {
		t.Errorf("%d of what ranked a day ago", n)
	}
	if n := count("2", series.Idle+time.Minute); n != 1 {
		t.Errorf("%d with what ranked before", n)
	}
	if n := count("2", 0); n != 2 {
		t.Errorf("%d with what ranks again", n)
	}
}
