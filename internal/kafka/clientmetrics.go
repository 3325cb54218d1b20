package kafka

import (
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// clientMetrics counts what all clients of a [Brokers] do together. It has no label for
// brokers or topics: others choose their names, and there may be many.
type clientMetrics struct {
	requests    *prometheus.CounterVec // by request and outcome
	seconds     *prometheus.CounterVec // by request
	read, wrote prometheus.Counter
	connects    *prometheus.CounterVec // by outcome
	disconnects prometheus.Counter
	throttled   prometheus.Counter
}

func newClientMetrics(prefix string) *clientMetrics {
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "_kafka_" + name, Help: help}, labels)
	}
	one := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "_kafka_" + name, Help: help})
	}
	return &clientMetrics{
		requests:    vec("requests_total", "Requests to Kafka by kind and outcome: answered, or failed (no answer came; what Kafka refuses is answered).", "request", "outcome"),
		seconds:     vec("request_seconds_total", "Time of requests to Kafka until they were answered; a fetch waits for records.", "request"),
		read:        one("read_bytes_total", "Bytes read from Kafka, as they are on the wire."),
		wrote:       one("written_bytes_total", "Bytes written to Kafka, as they are on the wire."),
		connects:    vec("connects_total", "Connections to Kafka by outcome: opened, failed.", "outcome"),
		disconnects: one("disconnects_total", "Connections to Kafka that ended."),
		throttled:   one("throttled_seconds_total", "Time for which Kafka had clients wait because of a quota."),
	}
}

// Collector returns the metrics of all clients that reach these brokers by this value or
// a copy of it. Their names begin with the prefix of the first call.
func (b Brokers) Collector(prefix string) prometheus.Collector {
	m := newClientMetrics(prefix)
	if b.via != nil {
		b.via.metrics.CompareAndSwap(nil, m)
		m = b.via.metrics.Load()
	}
	return m
}

func (m *clientMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.seconds, m.read, m.wrote, m.connects, m.disconnects, m.throttled}
}

// Describe implements [prometheus.Collector].
func (m *clientMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, c := range m.all() {
		c.Describe(out)
	}
}

// Collect implements [prometheus.Collector].
func (m *clientMetrics) Collect(out chan<- prometheus.Metric) {
	for _, c := range m.all() {
		c.Collect(out)
	}
}

// clientHook counts what a client does in the metrics of via, if there are any.
type clientHook struct{ via *via }

// OnBrokerE2E implements [kgo.HookBrokerE2E].
func (h clientHook) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, e kgo.BrokerE2E) {
	m := h.via.metrics.Load()
	if m == nil {
		return
	}
	outcome, name := "answered", kmsg.NameForKey(key)
	if e.Err() != nil {
		outcome = "failed"
	}
	m.requests.WithLabelValues(name, outcome).Inc()
	m.seconds.WithLabelValues(name).Add(e.DurationE2E().Seconds())
	m.read.Add(float64(e.BytesRead))
	m.wrote.Add(float64(e.BytesWritten))
}

// OnBrokerConnect implements [kgo.HookBrokerConnect].
func (h clientHook) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	m := h.via.metrics.Load()
	if m == nil {
		return
	}
	outcome := "opened"
	if err != nil {
		outcome = "failed"
	}
	m.connects.WithLabelValues(outcome).Inc()
}

// OnBrokerDisconnect implements [kgo.HookBrokerDisconnect].
func (h clientHook) OnBrokerDisconnect(kgo.BrokerMetadata, net.Conn) {
	if m := h.via.metrics.Load(); m != nil {
		m.disconnects.Inc()
	}
}

// OnBrokerThrottle implements [kgo.HookBrokerThrottle].
func (h clientHook) OnBrokerThrottle(_ kgo.BrokerMetadata, d time.Duration, _ bool) {
	if m := h.via.metrics.Load(); m != nil {
		m.throttled.Add(d.Seconds())
	}
}
