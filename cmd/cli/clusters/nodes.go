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

// Conns are connections to nodes, one to each address.
type Conns struct {
	how grpc.DialOption
	mu  sync.Mutex
	all map[string]*grpc.ClientConn
}

// ConnsBy are those that are dialled so.
func ConnsBy(how grpc.DialOption) *Conns { return &Conns{how: how} }

// ConnsOf are those of a command.
func ConnsOf(ctx context.Context) (*Conns, error) {
	how, err := reach.Of(ctx).Dial()
	return ConnsBy(how), err
}

// Dial returns a node as brokers and other nodes call it.
func (c *Conns) Dial(n topology.Node) (nodev1.NodeServiceClient, error) {
	conn, err := c.dial(n)
	return nodev1.NewNodeServiceClient(conn), err
}

// Admin is dial for what operators ask.
func (c *Conns) Admin(n topology.Node) (nodev1.AdminServiceClient, error) {
	conn, err := c.dial(n)
	return nodev1.NewAdminServiceClient(conn), err
}

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

// Close closes all of them.
func (c *Conns) Close() {
	for _, conn := range c.all {
		conn.Close()
	}
}

// Operating is a cluster whose nodes are asked for what operators may.
type Operating struct {
	Look
	Conns *Conns
}

// Operate looks at the cluster of a command. Call close in the end.
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

// Close closes the ways to the nodes.
func (o *Operating) Close() { o.Conns.Close() }

// Node returns the node of a name, which must be there.
func (o *Operating) Node(id string) (topology.Node, error) {
	n, ok := o.Map.Node(millrace.NodeID(id))
	if !ok || !o.Map.Alive(n.ID) {
		return n, &millrace.Error{Reason: millrace.ReasonUnknown, Field: "node", Detail: fmt.Sprintf("no node %.70q is there", id), WayOut: "millrace node list names them"}
	}
	return n, nil
}

// Replica returns the node to ask for a partition: the one named, or the first
// that has it ready.
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

// Alone returns what a node hosts and nobody else serves who can be relied on, but for some:
// who has it ready and is neither behind nor about to be, as one is whose ingest is paused or
// whose disk is full.
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

// Others says of each other node that hosts any of those partitions why it does not serve
// them, or not for long: " (node-4 takes in nothing new: paused)"; "" if there is none.
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

// silentAfter is how long a node may take to say that it is there.
const silentAfter = 2 * time.Second

// Silent asks nodes, all at the same time, whether they are there, and returns those that
// say nothing: a frozen one stands as alive until its lease is over, and one that is cut off
// from all but etcd for as long as that lasts. What cannot be asked from here, for want of a
// certificate, is not among them, nor is one whose name is not known here, unless another's is.
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

// answer is what comes of asking a node whether it is there.
type answer int

const (
	answers  answer = iota // or it cannot be asked from here
	silent                 // nothing comes of it
	nameless               // nobody here knows the name
)

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
	case codes.Unavailable: // also by who stands before it, and closes what it cannot pass on
		closed := strings.Contains(s.Message(), io.EOF.Error()) || strings.Contains(s.Message(), syscall.ECONNRESET.Error())
		refused := strings.Contains(s.Message(), "authentication handshake failed") || strings.Contains(s.Message(), "tls: ") // for want of a certificate
		if closed || !refused {
			return silent
		}
	}
	return answers
}

// Ask calls a node, and gives its refusals their fields and ways out.
func Ask[Req, Resp any](ctx context.Context, call func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req) (Resp, error) {
	resp, err := call(ctx, req)
	return resp, refusal(err)
}

// refusal is what a node's error says to whoever operates it: of one that is late, that it is.
func refusal(err error) error {
	if status.Code(err) == codes.DeadlineExceeded {
		return &millrace.Error{Reason: millrace.ReasonDeadline, Detail: "the node gave no answer in time", WayOut: "millrace doctor says what does not answer"}
	}
	return rpcerr.FromStatus(err)
}

// ActsWithin is how long a node may take to do what does not wait for Kafka.
const ActsWithin = time.Minute

// answersWithin is how much longer a node may take to say that it could not do something in time.
const answersWithin = 2 * time.Second

// Act is Ask for what a node does with apply, and shows without. It ends soon after wait. Of
// a node that gives no answer it says that what it was told may be done or not.
func Act[Req interface{ GetApply() bool }, Resp any](ctx context.Context, wait time.Duration, call func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req) (Resp, error) {
	bounded, cancel := context.WithTimeout(ctx, wait+answersWithin)
	defer cancel()
	resp, err := call(bounded, req)
	s := status.Convert(err)
	late := s.Code() == codes.DeadlineExceeded
	if !late && (s.Code() != codes.Unavailable || len(s.Details()) > 0) { // its own refusals have details
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

// toldWithin is how long a node may take to say what it was told to do. Whoever acts
// next looks at the cluster then.
const toldWithin = 10 * time.Second

// Alone does what takes replicas out while nobody else does, if still finds that it
// may be done to the cluster as it is then, and returns once the cluster shows it.
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

// Receive hands over what a node streams.
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

// Concerned returns the nodes that are there, the one named or those that fit.
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
		return nil, &millrace.Error{Reason: millrace.ReasonUnavailable, Field: "node", Detail: "no node that is concerned is there", WayOut: "millrace cluster show says why"}
	}
	return nodes, nil
}

// Await waits until the map has no fault any more, and returns the last one
// when ctx ends.
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
