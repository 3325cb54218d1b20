// Package indexnode is the index node: it consumes the partitions it hosts
// from the log into its store, keeps their timelines decoded in memory, and
// answers the questions of brokers about them. Every replica serves; none
// talks to another to do so. See DESIGN.md.
package indexnode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/grpctune"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/nodewire"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/schemas"
)

// Config is what a node works with.
type Config struct {
	ID        millrace.NodeID
	Zone      string // for the placement of replicas, and near brokers; may be empty
	Advertise string // host:port under which brokers reach it; empty: the listener's
	Dir       string // of its store
	Brokers   []string
	Topics    kafka.Topics
	Cluster   *cluster.Client
	Store     store.Options
	Cache     cache.Config
	Models    *relevance.Registry // nil: the built-in models
	// SchemaWait is how long a record of an unknown schema waits for it to
	// arrive on the schemas topic before it is refused. 0: 10 s.
	SchemaWait time.Duration
	// LagLimit is how long records may wait to be applied before brokers ask
	// other replicas first. 0: 10 s.
	LagLimit time.Duration
	Metrics  prometheus.Registerer // nil: none
	Log      *slog.Logger          // nil: slog.Default()
}

// Validate reports every fault at once.
func (c Config) Validate() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New("indexnode: "+what))
		}
	}
	need(c.ID != "", "a node needs an id that it keeps for life (id)")
	need(c.Dir != "", "a node needs a directory of its own (dir)")
	need(len(c.Brokers) > 0, "no Kafka brokers (brokers)")
	need(c.Cluster != nil, "no etcd (etcd)")
	return errors.Join(errs...)
}

// Node is one index node.
type Node struct {
	nodev1.UnimplementedNodeServiceServer

	cfg      Config
	log      *slog.Logger
	store    *store.Store
	cache    *cache.Cache
	schemas  *schemas.Registry
	models   *relevance.Registry
	filters  filterCache
	reads    singleflight.Group // of timelines that the cache misses
	readers  chan struct{}      // holds one for each partition that a request reads under its lock
	parts    [partition.Count]part
	features atomic.Bool // whether any entity has features
	lag      atomic.Pointer[nodeLag]
	asked    atomic.Pointer[nodev1.QueryRequest] // the newest question that was answered
	counters counters
	// modelsAwaited is a string: see modelsPending.
	modelsAwaited atomic.Value
	awaits        atomic.Value // string: what Run waits for before it hosts anything; empty: nothing

	maxCached int  // maxCached, but in tests
	maxRun    int  // maxRunBytes, but in tests
	aged      bool // some type is kept by age
}

// part is a partition as this node has it.
type part struct {
	// mu orders readers and the writer: while it is held for reading, the
	// store and the cache of the partition agree and do not change.
	mu      sync.RWMutex
	state   atomic.Int32 // a partState
	applied [2]atomic.Int64
	clock   atomic.Int64 // the store's, where some type is kept by age
	lag     atomic.Int64 // how long its newest records have waited, once that is too long; 0 before
	// commits counts twice what the writer committed, and is odd while it
	// commits: who reads the same even number before and after has seen one
	// state. It changes under mu.
	commits atomic.Uint64
}

type partState int32

const (
	notHosted partState = iota
	catchingUp
	ready
	quarantined
)

func (s partState) String() string {
	return [...]string{"not_hosted", "not_ready", "", "quarantined"}[s]
}

// Open opens the node's store. Run does the rest; Close after it.
func Open(cfg Config) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, log: cmp.Or(cfg.Log, slog.Default()).With("node", cfg.ID), cache: cache.New(cfg.Cache), models: cfg.Models, readers: make(chan struct{}, maxNodeReads), maxCached: maxCached, maxRun: maxRunBytes}
	if n.models == nil {
		n.models = relevance.Builtin()
	}
	n.aged = n.ages()
	n.cfg.SchemaWait = cmp.Or(cfg.SchemaWait, 10*time.Second)
	n.cfg.LagLimit = cmp.Or(cfg.LagLimit, lagLimit)
	if cfg.Store.Log == nil {
		cfg.Store.Log = n.log
	}
	var err error
	if n.store, err = store.Open(filepath.Join(cfg.Dir, "store"), cfg.Store); err != nil {
		return nil, fmt.Errorf("indexnode: %w", err)
	}
	if n.schemas, err = schemas.NewRegistry(storedSchemas{n.store}, nil); err != nil {
		n.store.Close()
		return nil, fmt.Errorf("indexnode: %w", err)
	}
	n.lag.Store(&nodeLag{})
	n.counters = newCounters(cfg.Metrics, n)
	return n, nil
}

// Run joins the cluster, hosts what it is assigned, and serves brokers on l,
// until ctx is done or something fails that only a restart can mend.
func (n *Node) Run(ctx context.Context, l net.Listener) error {
	server := grpc.NewServer(append(grpctune.Server(), grpc.ForceServerCodecV2(nodewire.Codec()), grpc.MaxRecvMsgSize(maxRequestBytes), grpc.MaxConcurrentStreams(1024))...)
	nodev1.RegisterNodeServiceServer(server, n)

	h, err := n.newHosting()
	if err != nil {
		return err
	}
	defer h.close()

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		stop := context.AfterFunc(ctx, server.GracefulStop)
		defer stop()
		return server.Serve(l)
	})
	g.Go(func() error { return h.run(ctx, cmp.Or(n.cfg.Advertise, l.Addr().String())) })
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("indexnode: %w", err)
	}
	return nil
}

// Close closes the store, and gives the cache's memory back.
func (n *Node) Close() error {
	n.cache.Close()
	return n.store.Close()
}

// Ready reports why the node cannot answer for all that it hosts, or nil.
func (n *Node) Ready() error {
	if what, _ := n.awaits.Load().(string); what != "" {
		return errors.New("waiting for " + what)
	}
	if what := n.modelsPending(); what != "" {
		return errors.New("waiting for " + what)
	}
	hosted, behind, broken := 0, 0, 0
	for i := range n.parts {
		switch partState(n.parts[i].state.Load()) {
		case ready:
			hosted++
		case catchingUp:
			hosted++
			behind++
		case quarantined:
			broken++
		}
	}
	switch {
	case broken > 0:
		return fmt.Errorf("%d partitions are quarantined", broken)
	case behind > 0:
		return fmt.Errorf("%d of %d partitions are catching up", behind, hosted)
	case hosted == 0:
		return errors.New("no partition is assigned to this node")
	}
	return nil
}

// CacheStats returns what the caches did and hold.
func (n *Node) CacheStats() cache.Stats { return n.cache.Stats() }

// served reports whether a partition is caught up.
func (n *Node) served(p int) bool { return partState(n.parts[p].state.Load()) == ready }

// Applied returns the next offsets of a partition's two streams that its
// answers do not include yet.
func (n *Node) Applied(p millrace.Partition) [2]millrace.Offset {
	a := &n.parts[p].applied
	return [2]millrace.Offset{millrace.Offset(a[0].Load()), millrace.Offset(a[1].Load())}
}
