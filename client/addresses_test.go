package client

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
)

// counted is a broker that counts, and may be told to end its connections under
// the calls.
type counted struct {
	feedv1.UnimplementedFeedServiceServer
	server *grpc.Server
	addr   string
	asked  atomic.Int64
	breaks atomic.Bool
}

func (c *counted) GetFeed(ctx context.Context, _ *feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error) {
	c.asked.Add(1)
	if c.breaks.Load() {
		go c.server.Stop() // which waits for this call, after it has ended the connections
		<-ctx.Done()
	}
	return &feedv1.GetFeedResponse{Items: []*feedv1.Item{{Id: c.addr}}}, nil
}

func serveCounted(t *testing.T) *counted {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &counted{server: grpc.NewServer(), addr: l.Addr().String()}
	feedv1.RegisterFeedServiceServer(c.server, c)
	go c.server.Serve(l)
	return c
}

// Of several brokers all are asked; when one stops in order, or nobody listens at
// an address, every call is answered by the others.
func TestBrokersAreAskedInTurn(t *testing.T) {
	one, two := serveCounted(t), serveCounted(t)
	defer one.server.Stop()
	defer two.server.Stop()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	c, err := Dial(one.addr + ", " + two.addr + "," + gone.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	ask := func() string {
		t.Helper()
		resp, err := c.GetFeed(ctx, &feedv1.GetFeedRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return resp.Items[0].Id
	}
	for one.asked.Load() == 0 || two.asked.Load() == 0 {
		ask()
	}
	one.server.GracefulStop()
	was := one.asked.Load()
	for range 1000 {
		if by := ask(); by != two.addr {
			t.Fatalf("answered by %s", by)
		}
	}
	if n := one.asked.Load(); n != was {
		t.Errorf("%d calls to a broker that has stopped", n-was)
	}
}

// A call whose broker dies under it is answered by another.
func TestACallSurvivesItsBroker(t *testing.T) {
	one, two := serveCounted(t), serveCounted(t)
	defer two.server.Stop()
	one.breaks.Store(true)
	c, err := Dial(one.addr + "," + two.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for one.asked.Load() == 0 {
		resp, err := c.GetFeed(ctx, &feedv1.GetFeedRequest{})
		if err != nil || resp.Items[0].Id != two.addr {
			t.Fatalf("%v, %v", resp, err)
		}
	}
}
