package broker

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/internal/grpctune"
	"github.com/millrace/millrace/internal/nodewire"
	"github.com/millrace/millrace/internal/partition"
)

// instantNode answers 20 items for whatever it is asked, without looking: what is
// measured is the broker.
type instantNode struct {
	nodev1.UnimplementedNodeServiceServer
	items []*nodev1.Item
}

func newInstantNode(from int) *instantNode {
	n := &instantNode{}
	for i := range 20 {
		n.items = append(n.items, &nodev1.Item{
			Score: float64(1000 - 3*i - from), TimeMs: int64(timeAt(i)), Id: fmt.Sprint("r", i), Entity: string(entity(i)), Type: "post",
			Schema: uint64(note.Fingerprint()), Body: benchBody,
		})
	}
	return n
}

var benchBody = func() []byte {
	b, err := note.EncodeJSON([]byte(`{"id":"r","author":"member:1","kind":"post","at":"2026-01-01T00:00:00Z","text":"a text of a common length for such things","stars":3}`))
	if err != nil {
		panic(err)
	}
	return b
}()

func (n *instantNode) Query(_ context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
	all := &nodev1.Partitions{}
	for e := req.Entities; len(e) > 0; e = e[partition.EntityHead+int(e[2]):] { // short entities: one byte of length
		if p := int32(binary.LittleEndian.Uint16(e)); len(all.Answered) == 0 || all.Answered[len(all.Answered)-1] != p {
			all.Answered = append(all.Answered, p)
		}
	}
	all.AppliedContent, all.AppliedFeatures = make([]int64, len(all.Answered)), make([]int64, len(all.Answered))
	for i := range all.AppliedContent {
		all.AppliedContent[i] = 1_000_000 + int64(i)
	}
	return &nodev1.QueryResponse{Model: req.Model, Items: n.items, Partitions: all}, nil
}

func (n *instantNode) Ping(context.Context) error { return nil }

func (n *instantNode) GetSchema(context.Context, *nodev1.GetSchemaRequest) (*nodev1.GetSchemaResponse, error) {
	return &nodev1.GetSchemaResponse{Json: note.JSON()}, nil
}

// benchBroker serves three instant nodes, two replicas of each partition.
func benchBroker(b *testing.B, dial func(topology.Node) (fanout.Node, error), addr func(int) string) *Broker {
	b.Helper()
	var nodes []topology.Node
	var ids []millrace.NodeID
	ready := map[millrace.NodeID]topology.Set{}
	for i := range 3 {
		id := millrace.NodeID(fmt.Sprintf("n%d", i))
		ids = append(ids, id)
		nodes = append(nodes, topology.Node{ID: id, Addr: addr(i)})
		ready[id] = topology.All()
	}
	a, err := topology.Spread(ids, 2)
	if err != nil {
		b.Fatal(err)
	}
	broker, err := New(Config{Maps: &world{m: topology.NewMap(a, nodes, ready)}, Dial: dial, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = broker.Close() })
	return broker
}

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// ballast is as large as the one that a broker's process keeps, so that the
// collector runs as rarely as it does there.
var ballast []byte

func withBallast(b *testing.B) {
	ballast = make([]byte, 64<<20)
	runtime.GC()
	b.Cleanup(func() { ballast = nil })
}

// BenchmarkBroker is a request for 1,000 entities over two nodes that answer
// in no time, as the doors of protobuf ask it: all that is left is the broker's
// own.
func BenchmarkBroker(b *testing.B) {
	withBallast(b)
	nodes := []fanout.Node{newInstantNode(0), newInstantNode(1), newInstantNode(2)}
	broker := benchBroker(b, func(n topology.Node) (fanout.Node, error) { return nodes[n.ID[1]-'0'], nil }, func(int) string { return "local" })
	req := recentRequest(1000)
	b.ReportAllocs()
	var took []time.Duration
	var answer []byte
	for b.Loop() {
		start := time.Now()
		resp, err := broker.wireFeed(b.Context(), req)
		if err != nil {
			b.Fatal(err)
		}
		if answer, err = (proto.MarshalOptions{}).MarshalAppend(answer[:0], resp); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	figure.Print("broker_overhead_us", float64(took[len(took)/2].Nanoseconds())/1000, "us")
}

// BenchmarkNodeCall is the CPU of one node call by gRPC, both ends, beyond
// that of the same request to nodes in this process; and beside it what moving
// the same bytes costs by gRPC alone and by TCP alone. All take turns, and
// figures are medians of the turns.
func BenchmarkNodeCall(b *testing.B) {
	withBallast(b)
	local := []fanout.Node{newInstantNode(0), newInstantNode(1), newInstantNode(2)}
	addrs := make([]string, len(local))
	for i := range local {
		s := grpc.NewServer(append(grpctune.Server(), grpc.ForceServerCodecV2(nodewire.Codec()))...)
		nodev1.RegisterNodeServiceServer(s, local[i].(*instantNode))
		addrs[i] = serveBench(b, func(l net.Listener) { _ = s.Serve(l) }, s.Stop)
	}
	near := benchBroker(b, func(n topology.Node) (fanout.Node, error) { return local[n.ID[1]-'0'], nil }, func(int) string { return "local" })
	far := benchBroker(b, nil, func(i int) string { return addrs[i] })
	req := recentRequest(100)
	feed := func(broker *Broker) func() {
		return func() {
			if _, err := broker.GetFeed(b.Context(), req); err != nil {
				b.Error(err)
			}
		}
	}
	out, back := callBytes(b, near, local[0], req)
	ways := []func(){feed(near), feed(far), twice(bareGRPC(b, out, back)), twice(bareTCP(b, out, back))}
	spent := make([][]float64, len(ways)) // µs for two calls
	for i := 0; b.Loop(); i++ {
		for w, way := range ways {
			if i == 0 {
				way() // connections, schemas
			}
			const rounds = 20
			start := cpu()
			for range rounds {
				way()
			}
			spent[w] = append(spent[w], float64((cpu()-start).Nanoseconds())/1000/rounds)
		}
	}
	call, bare, tcp := (median(spent[1])-median(spent[0]))/2, median(spent[2])/2, median(spent[3])/2
	b.ReportMetric(call, "µs-cpu/call")
	figure.Print("broker_cpu_per_node_call_us", call, "us")
	figure.Print("node_call_vs_tcp", call/tcp, "x")
	figure.Print("node_call_vs_bare_grpc", call/bare, "x")
	figure.Print("bare_grpc_vs_tcp", bare/tcp, "x") // no node call can be below
}

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}
