// Package shadows has shadow models rank a sample of answers again, and counts how far
// their rankings differ from what was served. A shadow is a model that a feed names for
// comparison: no viewer gets its ranking, and no request waits for it.
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
	// shadowing is how many answers are ranked again at a time. It bounds the memory
	// that they hold while they wait for a slow node.
	shadowing = 4
	// shadowDepth is how many first items of two rankings are compared. Whole rankings
	// are compared as well.
	shadowDepth = 10
	// shadowPersistence is the parameter p of rank-biased overlap, a measure of how
	// alike two rankings are: at 0.9 the first ten places have 86 % of the weight.
	shadowPersistence = 0.9
)

// The outcomes of an answer that a shadow was to rank again.
const (
	shadowCompared = "compared"
	shadowPartial  = "partial" // the second ranking lacks partitions
	shadowFailed   = "failed"  // no second ranking came, or the shadow did not rank
	shadowDropped  = "dropped" // the broker had too much to do
)

// Shadows rank a sample of the feeds' answers again by shadow models; see the package.
type Shadows struct {
	slots     chan struct{} // holds a token for each answer that is ranked again
	running   sync.WaitGroup
	admission *admission.Control
	timeout   time.Duration   // bounds the second ranking of one answer
	open      context.Context // when it ends, all ranking ends
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
	Question *questions.Question // the answer's, with the shadows in Query.Beside
	Share    float64             // the part of the feed's answers that are sampled, above 0 and up to 1
	// Ask sends Question to the nodes, which have until end to answer. They rank the same
	// candidates by the answer's model and by the shadows.
	Ask  func(ctx context.Context, end time.Time) (fanout.Outcome, error)
	Told interface{ Add(r *exposure.Record) } // gets the record of what the answer showed; nil: the record is not kept
}

// New returns shadows that rank until open ends, and each answer within a timeout. control
// is the broker's admission control: it limits how much they rank beside the requests.
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

// Wait waits until all ranking under way has ended.
func (s *Shadows) Wait() { s.running.Wait() }

// Collectors returns the metrics of shadows.
func (s *Shadows) Collectors() []prometheus.Collector {
	var all []prometheus.Collector
	for _, v := range []series.Vec{s.answers, s.overlap, s.rbo, s.tau, s.seconds} {
		all = append(all, series.Fade(v))
	}
	return append(all, &s.measures)
}

// Rank has an answer ranked again in the background, and returns at once. shown is the
// record of what the answer showed. Rank adds to it how the shadows ranked, and then
// hands it to a.Told; if there is nothing to add, it does so only when anyway is set. Rank
// returns false, and leaves shown to the caller, if too many answers are being ranked
// already.
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

// detach copies the texts of a record. They lie in the messages that nodes sent, and the
// memory of these messages is used again after the answer.
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

// rankAgain asks the nodes the question once more. They rank by its own model and by the
// shadows together, so that all rank the same candidates at the same offsets of the log.
// rankAgain counts how far the shadows differ, adds that to shown, and returns the outcome.
// The caller counts each outcome but compared.
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

// compare returns how far two rankings of one request differ, and observes it in the
// metrics.
func (s *Shadows) compare(served, other stats.Ranking[string], labels []string) (x exposure.ShadowRanking, err error) {
	if x.Overlap10, err = stats.Overlap(served, other, shadowDepth); err != nil {
		return x, err
	}
	if x.Overlap, err = stats.Overlap(served, other, max(1, len(served.Items), len(other.Items))); err != nil {
		return x, err
	}
	// Items of equal score stand in the order of time and id. That order says nothing of
	// a model, so they count as tied.
	rbo, err := stats.RankBiasedOverlap(served, other, shadowPersistence, stats.TiesEqual)
	if err != nil {
		return x, err
	}
	x.RBO = min(max(rbo.Ext, 0), 1) // rounding may give a little less than 0 or more than 1
	if x.Tau, err = stats.KendallTau(served, other); err != nil {
		return x, err
	}
	s.overlap.WithLabelValues(append(slices.Clip(labels), "10")...).Observe(x.Overlap10)
	s.overlap.WithLabelValues(append(slices.Clip(labels), "limit")...).Observe(x.Overlap)
	s.rbo.WithLabelValues(labels...).Observe(rbo.Ext)
	if !math.IsNaN(x.Tau) { // Tau is NaN if the rankings share no pair of items that can be compared
		s.tau.WithLabelValues(labels...).Observe(x.Tau)
	}
	return x, nil
}

// count counts one outcome for all shadows of an answer.
func (s *Shadows) count(q *questions.Question, outcome string) {
	for _, m := range q.Query.Beside {
		s.answers.WithLabelValues(append(labelsOf(q, m), outcome)...).Inc()
	}
}

// labelsOf returns the labels feed, model, shadow and version, in this order.
func labelsOf(q *questions.Question, m *nodev1.Model) []string {
	return []string{q.FeedName, ranker(q), m.GetName(), m.GetVersion()}
}

// ranker returns the name of the answer's model as metrics have it. If a variant set
// weights, the first 12 digits of their checksum follow a plus sign.
func ranker(q *questions.Question) string {
	if sum := q.Query.WeightsSum; sum != "" {
		return fmt.Sprintf("%s+%.12s", q.Query.Model, sum)
	}
	return q.Query.Model
}

// rankingOf returns a ranking of the entries, in their order. Its items are objects if the
// feed shows each object once, and records otherwise. They are copies, since the memory of
// the nodes' messages is used again after the answer.
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
