package broker

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/limits"
	"github.com/millrace/millrace/broker/questions"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/relevance/weights"
)

// referred is what definitions of experiments refer to, as a broker knows it: an
// experiment that does not fit gives nobody a variant, so that nobody is refused
// for it. What index nodes know they are asked. One goroutine uses it at a time.
type referred struct {
	b     *Broker
	asked map[string]asked // by what it was about
	deaf  time.Time        // until then nobody is asked, since nobody answered
}

// asked is what index nodes have said.
type asked struct {
	refused error
	until   time.Time // they are asked again
}

const (
	takenFor   = 30 * time.Second // what index nodes took is not asked again
	refusedFor = 2 * time.Second  // nor is what they refused
	deafFor    = 30 * time.Second
)

func newReferred(b *Broker) *referred { return &referred{b: b, asked: map[string]asked{}} }

// HasFeed finds a feed that is defined and not taken over, too: it may be yet, and
// deals nothing until then.
func (r *referred) HasFeed(name string) bool {
	return r.b.feeds.Defined(name)
}

func (r *referred) IsPrivate(name string) (bool, error) {
	return r.b.feeds.Current()[name].Private, nil
}

func (r *referred) HasModel(name string) bool {
	if r.b.models == nil || slices.Contains(relevance.Builtin().Names(), name) {
		return true
	}
	_, serves := r.b.models.Served(name)
	return serves
}

func (r *referred) CheckFilter(src string) error {
	if err := limits.CheckFilter(src); err != nil {
		return &millrace.Error{Reason: millrace.ReasonFilter, Detail: err.Error()}
	}
	return r.ask("filter "+src, &nodev1.QueryRequest{Filter: src, Model: "recency", Types: []string{"any"}})
}

// CheckWeights asks nothing of a version that is condemned: the one that ranks in
// its place scores by its own.
func (r *referred) CheckWeights(feed, model string, set map[string]float64) error {
	v := artefacts.Version{Name: model}
	if model == "" {
		if v.Name = r.b.feeds.Current()[feed].Model; v.Name != "" && !r.HasModel(v.Name) {
			return experiment.OwnModelGone(feed, v.Name)
		}
	}
	if r.b.models != nil {
		if served, ok := r.b.models.Served(v.Name); ok {
			v = served
		}
	}
	if v.Name == "" || r.b.condemned.why(v) != "" {
		return nil
	}
	form := weights.Form(set)
	return r.ask(strings.Join([]string{"weights", v.Name, v.Version, v.Sum, form}, " "), &nodev1.QueryRequest{
		Model: v.Name, ModelVersion: v.Version, ModelSum: v.Sum, Weights: form, WeightsSum: weights.Sum(form), Types: []string{"any"},
	})
}

// ask returns what index nodes have against a question. If none answers, it is what
// they had.
func (r *referred) ask(what string, q *nodev1.QueryRequest) error {
	now := time.Now()
	old := r.asked[what]
	if now.Before(old.until) || now.Before(r.deaf) {
		return old.refused
	}
	heard, refused := r.b.fanout.Try(r.b.open, q)
	if !heard {
		r.deaf = time.Now().Add(deafFor)
		return old.refused
	}
	for what, a := range r.asked { // nobody asks about what is gone
		if now.Sub(a.until) > takenFor {
			delete(r.asked, what)
		}
	}
	r.asked[what] = asked{refused, now.Add(takenFor)}
	if refused != nil {
		r.asked[what] = asked{refused, now.Add(refusedFor)}
	}
	return refused
}

// Changed tells of models alone; the rest is looked at every few seconds.
func (r *referred) Changed() <-chan struct{} {
	if r.b.models == nil {
		return nil
	}
	return r.b.models.Changed()
}

// tryFeed reports what index nodes have against a definition that is about to
// serve, which may not have been stored by [feeds.Define]. If none can be asked
// nothing is known against it.
func (b *Broker) tryFeed(ctx context.Context, f feeds.Feed) (heard bool, err error) {
	q := &question{Question: questions.Question{Query: &nodev1.QueryRequest{Filter: f.Filter, Model: f.Model, Shadow: namesOf(f.Shadow), Explain: len(f.Shadow) > 0}}}
	if err := b.chooseModel(q, true); err != nil {
		return false, err // no request is refused that names no model
	}
	return b.fanout.Try(ctx, q.Query)
}
