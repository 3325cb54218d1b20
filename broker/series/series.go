// Package series lets go of what metrics counted for feeds and versions that are no more.
package series

import (
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Idle is for how long nothing has to be counted in a series until it goes: a feed that
// was deleted and a version that serves no more leave none behind, and what is asked
// once a day stays.
const Idle = 25 * time.Hour

// every is how often it is looked at what was counted, where somebody asks at all.
const every = 10 * time.Minute

// Vec is a metric with labels, as of prometheus.
type Vec interface {
	prometheus.Collector
	Delete(prometheus.Labels) bool
}

// Fading is a metric whose series go once nothing has been counted in them for [Idle]. It
// looks when it is collected, so that who counts pays nothing for it. Counts that are held
// ([prometheus.CounterVec.WithLabelValues], kept) are lost once theirs has gone.
type Fading struct {
	Vec
	mu     sync.Mutex
	looked time.Time
	seen   map[string]seen // by labels
}

// seen is how much was counted in a series, and since when it has been that.
type seen struct {
	count float64
	since time.Time
}

// Fade is a metric whose series go. What counts in it is a counter or a histogram.
func Fade(v Vec) *Fading { return &Fading{Vec: v} }

// Collect implements [prometheus.Collector].
func (f *Fading) Collect(to chan<- prometheus.Metric) {
	f.look(time.Now())
	f.Vec.Collect(to)
}

// look lets go of series that are what they have been for long.
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
			continue // whoever collects it is told
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
	for _, labels := range gone { // not while they are collected, which locks them
		f.Delete(labels)
	}
	f.seen = next
}
