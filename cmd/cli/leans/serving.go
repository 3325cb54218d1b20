package leans

import (
	"context"
	"fmt"
	"slices"

	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/experiment"
)

// Serving is what ranks in a cluster: models, the versions of them that are condemned, and
// feeds.
type Serving struct {
	Models *artefacts.Kind
	Failed *artefacts.Condemned
	Feeds  *Feeds
}

// OpenServing returns what serves, and follows it in etcd until ctx ends.
func OpenServing(ctx context.Context, cl *cluster.Client) (r *Serving, err error) {
	r = &Serving{}
	if r.Models, err = artefacts.Watch(ctx, cl, indexnode.ModelsKind); err != nil {
		return nil, err
	}
	if r.Failed, err = artefacts.WatchCondemned(ctx, cl); err != nil {
		return nil, err
	}
	versions, err := artefacts.Watch(ctx, cl, feeds.Kind)
	if err != nil {
		return nil, err
	}
	r.Feeds = &Feeds{Cluster: cl, Versions: versions}
	return r, nil
}

// InPlaceOf returns the version that ranks in place of a condemned one: the last one that
// served before it and is not condemned. It returns false if there is none, so that
// recency ranks.
func (s *Serving) InPlaceOf(v artefacts.Version) (artefacts.Version, bool) {
	for _, before := range s.Models.Before(v.Name) {
		if s.Failed.Why(before) == "" {
			return before, true
		}
	}
	return artefacts.Version{}, false
}

// unapplied says why a variant is not applied to answers now, for the first variant that is
// not; "" if all are. The cause is always a condemned version:
//
//   - The variant interleaves (drafts each page from the rankings of two models in turn), the
//     version is of the second model, and nothing drafts in its place.
//   - The experiment compares models, and another version ranks in place of the condemned one.
//   - The variant sets weights of the condemned version, and what ranks in its place lacks
//     them.
//
// Answers then count for no variant.
func (s *Serving) unapplied(ctx context.Context, e *experiment.Experiment) (string, error) {
	compares := e.ComparesModels()
	for i := range e.Variants {
		v := &e.Variants[i]
		if !compares && len(v.Set.Weights) == 0 {
			continue
		}
		models, err := s.rankings(ctx, e, v)
		if err != nil {
			return "", err
		}
		for at, model := range models {
			serves, _ := s.Models.Served(model)
			if s.Failed.Why(serves) == "" {
				continue
			}
			ranks, in, ok := "recency", artefacts.Version{}, false
			if in, ok = s.InPlaceOf(serves); ok {
				ranks = in.String()
			}
			says := fmt.Sprintf("variant %s is not applied: %s, ", v.Name, serves)
			switch {
			case at > 0 && v.Set.Interleave != nil:
				return says + "which drafts its pages as the second, is condemned, and nothing drafts in its place", nil
			case compares:
				return says + fmt.Sprintf("which it is ranked by, is condemned, and %s ranks in its place", ranks), nil
			case !ok || weighs(ctx, s.Models, in, v.Set.Weights) != nil:
				return says + fmt.Sprintf("whose weights it sets, is condemned, and %s, which ranks in its place, lacks them", ranks), nil
			}
		}
	}
	return "", nil
}

// rankings returns the models that a variant is ranked by: those that it names, or else
// those of the experiment's feeds.
func (s *Serving) rankings(ctx context.Context, e *experiment.Experiment, v *experiment.Variant) (models []string, err error) {
	for _, name := range v.Set.Rankings() {
		if name != "" {
			models = append(models, name)
			continue
		}
		feeds, err := s.Feeds.Definitions(ctx)
		if err != nil {
			return nil, err
		}
		for _, feed := range e.Feeds {
			if own := feeds[feed].Model; own != "" && !slices.Contains(models, own) {
				models = append(models, own)
			}
		}
	}
	return models, nil
}

// fails says that the serving version of a model which ranks pages of an experiment is
// condemned; "" if none is. That can be so although all variants are applied.
func (s *Serving) fails(ctx context.Context, e *experiment.Experiment) (string, error) {
	models, err := s.ranking(ctx, e)
	for _, name := range models {
		if serves, _ := s.Models.Served(name); s.Failed.Why(serves) != "" {
			return fmt.Sprintf("%s, by which its pages are ranked, is condemned", serves), err
		}
	}
	return "", err
}

// viewerValues returns the values of the viewer that the serving version of a model reads:
// types by name. It returns nil for a model that is not there.
func (s *Serving) viewerValues(ctx context.Context, model string) (map[string]string, error) {
	v, pushed := s.Models.Served(model)
	if !pushed || relevance.CheckName(model) != nil {
		m, err := relevance.Builtin().Get(model)
		if err != nil {
			return nil, nil
		}
		return m.ViewerValues(), nil
	}
	pack, err := packOf(ctx, s.Models, v)
	if err != nil {
		return nil, err
	}
	return pack.ViewerValues()
}

// Changes says which variants of running experiments would be ranked by another version if
// next served in place of serving; "" if none would. Only experiments that compare models or
// weights count. It is "" too if nothing serves yet, or if serving is condemned.
func (s *Serving) Changes(ctx context.Context, serving, next artefacts.Version) (string, error) {
	if serving.Version == "" || serving == next || s.Failed.Why(serving) != "" {
		return "", nil
	}
	set, err := ExperimentSet(ctx, s.Feeds.Cluster)
	if err != nil {
		return "", err
	}
	says := ""
	for _, d := range set.Experiments() {
		e := &d.Experiment
		if e.State != experiment.Running || !e.LeansOnVersions() {
			continue
		}
		for i := range e.Variants {
			models, err := s.rankings(ctx, e, &e.Variants[i])
			if err != nil {
				return "", err
			}
			if slices.Contains(models, next.Name) {
				says = display.Joined(says, fmt.Sprintf("it changes what variant %s of experiment %s, which runs, is ranked by", e.Variants[i].Name, e.Name))
			}
		}
	}
	return says, nil
}
