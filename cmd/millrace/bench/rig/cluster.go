package rig

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/freeport"
	"github.com/millrace/millrace/internal/grpctune"
	"github.com/millrace/millrace/relevance/modelpack"
)

// Setup is a cluster to start.
type Setup struct {
	Name     string            // of the cluster, and the beginning of its files' names
	Nodes    int               // how many index nodes
	Replicas int               // of each partition, if there are so many nodes
	Binary   string            // the path of the roles' binary; "": this one
	Packs    []*modelpack.Pack // models to serve
	Feeds    map[string][]byte // definitions by name
}

// Cluster is index nodes and a broker that serve what is in the log.
type Cluster struct {
	Cores  int // processors of each node (GOMAXPROCS)
	Nodes  []*Process
	Broker *Process
	Conn   *grpc.ClientConn // to the broker
	Feed   feedv1.FeedServiceClient
	Read   time.Duration // how long the nodes took to start and read the log
}

// cacheMemory is the nodes' cache size. It is more than any data takes, so that warm nodes
// never read their stores.
const cacheMemory = "1TiB"

// startup bounds how long nodes take to bring the log into their stores.
const startup = 10 * time.Minute

// StartCluster assigns the partitions and publishes the models, starts nodes, waits until
// they serve everything in the log, and starts a broker.
func (f *Family) StartCluster(b *Backing, s Setup) (*Cluster, error) {
	s.Name = b.Prefix + s.Name
	dir := filepath.Join(f.Dir, s.Name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	ids := make([]millrace.NodeID, s.Nodes)
	for i := range ids {
		ids[i] = millrace.NodeID(fmt.Sprintf("node-%d", i+1))
	}
	if err := prepare(f.Ctx, b, s, ids); err != nil {
		return nil, err
	}
	c := &Cluster{Cores: Share(runtime.NumCPU(), s.Nodes)}
	began := time.Now()
	for _, id := range ids {
		p, err := f.startRole(s.Binary, "indexnode", s.Name+"-"+string(id), fmt.Sprintf(
			"id: %s\ndata: %q\nbrokers: [%q]\ntopic_prefix: %q\netcd: [%q]\ncluster: %s\nlisten: 127.0.0.1:0\ncache: {memory: %s}\n",
			id, filepath.Join(dir, string(id)), b.Kafka, b.Prefix, b.Etcd, s.Name, cacheMemory), c.Cores)
		if err != nil {
			return nil, err
		}
		c.Nodes = append(c.Nodes, p)
	}
	wait, cancel := context.WithTimeout(f.Ctx, startup)
	defer cancel()
	for _, p := range c.Nodes {
		if err := p.ready(wait); err != nil {
			return nil, err
		}
	}
	c.Read = time.Since(began)
	return c, c.startBroker(wait, f, b, s, dir)
}

// prepare assigns the partitions to the nodes, unless they are assigned already, and
// publishes the models.
func prepare(ctx context.Context, b *Backing, s Setup, ids []millrace.NodeID) error {
	cl, err := cluster.Open(ctx, cluster.Config{Endpoints: []string{b.Etcd}, Name: s.Name})
	if err != nil {
		return err
	}
	defer cl.Close()
	maps, err := cl.Watch(ctx)
	if err != nil {
		return err
	}
	if maps.Current().Epoch() == 0 {
		a, err := topology.Spread(ids, s.Replicas)
		if err != nil {
			return err
		}
		a.AllowUnknown = true // the nodes have not registered: they start after this
		if err := steering.Assign(ctx, cl, a); err != nil {
			return err
		}
	}
	models, err := artefacts.Watch(ctx, cl, indexnode.ModelsKind)
	if err != nil {
		return err
	}
	for _, p := range s.Packs {
		var tar bytes.Buffer
		if err := p.WriteTar(&tar); err != nil {
			return err
		}
		v, _, err := models.Publish(ctx, p.Manifest.Name, p.Manifest.Version, tar.Bytes(), "bench")
		if err != nil {
			return err
		}
		if err := models.Serve(ctx, v, nil, "bench"); err != nil {
			return err
		}
	}
	return nil
}

// Share returns how many processors each of so many nodes may use at a time (GOMAXPROCS).
// The nodes share the machine's processors, and more threads than processors would only
// wake each other. The broker and the client may use all processors.
func Share(processors, nodes int) int { return (processors + nodes - 1) / nodes }

func (c *Cluster) startBroker(ctx context.Context, f *Family, b *Backing, s Setup, dir string) error {
	feeds := filepath.Join(dir, "feeds")
	if err := os.MkdirAll(feeds, 0o755); err != nil {
		return err
	}
	for name, text := range s.Feeds {
		if err := os.WriteFile(filepath.Join(feeds, name+".yaml"), text, 0o644); err != nil {
			return err
		}
	}
	addr, err := freeport.Addr()
	if err != nil {
		return err
	}
	c.Broker, err = f.startRole(s.Binary, "broker", s.Name+"-broker", fmt.Sprintf(
		"etcd: [%q]\ncluster: %s\ngrpc: %q\nfeeds: %q\n", b.Etcd, s.Name, addr, feeds), runtime.NumCPU())
	if err != nil {
		return err
	}
	if err := c.Broker.ready(ctx); err != nil {
		return err
	}
	// Package client is not used: it retries a refused request, which would count as
	// latency.
	c.Conn, err = grpc.NewClient(addr, append(grpctune.Client(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	c.Feed = feedv1.NewFeedServiceClient(c.Conn)
	return err
}

// Settle waits until ask succeeds, at most [Patience]. ask should send a question and accept
// only a whole answer: then the broker listens, and knows that all nodes are ready.
func (c *Cluster) Settle(ctx context.Context, ask func(context.Context) error) error {
	return Dialled(ctx, func() error { return ask(ctx) })
}
