package datadir

import (
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// FromDiskSeconds describes the metric that [FromDisk.Collect] gives.
var FromDiskSeconds = prometheus.NewDesc("millrace_cluster_from_disk_seconds",
	"Age of the file in the data directory by which what is watched in etcd (the map, or documents of a kind) is served since this process started: nothing that changed after it was written is known. 0 once etcd has told the present state. The log names the revision of etcd.",
	[]string{"of"}, nil)

// FromDisk notes what a process takes from files of its data directory because etcd has
// not told the present state yet: the map, or a kind of documents. Its zero value has
// nothing. It is safe for concurrent use.
type FromDisk struct {
	mu struct {
		sync.Mutex
		written map[string]time.Time // when the file of each was written; zero: etcd has told since
		told    map[string]bool      // Heard has returned that time
	}
}

// Begin notes that the process has taken the state of what, such as the map, from a file.
func (f *FromDisk) Begin(what, file string) {
	var written time.Time
	if st, err := os.Stat(file); err == nil {
		written = st.ModTime()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.written == nil {
		f.mu.written, f.mu.told = map[string]time.Time{}, map[string]bool{}
	}
	f.mu.written[what] = written
}

// Heard notes whether etcd has told the present state of what: it has if fault is nil. At
// the first fault of something that still comes from a file it returns when the file was
// written, so that the caller logs it once; else the zero time.
func (f *FromDisk) Heard(what string, fault error) (written time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch at := f.mu.written[what]; {
	case at.IsZero():
	case fault == nil:
		f.mu.written[what] = time.Time{}
	case !f.mu.told[what]:
		f.mu.told[what] = true
		return at
	}
	return time.Time{}
}

// Collect gives the age in seconds of each file that the process still uses, and 0 if etcd
// has told the present state since.
func (f *FromDisk) Collect(out chan<- prometheus.Metric) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for what, at := range f.mu.written {
		out <- prometheus.MustNewConstMetric(FromDiskSeconds, prometheus.GaugeValue, SecondsSince(at), what)
	}
}

// SecondsSince returns how long ago at was, at least 0.001; 0 for the zero time.
func SecondsSince(at time.Time) float64 {
	if at.IsZero() {
		return 0
	}
	return max(time.Since(at).Seconds(), 1e-3)
}
