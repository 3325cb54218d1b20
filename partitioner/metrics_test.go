package partitioner

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/progress"
)

// What is told of the group's progress is not told any more when nothing is known of
// it: the last values would say that all is well.
func TestProgressThatIsNotKnownIsNotTold(t *testing.T) {
	r := prometheus.NewRegistry()
	m, err := newMetrics(r, kafka.Brokers{})
	must(t, err)
	told := func() (series int) {
		families, err := r.Gather()
		must(t, err)
		for _, f := range families {
			switch strings.TrimPrefix(f.GetName(), "millrace_partitioner_") {
			case "waiting_records", "open_records", "waited_seconds":
				series += len(f.Metric)
			}
		}
		return series
	}
	m.measured(progress.Progress{OtherLog: "another", Topics: map[string]progress.TopicProgress{"activity": {Waiting: 3}}})
	if told() != 3 || value(m.otherLog) != 1 {
		t.Errorf("%d series, other_log %v", told(), value(m.otherLog))
	}
	m.measured(progress.Progress{})
	if told() != 0 || value(m.otherLog) != 0 {
		t.Errorf("of what is not known: %d series, other_log %v", told(), value(m.otherLog))
	}
}
