//go:build synctests

package simulation

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/partitioner"
)

const (
	kafkaAddr = "127.0.0.1:9092"
	etcdAddr  = "127.0.0.1:2379"

	contentTopic  = "activity"
	featuresTopic = "entity-features"
	contentParts  = 2
)

var inputs = map[string]int32{contentTopic: contentParts, featuresTopic: contentParts}

// world is a cluster with its Kafka, its etcd, its disks and its network, all
// of it in one bubble of virtual time.
type world struct {
	t    *testing.T
	seed uint64
	log  *slog.Logger
	net  *network

	began  time.Time
	kafka  *kfake.Cluster
	judge  *host // from which nothing is cut
	client *cluster.Client
	topics kafka.Topics

	nodes        []*process
	disks        []*disk
	partitioners []*process
	broker       *broker.Broker

	assignment topology.Assignment
	entities   []millrace.Entity
	hosted     []millrace.Partition // those of the entities

	mu    sync.Mutex
	asked map[millrace.NodeID][]time.Time // when the broker asked whom

	lives  sync.WaitGroup // of processes, also of those that crashed
	closed []func()
}

// process is a role that is run, crashes, and is run again.
type process struct {
	w    *world
	name string
	run  func(ctx context.Context, h *host) error

	mu   sync.Mutex
	life *life // nil: it is down
}

// life is one run of a process.
type life struct {
	host  *host
	ctx   context.Context
	stop  context.CancelFunc
	ended chan struct{}
}

// start runs the process, again and again when it ends by itself, as who
// supervises it would. One that is still ending is killed.
func (p *process) start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life != nil && p.life.ctx.Err() == nil {
		return
	}
	if p.life != nil {
		p.life.host.crash()
	}
	l := &life{host: p.w.net.host(p.name), ended: make(chan struct{})}
	l.ctx, l.stop = context.WithCancel(context.Background())
	p.life = l
	p.w.lives.Go(func() {
		defer close(l.ended)
		for l.ctx.Err() == nil {
			if err := p.run(l.ctx, l.host); err != nil && l.ctx.Err() == nil {
				p.w.log.Warn("simulation: a process ended", "process", p.name, "err", err)
			}
			select {
			case <-l.ctx.Done():
			case <-time.After(time.Second):
			}
		}
	})
}

// crash ends the process between two instructions, as far as others can tell:
// nothing that it still does is heard or kept.
func (p *process) crash() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life != nil {
		p.life.host.crash()
		p.life.stop()
		p.life = nil
	}
}

// stop tells the process to end. It may take its time.
func (p *process) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.life; l != nil {
		l.stop()
		p.w.lives.Go(func() {
			<-l.ended
			l.host.crash()
		})
	}
}

// quiet makes the log of all roles; MILLRACE_SIMULATE_LOG prints it.
func quiet(began time.Time) *slog.Logger {
	if os.Getenv("MILLRACE_SIMULATE_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Duration("at", a.Value.Time().Sub(began))
		}
		return a
	}}))
}

const nodes = 3

func newWorld(t *testing.T, seed uint64, r *rand.Rand) *world {
	w := &world{t: t, seed: seed, net: newNetwork(seed), began: time.Now(), asked: map[millrace.NodeID][]time.Time{}}
	w.log = quiet(w.began)
	w.judge = w.net.host("judge")
	w.startKafka()
	w.startEtcd()
	w.assign(r)
	for i := range nodes {
		w.addNode(i)
	}
	for i := range 2 {
		w.addPartitioner(i)
	}
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) brokers(h *host) kafka.Brokers {
	return kafka.At(kafkaAddr).Through(func(ctx context.Context, _, addr string) (net.Conn, error) { return h.dial(ctx, addr) })
}

func (w *world) startKafka() {
	h := w.net.host("kafka")
	var err error
	w.kafka, err = kfake.NewCluster(kfake.NumBrokers(1), kfake.ListenFn(func(string, string) (net.Listener, error) { return h.listen(kafkaAddr) }))
	w.must(err)
	w.closed = append(w.closed, w.kafka.Close)
	w.must(kafka.EnsureTopics(w.t.Context(), w.brokers(w.judge), w.topics, nil))
	for topic, n := range inputs {
		w.must(kafka.EnsureContentTopic(w.t.Context(), w.brokers(w.judge), topic, n, nil))
	}
}

func (w *world) startEtcd() {
	l, err := w.net.host("etcd").listen(etcdAddr)
	w.must(err)
	_, stop := startEtcd(l)
	w.closed = append(w.closed, stop)
	w.client, err = w.open(w.t.Context(), w.judge)
	w.must(err)
	w.closed = append(w.closed, func() { w.client.Close() })
}

func (w *world) open(ctx context.Context, h *host) (*cluster.Client, error) {
	return cluster.Open(ctx, cluster.Config{Endpoints: []string{etcdAddr}, Name: "simulation", Dial: h.dial, Log: w.log.With("host", h.name)})
}

func nodeID(i int) millrace.NodeID { return millrace.NodeID(fmt.Sprintf("node-%d", i+1)) }

// elsewhere hosts what this world does not look at, and is never there.
const elsewhere = "elsewhere"

// assign draws the entities, and gives each of their partitions to some nodes.
func (w *world) assign(r *rand.Rand) {
	for len(w.entities) < 6 {
		e := millrace.Entity(fmt.Sprintf("member:%d", len(w.entities)+1))
		w.entities = append(w.entities, e)
		if p := partition.Of(e); !slices.Contains(w.hosted, p) {
			w.hosted = append(w.hosted, p)
		}
	}
	w.assignment = topology.Assignment{Epoch: 1, AllowUnknown: true, AllowShrink: true}
	for p := range w.assignment.Replicas {
		w.assignment.Replicas[p] = []millrace.NodeID{elsewhere}
	}
	for _, p := range w.hosted {
		w.assignment.Replicas[p] = w.owners(r)
	}
	w.must(steering.Assign(w.t.Context(), w.client, w.assignment))
}

// owners draws two of the nodes.
func (w *world) owners(r *rand.Rand) (ids []millrace.NodeID) {
	for _, i := range r.Perm(nodes)[:2] {
		ids = append(ids, nodeID(i))
	}
	return ids
}

// addNode adds an index node, which is down.
func (w *world) addNode(i int) {
	d := &disk{mem: vfs.NewCrashableMem()}
	w.disks = append(w.disks, d)
	addr := fmt.Sprintf("127.0.0.1:%d", 7001+i)
	w.nodes = append(w.nodes, &process{w: w, name: string(nodeID(i)), run: func(ctx context.Context, h *host) error {
		cl, err := w.open(ctx, h)
		if err != nil {
			return err
		}
		defer cl.Close()
		n, err := indexnode.Open(indexnode.Config{
			ID: nodeID(i), Dir: "data", Brokers: w.brokers(h), Cluster: cl, Log: w.log.With("host", h.name),
			Store: store.Options{FS: d.life(), MinFreeBytes: 1 << 20, MaxDirtyBytes: 1 << 20, CacheBytes: 1 << 20, FlushEvery: 3 * time.Second},
			Cache: cache.Config{Memory: cache.LeastMemory},
			Peers: w.dials(h),
		})
		if err != nil {
			return err
		}
		defer n.Close()
		l, err := h.listen(addr)
		if err != nil {
			return err
		}
		return n.Run(ctx, l)
	}})
}

func (w *world) dials(h *host) []grpc.DialOption {
	return []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(h.dial)}
}

func (w *world) addPartitioner(i int) {
	name := fmt.Sprintf("partitioner-%d", i+1)
	w.partitioners = append(w.partitioners, &process{w: w, name: name, run: func(ctx context.Context, h *host) error {
		p, err := partitioner.New(partitioner.Config{
			Brokers: w.brokers(h), Content: []string{contentTopic}, Features: []string{featuresTopic}, Instance: name,
		}, w.log.With("host", h.name), prometheus.NewRegistry())
		if err != nil {
			return err
		}
		return p.Run(ctx)
	}})
}

// startBroker starts the broker, which lives as long as the world: it keeps
// nothing that a crash could lose.
func (w *world) startBroker() {
	h := w.net.host("broker")
	ctx, stop := context.WithCancel(context.Background())
	cl, err := w.open(ctx, h)
	w.must(err)
	maps, err := cl.Watch(ctx)
	w.must(err)
	w.broker, err = broker.New(broker.Config{Maps: maps, Dial: w.counted(fanout.DialGRPC(w.dials(h)...)), Timeout: 2 * time.Second, Log: w.log.With("host", h.name)})
	w.must(err)
	w.closed = append(w.closed, func() {
		w.broker.Close()
		stop()
		cl.Close()
	})
}

// counted notes when the broker asks which node.
func (w *world) counted(dial func(topology.Node) (fanout.Node, error)) func(topology.Node) (fanout.Node, error) {
	return func(at topology.Node) (fanout.Node, error) {
		n, err := dial(at)
		return &counting{n, w, at.ID}, err
	}
}

type counting struct {
	fanout.Node
	w  *world
	id millrace.NodeID
}

func (c *counting) Query(ctx context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
	c.w.mu.Lock()
	c.w.asked[c.id] = append(c.w.asked[c.id], time.Now())
	c.w.mu.Unlock()
	return c.Node.Query(ctx, req)
}

func (c *counting) Close() error { return c.Node.(io.Closer).Close() }

// plain returns a client of Kafka whose way is never broken.
func (w *world) plain(more ...kgo.Opt) *kgo.Client {
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(kafkaAddr), kgo.Dialer(func(ctx context.Context, _, addr string) (net.Conn, error) { return w.judge.dial(ctx, addr) }),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DisableClientMetrics(),
	}, more...)...)
	w.must(err)
	return cl
}

// close ends everything, the processes first.
func (w *world) close() {
	for _, p := range slices.Concat(w.partitioners, w.nodes) {
		p.crash()
	}
	w.net.healAll()
	w.lives.Wait()
	for i := len(w.closed) - 1; i >= 0; i-- {
		w.closed[i]()
	}
}
