package doors

import (
	"testing"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/tap"

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
