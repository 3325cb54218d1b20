package broker

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/questions"
	"github.com/millrace/millrace/broker/shadows"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/slot"
	"github.com/millrace/millrace/relevance/experiment"
)

// Exposures takes what answers showed, and waits for nothing; [exposure.Log]
// does.
type Exposures interface {
	Add(r *exposure.Record)
}

// newAnswerID returns what an answer is known by to who acts on it: 128 random
// bits, in hexadecimal digits.
func newAnswerID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}

// expose hands over what an answer showed, if an experiment or a holdout had a part
// in it, or, if shadows rank it again, once they have.
func (b *Broker) expose(q *question, o fanout.Outcome, resp *feedv1.GetFeedResponse, entries []fanout.Entry) {
	again := b.sample(q, o)
	if again == nil && !b.exposes(q) {
		return
	}
	r := b.shown(q, o, resp, entries)
	if again != nil && b.shadows.Rank(b.sampled(again), r, b.exposes(q) && concerns(r)) {
		return
	}
	if b.exposes(q) && concerns(r) {
		b.exposures.Add(r)
	}
}

// sample returns an answer's question as its shadow models are to rank it again,
// if it is one of the sample; or nil. Later pages are none of it: what they may
// not show any more depends on the model that ranked the first. Nor are answers
// whose entities are divided, or whose page is drafted, which no one model ranked.
func (b *Broker) sample(q *question, o fanout.Outcome) *question {
	if len(q.Query.Shadow) == 0 || len(q.Query.Exclude) > 0 || len(q.Groups) > 1 || q.draft != nil || len(o.Missing) > 0 || mathrand.Float64() >= q.feed.ShadowShare {
		return nil
	}
	again := *q
	again.Loan, again.variants, again.draft, again.Aside = nil, variants{}, nil, true
	again.BesideSum, again.Depth = "", 0
	again.Query = proto.CloneOf(q.Query)
	again.Whole()
	again.Groups[0].Query = again.Query
	again.Query.Explain, again.Query.Features, again.Query.Shadow, again.Query.Beside, again.Query.Measure = false, false, nil, nil, true
	for _, m := range q.Query.Shadow {
		if m.Name != q.Query.Model || q.Query.Weights != "" { // which a request may name, or a variant set
			again.Query.Beside = append(again.Query.Beside, proto.CloneOf(m))
		}
	}
	if len(again.Query.Beside) == 0 {
		return nil
	}
	return &again
}

// sampled is a question that sample returned, as shadows ask it.
func (b *Broker) sampled(again *question) shadows.Sample {
	ask := func(ctx context.Context, end time.Time) (fanout.Outcome, error) {
		o, _, err := b.ask(ctx, again, end)
		return o, err
	}
	return shadows.Sample{Question: &again.Question, Share: again.feed.ShadowShare, Ask: ask, Told: b.exposures}
}

// concerns reports whether an experiment or a holdout had a part in what was
// shown. Where entities are divided, perhaps none of the items is of an entity with a variant.
func concerns(r *exposure.Record) bool { return len(r.Experiments)+len(r.HeldOut) > 0 }

// shown is what an answer showed.
func (b *Broker) shown(q *question, o fanout.Outcome, resp *feedv1.GetFeedResponse, entries []fanout.Entry) *exposure.Record {
	r := b.exposed(q)
	var at map[*questions.Group]int
	r.Models, at = modelsOf(q, resp.Receipt.ModelVersion, entries)
	r.ID, r.TimelinesAsked, r.TimelinesAnswered = resp.Receipt.AnswerId, int(resp.Coverage.TimelinesAsked), int(resp.Coverage.TimelinesAnswered)
	r.Items = make([]exposure.Item, len(entries))
	for i := range entries {
		e := &entries[i]
		r.Items[i] = exposure.Item{Place: i + 1, ID: string(e.ID), Entity: string(e.Timeline.Entity), Type: string(e.Timeline.Type), Score: e.Score, Model: at[e.From.Group], Team: -1}
	}
	if q.variants.division != nil {
		b.exposeEntities(q, r)
	}
	q.draft.expose(q, r, entries)
	if q.exposesFeatures {
		exposeFeatures(r, entries)
	}
	for _, pt := range o.Parts {
		r.ScoringNanos += pt.Resp.GetScoringNs()
	}
	return r
}

// askFeaturesOf asks for features in so many of 10,000 answers.
func (q *question) askFeaturesOf(answers int) {
	if answers > 0 && mathrand.IntN(slot.Count) < answers {
		q.exposesFeatures = true
	}
}

// modelsOf returns the models that ranked entries, and which is of which group.
// Where nothing is shown it is the question's.
func modelsOf(q *question, answered string, entries []fanout.Entry) (all []exposure.Model, at map[*questions.Group]int) {
	if len(entries) == 0 || len(q.Groups) == 1 {
		return []exposure.Model{modelOf(q.Groups[0].Model(), answered, q.Query.WeightsSum)}, nil
	}
	at = map[*questions.Group]int{}
	for i := range entries {
		pt := entries[i].From
		if _, met := at[pt.Group]; met {
			continue
		}
		m := modelOf(pt.Group.Model(), pt.Resp.GetModelVersion(), pt.Group.Query.WeightsSum)
		same := func(other exposure.Model) bool {
			return other.Name == m.Name && other.Version == m.Version && other.Checksum == m.Checksum
		}
		if at[pt.Group] = slices.IndexFunc(all, same); at[pt.Group] < 0 {
			at[pt.Group] = len(all)
			all = append(all, m)
		}
	}
	return all, at
}

// exposeEntities adds the variants of the entities that have an item.
func (b *Broker) exposeEntities(q *question, r *exposure.Record) {
	var dealt []experiment.Assigned
	met := map[string]bool{}
	for i := range r.Items {
		if e := r.Items[i].Entity; !met[e] {
			met[e] = true
			dealt = q.variants.division.Deal(dealt, millrace.Entity(e))
		}
	}
	r.Experiments = appendExposed(r.Experiments, inForce(dealt, b.unapplied(q)))
}

// askFeatures asks for the features of items where an experiment wants exposures
// to have them, or what they lack is counted. Two models that draft a page have
// features of their own each: there are none then.
func (b *Broker) askFeatures(q *question) {
	if q.draft != nil {
		return
	}
	if b.exposures != nil {
		for _, x := range q.variants.dealt {
			q.askFeaturesOf(x.Features)
		}
		for _, of := range q.variants.division.Features() {
			q.askFeaturesOf(of)
		}
	}
	q.counted = b.gaps.Due(q.feed.Name, q.began)
	q.Query.Features = q.exposesFeatures || q.counted
}

// exposeFeatures adds the features of items, as nodes told them: one of an older
// version tells none.
func exposeFeatures(r *exposure.Record, entries []fanout.Entry) {
	for i := range entries {
		told := entries[i].From.Resp
		names, v := told.GetFeatureNames(), entries[i].Item.GetFeatures()
		if m := &r.Models[r.Items[i].Model]; m.Features == nil {
			m.Features = names
		} else if !slices.Equal(m.Features, names) {
			continue
		}
		if len(names) == 0 || len(v.GetNumbers()) != len(names) {
			continue
		}
		all := make([]exposure.Value, len(names))
		for k, x := range v.Numbers {
			all[k] = exposure.Number(x)
			if s, ok := v.Texts[int32(k)]; ok {
				all[k] = exposure.Text(s)
			}
		}
		r.Items[i].Features = all
	}
}

// exposeRefusal hands over that a request was refused, unless its caller went
// away, or is itself to blame, whatever the variant. How long the caller waits is not
// looked at: a variant may fail at once, or take longer than the control does.
func (b *Broker) exposeRefusal(ctx context.Context, q *question, err error) {
	var refused *millrace.Error
	if q == nil || !errors.As(err, &refused) || !b.exposes(q) || b.callersFault(ctx, q, refused) {
		return
	}
	if r := b.exposed(q); concerns(r) {
		r.ID, r.Refusal, r.TimelinesAsked = newAnswerID(), string(refused.Reason), q.Asked()
		b.exposures.Add(r)
	}
}

// callersFault reports whether a refusal is for what the caller asked, so that every
// variant is refused alike. Else one caller could refuse a variant to death, by
// asking wrongly under the names of its viewers. What is wrong with a request alone
// is refused before variants are dealt. All else counts, unless it has nothing to do
// with what the viewer's experiments set.
func (b *Broker) callersFault(ctx context.Context, q *question, refused *millrace.Error) bool {
	switch field := refused.Field; refused.Reason {
	case millrace.ReasonForbidden, millrace.ReasonPageToken, millrace.ReasonQuota:
		return true
	case millrace.ReasonFilter:
		return b.ownFilter(ctx, q)
	case millrace.ReasonCondemned:
		return q.named
	case millrace.ReasonUnknown: // an experiment on what the request names itself has no part in it
		return strings.HasPrefix(field, "fields[") || strings.HasPrefix(field, "types[") || field == "model" && q.named
	case millrace.ReasonInvalid: // a value of the viewer's, for a model that ranks records which there are
		return strings.HasPrefix(field, "viewer.") && !q.variants.set(experiment.OfModel, experiment.OfTypes, experiment.OfWindow)
	case millrace.ReasonTooLarge: // to be read, where it is not the page that is, or is by the caller's own limit
		return field == "limit" && q.Query.GetLimit() > int32(q.feed.Limit) || field == "page_token" || (field == "entities" || field == "types") && !q.variants.set(experiment.OfModel, experiment.OfTypes, experiment.OfWindow)
	}
	return false
}

// ownFilter reports whether index nodes refused another filter than one by which the
// variants of the viewer's experiments differ. Where there is one of the caller's
// beside it, they are asked which it is.
func (b *Broker) ownFilter(ctx context.Context, q *question) bool {
	own := q.Query.GetRequestFilter()
	if !q.variants.set(experiment.OfFilter) || own == "" {
		return !q.variants.set(experiment.OfFilter)
	}
	_, refused := b.fanout.Try(ctx, &nodev1.QueryRequest{RequestFilter: own, Model: lastResort, Types: []string{"any"}})
	return refused != nil
}

// exposes reports whether an experiment or a holdout has a part in a request, and
// somebody takes that.
func (b *Broker) exposes(q *question) bool {
	return b.exposures != nil && (len(q.variants.dealt)+len(q.variants.heldOut) > 0 || q.variants.division != nil)
}

// exposed is what a record says of a request.
func (b *Broker) exposed(q *question) *exposure.Record {
	now := time.Now()
	r := &exposure.Record{
		Time: millrace.TimeOf(now), Viewer: q.Viewer, Feed: q.feed.Name, FeedVersion: q.feed.Version, Broker: b.name, AsOf: q.asOf,
		ServedBefore: len(q.Query.GetExclude()), HeldOut: q.variants.heldOut, Millis: millis(now.Sub(q.began)),
	}
	r.Experiments = appendExposed(nil, inForce(slices.Clone(q.variants.dealt), b.unapplied(q)))
	return r
}

// inForce leaves out the variants of experiments that the answer does not count for:
// see [Broker.unapplied].
func inForce(dealt []experiment.Assigned, unapplied []string) []experiment.Assigned {
	return slices.DeleteFunc(dealt, func(x experiment.Assigned) bool { return slices.Contains(unapplied, x.Experiment) })
}

func appendExposed(all []exposure.Experiment, dealt []experiment.Assigned) []exposure.Experiment {
	for _, x := range dealt {
		e := exposure.Experiment{Layer: x.Layer, Experiment: x.Experiment, Variant: x.Variant, Unit: x.Unit, Checksum: x.Checksum, Forced: x.Forced}
		if !x.Forced {
			e.Probability, e.ProbabilityInside = x.Probability.Float64(), x.Probability.InExperiment()
		}
		all = append(all, e)
	}
	return all
}

// modelOf is a model as it answered. One that every binary has has a version
// only there, and no checksum. Weights that it scored by have theirs behind it.
func modelOf(asked artefacts.Version, answered, weights string) exposure.Model {
	return exposure.Model{Name: asked.Name, Version: answered, Checksum: sumOf(asked.Sum, weights)}
}
