// Package partitioner brings content and feature records to the partitions
// where they are indexed. It consumes any number of topics in a group, checks
// every record strictly, works out its timelines, and republishes it to the
// timeline or features topic in Kafka transactions that also commit what was
// consumed: each record takes effect there exactly once. What cannot be
// accepted goes to the dead letters, byte for byte, with its reason. See
// DESIGN.md.
package partitioner

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/confluent"
	"github.com/millrace/millrace/internal/kafka/groups"
	"github.com/millrace/millrace/internal/kafka/progress"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// Config says what to partition. The zero value of a field has the meaning in
// its comment.
type Config struct {
	Brokers  kafka.Brokers // required
	Content  []string      // topics of content records
	Features []string      // topics of feature records; one of both is required
	Topics   kafka.Topics  // Millrace's own topics; empty names = the defaults
	Group    string        // consumer group; empty = DefaultGroup

	// Instance names this process within the group, and stays the same when it
	// is started again; two living processes must not share one. Required.
	Instance string

	// Address is where people find this process, such as its admin port: another one
	// that is given its name tells it. Empty = the name of the machine, and the number of
	// the process.
	Address string

	// SchemaRegistry is the URL of a Confluent-compatible registry, for topics
	// with Confluent framing. Empty = such records have an unknown schema.
	SchemaRegistry string
	RegistryAccess confluent.Access // how it is reached

	// SchemaWait is how long a record of an unknown schema is held for the
	// schema to appear. 0 = 2 s; negative = not at all.
	SchemaWait time.Duration

	// Future is how far a record's time may be after its arrival, which is its
	// timestamp in Kafka; others are dead letters. 0 = schemas.DefaultFuture. It is
	// the same in every process of a group, or a record's outcome would be that of
	// the process which reads it.
	Future time.Duration
}

// DefaultGroup is the consumer group where none is named.
const DefaultGroup = progress.DefaultGroup

const defaultSchemaWait = 2 * time.Second

// Validate reports every fault of the configuration at once.
func (c Config) Validate() error {
	var errs []error
	fault := func(field, detail, wayOut string) {
		errs = append(errs, &millrace.Error{Reason: millrace.ReasonInvalid, Field: field, Detail: detail, WayOut: wayOut})
	}
	if c.Brokers.None() {
		fault("brokers", "nothing says where Kafka is", "name at least one host:port")
	} else if err := c.Brokers.Validate(); err != nil {
		errs = append(errs, err)
	}
	if len(c.Content)+len(c.Features) == 0 {
		fault("content", "there are no topics", "name at least one, here or in features")
	}
	if c.Instance == "" {
		fault("instance", "the process has no name", "give it one of its own in the group, such as its host's")
	}
	if c.Future < 0 {
		fault("future", fmt.Sprintf("%s is negative", c.Future), fmt.Sprintf("give a positive duration, or leave it out for %s", schemas.DefaultFuture))
	}
	for _, key := range []string{progress.SkipKey, progress.HoldKey, progress.HistoryKey} {
		if strings.HasPrefix(c.Group, key) {
			fault("group", fmt.Sprintf("%q begins with %q, which is not for groups", c.Group, key), "give it another name")
		}
	}
	if c.SchemaRegistry != "" {
		_, err := c.RegistryAccess.Registry(c.SchemaRegistry, nil)
		errs = append(errs, err)
	}
	t := c.Topics
	seen := t.All()
	for i, topic := range seen {
		if slices.Contains(seen[:i], topic) {
			fault("topics", fmt.Sprintf("%q is named twice", topic), "give each of Millrace's own topics another name")
		}
	}
	for _, inputs := range []struct {
		field  string
		topics []string
	}{{"content", c.Content}, {"features", c.Features}} {
		for i, topic := range inputs.topics {
			switch field := fmt.Sprintf("%s[%d]", inputs.field, i); {
			case topic == "":
				fault(field, "a topic has no name", "name it, or take it out")
			case slices.Contains(seen, topic):
				fault(field, fmt.Sprintf("%q is named twice, or is one of Millrace's own topics", topic), "take it out, or name another")
			}
			seen = append(seen, topic)
		}
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	c.Topics = c.Topics.WithDefaults()
	if c.Group == "" {
		c.Group = DefaultGroup
	}
	if c.Address == "" {
		host, _ := os.Hostname()
		c.Address = fmt.Sprintf("%s, process %d", host, os.Getpid())
	}
	if c.SchemaWait == 0 {
		c.SchemaWait = defaultSchemaWait
	}
	if c.Future == 0 {
		c.Future = schemas.DefaultFuture
	}
	return c
}

// inputs are all topics to consume.
func (c Config) inputs() []string {
	return append(append([]string{}, c.Content...), c.Features...)
}

// Partitioner is one member of the partitioning group.
type Partitioner struct {
	cfg      Config
	log      *slog.Logger
	metrics  *metrics
	registry *registry.Registry
	schemas  *schemalog.Log // feeds registry
	progress *progress.Log
	beat     *groups.Heartbeat // runs beside everything else, so that it tells when that is stuck
	stuck    *stuckAt
	held     map[progress.Hold]bool // holds that have been kept; of Run alone
	state    state
	pace     pace
	batch    int // most records polled at once, now; at most pace.records
	on       events
}

// events are told to tests, at the moments they are named for.
type events struct {
	committed func()              // after a commit is counted
	waiting   func()              // before a record waits for its schema
	resting   func()              // when a pause begins
	skipped   func()              // after a batch was skipped
	holding   func()              // when a hold begins
	held      func(time.Duration) // when it ends, with how long it was
	halted    func()              // when the outputs are found to be other logs
}

// pace is when to commit and when to pause.
type pace struct {
	records   int           // most records in a transaction, read or written
	bytes     int           // most bytes of values written in one; like records, it ends the gathering
	gather    time.Duration // longest wait for more records
	behind    time.Duration // the same, where more of them wait than were gathered
	quiet     time.Duration // a transaction ends after this long without records
	poisonRun int           // dead letters in a row that pause consumption
	pause     time.Duration // for how long
	backoff   time.Duration // before a new session after a failed one
	idle      time.Duration // records that wait for longer are told by a process that brings none of them on
	open      time.Duration // transactions of producers that are open for longer are told
	hold      time.Duration // longest wait for a look at the whole log
	standby   time.Duration // between two looks at whether another process still has the name
	logs      time.Duration // between two looks at whether the topics are what they were
}

// New validates. The metrics are registered with reg.
func New(cfg Config, log *slog.Logger, reg prometheus.Registerer) (*Partitioner, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	var lookup registry.Lookup
	if cfg.SchemaRegistry != "" {
		var err error
		if lookup, err = cfg.RegistryAccess.Registry(cfg.SchemaRegistry, log); err != nil {
			return nil, err
		}
	}
	registry, err := registry.New(nil, lookup)
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(reg, cfg.Brokers)
	if err != nil {
		return nil, fmt.Errorf("partitioner: %w", err)
	}
	m.begin(cfg.inputs())
	p := &Partitioner{cfg: cfg, log: log, metrics: m, registry: registry, stuck: &stuckAt{metrics: m}, pace: pace{
		records:   100_000,
		bytes:     32 << 20,
		gather:    250 * time.Millisecond,
		behind:    time.Second,
		quiet:     20 * time.Millisecond,
		poisonRun: 10_000,
		pause:     30 * time.Second,
		backoff:   500 * time.Millisecond,
		idle:      6 * time.Second, // and with the heartbeat that tells of it less than ten
		open:      time.Minute,
		hold:      900 * time.Millisecond, // with what the clock and the machine add, a second
		standby:   3 * time.Second,
		logs:      2 * time.Second,
	}}
	p.batch = p.pace.records
	p.state.waits = errNotRun
	p.on = events{func() {}, func() {}, func() {}, func() {}, func() {}, func(time.Duration) {}, func() {}}
	return p, nil
}

// open begins to follow the topics that tell this process something. It needs
// no Kafka.
func (p *Partitioner) open() (err error) {
	if p.schemas, err = schemalog.Open(schemalog.Config{
		Brokers: p.cfg.Brokers, Topic: p.cfg.Topics.Schemas, Registry: p.registry, Log: p.log,
	}); err != nil {
		return err
	}
	if p.progress, err = progress.Open(progress.Config{
		Brokers: p.cfg.Brokers, Topic: p.cfg.Topics.Progress, Log: p.log,
	}); err != nil {
		p.schemas.Close()
		return err
	}
	p.beat = groups.NewHeartbeat(groups.HeartbeatConfig{
		Brokers: p.cfg.Brokers, Progress: p.progress, Group: p.cfg.Group, Instance: p.cfg.Instance,
		Inputs: p.cfg.inputs(), Features: p.cfg.Features, Logs: p.cfg.Topics.Logs(), Future: p.cfg.Future, Stuck: p.stuck.all, Measured: p.metrics.measured, Log: p.log,
	})
	return nil
}
