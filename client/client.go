// Package client calls a Millrace broker from Go.
//
//	c, err := client.Dial("127.0.0.1:9090")
//	...
//	page, err := c.GetFeed(ctx, &feedv1.GetFeedRequest{Feed: "recent", Viewer: ..., Entities: ...})
//
// A request that the broker refuses gives a [millrace.Error] (errors.As) that
// names the field and the way out.
package client

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/rpcerr"
)

// Timeout is the deadline of a call whose context has none.
const Timeout = 5 * time.Second

// Client calls one broker, or several behind one name. It may be used by many
// goroutines at once.
type Client struct {
	conn *grpc.ClientConn
	feed feedv1.FeedServiceClient
}

// Dial returns a client of the broker at addr, host:port of its gRPC. It
// connects when first used. Without options the connection is not encrypted.
func Dial(addr string, opts ...grpc.DialOption) (*Client, error) {
	if len(opts) == 0 {
		opts = []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	}
	conn, err := grpc.NewClient(addr, opts...)
	if err != nil {
		return nil, err
	}
	return &Client{conn: conn, feed: feedv1.NewFeedServiceClient(conn)}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// GetFeed returns one page of a feed. Look at its Coverage: an answer that
// could not reach everything says so there.
func (c *Client) GetFeed(ctx context.Context, req *feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, Timeout)
		defer cancel()
	}
	resp, err := c.feed.GetFeed(ctx, req)
	if err != nil {
		return nil, rpcerr.FromStatus(err)
	}
	return resp, nil
}
