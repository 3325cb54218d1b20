package fanout

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts and times calls of nodes. Labels take few values: node ids, how a call
// ended, and events of hedges.
type metrics struct {
	calls      *prometheus.CounterVec // labels: node, outcome
	callTimes  prometheus.Histogram
	hedges     *prometheus.CounterVec // label: event
	hedgeSaved prometheus.Counter
}

// Events of hedges.
const (
	hedgeFired  = "fired"
	hedgeWon    = "won"    // it answered everything before the first call did
	hedgeDenied = "denied" // it was due, and not sent: no budget left, or no other node to ask
)

func newMetrics() *metrics {
	return &metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "millrace", Subsystem: "broker", Name: "node_calls_total", Help: "Calls of index nodes by outcome: answered, cancelled, failed."}, []string{"node", "outcome"}),
		callTimes: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "millrace", Subsystem: "broker", Name: "node_call_seconds", Help: "Time of answered node calls.", Buckets: prometheus.ExponentialBucketsRange(0.0002, 10, 16)}),
		hedges: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "millrace", Subsystem: "broker", Name: "hedges_total", Help: "Hedges by event: fired, won (answered before the first call), denied (due, but the budget is used up or no other node can be asked)."}, []string{"event"}),
		hedgeSaved: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "millrace", Subsystem: "broker", Name: "hedge_saved_seconds_total", Help: "Time that won hedges saved, estimated: what calls as slow as the first went on to take of late."}),
	}
}

// Collectors returns the metrics of calls of nodes, to be registered.
func (f *Fanout) Collectors() []prometheus.Collector {
	m := f.metrics
	return []prometheus.Collector{m.calls, m.callTimes, m.hedges, m.hedgeSaved}
}
