// Package leans reads the feeds, models and experiments of a cluster, and knows how they
// depend on each other. Experiments lean on the feeds that they change, and on the models
// that their variants rank by or set weights of. The package finds which change of a feed
// or a model would take away what an experiment uses.
//
// Feeds, models and documents of experiments are artefacts. etcd has versions of each, and
// says which version serves. The bytes of a version may be lost; then the version is called
// bare here. A document is a text that defines experiments. A document or an experiment has a
// fault if brokers cannot use it.
//
// A version of a model is condemned if it failed while it served: nodes then rank by an
// earlier version, or by recency.
package leans

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/relevance/experiment"
)

// leans implements [coordinator.Leans] by the feeds and models of a cluster.
type leans struct{ *Serving }

// Of returns a [coordinator.Leans], which tells coordinators about the feeds and models that
// experiments lean on. It follows etcd until ctx ends.
func Of(ctx context.Context, cl *cluster.Client) (coordinator.Leans, error) {
	r, err := OpenServing(ctx, cl)
	return leans{r}, err
}

// Waits implements [coordinator.Leans]. An experiment also waits while what it leans on
// cannot be read.
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

// Revision implements [coordinator.Leans]. It adds up the revisions of the three watches (of
// models, condemned versions and feeds), so that the sum changes when any of them hears of a
// change.
func (l leans) Revision() int64 {
	return l.Models.Revision() + l.Failed.Revision() + l.Feeds.Versions.Revision()
}
