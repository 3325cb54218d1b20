// Package random measures Millrace on workloads that nobody has tuned it for: each seed
// draws a schema, records, a feed, a model and questions, together a world. A baseline, a
// program in plain Go that is generated for that workload alone, answers the same questions.
// Every answer of Millrace is compared with the baseline's. See DESIGN.md of package bench.
package random

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/millrace/millrace/cmd/millrace/bench/rig"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// Config says what to measure.
type Config struct {
	Seed     uint64        // of the first workload
	Seeds    int           // how many workloads; each one's seed is one more; 0: 1
	Entities int           // in each world; 0: 5,000
	Viewers  int           // in each world; each asks one question; 0: 50
	Duration time.Duration // of a measurement of CPU time; 0: 5 s
	Profile  string        // directory for CPU profiles of the node and the broker; empty: none
	Fault    bool          // make the baseline's scores wrong, to see that this is found
	Progress io.Writer     // gets lines that say what is being done; nil: nobody is told
	Out      io.Writer     // gets the table and the figures
}

// recordsEach is how many records an entity of a world has at most, in the mean over
// entities, so that a world is small enough to be kept in memory.
const recordsEach = 40

// leastCandidates is how many candidates (records to filter and score) a question of a world
// meets at least, in the mean. With few candidates only the cost of the call is measured.
const leastCandidates = 1000

// Validate reports every fault at once, in one error; nil if there is none. A command go that is
// not installed is a fault, too.
func (c *Config) Validate() error {
	var errs []error
	if c.Seeds < 0 {
		errs = append(errs, fmt.Errorf("seeds: %d; want at least 1", c.Seeds))
	}
	if least := 100; c.Entities != 0 && c.Entities < least {
		errs = append(errs, fmt.Errorf("entities: %d; want at least %d", c.Entities, least))
	}
	if c.Viewers < 0 {
		errs = append(errs, fmt.Errorf("viewers: %d; want at least 1", c.Viewers))
	}
	if c.Duration < 0 {
		errs = append(errs, fmt.Errorf("duration: %s is negative", c.Duration))
	}
	if _, err := exec.LookPath("go"); err != nil {
		errs = append(errs, fmt.Errorf("go: the baseline of a random workload is built when it is drawn; install Go: %w", err))
	}
	return errors.Join(errs...)
}

func (c *Config) say(format string, args ...any) {
	if c.Progress != nil {
		fmt.Fprintf(c.Progress, format+"\n", args...)
	}
}

// Run measures one workload after the other, and prints a table and the figures. A wrong
// answer, or any other error, ends it, after the table of the workloads before.
func Run(ctx context.Context, c Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	c.Seeds, c.Entities, c.Viewers, c.Duration = cmp.Or(c.Seeds, 1), cmp.Or(c.Entities, 5000), cmp.Or(c.Viewers, 50), cmp.Or(c.Duration, 5*time.Second)
	var all []result
	for i := range c.Seeds {
		seed := c.Seed + uint64(i)
		res, err := c.measureSeed(ctx, seed)
		if err != nil {
			return errors.Join(fmt.Errorf("seed %d: %w", seed, err), c.report(all))
		}
		c.say("seed %d: %s", seed, res.line())
		all = append(all, res)
	}
	return c.report(all)
}

// measureSeed draws the workload of a seed, and measures it in processes of its own.
func (c *Config) measureSeed(ctx context.Context, seed uint64) (res result, err error) {
	dir, err := os.MkdirTemp("", "millrace-bench-")
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	f := rig.NewFamily(ctx, dir)
	defer func() { err = errors.Join(err, f.Close()) }()
	w := newWorld(seed, size{c.Entities, c.Viewers, recordsEach * c.Entities, leastCandidates})
	c.say("seed %d: %s", seed, strings.Join(w.summary, "; "))
	res, err = c.measure(f, w, seed)
	if err != nil {
		return res, errors.Join(err, context.Cause(f.Ctx)) // a process that ended may be the cause
	}
	return res, nil
}

// known returns the schema of the world's records, and the schemas that a model's spec may
// name, which are that one alone.
func (w *world) known() (*schemas.Schema, relevance.Schemas, error) {
	s, err := schemas.Parse(w.avsc())
	if err != nil {
		return nil, nil, err
	}
	r, err := registry.New(nil, nil)
	if err != nil {
		return nil, nil, err
	}
	if _, err := r.Admit(s); err != nil {
		return nil, nil, err
	}
	return s, relevance.SchemasOf(r.Snapshot()), nil
}
