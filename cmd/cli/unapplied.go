package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/relevance/experiment"
)

// unapplied says of the first variant whose weights do not rank now why they do
// not: they are of a version that is condemned, and what ranks in its place lacks
// them. "" if all rank.
func (r *rollout) unapplied(ctx context.Context, e *experiment.Experiment) (string, error) {
	for _, v := range e.Variants {
		if len(v.Set.Weights) == 0 {
			continue
		}
		models := []string{v.Set.Model}
		if v.Set.Model == "" {
			feeds, err := r.feeds.definitions(ctx)
			if err != nil {
				return "", err
			}
			models = nil
			for _, name := range e.Feeds {
				models = append(models, feeds[name].Model)
			}
		}
		for _, model := range models {
			serves, _ := r.models.Served(model)
			if r.failed.Why(serves) == "" {
				continue
			}
			ranks := "recency"
			if in, ok := r.inPlaceOf(serves); ok && weighs(ctx, r.models, in, v.Set.Weights) == nil {
				continue
			} else if ok {
				ranks = in.String()
			}
			return fmt.Sprintf("variant %s is not applied: %s, whose weights it sets, is condemned, and %s, which ranks in its place, lacks them", v.Name, serves, ranks), nil
		}
	}
	return "", nil
}

// waits returns what the next step of an experiment waits for besides its guards,
// for coordinators. What cannot be read is waited for too.
func waits(ctx context.Context, cl *cluster.Client) (func(context.Context, *experiment.Experiment) string, error) {
	r, err := openRollout(ctx, cl, io.Discard)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, e *experiment.Experiment) string {
		why, err := r.unapplied(ctx, e)
		if err != nil {
			return fmt.Sprintf("whether its weights rank is not known: %v", err)
		}
		return why
	}, nil
}

// unapplied is that of an experiment that runs or is tried.
func (t *trial) unapplied(ctx context.Context, e *experiment.Experiment) (string, error) {
	if e.State == experiment.Stopped {
		return "", nil
	}
	r, err := openRollout(ctx, t.cluster, io.Discard)
	if err != nil {
		return "", err
	}
	return r.unapplied(ctx, e)
}
