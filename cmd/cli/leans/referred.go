package leans

import (
	"context"
	"slices"

	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/relevance/experiment"
)

// referred is what documents of experiments may refer to, as the cluster has it now: feeds,
// models, filters and weights. It is an [experiment.Known].
type referred struct {
	ctx      context.Context
	feeds    *Feeds
	models   []string
	versions *artefacts.Kind        // of models
	asked    map[string]error       // by filter, what index nodes said of it; nil: it is good
	read     map[string]*Definition // by name, the feeds that IsPrivate read
}

// newReferred returns what documents may refer to. It keeps ctx, for the calls that it makes
// later.
func newReferred(ctx context.Context, feeds *Feeds) (*referred, error) {
	models, err := feeds.Models(ctx)
	if err != nil {
		return nil, err
	}
	versions, err := artefacts.Watch(ctx, feeds.Cluster, indexnode.ModelsKind)
	return &referred{ctx: ctx, feeds: feeds, models: models, versions: versions, asked: map[string]error{}, read: map[string]*Definition{}}, err
}

func (r *referred) HasFeed(name string) bool {
	_, defined := r.feeds.Versions.Serving()[name]
	return defined || slices.ContainsFunc(feeds.BuiltIn(), func(f feeds.Feed) bool { return f.Name == name })
}

// IsPrivate reads the feed's definition.
func (r *referred) IsPrivate(name string) (bool, error) {
	d := r.read[name]
	if v, defined := r.feeds.Versions.Serving()[name]; defined && d == nil {
		of, err := r.feeds.Read(r.ctx, v)
		if err != nil {
			return false, err
		}
		d, r.read[name] = &of, &of
	}
	if d == nil { // it is built in, or not there
		return false, nil
	}
	return d.Private, d.Fault
}

func (r *referred) HasModel(name string) bool { return slices.Contains(r.models, name) }

// CheckFilter asks the index nodes, once for each filter.
func (r *referred) CheckFilter(src string) error {
	err, asked := r.asked[src]
	if asked {
		return err
	}
	checks, done, err := r.feeds.Checks(r.ctx)
	defer done()
	if err == nil {
		_, err = feeds.Check(r.ctx, feeds.Feed{Model: "recency", Filter: src}, checks)
	}
	r.asked[src] = err
	return err
}

// CheckWeights checks weights against the version of the model that serves. An empty model
// stands for the feed's own.
func (r *referred) CheckWeights(feed, model string, set map[string]float64) error {
	if model == "" {
		var err error
		if model, err = r.modelOf(feed); err != nil {
			return err
		}
		if !r.HasModel(model) {
			return experiment.OwnModelGone(feed, model)
		}
	}
	return servedWeighs(r.ctx, r.versions, model, set)
}

// modelOf returns the model that the definition of a feed names.
func (r *referred) modelOf(feed string) (string, error) {
	d, err := r.feeds.Find(r.ctx, []string{feed})
	if err == nil {
		err = d.Fault
	}
	return d.Model, err
}
