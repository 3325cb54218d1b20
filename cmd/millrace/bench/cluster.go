package bench

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

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/grpctune"
	"github.com/millrace/millrace/relevance"
)

// running is a cluster of nodes and a broker that serves the world.
type running struct {
	cores  int // of each node
	nodes  []*process
	broker *process
	conn   *grpc.ClientConn
	feed   feedv1.FeedServiceClient
}

// cacheMemory is more than any world takes: what is measured is warm.
const cacheMemory = "1TiB"

// startup bounds how long nodes take to bring the log into their stores.
const startup = 10 * time.Minute

// startCluster starts nodes, waits until they serve everything in the log,
// and starts a broker.
func startCluster(c *Config, f *family, w *world, b *backing, nodes int) (*running, error) {
	name := fmt.Sprintf("nodes-%d", nodes)
	dir := filepath.Join(f.dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	ids := make([]millrace.NodeID, nodes)
	for i := range ids {
		ids[i] = millrace.NodeID(fmt.Sprintf("node-%d", i+1))
	}
	if err := prepareCluster(f.ctx, w.pack, b, name, ids); err != nil {
		return nil, err
	}
	r := &running{cores: share(runtime.NumCPU(), nodes)}
	began := time.Now()
	for _, id := range ids {
		p, err := startRole(f, "indexnode", name+"-"+string(id), fmt.Sprintf(
			"id: %s\ndata: %q\nbrokers: [%q]\netcd: [%q]\ncluster: %s\nlisten: 127.0.0.1:0\ncache: {memory: %s}\n", id, filepath.Join(dir, string(id)), b.kafka, b.etcd, name, cacheMemory), r.cores)
		if err != nil {
			return nil, err
		}
		r.nodes = append(r.nodes, p)
	}
	wait, cancel := context.WithTimeout(f.ctx, startup)
	defer cancel()
	for _, p := range r.nodes {
		if err := p.ready(wait); err != nil {
			return nil, err
		}
	}
	c.say("%d nodes have read the log in %.1f s", nodes, time.Since(began).Seconds())
	return r, r.startBroker(wait, f, w, b, name, dir)
}

// prepareCluster assigns the partitions and pushes the model.
func prepareCluster(ctx context.Context, p *relevance.Pack, b *backing, name string, ids []millrace.NodeID) error {
	cl, err := cluster.Open(ctx, cluster.Config{Endpoints: []string{b.etcd}, Name: name})
	if err != nil {
		return err
	}
	defer cl.Close()
	maps, err := cl.Watch(ctx)
	if err != nil {
		return err
	}
	if maps.Current().Epoch() == 0 {
		a, err := cluster.Spread(ids, replicas)
		if err != nil {
			return err
		}
		a.AllowUnknown = true // the nodes start after this
		if err := cl.Assign(ctx, a); err != nil {
			return err
		}
	}
	var tar bytes.Buffer
	if err := p.WriteTar(&tar); err != nil {
		return err
	}
	models, err := cl.Artefacts(ctx, indexnode.ModelsKind)
	if err != nil {
		return err
	}
	v, _, err := models.Publish(ctx, p.Manifest.Name, p.Manifest.Version, tar.Bytes(), "bench")
	if err != nil {
		return err
	}
	return models.Serve(ctx, v, nil, "bench")
}

// share is how many of the machine's processors each of so many nodes uses at
// the same time, at most (GOMAXPROCS): they share the machine, and threads
// beyond the processors only wake each other. The broker and the client have
// all of them.
func share(processors, nodes int) int { return (processors + nodes - 1) / nodes }

// startRole runs a role by its configuration, on so many processors.
func startRole(f *family, role, name, config string, processors int) (*process, error) {
	admin, err := freeAddr()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(f.dir, name+".yaml")
	if err := os.WriteFile(file, []byte(config+fmt.Sprintf("admin: %q\n", admin)), 0o644); err != nil {
		return nil, err
	}
	p, _, err := f.start(name, admin, false, processors, role, "--config", file)
	return p, err
}

func (r *running) startBroker(ctx context.Context, f *family, w *world, b *backing, name, dir string) error {
	feeds := filepath.Join(dir, "feeds")
	if err := os.MkdirAll(feeds, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(feeds, w.feed.Name+".yaml"), w.feedText, 0o644); err != nil {
		return err
	}
	addr, err := freeAddr()
	if err != nil {
		return err
	}
	if r.broker, err = startRole(f, "broker", name+"-broker", fmt.Sprintf("etcd: [%q]\ncluster: %s\ngrpc: %q\nfeeds: %q\n", b.etcd, name, addr, feeds), runtime.NumCPU()); err != nil {
		return err
	}
	if err := r.broker.ready(ctx); err != nil {
		return err
	}
	// Not by package client, which asks again when it is refused: that would
	// be taken for latency.
	r.conn, err = grpc.NewClient(addr, append(grpctune.Client(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	r.feed = feedv1.NewFeedServiceClient(r.conn)
	return err
}

// cpuTime is CPU time by role.
type cpuTime struct{ broker, nodes, client time.Duration }

func (c cpuTime) less(o cpuTime) cpuTime {
	return cpuTime{c.broker - o.broker, c.nodes - o.nodes, c.client - o.client}
}

func (c cpuTime) each(queries int) cpuTime {
	n := time.Duration(max(1, queries))
	return cpuTime{c.broker / n, c.nodes / n, c.client / n}
}

// served is what a query costs those who serve it.
func (c cpuTime) served() time.Duration { return c.broker + c.nodes }

// cpu is the CPU time that the roles have used.
func (r *running) cpu(ctx context.Context) (c cpuTime, err error) {
	c.client = ownCPU()
	if c.broker, err = r.broker.cpu(ctx); err != nil {
		return c, err
	}
	for _, n := range r.nodes {
		d, err := n.cpu(ctx)
		if err != nil {
			return c, err
		}
		c.nodes += d
	}
	return c, nil
}
