package minicluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/pagetoken"
	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/admin"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/brokers"
	"github.com/millrace/millrace/internal/cluster/secrets"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/door"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/grpctune"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/auditlog"
	"github.com/millrace/millrace/internal/kafka/exposures"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/internal/permit"
	"github.com/millrace/millrace/partitioner"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// Config says what to run. Addresses are host:port; an empty one is a free
// port of the loopback interface.
type Config struct {
	Dir      string   // where all parts keep their data
	Nodes    int      // index nodes, node-1 and so on; 0: those that Dir has, 3 if it has none
	Replicas int      // how many replicas each partition of a new cluster has; default 2, at most as many as nodes
	Content  []string // topics of content records; default "activity"
	Features []string // topics of feature records; default "entity-features"

	Kafka       string // a Kafka to use; empty starts one in this process
	TopicPrefix string // what the names of all topics and groups begin with, to share a Kafka
	Etcd        string // an etcd to use; empty starts one in this process
	Name        string // the cluster's name in etcd; default "millrace"
	Version     string // the version that the broker reports

	KafkaAddr, EtcdAddr, HTTPAddr, GRPCAddr, AdminAddr string // the addresses to listen on

	LogLevels http.Handler // serves /log on the admin port; nil: there is no /log

	Feeds []feeds.Feed // besides the built-in ones

	// Exposures is the topic, without TopicPrefix, of what answers of experiments
	// showed; empty: none.
	Exposures string
	// Leans returns the value of [coordinator.Config.Leans]; nil: that field is not set.
	Leans func(context.Context, *cluster.Client) (coordinator.Leans, error)

	// Node, if set, adjusts the configuration of each index node.
	Node func(*indexnode.Config)
	// Broker, if set, adjusts the configuration of the broker.
	Broker func(*broker.Config)
	// Assign, if set, makes the first assignment instead of [topology.Spread].
	Assign func(nodes []millrace.NodeID) topology.Assignment
	Log    *slog.Logger // nil: silent
}

// defaults fills in the defaults, and puts TopicPrefix before the topics of Content and
// Features.
func (c *Config) defaults() {
	c.Content = c.prefixed(c.Content, "activity")
	c.Features = c.prefixed(c.Features, "entity-features")
	c.Name = cmp.Or(c.Name, "millrace")
	for _, a := range []*string{&c.KafkaAddr, &c.EtcdAddr, &c.HTTPAddr, &c.GRPCAddr, &c.AdminAddr} {
		*a = cmp.Or(*a, "127.0.0.1:0")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

// prefixed returns topics with the prefix. If there are none, it returns one topic with the
// name.
func (c *Config) prefixed(topics []string, name string) []string {
	if len(topics) == 0 {
		topics = []string{name}
	}
	all := make([]string, len(topics))
	for i, t := range topics {
		all[i] = c.TopicPrefix + t
	}
	return all
}

// inputs returns the content and feature topics.
func (c *Config) inputs() []string { return slices.Concat(c.Content, c.Features) }

// Cluster is a running cluster. Its addresses are set when Start returns.
type Cluster struct {
	Kafka, Etcd, HTTP, GRPC, Admin string // host:port

	cfg     Config
	ids     []millrace.NodeID // the ids of Nodes, in the same order
	topics  kafka.Topics
	client  *cluster.Client
	maps    *cluster.Watcher // which nodes there are and who hosts what
	broker  *broker.Broker
	metrics *prometheus.Registry // of all roles
	Nodes   []*indexnode.Node
	stops   []func()        // tells each node to stop
	stopped []chan struct{} // closed when the node has stopped

	run    context.Context // ends when a part fails, or at Close
	cancel context.CancelFunc
	group  *errgroup.Group
	closed []func() error // what Close calls, the last one first
}

// Metrics returns the registry of the metrics of all roles.
func (c *Cluster) Metrics() *prometheus.Registry { return c.metrics }

// Start starts a cluster. It serves once [Cluster.Ready] returns nil. The cluster runs until
// Close, also when ctx ends.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	cfg.defaults()
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c := &Cluster{cfg: cfg, cancel: cancel, topics: kafka.Prefixed(cfg.TopicPrefix)}
	c.group, run = errgroup.WithContext(run)
	c.run = run
	if err := c.start(ctx, run); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// start starts the parts in the order in which they need each other. What it starts ends
// when run ends; ctx is for starting alone.
func (c *Cluster) start(ctx, run context.Context) error {
	if err := c.startKafka(ctx); err != nil {
		return err
	}
	if err := c.startEtcd(ctx, run); err != nil {
		return err
	}
	metrics := prometheus.NewRegistry()
	c.metrics = metrics
	metrics.MustRegister(c.client)
	for _, id := range c.ids {
		if err := c.startNode(run, id, metrics); err != nil {
			return err
		}
	}
	if err := c.startPartitioner(run, metrics); err != nil {
		return err
	}
	if err := c.startCoordinator(run, metrics); err != nil {
		return err
	}
	return c.startBroker(run, metrics)
}

func (c *Cluster) startCoordinator(run context.Context, metrics prometheus.Registerer) error {
	cfg := coordinator.Config{Cluster: c.client, Name: "coordinator-1", Log: c.cfg.Log}
	if c.cfg.Exposures != "" {
		cfg.Exposures = exposures.NewReader(kafka.At(c.Kafka), c.cfg.TopicPrefix+c.cfg.Exposures, c.cfg.Log)
		cfg.Outcomes = func(e *experiment.Experiment, from millrace.Time) coordinator.Acts {
			of := e.Outcomes
			return exposures.NewActReader(exposures.ActReaderConfig{
				Brokers: kafka.At(c.Kafka), Exposures: c.cfg.TopicPrefix + c.cfg.Exposures, Outcomes: c.cfg.TopicPrefix + of.Topic, Schemas: c.topics.Schemas,
				AnswerField: of.Field(), Window: of.For(), Actions: of.Actions, Named: of.AnswerField != "", Experiment: e.Name, From: from, Log: c.cfg.Log,
			})
		}
	}
	if c.cfg.Leans != nil {
		var err error
		if cfg.Leans, err = c.cfg.Leans(run, c.client); err != nil {
			return err
		}
	}
	co, err := coordinator.New(cfg)
	if err != nil {
		return err
	}
	if err := metrics.Register(co); err != nil {
		return err
	}
	c.group.Go(func() error { return co.Run(run) })
	return nil
}

// startKafka starts Kafka, unless the configuration names one, and creates the topics.
func (c *Cluster) startKafka(ctx context.Context) error {
	if c.Kafka = c.cfg.Kafka; c.Kafka == "" {
		k, err := StartKafka(c.cfg.Dir, c.cfg.KafkaAddr)
		if err != nil {
			return err
		}
		c.closed = append(c.closed, func() error { k.Close(); return nil })
		c.Kafka = k.Addr()
	}
	brokers := kafka.At(c.Kafka)
	if err := kafka.EnsureTopics(ctx, brokers, c.topics, nil); err != nil {
		return err
	}
	for _, topic := range c.cfg.inputs() {
		if err := kafka.EnsureContentTopic(ctx, brokers, topic, 4, nil); err != nil {
			return err
		}
	}
	return nil
}

// startEtcd starts etcd and the client of it. In a new cluster it makes the first
// assignment.
func (c *Cluster) startEtcd(ctx, run context.Context) error {
	if c.Etcd = c.cfg.Etcd; c.Etcd == "" {
		e, err := StartEtcd(ctx, c.cfg.Dir, c.cfg.EtcdAddr)
		if err != nil {
			return err
		}
		c.closed = append(c.closed, func() error { e.Close(); return nil })
		c.Etcd = e.Addr()
	}
	var err error
	if c.client, err = cluster.Open(ctx, cluster.Config{Endpoints: []string{c.Etcd}, Name: c.cfg.Name, Log: c.cfg.Log}); err != nil {
		return err
	}
	c.closed = append(c.closed, c.client.Close)
	if c.maps, err = c.client.Watch(run); err != nil {
		return err
	}
	m := c.maps.Current()
	if c.ids, err = c.nodeIDs(m); err != nil || m.Epoch() > 0 {
		return err
	}
	first, err := topology.Spread(c.ids, min(cmp.Or(c.cfg.Replicas, 2), len(c.ids)))
	if err != nil {
		return err
	}
	if c.cfg.Assign != nil {
		first = c.cfg.Assign(c.ids)
	}
	first.AllowUnknown = true // the nodes register only later
	return steering.Assign(ctx, c.client, first)
}

// nodeIDs returns which nodes this process runs. If no number is configured, they are those
// that the cluster's assignment names and that have a directory here: other nodes of the
// assignment may be processes of their own. The error says that Config.Nodes would leave
// out a node with a directory here.
func (c *Cluster) nodeIDs(m *topology.Map) ([]millrace.NodeID, error) {
	a := m.Assignment()
	var own []millrace.NodeID
	for _, id := range a.Nodes() {
		if _, err := os.Stat(c.nodeDir(id)); err == nil {
			own = append(own, id)
		}
	}
	if c.cfg.Nodes == 0 && len(own) > 0 {
		return own, nil
	}
	ids := make([]millrace.NodeID, cmp.Or(c.cfg.Nodes, 3))
	for i := range ids {
		ids[i] = millrace.NodeID(fmt.Sprintf("node-%d", i+1))
	}
	for _, id := range own {
		if !slices.Contains(ids, id) {
			return nil, fmt.Errorf("%s has the data of index node %s, which the cluster's assignment names, and %d index nodes are asked for: start as many as it has, which is what is done if no number is given, and take away with millrace node remove those that you do not want", c.cfg.Dir, id, c.cfg.Nodes)
		}
	}
	return ids, nil
}

func (c *Cluster) nodeDir(id millrace.NodeID) string { return filepath.Join(c.cfg.Dir, string(id)) }

// startNode opens an index node and runs it until run ends or StopNode stops it.
func (c *Cluster) startNode(run context.Context, id millrace.NodeID, metrics prometheus.Registerer) error {
	cfg := indexnode.Config{
		ID: id, Dir: c.nodeDir(id), Brokers: kafka.At(c.Kafka), Topics: c.topics, Cluster: c.client,
		Store:   store.Options{MaxDirtyBytes: 16 << 20, CacheBytes: 16 << 20}, // several nodes share this process's memory
		Cache:   cache.Config{Memory: max(cache.DefaultMemory()/len(c.ids), cache.LeastMemory)},
		Metrics: prometheus.WrapRegistererWith(prometheus.Labels{"node": string(id)}, metrics), Log: c.cfg.Log,
	}
	if c.cfg.Node != nil {
		c.cfg.Node(&cfg)
	}
	n, err := indexnode.Open(cfg)
	if err != nil {
		return err
	}
	l, err := grpctune.Listen("127.0.0.1:0")
	if err != nil {
		return errors.Join(err, n.Close())
	}
	run, stop := context.WithCancel(run)
	stopped := make(chan struct{})
	c.Nodes, c.stops, c.stopped = append(c.Nodes, n), append(c.stops, stop), append(c.stopped, stopped)
	c.group.Go(func() error {
		defer close(stopped)
		defer stop()
		return errors.Join(n.Run(run, l), n.Close())
	})
	return nil
}

// StopNode tells the i-th node to stop, as SIGTERM tells a process. The channel is closed
// when it has stopped.
func (c *Cluster) StopNode(i int) <-chan struct{} {
	c.stops[i]()
	return c.stopped[i]
}

func (c *Cluster) startPartitioner(run context.Context, metrics prometheus.Registerer) error {
	p, err := partitioner.New(partitioner.Config{
		Brokers: kafka.At(c.Kafka), Content: c.cfg.Content, Features: c.cfg.Features, Topics: c.topics,
		Group: c.partitionGroup(), Instance: c.cfg.TopicPrefix + "partitioner-1",
	}, c.cfg.Log, metrics)
	if err != nil {
		return err
	}
	c.group.Go(func() error { return p.Run(run) })
	return nil
}

func (c *Cluster) startBroker(run context.Context, metrics *prometheus.Registry) error {
	definitions, err := artefacts.Watch(run, c.client, feeds.Kind)
	if err != nil {
		return err
	}
	models, err := artefacts.Watch(run, c.client, indexnode.ModelsKind)
	if err != nil {
		return err
	}
	condemned, err := artefacts.WatchCondemned(run, c.client)
	if err != nil {
		return err
	}
	tests, err := artefacts.Watch(run, c.client, experiments.Kind)
	if err != nil {
		return err
	}
	pages, err := secrets.Watch(run, c.client, pagetoken.Secret)
	if err != nil {
		return err
	}
	traced := brokers.WatchTraced(run, c.client)
	cfg := broker.Config{Maps: c.maps, Feeds: c.cfg.Feeds, Definitions: definitions, Models: models, Condemned: condemned, Experiments: tests, PageKeys: pages.Current, Traced: traced, Name: brokerName, Metrics: metrics, Log: c.cfg.Log}
	closeExposures := func() {}
	if c.cfg.Exposures != "" {
		brokers := kafka.At(c.Kafka)
		records, closes, err := exposures.OpenLog(brokers, c.cfg.TopicPrefix+c.cfg.Exposures, c.cfg.Log)
		if err != nil {
			return err
		}
		metrics.MustRegister(records, brokers.Collector("millrace_exposure"))
		cfg.Exposures, closeExposures = records, closes
	}
	if c.cfg.Broker != nil {
		c.cfg.Broker(&cfg)
	}
	b, err := broker.New(cfg)
	if err != nil {
		closeExposures()
		return err
	}
	c.broker = b
	c.closed = append(c.closed, func() error { defer closeExposures(); return b.Close() })
	server := grpc.NewServer(b.ServerOptions()...)
	b.RegisterGRPC(server)

	var everybody *permit.Policy // nil: everybody may do everything
	metrics.MustRegister(admin.FileFaults(), admin.Certificates(), (*auditlog.Copier)(nil).Collector())
	told := door.NewRefusals(c.cfg.Log, metrics)
	serve := func(port string, addr *string, listen, refusal string, f func(net.Listener) error) error {
		l, err := grpctune.Listen(listen)
		if err != nil {
			return err
		}
		*addr = l.Addr().String()
		c.group.Go(func() error {
			return f(door.New(l, door.Config{Port: port, Refusal: refusal, Addr: listen, Told: told}))
		})
		return nil
	}
	err = errors.Join(
		serve("http", &c.HTTP, c.cfg.HTTPAddr, door.RefusalHTTP, func(l net.Listener) error { return admin.ServeBy(run, l, b.HTTPServer(), 2*time.Second) }),
		serve("admin", &c.Admin, c.cfg.AdminAddr, door.RefusalHTTP, func(l net.Listener) error {
			return admin.Serve(run, l, everybody.Handler(admin.Handler(metrics, c.Ready, cmp.Or(c.cfg.LogLevels, http.NotFoundHandler()))))
		}),
		serve("grpc", &c.GRPC, c.cfg.GRPCAddr, "", func(l net.Listener) error {
			defer context.AfterFunc(run, server.Stop)()
			return server.Serve(b.Guard(l))
		}),
	)
	leave := brokers.Announce(c.client, brokers.Broker{Name: brokerName, Addr: c.GRPC, Admin: c.Admin, Version: c.cfg.Version}, brokerName, definitions, models, condemned, tests, pages, traced)
	c.closed = append(c.closed, func() error { _ = leave(context.Background()); return nil }) // if it fails, the lease ends some time later
	return err
}

// brokerName is the name of the broker.
const brokerName = "broker-1"

func (c *Cluster) partitionGroup() string { return c.cfg.TopicPrefix + "partitioner" }

// Ready returns an error that says what the cluster is still waiting for, or nil.
func (c *Cluster) Ready() error {
	for i, n := range c.Nodes {
		err := n.Ready()
		if errors.Is(err, indexnode.ErrUnassigned) { // it has nothing to wait for
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.ids[i], err)
		}
		if !n.Proven() {
			return fmt.Errorf("%s: it is not known yet whether the partitioner has brought what came in to the log", c.ids[i])
		}
	}
	m := c.maps.Current()
	var served topology.Set
	for _, id := range c.ids {
		hosted, ready := m.Hosted(id), m.Ready(id)
		if missing := hosted.Minus(ready); missing.Len() > 0 {
			return fmt.Errorf("%s: %d partitions are not announced as ready", id, missing.Len())
		}
		if behind := hosted.And(m.Lag(id).Behind); behind.Len() > 0 {
			return fmt.Errorf("%s: %d partitions are announced as behind", id, behind.Len())
		}
		served = served.Or(ready)
	}
	if n := partition.Count - served.Len(); n > 0 { // for example before the assignment is known
		return fmt.Errorf("%d partitions have no replica", n)
	}
	return nil
}

// pollEvery is the time between two calls of done by wait. It is short, since tests wait.
const pollEvery = 5 * time.Millisecond

// wait calls done again and again until it returns nil, ctx ends, or a part of the cluster
// fails. The error of an ended ctx has the last error of done as well.
func (c *Cluster) wait(ctx context.Context, done func() error) error {
	t := time.NewTicker(pollEvery)
	defer t.Stop()
	for {
		err := done()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-c.run.Done():
			return context.Cause(c.run)
		case <-t.C:
		}
	}
}

// WaitReady waits until the cluster serves every partition.
func (c *Cluster) WaitReady(ctx context.Context) error { return c.wait(ctx, c.Ready) }

// Produce publishes a schema, and then writes a record of that schema for each line of JSON
// to a content or feature topic. It returns how many it wrote. topic is a full name, with
// the prefix.
func (c *Cluster) Produce(ctx context.Context, topic string, s *schemas.Schema, lines iter.Seq2[[]byte, error]) (records int, err error) {
	registry, err := registry.New(nil, nil)
	if err != nil {
		return 0, err
	}
	log, err := schemalog.Open(schemalog.Config{Brokers: kafka.At(c.Kafka), Topic: c.topics.Schemas, Registry: registry, Log: c.cfg.Log})
	if err != nil {
		return 0, err
	}
	defer log.Close()
	if err := log.Publish(ctx, s); err != nil {
		return 0, err
	}
	p, err := kafka.NewProducer(kafka.At(c.Kafka), "", c.cfg.Log)
	if err != nil {
		return 0, err
	}
	defer p.Close()
	for line, err := range lines {
		if err != nil {
			return records, err
		}
		body, err := s.EncodeJSON(line)
		if err != nil {
			return records, fmt.Errorf("line %d: %w", records+1, err)
		}
		p.Produce(ctx, kafka.Outgoing{Topic: topic, Partition: int32(records % 4), Value: schemas.Frame(s.Fingerprint(), body)})
		records++
	}
	return records, p.Flush(ctx)
}

// WaitIndexed waits until every replica has applied all that the content and feature topics
// have, also what is written during the wait.
func (c *Cluster) WaitIndexed(ctx context.Context) error {
	look, err := kafka.NewInspector(kafka.At(c.Kafka))
	if err != nil {
		return err
	}
	defer look.Close()
	return c.wait(ctx, func() error {
		for _, topic := range c.cfg.inputs() {
			lag, err := look.Lag(ctx, c.partitionGroup(), topic)
			if err != nil {
				return err
			}
			if lag > 0 {
				return fmt.Errorf("%d records of %s are not partitioned", lag, topic)
			}
		}
		return c.applied(ctx, look)
	})
}

// applied returns nil if every node has applied all records of the topics timeline and
// features for its partitions; else an error that names one partition of a node that has
// not.
func (c *Cluster) applied(ctx context.Context, look *kafka.Inspector) error {
	m := c.maps.Current()
	for stream, topic := range [2]string{kafka.Timeline: c.topics.Timeline, kafka.Features: c.topics.Features} {
		ends, err := look.Ends(ctx, topic)
		if err != nil {
			return err
		}
		for i, n := range c.Nodes {
			hosted := m.Hosted(c.ids[i])
			for p := range hosted.All() {
				if at := n.Applied(p)[stream]; at < ends[p] {
					return fmt.Errorf("%s: %s/%d is at %d of %d", c.ids[i], topic, p, at, ends[p])
				}
			}
		}
	}
	return nil
}

// Produced returns the sum of the end offsets of a topic's partitions: the number of its
// records, with the markers of transactions.
func (c *Cluster) Produced(ctx context.Context, topic string) (int64, error) {
	look, err := kafka.NewInspector(kafka.At(c.Kafka))
	if err != nil {
		return 0, err
	}
	defer look.Close()
	ends, err := look.Ends(ctx, topic)
	var sum int64
	for _, end := range ends {
		sum += int64(end)
	}
	return sum, err
}

// Failed returns a channel that is closed when a part of the cluster fails, or at Close.
// Close returns why.
func (c *Cluster) Failed() <-chan struct{} { return c.run.Done() }

// ContentTopic returns the full name of the first content topic, with the prefix.
func (c *Cluster) ContentTopic() string { return c.cfg.Content[0] }

// Close stops the cluster. All roles stop at once; then the broker, etcd and Kafka are
// closed, in the reverse order of their start. It returns what failed while the cluster
// ran.
func (c *Cluster) Close() error {
	c.cancel()
	err := c.group.Wait()
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	for i := len(c.closed) - 1; i >= 0; i-- {
		err = errors.Join(err, c.closed[i]())
	}
	return err
}
