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

// Exposures takes records of what answers showed. Add must not wait for anything.
// [exposure.Log] implements it.
type Exposures interface {
	Add(r *exposure.Record)
}

// newAnswerID returns the ID of an answer, by which callers can report what viewers did
// with it: 128 random bits as 32 hexadecimal digits.
func newAnswerID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}

// expose hands a record of what an answer showed to b.exposures, if an experiment or a
// holdout had a part in it. If shadow models rank the answer again, they hand the record
// over afterwards, with how their rankings differ.
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

// sample returns the question for shadow models to rank again, or nil if the answer is
// not in the random sample. Later pages are never in it: what they must leave out
// depends on the model that ranked the first. Nor are answers with missing partitions,
// and those that no single model ranked: drafted pages, and entities divided into groups.
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
		if m.Name != q.Query.Model || q.Query.Weights != "" { // the model that ranks, with its own weights, has nothing to differ in
			again.Query.Beside = append(again.Query.Beside, proto.CloneOf(m))
		}
	}
	if len(again.Query.Beside) == 0 {
		return nil
	}
	return &again
}

// sampled wraps a question that sample returned in what [shadows.Shadows] needs to ask it.
func (b *Broker) sampled(again *question) shadows.Sample {
	ask := func(ctx context.Context, end time.Time) (fanout.Outcome, error) {
		o, _, err := b.ask(ctx, again, end)
		return o, err
	}
	return shadows.Sample{Question: &again.Question, Share: again.feed.ShadowShare, Ask: ask, Told: b.exposures}
}

// concerns reports whether an experiment or a holdout had a part in what was shown.
// Where entities are divided among variants, it may be that no item's entity has one.
func concerns(r *exposure.Record) bool { return len(r.Experiments)+len(r.HeldOut) > 0 }

// shown returns the record of what an answer showed.
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

// askFeaturesOf asks nodes for features, at random, in so many of 10,000 answers
// ([slot.Count]).
func (q *question) askFeaturesOf(answers int) {
	if answers > 0 && mathrand.IntN(slot.Count) < answers {
		q.exposesFeatures = true
	}
}

// modelsOf returns the models that ranked entries, and for each group of entities the
// index of its model in all. answered is the version that nodes say they ranked by. With
// one group or no entries all has the question's model alone, and at is nil, so that every
// index reads 0.
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

// askFeatures asks nodes for the features of items if an experiment wants them in
// exposures, or if missing features are to be counted ([gaps.Gaps]). It asks for none
// if two models draft the page, since each has features of its own.
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

// exposeFeatures adds the features of items, as nodes sent them. An item has none if its
// node is of an older release, which sends none, or if its features have other names than
// those of the first item that the same model ranked.
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

// exposeRefusal hands over a record that a request was refused. It does not if the
// caller went away, or if the caller's own fault would be refused in every variant.
// A refusal because the caller's deadline passed is recorded however early the deadline
// was: the variant may be what took too long.
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
// variant is refused alike. If such refusals counted, one caller could make a variant
// look bad by asking wrongly in the names of its viewers. (Requests that are wrong
// whatever the feed are refused before variants are dealt, and never come here.) A
// refusal counts if what the viewer's experiments set may have caused it.
func (b *Broker) callersFault(ctx context.Context, q *question, refused *millrace.Error) bool {
	switch field := refused.Field; refused.Reason {
	case millrace.ReasonForbidden, millrace.ReasonPageToken, millrace.ReasonQuota:
		return true
	case millrace.ReasonFilter:
		return b.ownFilter(ctx, q)
	case millrace.ReasonCondemned:
		return q.named
	case millrace.ReasonUnknown: // fields, types and models that the request itself names: no experiment sets those
		return strings.HasPrefix(field, "fields[") || strings.HasPrefix(field, "types[") || field == "model" && q.named
	case millrace.ReasonInvalid: // a value of the viewer's that the model cannot take, if no variant sets the model, the types or the window
		return strings.HasPrefix(field, "viewer.") && !q.variants.set(experiment.OfModel, experiment.OfTypes, experiment.OfWindow)
	case millrace.ReasonTooLarge: // the answer is too large and the caller's limit is above the feed's, the pages are used up, or too much is to be read and no variant sets what
		return field == "limit" && q.Query.GetLimit() > int32(q.feed.Limit) || field == "page_token" || (field == "entities" || field == "types") && !q.variants.set(experiment.OfModel, experiment.OfTypes, experiment.OfWindow)
	}
	return false
}

// ownFilter reports whether the filter that index nodes refused is not one that a variant
// sets. If the viewer's variants set a filter and the request has one of its own, nodes
// are asked about the request's filter alone.
func (b *Broker) ownFilter(ctx context.Context, q *question) bool {
	own := q.Query.GetRequestFilter()
	if !q.variants.set(experiment.OfFilter) || own == "" {
		return !q.variants.set(experiment.OfFilter)
	}
	_, refused := b.fanout.Try(ctx, &nodev1.QueryRequest{RequestFilter: own, Model: lastResort, Types: []string{"any"}})
	return refused != nil
}

// exposes reports whether an experiment or a holdout has a part in a request, and
// exposures are recorded.
func (b *Broker) exposes(q *question) bool {
	return b.exposures != nil && (len(q.variants.dealt)+len(q.variants.heldOut) > 0 || q.variants.division != nil)
}

// exposed returns a record with what is known of any request, answered or refused.
func (b *Broker) exposed(q *question) *exposure.Record {
	now := time.Now()
	r := &exposure.Record{
		Time: millrace.TimeOf(now), Viewer: q.Viewer, Feed: q.feed.Name, FeedVersion: q.feed.Version, Broker: b.name, AsOf: q.asOf,
		ServedBefore: len(q.Query.GetExclude()), HeldOut: q.variants.heldOut, Millis: millis(now.Sub(q.began)),
	}
	r.Experiments = appendExposed(nil, inForce(slices.Clone(q.variants.dealt), b.unapplied(q)))
	return r
}

// inForce removes from dealt, in place, the variants of unapplied experiments. The answer
// does not count for these: see [Broker.unapplied].
func inForce(dealt []experiment.Assigned, unapplied []string) []experiment.Assigned {
	return slices.DeleteFunc(dealt, func(x experiment.Assigned) bool { return slices.Contains(unapplied, x.Experiment) })
}

// appendExposed appends variants as exposures have them. A forced variant has no probability.
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

// modelOf returns a model as an exposure names it. answered is the version that nodes
// say they ranked by. asked has neither version nor checksum if the model is in every
// binary. weights is the checksum of weights that a variant sets; see sumOf.
func modelOf(asked artefacts.Version, answered, weights string) exposure.Model {
	return exposure.Model{Name: asked.Name, Version: answered, Checksum: sumOf(asked.Sum, weights)}
}
