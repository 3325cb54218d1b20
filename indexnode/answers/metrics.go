package answers

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// counters are what is told of questions.
type counters struct {
	queries  *prometheus.CounterVec // by outcome
	answered prometheus.Counter     // those of queries answered
	stages   [3]prometheus.Observer // of answered queries: the time of each
	seconds  *prometheus.HistogramVec
}

// stageNames are the stages of a query.
var stageNames = [3]string{"resolve", "scan", "rank"}

// Outcomes of queries.
const (
	queryAnswered = "answered"
	queryRefused  = "refused" // it is wrong
	queryFailed   = "failed"
	queryStopped  = "stopped" // nobody waited any more while it was worked on
	queryExpired  = "expired" // nobody waited any more, so it was not begun
)

func newCounters() counters {
	c := counters{
		queries: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "millrace_indexnode_queries_total", Help: "Queries by outcome: answered, refused, failed, stopped (nobody waited any more), expired (the same, before it was begun)."}, []string{"outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "millrace_indexnode_query_seconds", Help: "Time of answered queries by stage: resolve (the cache and the store), scan (filter and score), rank.",
			Buckets: prometheus.ExponentialBucketsRange(0.00005, 5, 16)}, []string{"stage"}),
	}
	for _, outcome := range []string{queryRefused, queryFailed, queryStopped, queryExpired} {
		c.queries.WithLabelValues(outcome) // at 0, so that the first of them is a rise
	}
	c.answered = c.queries.WithLabelValues(queryAnswered)
	for i, stage := range stageNames {
		c.stages[i] = c.seconds.WithLabelValues(stage)
	}
	return c
}

// Collectors are the metrics of questions, and of versions that failed.
func (s *Server) Collectors() []prometheus.Collector {
	return []prometheus.Collector{s.counters.queries, s.counters.seconds, s.condemned.counters}
}

// took counts the stages of an answered query.
func (c *counters) took(stages ...time.Duration) {
	for i, d := range stages {
		c.stages[i].Observe(d.Seconds())
	}
}

func (c *counters) queried(outcome string) { c.queries.WithLabelValues(outcome).Inc() }
