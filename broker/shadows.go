package broker

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/stats"
)

const (
	// shadowing is how many answers are ranked again at a time: what waits for
	// a slow node must not hold more.
	shadowing = 4
	// shadowDepth is where two rankings are compared besides their whole length.
	shadowDepth = 10
	// shadowPersistence is the p of rank-biased overlap: the first ten places
	// have 86 % of the weight.
	shadowPersistence = 0.9
)

// What became of an answer that a shadow was to rank again.
const (
	shadowCompared = "compared"
	shadowPartial  = "partial" // its answer lacks partitions
	shadowFailed   = "failed"
	shadowDropped  = "dropped" // for lack of room
)

// shadows rank a sample of a feed's answers again, by models that rank nothing
// for anybody, and count how far they would differ.
type shadows struct {
	slots   chan struct{}
	running sync.WaitGroup

	answers *prometheus.CounterVec   // feed, model, shadow, version, outcome
	overlap *prometheus.HistogramVec // feed, model, shadow, version, depth
	rbo     *prometheus.HistogramVec // feed, model, shadow, version
	tau     *prometheus.HistogramVec // feed, model, shadow, version
	seconds *prometheus.HistogramVec // feed, model
	measures
}

func newShadows() *shadows {
	labels := []string{"feed", "model", "shadow", "version"}
	histogram := func(name, help string, buckets []float64, more ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "millrace", Subsystem: "broker", Name: name, Help: help, Buckets: buckets}, append(slices.Clip(labels), more...))
	}
	shares := prometheus.LinearBuckets(0, 0.1, 11)
	return &shadows{
		slots: make(chan struct{}, shadowing),
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "millrace", Subsystem: "broker", Name: "shadow_answers_total",
			Help: "Sampled answers by feed, the model that ranked them, the shadow model that was to rank them again with its version, and outcome: compared, partial (partitions were missing), failed, dropped (the broker had too much to do).",
		}, append(slices.Clip(labels), "outcome")),
		overlap: histogram("shadow_overlap", "Which part of the first items (depth 10, or limit for all that were asked for) an answer and a shadow's ranking share.", shares, "depth"),
		rbo:     histogram("shadow_rbo", "Rank-biased overlap, extrapolated, of an answer and a shadow's ranking (p 0.9: the first ten places have 86 % of the weight).", shares),
		tau:     histogram("shadow_kendall_tau", "Kendall's tau-b of the items that an answer and a shadow's ranking share.", prometheus.LinearBuckets(-1, 0.2, 11)),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "millrace", Subsystem: "broker", Name: "shadow_seconds", Buckets: prometheus.ExponentialBucketsRange(0.0002, 10, 16),
			Help: "Time that an answer took to be ranked again by its own model and all shadows; beside request_seconds.",
		}, labels[:2]),
	}
}

func (s *shadows) collectors() []prometheus.Collector {
	return []prometheus.Collector{s.answers, s.overlap, s.rbo, s.tau, s.seconds, &s.measures}
}

// sample returns an answer's question as its shadow models are to rank it again,
// if it is one of the sample; or nil. Later pages are none of it: what they may
// not show any more depends on the model that ranked the first. Nor are answers
// whose entities are divided, or whose page is drafted, which no one model ranked.
func (b *Broker) sample(q *question, o outcome) *question {
	if len(q.query.Shadow) == 0 || len(q.query.Exclude) > 0 || len(q.groups) > 1 || q.draft != nil || len(o.missing) > 0 || rand.Float64() >= q.feed.ShadowShare {
		return nil
	}
	again := *q
	again.loan, again.variants, again.draft, again.aside = nil, variants{}, nil, true
	again.query = proto.CloneOf(q.query)
	again.whole()
	again.undivided.query = again.query
	again.query.Explain, again.query.Features, again.query.Shadow, again.query.Beside, again.query.Measure = false, false, nil, nil, true
	for _, m := range q.query.Shadow {
		if m.Name != q.query.Model || q.query.Weights != "" { // which a request may name, or a variant set
			again.query.Beside = append(again.query.Beside, proto.CloneOf(m))
		}
	}
	if len(again.query.Beside) == 0 {
		return nil
	}
	return &again
}

// shadow has an answer ranked again, and takes over what it showed: with how it
// was ranked again, and without that only if it is to be exposed anyway. Nobody
// waits for it. It reports false where there is no room.
func (b *Broker) shadow(q *question, shown *exposure.Record, anyway bool) bool {
	s := b.shadows
	select {
	case s.slots <- struct{}{}:
	default:
		s.count(q, shadowDropped)
		return false
	}
	own(shown)
	s.running.Go(func() {
		defer func() { <-s.slots }()
		outcome := b.rankAgain(q, shown)
		if outcome != shadowCompared {
			s.count(q, outcome)
		}
		if b.exposures != nil && (anyway || len(shown.ShadowRankings) > 0) {
			b.exposures.Add(shown)
		}
	})
	return true
}

// own makes a record independent of what nodes sent.
func own(r *exposure.Record) {
	for i := range r.Items {
		it := &r.Items[i]
		for _, s := range []*string{&it.ID, &it.Entity, &it.Type} {
			*s = strings.Clone(*s)
		}
		for k := range it.Features {
			it.Features[k].Text = strings.Clone(it.Features[k].Text)
		}
	}
}

// rankAgain asks a question again, its model and the shadows beside it, and
// counts how far they differ, which it adds to what the answer showed. All of
// them rank the same candidates, at the same offsets.
func (b *Broker) rankAgain(q *question, shown *exposure.Record) string {
	s, began := b.shadows, time.Now()
	visit, err := b.gate.enter(Prefetch)
	if err != nil {
		return shadowDropped
	}
	defer visit.leave()
	q.loan = b.answering.Borrow()
	defer q.loan.Return()
	ctx, cancel := context.WithTimeout(b.open, b.timeout)
	defer cancel()
	o, _, err := b.ask(ctx, q, began.Add(b.timeout))
	switch {
	case err != nil || ctx.Err() != nil || len(o.parts) == 0:
		return shadowFailed
	case len(o.missing) > 0:
		return shadowPartial
	}
	s.seconds.WithLabelValues(q.feed.Name, q.ranker()).Observe(time.Since(began).Seconds())
	b.measure(q, o, shown)
	return shadowCompared
}

// compare counts how far two rankings of one request differ, and tells it.
func (s *shadows) compare(served, other stats.Ranking[string], labels []string) (x exposure.ShadowRanking, err error) {
	if x.Overlap10, err = stats.Overlap(served, other, shadowDepth); err != nil {
		return x, err
	}
	if x.Overlap, err = stats.Overlap(served, other, max(1, len(served.Items), len(other.Items))); err != nil {
		return x, err
	}
	// Between items that tie the order is by time and id, and no model's opinion.
	rbo, err := stats.RankBiasedOverlap(served, other, shadowPersistence, stats.TiesEqual)
	if err != nil {
		return x, err
	}
	x.RBO = min(max(rbo.Ext, 0), 1) // which rounding may leave
	if x.Tau, err = stats.KendallTau(served, other); err != nil {
		return x, err
	}
	s.overlap.WithLabelValues(append(slices.Clip(labels), "10")...).Observe(x.Overlap10)
	s.overlap.WithLabelValues(append(slices.Clip(labels), "limit")...).Observe(x.Overlap)
	s.rbo.WithLabelValues(labels...).Observe(rbo.Ext)
	if !math.IsNaN(x.Tau) { // no two items are in both
		s.tau.WithLabelValues(labels...).Observe(x.Tau)
	}
	return x, nil
}

// count counts what became of all shadows of an answer.
func (s *shadows) count(q *question, outcome string) {
	for _, m := range q.query.Beside {
		s.answers.WithLabelValues(append(labelsOf(q, m), outcome)...).Inc()
	}
}

func labelsOf(q *question, m *nodev1.Model) []string {
	return []string{q.feed.Name, q.ranker(), m.GetName(), m.GetVersion()}
}

// ranker names what ranks, as metrics do: a model, with the beginning of the
// checksum of weights that a variant set.
func (q *question) ranker() string {
	if sum := q.query.WeightsSum; sum != "" {
		return fmt.Sprintf("%s+%.12s", q.query.Model, sum)
	}
	return q.query.Model
}

// rankingOf is the entries of an answer as their model ranked them: objects
// where each is shown once, and else records. Names are copies, since what nodes
// sent goes with the answer.
func rankingOf(q *question, entries []entry) stats.Ranking[string] {
	r := stats.Ranking[string]{Items: make([]string, len(entries)), Scores: make([]float64, len(entries))}
	for i := range entries {
		e := &entries[i]
		if q.query.DistinctObjects {
			r.Items[i] = strings.Clone(e.item.GetObject())
		} else {
			r.Items[i] = strings.Join([]string{string(e.Timeline.Entity), string(e.Timeline.Type), string(e.ID)}, "\x00")
		}
		r.Scores[i] = e.Score
	}
	return r
}
