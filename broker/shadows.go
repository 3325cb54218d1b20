package broker

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
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
	seconds *prometheus.HistogramVec // feed, model, shadow, version
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
		seconds: histogram("shadow_seconds", "Time that a shadow took to rank an answer again; beside request_seconds.", prometheus.ExponentialBucketsRange(0.0002, 10, 16)),
	}
}

func (s *shadows) collectors() []prometheus.Collector {
	return []prometheus.Collector{s.answers, s.overlap, s.rbo, s.tau, s.seconds}
}

// shadowed is an answer that shadows rank again.
type shadowed struct {
	b      *Broker
	q      *question
	served stats.Ranking[string]
}

// shadow has an answer ranked again by the feed's shadow models, if it is one
// of the sample. Nobody waits for it. Later pages are none of it: what they may
// not show any more depends on the model that ranked the first.
func (b *Broker) shadow(q *question, o outcome, entries []entry) {
	if len(q.query.Shadow) == 0 || len(q.query.Exclude) > 0 || len(o.missing) > 0 || rand.Float64() >= q.feed.ShadowShare {
		return
	}
	s := b.shadows
	select {
	case s.slots <- struct{}{}:
	default:
		for _, m := range q.query.Shadow {
			s.count(q, m, shadowDropped)
		}
		return
	}
	again := *q
	again.loan, again.variants, again.aside = nil, variants{}, true
	x := &shadowed{b, &again, rankingOf(q, entries)}
	models := q.query.Shadow
	s.running.Go(func() {
		defer func() { <-s.slots }()
		for _, m := range models {
			if m.Name != again.query.Model { // which a request may name, or a variant set
				s.count(&again, m, x.by(m))
			}
		}
	})
}

// by ranks the answer again by a model, and returns what became of it.
func (x *shadowed) by(m *nodev1.Model) string {
	b, s, began := x.b, x.b.shadows, time.Now()
	visit, err := b.gate.enter(Prefetch)
	if err != nil {
		return shadowDropped
	}
	defer visit.leave()
	q := *x.q
	q.query = proto.CloneOf(q.query)
	q.query.Explain, q.query.Shadow = false, nil
	q.query.Model, q.query.ModelVersion, q.query.ModelSum = m.Name, m.Version, m.Sum
	q.loan = b.answering.Borrow()
	defer q.loan.Return()
	ctx, cancel := context.WithTimeout(b.open, b.timeout)
	defer cancel()
	o, _, err := b.ask(ctx, &q, began.Add(b.timeout))
	switch {
	case err != nil || ctx.Err() != nil || len(o.parts) == 0:
		return shadowFailed
	case len(o.missing) > 0:
		return shadowPartial
	}
	s.seconds.WithLabelValues(labelsOf(x.q, m)...).Observe(time.Since(began).Seconds())
	other := rankingOf(&q, merge(o.parts, int(q.query.Limit), q.query.DistinctObjects))
	if err := s.compare(x.served, other, labelsOf(x.q, m)); err != nil {
		b.log.Error("a shadow's ranking cannot be compared", "feed", q.feed.Name, "model", m.Name, "fault", err)
		return shadowFailed
	}
	return shadowCompared
}

// compare counts how far two rankings of one request differ.
func (s *shadows) compare(served, other stats.Ranking[string], labels []string) error {
	first, err := stats.Overlap(served, other, shadowDepth)
	if err != nil {
		return err
	}
	all, err := stats.Overlap(served, other, max(1, len(served.Items), len(other.Items)))
	if err != nil {
		return err
	}
	rbo, err := stats.RankBiasedOverlap(served, other, shadowPersistence, stats.TiesEqual)
	if err != nil {
		return err
	}
	tau, err := stats.KendallTau(served, other)
	if err != nil {
		return err
	}
	s.overlap.WithLabelValues(append(slices.Clip(labels), "10")...).Observe(first)
	s.overlap.WithLabelValues(append(slices.Clip(labels), "limit")...).Observe(all)
	s.rbo.WithLabelValues(labels...).Observe(rbo.Ext)
	if !math.IsNaN(tau) { // no two items are in both
		s.tau.WithLabelValues(labels...).Observe(tau)
	}
	return nil
}

func (s *shadows) count(q *question, m *nodev1.Model, outcome string) {
	s.answers.WithLabelValues(append(labelsOf(q, m), outcome)...).Inc()
}

func labelsOf(q *question, m *nodev1.Model) []string {
	return []string{q.feed.Name, q.query.Model, m.GetName(), m.GetVersion()}
}

// rankingOf is the entries of an answer as their model ranked them: objects
// where each is shown once, and else records. Names are copies, since what nodes
// sent goes with the answer.
func rankingOf(q *question, entries []entry) stats.Ranking[string] {
	inOrder := slices.Clone(entries) // spacing may have moved them
	slices.SortFunc(inOrder, func(a, b entry) int { return a.Compare(b.Rank) })
	r := stats.Ranking[string]{Items: make([]string, len(inOrder)), Scores: make([]float64, len(inOrder))}
	for i := range inOrder {
		e := &inOrder[i]
		if q.query.DistinctObjects {
			r.Items[i] = strings.Clone(e.item.GetObject())
		} else {
			r.Items[i] = strings.Join([]string{string(e.Timeline.Entity), string(e.Timeline.Type), string(e.ID)}, "\x00")
		}
		r.Scores[i] = e.Score
	}
	return r
}
