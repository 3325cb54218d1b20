package broker

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/admission"
	"github.com/millrace/millrace/internal/rpcerr"
)

// A caller gets its burst and then its rate; those without a quota of their
// own share the default, whatever they call themselves; what is refused
// reaches no node.
func TestQuotas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 1)
		registry := prometheus.NewRegistry()
		b, err := New(Config{
			Maps: w, Dial: w.dial, Metrics: registry, Log: slog.New(slog.DiscardHandler),
			Quotas: map[string]admission.Quota{"jobs": {PerSecond: 4, Burst: 6}, admission.DefaultCaller: {PerSecond: 0.5}},
		})
		if err != nil {
			t.Fatal(err)
		}
		let := func(callers ...string) (in int) {
			for _, caller := range callers {
				ctx, err := admission.WithHeaders(t.Context(), func(name string) string {
					return map[string]string{admission.CallerHeader: caller}[name]
				})
				if err != nil {
					t.Fatal(err)
				}
				if _, err = b.GetFeed(ctx, recentRequest(1)); err == nil {
					in++
				} else if e := refusal(t, err); e.Reason != millrace.ReasonQuota || e.Field != admission.CallerHeader || e.WayOut == "" || e.RetryAfter <= 0 {
					t.Errorf("got %+v", e)
				}
			}
			return in
		}
		jobs := strings.Fields(strings.Repeat("jobs ", 20))
		if n := let(jobs...); n != 6 {
			t.Errorf("%d of a burst were let in, want 6", n)
		}
		if n := let("x", "y", "", "x"); n != 1 {
			t.Errorf("%d of others were let in, want 1", n)
		}
		time.Sleep(time.Second)
		if n := let(jobs...); n != 4 {
			t.Errorf("%d were let in after a second, want 4", n)
		}
		if n := let("z"); n != 0 {
			t.Error("another name was let in before its time")
		}
		time.Sleep(time.Second)
		if n := let("z"); n != 1 {
			t.Error("nobody was let in after the time")
		}
		if calls := w.calls(); calls != 12 {
			t.Errorf("nodes were called %d times for 12 requests", calls)
		}
		got := gathered(t, registry)
		for series, want := range map[string]float64{
			`millrace_broker_caller_requests_total{caller="jobs",outcome="admitted"}`:    10,
			`millrace_broker_caller_requests_total{caller="jobs",outcome="refused"}`:     30,
			`millrace_broker_caller_requests_total{caller="default",outcome="admitted"}`: 2,
			`millrace_broker_caller_requests_total{caller="default",outcome="refused"}`:  4,
			`millrace_broker_requests_total{feed="",outcome="quota_exceeded"}`:           34,
		} {
			if got[series] != want {
				t.Errorf("%s is %v, want %v", series, got[series], want)
			}
		}
	})
}

// The header counts on every wire, and the refusal is each wire's own.
func TestQuotaOnTheWires(t *testing.T) {
	w := newWorld(t, 1, 1)
	b, err := New(Config{Maps: w, Dial: w.dial, Log: slog.New(slog.DiscardHandler), Quotas: map[string]admission.Quota{"jobs": {PerSecond: 0.01}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx := metadata.NewOutgoingContext(t.Context(), metadata.Pairs(admission.CallerHeader, "jobs"))
	native := feedv1.NewFeedServiceClient(servedGRPC(t, b))
	if _, err := native.GetFeed(ctx, recentRequest(1)); err != nil {
		t.Fatal(err)
	}
	_, err = native.GetFeed(ctx, recentRequest(1))
	if pause, ok := rpcerr.RetryAfter(err); status.Code(err) != codes.ResourceExhausted || !ok || pause < 90*time.Second {
		t.Errorf("by gRPC: %v, after %s", err, pause)
	}
	s := httptest.NewServer(b.Handler())
	t.Cleanup(s.Close)
	for _, path := range []string{"/v1/feed", "/millrace.feed.v1.FeedService/GetFeed"} {
		for caller, want := range map[string]int{"jobs": 429, "others": 200} {
			req, err := http.NewRequest("POST", s.URL+path, strings.NewReader(`{"feed":"recent","entities":["member:1"]}`))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set(admission.CallerHeader, caller)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != want || want == 429 && path == "/v1/feed" && len(resp.Header.Get("Retry-After")) < 2 {
				t.Errorf("%s of %s: %d, Retry-After %q", path, caller, resp.StatusCode, resp.Header.Get("Retry-After"))
			}
		}
	}
}

// A request that has been answered, or refused, by whatever door, is under way no
// longer: one at a time, all of a caller are let in.
func TestWhatIsAnsweredIsUnderWayNoLonger(t *testing.T) {
	w := newWorld(t, 1, 1)
	b, err := New(Config{Maps: w, Dial: w.dial, Log: slog.New(slog.DiscardHandler), Quotas: map[string]admission.Quota{admission.DefaultCaller: {AtOnce: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	native := feedv1.NewFeedServiceClient(servedGRPC(t, b))
	s := httptest.NewServer(b.Handler())
	t.Cleanup(s.Close)
	for _, body := range []string{`{"feed":"recent","entities":["member:1"]}`, `{"feed":"no such"}`, `{`} {
		if _, err := native.GetFeed(t.Context(), recentRequest(1)); err != nil {
			t.Errorf("by gRPC: %v", err)
		}
		if _, err := native.GetFeed(t.Context(), &feedv1.GetFeedRequest{}); status.Code(err) == codes.ResourceExhausted {
			t.Errorf("one that is refused, by gRPC: %v", err)
		}
		for _, path := range []string{"/v1/feed", "/v1/why", "/millrace.feed.v1.FeedService/GetFeed"} {
			resp, err := http.Post(s.URL+path, "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode == http.StatusTooManyRequests {
				t.Errorf("%s of %s: %s", path, body, resp.Status)
			}
		}
		if _, err := b.GetFeed(t.Context(), recentRequest(1)); err != nil {
			t.Errorf("in the process: %v", err)
		}
	}
}

func TestBadQuotas(t *testing.T) {
	w := newWorld(t, 1, 1)
	for caller, q := range map[string]admission.Quota{"none": {}, "less": {PerSecond: -1}, "burst": {PerSecond: 1, Burst: -1}, "at once": {AtOnce: -1}, "": {PerSecond: 1}} {
		if _, err := New(Config{Maps: w, Quotas: map[string]admission.Quota{caller: q}}); err == nil || !strings.Contains(fmt.Sprint(err), "quota") {
			t.Errorf("%q %+v: %v", caller, q, err)
		}
	}
}
