// Package gaps counts which features the items of answers lack.
package gaps

import (
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/broker/fanout"
)

const (
	// gapsEvery is how often an answer of a feed is looked at.
	gapsEvery = time.Second
	// maxGaps bounds the series of both metrics together. A series is a feature of a feed,
	// model, version and type, or a feed, model, version and type that was looked at.
	maxGaps = 10_000
	// maxFeeds bounds for how many feeds the time of the next look is kept.
	maxFeeds = 10_000
)

// Gaps counts which features the items of answers lack, by feed, model, version and
// content type. It looks at one answer of each feed a second. A model ranks items without
// a feature, too, so nothing else shows that a feature's records no longer come in.
type Gaps struct {
	Every time.Duration // how often an answer of a feed is looked at; 0: never

	mu struct {
		sync.Mutex
		next   map[string]time.Time   // by feed: when the next answer is looked at
		series map[[5]string]struct{} // by the values of the labels; the fifth is empty for looked
	}

	looked  *prometheus.CounterVec // feed, model, version, type
	missing *prometheus.CounterVec // feed, model, version, type, feature
}

// New returns Gaps that have counted nothing.
func New() *Gaps {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "millrace", Subsystem: "broker", Name: name, Help: help}, append([]string{"feed", "model", "version", "type"}, labels...))
	}
	g := &Gaps{
		Every:   gapsEvery,
		looked:  counter("features_looked_total", "Items whose features were looked at, of one answer of a feed a second."),
		missing: counter("features_missing_total", "Items that lack a feature, of those in millrace_broker_features_looked_total.", "feature"),
	}
	g.mu.next, g.mu.series = map[string]time.Time{}, map[[5]string]struct{}{}
	return g
}

// Due reports whether an answer of a feed is to be looked at now. If so, the next one is
// due after Every.
func (g *Gaps) Due(feed string, now time.Time) bool {
	if g.Every == 0 {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if now.Before(g.mu.next[feed]) {
		return false
	}
	if len(g.mu.next) >= maxFeeds { // most are of feeds that are gone
		clear(g.mu.next)
	}
	g.mu.next[feed] = now.Add(g.Every)
	return true
}

// Look counts which features the items of an answer lack. It skips an item whose node sent
// no features, as nodes of an older version do.
func (g *Gaps) Look(feed string, entries []fanout.Entry) {
	for i := range entries {
		e := &entries[i]
		told, v := e.From.Resp, e.Item.GetFeatures()
		names := told.GetFeatureNames()
		if len(names) == 0 || len(v.GetNumbers()) != len(names) {
			continue
		}
		// Labels outlive the answer, so they are copies of what nodes sent.
		labels := [5]string{feed, strings.Clone(e.From.Group.Model().Name), strings.Clone(told.GetModelVersion()), strings.Clone(string(e.Timeline.Type))}
		g.meet(labels)
		g.looked.WithLabelValues(labels[:4]...).Inc()
		for k, x := range v.Numbers {
			if x == x || v.Texts[int32(k)] != "" { // NaN is a missing number, unless it stands for a text
				continue
			}
			labels[4] = strings.Clone(names[k])
			g.meet(labels)
			g.missing.WithLabelValues(labels[:]...).Inc()
		}
	}
}

// meet makes room for a series of these labels. There are maxGaps series at most: where
// there would be more, all are removed and begin at 0 again.
func (g *Gaps) meet(labels [5]string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, met := g.mu.series[labels]; met {
		return
	}
	if len(g.mu.series) >= maxGaps { // most are of versions that do not serve any more
		clear(g.mu.series)
		g.looked.Reset()
		g.missing.Reset()
	}
	g.mu.series[labels] = struct{}{}
}

// Collectors returns the two metrics: items that were looked at, and features that they
// lacked.
func (g *Gaps) Collectors() []prometheus.Collector {
	return []prometheus.Collector{g.looked, g.missing}
}
