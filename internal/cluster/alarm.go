package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/internal/cluster/datadir"
	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// alarm is one thing that a client watches in etcd, with a function that says whether there
// is a fault.
type alarm struct {
	what  string
	fault func() (since time.Time, why error) // a nil why: no fault
}

// alarms is the alarms of a client, for its metrics.
type alarms struct {
	mu struct {
		sync.Mutex
		all map[*alarm]bool
	}
}

// add adds an alarm until remove is called or ctx ends: what is no longer watched has no
// fault.
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

// Alarm adds an alarm to the client's metrics until remove is called or ctx ends. what is the
// metric's label. fault returns since when there is a fault, and the fault or nil.
func (c *Client) Alarm(ctx context.Context, what string, fault func() (time.Time, error)) (remove func()) {
	return c.alarms.add(ctx, what, fault)
}

// BeginFromDisk notes that the state called what is served from a file, until etcd is heard
// from. Metrics then show the age of the file.
func (c *Client) BeginFromDisk(what, file string) { c.fromDisk.Begin(what, file) }

// now returns the alarms that there are now.
func (a *alarms) now() (all []*alarm) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for x := range a.mu.all {
		all = append(all, x)
	}
	return all
}

var faultSeconds = prometheus.NewDesc("millrace_cluster_fault_seconds",
	"Time for which what is watched in etcd (the map, or documents of a kind) has been served from the last good state, or a process with nothing on its disk has waited for its first answer (cluster), or a node has not been registered, or a coordinator cannot come to lead (leader), because etcd is away, empty, rolled back, foreign, out of space or holds something malformed; 0 when all is well. The log says why.",
	[]string{"of"}, nil)

var unwrittenSeconds = prometheus.NewDesc("millrace_cluster_unwritten_seconds",
	"Time for which something of the last good state could not be written to the data directory, since its disk is full, say: a restart while etcd is away would go by an older state. 0 when all is written. The log names the file.",
	nil, nil)

// Describe implements [prometheus.Collector].
func (c *Client) Describe(out chan<- *prometheus.Desc) {
	out <- faultSeconds
	out <- unwrittenSeconds
	out <- datadir.FromDiskSeconds
	for _, m := range c.metrics.All() {
		m.Describe(out)
	}
}

// Collect implements [prometheus.Collector]: the alarms, how calls of etcd go, and what could
// not be written to disk or is served from there.
func (c *Client) Collect(out chan<- prometheus.Metric) {
	for _, m := range c.metrics.All() {
		m.Collect(out)
	}
	longest := map[string]float64{} // by name, since several alarms may have the same
	for _, a := range c.alarms.now() {
		seconds := 0.0
		if at, why := a.fault(); why != nil {
			seconds = datadir.SecondsSince(at)
		}
		longest[a.what] = max(longest[a.what], seconds)
	}
	for what, seconds := range longest {
		out <- prometheus.MustNewConstMetric(faultSeconds, prometheus.GaugeValue, seconds, what)
	}
	out <- prometheus.MustNewConstMetric(unwrittenSeconds, prometheus.GaugeValue, datadir.SecondsSince(c.unwritten.Since()))
	c.fromDisk.Collect(out)
}

// TellFromDisk logs how old the file is if the state called what is served from disk. fault
// is why etcd does not answer; nil: it does, and the state is served from disk no more.
func (c *Client) TellFromDisk(what string, from keyspace.Origin, fault error) {
	if at := c.fromDisk.Heard(what, fault); !at.IsZero() {
		c.log.Warn("going by what is on disk: what changed since it was written is not known", "of", what, "written", at.UTC().Format(time.RFC3339), "age", time.Since(at).Round(time.Second), "revision", from.Revision, "err", fault)
	}
}
