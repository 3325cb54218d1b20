package cluster

import (
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// alarms is what a client watches and since when each has been at fault.
type alarms struct {
	mu struct {
		sync.Mutex
		since map[string]func() time.Time // zero: all is well
	}
}

func (a *alarms) add(what string, since func() time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.since == nil {
		a.mu.since = map[string]func() time.Time{}
	}
	a.mu.since[what] = since
}

func (a *alarms) remove(what string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.mu.since, what)
}

func (a *alarms) all() map[string]func() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.mu.since)
}

var faultSeconds = prometheus.NewDesc("millrace_cluster_fault_seconds",
	"Time for which what is watched in etcd (the map, or documents of a kind) has been served from the last good state, or a node has not been registered, because etcd is away, empty, rolled back, foreign or holds something malformed; 0 when all is well. The log says why.",
	[]string{"of"}, nil)

var unwrittenSeconds = prometheus.NewDesc("millrace_cluster_unwritten_seconds",
	"Time for which something of the last good state could not be written to the data directory, since its disk is full, say: a restart while etcd is away would go by an older state. 0 when all is written. The log names the file.",
	nil, nil)

// Describe implements [prometheus.Collector].
func (c *Client) Describe(out chan<- *prometheus.Desc) {
	out <- faultSeconds
	out <- unwrittenSeconds
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
	for what, since := range c.alarms.all() {
		out <- prometheus.MustNewConstMetric(faultSeconds, prometheus.GaugeValue, secondsSince(since()), what)
	}
	out <- prometheus.MustNewConstMetric(unwrittenSeconds, prometheus.GaugeValue, secondsSince(c.unwritten.sinceWhen()))
}

// secondsSince is how long ago something began, more than 0; 0 if it did not.
func secondsSince(at time.Time) float64 {
	if at.IsZero() {
		return 0
	}
	return max(time.Since(at).Seconds(), 1e-3)
}
