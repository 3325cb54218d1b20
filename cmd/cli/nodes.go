package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/rpcerr"
)

// nodeConns are connections to nodes, one to each address.
type nodeConns struct {
	how grpc.DialOption
	mu  sync.Mutex
	all map[string]*grpc.ClientConn
}

// nodeConnsOf are those of a command.
func nodeConnsOf(ctx context.Context) (*nodeConns, error) {
	how, err := securityOf(ctx).dial()
	return &nodeConns{how: how}, err
}

func (c *nodeConns) dial(n cluster.Node) (nodev1.NodeServiceClient, error) {
	conn, err := c.to(n)
	return nodev1.NewNodeServiceClient(conn), err
}

// admin is dial for what operators ask.
func (c *nodeConns) admin(n cluster.Node) (nodev1.AdminServiceClient, error) {
	conn, err := c.to(n)
	return nodev1.NewAdminServiceClient(conn), err
}

func (c *nodeConns) to(n cluster.Node) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := c.all[n.Addr]
	if conn == nil {
		var err error
		if conn, err = grpc.NewClient(n.Addr, c.how); err != nil {
			return nil, err
		}
		if c.all == nil {
			c.all = map[string]*grpc.ClientConn{}
		}
		c.all[n.Addr] = conn
	}
	return conn, nil
}

func (c *nodeConns) close() {
	for _, conn := range c.all {
		conn.Close()
	}
}

// operating is a cluster whose nodes are asked for what operators may.
type operating struct {
	look
	conns *nodeConns
}

// operate looks at the cluster of a command. Call close in the end.
func (cm *clusterFlags) operate(ctx context.Context) (*operating, error) {
	l, err := cm.clusterLook(ctx)
	if err != nil {
		return nil, err
	}
	conns, err := nodeConnsOf(ctx)
	if err != nil {
		return nil, err
	}
	return &operating{l, conns}, nil
}

func (o *operating) close() { o.conns.close() }

// node returns the node of a name, which must be there.
func (o *operating) node(id string) (cluster.Node, error) {
	n, ok := o.m.Node(millrace.NodeID(id))
	if !ok || !o.m.Alive(n.ID) {
		return n, &millrace.Error{Reason: millrace.ReasonUnknown, Field: "node", Detail: fmt.Sprintf("no node %.70q is there", id), WayOut: "millrace node list names them"}
	}
	return n, nil
}

// replica returns the node to ask for a partition: the one named, or the first
// that has it ready.
func (o *operating) replica(p millrace.Partition, named string) (cluster.Node, error) {
	if named != "" {
		return o.node(named)
	}
	for _, id := range o.m.Replicas(p) {
		if ready := o.m.Ready(id); o.m.Alive(id) && ready.Has(p) {
			n, _ := o.m.Node(id)
			return n, nil
		}
	}
	return cluster.Node{}, &millrace.Error{
		Reason: millrace.ReasonUnavailable, Field: "node", Detail: fmt.Sprintf("no replica of partition %d is ready", p),
		WayOut: "millrace cluster show says why; --node asks one that is not ready",
	}
}

// ask calls a node, and gives its refusals their fields and ways out.
func ask[Req, Resp any](ctx context.Context, call func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req) (Resp, error) {
	resp, err := call(ctx, req)
	return resp, rpcerr.FromStatus(err)
}

// toldWithin is how long a node may take to say what it was told to do. Whoever acts
// next looks at the cluster then.
const toldWithin = 10 * time.Second

// alone does what takes replicas out while nobody else does, if still finds that it
// may be done to the cluster as it is then, and returns once the cluster shows it.
func (cm *clusterFlags) alone(ctx context.Context, act string, still func(*cluster.Map) error, do func() error, shows func(*cluster.Map) bool) error {
	cl, err := cm.reachCluster(ctx)
	if err != nil {
		return err
	}
	defer cl.Close()
	return cl.Alone(ctx, act, func(ctx context.Context) error {
		watch, err := cl.Watch(ctx)
		if err == nil {
			err = still(watch.Current())
		}
		if err == nil {
			err = do()
		}
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, toldWithin)
		defer cancel()
		_ = await(ctx, watch, func(m *cluster.Map) error {
			if !shows(m) {
				return errors.New("it does not show")
			}
			return nil
		})
		return nil
	})
}

// receive hands over what a node streams.
func receive[M any](stream interface{ Recv() (M, error) }, err error, take func(M) error) error {
	for err == nil {
		var m M
		if m, err = stream.Recv(); err == nil {
			err = take(m)
		}
	}
	if err == io.EOF {
		return nil
	}
	return rpcerr.FromStatus(err)
}

// concerned returns the nodes that are there, the one named or those that fit.
func (o *operating) concerned(named string, fits func(*operating, cluster.Node) bool) (nodes []cluster.Node, err error) {
	if named != "" {
		n, err := o.node(named)
		return []cluster.Node{n}, err
	}
	for _, n := range o.m.Nodes() {
		if o.m.Alive(n.ID) && fits(o, n) {
			nodes = append(nodes, n)
		}
	}
	if len(nodes) == 0 {
		return nil, &millrace.Error{Reason: millrace.ReasonUnavailable, Field: "node", Detail: "no node that is concerned is there", WayOut: "millrace cluster show says why"}
	}
	return nodes, nil
}

// await waits until the map has no fault any more, and returns the last one
// when ctx ends.
func await(ctx context.Context, w *cluster.Watcher, fault func(*cluster.Map) error) error {
	for {
		changed := w.Changed()
		err := fault(w.Current())
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-changed:
		}
	}
}
