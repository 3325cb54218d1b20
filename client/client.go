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

// The bounds of retries, so that clients do not keep an overload alive: a call is tried
// three times at most, each call adds a tenth of a retry to those that the client may make,
// and the client saves up ten retries at most.
const (
	maxTries   = 3
	retryShare = 0.1
	retryBurst = 10
)

// lostPause is the pause before a call is tried again if its connection was lost or no
// broker could be reached.
const lostPause = 50 * time.Millisecond

// maxResponseBytes bounds an answer, in bytes: a page may have 1,000 large records.
const maxResponseBytes = 64 << 20

// Client calls brokers. Its methods may be called concurrently.
type Client struct {
	conn *grpc.ClientConn
	feed feedv1.FeedServiceClient

	mu struct {
		sync.Mutex
		retries float64 // how many retries may be made now
	}
}

// Dial returns a client of one broker or of several. addr is the host:port of a broker's
// gRPC, several of them separated by commas, or a name that DNS resolves to several
// brokers. Calls go to the brokers in turn, and one that stops or cannot be reached is left
// out until it is back. The client connects when it is first used. Without opts connections
// are not encrypted.
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

// GetFeed returns one page of a feed. Its Coverage says whether every partition answered;
// with MinCoverage in the request, GetFeed returns an error in place of a page with a lower
// coverage.
// GetFeed makes a request again, at another broker if there is one, if the connection is
// lost, or if the broker refuses it and names a pause after which it may be made again. The
// deadline and a budget of retries bound this. A request changes nothing in the cluster, so
// it does no harm to make it twice.
func (c *Client) GetFeed(ctx context.Context, req *feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error) {
	return call(ctx, c, req, c.feed.GetFeed)
}

// Why tells what became of a record in the answer to a request: the stage that dropped it,
// or its place. It makes a request again as GetFeed does.
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

// pauseAfter returns the pause after which a call that failed with err may be tried again;
// false if it may not. A broker that refuses a call as Unavailable gives details, with a
// pause. Unavailable without details comes from gRPC itself: a connection was lost or could
// not be made.
func pauseAfter(err error) (time.Duration, bool) {
	if pause, ok := rpcerr.RetryAfter(err); ok {
		return pause, true
	}
	s, _ := status.FromError(err)
	return lostPause, s.Code() == codes.Unavailable && len(s.Details()) == 0
}

// Pages yields the pages of a feed, one after the other, up to the last one or to the first
// error. req is not changed.
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

// FromCaller returns a context whose calls name caller as the service that asks. They count
// against its quota.
func FromCaller(ctx context.Context, caller string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "millrace-caller", caller)
}

// ForPrefetch returns a context for calls that prepare answers nobody waits for yet. A busy
// broker refuses these first.
func ForPrefetch(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "millrace-priority", "prefetch")
}

// earn adds retryShare, the part of a retry that each call allows.
func (c *Client) earn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.retries = min(retryBurst, c.mu.retries+retryShare)
}

// spend takes one retry, and reports whether there was one.
func (c *Client) spend() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.retries < 1 {
		return false
	}
	c.mu.retries--
	return true
}

// longestPause bounds the pause that a broker may ask for.
const longestPause = time.Minute

// sleep pauses for d and a random time of up to half of d, so that clients do not all come
// back at once. It returns false if ctx ends before the pause does. If the deadline of ctx
// comes before the end of the pause, it returns false at once.
func sleep(ctx context.Context, d time.Duration) bool {
	d = min(max(d, 0), longestPause) // a broker may ask for any pause
	d += rand.N(d/2 + 1)
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= d {
		return false
	}
	return wait.For(ctx, d) == nil
}
