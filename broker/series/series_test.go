package series

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// What is counted stays, and what nothing is counted in goes, counters and histograms; it
// comes back with the next count.
func TestSeriesFade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "answers_total"}, []string{"feed", "version"})
		seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "seconds"}, []string{"feed"})
		a, s := Fade(answers), Fade(seconds)
		count := func(feed, version string) {
			answers.WithLabelValues(feed, version).Inc()
			seconds.WithLabelValues(feed).Observe(1)
		}
		is := func(wantAnswers, wantSeconds int) {
			t.Helper()
			if n, m := testutil.CollectAndCount(a), testutil.CollectAndCount(s); n != wantAnswers || m != wantSeconds {
				t.Errorf("%d and %d series, want %d and %d", n, m, wantAnswers, wantSeconds)
			}
		}
		count("home", "1")
		count("gone", "1")
		is(2, 2)
		for range 3 {
			time.Sleep(Idle / 4)
			count("home", "2")
			is(3, 2)
		}
		time.Sleep(Idle / 4)
		count("home", "2")
		is(1, 1)
		if n := testutil.ToFloat64(answers.WithLabelValues("home", "2")); n != 4 {
			t.Errorf("counted %v of 4", n)
		}
		count("gone", "1")
		is(2, 2)
		time.Sleep(Idle / 2) // as much is counted in it as when it went, and it is new all the same
		is(2, 2)
	})
}
