package broker

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/admission"
	"github.com/millrace/millrace/broker/series"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/partition"
)

func TestMetrics(t *testing.T) {
	w := newWorld(t, 2, 1)
	var lost, scored float64 // of the second answer; of both
	var missing topology.Set // from the second
	for i := range 20 {
		w.add(timelineOf(i), recordID(i), timeAt(i), "")
		if w.m.Replicas(partition.Of(entity(i)))[0] == "n1" {
			lost++
			missing.Add(partition.Of(entity(i)))
			scored++
		} else {
			scored += 2
		}
	}
	registry := prometheus.NewRegistry()
	b, err := New(Config{Maps: w, Metrics: registry, Log: slog.New(slog.DiscardHandler), Dial: w.dial})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(change func()) {
		change()
		req := recentRequest(20)
		if _, err := b.GetFeed(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	ask(func() {})
	ask(func() { w.nodes["n1"].err = errors.New("broken") })
	bad := recentRequest(0)
	_, _ = b.GetFeed(t.Context(), bad)
	bad.Feed = "unheard of"
	_, _ = b.GetFeed(t.Context(), bad)
	got := gathered(t, registry)
	for series, want := range map[string]float64{
		`millrace_broker_missing_partitions_total{reason="error"}`:                                         float64(missing.Len()),
		`millrace_broker_map_epoch{}`:                                                                      1,
		`millrace_broker_requests_total{feed="",outcome="unknown_field"}`:                                  1,
		`millrace_broker_requests_total{feed="recent",outcome="invalid_argument"}`:                         1,
		`millrace_broker_requests_total{feed="recent",outcome="ok"}`:                                       1,
		`millrace_broker_requests_total{feed="recent",outcome="partial"}`:                                  1,
		`millrace_broker_node_calls_total{node="n1",outcome="failed"}`:                                     1,
		`millrace_broker_timelines_total{feed="recent",state="answered"}`:                                  40 - lost,
		`millrace_broker_timelines_total{feed="recent",state="missing"}`:                                   lost,
		`millrace_broker_candidates_total{fate="scored",feed="recent"}`:                                    scored,
		`millrace_broker_answers_total{execution="interpreted",feed="recent",model="recency",version="1"}`: 2,
		`millrace_broker_node_calls_total{node="n0",outcome="answered"}`:                                   2,
	} {
		if got[series] != want {
			t.Errorf("%s is %v, want %v", series, got[series], want)
		}
	}
	if _, err := New(Config{Maps: w, Metrics: registry}); err == nil {
		t.Error("two brokers on one registry went unnoticed")
	}
}

// What slow, lagging and too few nodes do to requests is counted.
func TestMetricsOfTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, 2)
		w.add(timelineOf(1), "r1", timeAt(1), "")
		registry := prometheus.NewRegistry()
		b, err := New(Config{Maps: w, Metrics: registry, Log: slog.New(slog.DiscardHandler), Dial: w.dial})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range w.nodes {
			n.delay = func() time.Duration { // the first that is asked is slow
				if w.calls()%2 == 1 {
					return 10 * usualDelay
				}
				return time.Millisecond
			}
		}
		ask := func() {
			t.Helper()
			if _, err := b.GetFeed(t.Context(), recentRequest(1)); err != nil {
				t.Error(err)
			}
		}
		series := func(name string, want float64) {
			t.Helper()
			if got := gathered(t, registry)["millrace_broker_"+name]; got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
		ask()
		series(`hedges_total{event="fired"}`, 1)
		series(`hedges_total{event="won"}`, 1)
		series("hedge_saved_seconds_total{}", (usualDelay + time.Millisecond).Seconds()) // as long again: none took longer yet
		series(`hedges_total{event="denied"}`, 0)
		series(`request_seconds{feed="recent"}`, 1)
		series(`node_call_seconds{}`, 1)
		series(`concurrency_limit{}`, float64(b.admission.Limit()))
		for range 11 { // more than may be hedged at once
			ask()
		}
		series(`hedges_total{event="denied"}`, 1)
		series(`hedges_total{event="fired"}`, 11)
		var full []*admission.InFlight
		for range b.admission.Limit() {
			v, err := b.admission.Enter(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			full = append(full, v)
		}
		if _, err := b.GetFeed(t.Context(), recentRequest(1)); err == nil {
			t.Error("a full limiter let a request in")
		}
		series(`shed_total{}`, 1)
		b.admission.Full(admission.Interactive)
		series(`shed_total{}`, 2)
		for _, v := range full {
			v.Leave()
		}
		b.metrics.request("recent", time.Second, &feedv1.GetFeedResponse{Coverage: &feedv1.Coverage{TimelinesBehind: 7}}, nil)
		series("behind_timelines_total{}", 7)
	})
}

// gathered returns the counters and gauges of a registry by series, and of
// histograms how much was observed.
func gathered(t *testing.T, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			out[fmt.Sprintf("%s{%s}", f.GetName(), strings.Join(labels, ","))] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}

// What is counted by feed, or by a version of a model, goes once nothing is counted any
// more.
func TestSeriesOfFeedsAndVersionsGo(t *testing.T) {
	w, registry := newWorld(t, 1, 1), prometheus.NewRegistry()
	b, err := New(Config{Maps: w, Metrics: registry, Log: slog.New(slog.DiscardHandler), Dial: w.dial})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]prometheus.Collector{
		"requests": b.metrics.requests, "seconds": b.metrics.seconds, "candidates": b.metrics.candidates, "timelines": b.metrics.timelines, "answers": b.metrics.answers, "condemned": b.metrics.inPlaceOf,
		"shadows": shadowAnswers(b), "shadow_overlap": shadowHistogram(b, "shadow_overlap"), "shadow_rbo": shadowHistogram(b, "shadow_rbo"), "shadow_kendall_tau": shadowHistogram(b, "shadow_kendall_tau"), "shadow_seconds": shadowHistogram(b, "shadow_seconds"),
	} {
		var has prometheus.AlreadyRegisteredError
		if err := registry.Register(c); !errors.As(err, &has) {
			t.Errorf("%s: %v", name, err)
		} else if _, is := has.ExistingCollector.(*series.Fading); !is {
			t.Errorf("%s stay", name)
		}
	}
}
