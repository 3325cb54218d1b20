// Package client calls Millrace brokers from Go.
//
//	c, err := client.Dial("broker-1:9090,broker-2:9090")
//	...
//	page, err := c.GetFeed(ctx, &feedv1.GetFeedRequest{
//		Feed:     "recent",
//		Viewer:   &feedv1.Viewer{Id: "member:1"},
//		Entities: []string{"member:2", "member:3"},
//	})
//
// A request that the broker refuses gives a [millrace.Error] (errors.As) that
// names the field and the way out.
package client

import (
	"context"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/grpctune"
	"github.com/millrace/millrace/internal/rpcerr"
	"github.com/millrace/millrace/internal/wait"
)

// Timeout is the deadline of a call whose context has none.
const Timeout = 5 * time.Second

// A call is tried three times at most, and retries are a tenth of all calls
// and a few at once, so that clients do not keep an overload alive.
const (
	maxTries   = 3
	retryShare = 0.1
	retryBurst = 10
)

// lostPause is the pause after which a call is tried again whose connection was
// lost, or that no broker could be reached for.
const lostPause = 50 * time.Millisecond

// maxResponseBytes bounds a page: 1,000 large records.
const maxResponseBytes = 64 << 20

// Client calls brokers. It may be used by many goroutines at once.
type Client struct {
	conn *grpc.ClientConn
	feed feedv1.FeedServiceClient

	mu struct {
		sync.Mutex
		retries float64 // that may be made now
	}
}

// Dial returns a client of the broker at addr, host:port of its gRPC, or of
// several: separated by commas, or of all that a name stands for. They are asked
// in turn, and one that stops or cannot be reached is left out until it is back.
// The client connects when first used. Without options connections are not
// encrypted.
func Dial(addr string, opts ...grpc.DialOption) (*Client, error) {
	if len(opts) == 0 {
		opts = []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	}
	own := []grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponseBytes)),
	}
	to, how := target(addr)
	opts = slices.Concat(grpctune.Client(), own, how, opts)
	conn, err := grpc.NewClient(to, opts...)
	if err != nil {
		return nil, err
	}
	return newClient(conn, feedv1.NewFeedServiceClient(conn)), nil
}

func newClient(conn *grpc.ClientConn, feed feedv1.FeedServiceClient) *Client {
	c := &Client{conn: conn, feed: feed}
	c.mu.retries = retryBurst
	return c
}

// Close ends the connections.
func (c *Client) Close() error { return c.conn.Close() }

// GetFeed returns one page of a feed. Look at its Coverage: an answer that
// could not reach everything says so there, unless the request's MinCoverage
// refuses it. Where the broker says that a refusal will pass, GetFeed tries
// again after the pause that it names, as far as the deadline allows; and where
// the connection is lost, at another broker if there is one. It changes nothing
// in the cluster, so a request that a broker had begun may be made again.
func (c *Client) GetFeed(ctx context.Context, req *feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error) {
	return call(ctx, c, req, c.feed.GetFeed)
}

// Why tells what became of a record in the answer to a request: the stage that
// dropped it, or its place. It tries again as GetFeed does.
func (c *Client) Why(ctx context.Context, req *feedv1.WhyRequest) (*feedv1.WhyResponse, error) {
	return call(ctx, c, req, c.feed.Why)
}

func call[Req, Resp any](ctx context.Context, c *Client, req Req, method func(context.Context, Req, ...grpc.CallOption) (*Resp, error)) (*Resp, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, Timeout)
		defer cancel()
	}
	c.earn()
	for try := 1; ; try++ {
		resp, err := method(ctx, req)
		if err == nil {
			return resp, nil
		}
		pause, again := pauseAfter(err)
		if !again || try == maxTries || !c.spend() || !sleep(ctx, pause) {
			return nil, rpcerr.FromStatus(err)
		}
	}
}

// pauseAfter returns the pause after which a call that failed may be tried
// again; false if it may not. Unavailable without details is not a broker's word
// but gRPC's, on a connection that was lost or could not be made: a broker says
// when to come back.
func pauseAfter(err error) (time.Duration, bool) {
	if pause, ok := rpcerr.RetryAfter(err); ok {
		return pause, true
	}
	s, _ := status.FromError(err)
	return lostPause, s.Code() == codes.Unavailable && len(s.Details()) == 0
}

// Pages yields the pages of a feed, one after the other, until there is none
// or an error. req is not changed.
//
//	for page, err := range c.Pages(ctx, req) {
//		if err != nil {
//			return err
//		}
//		show(page.Items)
//	}
func (c *Client) Pages(ctx context.Context, req *feedv1.GetFeedRequest) iter.Seq2[*feedv1.GetFeedResponse, error] {
	return func(yield func(*feedv1.GetFeedResponse, error) bool) {
		next := proto.Clone(req).(*feedv1.GetFeedRequest)
		for {
			page, err := c.GetFeed(ctx, next)
			if !yield(page, err) || err != nil || page.GetNextPageToken() == "" {
				return
			}
			next.PageToken = page.GetNextPageToken()
		}
	}
}

// FromCaller returns a context whose calls name the service that asks, whose
// quota counts.
func FromCaller(ctx context.Context, caller string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "millrace-caller", caller)
}

// ForPrefetch returns a context whose calls prepare what nobody waits for yet:
// a busy broker refuses them first.
func ForPrefetch(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "millrace-priority", "prefetch")
}

func (c *Client) earn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.retries = min(retryBurst, c.mu.retries+retryShare)
}

func (c *Client) spend() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.retries < 1 {
		return false
	}
	c.mu.retries--
	return true
}

// longestPause bounds what a server may ask for.
const longestPause = time.Minute

// sleep pauses for about d, differently for each caller, unless the deadline
// comes first.
func sleep(ctx context.Context, d time.Duration) bool {
	d = min(max(d, 0), longestPause) // whatever a server says
	d += rand.N(d/2 + 1)
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= d {
		return false
	}
	return wait.For(ctx, d) == nil
}
