// Package partitioner brings content and feature records to the partitions where they are
// indexed. It consumes any number of topics in a consumer group, checks every record
// strictly, works out its timelines, and republishes it to the topic timeline or features.
// It does so in Kafka transactions that also commit the offsets of what was consumed, so
// that each record takes effect there exactly once. A record that cannot be accepted goes
// to the topic dead-letters, byte for byte, with its reason. See DESIGN.md.
//
// Some terms: a session is one membership of this process in the consumer group, from
// joining it until a failure. The topic progress has how far each group is, and what
// operators ask of its partitioners: to skip a place that cannot be read, and to hold,
// which is to wait between two transactions. A process is stuck at a place past which it
// cannot read.
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
	// is started again. No two running processes may have the same one. Required.
	Instance string

	// Address is where people find this process, such as its admin port. If another
	// process is given the same instance name, it reports this address. Empty = the name of
	// the machine and the number of the process.
	Address string

	// SchemaRegistry is the URL of a Confluent-compatible registry, for records with
	// Confluent framing. Empty = the schema of such records is unknown.
	SchemaRegistry string
	RegistryAccess confluent.Access // how the registry is reached

	// SchemaWait is how long a record of an unknown schema is held for the
	// schema to appear. 0 = 2 s; negative = not at all.
	SchemaWait time.Duration

	// Future is how far a record's time may be after its arrival, which is its
	// timestamp in Kafka. A record with a later time is a dead letter. 0 =
	// schemas.DefaultFuture. It must be the same in every process of a group; else the
	// outcome of a record would depend on which process reads it.
	Future time.Duration
}

// DefaultGroup is the default of Config.Group.
const DefaultGroup = progress.DefaultGroup

// defaultSchemaWait is the default of Config.SchemaWait.
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

// inputs returns all topics to consume.
func (c Config) inputs() []string {
	return append(append([]string{}, c.Content...), c.Features...)
}

// Partitioner is one member of the partitioning group.
type Partitioner struct {
	cfg      Config
	log      *slog.Logger
	metrics  *metrics
	registry *registry.Registry     // the schemas that are known
	schemas  *schemalog.Log         // follows the topic schemas, and fills registry
	progress *progress.Log          // follows the topic progress
	beat     *groups.Heartbeat      // has a goroutine of its own, so that it can report when Run is stuck
	stuck    *stuckAt               // the places past which this process cannot read
	held     map[progress.Hold]bool // holds for which this process has waited; only Run uses it
	state    state                  // what Run tells Ready
	pace     pace
	batch    int // the most records of a transaction now; at most pace.records, and less after a failure
	on       events
}

// events are functions that tests set, to be called at certain moments.
type events struct {
	committed func()              // after a commit is counted
	waiting   func()              // before a record waits for its schema
	resting   func()              // when a pause begins
	skipped   func()              // after a batch was skipped
	holding   func()              // when a hold begins
	held      func(time.Duration) // when a hold ends, with how long it was
	halted    func()              // when the outputs are found to be other logs
}

// pace is when to commit and when to pause.
type pace struct {
	records   int           // a transaction gathers no more once it has read or written this many records
	bytes     int           // or written this many bytes of values
	gather    time.Duration // the longest time in which a transaction gathers records
	behind    time.Duration // the same, if more records wait than were gathered
	quiet     time.Duration // a transaction ends after this long without records
	poisonRun int           // this many dead letters in a row pause consumption
	pause     time.Duration // how long such a pause is
	backoff   time.Duration // the pause before a new session after a failed one
	idle      time.Duration // Ready reports records that wait for longer than this while this process commits none
	open      time.Duration // Ready reports transactions of producers that are open for longer than this
	hold      time.Duration // the longest wait for a look at the whole log
	standby   time.Duration // between two looks at whether another process still has the instance name
	logs      time.Duration // between two looks at whether the topics were replaced
}

// New returns a partitioner, which does nothing before Run. It registers the metrics with
// reg. The error names the faults of the configuration.
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
		idle:      6 * time.Second, // with the time until the next heartbeat, less than ten seconds
		open:      time.Minute,
		hold:      900 * time.Millisecond, // with what a busy machine adds, about a second
		standby:   3 * time.Second,
		logs:      2 * time.Second,
	}}
	p.batch = p.pace.records
	p.state.waits = errNotRun
	p.on = events{func() {}, func() {}, func() {}, func() {}, func() {}, func(time.Duration) {}, func() {}}
	return p, nil
}

// open begins to follow the topics schemas and progress. It does not wait for Kafka.
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
