package main

import (
	"bytes"
	"context"
	"slices"

	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/experiment"
)

// keepsWeights refuses another model of a feed that lacks a weight which variants
// set on the feed: index nodes would refuse their viewers.
func (s *feedStore) keepsWeights(ctx context.Context, feed, model string) error {
	models, err := s.cluster.Artefacts(ctx, indexnode.ModelsKind)
	if err != nil {
		return err
	}
	return s.weighed(ctx, func(of, own string, set map[string]float64) error {
		if of != feed || own != "" {
			return nil
		}
		return servedWeighs(ctx, models, model, set)
	})
}

// keepsWeightsBack is keepsWeights of a feed that goes back to what was before.
// What cannot be read is no definition that brokers take over.
func (s *feedStore) keepsWeightsBack(ctx context.Context, feed string) error {
	before := s.versions.Before(feed)
	if len(before) == 0 {
		return nil
	}
	d := s.read(ctx, before[0])
	if d.fault != nil {
		return nil
	}
	return s.keepsWeights(ctx, feed, d.Model)
}

// keepsWeightsWithout is keepsWeights of a feed whose definition goes: the
// built-in one of its name serves again.
func (s *feedStore) keepsWeightsWithout(ctx context.Context, feed string) error {
	built := broker.BuiltIn()
	i := slices.IndexFunc(built, func(f broker.Feed) bool { return f.Name == feed })
	if i < 0 {
		return nil
	}
	return s.keepsWeights(ctx, feed, built[i].Model)
}

// keepsWeights refuses a version, which is to serve, that lacks a weight which
// variants set of its model.
func (r *rollout) keepsWeights(ctx context.Context, v cluster.Version) error {
	feeds, err := r.feeds.definitions(ctx)
	if err != nil {
		return err
	}
	return r.feeds.weighed(ctx, func(feed, own string, set map[string]float64) error {
		if own != v.Name && (own != "" || feeds[feed].Model != v.Name) {
			return nil
		}
		return weighs(ctx, r.models, v, set)
	})
}

// keepsWeightsBack is keepsWeights of a model that goes back to the version that
// served before.
func (r *rollout) keepsWeightsBack(ctx context.Context, name string) error {
	before := r.models.Before(name)
	if len(before) == 0 {
		return nil
	}
	return r.keepsWeights(ctx, before[0])
}

// weighed holds what experiments set against what they lean on.
func (s *feedStore) weighed(ctx context.Context, why experiment.Weighing) error {
	set, err := experimentSet(ctx, s.cluster)
	if err != nil {
		return err
	}
	return set.CheckWeights(why)
}

// experimentSet is the experiments of a cluster, but for documents with a fault.
func experimentSet(ctx context.Context, cl *cluster.Client) (*experiment.Set, error) {
	documents, err := cl.Artefacts(ctx, experiments.Kind)
	if err != nil {
		return nil, err
	}
	st, err := (&experiments.Store{Documents: documents}).Read(ctx)
	if err != nil {
		return nil, err
	}
	return st.Set, nil
}

// servedWeighs says which weights are no parameters of the version of a model
// that serves. Of a model that is not there, others tell.
func servedWeighs(ctx context.Context, models *cluster.Artefacts, model string, set map[string]float64) error {
	if v, pushed := models.Served(model); pushed {
		return weighs(ctx, models, v, set)
	}
	m, err := relevance.Builtin().Get(model)
	if err != nil {
		return nil
	}
	_, err = m.Weighted(set)
	return err
}

// weighs says which weights are no parameters of a version, by its pack: it asks
// no index node.
func weighs(ctx context.Context, models *cluster.Artefacts, v cluster.Version, set map[string]float64) error {
	body, err := models.Body(ctx, v)
	if err != nil {
		return err
	}
	pack, err := relevance.ReadPack(bytes.NewReader(body))
	if err != nil {
		return err
	}
	return pack.CheckWeights(set)
}
