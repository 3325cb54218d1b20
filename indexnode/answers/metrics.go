package answers

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// counters are the metrics of questions.
type counters struct {
	queries  *prometheus.CounterVec   // counts queries by outcome
	answered prometheus.Counter       // the counter in queries for queryAnswered
	stages   [3]prometheus.Observer   // the histograms in seconds, in the order of stageNames
	seconds  *prometheus.HistogramVec // the time of answered queries, by stage
}

// stageNames are the stages of a query.
var stageNames = [3]string{"resolve", "scan", "rank"}

// Outcomes of queries.
const (
	queryAnswered = "answered"
	queryRefused  = "refused" // the request is wrong
	queryFailed   = "failed"
	queryStopped  = "stopped" // the caller gave up, or its deadline passed, while it was worked on
	queryExpired  = "expired" // the caller gave up, or its deadline passed, before it was begun
)

func newCounters() counters {
	c := counters{
		queries: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "millrace_indexnode_queries_total", Help: "Queries by outcome: answered, refused, failed, stopped (nobody waited any more), expired (the same, before it was begun)."}, []string{"outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "millrace_indexnode_query_seconds", Help: "Time of answered queries by stage: resolve (the cache and the store), scan (filter and score), rank.",
			Buckets: prometheus.ExponentialBucketsRange(0.00005, 5, 16)}, []string{"stage"}),
	}
	for _, outcome := range []string{queryRefused, queryFailed, queryStopped, queryExpired} {
		c.queries.WithLabelValues(outcome) // begins at 0, so that rate() sees the first one
	}
	c.answered = c.queries.WithLabelValues(queryAnswered)
	for i, stage := range stageNames {
		c.stages[i] = c.seconds.WithLabelValues(stage)
	}
	return c
}

// Collectors returns the metrics of questions, and of versions that were condemned.
func (s *Server) Collectors() []prometheus.Collector {
	return []prometheus.Collector{s.counters.queries, s.counters.seconds, s.condemned.counters}
}

// took counts the times of the stages of an answered query, in the order of stageNames.
func (c *counters) took(stages ...time.Duration) {
	for i, d := range stages {
		c.stages[i].Observe(d.Seconds())
	}
}

func (c *counters) queried(outcome string) { c.queries.WithLabelValues(outcome).Inc() }
