package fanout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/grpctune"
	"github.com/millrace/millrace/internal/nodewire"
	"github.com/millrace/millrace/internal/rpcerr"
	"github.com/millrace/millrace/internal/tracing"
)

// maxMessageBytes bounds a request to a node, and its response. A request may name 20,000
// entities of 512 bytes each, and a response may hold a page of large records.
const maxMessageBytes = 32 << 20

// DialGRPC returns a function that dials index nodes by gRPC with the given options.
// Without options the connection is not encrypted. The connection is made at the first
// call, so an address at which nothing listens is no error yet.
func DialGRPC(opts ...grpc.DialOption) func(topology.Node) (Node, error) {
	if len(opts) == 0 {
		opts = []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	}
	opts = append(append(grpctune.Client(), opts...),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(nodewire.Codec()), grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.MaxCallSendMsgSize(maxMessageBytes)))
	return func(n topology.Node) (Node, error) {
		conn, err := grpc.NewClient(n.Addr, opts...)
		if err != nil {
			return nil, fmt.Errorf("broker: node %s at %s: %w", n.ID, n.Addr, err)
		}
		return &remote{conn, nodev1.NewNodeServiceClient(conn), healthv1.NewHealthClient(conn)}, nil
	}
}

// remote is a node behind gRPC.
type remote struct {
	*grpc.ClientConn
	rpc    nodev1.NodeServiceClient
	health healthv1.HealthClient
}

func (r *remote) Query(ctx context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
	resp, err := r.rpc.Query(tracing.Outgoing(ctx), req)
	return resp, nodeError(err)
}

func (r *remote) GetSchema(ctx context.Context, req *nodev1.GetSchemaRequest) (*nodev1.GetSchemaResponse, error) {
	resp, err := r.rpc.GetSchema(ctx, req)
	return resp, nodeError(err)
}

// Ping implements Node. Any answer of the health service, even an error, shows that the
// node is there; only an unreachable node or the end of ctx is an error.
func (r *remote) Ping(ctx context.Context) error {
	_, err := r.health.Check(ctx, &healthv1.HealthCheckRequest{})
	if err = nodeError(err); errors.Is(err, ErrUnreachable) || ended(err) {
		return err
	}
	return nil
}

// nodeError turns the error of a gRPC call into what [Node] promises. An error without
// details comes from gRPC and not from the node: then Unavailable is [ErrUnreachable] and
// ResourceExhausted is [ErrTooLarge].
func nodeError(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok || len(s.Details()) > 0 {
		return rpcerr.FromStatus(err)
	}
	switch s.Code() {
	case codes.Unavailable:
		return fmt.Errorf("%w: %s", ErrUnreachable, s.Message())
	case codes.ResourceExhausted:
		return fmt.Errorf("%w: %s", ErrTooLarge, s.Message())
	}
	return rpcerr.FromStatus(err)
}

// conns is the connections to the nodes, each opened when first needed.
type conns struct {
	dial func(topology.Node) (Node, error)
	log  *slog.Logger

	mu struct {
		sync.Mutex
		kept    *topology.Map // the map that keep saw last
		open    map[place]Node
		leaving map[place]*time.Timer // closes the open connection to a node that has left
	}
}

// place is a node at an address: the key of a connection.
type place struct {
	id   millrace.NodeID
	addr string
}

func newConns(dial func(topology.Node) (Node, error), log *slog.Logger) *conns {
	c := &conns{dial: dial, log: log}
	c.mu.open, c.mu.leaving = map[place]Node{}, map[place]*time.Timer{}
	return c
}

// get returns the connection to a node. A node whose address changed gets a new
// connection; the old one stays open, because questions in progress may still use it.
func (c *conns) get(n topology.Node) (Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := place{n.ID, n.Addr}
	if have, ok := c.mu.open[at]; ok {
		return have, nil
	}
	fresh, err := c.dial(n)
	if err != nil {
		return nil, err
	}
	c.mu.open[at] = fresh
	return fresh, nil
}

// lingers is how long the connection to a node that has left the map stays open. It is
// longer than the default timeout of requests, 10 s, so that calls in flight can end.
const lingers = 30 * time.Second

// keep starts a timer for each open connection whose node is not at that address in the
// newest map; the timer closes it after [lingers]. It asks maps for the newest map, and
// does not take the map of a question: an older one may lack nodes that joined since.
func (c *conns) keep(maps Maps) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := maps.Current()
	if m == c.mu.kept {
		return
	}
	c.mu.kept = m
	for at := range c.mu.open {
		if c.mu.leaving[at] == nil && !hasNode(m, at) {
			c.mu.leaving[at] = time.AfterFunc(lingers, func() { c.leave(at) })
		}
	}
}

// hasNode reports whether the map has the node at that address.
func hasNode(m *topology.Map, at place) bool {
	n, ok := m.Node(at.id)
	return ok && n.Addr == at.addr
}

// leave closes the connection to a node that has left, unless the node is back.
func (c *conns) leave(at place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.leaving[at] == nil { // close has closed all connections
		return
	}
	delete(c.mu.leaving, at)
	if !hasNode(c.mu.kept, at) {
		c.closeLocked(at)
	}
}

func (c *conns) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for at := range c.mu.open {
		c.closeLocked(at)
	}
	for _, soon := range c.mu.leaving {
		soon.Stop()
	}
	clear(c.mu.leaving)
}

func (c *conns) closeLocked(at place) {
	if closer, ok := c.mu.open[at].(io.Closer); ok {
		if err := closer.Close(); err != nil {
			c.log.Warn("closing the way to a node", "node", at.id, "addr", at.addr, "err", err)
		}
	}
	delete(c.mu.open, at)
}
