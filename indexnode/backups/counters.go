package backups

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// counters is what a Keeper has done, for its metrics.
type counters struct {
	mu struct {
		sync.Mutex
		now        *round    // the round under way; nil: none
		owed       time.Time // when the last round that succeeded began, or else the first that did not; zero: there is nothing to back up
		succeeded  time.Time // when the last round that succeeded began; zero: none did
		rounds     int64     // rounds that have ended, failed or not
		failures   int64     // rounds that failed
		uploaded   int64     // bytes of files that were uploaded
		reused     int64     // bytes of files that the bucket had
		restores   int64     // partitions that were restored
		restored   int64     // their bytes
		unrestored int64     // restores that failed
	}
}

func (c *counters) begin(r *round) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.now = r
	if c.mu.owed.IsZero() {
		c.mu.owed = r.begun
	}
}

// idle notes that the node has nothing to back up.
func (c *counters) idle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.owed = time.Time{}
}

func (c *counters) end(r *round, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.now = nil
	c.mu.rounds++
	if err != nil {
		c.mu.failures++
	} else {
		c.mu.succeeded, c.mu.owed = r.begun, r.begun
	}
	c.mu.uploaded += r.uploadedBytes
	c.mu.reused += r.bytes - r.uploadedBytes
}

func (c *counters) restored(bytes int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.mu.unrestored++
		return
	}
	c.mu.restores++
	c.mu.restored += bytes
}

// What the metrics of backups are called, and say.
var (
	descSucceeded = desc("last_success_timestamp_seconds", "When the last round of backups that succeeded began, 0 none.")
	descBehind    = desc("behind_seconds", "How long ago the last round of backups that succeeded began, or the first that did not; 0 where this node has nothing to back up.")
	descRunning   = desc("running", "1 while a round of backups is under way.")
	descRounds    = desc("rounds_total", "Rounds of backups, by outcome.", "outcome")
	descUploaded  = desc("bytes_total", "Bytes of backed up files, by whether the bucket had them.", "was")
	descRestores  = desc("restores_total", "Partitions brought back from backups, or not, by outcome; those that were told to stop count as neither.", "outcome")
	descRestored  = desc("restored_bytes_total", "Bytes of partitions brought back.")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("millrace_backup_"+name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (k *Keeper) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descSucceeded, descBehind, descRunning, descRounds, descUploaded, descRestores, descRestored} {
		out <- d
	}
	k.drills.describe(out)
}

// Collect implements prometheus.Collector.
func (k *Keeper) Collect(out chan<- prometheus.Metric) {
	k.drills.collect(out)
	c := &k.counters
	c.mu.Lock()
	defer c.mu.Unlock()
	gauge := func(d *prometheus.Desc, v float64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	count := func(d *prometheus.Desc, v int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	at := 0.0
	if !c.mu.succeeded.IsZero() {
		at = float64(c.mu.succeeded.UnixMilli()) / 1000
	}
	behind, running := 0.0, 0.0
	if !c.mu.owed.IsZero() {
		behind = time.Since(c.mu.owed).Seconds()
	}
	if c.mu.now != nil {
		running = 1
	}
	gauge(descSucceeded, at)
	gauge(descBehind, behind)
	gauge(descRunning, running)
	count(descRounds, c.mu.rounds-c.mu.failures, "ok")
	count(descRounds, c.mu.failures, "failed")
	count(descUploaded, c.mu.uploaded, "uploaded")
	count(descUploaded, c.mu.reused, "there")
	count(descRestores, c.mu.restores, "ok")
	count(descRestores, c.mu.unrestored, "failed")
	count(descRestored, c.mu.restored)
}
