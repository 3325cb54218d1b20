package fanout

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics is what is counted of calls of nodes. Labels are bounded: nodes, and
// how calls end.
type metrics struct {
	calls      *prometheus.CounterVec // node, outcome
	callTimes  prometheus.Histogram
	hedges     *prometheus.CounterVec // event
	hedgeSaved prometheus.Counter
}

// Events of hedges: sent; answered before the first; not sent for lack of
// budget.
const (
	hedgeFired  = "fired"
	hedgeWon    = "won"
	hedgeDenied = "denied"
)

func newMetrics() *metrics {
	return &metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "millrace", Subsystem: "broker", Name: "node_calls_total", Help: "Calls of index nodes by outcome: answered, cancelled, failed."}, []string{"node", "outcome"}),
		callTimes: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "millrace", Subsystem: "broker", Name: "node_call_seconds", Help: "Time of answered node calls.", Buckets: prometheus.ExponentialBucketsRange(0.0002, 10, 16)}),
		hedges: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "millrace", Subsystem: "broker", Name: "hedges_total", Help: "Hedges by event: fired, won (answered before the first call), denied (no budget left)."}, []string{"event"}),
		hedgeSaved: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "millrace", Subsystem: "broker", Name: "hedge_saved_seconds_total", Help: "Time that won hedges saved, estimated: what calls as slow as the first went on to take of late."}),
	}
}

// Collectors are the metrics of calls of nodes.
func (f *Fanout) Collectors() []prometheus.Collector {
	m := f.metrics
	return []prometheus.Collector{m.calls, m.callTimes, m.hedges, m.hedgeSaved}
}
