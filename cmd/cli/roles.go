package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/broker/admission"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/pagetoken"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/indexnode/backups"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/admin"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/internal/door"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/permit"
	"github.com/millrace/millrace/partitioner"
	"github.com/millrace/millrace/schemas"
)

// Common is what every role's configuration file has.
type Common struct {
	Role          string        `yaml:"role,omitempty" choices:"partitioner, indexnode, broker, coordinator" doc:"which role the file is of, so that config check knows and another role refuses it"`
	Brokers       []string      `yaml:"brokers" form:"host:port" doc:"Kafka"`
	TopicPrefix   string        `yaml:"topic_prefix" doc:"stands before the names of Millrace's own topics; the same in every role"`
	Etcd          []string      `yaml:"etcd" form:"host:port" doc:"etcd; partitioners do not ask it"`
	Cluster       string        `yaml:"cluster" doc:"its name in etcd; the same in every role"`
	Admin         string        `yaml:"admin" form:"host:port" doc:"where livez, readyz, metrics, the log's levels and pprof are served; left out: nowhere"`
	Authorization permit.Config `yaml:"authorization"` // left out: who gets through a port may do everything that it serves, on loopback only
	Audit         string        `yaml:"audit" form:"file" doc:"what others have the role do is written there: who, what, before and after; left out: in the log alone"`
	Security      `yaml:",inline"`
}

// roleFlags is the help on what goes before the configuration.
const roleFlags = `Flags and variables of the environment go before the configuration: see "millrace
help connections". Certificates and files of passwords are read again when they
change. So do the flags below in which processes of a role differ, so that one
file serves all of them.

`

// roleCommand is a command that reads a configuration file and runs until it
// is told to stop.
func roleCommand[C any, P interface {
	*C
	configuration
}](name, short, example string, run func(context.Context, *C) error) *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   name + " --config FILE",
		Short: short,
		Long:  short + ".\n\n" + roleFlags + fmt.Sprintf("The configuration file, in YAML; every key of it, with its default: millrace config reference %s. What is\nwrong with a file, before it is used: millrace config check --role %[1]s FILE.\n\n", name) + example,
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg := P(new(C))
			if _, err := readConfiguration(file, cfg, c.Flags()); err != nil {
				return err
			}
			said, err := document.Encode(cfg) // passwords write themselves as stars
			if err != nil {
				return err
			}
			slog.Info("starting", "role", name, "version", version(), "config", string(said))
			stop, err := startTraces(c.Context(), "millrace-"+name)
			if err != nil {
				return err
			}
			err = run(c.Context(), cfg)
			last, cancel := context.WithTimeout(context.WithoutCancel(c.Context()), 2*time.Second)
			defer cancel()
			return toldToStop(errors.Join(err, stop(last)))
		},
	}
	c.Flags().StringVar(&file, "config", "", "the configuration file")
	ownFlags(c.Flags(), P(new(C)))
	if err := c.MarkFlagRequired("config"); err != nil {
		panic(err) // the flag above exists
	}
	return c
}

// ownFlags adds the flags in which processes of a role differ.
func ownFlags(f *pflag.FlagSet, cfg configuration) {
	for _, s := range ownOf(cfg) {
		if f.Lookup(s.flag) == nil { // of another role
			f.String(s.flag, "", s.usage+" ("+s.env+")")
		}
	}
}

// ownOf are the settings of a role's configuration in which its processes
// differ. By flags and the environment they can all have the same file.
func ownOf(cfg any) []setting {
	own := func(key, usage string, text *string) setting {
		return setting{flag: key, env: "MILLRACE_" + strings.ToUpper(key), usage: usage, text: text}
	}
	switch c := cfg.(type) {
	case *partitionerConfig:
		return []setting{own("instance", "this process's name, kept across restarts", &c.Instance)}
	case *indexnodeConfig:
		return []setting{
			own("id", "the node's name, kept for life", (*string)(&c.ID)),
			own("advertise", "where brokers reach the node, host:port", &c.Advertise),
			own("zone", "where the process stands", &c.Zone),
		}
	case *brokerConfig:
		return []setting{own("zone", "where the process stands", &c.Zone)}
	case *coordinatorConfig:
		return []setting{own("name", "the coordinator's name", &c.Name)}
	}
	return nil
}

// role is the running frame of a role: metrics, the admin port, the cluster.
type role struct {
	metrics *prometheus.Registry
	group   *errgroup.Group // of the parts, and the admin port
	parts   sync.WaitGroup
	end     context.CancelFunc // of the admin port
	permit  *permit.Policy
	told    *door.Refusals // of what the ports turn away
	acts    *audit.Log     // nil: in the log alone
}

// errStopping is why a role is not ready that was told to stop.
var errStopping = errors.New("it is being stopped")

// newRole returns the frame of a role, and the context of its work. From the end
// of ctx on, which tells it to stop, the role is not ready; its work ends when
// leave returns, if there is one.
func newRole(ctx context.Context, c *Common, ready func() error, leave func()) (*role, context.Context, error) {
	spareCollector()
	r := &role{metrics: prometheus.NewRegistry()}
	r.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "millrace_build_info", Help: "1, with the version of the process and of Go.", ConstLabels: prometheus.Labels{"version": version(), "goversion": runtime.Version()},
	}, func() float64 { return 1 }))
	r.metrics.MustRegister(admin.FileFaults())
	r.told = door.NewRefusals(slog.Default(), r.metrics)
	told := ctx
	last, end := context.WithCancel(context.WithoutCancel(told))
	r.end = end
	if leave != nil {
		var stop context.CancelFunc
		ctx, stop = context.WithCancel(last)
		context.AfterFunc(told, func() {
			leave()
			stop()
		})
	}
	r.group, ctx = errgroup.WithContext(ctx)
	var err error
	if r.permit, err = c.Authorization.Open(slog.Default()); err != nil {
		return nil, nil, err
	}
	if c.Audit != "" {
		if r.acts, err = audit.Open(c.Audit); err != nil {
			return nil, nil, err
		}
	}
	if c.Admin != "" {
		l, err := r.listen(ctx, c, c.adminPort())
		if err != nil {
			return nil, nil, err
		}
		r.group.Go(func() error {
			return admin.Serve(last, l, r.permit.Handler(admin.Handler(r.metrics, func() error {
				if told.Err() != nil {
					return errStopping
				}
				return ready()
			}, levelsOf(ctx).Handler(r.acts))))
		})
	}
	return r, ctx, nil
}

// run runs a part of the role. When one fails all end.
func (r *role) run(part func() error) {
	r.parts.Add(1)
	r.group.Go(func() error {
		defer r.parts.Done()
		return part()
	})
}

// wait returns when all parts have ended. Until then the admin port tells how
// it is with them.
func (r *role) wait() error {
	r.parts.Wait()
	r.end()
	return errors.Join(r.group.Wait(), r.acts.Close())
}

func (c *Common) adminPort() port {
	return port{field: "admin", addr: c.Admin, refusal: door.RefusalHTTP, open: c.Authorization.Probes || c.Authorization.ByToken()}
}

// listen takes a port of the role.
func (r *role) listen(ctx context.Context, c *Common, p port) (net.Listener, error) {
	p.told = r.told
	return c.listen(ctx, p)
}

// listen takes a port.
func (c *Common) listen(ctx context.Context, p port) (net.Listener, error) {
	if err := c.known(p); err != nil {
		return nil, err
	}
	return c.Security.listen(ctx, p)
}

// known refuses a port beyond loopback where nothing says who may do what, since
// the certificates of the CA are those of many.
func (c *Common) known(p port) error {
	if !c.Authorization.On() && c.TLS.On() && !c.Insecure && c.plain().Check(p.addr) != nil {
		return &millrace.Error{
			Reason: millrace.ReasonInvalid, Field: "authorization", Detail: fmt.Sprintf("%s (%s) is beyond loopback, and whoever has a certificate of the CA could do everything there", p.field, p.addr),
			WayOut: "name identities and their roles, or say insecure: true if they may",
		}
	}
	return nil
}

// validate reports the faults of what every role has, besides those of its
// Kafka, where it has these ports.
func (c *Common) validate(role string, ports ...port) error {
	var errs []error
	if c.Role != "" && c.Role != role {
		errs = append(errs, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "role", Detail: fmt.Sprintf("the file is of another role than %s: %.40q", role, c.Role), WayOut: "give the role its own file"})
	}
	if c.Admin != "" {
		ports = append(ports, c.adminPort())
	}
	for _, p := range ports {
		_, err := c.guard(p)
		if errs = append(errs, err); p.addr != "" {
			errs = append(errs, c.known(p))
		}
	}
	_, authorized := c.Authorization.Open(nil)
	_, calls := c.dial()
	return errors.Join(append(errs, authorized, calls)...)
}

// settings are those of every role.
func (c *Common) settings() []setting {
	return append(settingsOf(&c.Security), setting{env: "MILLRACE_TOKENS", text: &c.Authorization.Tokens})
}

func (c *Common) complete() { c.Cluster = c.clusterName() }

// kafka is the role's Kafka.
func (c *Common) kafka() kafka.Brokers {
	if len(c.Brokers) == 0 {
		return kafka.Brokers{}
	}
	return c.Connections.Kafka.At(slog.Default(), c.Brokers...)
}

func (c *Common) clusterName() string { return cmp.Or(c.Cluster, "millrace") }

// checkDir refuses a data directory of another cluster or node, and returns
// its instance.
func (c *Common) checkDir(data string, id millrace.NodeID) (instance cluster.Instance, err error) {
	if data == "" {
		return instance, nil
	}
	return cluster.CheckDir(data, c.clusterName(), id)
}

// openCluster joins the cluster. dir, if not empty, keeps what was last good of
// it, so that the role can start while etcd is away.
func (c *Common) openCluster(ctx context.Context, dir string) (*cluster.Client, error) {
	return cluster.Open(ctx, c.inEtcd(dir))
}

func (c *Common) inEtcd(dir string) cluster.Config {
	return cluster.Config{Endpoints: c.Etcd, Access: c.Connections.Etcd, Name: c.clusterName(), Dir: dir, Log: slog.Default()}
}

// waiting says what a role waits for that has not heard of its cluster.
func (c *Common) waiting() error { return fmt.Errorf("waiting for etcd at %v", c.Etcd) }

// lastGood is where a role keeps what it last knew of its cluster.
func lastGood(data string) string {
	if data == "" {
		return ""
	}
	return filepath.Join(data, "cluster")
}

type partitionerConfig struct {
	Common         `yaml:",inline"`
	Content        []string      `yaml:"content" doc:"topics of content records; there is at least one topic, here or in features"`
	Features       []string      `yaml:"features" doc:"topics of feature records"`
	Group          string        `yaml:"group" doc:"the consumer group; two groups are two clusters' partitioners"`
	Instance       string        `yaml:"instance" doc:"this process's name in the group, kept across restarts"`
	SchemaRegistry string        `yaml:"schema_registry" form:"URL" doc:"of topics with Confluent framing; left out: there are none"`
	Future         time.Duration `yaml:"future" range:"0s.." doc:"how far a record's time may be after its arrival; the same in all of a group"`
}

func (c *partitionerConfig) settings() []setting { return append(c.Common.settings(), ownOf(c)...) }

func (c *partitionerConfig) complete() {
	c.Common.complete()
	c.Group = cmp.Or(c.Group, partitioner.DefaultGroup)
	c.Future = cmp.Or(c.Future, schemas.DefaultFuture)
}

func (c *partitionerConfig) validate() error {
	return errors.Join(c.Common.validate("partitioner"), c.partitioner().Validate())
}

func (c *partitionerConfig) partitioner() partitioner.Config {
	return partitioner.Config{
		Brokers: c.kafka(), Content: c.Content, Features: c.Features, Topics: kafka.Prefixed(c.TopicPrefix),
		Group: c.Group, Instance: c.Instance, SchemaRegistry: c.SchemaRegistry, RegistryAccess: c.Connections.SchemaRegistry, Future: c.Future,
	}
}

func partitionerCommand() *cobra.Command {
	return roleCommand("partitioner", "Re-key content and feature topics into the 720 partitions", `  brokers: [kafka-1:9092]
  content: [activity]          # topics of content records
  features: [entity-features]  # topics of feature records
  group: millrace-partitioner  # the consumer group; two groups are two clusters' partitioners
  instance: partitioner-1      # this process's name, kept across restarts
  schema_registry: https://registry:8081  # of topics with Confluent framing; left out: there are none
  future: 24h                  # how far a record's time may be after its arrival; the same in all of a group
  admin: 127.0.0.1:6061`, func(ctx context.Context, c *partitionerConfig) error {
		var made atomic.Pointer[partitioner.Partitioner]
		r, ctx, err := newRole(ctx, &c.Common, func() error {
			if p := made.Load(); p != nil {
				return p.Ready()
			}
			return errors.New("the partitioner is being set up")
		}, nil)
		if err != nil {
			return err
		}
		p, err := partitioner.New(c.partitioner(), slog.Default(), r.metrics)
		if err != nil {
			return err
		}
		made.Store(p)
		r.run(func() error { return p.Run(ctx) })
		return r.wait()
	})
}

type indexnodeConfig struct {
	Common    `yaml:",inline"`
	ID        millrace.NodeID `yaml:"id" doc:"the node's name, kept for life, with its data"`
	Zone      string          `yaml:"zone" doc:"where it stands: brokers of the zone ask it first, and replicas are in several"`
	Weight    float64         `yaml:"weight" range:"0.01..100" doc:"its share of the partitions, relative to the other nodes: one of weight 2 is to host twice what one of weight 1 hosts"`
	Listen    string          `yaml:"listen" form:"host:port" doc:"where it serves brokers and other nodes"`
	Advertise string          `yaml:"advertise" form:"host:port" default:"listen" doc:"where they reach it"`
	Data      string          `yaml:"data" form:"directory" doc:"of its own: the store, and the last good map of the cluster"`
	Cache     struct {
		Memory string `yaml:"memory" form:"size such as 8GiB" default:"half of the memory of the machine, or of its control group" doc:"what decoded timelines take at most"`
		// These bounded the cache before its bytes did.
		Records   *int `yaml:"records,omitempty" doc:"-"`
		EmptyKeys *int `yaml:"empty_keys,omitempty" doc:"-"`
	} `yaml:"cache"`
	Retention map[millrace.ContentType]struct {
		Age   time.Duration `yaml:"age" range:"0s.." doc:"how old a record of the content type gets, by the clock of the log; left out: any age"`
		Count int           `yaml:"count" range:"0.." doc:"how many of the newest records of the content type each timeline keeps; left out: all"`
	} `yaml:"retention" name:"TYPE"`
	MinFree        int64          `yaml:"min_free_mib" unit:"MiB" doc:"the free disk space below which nothing more is taken in; negative: no bound"`
	BackupsReach   time.Duration  `yaml:"backups_reach" range:"0s.." doc:"there always is a backup of each partition that is no older, so that the log may delete what is three times as old; left out: there is none, and the log must keep everything"`
	QuestionMemory int64          `yaml:"question_memory_mib" unit:"MiB" doc:"for what all questions read beside the caches, and their answers; the default is the least"`
	Backup         backups.Config `yaml:"backup"`
	Serves         *bool          `yaml:"serves" doc:"false: a backup node, which backs up and answers nobody"`
	Partitions     string         `yaml:"partitions" form:"set such as 0-99,200" default:"all" doc:"those of a backup node; a node that serves has what the cluster assigns"`
	Drain          *time.Duration `yaml:"drain" range:"0s.." doc:"how long it goes on answering when it is told to stop, while brokers look elsewhere; 0s for a backup node"`
}

func (c *indexnodeConfig) settings() []setting { return append(c.Common.settings(), ownOf(c)...) }

func (c *indexnodeConfig) complete() {
	c.Common.complete()
	c.MinFree = cmp.Or(c.MinFree, store.DefaultMinFreeBytes>>20)
	c.Weight = cmp.Or(c.Weight, 1)
	c.QuestionMemory = cmp.Or(c.QuestionMemory, indexnode.DefaultQuestionMemory>>20)
	c.Backup = c.Backup.WithDefaults()
	drain, serves := c.drain(), c.serves()
	c.Drain, c.Serves = &drain, &serves
}

func (c *indexnodeConfig) validate() error {
	n, err := c.node()
	n.Cluster = new(cluster.Client) // of nothing: it stands for what is joined later
	return errors.Join(c.Common.validate("indexnode", c.port()), err, c.inEtcd("").Validate(), n.Validate())
}

// maxNodeConns are a node's: a few of each broker and each other node.
const maxNodeConns = 1024

func (c *indexnodeConfig) port() port {
	return port{field: "listen", addr: c.Listen, conns: maxNodeConns}
}

func (c *indexnodeConfig) serves() bool { return c.Serves == nil || *c.Serves }

// node is what the node works with, as far as the configuration says it.
func (c *indexnodeConfig) node() (indexnode.Config, error) {
	keeps, noSet := c.keeps()
	memory, noSize := c.cacheMemory()
	return indexnode.Config{
		ID: c.ID, Zone: c.Zone, Weight: c.Weight, Advertise: c.Advertise, Dir: c.Data, Brokers: c.kafka(), Topics: kafka.Prefixed(c.TopicPrefix),
		BackupsReach: c.BackupsReach, Backup: c.Backup, Keeps: keeps, Drain: c.drain(), QuestionMemory: c.QuestionMemory << 20,
		Store: store.Options{Retention: c.retention(), MinFreeBytes: c.MinFree << 20}, Cache: cache.Config{Memory: memory}, Log: slog.Default(),
	}, errors.Join(noSet, noSize)
}

// drainFor is time for every broker to hear that a node is to be asked no more,
// and for callers, or what balances their load, to hear so of a broker,
// with some to spare: they hear of a change within a second.
const drainFor = 5 * time.Second

// drain is how long the node goes on answering when it is told to stop. A backup
// node answers nobody.
func (c *indexnodeConfig) drain() time.Duration {
	switch {
	case c.Drain != nil:
		return *c.Drain
	case !c.serves():
		return 0
	}
	return drainFor
}

// keeps returns the partitions of a backup node; none of one that serves.
func (c *indexnodeConfig) keeps() (cluster.Set, error) {
	if c.serves() {
		if c.Partitions != "" {
			return cluster.Set{}, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "partitions", Detail: "a node that serves has the partitions that the cluster assigns to it", WayOut: "leave it out, or make a backup node of it (serves: false)"}
		}
		return cluster.Set{}, nil
	}
	var errs []error
	if c.Backup.To == "" {
		errs = append(errs, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "backup.to", Detail: "a backup node (serves: false) needs a place for its backups", WayOut: "name one, such as s3://bucket/prefix or file:///dir"})
	}
	if c.Partitions == "" {
		return cluster.All(), errors.Join(errs...)
	}
	set, err := cluster.ParseSet(c.Partitions)
	return set, errors.Join(append(errs, err)...)
}

// cacheMemory is what the caches take at most, in bytes; 0 where nothing is said.
func (c *indexnodeConfig) cacheMemory() (int, error) {
	wrong := func(field, detail, wayOut string) (int, error) {
		return 0, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "cache." + field, Detail: detail, WayOut: wayOut}
	}
	const instead = "write cache: {memory: 8GiB} in its place, or nothing for half of the machine's memory; a record takes about a third more than its body"
	switch {
	case c.Cache.Records != nil:
		return wrong("records", "caches are bounded by their bytes, and no more by records", instead)
	case c.Cache.EmptyKeys != nil:
		return wrong("empty_keys", "caches are bounded by their bytes, and no more by keys", instead)
	case c.Cache.Memory == "":
		return 0, nil
	}
	n, err := parseBytes(c.Cache.Memory)
	if err != nil {
		return wrong("memory", err.Error(), "write a number and MiB, GiB or TiB, such as 8GiB")
	}
	if n < cache.LeastMemory {
		return wrong("memory", fmt.Sprintf("%s is less than caches can do with", c.Cache.Memory), fmt.Sprintf("give at least %dMiB", cache.LeastMemory>>20))
	}
	return n, nil
}

// parseBytes reads a number of bytes, such as 8GiB.
func parseBytes(s string) (int, error) {
	for unit, shift := range map[string]int{"MiB": 20, "GiB": 30, "TiB": 40} {
		if number, ok := strings.CutSuffix(s, unit); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(number), 10, 62-shift)
			if err != nil {
				return 0, fmt.Errorf("%q is no number of %s", number, unit)
			}
			return int(n) << shift, nil
		}
	}
	return 0, fmt.Errorf("%q has no unit", s)
}

// retention is what a node's store keeps of each content type.
func (c *indexnodeConfig) retention() map[millrace.ContentType]store.Retention {
	m := make(map[millrace.ContentType]store.Retention, len(c.Retention))
	for t, r := range c.Retention {
		m[t] = store.Retention{MaxAge: r.Age, MaxCount: r.Count}
	}
	return m
}

func indexnodeCommand() *cobra.Command {
	return roleCommand("indexnode", "Keep and serve the timelines of assigned partitions", `  id: node-1                   # kept for life
  data: /var/lib/millrace
  brokers: [kafka-1:9092]
  etcd: [etcd-1:2379]
  listen: 127.0.0.1:7070       # for brokers
  advertise: node-1:7070       # where they reach it; left out: listen
  cache: {memory: 8GiB}        # that decoded timelines take at most; left out: half of the machine's, or of its control group's
  question_memory_mib: 256     # for what all questions read beside it, and their answers
  retention:                   # of a timeline, by content type; left out: all is kept
    like: {age: 720h, count: 1000}
  min_free_mib: 512            # of disk space, below which nothing more is taken in
  backup:                      # left out: none, and the log must keep everything
    to: s3://bucket/prefix     # or gs://, azblob://, file:///dir; the same for all nodes
    every: 15m
    keep: 24                   # backups of each partition
    mib_per_second: 64         # at most, of what is uploaded
    drill: 24h                 # how often the cluster tries to restore one of them
  backups_reach: 24h           # there always is a backup that is no older, so that the log may delete what is three times as old
  serves: false                # a backup node: it backs up and answers nobody; left out: it serves
  partitions: 0-719            # of a backup node; left out: all
  drain: 5s                    # how long it answers on when it is told to stop and brokers look elsewhere
  zone: a                      # where it stands: brokers of the zone ask it first
  weight: 2                    # its share of the replicas beside other nodes, which have 1
  admin: 127.0.0.1:6062`, func(ctx context.Context, c *indexnodeConfig) (err error) {
		cfg, err := c.node()
		if err != nil {
			return err
		}
		var opened atomic.Pointer[indexnode.Node]
		var joined atomic.Bool
		var closed atomic.Pointer[string] // why the store is not open yet
		r, ctx, err := newRole(ctx, &c.Common, func() error {
			if n := opened.Load(); n != nil {
				return n.Ready()
			}
			if why := closed.Load(); why != nil {
				return errors.New("the store cannot be opened: " + *why)
			}
			if joined.Load() {
				return errors.New("the store is being opened")
			}
			return c.waiting()
		}, nil) // the node itself takes its time
		if err != nil {
			return err
		}
		l, err := r.listen(ctx, &c.Common, c.port())
		if err != nil {
			return err
		}
		defer l.Close()
		cfg.Instance, err = c.checkDir(c.Data, c.ID)
		for told := false; errors.Is(err, syscall.ENOSPC); told = true {
			if why := err.Error(); !told {
				closed.Store(&why)
				slog.Error("the data directory cannot be used; trying again", "err", err)
			}
			select {
			case <-ctx.Done():
				return err
			case <-time.After(time.Second):
			}
			cfg.Instance, err = c.checkDir(c.Data, c.ID)
		}
		if err != nil {
			return err
		}
		cl, err := c.openCluster(ctx, lastGood(c.Data))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, cl.Close()) }()
		joined.Store(true)
		r.metrics.MustRegister(cl)
		dial, err := c.dial()
		if err != nil {
			return err
		}
		cfg.Peers = []grpc.DialOption{dial}
		cfg.Permit, cfg.Audit, cfg.Cluster, cfg.Metrics = r.permit, r.acts, cl, r.metrics
		n, err := openNode(ctx, &closed, cfg)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, n.Close()) }()
		opened.Store(n)
		r.run(func() error { return n.Run(ctx, l) })
		return r.wait()
	})
}

// openNode opens a node, for as long as the disk does not let it: what is wrong
// with a disk is for somebody to mend, and ends no process.
func openNode(ctx context.Context, closed *atomic.Pointer[string], cfg indexnode.Config) (*indexnode.Node, error) {
	for {
		n, err := indexnode.Open(cfg)
		if !errors.Is(err, store.ErrFailed) {
			return n, err
		}
		why := err.Error()
		if closed.Swap(&why) == nil {
			slog.Error("the store cannot be opened; trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(time.Second):
		}
	}
}

// finishFor is how long requests that are under way have to end when a broker
// stops answering: no request takes longer.
const finishFor = 10 * time.Second

type brokerConfig struct {
	Common        `yaml:",inline"`
	Data          string                     `yaml:"data" form:"directory" doc:"keeps what was last known of the cluster, should etcd be away; left out: it starts only with etcd"`
	HTTP          string                     `yaml:"http" form:"host:port" doc:"where it serves JSON; left out: nowhere"`
	GRPC          string                     `yaml:"grpc" form:"host:port" doc:"where it serves gRPC"`
	Feeds         string                     `yaml:"feeds" form:"directory" doc:"feed definitions, *.yaml, beside those of the cluster"`
	Zone          string                     `yaml:"zone" doc:"where it stands: index nodes of the same are asked first"`
	Quotas        map[string]admission.Quota `yaml:"quotas" name:"CALLER"`
	Connections   int                        `yaml:"connections" range:"0.." doc:"connections to each port at a time; one address has half of them at most, and an eighth of which no request was let in yet"`
	RequestMemory int64                      `yaml:"request_memory_mib" unit:"MiB" doc:"for all requests: a half until they are read, a half for answers until they are taken; the default is the least"`
	Forbid        feeds.Forbid               `yaml:"forbid"` // what no caller may ask of this broker
	Exposures     string                     `yaml:"exposures" doc:"a topic for what answers of experiments showed, whose Kafka is brokers; left out: none is written"`
	Drain         *time.Duration             `yaml:"drain" range:"0s.." doc:"how long it goes on answering when it is told to stop, while callers look elsewhere"`
}

func (c *brokerConfig) settings() []setting { return append(c.Common.settings(), ownOf(c)...) }

func (c *brokerConfig) complete() {
	c.Common.complete()
	c.Connections = cmp.Or(c.Connections, door.DefaultConns)
	c.RequestMemory = cmp.Or(c.RequestMemory, broker.DefaultRequestMemory>>20)
	drain := c.drain()
	c.Drain = &drain
}

// drain is how long the broker goes on answering when it is told to stop.
func (c *brokerConfig) drain() time.Duration {
	if c.Drain != nil {
		return *c.Drain
	}
	return drainFor
}

func (c *brokerConfig) validate() error {
	b, err := c.broker()
	b.Maps = new(cluster.Watcher) // of nothing: it stands for what is joined later
	ports := []port{c.grpcPort()}
	if c.HTTP != "" {
		ports = append(ports, c.httpPort())
	}
	return errors.Join(c.Common.validate("broker", ports...), err, c.inEtcd("").Validate(), c.checkExposures(), c.checkQuotas(), b.Validate())
}

// checkQuotas refuses the quota of a name that nobody has, where a token or the
// subject of one is called so: it would count for nobody.
func (c *brokerConfig) checkQuotas() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.Quotas)) {
		for _, kind := range []string{"token:", "jwt:"} {
			_, certificate := c.Authorization.Identities[name]
			if _, other := c.Authorization.Identities[kind+name]; other && !certificate {
				errs = append(errs, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "quotas." + name, Detail: "authorization.identities has no certificate of this name, but " + kind + name, WayOut: "write the quota of " + kind + name})
			}
		}
	}
	return errors.Join(errs...)
}

func (c *brokerConfig) grpcPort() port {
	return port{field: "grpc", addr: c.GRPC, conns: c.Connections, open: c.Authorization.ByToken()}
}

func (c *brokerConfig) httpPort() port {
	return port{field: "http", addr: c.HTTP, conns: c.Connections, refusal: door.RefusalHTTP, open: c.Authorization.ByToken()}
}

// broker is what the broker works with, as far as the configuration says it.
func (c *brokerConfig) broker() (broker.Config, error) {
	feeds, err := readFeeds(c.Feeds)
	if err != nil { // of a file, or of there being no directory
		err = &millrace.Error{Reason: millrace.ReasonInvalid, Field: "feeds", Detail: err.Error(), WayOut: "mend the definitions, or take them out"}
	}
	return broker.Config{Feeds: feeds, Zone: c.Zone, Quotas: c.Quotas, RequestMemory: c.RequestMemory << 20, Forbid: c.Forbid, Log: slog.Default()}, err
}

func noKafka(field string) error {
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: field, Detail: "a topic is named, and no Kafka that has it", WayOut: "name its brokers, host:port each, or leave it out"}
}

func (c *brokerConfig) checkExposures() error {
	switch {
	case c.Exposures == "":
		return nil
	case len(c.Brokers) == 0:
		return noKafka("exposures")
	case slices.Contains(kafka.Prefixed(c.TopicPrefix).Names(), c.Exposures):
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "exposures", Detail: fmt.Sprintf("%s is Millrace's own topic for other things", c.Exposures), WayOut: "name another, such as exposures"}
	}
	return c.kafka().Validate()
}

// exposures opens the log of exposures, if there is one.
func (c *brokerConfig) exposures(metrics prometheus.Registerer) (broker.Exposures, func(), error) {
	if c.Exposures == "" {
		return nil, func() {}, nil
	}
	brokers := c.kafka()
	records, closes, err := kafka.OpenExposures(brokers, c.Exposures, slog.Default())
	if err != nil {
		return nil, nil, err
	}
	metrics.MustRegister(records, brokers.Collector("millrace_exposure"))
	return records, closes, nil
}

func brokerCommand() *cobra.Command {
	return roleCommand("broker", "Answer feed requests", `  etcd: [etcd-1:2379]
  grpc: 127.0.0.1:9090
  http: 127.0.0.1:8080         # JSON
  feeds: feeds/                # feed definitions, *.yaml, beside those of the cluster
  data: /var/lib/millrace      # what was last known of the cluster, should etcd be away
  quotas:                      # of requests, by the header millrace-caller
    jobs-page: {per_second: 200, burst: 400}
    default: {per_second: 50}  # all other callers together; left out: no limit
  connections: 4096            # of each port at a time
  request_memory_mib: 256      # for all requests: a half until they are read, a half for answers until they are taken
  forbid: {why: true}          # what callers may not ask of it: filter, explain, why, model, window, recent
  zone: a                      # index nodes of the same are asked first
  exposures: exposures         # a topic of what answers of experiments showed; left out: none is written
  brokers: [kafka-1:9092]      # that have it
  drain: 5s                    # how long it answers on when it is told to stop and callers look elsewhere
  admin: 127.0.0.1:6060`, func(ctx context.Context, c *brokerConfig) (err error) {
		var heard atomic.Pointer[cluster.Watcher]
		var serving atomic.Pointer[broker.Broker]
		r, ctx, err := newRole(ctx, &c.Common, func() error {
			switch maps := heard.Load(); {
			case maps == nil:
				return c.waiting()
			case maps.Current().Epoch() == 0:
				return errors.New("the cluster has no assignment yet")
			case serving.Load() == nil:
				return c.waiting()
			}
			return nil
		}, func() {
			if b := serving.Load(); b != nil {
				slog.Info("the broker is to be asked no more, and stops soon", "in", c.drain())
				b.Leave()
				time.Sleep(c.drain())
			}
		})
		if err != nil {
			return err
		}
		grpcs, err := r.listen(ctx, &c.Common, c.grpcPort())
		if err != nil {
			return err
		}
		defer grpcs.Close()
		var https net.Listener
		if c.HTTP != "" {
			if https, err = r.listen(ctx, &c.Common, c.httpPort()); err != nil {
				return err
			}
			defer https.Close()
		}
		if _, err := c.checkDir(c.Data, ""); err != nil {
			return err
		}
		cl, err := c.openCluster(ctx, lastGood(c.Data))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, cl.Close()) }()
		maps, err := cl.Watch(ctx)
		if err != nil {
			return err
		}
		heard.Store(maps)
		r.metrics.MustRegister(cl)
		cfg, err := c.broker()
		if err != nil {
			return err
		}
		dial, err := c.dial()
		if err != nil {
			return err
		}
		definitions, err := cl.Artefacts(ctx, feeds.Kind)
		if err != nil {
			return err
		}
		models, err := cl.Artefacts(ctx, indexnode.ModelsKind)
		if err != nil {
			return err
		}
		condemned, err := cl.Condemned(ctx)
		if err != nil {
			return err
		}
		tests, err := cl.Artefacts(ctx, experiments.Kind)
		if err != nil {
			return err
		}
		pages, err := cl.Generations(ctx, pagetoken.Secret)
		if err != nil {
			return err
		}
		exposures, closeExposures, err := c.exposures(r.metrics)
		if err != nil {
			return err
		}
		defer closeExposures()
		host, err := os.Hostname()
		if err != nil {
			return err
		}
		cfg.Permit, cfg.Exposures, cfg.Name, cfg.Maps, cfg.Dial = r.permit, exposures, host+" "+c.GRPC, maps, fanout.DialGRPC(dial)
		cfg.Definitions, cfg.Models, cfg.Condemned, cfg.Experiments = definitions, models, condemned, tests
		cfg.PageKeys, cfg.Traced, cfg.Metrics = pages.Current, cl.Traced(ctx), r.metrics
		b, err := broker.New(cfg)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, b.Close()) }()
		if https != nil {
			r.run(func() error { return admin.ServeBy(ctx, https, b.HTTPServer(), finishFor) })
		}
		server := grpc.NewServer(b.ServerOptions()...)
		b.RegisterGRPC(server)
		serving.Store(b)
		r.run(func() error {
			defer context.AfterFunc(ctx, func() {
				defer time.AfterFunc(finishFor, server.Stop).Stop()
				server.GracefulStop()
			})()
			return server.Serve(b.Guard(grpcs))
		})
		return r.wait()
	})
}

// readFeeds reads every definition of a directory, and reports the faults of
// all.
func readFeeds(dir string) ([]feeds.Feed, error) {
	if dir == "" {
		return nil, nil
	}
	if _, err := os.ReadDir(dir); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, err
	}
	var all []feeds.Feed
	var errs []error
	for _, file := range files {
		text, err := document.ReadFile(file)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		f, err := feeds.Parse(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file, err))
			continue
		}
		all = append(all, f)
	}
	return all, errors.Join(errs...)
}
