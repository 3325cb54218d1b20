package broker

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/rpcerr"
)

// servedNode puts a fake node behind gRPC, as index nodes are.
type servedNode struct {
	nodev1.UnimplementedNodeServiceServer
	*fakeNode
}

func (s servedNode) Query(ctx context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
	resp, err := s.fakeNode.Query(ctx, req)
	return resp, rpcerr.Status(err)
}

func (s servedNode) GetSchema(ctx context.Context, req *nodev1.GetSchemaRequest) (*nodev1.GetSchemaResponse, error) {
	resp, err := s.fakeNode.GetSchema(ctx, req)
	return resp, rpcerr.Status(err)
}

func serveNode(t *testing.T, n *fakeNode, addr string, opts ...grpc.ServerOption) (stop func(), at string) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	for tries := 0; errors.Is(err, syscall.EADDRINUSE) && tries < 100; tries++ {
		time.Sleep(200 * time.Millisecond) // an outgoing connection may have the port for a moment
		l, err = net.Listen("tcp", addr)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(opts...)
	nodev1.RegisterNodeServiceServer(s, servedNode{fakeNode: n})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	return func() { s.Stop(); <-done }, l.Addr().String()
}

// A node behind gRPC refuses as one in this process, and one that was gone is
// used again soon after it is back.
func TestRemoteNode(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.add(timelineOf(1), "r1", timeAt(1), "")
	node := w.nodes["n0"]
	stop, addr := serveNode(t, node, "127.0.0.1:0")
	w.m = topology.NewMap(w.m.Assignment(), []topology.Node{{ID: "n0", Addr: addr}}, map[millrace.NodeID]topology.Set{"n0": topology.All()})
	b, err := New(Config{Maps: w, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	if resp, err := b.GetFeed(t.Context(), recentRequest(3)); err != nil || len(resp.Items) != 1 || resp.Items[0].Record == nil {
		t.Fatalf("%v, %v", resp, err)
	}

	refused := millrace.Error{Reason: millrace.ReasonFilter, Field: "filter", Detail: "d", WayOut: "w"}
	node.set(func() { node.err = &refused })
	_, err = b.GetFeed(t.Context(), recentRequest(3))
	if e := refusal(t, err); *e != refused {
		t.Errorf("got %+v", e)
	}
	node.set(func() { node.err = nil })

	stop()
	_, err = b.GetFeed(t.Context(), recentRequest(3))
	if e := refusal(t, err); e.Reason != millrace.ReasonUnavailable {
		t.Errorf("without its node: %+v", e)
	}
	stop, _ = serveNode(t, node, addr)
	t.Cleanup(stop)
	limit, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		_, err := b.GetFeed(limit, recentRequest(3))
		if err == nil {
			break
		}
		if limit.Err() != nil {
			t.Fatalf("a node that is back is not used: %v", err)
		}
	}
}

// A node behind gRPC whose process is frozen, so that the kernel takes what is
// sent to it and nothing comes back, is found unresponsive and told as unreachable; one
// that is slow, and answers pings, is waited for.
func TestUnresponsiveRemoteNode(t *testing.T) {
	t.Parallel() // it waits
	w := newWorld(t, 2, 1)
	for i := range 30 {
		w.add(timelineOf(i), recordID(i), timeAt(i), "")
	}
	slow := w.nodes["n0"]
	slow.set(func() { slow.delay = func() time.Duration { return 4 * time.Second } })
	stop, addr := serveNode(t, slow, "127.0.0.1:0")
	t.Cleanup(stop)
	frozen, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	defer frozen.Close()
	w.m = topology.NewMap(w.m.Assignment(), []topology.Node{{ID: "n0", Addr: addr}, {ID: "n1", Addr: frozen.Addr().String()}}, map[millrace.NodeID]topology.Set{"n0": topology.All(), "n1": topology.All()})
	b, err := New(Config{Maps: w, Log: slog.New(slog.DiscardHandler), Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	resp, err := b.GetFeed(t.Context(), recentRequest(30))
	if err != nil || len(resp.Items) == 0 || len(resp.Coverage.Missing) == 0 {
		t.Fatalf("%v, %v", resp.GetCoverage(), err)
	}
	for _, m := range resp.Coverage.Missing {
		if m.Reason != fanout.MissUnreachable || w.m.Replicas(partitionOf(m))[0] != "n1" {
			t.Errorf("missing %v", m)
		}
	}
	if !b.fanout.Unresponsive("n1") || b.fanout.Unresponsive("n0") {
		t.Errorf("the frozen one is unresponsive: %v; the slow one: %v", b.fanout.Unresponsive("n1"), b.fanout.Unresponsive("n0"))
	}
}

// TestDialGRPCByAnotherNetwork: what it is given comes behind what gRPC is tuned
// with, so that a dialler counts.
func TestDialGRPCByAnotherNetwork(t *testing.T) {
	dialled := make(chan string, 100)
	n, err := fanout.DialGRPC(grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(func(_ context.Context, addr string) (net.Conn, error) {
		dialled <- addr
		return nil, errors.New("there is no way")
	}))(topology.Node{ID: "node-1", Addr: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer n.(io.Closer).Close()
	if err := n.Ping(t.Context()); !errors.Is(err, fanout.ErrUnreachable) {
		t.Errorf("it answers %v", err)
	}
	if addr := <-dialled; addr != "127.0.0.1:1" {
		t.Errorf("%s was dialled", addr)
	}
}
