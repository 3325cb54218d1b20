package leans

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/expr"
	"github.com/millrace/millrace/internal/filter"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/relevance/modelpack"
	"github.com/millrace/millrace/schemas/registry"
)

// Change is what documents of experiments would refer to after a change of one
// feed, of one model, or of the schemas. It is an [experiment.Known].
type Change struct {
	*referred // as it is now

	Feed   string             // the name of the feed that changes; "": none does
	To     *feeds.Feed        // the feed after the change; nil: it would be gone
	Model  artefacts.Version  // the version that would serve of its model; zero: no model changes
	filter func(string) error // checks a filter by the schemas; nil: they do not change
}

// HasFeed implements [experiment.Known].
func (c *Change) HasFeed(name string) bool {
	if name == c.Feed {
		return c.To != nil
	}
	return c.referred.HasFeed(name)
}

// IsPrivate implements [experiment.Known].
func (c *Change) IsPrivate(name string) (bool, error) {
	if name == c.Feed {
		return c.To != nil && c.To.Private, nil
	}
	return c.referred.IsPrivate(name)
}

// HasModel implements [experiment.Known].
func (c *Change) HasModel(name string) bool { return name == c.Model.Name || c.referred.HasModel(name) }

// CheckFilter implements [experiment.Known]. Where schemas do not change it accepts every
// filter, since the change cannot make one fail.
func (c *Change) CheckFilter(src string) error {
	if c.filter == nil {
		return nil
	}
	return c.filter(src)
}

// CheckWeights implements [experiment.Known].
func (c *Change) CheckWeights(feed, model string, set map[string]float64) error {
	own := model == ""
	switch {
	case !own:
	case feed == c.Feed:
		model = c.To.Model // c.To is not nil: weights are checked only on feeds of HasFeed
	default:
		var err error
		if model, err = c.modelOf(feed); err != nil {
			return err
		}
	}
	if own && !c.HasModel(model) {
		return experiment.OwnModelGone(feed, model)
	}
	if model == c.Model.Name {
		return weighs(c.ctx, c.versions, c.Model, set)
	}
	return servedWeighs(c.ctx, c.versions, model, set)
}

// leaning is the kinds of artefacts that experiments lean on, and the kind of experiments
// themselves.
var leaning = []string{feeds.Kind, indexnode.ModelsKind, experiments.Kind}

// Keeping calls keeps, and then change, which changes a feed or a model. Keeps refuses a
// change that would give an experiment a fault. If an experiment, a feed or a model changes
// meanwhile, both are called again.
func (s *Feeds) Keeping(ctx context.Context, keeps, change func(context.Context) error) error {
	return artefacts.Steady(ctx, s.Cluster, leaning, func(ctx context.Context) error {
		if err := s.Versions.Settle(ctx); err != nil {
			return err
		}
		if err := keeps(ctx); err != nil {
			return err
		}
		return change(ctx)
	})
}

// Keeps refuses a change that would give an experiment a fault, by which its viewers would
// be refused or would get no variant.
func (s *Feeds) Keeps(ctx context.Context, c Change) error {
	set, err := ExperimentSet(ctx, s.Cluster)
	if err != nil {
		return err
	}
	if c.referred, err = newReferred(ctx, s); err != nil {
		return err
	}
	return set.Keeps(c.referred, &c)
}

// KeepsFilters is [Feeds.Keeps] for a change of the schemas from known to after. Filters of
// variants are compiled against both.
func (s *Feeds) KeepsFilters(ctx context.Context, known, after *registry.Snapshot) error {
	set, err := ExperimentSet(ctx, s.Cluster)
	if err != nil {
		return err
	}
	now, err := newReferred(ctx, s)
	if err != nil {
		return err
	}
	by := func(known *registry.Snapshot) *Change {
		return &Change{referred: now, filter: func(src string) error { return FilterFits(src, known) }}
	}
	return set.Keeps(by(known), by(after))
}

// KeepsWithout is [Feeds.Keeps] for a feed whose definition is removed. The built-in feed
// of its name, if there is one, then serves again.
func (s *Feeds) KeepsWithout(ctx context.Context, feed string) error {
	built := feeds.BuiltIn()
	c := Change{Feed: feed}
	if i := slices.IndexFunc(built, func(f feeds.Feed) bool { return f.Name == feed }); i >= 0 {
		c.To = &built[i]
	}
	return s.Keeps(ctx, c)
}

// ExperimentSet returns the experiments of a cluster, without those of documents that
// cannot be read or that contradict others.
func ExperimentSet(ctx context.Context, cl *cluster.Client) (*experiment.Set, error) {
	documents, err := artefacts.Watch(ctx, cl, experiments.Kind)
	if err != nil {
		return nil, err
	}
	st, err := (&experiments.Store{Documents: documents}).Read(ctx)
	if err != nil {
		return nil, err
	}
	return st.Set, nil
}

// servedWeighs returns an error that says which weights are not parameters of the version
// of a model that serves. It returns nil for a model that is not there: HasModel reports
// that.
func servedWeighs(ctx context.Context, models *artefacts.Kind, model string, set map[string]float64) error {
	if v, pushed := models.Served(model); pushed && relevance.CheckName(model) == nil {
		return weighs(ctx, models, v, set)
	}
	m, err := relevance.Builtin().Get(model)
	if err != nil {
		return nil
	}
	_, err = m.Weighted(set)
	return err
}

// weighs returns an error that says which weights are not parameters of a version of a
// model. It reads the version's pack, and asks no index node.
func weighs(ctx context.Context, models *artefacts.Kind, v artefacts.Version, set map[string]float64) error {
	pack, err := packOf(ctx, models, v)
	if err != nil {
		return err
	}
	return pack.CheckWeights(set)
}

// packOf reads a version of a model: its pack, a model as one sealed file.
func packOf(ctx context.Context, models *artefacts.Kind, v artefacts.Version) (*modelpack.Pack, error) {
	body, err := models.Body(ctx, v)
	if err != nil {
		return nil, err
	}
	return modelpack.Read(bytes.NewReader(body))
}

// FilterFits returns why index nodes that know these schemas would refuse a filter, or nil.
func FilterFits(src string, known *registry.Snapshot) error {
	_, err := filter.Compile(src, filter.EnvOf(known))
	if err == nil {
		return nil
	}
	detail := err.Error()
	if bad := (*expr.Error)(nil); errors.As(err, &bad) { // shorter: without the list of all fields
		p := bad.Problems[0]
		detail = fmt.Sprintf("%d:%d: %s", p.Line, p.Col, p.Message)
	}
	return &millrace.Error{Reason: millrace.ReasonFilter, Field: "filter", Detail: detail}
}
