package answers

import (
	"context"
	"testing"
	"time"

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
	for outcome, want := range map[string]float64{queryExpired: 2, queryStopped: 0, queryAnswered: 0} {
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
