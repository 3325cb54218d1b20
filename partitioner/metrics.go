package partitioner

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/progress"
	"github.com/millrace/millrace/schemas"
)

// metrics are the metrics of a partitioner. Their help says what each counts. consumed,
// published, copies, deadLettered and ignored count committed transactions only, so that for
// every input topic, at every moment between two commits,
//
//	consumed = published + dead_lettered + ignored
type metrics struct {
	consumed     *prometheus.CounterVec
	published    *prometheus.CounterVec
	copies       *prometheus.CounterVec
	deadLettered *prometheus.CounterVec
	ignored      *prometheus.CounterVec
	transactions prometheus.Counter
	failures     prometheus.Counter
	faults       prometheus.Counter
	skipped      *prometheus.CounterVec
	holds        prometheus.Counter
	held         prometheus.Counter
	lost         *prometheus.CounterVec
	unasked      prometheus.Counter
	otherLog     prometheus.Gauge
	waiting      *prometheus.GaugeVec
	open         *prometheus.GaugeVec
	waited       *prometheus.GaugeVec
	paused       prometheus.Gauge
	stuck        prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer, brokers kafka.Brokers) (*metrics, error) {
	var all []prometheus.Collector
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "millrace", Subsystem: "partitioner", Name: name, Help: help}, labels)
		all = append(all, c)
		return c
	}
	one := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "millrace", Subsystem: "partitioner", Name: name, Help: help})
		all = append(all, c)
		return c
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "millrace", Subsystem: "partitioner", Name: name, Help: help + " Not told while Kafka does not answer."}, []string{"topic"})
		all = append(all, g)
		return g
	}
	m := &metrics{
		consumed:     vec("consumed_total", "Input records: published + dead-lettered + ignored, exactly.", "topic"),
		published:    vec("published_total", "Input records republished to their timelines or as features.", "topic"),
		copies:       vec("copies_total", "Records written to the timeline and features topics: a published input once for each of its timelines.", "topic"),
		deadLettered: vec("dead_lettered_total", "Input records refused, by reason; 0 from the start for each topic and reason.", "topic", "reason"),
		ignored:      vec("ignored_total", "Input records with a key and a null value, which say nothing here.", "topic"),
		transactions: one("transactions_total", "Transactions committed."),
		failures:     one("failures_total", "Times that Kafka failed us and a new session was opened; nothing uncommitted took effect."),
		faults:       one("read_faults_total", "Partitions that could not be read, each time it was told."),
		skipped:      vec("skipped_batches_total", "Batches that could not be opened and that an operator skipped; their records are not consumed.", "topic"),
		holds:        one("holds_total", "Times that this process waited between two transactions, for a look at the whole log."),
		held:         one("held_seconds_total", "How long this process waited between two transactions, for looks at the whole log."),
		lost:         vec("lost_records_total", "Input records, at most, that the log no longer had when the group came to them, and that an operator had it pass over.", "topic"),
		unasked:      one("unasked_schema_ids_total", "Records whose schema id the schema registry was not asked for, since it did not have many others of late; they are dead letters."),
		otherLog: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "millrace", Subsystem: "partitioner", Name: "other_log",
			Help: "1 while the group writes nothing because the topics that it writes to are not those that it has written to; /readyz and the log say what to do."}),
		stuck: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "millrace", Subsystem: "partitioner", Name: "stuck_partitions",
			Help: "Partitions that this process cannot read past a place of; /readyz and the log name it and the way out."}),
		waiting: gauge("waiting_records", "Records, or offsets, of a topic that the group has not committed yet."),
		open:    gauge("open_records", "Records of a topic in or behind transactions of its producers that have not ended."),
		waited:  gauge("waited_seconds", "How long the oldest record of a topic has been seen to wait for the group."),
		paused: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "millrace", Subsystem: "partitioner", Name: "paused",
			Help: "1 while consumption pauses because nothing but dead letters came in."}),
	}
	all = append(all, m.paused, m.stuck, m.otherLog, brokers.Collector("millrace_partitioner"))
	var errs []error
	for _, c := range all {
		errs = append(errs, reg.Register(c))
	}
	return m, errors.Join(errs...)
}

// reasons are the reasons for which the partitioner refuses records.
var reasons = []schemas.Reason{
	schemas.EmptyValue, schemas.BadFraming, schemas.UnknownSchema, schemas.Truncated, schemas.TrailingBytes,
	schemas.BadVarint, schemas.BadCount, schemas.BadBoolean, schemas.BadUnionIndex, schemas.BadEnumIndex,
	schemas.DuplicateMapKey, schemas.InvalidUTF8, schemas.NotFinite, schemas.TimeOutOfRange, schemas.OverLimit,
	schemas.MissingRole, schemas.BadValue, schemas.TimeInTheFuture, WrongKind,
}

// begin creates the series of the input topics, at 0. Prometheus sees no rise in a series
// that first appears with the count of a burst, so no alert would tell of the burst.
func (m *metrics) begin(topics []string) {
	for _, topic := range topics {
		for _, c := range []*prometheus.CounterVec{m.consumed, m.published, m.copies, m.ignored} {
			c.WithLabelValues(topic)
		}
		for _, reason := range reasons {
			m.deadLettered.WithLabelValues(topic, string(reason))
		}
	}
}

// measured sets the gauges to how far the group is. If that is not known, it deletes the
// series of the topics: the last values would say that all is well.
func (m *metrics) measured(p progress.Progress) {
	if p.Topics == nil {
		m.waiting.Reset()
		m.open.Reset()
		m.waited.Reset()
	}
	m.otherLog.Set(0)
	if p.OtherLog != "" {
		m.otherLog.Set(1)
	}
	for topic, t := range p.Topics {
		m.waiting.WithLabelValues(topic).Set(float64(t.Waiting))
		m.open.WithLabelValues(topic).Set(float64(t.Open))
		m.waited.WithLabelValues(topic).Set(float64(t.WaitedMillis) / 1000)
	}
}

// tally is what one transaction did to the records of one topic.
type tally struct {
	consumed, published, copies, ignored int
	dead                                 map[schemas.Reason]int
}

// commit adds the tallies of a committed transaction.
func (m *metrics) commit(byTopic map[string]*tally) {
	m.transactions.Inc()
	for topic, t := range byTopic {
		m.consumed.WithLabelValues(topic).Add(float64(t.consumed))
		m.published.WithLabelValues(topic).Add(float64(t.published))
		m.copies.WithLabelValues(topic).Add(float64(t.copies))
		m.ignored.WithLabelValues(topic).Add(float64(t.ignored))
		for reason, n := range t.dead {
			m.deadLettered.WithLabelValues(topic, string(reason)).Add(float64(n))
		}
	}
}
