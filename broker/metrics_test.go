package broker

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/internal/partition"
)

func TestMetrics(t *testing.T) {
	w := newWorld(t, 2, 1)
	var lost, scored float64 // of the second answer; of both
	for i := range 20 {
		w.add(timelineOf(i), recordID(i), timeAt(i), "")
		if w.m.Replicas(partition.Of(entity(i)))[0] == "n1" {
			lost++
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

// gathered returns the counters and gauges of a registry by series.
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
			out[fmt.Sprintf("%s{%s}", f.GetName(), strings.Join(labels, ","))] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return out
}
