package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/admission"
	"github.com/millrace/millrace/internal/rpcerr"
)

// broker answers by a script: an error a call, then pages.
type broker struct {
	feedv1.FeedServiceClient
	errs  []error
	pages int
	calls int
}

func (b *broker) GetFeed(ctx context.Context, req *feedv1.GetFeedRequest, _ ...grpc.CallOption) (*feedv1.GetFeedResponse, error) {
	b.calls++
	if _, ok := ctx.Deadline(); !ok {
		return nil, errors.New("no deadline")
	}
	if len(b.errs) > 0 {
		err := b.errs[0]
		b.errs = b.errs[1:]
		return nil, err
	}
	var page int
	_, _ = fmt.Sscanf(req.PageToken, "%d", &page)
	resp := &feedv1.GetFeedResponse{Items: []*feedv1.Item{{Id: fmt.Sprint(page)}}}
	if page+1 < b.pages {
		resp.NextPageToken = fmt.Sprint(page + 1)
	}
	return resp, nil
}

func refused(r millrace.Reason) error { return rpcerr.Status(&millrace.Error{Reason: r, Detail: "x"}) }

// lost is what gRPC says of a connection that ends under a call.
var lost = status.Error(codes.Unavailable, "error reading from server: EOF")

func TestRetries(t *testing.T) {
	for name, c := range map[string]struct {
		errs    []error
		timeout time.Duration
		calls   int
		want    millrace.Reason // "" when it succeeds
	}{
		"none":               {nil, time.Minute, 1, ""},
		"overloaded once":    {[]error{refused(millrace.ReasonOverloaded)}, time.Minute, 2, ""},
		"overloaded always":  {[]error{refused(millrace.ReasonOverloaded), refused(millrace.ReasonOverloaded), refused(millrace.ReasonOverloaded)}, time.Minute, 3, millrace.ReasonOverloaded},
		"no time to wait":    {[]error{refused(millrace.ReasonOverloaded)}, time.Second, 1, millrace.ReasonOverloaded},
		"the request's flaw": {[]error{refused(millrace.ReasonInvalid)}, time.Minute, 1, millrace.ReasonInvalid},
		"connection lost":    {[]error{lost}, time.Minute, 2, ""},
		"always lost":        {[]error{lost, lost, lost}, time.Minute, 3, millrace.ReasonUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &broker{errs: c.errs}
				ctx, cancel := context.WithTimeout(t.Context(), c.timeout)
				defer cancel()
				_, err := newClient(nil, b).GetFeed(ctx, &feedv1.GetFeedRequest{})
				var e *millrace.Error
				if b.calls != c.calls || (err == nil) != (c.want == "") || err != nil && (!errors.As(err, &e) || e.Reason != c.want) {
					t.Errorf("%d calls, %v; want %d, %q", b.calls, err, c.calls, c.want)
				}
			})
		})
	}
}

// However many calls are refused, retries stay a tenth of them.
func TestRetriesHaveABudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &broker{}
		for range 3000 {
			b.errs = append(b.errs, refused(millrace.ReasonOverloaded))
		}
		c := newClient(nil, b)
		for range 1000 {
			_, _ = c.GetFeed(t.Context(), &feedv1.GetFeedRequest{})
		}
		if b.calls > 1000+100+retryBurst {
			t.Errorf("%d calls for 1000", b.calls)
		}
	})
}

func TestPages(t *testing.T) {
	b := &broker{pages: 3}
	req := &feedv1.GetFeedRequest{}
	var got string
	for page, err := range newClient(nil, b).Pages(t.Context(), req) {
		if err != nil {
			t.Fatal(err)
		}
		got += page.Items[0].Id
	}
	if got != "012" || req.PageToken != "" {
		t.Errorf("pages %q, the caller's token %q", got, req.PageToken)
	}
	b.errs = []error{refused(millrace.ReasonPageToken)}
	n := 0
	for _, err := range newClient(nil, b).Pages(t.Context(), req) {
		if n++; err == nil || n > 1 {
			t.Errorf("page %d: %v", n, err)
		}
	}
}

// The names of headers are the broker's.
func TestHeaders(t *testing.T) {
	sent, _ := metadata.FromOutgoingContext(ForPrefetch(FromCaller(t.Context(), "jobs")))
	if got := sent.Get(admission.CallerHeader); len(got) != 1 || got[0] != "jobs" {
		t.Errorf("caller %q", got)
	}
	if got := sent.Get(admission.PriorityHeader); len(got) != 1 || got[0] != "prefetch" {
		t.Errorf("priority %q", got)
	}
}

// Whatever pause a server asks for, a client takes one that makes sense.
func TestPausesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, d := range []time.Duration{math.MinInt64, -time.Second, 0, time.Hour, math.MaxInt64} {
			begin := time.Now()
			if !sleep(t.Context(), d) || time.Since(begin) > 2*longestPause {
				t.Errorf("%s: slept for %s", d, time.Since(begin))
			}
		}
	})
}
