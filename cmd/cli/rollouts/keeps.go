package rollouts

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
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/expr"
	"github.com/millrace/millrace/internal/filter"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/relevance/modelpack"
	"github.com/millrace/millrace/schemas/registry"
)

// change is what documents of experiments would refer to after a change of one
// feed, of one model, or of the schemas.
type change struct {
	*referred // as it is now

	feed   string
	to     *feeds.Feed        // nil: it would be gone
	model  cluster.Version    // would serve
	filter func(string) error // nil: what is known of filters stays
}

func (c *change) HasFeed(name string) bool {
	if name == c.feed {
		return c.to != nil
	}
	return c.referred.HasFeed(name)
}

func (c *change) IsPrivate(name string) (bool, error) {
	if name == c.feed {
		return c.to != nil && c.to.Private, nil
	}
	return c.referred.IsPrivate(name)
}

func (c *change) HasModel(name string) bool { return name == c.model.Name || c.referred.HasModel(name) }

func (c *change) CheckFilter(src string) error {
	if c.filter == nil {
		return nil
	}
	return c.filter(src)
}

func (c *change) CheckWeights(feed, model string, set map[string]float64) error {
	switch {
	case model != "":
	case feed == c.feed:
		model = c.to.Model // which is there, or nobody asks
	default:
		var err error
		if model, err = c.modelOf(feed); err != nil {
			return err
		}
	}
	if model == c.model.Name {
		return weighs(c.ctx, c.versions, c.model, set)
	}
	return servedWeighs(c.ctx, c.versions, model, set)
}

// leaning are the kinds of artefacts that experiments lean on, and experiments.
var leaning = []string{feeds.Kind, indexnode.ModelsKind, experiments.Kind}

// keeping has a feed or a model change, or not where that would give an experiment a
// fault; and no experiment, feed or model changes meanwhile.
func (s *feedStore) keeping(ctx context.Context, keeps, change func(context.Context) error) error {
	return s.cluster.Steady(ctx, leaning, func(ctx context.Context) error {
		if err := s.versions.Settle(ctx); err != nil {
			return err
		}
		if err := keeps(ctx); err != nil {
			return err
		}
		return change(ctx)
	})
}

// keeps refuses a change that would give an experiment a fault: its viewers would
// be refused, or get no variant any more.
func (s *feedStore) keeps(ctx context.Context, c change) error {
	set, err := experimentSet(ctx, s.cluster)
	if err != nil {
		return err
	}
	if c.referred, err = newReferred(ctx, s); err != nil {
		return err
	}
	return set.Keeps(c.referred, &c)
}

// keepsFilters is keeps of a change of the schemas, by which filters are judged.
func (s *feedStore) keepsFilters(ctx context.Context, known, after *registry.Snapshot) error {
	set, err := experimentSet(ctx, s.cluster)
	if err != nil {
		return err
	}
	now, err := newReferred(ctx, s)
	if err != nil {
		return err
	}
	by := func(known *registry.Snapshot) *change {
		return &change{referred: now, filter: func(src string) error { return filterFits(src, known) }}
	}
	return set.Keeps(by(known), by(after))
}

// keepsWithout is keeps of a feed whose definition goes: the built-in one of its
// name, if there is one, serves again.
func (s *feedStore) keepsWithout(ctx context.Context, feed string) error {
	built := feeds.BuiltIn()
	c := change{feed: feed}
	if i := slices.IndexFunc(built, func(f feeds.Feed) bool { return f.Name == feed }); i >= 0 {
		c.to = &built[i]
	}
	return s.keeps(ctx, c)
}

// experimentSet is the experiments of a cluster, but for documents that cannot be
// read or contradict others.
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

// weighs says which weights are no parameters of a version, by its pack: it asks
// no index node.
func weighs(ctx context.Context, models *cluster.Artefacts, v cluster.Version, set map[string]float64) error {
	pack, err := packOf(ctx, models, v)
	if err != nil {
		return err
	}
	return pack.CheckWeights(set)
}

// packOf reads the pack of a version.
func packOf(ctx context.Context, models *cluster.Artefacts, v cluster.Version) (*modelpack.Pack, error) {
	body, err := models.Body(ctx, v)
	if err != nil {
		return nil, err
	}
	return modelpack.Read(bytes.NewReader(body))
}

// filterFits returns what index nodes have against a filter that know schemas.
func filterFits(src string, known *registry.Snapshot) error {
	_, err := filter.Compile(src, filter.EnvOf(known))
	if err == nil {
		return nil
	}
	detail := err.Error()
	if bad := (*expr.Error)(nil); errors.As(err, &bad) { // without all fields that there are
		p := bad.Problems[0]
		detail = fmt.Sprintf("%d:%d: %s", p.Line, p.Col, p.Message)
	}
	return &millrace.Error{Reason: millrace.ReasonFilter, Field: "filter", Detail: detail}
}
