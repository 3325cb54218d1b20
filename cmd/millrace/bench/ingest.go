package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/figure"
)

// Ingest says how the way in is measured: a file of records, or ready Avro, through
// a partitioner to one index node, by a real Kafka.
type Ingest struct {
	Kafka    string        // host:port of a Kafka that nobody else uses
	KafkaPID int           // of its process, if its CPU time is to be told; 0: it is not
	Records  int           // of each of the two; 0: 500,000
	Entities int           // whose they are; 0: one for twenty records
	Duration time.Duration // of the latency; 0: 20 s
	Turns    int           // how many times all is measured; 0: once
	Against  string        // another build of millrace, measured by turns with this one; empty: none
	Data     string        // directory for files and stores; empty: a temporary one
	Profile  string        // directory for CPU profiles; empty: none
	Seed     uint64
	Progress io.Writer
}

func (c *Ingest) defaults() {
	c.Records = cmp.Or(c.Records, 500_000)
	c.Entities = cmp.Or(c.Entities, max(1, c.Records/20))
	c.Duration = cmp.Or(c.Duration, 20*time.Second)
	c.Turns = cmp.Or(c.Turns, 1)
}

// Validate reports every fault at once.
func (c *Ingest) Validate() error {
	var errs []error
	if c.Kafka == "" {
		errs = append(errs, errors.New("kafka: missing; name the host:port of a Kafka that nobody else uses (scripts/kafka starts one)"))
	}
	for name, n := range map[string]int{"records": c.Records, "entities": c.Entities, "turns": c.Turns, "kafka-pid": c.KafkaPID} {
		if n < 0 {
			errs = append(errs, fmt.Errorf("%s: %d is negative", name, n))
		}
	}
	if c.Duration < 0 {
		errs = append(errs, fmt.Errorf("duration: %s is negative", c.Duration))
	}
	if _, err := os.Stat(c.Against); c.Against != "" && err != nil {
		errs = append(errs, fmt.Errorf("against: %w", err))
	}
	return errors.Join(errs...)
}

func (c *Ingest) say(format string, args ...any) {
	if c.Progress != nil {
		fmt.Fprintf(c.Progress, format+"\n", args...)
	}
}

// build is a binary that is measured.
type build struct {
	name   string // behind those of its figures; empty: this one
	binary string
	turns  []turn
}

// RunIngest measures, and prints the medians of the turns as figures.
func RunIngest(ctx context.Context, c Ingest) (err error) {
	if err := c.Validate(); err != nil {
		return err
	}
	c.defaults()
	dir := c.Data
	if dir == "" {
		if dir, err = os.MkdirTemp("", "millrace-bench-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	dir = filepath.Join(dir, "ingest")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	family := newFamily(ctx, dir)
	defer func() { err = errors.Join(err, family.close()) }()
	b, err := startBacking(family) // for etcd
	if err != nil {
		return err
	}
	b.kafka = c.Kafka
	self, err := os.Executable()
	if err != nil {
		return err
	}
	builds := []*build{{binary: self}}
	if c.Against != "" {
		builds = append(builds, &build{name: "_against", binary: c.Against})
	}
	s := stream{records: c.Records, entities: c.Entities, seed: c.Seed}
	file := filepath.Join(dir, "records.ndjson")
	if err := s.write(file); err != nil {
		return err
	}
	for i := range c.Turns {
		for _, x := range builds {
			t, err := c.turn(family, b, x, s, file, fmt.Sprintf("turn-%d%s", i, x.name))
			if err != nil {
				return fmt.Errorf("turn %d%s: %w", i, x.name, cmp.Or(context.Cause(family.ctx), err))
			}
			x.turns = append(x.turns, t)
		}
	}
	for _, x := range builds {
		x.report()
	}
	return nil
}

// Goals of the way in: CPU time a record, and the latency at half of the rate.
const (
	goalLoad    = 20   // µs
	goalRoles   = 20   // µs, partitioner and node together
	goalRate    = 50e3 // records a second
	goalVisible = 1000 // ms
)

// report prints the figures of a build.
func (x *build) report() {
	of := func(name, unit string, goal float64, value func(t *turn) float64) {
		all := make([]float64, len(x.turns))
		for i := range x.turns {
			all[i] = value(&x.turns[i])
		}
		slices.Sort(all)
		median := all[len(all)/2]
		if name = "ingest_" + name + x.name; goal > 0 {
			figure.Print(name, median, unit, goal)
		} else {
			figure.Tell(name, median, unit)
		}
	}
	of("file_load_us", "us", goalLoad, func(t *turn) float64 { return t.file.each(t.file.sender) })
	of("file_per_s", "records/s", 0, func(t *turn) float64 { return t.file.rate() })
	of("avro_producer_us", "us", 0, func(t *turn) float64 { return t.avro.each(t.avro.sender) })
	of("avro_partitioner_us", "us", 0, func(t *turn) float64 { return t.avro.each(t.avro.partitioner) })
	of("avro_node_us", "us", 0, func(t *turn) float64 { return t.avro.each(t.avro.node) })
	of("avro_roles_us", "us", goalRoles, func(t *turn) float64 { return t.avro.each(t.avro.partitioner + t.avro.node) })
	of("avro_kafka_us", "us", 0, func(t *turn) float64 { return t.avro.each(t.avro.kafka) })
	of("avro_per_s", "records/s", goalRate, func(t *turn) float64 { return t.avro.rate() })
	of("half_visible_p50_ms", "ms", 0, func(t *turn) float64 { return millis(t.half.at(0.5)) })
	of("half_visible_p99_ms", "ms", goalVisible, func(t *turn) float64 { return millis(t.half.at(0.99)) })
	of("idle_partitioner_percent", "% of a processor", 0, func(t *turn) float64 { return t.idle.percent(t.idle.partitioner) })
	of("idle_node_percent", "% of a processor", 0, func(t *turn) float64 { return t.idle.percent(t.idle.node) })
	of("idle_broker_percent", "% of a processor", 0, func(t *turn) float64 { return t.idle.percent(t.idle.broker) })
	of("idle_roles_percent", "% of a processor", 3, func(t *turn) float64 {
		return t.idle.percent(t.idle.partitioner + t.idle.node + t.idle.broker)
	})
	of("idle_kafka_percent", "% of a processor", 0, func(t *turn) float64 { return t.idle.percent(t.idle.kafka) })
}

// assignAll gives all partitions of a cluster to one node.
func assignAll(ctx context.Context, etcd, name string, id millrace.NodeID) error {
	cl, err := cluster.Open(ctx, cluster.Config{Endpoints: []string{etcd}, Name: name})
	if err != nil {
		return err
	}
	defer cl.Close()
	a, err := cluster.Spread([]millrace.NodeID{id}, 1)
	if err != nil {
		return err
	}
	a.AllowUnknown = true // the node starts after this
	return cl.Assign(ctx, a)
}
