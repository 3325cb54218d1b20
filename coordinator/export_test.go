package coordinator

import (
	"context"
	"log/slog"

	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/relevance/experiment/compare"
)

// At returns the configuration with a function that is called at each named
// step.
func (c Config) At(at func(step string)) Config { c.at = at; return c }

// Decide does what a coordinator does by a verdict on an experiment as it was.
func Decide(ctx context.Context, name string, store *experiments.Store, trails *experiments.Trails, judged experiment.Experiment, v compare.Verdict) error {
	g := &guard{store: store, trails: trails, name: name, log: slog.New(slog.DiscardHandler)}
	return g.do(ctx, judged, v, nil)
}
