package indexnode

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/schemas"
)

// counters count what a node's replicas consume. They count whether they are registered or
// not.
type counters struct {
	records  *prometheus.CounterVec // consumed, by stream
	changes  *prometheus.CounterVec // by kind
	refusals *prometheus.CounterVec // by reason
}

// newCounters returns counters at 0. If reg is not nil it registers them there, with all
// other metrics of n.
func newCounters(reg prometheus.Registerer, n *Node) counters {
	c := counters{
		records:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "millrace_indexnode_records_total", Help: "Records consumed, by stream."}, []string{"stream"}),
		changes:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "millrace_indexnode_changes_total", Help: "What records did to their timelines."}, []string{"kind"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "millrace_indexnode_refused_total", Help: "Records refused, by reason."}, []string{"reason"}),
	}
	if reg == nil {
		return c
	}
	reg.MustRegister(c.records, c.changes, c.refusals, n.lookup.Reads, n.panics.Count)
	reg.MustRegister(n.answers.Collectors()...)
	reg.MustRegister(n.admission.Collectors()...)
	gauge := func(name, help string, f func() float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f))
	}
	reg.MustRegister(&replicaGauge{n}, &typeMetrics{n}, engineMetrics{n.store}, n.cfg.Brokers.Collector("millrace_indexnode"))
	gauge("millrace_indexnode_question_memory_bytes", "Memory that is counted for questions: what they read beside the caches, and their answers.", func() float64 {
		return float64(n.memory.Held())
	})
	gauge("millrace_indexnode_request_memory_bytes", "Memory that is counted for calls of brokers and nodes, from their first byte until they are answered. Calls are refused as it comes near a quarter of question_memory_mib.", func() float64 {
		return float64(n.arriving.Held())
	})
	gauge("millrace_indexnode_ingest_paused_seconds", "For how long yet nothing is applied because an operator has paused it; 0 when it is not paused.", func() float64 {
		now := time.Now()
		return max(0, n.replicas.Paused(now).Sub(now).Seconds())
	})
	gauge("millrace_indexnode_ready_partitions", "Partitions that answer, those among them whose answers are old.", func() float64 {
		answering, _, _ := n.replicas.Answering(time.Now())
		return float64(answering.Len())
	})
	gauge("millrace_indexnode_lag_seconds", "Time by which the answers of the oldest partition that answers may be behind: since its end of the log, and what came in, was last known to be applied. It is 2 to 4 s when all is well. A year (3.1536e+07) stands for not known, as after a start without Kafka.", func() float64 {
		var worst time.Duration
		now := time.Now()
		answering, _, _ := n.replicas.Answering(now)
		for p := range answering.All() {
			worst = max(worst, n.replicas.TrueAge(p, now))
		}
		return worst.Seconds()
	})
	gauge("millrace_indexnode_behind_partitions", "Partitions that answer although their answers are too old, and say so.", func() float64 {
		_, old, _ := n.replicas.Answering(time.Now())
		return float64(old.Len())
	})
	gauge("millrace_indexnode_types", "Content types of records. When it is 257 there are more, and what asks for all types is refused.", func() float64 { types, _ := n.store.Types(); return float64(len(types)) })
	gauge("millrace_indexnode_schema_clashes", "Fields to which schemas give types that do not go together, so that the records of some read null: millrace schema list names them.", func() float64 {
		known := n.schemas.Snapshot()
		clashes := len(known.Disagreements())
		for _, f := range known.Families() {
			clashes += len(f.Clashes())
		}
		return float64(clashes)
	})
	gauge("millrace_cache_fat_records", "Records held by the fat cache.", func() float64 { return float64(n.cache.Stats().Records) })
	gauge("millrace_cache_skinny_keys", "Timelines known to be empty.", func() float64 { return float64(n.cache.Stats().EmptyKeys) })
	counter := func(name, help string, f func() float64) {
		reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, f))
	}
	counter("millrace_cache_fat_hits_total", "Look-ups answered by the fat cache.", func() float64 { return float64(n.cache.Stats().FatHits) })
	counter("millrace_cache_skinny_hits_total", "Look-ups answered by the skinny cache.", func() float64 { return float64(n.cache.Stats().SkinnyHits) })
	counter("millrace_cache_misses_total", "Look-ups that read the store.", func() float64 { return float64(n.cache.Stats().Misses) })
	counter("millrace_cache_fat_evictions_total", "Timelines evicted from the fat cache for room.", func() float64 { return float64(n.cache.Stats().FatEvictions) })
	counter("millrace_cache_skinny_evictions_total", "Keys evicted from the skinny cache for room.", func() float64 { return float64(n.cache.Stats().SkinnyEvictions) })
	counter("millrace_cache_removals_total", "Timelines removed by a write that could not continue them.", func() float64 { return float64(n.cache.Stats().Removals) })
	counter("millrace_cache_not_admitted_total", "Timelines read and not cached, for want of room and of an earlier request.", func() float64 { return float64(n.cache.Stats().NotAdmitted) })
	counter("millrace_cache_warmed_total", "Timelines and features brought in before a replica was announced, because they are hot elsewhere.", func() float64 { return float64(n.cache.Stats().Warmed) })
	counter("millrace_cache_purges_total", "Times that everything was forgotten, as when a schema has a new version.", func() float64 { return float64(n.cache.Stats().Purges) })
	counter("millrace_cache_features_hits_total", "Look-ups of features of entities that were answered.", func() float64 { return float64(n.cache.Stats().FeatureHits) })
	counter("millrace_cache_features_misses_total", "Look-ups of features of entities that read the store.", func() float64 { return float64(n.cache.Stats().FeatureMisses) })
	counter("millrace_cache_features_evictions_total", "Features of entities evicted for room.", func() float64 { return float64(n.cache.Stats().FeatureEvictions) })
	gauge("millrace_cache_features_rows", "Rows of features held, at least one an entity.", func() float64 { return float64(n.cache.Stats().FeatureRows) })
	gauge("millrace_cache_memory_bytes", "Memory of the caches outside the Go heap: timelines, what is folded of scores, the index.", func() float64 { return float64(n.cache.Stats().Arena.Used) })
	gauge("millrace_cache_mapped_bytes", "Memory taken from the system for the caches: what is in use, and what is free in it.", func() float64 { return float64(n.cache.Stats().Arena.Mapped) })
	gauge("millrace_cache_retired_bytes", "Memory of what is no longer cached and waits for questions that may read it. It grows while one does not end.", func() float64 { return float64(n.cache.Stats().Arena.Retired) })
	gauge("millrace_cache_record_bytes", "The same for each record held by the fat cache.", func() float64 { s := n.cache.Stats(); return float64(s.Arena.Used) / float64(max(s.Records, 1)) })
	gauge("millrace_cache_taken_bytes", "Memory that the caches take of millrace_cache_bound_bytes: what is mapped, and what keys take of the Go heap.", func() float64 { return float64(n.cache.Stats().Taken) })
	gauge("millrace_cache_bound_bytes", "The bound of the caches' memory, by the configuration (cache: {memory: 8GiB}) or half of the machine's.", func() float64 { return float64(n.cache.Stats().Bound) })
	gauge("millrace_cache_fat_bytes", "Memory of the records held by the fat cache.", func() float64 { return float64(n.cache.Stats().Bytes) })
	return c
}

func (c *counters) applied(s kafka.Stream, changes []store.Change, records int) {
	c.records.WithLabelValues(s.String()).Add(float64(records))
	var kinds [4]int // changes of each store.ChangeKind
	for i := range changes {
		kinds[changes[i].Kind]++
	}
	for kind, n := range kinds {
		if n > 0 {
			c.changes.WithLabelValues(store.ChangeKind(kind).String()).Add(float64(n))
		}
	}
}

func (c *counters) refused(r schemas.Reason) { c.refusals.WithLabelValues(string(r)).Inc() }

// replicaGauge tells how many partitions are in each state, and why.
type replicaGauge struct{ node *Node }

var replicaDesc = prometheus.NewDesc("millrace_indexnode_replicas",
	"Partitions assigned to the node by state (restoring, catching_up, ready, stale, draining, quarantined) and by the reason why they are not ready, or, of ready ones, of what is to be known (log_trimmed).", []string{"state", "reason"}, nil)

// Describe implements [prometheus.Collector].
func (g *replicaGauge) Describe(out chan<- *prometheus.Desc) { out <- replicaDesc }

// Collect implements [prometheus.Collector].
func (g *replicaGauge) Collect(out chan<- prometheus.Metric) {
	type labels struct{ state, reason string }
	partitions := map[labels]int{}
	for _, r := range g.node.reports(time.Now()) { // several may have the same state and reason
		partitions[labels{r.State, r.Reason}] += r.Partitions.Len()
	}
	for l, n := range partitions {
		out <- prometheus.MustNewConstMetric(replicaDesc, prometheus.GaugeValue, float64(n), l.state, l.reason)
	}
}
