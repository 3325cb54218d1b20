// Package series deletes series of metrics in which nothing is counted any more, such as
// those of deleted feeds and of versions that serve no longer.
package series

import (
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Idle is how long a series must stay unchanged until it is deleted. It is more than a
// day, so that the series of a feed that is asked once a day stays.
const Idle = 25 * time.Hour

// every is the least time between two looks at the counts. Only a call of Collect looks.
// Each look collects the metric once more, so most scrapes do without it.
const every = 10 * time.Minute

// Vec is a metric with labels, such as a [prometheus.CounterVec].
type Vec interface {
	prometheus.Collector
	Delete(prometheus.Labels) bool
}

// Fading is a metric whose series are deleted once nothing has been counted in them for
// [Idle]. It looks for such series when it is collected, so counting costs nothing more. Do
// not keep what [prometheus.CounterVec.WithLabelValues] returns: what is counted in it after
// its series was deleted is lost.
type Fading struct {
	Vec
	mu     sync.Mutex
	looked time.Time       // the last look
	seen   map[string]seen // by the values of a series' labels, each followed by 0xff
}

// seen is how much was counted in a series, and since when that has not changed.
type seen struct {
	count float64
	since time.Time
}

// Fade returns v as a metric whose series are deleted when idle. v must be of counters or
// histograms.
func Fade(v Vec) *Fading { return &Fading{Vec: v} }

// Collect implements [prometheus.Collector]. It first deletes the series that are idle.
func (f *Fading) Collect(to chan<- prometheus.Metric) {
	f.look(time.Now())
	f.Vec.Collect(to)
}

// look deletes the series that have not changed for [Idle]. It does nothing if the last
// look was less than [every] ago.
func (f *Fading) look(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.looked) < every {
		return
	}
	f.looked = now
	all := make(chan prometheus.Metric)
	go func() {
		defer close(all)
		f.Vec.Collect(all)
	}()
	next := map[string]seen{}
	var gone []prometheus.Labels
	for m := range all {
		var out dto.Metric
		if m.Write(&out) != nil {
			continue // the collection that follows reports the error
		}
		var key strings.Builder
		labels := prometheus.Labels{}
		for _, l := range out.Label {
			labels[l.GetName()] = l.GetValue()
			key.WriteString(l.GetValue() + "\xff")
		}
		is := seen{out.GetCounter().GetValue() + float64(out.GetHistogram().GetSampleCount()), now}
		if was, known := f.seen[key.String()]; known && was.count == is.count {
			is.since = was.since
		}
		if now.Sub(is.since) >= Idle {
			gone = append(gone, labels)
			continue
		}
		next[key.String()] = is
	}
	for _, labels := range gone { // after Vec.Collect has ended, since it holds the Vec's lock
		f.Delete(labels)
	}
	f.seen = next
}
