// Package team measures Millrace on a workload that it was not tuned for, that
// of a team with a schema, a filter and two models of its own, beside what else
// that team might run: an index written by hand, Redis, Lucene. Each is one or
// several processes on this machine, every answer is judged by the oracle, and
// they are measured by turns in one run. See DESIGN.md of package bench.
package team

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/millrace/bench/rig"
	"github.com/millrace/millrace/relevance"
)

// Config says what to measure.
type Config struct {
	Flat        bool          // twenty-four fields instead of a list
	Entities    int           // in the world, each with twenty records; 0: 100,000
	Viewers     int           // who ask, in turn; 0: 1,000
	Duration    time.Duration // of a step; 0: 5 s
	Seed        uint64        // of the world
	Against     []string      // of [Baselines]
	Kafka, Etcd string        // host:port of those to use; empty: started for the run
	Profile     string        // directory for CPU profiles of Millrace's roles; empty: none
	Progress    io.Writer     // what is being done
	Out         io.Writer     // the table
}

// Baselines are what Millrace is compared with.
var Baselines = []string{"grpc", "tcp", "redis", "lucene"}

// Validate reports every fault at once.
func (c *Config) Validate() error {
	var errs []error
	if least := 1000; c.Entities != 0 && c.Entities < least {
		errs = append(errs, fmt.Errorf("entities: %d; want at least %d", c.Entities, least))
	}
	if c.Viewers < 0 {
		errs = append(errs, fmt.Errorf("viewers: %d; want at least 1", c.Viewers))
	}
	if c.Duration < 0 {
		errs = append(errs, fmt.Errorf("duration: %s is negative", c.Duration))
	}
	for _, name := range c.Against {
		if !slices.Contains(Baselines, name) {
			errs = append(errs, fmt.Errorf("against: %q is none of %s", name, strings.Join(Baselines, ", ")))
		}
	}
	if (c.Kafka == "") != (c.Etcd == "") {
		errs = append(errs, errors.New("kafka, etcd: name both, or neither to have both started"))
	}
	return errors.Join(errs...)
}

// run is one of the benchmark.
type run struct {
	Config
	family  *rig.Family
	w       *world
	truth   *truth
	skipped []string // what was left out, and why
}

// label is the shape's name.
func (r *run) label() string {
	if r.Flat {
		return "team_flat"
	}
	return "team"
}

func (r *run) say(format string, args ...any) {
	if r.Progress != nil {
		fmt.Fprintf(r.Progress, format+"\n", args...)
	}
}

// Run measures, and prints a table and then the figures. The error says what
// failed, or which answer was wrong.
func Run(ctx context.Context, c Config) (err error) {
	if err := c.Validate(); err != nil {
		return err
	}
	c.Entities, c.Viewers, c.Duration = cmp.Or(c.Entities, 100_000), cmp.Or(c.Viewers, 1000), cmp.Or(c.Duration, 5*time.Second)
	dir, err := os.MkdirTemp("", "millrace-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r := &run{Config: c, family: rig.NewFamily(ctx, dir), w: newWorld(c.Entities, c.Viewers, c.Seed, c.Flat)}
	defer func() { err = errors.Join(err, r.family.Close()) }()
	if err := r.measure(); err != nil {
		return errors.Join(err, context.Cause(r.family.Ctx)) // an ended process explains the rest
	}
	return nil
}

func (r *run) measure() error {
	backing, err := r.backing()
	if err != nil {
		return err
	}
	r.say("%s: %d entities, seed %d, with %s", r.label(), r.Entities, r.Seed, backing)
	schema, known, err := r.w.schema()
	if err != nil {
		return err
	}
	began := time.Now()
	if r.truth, err = r.w.newTruth(schema, known); err != nil {
		return err
	}
	runtime.GC() // the oracle's world is not needed again
	r.say("the oracle has answered %d questions in %.1f s", len(r.w.asked), time.Since(began).Seconds())
	ours, idle, err := r.startMillrace(backing, known)
	if err != nil {
		return err
	}
	all := []*system{ours}
	for _, name := range Baselines {
		if !slices.Contains(r.Against, name) {
			continue
		}
		began := time.Now()
		s, err := r.startBaseline(name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if s != nil {
			r.say("%s: ready after %.1f s", s.name, time.Since(began).Seconds())
			all = append(all, s)
		}
	}
	results, err := r.byTurns(all)
	if err != nil {
		return err
	}
	return r.report(backing, idle, results)
}

func (r *run) startBaseline(name string) (*system, error) {
	switch name {
	case "grpc":
		return r.startHandwritten(true)
	case "tcp":
		return r.startHandwritten(false)
	case "redis":
		return r.startRedis()
	}
	return r.startLucene()
}

func (r *run) backing() (*rig.Backing, error) {
	if r.Kafka == "" {
		return rig.StartBacking(r.family)
	}
	return rig.GivenBacking(r.Kafka, r.Etcd, fmt.Sprintf("bench-%d-", time.Now().UnixNano())), nil
}

// bodies are the records as Avro.
func (r *run) bodies(encode func(line []byte) ([]byte, error)) iter.Seq2[rig.Body, error] {
	return func(yield func(rig.Body, error) bool) {
		for e := range r.w.entities {
			for _, x := range r.w.records(e) {
				line, err := r.w.line(&x)
				if err == nil {
					line, err = encode(line)
				}
				if !yield(rig.Body{Entity: millrace.Entity(x.author), Avro: line}, err) {
					return
				}
			}
		}
	}
}

// startMillrace fills the log and starts a node and a broker. It tells what
// they use when nobody asks.
func (r *run) startMillrace(b *rig.Backing, known relevance.Schemas) (*system, idle, error) {
	schema, _, err := r.w.schema()
	if err != nil {
		return nil, idle{}, err
	}
	began := time.Now()
	records, err := b.Fill(r.family.Ctx, schema, r.bodies(schema.EncodeJSON))
	if err != nil {
		return nil, idle{}, err
	}
	r.say("%d records are in the log after %.1f s", records, time.Since(began).Seconds())
	setup := rig.Setup{Name: "team", Nodes: 1, Replicas: 1, Feeds: map[string][]byte{feedName: r.w.feed()}}
	for i := range models {
		p, err := r.w.pack(&models[i], known)
		if err != nil {
			return nil, idle{}, fmt.Errorf("model %s: %w", models[i].name, err)
		}
		setup.Packs = append(setup.Packs, p)
	}
	cluster, err := r.family.StartCluster(b, setup)
	if err != nil {
		return nil, idle{}, err
	}
	r.say("the node has read the log in %.1f s", cluster.Read.Seconds())
	s := &system{
		name: "Millrace", label: "millrace", roles: []role{{"node", cluster.Nodes[0].Used}, {"broker", cluster.Broker.Used}}, log: b.Used,
		dial:    func(context.Context) (asker, error) { return &grpcAsker{cluster.Feed}, nil },
		judge:   func(i int, a *answer) string { return r.truth.judgeFeed(i, a.feed) },
		profile: map[string]*rig.Process{"node": cluster.Nodes[0], "broker": cluster.Broker},
	}
	client, err := s.dial(r.family.Ctx)
	if err != nil {
		return nil, idle{}, err
	}
	err = cluster.Settle(r.family.Ctx, func(ctx context.Context) error { return client.ask(ctx, &r.w.asked[0], &answer{}) })
	if err != nil {
		return nil, idle{}, err
	}
	i, err := r.rest(s)
	return s, i, err
}

// idle is what Millrace takes of a processor when nobody asks, of 1; of the log
// and etcd it is NaN where that is not known.
type idle struct{ node, broker, log float64 }
