package broker

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/series"
)

// metrics is what a broker counts. Labels are bounded: defined feeds, reasons,
// nodes and callers with a quota, never viewers or entities. Series of feeds and versions
// that no longer exist are removed (see [series.Fading]).
type metrics struct {
	// The comment behind each vector names its labels.
	requests   *prometheus.CounterVec   // feed, outcome
	seconds    *prometheus.HistogramVec // feed
	missing    *prometheus.CounterVec   // reason
	behind     prometheus.Counter
	candidates *prometheus.CounterVec // feed, fate
	timelines  *prometheus.CounterVec // feed, state
	answers    *prometheus.CounterVec // feed, model, version, execution
	inPlaceOf  *prometheus.CounterVec // feed, model, version
}

func newMetrics(b *Broker, r prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "millrace", Subsystem: "broker", Name: name, Help: help}, labels)
	}
	times := prometheus.ExponentialBucketsRange(0.0002, 10, 16) // 0.2 ms to 10 s
	m := &metrics{
		requests: counter("requests_total", "Requests by feed and outcome: ok, partial, cancelled, or the reason of the refusal in lower case.", "feed", "outcome"),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "millrace", Subsystem: "broker", Name: "request_seconds", Help: "Time to answer a request, refusals not counted.", Buckets: times}, []string{"feed"}),
		missing: counter("missing_partitions_total", "Partitions missing from answers, by reason.", "reason"),
		behind: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "millrace", Subsystem: "broker", Name: "behind_timelines_total", Help: "Timelines answered by replicas that lag behind the log."}),
		candidates: counter("candidates_total", "Candidates of answers by feed and fate: filtered_false, filtered_null, filtered_error, filtered_nan, or scored.", "feed", "fate"),
		timelines:  counter("timelines_total", "Timelines asked for by feed, answered or missing from the answer.", "feed", "state"),
		answers:    counter("answers_total", "Answers by feed, and by the model, its version and its execution (generated, interpreted, or none where no candidate was left to score).", "feed", "model", "version", "execution"),
		inPlaceOf:  counter("condemned_answers_total", "Answers by feed, and by the model and version that was to rank them and is condemned, so that the last good one did.", "feed", "model", "version"),
	}
	m.shed(0)
	if r == nil {
		return m, nil
	}
	epoch := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "millrace", Subsystem: "broker", Name: "map_epoch", Help: "Epoch of the assignment in use."},
		func() float64 { return float64(b.maps.Current().Epoch()) })
	limit := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "millrace", Subsystem: "broker", Name: "concurrency_limit", Help: "Requests let in at the same time."},
		func() float64 { return float64(b.admission.Limit()) })
	held := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "millrace", Subsystem: "broker", Name: "request_memory_bytes", Help: "Memory that is counted for requests that are being read or parsed."},
		func() float64 { return float64(b.admission.Arriving.Held() + b.admission.Parsing.Held()) })
	answering := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "millrace", Subsystem: "broker", Name: "answer_memory_bytes", Help: "Memory that is counted for answers, from before nodes are asked until callers have taken them."},
		func() float64 { return float64(b.admission.Answering.Held()) })
	var errs []error
	for _, v := range []series.Vec{m.requests, m.seconds, m.candidates, m.timelines, m.answers, m.inPlaceOf} {
		errs = append(errs, r.Register(series.Fade(v)))
	}
	for _, c := range []prometheus.Collector{m.missing, m.behind, epoch, limit, experimentFaults{b.experiments}, held, answering} {
		errs = append(errs, r.Register(c))
	}
	for _, c := range slices.Concat(b.admission.Collectors(), b.fanout.Collectors(), b.feeds.Collectors(), b.shadows.Collectors(), b.gaps.Collectors()) {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}

// shed counts n requests that were refused as overloaded before they were read. With 0 it
// only creates the series.
func (m *metrics) shed(n int) {
	m.requests.WithLabelValues("", strings.ToLower(string(millrace.ReasonOverloaded))).Add(float64(n))
}

// turnedAway counts a request that a door (a gRPC or HTTP server) refused.
func (m *metrics) turnedAway(err error) { m.request("", 0, nil, err) }

// request counts an answered or refused request. The feed is a defined one, or "" if the
// request named none that is.
func (m *metrics) request(feed string, took time.Duration, resp *feedv1.GetFeedResponse, err error) {
	outcome := "ok"
	var refused *millrace.Error
	switch {
	case errors.As(err, &refused):
		outcome = strings.ToLower(string(refused.Reason))
	case err != nil:
		outcome = "cancelled"
	case len(resp.GetCoverage().GetMissing()) > 0:
		outcome = "partial"
	}
	m.requests.WithLabelValues(feed, outcome).Inc()
	if err != nil {
		return
	}
	m.seconds.WithLabelValues(feed).Observe(took.Seconds())
	m.behind.Add(float64(resp.GetCoverage().GetTimelinesBehind()))
	c, r := resp.GetCoverage(), resp.GetReceipt()
	m.timelines.WithLabelValues(feed, "answered").Add(float64(c.GetTimelinesAnswered()))
	m.timelines.WithLabelValues(feed, "missing").Add(float64(c.GetTimelinesAsked() - c.GetTimelinesAnswered()))
	m.answers.WithLabelValues(feed, r.GetModel(), r.GetModelVersion(), cmp.Or(r.GetExecution(), "none")).Inc()
	for _, miss := range c.GetMissing() {
		m.missing.WithLabelValues(miss.GetReason()).Inc()
	}
}

// countCandidates counts the candidates of an answer by what became of them.
func (m *metrics) countCandidates(feed string, o fanout.Outcome) {
	var sum nodev1.Stages
	for _, pt := range o.Parts {
		s := pt.Resp.GetStages()
		sum.FilteredFalse += s.GetFilteredFalse()
		sum.FilteredNull += s.GetFilteredNull()
		sum.FilteredError += s.GetFilteredError()
		sum.FilteredNan += s.GetFilteredNan()
		sum.Scored += s.GetScored()
	}
	for _, f := range []struct {
		fate string
		n    int64
	}{{"filtered_false", sum.FilteredFalse}, {"filtered_null", sum.FilteredNull}, {"filtered_error", sum.FilteredError}, {"filtered_nan", sum.FilteredNan}, {"scored", sum.Scored}} {
		if f.n > 0 {
			m.candidates.WithLabelValues(feed, f.fate).Add(float64(f.n))
		}
	}
}
