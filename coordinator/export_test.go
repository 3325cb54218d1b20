package coordinator

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/outcome"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/relevance/experiment/compare"
)

// At returns the configuration with a function that is called at each named
// step.
func (c Config) At(at func(step string)) Config { c.at = at; return c }

// Step looks once, and reports whether it has begun moves that others wait for.
func (c *Coordinator) Step(ctx context.Context, lead *cluster.Lead) (paid bool, err error) {
	c.since = map[string]time.Time{}
	err = c.step(ctx, lead)
	return !c.pace.planned.moves.next.IsZero(), err
}

// Settling returns the configuration with another time for which the log is to be
// whole again before a step.
func (c Config) Settling(d time.Duration) Config { c.settles = d; return c }

// Yielding returns the configuration with another time after which a coordinator
// whose guards are blind lets another lead.
func (c Config) Yielding(after time.Duration) Config { c.yields = after; return c }

// Differ has a coordinator know what a comparison found by partition, and of which
// partitions it has not seen all.
func (c *Coordinator) Differ(found map[millrace.Partition]string, unseen ...millrace.Partition) {
	all, missing := differing{}, topology.Set{}
	for p, what := range found {
		all[differs{partition: p}] = what
	}
	for _, p := range unseen {
		missing.Add(p)
	}
	c.tellDiffer(all, missing)
}

// Compare compares all replicas once, and returns what is not settled.
func (c *Coordinator) Compare(ctx context.Context) ([]string, error) {
	unsettled, _, err := c.compareOnce(ctx)
	return slices.Collect(maps.Values(unsettled)), err
}

// UnitsIn is how many units there is room for.
func UnitsIn(bytes int64) int { return unitsIn(bytes) }

// Keeping returns the configuration with another bound of units.
func (c Config) Keeping(units int) Config { c.maxUnits = units; return c }

// NoteLook notes, as the coordinator of a lead does, what an experiment waits for.
func NoteLook(ctx context.Context, lead *cluster.Lead, name string, trails *experiments.Trails, of experiment.Experiment) error {
	g := &guard{lead: lead, trails: trails, name: name, log: slog.New(slog.DiscardHandler)}
	return g.do(ctx, decision{of: &watched{Defined: experiment.Defined{Experiment: of}}, Verdict: compare.Verdict{Waits: "by " + name}})
}

// Decide does what a coordinator does by a verdict on an experiment as it was.
func Decide(ctx context.Context, name string, store *experiments.Store, trails *experiments.Trails, judged experiment.Experiment, v compare.Verdict) error {
	g := &guard{store: store, trails: trails, name: name, log: slog.New(slog.DiscardHandler)}
	return g.do(ctx, decision{of: &watched{Defined: experiment.Defined{Experiment: judged}}, Verdict: v})
}

// Fails notes, as the coordinator of a lead does, that what it decided cannot be done.
func Fails(ctx context.Context, lead *cluster.Lead, name string, trails *experiments.Trails, of experiment.Experiment, v compare.Verdict, why error) error {
	g := &guard{lead: lead, trails: trails, name: name, log: slog.New(slog.DiscardHandler), sight: sight{whole: time.Now()}}
	return g.fails(ctx, decision{of: &watched{Defined: experiment.Defined{Experiment: of}}, Verdict: v}, why)
}

// Came is how many outcomes of a time belong to the answer that they name, or cannot.
type Came struct {
	At           millrace.Time
	Right, Wrong int
}

// CourseOf is how they came along.
func CourseOf(all ...Came) *outcome.Course {
	notes := [2]outcome.Notes{{Until: math.MaxInt64}}
	for _, c := range all {
		l := outcome.NewLedger(time.Hour)
		l.Note(&notes)
		for i := range c.Right + c.Wrong {
			o := outcome.Outcome{ID: fmt.Sprint(i), Viewer: "ann", Record: "x", Action: "click", Answer: "a", At: c.At}
			if i >= c.Right {
				o.Record = "y"
			}
			if err := l.Add(o); err != nil {
				panic(err)
			}
		}
		shown := exposure.Record{ID: "a", Time: c.At, Viewer: "ann", Items: []exposure.Item{{Place: 1, ID: "x", Team: -1}}}
		if _, err := l.Acts("", func(take func(*exposure.Record)) error { take(&shown); return nil }, func(*outcome.Act) {}); err != nil {
			panic(err)
		}
	}
	return &notes[0].Course
}
