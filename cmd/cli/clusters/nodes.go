package clusters

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/rpcerr"
)

// Conns are connections to nodes, one for each address.
type Conns struct {
	how grpc.DialOption // the credentials to dial with
	mu  sync.Mutex
	all map[string]*grpc.ClientConn // by address; guarded by mu
}

// ConnsBy returns a Conns without connections, which will dial with how.
func ConnsBy(how grpc.DialOption) *Conns { return &Conns{how: how} }

// ConnsOf returns a Conns without connections, which will dial with the credentials of the
// command that ctx belongs to.
func ConnsOf(ctx context.Context) (*Conns, error) {
	how, err := reach.Of(ctx).Dial()
	return ConnsBy(how), err
}

// Dial returns a client for the service of a node that brokers and other nodes call.
func (c *Conns) Dial(n topology.Node) (nodev1.NodeServiceClient, error) {
	conn, err := c.dial(n)
	return nodev1.NewNodeServiceClient(conn), err
}

// Admin returns a client for the service of a node that operators call.
func (c *Conns) Admin(n topology.Node) (nodev1.AdminServiceClient, error) {
	conn, err := c.dial(n)
	return nodev1.NewAdminServiceClient(conn), err
}

// dial returns the connection to a node's address. It makes one the first time.
func (c *Conns) dial(n topology.Node) (*grpc.ClientConn, error) {
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

// Close closes all connections. Nothing may dial meanwhile.
func (c *Conns) Close() {
	for _, conn := range c.all {
		conn.Close()
	}
}

// Operating is a cluster at one moment, with connections to its nodes. The commands that
// operate nodes use it.
type Operating struct {
	Look
	Conns *Conns
}

// Operate looks at the cluster of a command. The caller must call [Operating.Close].
func (f *Flags) Operate(ctx context.Context) (*Operating, error) {
	l, err := f.Look(ctx)
	if err != nil {
		return nil, err
	}
	conns, err := ConnsOf(ctx)
	if err != nil {
		return nil, err
	}
	return &Operating{l, conns}, nil
}

// Close closes the connections to the nodes.
func (o *Operating) Close() { o.Conns.Close() }

// Node returns the node with an id. A node that is unknown or not alive is an error.
func (o *Operating) Node(id string) (topology.Node, error) {
	n, ok := o.Map.Node(millrace.NodeID(id))
	if !ok || !o.Map.Alive(n.ID) {
		return n, &millrace.Error{Reason: millrace.ReasonUnknown, Field: "node", Detail: fmt.Sprintf("no node %.70q is there", id), WayOut: "millrace node list names them"}
	}
	return n, nil
}

// Replica returns the node to ask for a partition: the node named, or, if that is empty,
// the first that is alive and has the partition ready. A named node must be alive, but need
// not host the partition.
func (o *Operating) Replica(p millrace.Partition, named string) (topology.Node, error) {
	if named != "" {
		return o.Node(named)
	}
	for _, id := range o.Map.Replicas(p) {
		if ready := o.Map.Ready(id); o.Map.Alive(id) && ready.Has(p) {
			n, _ := o.Map.Node(id)
			return n, nil
		}
	}
	return topology.Node{}, &millrace.Error{
		Reason: millrace.ReasonUnavailable, Field: "node", Detail: fmt.Sprintf("no replica of partition %d is ready", p),
		WayOut: "millrace cluster show says why; --node asks one that is not ready",
	}
}

// Alone returns the partitions that a node hosts and that no other node can be relied on
// to serve. The nodes in but do not count as other nodes. A node can be relied on if it is
// alive, hosts the partition, has it ready, is not behind the log, and takes in what is
// new: its ingest is not paused, and its disk not full.
func Alone(m *topology.Map, id millrace.NodeID, but ...millrace.NodeID) topology.Set {
	alone := m.Hosted(id)
	for _, n := range m.Nodes() {
		if n.ID != id && !slices.Contains(but, n.ID) && m.Alive(n.ID) && m.Halted(n.ID) == "" {
			serves := m.Ready(n.ID)
			serves = serves.And(m.Hosted(n.ID))
			alone = alone.Minus(serves.Minus(m.Lag(n.ID).Behind))
		}
	}
	return alone
}

// Others says why each other node that hosts partitions of alone cannot be relied on to
// serve them (see the function Alone), such as " (node-4 takes in nothing new: paused)";
// "" if no other node hosts any of them.
func Others(m *topology.Map, id millrace.NodeID, alone topology.Set) string {
	var why []string
	a := m.Assignment()
	for _, other := range a.Nodes() {
		hosted, ready := m.Hosted(other), m.Ready(other)
		hosted = hosted.And(alone)
		lacks := hosted.Minus(ready)
		switch halted := m.Halted(other); {
		case other == id || hosted.Len() == 0:
		case !m.Alive(other):
			why = append(why, fmt.Sprintf("%s is gone", other))
		case halted != "":
			why = append(why, fmt.Sprintf("%s takes in nothing new: %s", other, halted))
		case lacks.Len() > 0:
			why = append(why, fmt.Sprintf("%s is not ready with %d of them", other, lacks.Len()))
		default:
			why = append(why, fmt.Sprintf("%s is behind the log", other))
		}
	}
	if len(why) == 0 {
		return ""
	}
	return " (" + strings.Join(why, "; ") + ")"
}

// silentAfter is how long the look-up of a node's host name may take, and how long after
// that the node's answer may take.
const silentAfter = 2 * time.Second

// Silent asks nodes, all at the same time, whether they answer, and returns those that do
// not. The map does not show that: a frozen node counts as alive until its lease in etcd
// ends, and a node that can reach only etcd counts as alive all the time.
//
// A node that refuses this caller's certificate, or that cannot be asked without one,
// counts as answering. If no node's host name can be resolved, all nodes count as
// answering: this machine does not know their names at all.
func (c *Conns) Silent(ctx context.Context, nodes []topology.Node) []millrace.NodeID {
	says := make([]answer, len(nodes))
	var asked sync.WaitGroup
	for i, n := range nodes {
		asked.Go(func() { says[i] = c.askIfThere(ctx, n) })
	}
	asked.Wait()
	namesAreKnown := slices.ContainsFunc(says, func(a answer) bool { return a != nameless })
	var ids []millrace.NodeID
	for i, n := range nodes {
		if says[i] == silent || says[i] == nameless && namesAreKnown {
			ids = append(ids, n.ID)
		}
	}
	return ids
}

// answer is the outcome of asking a node whether it answers.
type answer int

const (
	answers  answer = iota // it answered, or it cannot be asked from here
	silent                 // it did not answer, or could not be reached
	nameless               // its host name cannot be resolved here
)

// askIfThere asks one node whether it answers, by the gRPC health check.
func (c *Conns) askIfThere(ctx context.Context, n topology.Node) answer {
	named, cancel := context.WithTimeout(ctx, silentAfter)
	defer cancel()
	host, _, err := net.SplitHostPort(n.Addr)
	if err == nil {
		_, err = net.DefaultResolver.LookupHost(named, host)
	}
	if err != nil {
		return nameless
	}
	conn, err := c.dial(n)
	if err != nil {
		return answers
	}
	asked, cancel := context.WithTimeout(ctx, silentAfter)
	defer cancel()
	_, err = healthv1.NewHealthClient(conn).Check(asked, &healthv1.HealthCheckRequest{})
	switch s := status.Convert(err); s.Code() {
	case codes.DeadlineExceeded:
		return silent
	case codes.Unavailable: // also when a proxy in front of the node closes a connection that it cannot pass on
		closed := strings.Contains(s.Message(), io.EOF.Error()) || strings.Contains(s.Message(), syscall.ECONNRESET.Error())
		refused := strings.Contains(s.Message(), "authentication handshake failed") || strings.Contains(s.Message(), "tls: ") // the caller has no certificate that the node takes
		if closed || !refused {
			return silent
		}
	}
	return answers
}

// Ask calls a node. A refusal comes back as a [*millrace.Error], with its field and its
// WayOut, which says what to do.
func Ask[Req, Resp any](ctx context.Context, call func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req) (Resp, error) {
	resp, err := call(ctx, req)
	return resp, refusal(err)
}

// refusal returns the error of a call to a node as an operator should read it. Nil stays
// nil.
func refusal(err error) error {
	if status.Code(err) == codes.DeadlineExceeded {
		return &millrace.Error{Reason: millrace.ReasonDeadline, Detail: "the node gave no answer in time", WayOut: "millrace doctor says what does not answer"}
	}
	return rpcerr.FromStatus(err)
}

// ActsWithin is how long a node may take for an act that does not wait for Kafka.
const ActsWithin = time.Minute

// answersWithin is how much longer than the time for an act a node may take to answer that
// it could not act in time.
const answersWithin = 2 * time.Second

// Act calls a node for an act. With Apply in the request the node does the act; without
// Apply the node only answers what it would do. Act ends soon after wait. If the node gives no answer to a
// request with Apply, the error says that it is not known whether the act was done.
func Act[Req interface{ GetApply() bool }, Resp any](ctx context.Context, wait time.Duration, call func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req) (Resp, error) {
	bounded, cancel := context.WithTimeout(ctx, wait+answersWithin)
	defer cancel()
	resp, err := call(bounded, req)
	s := status.Convert(err)
	late := s.Code() == codes.DeadlineExceeded
	if !late && (s.Code() != codes.Unavailable || len(s.Details()) > 0) { // a refusal of the node itself has details
		return resp, rpcerr.FromStatus(err)
	}
	says := &millrace.Error{Reason: millrace.ReasonUnavailable, Field: "node", Detail: "the node gave no answer: " + s.Message()}
	if late {
		says.Reason, says.Detail = millrace.ReasonDeadline, fmt.Sprintf("the node could not do it within %s", wait)
	}
	if req.GetApply() {
		says.Detail += "; it is not known whether it was done, or how much of it"
		says.WayOut = "run the same command without --apply, which shows what is there now, and see the node's audit log; then do it again if it is not done"
	} else {
		says.Detail += "; nothing was done"
		says.WayOut = "millrace doctor says what does not answer; try again when it does"
	}
	return resp, says
}

// toldWithin is how long [Flags.Alone] waits until the cluster shows what was done, so that
// the next command that takes replicas out of service sees it.
const toldWithin = 10 * time.Second

// Alone calls do, which takes replicas out of service, while no other process does such a
// thing. Before do it calls still with the cluster as it is then, which checks that do is
// still allowed; after an error of still it does not call do. After do it waits until shows
// reports that the cluster shows what was done, but no longer than toldWithin. act names
// what do does, for the error of another process that wants to act meanwhile.
func (f *Flags) Alone(ctx context.Context, act string, still func(*topology.Map) error, do func() error, shows func(*topology.Map) bool) error {
	cl, err := f.Open(ctx)
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
		_ = Await(ctx, watch, func(m *topology.Map) error {
			if !shows(m) {
				return errors.New("it does not show")
			}
			return nil
		})
		return nil
	})
}

// Receive calls take with each message that a node streams, until the stream ends or take
// fails. err is the error of the call that opened the stream; if it is not nil, Receive
// returns it and reads nothing.
func Receive[M any](stream interface{ Recv() (M, error) }, err error, take func(M) error) error {
	for err == nil {
		var m M
		if m, err = stream.Recv(); err == nil {
			err = take(m)
		}
	}
	if err == io.EOF {
		return nil
	}
	return refusal(err)
}

// Concerned returns the nodes that a command concerns: the node named, or, if that is
// empty, all that are alive and for which fits is true. It is an error if there is none.
func (o *Operating) Concerned(named string, fits func(*Operating, topology.Node) bool) (nodes []topology.Node, err error) {
	if named != "" {
		n, err := o.Node(named)
		return []topology.Node{n}, err
	}
	for _, n := range o.Map.Nodes() {
		if o.Map.Alive(n.ID) && fits(o, n) {
			nodes = append(nodes, n)
		}
	}
	if len(nodes) == 0 {
		return nil, &millrace.Error{Reason: millrace.ReasonUnavailable, Field: "node", Detail: "none of the nodes that this concerns is alive", WayOut: "millrace cluster show says why"}
	}
	return nodes, nil
}

// Await calls fault with the cluster's map, at once and after each change of it, until
// fault returns nil. If ctx ends before, it returns the last error of fault.
func Await(ctx context.Context, w *cluster.Watcher, fault func(*topology.Map) error) error {
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
