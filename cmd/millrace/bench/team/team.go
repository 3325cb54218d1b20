// Package team measures Millrace on a workload that it was not tuned for: that of a team
// with a schema, a filter and two models of its own. It measures the baselines beside it,
// which that team might run instead: an index written by hand, Redis, and Lucene. Each is one
// process or several on this machine, and they are measured by turns in one run. Every answer
// is compared with that of an oracle, which computes it in memory in the simplest way.
//
// The records and the questions are synthetic; the type world makes them from a seed. A question
// is a request for a feed. The programs that do not speak gRPC are asked by frames over TCP (see
// frame.go). See DESIGN.md of package bench for why and how this is measured.
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
	Flat        bool          // records have 24 fields instead of a list of 24 floats
	Entities    int           // the number of entities, with twenty records each on average; 0: 100,000
	Viewers     int           // how many viewers ask, in turn; 0: 1,000
	Duration    time.Duration // of one measurement; 0: 5 s
	Seed        uint64        // of the world, the synthetic records and questions
	Against     []string      // the baselines that are measured, of [Baselines]
	Kafka, Etcd string        // host:port of the Kafka and the etcd to use; both empty: started for the run
	Profile     string        // directory for CPU profiles of Millrace's roles; empty: none
	Progress    io.Writer     // gets lines on what is being done; nil: they are not written
	Out         io.Writer     // gets the table and the figures
}

// Baselines are what Millrace can be compared with: the index written by hand behind grpc-go
// and behind plain TCP, Redis, and Lucene.
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

// run is one run of the benchmark.
type run struct {
	Config
	family  *rig.Family // all processes of the run
	w       *world
	truth   *truth
	skipped []string // lines on the baselines that were left out, and why
}

// label returns the name of the shape, as figures have it.
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

// Run measures, and prints a table and then the figures to c.Out. The error says what is
// wrong with c, what failed, or which answer was wrong.
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
		return errors.Join(err, context.Cause(r.family.Ctx)) // if a process has ended, the cause says which, and why
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
	runtime.GC() // frees the records that the oracle had
	r.say("the oracle has answered %d questions in %.1f s", len(r.w.asked), time.Since(began).Seconds())
	ours, besides, err := r.startMillrace(backing, known)
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
	return r.report(backing, besides, results)
}

// startBaseline starts the baseline of this name. It returns nil without an error if the
// baseline is not installed here.
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

// backing returns the log and etcd: those of the configuration, or ones that it starts.
func (r *run) backing() (*rig.Backing, error) {
	if r.Kafka == "" {
		return rig.StartBacking(r.family)
	}
	return rig.GivenBacking(r.Kafka, r.Etcd, fmt.Sprintf("bench-%d-", time.Now().UnixNano())), nil
}

// bodies yields all records in Avro. encode makes Avro of a record as JSON.
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

// startMillrace fills the log and starts a node and a broker. It returns them as a system,
// and what they use besides looking for records.
func (r *run) startMillrace(b *rig.Backing, known relevance.Schemas) (*system, overhead, error) {
	schema, _, err := r.w.schema()
	if err != nil {
		return nil, overhead{}, err
	}
	began := time.Now()
	records, err := b.Fill(r.family.Ctx, schema, r.bodies(schema.EncodeJSON))
	if err != nil {
		return nil, overhead{}, err
	}
	r.say("%d records are in the log after %.1f s", records, time.Since(began).Seconds())
	setup := rig.Setup{Name: "team", Nodes: 1, Replicas: 1, Feeds: map[string][]byte{feedName: r.w.feed()}}
	for i := range models {
		p, err := r.w.pack(&models[i], known)
		if err != nil {
			return nil, overhead{}, fmt.Errorf("model %s: %w", models[i].name, err)
		}
		setup.Packs = append(setup.Packs, p)
	}
	cluster, err := r.family.StartCluster(b, setup)
	if err != nil {
		return nil, overhead{}, err
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
		return nil, overhead{}, err
	}
	err = cluster.Settle(r.family.Ctx, func(ctx context.Context) error { return client.ask(ctx, &r.w.asked[0], &answer{}) })
	if err != nil {
		return nil, overhead{}, err
	}
	o, err := r.overhead(s, client)
	return s, o, err
}
