package broker

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	mathrand "math/rand/v2"
	"slices"
	"time"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/slot"
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

// expose hands over what an answer showed, if an experiment or a holdout had a
// part in it, or shadows rank it again: then once they have.
func (b *Broker) expose(q *question, o outcome, resp *feedv1.GetFeedResponse, entries []entry) {
	again := b.sample(q, o)
	if again == nil && !b.exposes(q) {
		return
	}
	r := b.shown(q, o, resp, entries)
	if again != nil && b.shadow(again, r, b.exposes(q)) {
		return
	}
	if b.exposes(q) {
		b.exposures.Add(r)
	}
}

// shown is what an answer showed.
func (b *Broker) shown(q *question, o outcome, resp *feedv1.GetFeedResponse, entries []entry) *exposure.Record {
	r := b.exposed(q)
	r.ID, r.TimelinesAsked, r.TimelinesAnswered = resp.Receipt.AnswerId, int(resp.Coverage.TimelinesAsked), int(resp.Coverage.TimelinesAnswered)
	r.Models = []exposure.Model{modelOf(q.model(), resp.Receipt.ModelVersion, q.query.WeightsSum)}
	r.Items = make([]exposure.Item, len(entries))
	for i := range entries {
		e := &entries[i]
		r.Items[i] = exposure.Item{Place: i + 1, ID: string(e.ID), Entity: string(e.Timeline.Entity), Type: string(e.Timeline.Type), Score: e.Score, Team: -1}
	}
	q.draft.expose(q, r, entries)
	if q.query.Features {
		exposeFeatures(r, entries)
	}
	for _, pt := range o.parts {
		r.ScoringNanos += pt.resp.GetScoringNs()
	}
	return r
}

// askFeatures asks for the features of items where an experiment wants exposures
// to have them. Two models that draft a page have features of their own each:
// there are none then.
func (b *Broker) askFeatures(q *question) {
	if b.exposures == nil || q.draft != nil {
		return
	}
	for _, x := range q.variants.dealt {
		if x.Features > 0 && mathrand.IntN(slot.Count) < x.Features {
			q.query.Features = true
		}
	}
}

// exposeFeatures adds the features of items, as nodes told them: one of an older
// version tells none.
func exposeFeatures(r *exposure.Record, entries []entry) {
	for i := range entries {
		told := entries[i].from.resp
		names, v := told.GetFeatureNames(), entries[i].item.GetFeatures()
		if m := &r.Models[0]; m.Features == nil {
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
// away.
func (b *Broker) exposeRefusal(q *question, err error) {
	var refused *millrace.Error
	if q == nil || !errors.As(err, &refused) {
		return
	}
	if b.exposes(q) {
		r := b.exposed(q)
		r.ID, r.Refusal, r.TimelinesAsked = newAnswerID(), string(refused.Reason), q.distinct*q.types
		b.exposures.Add(r)
	}
}

// exposes reports whether an experiment or a holdout has a part in a request, and
// somebody takes that.
func (b *Broker) exposes(q *question) bool {
	return b.exposures != nil && len(q.variants.dealt)+len(q.variants.heldOut) > 0
}

// exposed is what a record says of a request.
func (b *Broker) exposed(q *question) *exposure.Record {
	now := time.Now()
	r := &exposure.Record{
		Time: millrace.TimeOf(now), Viewer: q.viewer, Feed: q.feed.Name, FeedVersion: q.feed.Version, Broker: b.name, AsOf: q.asOf,
		ServedBefore: len(q.query.GetExclude()), HeldOut: q.variants.heldOut, Millis: millis(now.Sub(q.began)),
	}
	for _, x := range q.variants.dealt {
		e := exposure.Experiment{Layer: x.Layer, Experiment: x.Experiment, Variant: x.Variant, Unit: x.Unit, Checksum: x.Checksum, Forced: x.Forced}
		if !x.Forced {
			e.Probability, e.ProbabilityInside = x.Probability.Float64(), x.Probability.InExperiment()
		}
		r.Experiments = append(r.Experiments, e)
	}
	return r
}

// modelOf is a model as it answered. One that every binary has has a version
// only there, and no checksum. Weights that it scored by have theirs behind it.
func modelOf(asked cluster.Version, answered, weights string) exposure.Model {
	return exposure.Model{Name: asked.Name, Version: answered, Checksum: sumOf(asked.Sum, weights)}
}
