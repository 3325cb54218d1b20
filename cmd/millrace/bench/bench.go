// Package bench measures a cluster end to end: synthetic timelines in a log,
// index nodes and a broker in processes of their own, and feeds asked for by
// gRPC over loopback. It checks every answer it times. See DESIGN.md.
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
	"strings"
	"time"

	"github.com/millrace/millrace/cmd/millrace/bench/random"
	"github.com/millrace/millrace/cmd/millrace/bench/rig"
	"github.com/millrace/millrace/cmd/millrace/bench/team"
)

// Config says what to measure.
type Config struct {
	Shape    string        // a name of [Names]
	Nodes    []int         // index nodes of each cluster that is measured
	Entities int           // in the world, the synthetic timelines; 0: as the shape says
	Viewers  int           // who ask, in turn; 0: as the shape says
	Duration time.Duration // of one step of the measurement; 0: 5 s
	Seed     uint64        // of the world, and of the instants at which questions arrive
	Data     string        // directory to keep the log and the stores in; empty: a temporary one
	Profile  string        // directory for CPU profiles of the saturated roles; empty: none
	Progress io.Writer     // gets a line for each step; nil: none
	Out      io.Writer     // gets the table

	// For the shapes team and team-flat alone.
	Against     []string // what Millrace is compared with, of [team.Baselines]
	Kafka, Etcd string   // host:port of those to use; empty: started for the run

	// For the shape random alone.
	Seeds int  // how many workloads: those of Seed, Seed+1 and so on
	Fault bool // give the baseline a wrong number, to see that the comparison finds it
}

// replicas is how many nodes have each partition, if there are so many nodes.
const replicas = 2

func (c *Config) defaults() {
	c.Entities = cmp.Or(c.Entities, shapes[c.Shape].entities)
	c.Viewers = cmp.Or(c.Viewers, shapes[c.Shape].viewers)
	c.Duration = cmp.Or(c.Duration, 5*time.Second)
}

// Validate returns all faults, joined, or nil.
func (c *Config) Validate() error {
	var errs []error
	_, ok := shapes[c.Shape]
	if !ok {
		errs = append(errs, fmt.Errorf("shape: %q is none of %s", c.Shape, strings.Join(Names(), ", ")))
	}
	if least := 1000; ok && c.Entities != 0 && c.Entities < least {
		errs = append(errs, fmt.Errorf("entities: %d; want at least %d", c.Entities, least))
	}
	if c.Viewers < 0 {
		errs = append(errs, fmt.Errorf("viewers: %d; want at least 1", c.Viewers))
	}
	if c.Duration < 0 {
		errs = append(errs, fmt.Errorf("duration: %s is negative", c.Duration))
	}
	if len(c.Nodes) == 0 {
		errs = append(errs, errors.New("nodes: none; name how many nodes a cluster has, such as 1,3"))
	}
	for _, n := range c.Nodes {
		if n < 1 || n > 9 {
			errs = append(errs, fmt.Errorf("nodes: %d is not within 1 to 9", n))
		}
	}
	return errors.Join(errs...)
}

// Run measures what c says, and prints a table to c.Out and then the figures (see package
// figure). The error says what failed, or that an answer was wrong.
func Run(ctx context.Context, c Config) error {
	switch c.Shape {
	case "team", "team-flat":
		return team.Run(ctx, team.Config{
			Flat: c.Shape == "team-flat", Entities: c.Entities, Viewers: c.Viewers, Duration: c.Duration, Seed: c.Seed,
			Against: c.Against, Kafka: c.Kafka, Etcd: c.Etcd, Profile: c.Profile, Progress: c.Progress, Out: c.Out,
		})
	case "random":
		return random.Run(ctx, random.Config{
			Seed: c.Seed, Seeds: c.Seeds, Entities: c.Entities, Viewers: c.Viewers, Duration: c.Duration,
			Profile: c.Profile, Fault: c.Fault, Progress: c.Progress, Out: c.Out,
		})
	}
	return c.run(ctx)
}

// run measures one of the shapes of this package, with each number of nodes in turn.
func (c Config) run(ctx context.Context) (err error) {
	if err := c.Validate(); err != nil {
		return err
	}
	c.defaults()
	w, err := newWorld(c)
	if err != nil {
		return err
	}
	dir := c.Data
	if dir == "" {
		if dir, err = os.MkdirTemp("", "millrace-bench-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	} else {
		dir = filepath.Join(dir, w.name())
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	c.say("%s: %d entities, seed %d, in %s", c.Shape, c.Entities, c.Seed, dir)

	family := rig.NewFamily(ctx, dir)
	defer func() { err = errors.Join(err, family.Close()) }()
	ctx = family.Ctx
	b, err := rig.StartBacking(family)
	if err != nil {
		return err
	}
	if err := fill(ctx, &c, w, b, filepath.Join(dir, "filled")); err != nil {
		return err
	}
	truth, err := w.truth(verified)
	if err != nil {
		return err
	}
	var all []result
	for _, nodes := range c.Nodes {
		r, err := measure(&c, family, w, b, truth, nodes)
		if err != nil {
			return fmt.Errorf("%d nodes: %w", nodes, cmp.Or(context.Cause(ctx), err)) // an ended process explains the rest
		}
		all = append(all, r)
	}
	return report(&c, w, all)
}

func (c *Config) say(format string, args ...any) {
	if c.Progress != nil {
		fmt.Fprintf(c.Progress, format+"\n", args...)
	}
}

// Names returns the names of all shapes, sorted.
func Names() []string {
	names := []string{"team", "team-flat", "random"}
	for name := range shapes {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
