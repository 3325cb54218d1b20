package broker

import (
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/internal/door"
	"github.com/millrace/millrace/internal/permit"
)

// What a caller has no right to ask is refused by its field at both doors, and
// with the right it is answered.
func TestCallersAskWhatTheyHaveARightTo(t *testing.T) {
	w := newWorld(t, 1, 1)
	b := w.broker(feeds.Feed{Name: "jobs", Model: "recency"}, feeds.Feed{Name: "posts", Model: "recency"})
	of := func(change func(*feedv1.GetFeedRequest)) *feedv1.GetFeedRequest {
		req := recentRequest(1)
		req.Feed = "jobs"
		change(req)
		return req
	}
	jobs := []string{"jobs"}
	for name, c := range map[string]struct {
		req   *feedv1.GetFeedRequest
		right permit.Rights // what it takes
		field string        // refused without
	}{
		"its feed":        {of(func(*feedv1.GetFeedRequest) {}), permit.Rights{Feeds: jobs}, ""},
		"another feed":    {of(func(r *feedv1.GetFeedRequest) { r.Feed = "posts" }), permit.Rights{Feeds: []string{"posts"}}, "feed"},
		"no feed":         {of(func(r *feedv1.GetFeedRequest) { r.Feed = "none" }), permit.Rights{}, "feed"},
		"the built-in":    {of(func(r *feedv1.GetFeedRequest) { r.Feed = "recent" }), permit.Rights{May: []permit.Right{permit.Recent}}, "feed"},
		"built-in, named": {of(func(r *feedv1.GetFeedRequest) { r.Feed = "recent" }), permit.Rights{Feeds: []string{"recent"}}, "feed"},
		"a filter":        {of(func(r *feedv1.GetFeedRequest) { r.Filter = "true" }), permit.Rights{Feeds: jobs, May: []permit.Right{permit.Filter}}, "filter"},
		"explain":         {of(func(r *feedv1.GetFeedRequest) { r.Explain = true }), permit.Rights{Feeds: jobs, May: []permit.Right{permit.Explain}}, "explain"},
		"a model":         {of(func(r *feedv1.GetFeedRequest) { r.Model = "recency" }), permit.Rights{Feeds: jobs, May: []permit.Right{permit.Model}}, "model"},
	} {
		for _, why := range []bool{false, true} {
			ask := func(r permit.Rights) error {
				ctx := permit.With(t.Context(), permit.Identity{Name: "app", Roles: []permit.Role{permit.Caller}, Rights: &r})
				if !why {
					_, err := b.GetFeed(ctx, c.req)
					return err
				}
				r.May = append([]permit.Right{permit.Why}, r.May...)
				_, err := b.Why(ctx, &feedv1.WhyRequest{Record: "r", Request: c.req})
				return err
			}
			var e *millrace.Error
			want := c.field
			if why && want != "" {
				want = "request." + want
			}
			err := ask(permit.Rights{Feeds: jobs})
			if refused := errors.As(err, &e) && e.Reason == millrace.ReasonForbidden; refused != (c.field != "") || refused && e.Field != want {
				t.Errorf("%s, why %v, without a right: %v", name, why, err)
			}
			if err := ask(c.right); errors.As(err, &e) && e.Reason == millrace.ReasonForbidden {
				t.Errorf("%s, why %v, with the right: %v", name, why, err)
			}
		}
	}
	ctx := permit.With(t.Context(), permit.Identity{Name: "app", Rights: &permit.Rights{}})
	if e := refusal(t, errorOf(b.Why(ctx, &feedv1.WhyRequest{Record: "r", Request: of(func(*feedv1.GetFeedRequest) {})}))); e.Reason != millrace.ReasonForbidden || e.Field != "request" {
		t.Errorf("why, without the right: %v", e)
	}
}

// Whoever asks for more than its rights is told by the port that it came through.
func TestWhoAsksForMoreIsTold(t *testing.T) {
	b := newWorld(t, 1, 1).broker()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	caller, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer caller.Close()
	all := prometheus.NewRegistry()
	conn, err := door.New(l, door.Config{Port: "grpc", Told: door.NewRefusals(slog.New(slog.DiscardHandler), all)}).Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := door.With(permit.With(t.Context(), permit.Identity{Name: "app", Rights: &permit.Rights{}}), door.Of(conn))
	refusal(t, errorOf(b.GetFeed(ctx, recentRequest(1))))
	refusal(t, errorOf(b.Why(ctx, &feedv1.WhyRequest{Record: "r", Request: recentRequest(1)})))
	const want = `
# HELP millrace_refused_total Connections and requests that a port turned away, by reason: full, peer (an address has its share), identity (who asks has), late (nothing was let in in time), handshake, unknown (no name, or a token that is not believed), forbidden, origin (of another site), host (a name that is not the port's).
# TYPE millrace_refused_total counter
millrace_refused_total{port="grpc",reason="forbidden"} 2
millrace_refused_total{port="grpc",reason="full"} 0
millrace_refused_total{port="grpc",reason="handshake"} 0
millrace_refused_total{port="grpc",reason="host"} 0
millrace_refused_total{port="grpc",reason="identity"} 0
millrace_refused_total{port="grpc",reason="late"} 0
millrace_refused_total{port="grpc",reason="origin"} 0
millrace_refused_total{port="grpc",reason="peer"} 0
millrace_refused_total{port="grpc",reason="unknown"} 0
`
	if err := testutil.GatherAndCompare(all, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

func errorOf[T any](_ T, err error) error { return err }
