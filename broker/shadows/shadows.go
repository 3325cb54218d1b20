// Package shadows ranks answers again by models that rank nothing for anybody, beside
// the requests, and counts how far they would differ.
package shadows

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/admission"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/questions"
	"github.com/millrace/millrace/broker/series"
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

// Shadows rank a sample of a feed's answers again, by models that rank nothing
// for anybody, and count how far they would differ.
type Shadows struct {
	slots     chan struct{}
	running   sync.WaitGroup
	admission *admission.Control
	timeout   time.Duration
	open      context.Context // they end with it
	log       *slog.Logger

	answers *prometheus.CounterVec   // feed, model, shadow, version, outcome
	overlap *prometheus.HistogramVec // feed, model, shadow, version, depth
	rbo     *prometheus.HistogramVec // feed, model, shadow, version
	tau     *prometheus.HistogramVec // feed, model, shadow, version
	seconds *prometheus.HistogramVec // feed, model
	measures
}

// Sample is an answer that shadows rank again.
type Sample struct {
	Question *questions.Question // the answer's, with the shadows beside its model
	Share    float64             // of the feed's answers, that are
	Ask      func(ctx context.Context, end time.Time) (fanout.Outcome, error)
	Told     interface{ Add(r *exposure.Record) } // what it showed; nil: nobody
}

// New returns shadows that rank as long as open does not end, each answer
// within a timeout.
func New(open context.Context, control *admission.Control, timeout time.Duration, log *slog.Logger) *Shadows {
	labels := []string{"feed", "model", "shadow", "version"}
	histogram := func(name, help string, buckets []float64, more ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "millrace", Subsystem: "broker", Name: name, Help: help, Buckets: buckets}, append(slices.Clip(labels), more...))
	}
	shares := prometheus.LinearBuckets(0, 0.1, 11)
	return &Shadows{
		slots: make(chan struct{}, shadowing), admission: control, timeout: timeout, open: open, log: log,
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

// Wait waits until nothing is ranked any more.
func (s *Shadows) Wait() { s.running.Wait() }

// Collectors are the metrics of shadows.
func (s *Shadows) Collectors() []prometheus.Collector {
	var all []prometheus.Collector
	for _, v := range []series.Vec{s.answers, s.overlap, s.rbo, s.tau, s.seconds} {
		all = append(all, series.Fade(v))
	}
	return append(all, &s.measures)
}

// Rank has an answer ranked again, and takes over what it showed: with how it
// was ranked again, and without that only if it is to be exposed anyway. Nobody
// waits for it. It reports false where there is no room.
func (s *Shadows) Rank(a Sample, shown *exposure.Record, anyway bool) bool {
	select {
	case s.slots <- struct{}{}:
	default:
		s.count(a.Question, shadowDropped)
		return false
	}
	detach(shown)
	s.running.Go(func() {
		defer func() { <-s.slots }()
		outcome := s.rankAgain(a, shown)
		switch outcome {
		case shadowCompared:
		case shadowFailed:
			s.fail(a, shown, a.Question.Query.Beside)
		default:
			s.count(a.Question, outcome)
		}
		if a.Told != nil && (anyway || len(shown.Shadows) > 0) {
			a.Told.Add(shown)
		}
	})
	return true
}

// detach makes a record independent of what nodes sent.
func detach(r *exposure.Record) {
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
func (s *Shadows) rankAgain(a Sample, shown *exposure.Record) string {
	q, began := a.Question, time.Now()
	inFlight, err := s.admission.EnterAside()
	if err != nil {
		return shadowDropped
	}
	defer inFlight.Leave()
	q.Loan = s.admission.Answering.Borrow()
	defer q.Loan.Return()
	ctx, cancel := context.WithTimeout(s.open, s.timeout)
	defer cancel()
	o, err := a.Ask(ctx, began.Add(s.timeout))
	switch {
	case err != nil || ctx.Err() != nil || len(o.Parts) == 0:
		return shadowFailed
	case len(o.Missing) > 0:
		return shadowPartial
	}
	s.seconds.WithLabelValues(q.FeedName, ranker(q)).Observe(time.Since(began).Seconds())
	s.measure(a, o, shown)
	return shadowCompared
}

// compare counts how far two rankings of one request differ, and tells it.
func (s *Shadows) compare(served, other stats.Ranking[string], labels []string) (x exposure.ShadowRanking, err error) {
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
func (s *Shadows) count(q *questions.Question, outcome string) {
	for _, m := range q.Query.Beside {
		s.answers.WithLabelValues(append(labelsOf(q, m), outcome)...).Inc()
	}
}

func labelsOf(q *questions.Question, m *nodev1.Model) []string {
	return []string{q.FeedName, ranker(q), m.GetName(), m.GetVersion()}
}

// ranker names what ranks, as metrics do: a model, with the beginning of the
// checksum of weights that a variant set.
func ranker(q *questions.Question) string {
	if sum := q.Query.WeightsSum; sum != "" {
		return fmt.Sprintf("%s+%.12s", q.Query.Model, sum)
	}
	return q.Query.Model
}

// rankingOf is the entries of an answer as their model ranked them: objects
// where each is shown once, and else records. Names are copies, since what nodes
// sent goes with the answer.
func rankingOf(q *questions.Question, entries []fanout.Entry) stats.Ranking[string] {
	r := stats.Ranking[string]{Items: make([]string, len(entries)), Scores: make([]float64, len(entries))}
	for i := range entries {
		e := &entries[i]
		if q.Query.DistinctObjects {
			r.Items[i] = strings.Clone(e.Item.GetObject())
		} else {
			r.Items[i] = strings.Join([]string{string(e.Timeline.Entity), string(e.Timeline.Type), string(e.ID)}, "\x00")
		}
		r.Scores[i] = e.Score
	}
	return r
}
