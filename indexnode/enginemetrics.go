package indexnode

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/indexnode/store"
)

// engineMetrics collects the metrics of the storage engine.
type engineMetrics struct{ store *store.Store }

type engineMetric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(store.Engine) float64
}

func engineMetricOf(kind prometheus.ValueType, name, help string, of func(store.Engine) float64) engineMetric {
	return engineMetric{prometheus.NewDesc("millrace_store_"+name, help, nil, nil), kind, of}
}

var engineMetricsAll = []engineMetric{
	engineMetricOf(prometheus.GaugeValue, "compaction_debt_bytes", "Bytes that compactions of the store have yet to write, estimated. It grows where they fall behind ingest.", func(e store.Engine) float64 { return float64(e.Debt) }),
	engineMetricOf(prometheus.GaugeValue, "compactions_running", "Compactions under way.", func(e store.Engine) float64 { return float64(e.Running) }),
	engineMetricOf(prometheus.GaugeValue, "read_amplification", "Tables and levels that a read of one row looks into, at most.", func(e store.Engine) float64 { return float64(e.ReadAmplification) }),
	engineMetricOf(prometheus.GaugeValue, "tables", "Tables of the store.", func(e store.Engine) float64 { return float64(e.Tables) }),
	engineMetricOf(prometheus.GaugeValue, "disk_bytes", "Bytes of the store's files, those too that are to be removed.", func(e store.Engine) float64 { return float64(e.DiskBytes) }),
	engineMetricOf(prometheus.GaugeValue, "memtable_bytes", "Memory of what is written to the engine and not in a table.", func(e store.Engine) float64 { return float64(e.MemtableBytes) }),
	engineMetricOf(prometheus.GaugeValue, "block_cache_bytes", "Memory of the cache of blocks.", func(e store.Engine) float64 { return float64(e.CacheBytes) }),
	engineMetricOf(prometheus.CounterValue, "block_cache_hits_total", "Blocks found in the cache of blocks.", func(e store.Engine) float64 { return float64(e.CacheHits) }),
	engineMetricOf(prometheus.CounterValue, "block_cache_misses_total", "Blocks read from disk.", func(e store.Engine) float64 { return float64(e.CacheMisses) }),
	engineMetricOf(prometheus.CounterValue, "compactions_total", "Compactions that ended.", func(e store.Engine) float64 { return float64(e.Compactions) }),
	engineMetricOf(prometheus.CounterValue, "compactions_failed_total", "Compactions that failed; they are tried again.", func(e store.Engine) float64 { return float64(e.Failed) }),
	engineMetricOf(prometheus.CounterValue, "compacted_bytes_total", "Bytes that compactions wrote.", func(e store.Engine) float64 { return float64(e.CompactedBytes) }),
	engineMetricOf(prometheus.CounterValue, "flushes_total", "Flushes of memtables.", func(e store.Engine) float64 { return float64(e.Flushes) }),
	engineMetricOf(prometheus.CounterValue, "flushed_bytes_total", "Bytes that flushes wrote.", func(e store.Engine) float64 { return float64(e.FlushedBytes) }),
	engineMetricOf(prometheus.CounterValue, "write_stalls_total", "Times that writes waited for flushes or compactions.", func(e store.Engine) float64 { return float64(e.Stalls) }),
}

// Describe implements [prometheus.Collector].
func (engineMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, m := range engineMetricsAll {
		out <- m.desc
	}
}

// Collect implements [prometheus.Collector].
func (m engineMetrics) Collect(out chan<- prometheus.Metric) {
	e, ok := m.store.Engine()
	if !ok { // the store is closed, has ended, or waits for the disk
		return
	}
	for _, m := range engineMetricsAll {
		out <- prometheus.MustNewConstMetric(m.desc, m.kind, m.of(e))
	}
}
