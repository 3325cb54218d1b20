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

// referred checks what definitions of experiments refer to: feeds, models, filters and
// weights. An experiment that does not pass gives nobody a variant, so that no request
// is refused for it. What only index nodes know, it asks them. One goroutine uses it at
// a time.
type referred struct {
	b     *Broker
	asked map[string]asked // by a text that names the filter, or the model and weights
	deaf  time.Time        // no node is asked before this time, since none answered
}

// asked is what index nodes have said.
type asked struct {
	refused error     // nil: they accepted it
	until   time.Time // when to ask them again
}

const (
	takenFor   = 30 * time.Second // how long nodes are not asked again about what they accepted
	refusedFor = 2 * time.Second  // the same, about what they refused
	deafFor    = 30 * time.Second // how long no node is asked anything after none has answered
)

func newReferred(b *Broker) *referred { return &referred{b: b, asked: map[string]asked{}} }

// HasFeed reports whether a feed is defined. A definition counts even if the broker has not
// taken it over: it may still do so, and until then the feed has no requests to deal to.
func (r *referred) HasFeed(name string) bool {
	return r.b.feeds.Defined(name)
}

// IsPrivate reports whether a feed is private. The error is always nil.
func (r *referred) IsPrivate(name string) (bool, error) {
	return r.b.feeds.Current()[name].Private, nil
}

// HasModel reports whether a model serves, or is in every binary. Without Config.Models that
// cannot be told, and it reports true.
func (r *referred) HasModel(name string) bool {
	if r.b.models == nil || slices.Contains(relevance.Builtin().Names(), name) {
		return true
	}
	_, serves := r.b.models.Served(name)
	return serves
}

// CheckFilter returns why a filter cannot be used: its form is wrong, or index nodes refuse it.
func (r *referred) CheckFilter(src string) error {
	if err := limits.CheckFilter(src); err != nil {
		return &millrace.Error{Reason: millrace.ReasonFilter, Detail: err.Error()}
	}
	return r.ask("filter "+src, &nodev1.QueryRequest{Filter: src, Model: "recency", Types: []string{"any"}})
}

// CheckWeights checks the weights that a variant of a feed sets for a model, "" for the
// feed's own. A condemned version is not checked: the one that replaces it may score by
// its own weights.
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

// ask returns why index nodes refuse a question; nil: they do not. It remembers their
// answer by what. If none answers now, it returns what they said last.
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
	for what, a := range r.asked { // forget what no experiment refers to any more
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

// Changed returns a channel that is closed when models have changed; nil if the broker has
// no models. All else that experiments refer to is looked at again every few seconds.
func (r *referred) Changed() <-chan struct{} {
	if r.b.models == nil {
		return nil
	}
	return r.b.models.Changed()
}

// tryFeed returns why index nodes refuse a definition that is about to serve: it may
// have been stored without the checks of [feeds.Define]. heard is false if no node could
// be asked; then nothing is known against it.
func (b *Broker) tryFeed(ctx context.Context, f feeds.Feed) (heard bool, err error) {
	q := &question{Question: questions.Question{Query: &nodev1.QueryRequest{Filter: f.Filter, Model: f.Model, Shadow: namesOf(f.Shadow), Explain: len(f.Shadow) > 0}}}
	if err := b.chooseModel(q, true); err != nil {
		return false, err // never: only a request that names a model is refused here
	}
	return b.fanout.Try(ctx, q.Query)
}
