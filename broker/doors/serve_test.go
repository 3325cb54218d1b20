package doors

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/admission"
	"github.com/millrace/millrace/internal/rpcerr"
)

// A full limiter refuses by the headers alone, and feeds alone.
func TestRefuseEarly(t *testing.T) {
	control := admission.New(nil, 256<<20)
	shed := 0
	b := New(Config{Admission: control, Shed: func() { shed++ }})
	feed := &tap.Info{FullMethodName: feedv1.FeedService_GetFeed_FullMethodName}
	prefetch := &tap.Info{FullMethodName: feed.FullMethodName, Header: metadata.Pairs(admission.PriorityHeader, "prefetch")}
	other := &tap.Info{FullMethodName: "/grpc.health.v1.Health/Check"}
	limit := control.Limit()
	for i := range limit + 1 {
		for _, c := range []struct {
			info   *tap.Info
			refuse bool
		}{{feed, i >= limit}, {prefetch, i >= limit/2}, {other, false}} {
			if _, err := b.admitCall(t.Context(), c.info); (err != nil) != c.refuse {
				t.Fatalf("%s %v with %d in flight: %v", c.info.FullMethodName, c.info.Header, i, err)
			} else if _, again := rpcerr.RetryAfter(err); again != c.refuse {
				t.Fatalf("no hint when to try again: %v", err)
			}
		}
		_, _ = control.Enter(t.Context())
	}
	if want := limit/2 + 2; shed != want { // prefetches from the half, the other at the end
		t.Errorf("%d were told to have been shed, want %d", shed, want)
	}
}

// A door that refuses a request for its headers tells so, once, and nobody is asked.
func TestBadHeadersAreTold(t *testing.T) {
	refused := 0
	d := New(Config{Admission: admission.New(nil, 256<<20), Refused: func(error) { refused++ }})
	asked := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("what is refused is asked") })
	for name, value := range map[string]string{admission.PriorityHeader: "urgent", admission.TimeoutHeader: "soon"} {
		req, to := httptest.NewRequest(http.MethodPost, "/v1/feed", strings.NewReader("{}")), httptest.NewRecorder()
		req.Header.Set(name, value)
		refused = 0
		if d.guarded(asked).ServeHTTP(to, req); to.Code != http.StatusBadRequest || refused != 1 {
			t.Errorf("%s: %d, told %d times", name, to.Code, refused)
		}
	}
	call := serveGRPC(d, func(context.Context, *feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error) {
		t.Error("what is refused is asked")
		return nil, nil
	})
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(admission.PriorityHeader, "urgent"))
	if _, err := call(nil, ctx, func(any) error { return nil }, nil); status.Code(err) != codes.InvalidArgument {
		t.Errorf("by gRPC: %v", err)
	}
}

// What a node or the broker says of itself stays in the log: a caller is told where it is.
// Refusals, and calls that are taken back, stay what they are.
func TestInnerTextsStayInside(t *testing.T) {
	var log bytes.Buffer
	for name, c := range map[string]struct {
		err    error
		inside bool
	}{
		"a broken disk":       {errors.New("open /srv/data/000017.sst: input/output error"), true},
		"a node's":            {status.Error(codes.Internal, "node 10.0.0.7:7070: open /srv/data"), true},
		"a refusal":           {fmt.Errorf("feed: %w", &millrace.Error{Reason: millrace.ReasonInvalid, Field: "feed", Detail: "there is no /srv/data"}), false},
		"too late":            {context.DeadlineExceeded, false},
		"nobody waits for it": {fmt.Errorf("asking: %w", context.Canceled), false},
	} {
		log.Reset()
		feed := outward(func(context.Context, *feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error) { return nil, c.err }, slog.New(slog.NewTextHandler(&log, nil)))
		_, err := feed(t.Context(), nil)
		if !c.inside {
			if err != c.err || log.Len() > 0 {
				t.Errorf("%s: %v; the log has %q", name, err, log.String())
			}
			continue
		}
		_, ref, ok := strings.Cut(err.Error(), "ref=")
		told := []string{err.Error(), rpcerr.Status(err).Error(), rpcerr.Connect(err).Error(), rpcerr.ProblemOf(err).Detail}
		if strings.Contains(strings.Join(told, " "), "/srv") || !ok || len(ref) != 8 || !strings.Contains(log.String(), "ref="+ref) || !strings.Contains(log.String(), "/srv/data") {
			t.Errorf("%s: callers are told %q, and the log has %q", name, told, log.String())
		}
	}
}
