package answers

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
)

// unfired is a context whose deadline has passed before its timer was seen to
// fire, as on a busy machine.
type unfired struct{ context.Context }

func (unfired) Deadline() (time.Time, bool) { return time.Now().Add(-time.Millisecond), true }

// A query that nobody waits for any more is not begun, and counted.
func TestExpiredQueriesAreNotBegun(t *testing.T) {
	n, _ := openNode(t, cache.Config{})
	counters := prometheus.NewPedanticRegistry()
	counters.MustRegister(n.Collectors()...)
	families, err := counters.Gather()
	if err != nil || len(families) != 2 || len(families[0].Metric)+len(families[1].Metric) != 5+3 { // each outcome and stage begins at 0
		t.Errorf("measured is %v, %v", families, err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for want, c := range map[codes.Code]context.Context{codes.DeadlineExceeded: unfired{t.Context()}, codes.Canceled: gone} {
		before := n.CacheStats()
		_, err := n.Query(c, &nodev1.QueryRequest{Entities: nodetest.Pack("x"), Types: []string{"post"}, Model: "recency", Limit: 1, ToMs: 1})
		if status.Code(err) != want {
			t.Errorf("got %v, want %v", err, want)
		}
		if n.CacheStats() != before {
			t.Errorf("%v: it was looked up", want)
		}
	}
	// One that is stopped on its way is counted as such, one that is wrong as refused, and one
	// by a model that is not here as failed.
	stopped, stop := context.WithCancel(t.Context())
	ask := func(ctx context.Context, model string, limit int32) {
		t.Helper()
		if _, err := n.Query(ctx, &nodev1.QueryRequest{Entities: nodetest.Pack("x"), Types: []string{"post"}, Model: model, ModelVersion: map[string]string{"none": "1"}[model], Limit: limit, ToMs: 1}); err == nil {
			t.Errorf("by %s, for %d, it is answered", model, limit)
		}
	}
	held := func() error { stop(); return errors.New("a schema is held") }
	n.HeldBy(held)
	if _, err := n.Query(stopped, &nodev1.QueryRequest{Entities: nodetest.Pack("x"), Model: "recency", Limit: 1, ToMs: 1, Filter: "record.none == 1"}); err == nil {
		t.Error("it was stopped, and is answered")
	}
	ask(t.Context(), "recency", 0)
	ask(t.Context(), "none", 1)
	ask(t.Context(), "none", 1)
	if _, err := n.Query(t.Context(), &nodev1.QueryRequest{Entities: nodetest.Pack("x"), Model: "recency", Limit: 1, ToMs: 1}); err != nil {
		t.Error(err)
	}
	for outcome, want := range map[string]float64{queryExpired: 2, queryStopped: 1, queryRefused: 1, queryFailed: 2, queryAnswered: 1} {
		var m dto.Metric
		if err := n.counters.queries.WithLabelValues(outcome).Write(&m); err != nil || m.Counter.GetValue() != want {
			t.Errorf("%s: %v, %v; want %v", outcome, m.Counter.GetValue(), err, want)
		}
	}
}

// Nobody holds the memory of a node for longer than a minute.
func TestQueriesAreBounded(t *testing.T) {
	for asked, most := range map[time.Duration]time.Duration{0: maxQueryTime, time.Second: time.Second, 10 * 365 * 24 * time.Hour: maxQueryTime} {
		ctx := t.Context()
		if asked > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, asked)
			defer cancel()
		}
		ctx, cancel := bounded(ctx)
		defer cancel()
		if end, ok := ctx.Deadline(); !ok || time.Until(end) > most || time.Until(end) < most/2 {
			t.Errorf("asked for %v: ends at %v, want in %v", asked, end, most)
		}
	}
}
