package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// alarm is something that is watched, and may be at fault.
type alarm struct {
	what  string
	fault func() (since time.Time, why error) // nil: all is well
}

// alarms is what a client watches.
type alarms struct {
	mu struct {
		sync.Mutex
		all map[*alarm]bool
	}
}

// add adds what is watched until remove is called, or ctx ends: who no longer
// watches has no fault to tell.
func (a *alarms) add(ctx context.Context, what string, fault func() (time.Time, error)) (remove func()) {
	added := &alarm{what, fault}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.all == nil {
		a.mu.all = map[*alarm]bool{}
	}
	a.mu.all[added] = true
	remove = func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.mu.all, added)
	}
	context.AfterFunc(ctx, remove)
	return remove
}

func (a *alarms) now() (all []*alarm) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for x := range a.mu.all {
		all = append(all, x)
	}
	return all
}

var faultSeconds = prometheus.NewDesc("millrace_cluster_fault_seconds",
	"Time for which what is watched in etcd (the map, or documents of a kind) has been served from the last good state, or a node has not been registered, or a coordinator cannot come to lead (leader), because etcd is away, empty, rolled back, foreign, out of space or holds something malformed; 0 when all is well. The log says why.",
	[]string{"of"}, nil)

// Describe implements [prometheus.Collector].
func (c *Client) Describe(out chan<- *prometheus.Desc) {
	out <- faultSeconds
	for _, m := range c.metrics.all() {
		m.Describe(out)
	}
}

// Collect implements [prometheus.Collector]: the alarm of each watcher, and what
// is asked of etcd.
func (c *Client) Collect(out chan<- prometheus.Metric) {
	for _, m := range c.metrics.all() {
		m.Collect(out)
	}
	longest := map[string]float64{} // what is watched twice is told once
	for _, a := range c.alarms.now() {
		seconds := 0.0
		if at, why := a.fault(); why != nil {
			seconds = max(time.Since(at).Seconds(), 1e-3)
		}
		longest[a.what] = max(longest[a.what], seconds)
	}
	for what, seconds := range longest {
		out <- prometheus.MustNewConstMetric(faultSeconds, prometheus.GaugeValue, seconds, what)
	}
}
