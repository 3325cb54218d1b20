package exposure

import "github.com/prometheus/client_golang/prometheus"

// The metrics of a log.
var (
	descAdded    = desc("added_total", "Records of answers that were to be written. Each of them waits, or is counted once by records_total.")
	descRecords  = desc("records_total", "Records of answers by outcome: written; dropped, since the queue was full or at the end of the process, when its log says how many; refused, as invalid or by the producer.", "outcome", "reason")
	descFailures = desc("failures_total", "Attempts to write records that failed and are repeated.")
	descBare     = desc("without_features_total", "Records that were too large with the features that were asked for.")
	descBytes    = desc("waiting_bytes", "Memory of the records that wait to be written.")
	descMaxBytes = desc("waiting_max_bytes", "What waiting_bytes may be before records are dropped.")
	descOldest   = desc("waiting_seconds", "For how long the oldest record has waited to be written, 0 none.")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("millrace_exposure_"+name, help, labels, nil)
}

// Describe implements [prometheus.Collector].
func (l *Log) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descAdded, descRecords, descFailures, descBare, descBytes, descMaxBytes, descOldest} {
		out <- d
	}
}

// Collect implements [prometheus.Collector].
func (l *Log) Collect(out chan<- prometheus.Metric) {
	c := l.Counts()
	count := func(d *prometheus.Desc, v int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	count(descAdded, c.Added)
	count(descRecords, c.Written, "written", "")
	count(descRecords, c.DroppedFull, "dropped", "full")
	count(descRecords, c.DroppedEnd, "dropped", "end")
	count(descRecords, c.Invalid, "refused", "invalid")
	count(descRecords, c.Refused, "refused", "producer")
	count(descFailures, c.Failures)
	count(descBare, c.FeaturesLeftOut)
	gauge(descBytes, float64(c.WaitingBytes))
	gauge(descMaxBytes, float64(l.cfg.MaxBytes))
	gauge(descOldest, l.oldest().Seconds())
}
