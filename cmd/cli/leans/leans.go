// Package leans is what the feeds, models and experiments of a cluster have of each
// other: how they are read, what experiments lean on (the feeds that they change, and the
// models that their variants rank by or weigh), and which change of one would take from
// another what it uses.
package leans

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/relevance/experiment"
)

// leans is what a cluster has of what experiments lean on, for coordinators.
type leans struct{ *Serving }

// Of returns what experiments lean on, for coordinators.
func Of(ctx context.Context, cl *cluster.Client) (coordinator.Leans, error) {
	r, err := OpenServing(ctx, cl)
	return leans{r}, err
}

// Waits implements [coordinator.Leans]. What cannot be read is waited for too.
func (l leans) Waits(ctx context.Context, e *experiment.Experiment) string {
	why, err := l.unapplied(ctx, e)
	if err == nil && why == "" {
		why, err = l.fails(ctx, e)
	}
	if err != nil {
		return fmt.Sprintf("whether its variants are applied is not known: %v", err)
	}
	return why
}

// Revision implements [coordinator.Leans]. Each kind is watched for itself: what is
// condemned may be heard of after the model's history that tells of it.
func (l leans) Revision() int64 {
	return l.Models.Revision() + l.Failed.Revision() + l.Feeds.Versions.Revision()
}
