// Package indexnode is the index node: it consumes the partitions it hosts
// from the log into its store, keeps their timelines decoded in memory, and
// answers the questions of brokers about them. Every replica serves, and needs
// no other replica for an answer. Before a replica begins to serve it asks other
// nodes what is hot, to fill its cache. See DESIGN.md.
package indexnode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/cluster/members"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/admin"
	"github.com/millrace/millrace/indexnode/answers"
	"github.com/millrace/millrace/indexnode/backups"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/lookup"
	"github.com/millrace/millrace/indexnode/packs"
	"github.com/millrace/millrace/indexnode/panics"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/indexnode/warm"
	"github.com/millrace/millrace/internal/arrivals"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/datadir"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/grpctune"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/memory"
	"github.com/millrace/millrace/internal/nodewire"
	"github.com/millrace/millrace/internal/permit"
	"github.com/millrace/millrace/internal/rpcerr"
	"github.com/millrace/millrace/internal/wait"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/schemas/registry"
)

// Config is what a node works with.
type Config struct {
	ID        millrace.NodeID
	Zone      string           // its rack or zone: replicas are spread over zones, and brokers ask nodes of their own first; may be empty
	Weight    float64          // its share of replicas, beside other nodes': see Weight of [topology.Node]; 0: 1
	Instance  datadir.Instance // of its directory, as [datadir.CheckDir] gives it
	Advertise string           // host:port under which brokers reach it; empty: the listener's
	Dir       string           // the node's data directory; its store is in Dir/store
	Brokers   kafka.Brokers
	Topics    kafka.Topics
	Cluster   *cluster.Client
	Store     store.Options
	Cache     cache.Config
	Models    *relevance.Registry // nil: the built-in models
	// LagLimit is how old an answer may be before it is flagged and brokers
	// ask other replicas first. 0: 8 s. An answer may be up to 2 s older than is
	// known, since the last moments of a partitioner that stops are not known. So
	// no answer that is older than this limit and 2 s lacks the flag.
	LagLimit time.Duration
	// QuestionMemory bounds what all questions take together, in bytes: what
	// they read from the store, beside the caches, and their answers. 0: 256
	// MiB, the least.
	QuestionMemory int64
	// BackupsReach is how old the newest backup of each partition is at most. The
	// log may delete records that are three times as old. 0: twice the interval of
	// Backup, or, if that has no place, the log must keep everything.
	BackupsReach time.Duration
	// Backup says where partitions are backed up to and restored from; without a
	// place there are no backups.
	Backup backups.Config
	// Keeps makes the node a backup node: it has these partitions, whatever the
	// assignment says, backs them up, and no broker asks it. Empty: it serves.
	Keeps topology.Set
	// Drain is how long a node that was told to stop goes on answering after it has
	// told the cluster so: brokers hear of that within a second. 0: it stops at once.
	Drain time.Duration
	// Peers is how other nodes are called, for what is hot there and for what differs
	// between replicas. Empty: the connection is not encrypted.
	Peers []grpc.DialOption
	// Permit says who may ask what; nil: whoever reaches the node may ask everything.
	Permit *permit.Policy
	// Audit takes down what operators and the coordinator have the node do; nil: only the
	// process's log does.
	Audit   *audit.Log
	Metrics prometheus.Registerer // nil: none
	Log     *slog.Logger          // nil: slog.Default()
}

// maxZoneBytes bounds the name of a zone, which every process reads with a registration.
const maxZoneBytes = 200

// Validate reports every fault at once.
func (c Config) Validate() error {
	var errs []error
	need := func(ok bool, field, detail, wayOut string) {
		if !ok {
			errs = append(errs, &millrace.Error{Reason: millrace.ReasonInvalid, Field: field, Detail: detail, WayOut: wayOut})
		}
	}
	need(c.ID != "", "id", "the node has no id", "give it one that it keeps for life")
	if c.ID != "" {
		errs = append(errs, topology.CheckID(c.ID))
	}
	need(len(c.Zone) <= maxZoneBytes, "zone", fmt.Sprintf("it has %d bytes, and a registration has room for %d", len(c.Zone), maxZoneBytes), "name it by a word, such as rack-7")
	need(c.Dir != "", "data", "the node has no directory", "name one of its own")
	need(!c.Brokers.None(), "brokers", "nothing says where Kafka is", "name at least one host:port")
	if !c.Brokers.None() {
		errs = append(errs, c.Brokers.Validate())
	}
	need(c.Cluster != nil, "etcd", "nothing says where etcd is", "name its addresses, host:port each")
	need(c.QuestionMemory == 0 || c.QuestionMemory >= DefaultQuestionMemory, "question_memory_mib", fmt.Sprintf("%d MiB do not hold the largest question", c.QuestionMemory>>20), fmt.Sprintf("give at least %d, or leave it out", DefaultQuestionMemory>>20))
	need(c.Drain >= 0, "drain", fmt.Sprintf("a node cannot drain for %s", c.Drain), "leave it out, or give 0s for none")
	return errors.Join(append(errs, c.Backup.Validate())...)
}

// Node is one index node.
type Node struct {
	nodev1.UnimplementedNodeServiceServer

	cfg        Config
	log        *slog.Logger
	store      *store.Store
	cache      *cache.Cache
	schemas    *registry.Registry
	models     *relevance.Registry
	lookup     *lookup.Lookup
	answers    *answers.Server
	admission  *packs.Admission
	panics     *panics.Teller
	warm       *warm.Server
	replicas   *replica.Replicas
	member     atomic.Pointer[members.Membership] // once Run has joined
	counters   counters
	rates      rates
	leaving    chan struct{} // closed when the node has been told to stop
	addr       atomic.Value  // string: where brokers reach it, once Run has begun
	keeper     atomic.Pointer[backups.Keeper]
	running    atomic.Pointer[context.Context] // of Run, until the node drains no more
	wholeReads chan struct{}                   // holds one for each call of ReadPartition
	examining  chan struct{}                   // holds one while a partition is examined: see examination
	awaits     atomic.Value                    // string: what Run waits for before it hosts anything; empty: nothing
	maps       atomic.Pointer[func() *topology.Map]
	memory     *memory.Budget // of questions
	arriving   *memory.Budget // of calls that are not answered
}

// Open opens the node's store. Run does the rest; Close after it.
func Open(cfg Config) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, log: cmp.Or(cfg.Log, slog.Default()).With("node", cfg.ID), cache: cache.New(cfg.Cache), models: cfg.Models, leaving: make(chan struct{}), examining: make(chan struct{}, 1), wholeReads: make(chan struct{}, maxWholeReads)}
	if n.models == nil {
		n.models = relevance.Builtin()
	}
	n.memory = memory.New(cmp.Or(cfg.QuestionMemory, DefaultQuestionMemory), "questions")
	n.arriving = memory.New(arrivingBytes(cmp.Or(cfg.QuestionMemory, DefaultQuestionMemory)), "calls that are arriving")
	n.cfg.LagLimit = cmp.Or(cfg.LagLimit, lagLimit)
	if cfg.Store.Log == nil {
		cfg.Store.Log = n.log
	}
	cfg.Store.MaxDirtyBytes = cmp.Or(cfg.Store.MaxDirtyBytes, unflushedBytes(memory.Machine()))
	var err error
	if n.store, err = store.Open(filepath.Join(cfg.Dir, "store"), cfg.Store); err != nil {
		return nil, fmt.Errorf("indexnode: %w", err)
	}
	if err := os.RemoveAll(n.witnesses()); err != nil { // a crash may have left some
		n.log.Warn("could not remove what comparisons of partitions that broke off have left on the disk", "err", err)
	}
	if n.schemas, err = registry.New(replica.StoredSchemas(n.store), nil); err != nil {
		n.store.Close()
		return nil, fmt.Errorf("indexnode: %w", err)
	}
	n.panics = panics.NewTeller(n.log)
	n.lookup = lookup.New(lookup.Config{Store: n.store, Cache: n.cache, Schemas: n.schemas, Retention: cfg.Store.Retention, Memory: n.memory, Panics: n.panics})
	n.replicas = replica.New(replica.Config{
		Store: n.store, Schemas: n.schemas, Topics: cfg.Topics.WithDefaults(), Host: n.host(), Aged: lookup.Ages(cfg.Store.Retention), Limit: n.cfg.LagLimit, Log: n.log,
	})
	n.lookup.Over(n.replicas)
	n.answers = answers.New(answers.Config{Node: cfg.ID, Store: n.store, Cache: n.cache, Schemas: n.schemas, Models: n.models, Lookup: n.lookup, Panics: n.panics, Log: n.log})
	n.warm = warm.New(warm.Config{
		Node: cfg.ID, Cache: n.cache, Replicas: n.replicas, Lookup: n.lookup, Memory: n.memory, Peers: n.peers(),
		Newest: n.answers.Newest, Panics: n.panics, Log: n.log,
	})
	n.admission = packs.New(packs.Config{
		Node: cfg.ID, Dir: filepath.Join(cfg.Dir, "admitting"), Store: n.store, Schemas: n.schemas, Models: n.models,
		Admitted: n.answers.TellUncovered, Dropped: n.answers.Dropped, Log: n.log,
	})
	n.counters = newCounters(cfg.Metrics, n)
	return n, nil
}

// DefaultQuestionMemory is Config.QuestionMemory's default, and the least: a
// question may read 64 MiB of one timeline, and holds it in three forms meanwhile,
// 192 MiB.
const DefaultQuestionMemory = 256 << 20

// arrivingBytes bounds what calls hold together from their first byte until they are
// answered, beside the memory of questions: several of the largest.
func arrivingBytes(questions int64) int64 { return questions / 4 }

// lagLimit is Config.LagLimit's default.
const lagLimit = 8 * time.Second

// Run joins the cluster, hosts the partitions that are assigned to the node, and serves
// brokers on l until ctx is done. Then it tells the cluster that it leaves, goes on
// answering for [Config.Drain], and finishes the requests in flight. Outages of Kafka and
// etcd and damaged partitions do not end it: they are reported, and it waits for them to
// be mended.
func (n *Node) Run(ctx context.Context, l net.Listener) error {
	server := n.server()
	h, err := n.newHosting()
	if err != nil {
		return err
	}
	defer h.close()

	hosts, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, hosts := errgroup.WithContext(hosts)
	reads, endReads := context.WithCancel(hosts)
	defer endReads()
	n.running.Store(&reads)
	g.Go(func() error { return server.Serve(n.guard(l)) })
	g.Go(func() error { return h.run(hosts, cmp.Or(n.cfg.Advertise, l.Addr().String())) })
	g.Go(func() error {
		defer stop()
		n.drain(ctx, hosts)
		endReads() // some take minutes
		finish(server, finishFor)
		return nil
	})
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("indexnode: %w", err)
	}
	return nil
}

// finishFor bounds how long a node that stops waits for requests in flight.
// docs/operations.md gives this figure to operators.
const finishFor = 10 * time.Second

// finish stops the server once its requests in flight have ended, and cuts off those that
// take longer than within: a caller that does not read what it is sent would keep the node
// from stopping.
func finish(server *grpc.Server, within time.Duration) {
	defer time.AfterFunc(within, server.Stop).Stop()
	server.GracefulStop()
}

const (
	// maxRequestBytes bounds a query: 20,000 entities of 512 bytes are 10 MiB of it.
	maxRequestBytes = 16 << 20
	// maxCallBytes bounds the bytes that a call counts for, with the frames it comes in.
	maxCallBytes = maxRequestBytes + maxRequestBytes/8
	// maxHeaderBytes bounds the headers of a call. Brokers send some hundred bytes.
	maxHeaderBytes = 16 << 10
	// shakeWithin bounds a handshake. idleConn bounds how long a connection may have no
	// call.
	shakeWithin = 10 * time.Second
	idleConn    = 15 * time.Minute
)

// guard returns l with a bound on the memory of calls that are arriving. It sets no bound
// on the time of a call: ReadPartition takes minutes, and its caller sends little meanwhile.
func (n *Node) guard(l net.Listener) net.Listener {
	return arrivals.Watch(l, arrivals.Bounds{Budget: n.arriving, Call: maxCallBytes})
}

// admitCall refuses a call for which there is no memory, as soon as its headers are there.
func admitCall(ctx context.Context, _ *tap.Info) (context.Context, error) {
	if from, ok := peer.FromContext(ctx); ok {
		if err := arrivals.Room(from.Addr); err != nil {
			return nil, rpcerr.Status(err)
		}
	}
	return ctx, nil
}

// server returns the gRPC server that brokers, other nodes and operators ask.
func (n *Node) server() *grpc.Server {
	s := grpc.NewServer(append(serverOptions(), n.cfg.Permit.ServerOptions(admitCall, permit.Broker, permit.Node)...)...)
	nodev1.RegisterNodeServiceServer(s, n)
	nodev1.RegisterAdminServiceServer(s, n.admin())
	healthv1.RegisterHealthServer(s, health.NewServer()) // brokers use it to tell a busy node from an unresponsive one
	return s
}

// admin returns the service that operators ask.
func (n *Node) admin() *admin.Server {
	return admin.New(admin.Config{
		Node: n.cfg.ID, Store: n.store, Cache: n.cache, Schemas: n.schemas, Replicas: n.replicas, Forget: n.lookup.ForgetPartition, Rates: n.rates.get,
		Brokers: n.cfg.Brokers, Topics: n.cfg.Topics.WithDefaults(), Audit: n.cfg.Audit, While: n.whileRunning, Log: n.log,
	})
}

// peers returns how other nodes are called.
func (n *Node) peers() []grpc.DialOption {
	if len(n.cfg.Peers) > 0 {
		return n.cfg.Peers
	}
	return []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
}

// drain waits until the node may stop answering: Config.Drain after ctx is done, or when
// hosts is done. It closes leaving when ctx is done.
func (n *Node) drain(ctx, hosts context.Context) {
	select {
	case <-hosts.Done():
		return
	case <-ctx.Done():
	}
	close(n.leaving)
	if n.cfg.Drain > 0 {
		n.log.Info("the node is to be asked no more, and stops soon", "in", n.cfg.Drain)
		_ = wait.For(hosts, n.cfg.Drain)
	}
}

// isLeaving reports whether the node has been told to stop.
func (n *Node) isLeaving() bool {
	select {
	case <-n.leaving:
		return true
	default:
		return false
	}
}

// serverOptions returns the options of the server, without those of permissions.
func serverOptions() []grpc.ServerOption {
	return append(grpctune.Server(), grpc.ForceServerCodecV2(nodewire.Codec()),
		grpc.MaxRecvMsgSize(maxRequestBytes), grpc.MaxConcurrentStreams(1024), grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(shakeWithin), grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleConn}))
}

// Close closes the store, and gives the cache's memory back.
func (n *Node) Close() error {
	n.cache.Close()
	return n.store.Close()
}

// ErrUnassigned is what Ready returns for a node that is well and hosts nothing, because it
// is new or drained. Such a node is ready for whatever it may be asked.
var ErrUnassigned = errors.New("no partition is assigned to this node")

// Ready returns why the node cannot answer for all that it hosts, or nil. See
// ErrUnassigned.
func (n *Node) Ready() error {
	if n.isLeaving() {
		return errors.New("the node is being stopped")
	}
	if what, _ := n.awaits.Load().(string); what != "" {
		return errors.New("waiting for " + what)
	}
	if what := n.admission.Pending(); what != "" {
		return errors.New("waiting for " + what)
	}
	if m := n.member.Load(); m != nil {
		var held *millrace.Error // another process has this node's name; other faults, such as etcd away, pass by themselves
		if errors.As(m.Fault(), &held) {
			return held
		}
	}
	hosted, err := whole(n.reports(time.Now()))
	if err == nil && hosted == 0 {
		return n.whyEmpty()
	}
	return err
}

// whole returns how many partitions a node has by its reports, and as an error those that
// it cannot answer for. It leaves out partitions that are draining: they belong to another
// node now, and only answer for another moment.
func whole(reports []topology.Report) (hosted int, err error) {
	var faults []string
	for _, r := range reports {
		count := r.Partitions.Len()
		switch {
		case r.State == replica.Draining.String():
			continue
		case r.State != replica.Ready.String():
			faults = append(faults, fmt.Sprintf("%d partitions are %s (%s: %s)", count, r.State, r.Reason, r.Detail))
		case r.Seconds > 0: // older than LagLimit, and still Ready: the goroutine that would make it stale waits for Kafka
			faults = append(faults, fmt.Sprintf("answers are as the log was %.0f s ago, and Kafka has not said since where it ends", r.Seconds))
		}
		hosted += count
	}
	if len(faults) > 0 {
		err = errors.New(strings.Join(faults, "; "))
	}
	return hosted, err
}

// whyEmpty returns why a node hosts nothing. It is ErrUnassigned only if the assignment
// says that it should host nothing: a node that has just started hosts nothing either.
func (n *Node) whyEmpty() error {
	maps := n.maps.Load()
	if maps == nil {
		return errors.New("waiting to hear of the assignment")
	}
	m := (*maps)()
	switch assigned := m.Hosted(n.cfg.ID); {
	case m.Epoch() == 0:
		return errors.New("the cluster has no assignment yet")
	case assigned.Len() > 0 || n.backsUp():
		return errors.New("nothing of what is assigned to this node is hosted yet")
	}
	return ErrUnassigned
}

// backsUp reports whether it is a backup node.
func (n *Node) backsUp() bool { return n.cfg.Keeps != topology.Set{} }

// Proven reports whether partitioners have proven that all that came in up to some
// time is in the log, and every replica has reached such a time. A new group of
// partitioners has proven nothing at first; answers count as old until it has.
func (n *Node) Proven() bool { return n.replicas.Proven(time.Now()) }

// Applied returns, for each of a partition's two streams, the first offset that its answers
// do not include yet, by kafka.Stream.
func (n *Node) Applied(p millrace.Partition) [2]millrace.Offset { return n.replicas.Of(p).Applied() }
