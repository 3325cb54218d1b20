package partitioner

import (
	"log/slog"
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

// A partitioner tells counts of 0 before it has read anything, of each topic and of each
// reason that the hostile inputs are refused for: a burst that brought the series along
// would be no rise for Prometheus.
func TestCountsBeginAtZero(t *testing.T) {
	r := prometheus.NewRegistry()
	_, err := New(Config{Brokers: kafka.At("127.0.0.1:1"), Content: []string{"posts"}, Features: []string{"signals"}, Instance: "p1"}, slog.New(slog.DiscardHandler), r)
	must(t, err)
	families, err := r.Gather()
	must(t, err)
	begun := map[string]bool{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := strings.TrimPrefix(f.GetName(), "millrace_partitioner_")
			for _, l := range m.Label { // by name: reason, topic
				name += " " + l.GetValue()
			}
			begun[name] = m.Counter != nil && m.Counter.GetValue() == 0
		}
	}
	for _, topic := range []string{"posts", "signals"} {
		for _, name := range []string{"consumed_total", "published_total", "copies_total", "ignored_total"} {
			if !begun[name+" "+topic] {
				t.Errorf("%s of %s does not begin at 0", name, topic)
			}
		}
		for _, in := range hostileInputs(t) {
			if in.want != wantPublished && in.want != wantIgnored && !begun["dead_lettered_total "+string(in.want)+" "+topic] {
				t.Errorf("dead letters of %s for %s do not begin at 0", topic, in.want)
			}
		}
	}
}
