package coordinator

import (
	"context"
	"log/slog"
	"time"

	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/relevance/experiment/compare"
)

// At returns the configuration with a function that is called at each named
// step.
func (c Config) At(at func(step string)) Config { c.at = at; return c }

// Settling returns the configuration with another time for which the log is to be
// whole again before a step.
func (c Config) Settling(d time.Duration) Config { c.settles = d; return c }

// Yielding returns the configuration with another time after which a coordinator
// whose guards are blind lets another lead.
func (c Config) Yielding(after time.Duration) Config { c.yields = after; return c }

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
