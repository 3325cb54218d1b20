package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/broker/intake"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/indexnode/backups"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/admin"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/partitioner"
)

// Common is what every role's configuration file has.
type Common struct {
	Brokers     []string `yaml:"brokers"`      // Kafka, host:port each
	TopicPrefix string   `yaml:"topic_prefix"` // before Millrace's own topics
	Etcd        []string `yaml:"etcd"`         // host:port each
	Cluster     string   `yaml:"cluster"`      // its name in etcd; default "millrace"
	Admin       string   `yaml:"admin"`        // host:port of livez, readyz, metrics, pprof
	Security    `yaml:",inline"`
}

// roleCommand is a command that reads a configuration file and runs until it
// is told to stop.
func roleCommand[C any](name, short, example string, run func(context.Context, *C) error) *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   name + " --config FILE",
		Short: short,
		Long:  short + ".\n\nThe configuration file, in YAML:\n\n" + example,
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var cfg C
			if err := readYAML(file, &cfg); err != nil {
				return err
			}
			stop, err := startTraces(c.Context(), "millrace-"+name)
			if err != nil {
				return err
			}
			err = run(c.Context(), &cfg)
			last, cancel := context.WithTimeout(context.WithoutCancel(c.Context()), 2*time.Second)
			defer cancel()
			return errors.Join(err, stop(last))
		},
	}
	c.Flags().StringVar(&file, "config", "", "the configuration file")
	if err := c.MarkFlagRequired("config"); err != nil {
		panic(err) // the flag above exists
	}
	return c
}

func readYAML(file string, into any) error {
	text, err := document.ReadFile(file)
	if err != nil {
		return err
	}
	if err := document.Decode(text, into); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// role is the running frame of a role: metrics, the admin port, the cluster.
type role struct {
	metrics *prometheus.Registry
	group   *errgroup.Group
}

func newRole(ctx context.Context, c *Common, ready func() error) (*role, context.Context, error) {
	spareCollector()
	r := &role{metrics: prometheus.NewRegistry()}
	r.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	r.group, ctx = errgroup.WithContext(ctx)
	if c.Admin != "" {
		l, err := c.listen(c.Admin)
		if err != nil {
			return nil, nil, fmt.Errorf("admin: %w", err)
		}
		r.group.Go(func() error { return admin.Serve(ctx, l, admin.Handler(r.metrics, ready)) })
	}
	return r, ctx, nil
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
	return cluster.Open(ctx, cluster.Config{Endpoints: c.Etcd, Name: c.clusterName(), Dir: dir, Log: slog.Default()})
}

// etcdWait is how long a command waits for etcd. Roles wait for ever.
const etcdWait = 10 * time.Second

// reachCluster opens the cluster for a command, which fails where a role waits.
func (c *Common) reachCluster(ctx context.Context) (*cluster.Client, error) {
	wait, cancel := context.WithTimeout(ctx, etcdWait)
	defer cancel()
	cl, err := c.openCluster(wait, "")
	if err != nil && wait.Err() != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("stopped while waiting for etcd at %v; nothing was done", c.Etcd)
		}
		return nil, &millrace.Error{
			Reason: millrace.ReasonUnavailable, Field: "etcd", Detail: fmt.Sprintf("no etcd answered at %v within %s", c.Etcd, etcdWait),
			WayOut: "start it, or name its address by --etcd",
		}
	}
	return cl, err
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
	Content        []string `yaml:"content"`
	Features       []string `yaml:"features"`
	Group          string   `yaml:"group"`
	Instance       string   `yaml:"instance"`
	SchemaRegistry string   `yaml:"schema_registry"`
}

func partitionerCommand() *cobra.Command {
	return roleCommand("partitioner", "Re-key content and feature topics into the 720 partitions", `  brokers: [kafka-1:9092]
  content: [activity]          # topics of content records
  features: [entity-features]  # topics of feature records
  instance: partitioner-1      # this process's name, kept across restarts
  admin: 127.0.0.1:6061`, func(ctx context.Context, c *partitionerConfig) error {
		var made atomic.Pointer[partitioner.Partitioner]
		r, ctx, err := newRole(ctx, &c.Common, func() error {
			if p := made.Load(); p != nil {
				return p.Ready()
			}
			return errors.New("the partitioner is being set up")
		})
		if err != nil {
			return err
		}
		p, err := partitioner.New(partitioner.Config{
			Brokers: c.Brokers, Content: c.Content, Features: c.Features, Topics: kafka.Prefixed(c.TopicPrefix),
			Group: c.Group, Instance: c.Instance, SchemaRegistry: c.SchemaRegistry,
		}, slog.Default(), r.metrics, time.Now)
		if err != nil {
			return err
		}
		made.Store(p)
		r.group.Go(func() error { return p.Run(ctx) })
		return r.group.Wait()
	})
}

type indexnodeConfig struct {
	Common    `yaml:",inline"`
	ID        millrace.NodeID `yaml:"id"`
	Zone      string          `yaml:"zone"`
	Listen    string          `yaml:"listen"`
	Advertise string          `yaml:"advertise"`
	Data      string          `yaml:"data"`
	Cache     struct {
		Records   int `yaml:"records"`
		EmptyKeys int `yaml:"empty_keys"`
	} `yaml:"cache"`
	Retention map[millrace.ContentType]struct {
		Age   time.Duration `yaml:"age"`
		Count int           `yaml:"count"`
	} `yaml:"retention"`
	// MinFree is the disk space in MiB below which nothing more is taken in; 0:
	// 512, negative: no bound.
	MinFree int64 `yaml:"min_free_mib"`
	// BackupsReach is how old a backup of a partition is at most; 0: there are
	// none, and the log has to keep everything.
	BackupsReach time.Duration `yaml:"backups_reach"`
	// QuestionMemory is in MiB; 0: the node's default.
	QuestionMemory int64          `yaml:"question_memory_mib"`
	Backup         backups.Config `yaml:"backup"`
	// Serves false makes a backup node of it, which has Partitions, all if that
	// is empty.
	Serves     *bool  `yaml:"serves"`
	Partitions string `yaml:"partitions"`
}

// keeps returns the partitions of a backup node; none of one that serves.
func (c *indexnodeConfig) keeps() (cluster.Set, error) {
	if c.Serves == nil || *c.Serves {
		if c.Partitions != "" {
			return cluster.Set{}, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "partitions", Detail: "a node that serves has the partitions that the cluster assigns to it", WayOut: "leave it out, or make a backup node of it (serves: false)"}
		}
		return cluster.Set{}, nil
	}
	if c.Backup.To == "" {
		return cluster.Set{}, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "backup.to", Detail: "a backup node (serves: false) needs a place for its backups", WayOut: "name one, such as s3://bucket/prefix or file:///dir"}
	}
	if c.Partitions == "" {
		return cluster.All(), nil
	}
	return cluster.ParseSet(c.Partitions)
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
  cache: {records: 2000000}    # held decoded in memory
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
  serves: false                # a backup node: it backs up and answers nobody; left out: it serves
  partitions: 0-719            # of a backup node; left out: all
  zone: a                      # where it stands: brokers of the zone ask it first
  admin: 127.0.0.1:6062`, func(ctx context.Context, c *indexnodeConfig) (err error) {
		keeps, err := c.keeps()
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
		})
		if err != nil {
			return err
		}
		instance, err := c.checkDir(c.Data, c.ID)
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
			instance, err = c.checkDir(c.Data, c.ID)
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
		n, err := openNode(ctx, &closed, indexnode.Config{
			ID: c.ID, Zone: c.Zone, Instance: instance, Advertise: c.Advertise, Dir: c.Data, Brokers: c.Brokers, Topics: kafka.Prefixed(c.TopicPrefix),
			Cluster: cl, BackupsReach: c.BackupsReach, Backup: c.Backup, Keeps: keeps, QuestionMemory: c.QuestionMemory << 20, Store: store.Options{Retention: c.retention(), MinFreeBytes: c.MinFree << 20}, Cache: cache.Config{FatRecords: c.Cache.Records, SkinnyKeys: c.Cache.EmptyKeys}, Metrics: r.metrics, Log: slog.Default(),
		})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, n.Close()) }()
		opened.Store(n)
		l, err := c.listen(c.Listen)
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		r.group.Go(func() error { return n.Run(ctx, l) })
		return r.group.Wait()
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

type brokerConfig struct {
	Common `yaml:",inline"`
	Data   string                  `yaml:"data"`
	HTTP   string                  `yaml:"http"`
	GRPC   string                  `yaml:"grpc"`
	Feeds  string                  `yaml:"feeds"`
	Zone   string                  `yaml:"zone"`
	Quotas map[string]broker.Quota `yaml:"quotas"`
	// Connections bounds those of each port at a time; 0: intake.DefaultConns.
	Connections int `yaml:"connections"`
	// RequestMemory is in MiB; 0: the broker's default.
	RequestMemory int64 `yaml:"request_memory_mib"`
	// Forbid is what no caller may ask of this broker.
	Forbid broker.Forbid `yaml:"forbid"`
}

func (c *brokerConfig) connections() int { return cmp.Or(c.Connections, intake.DefaultConns) }

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
  admin: 127.0.0.1:6060`, func(ctx context.Context, c *brokerConfig) (err error) {
		var heard atomic.Pointer[cluster.Watcher]
		var serving atomic.Bool
		r, ctx, err := newRole(ctx, &c.Common, func() error {
			switch maps := heard.Load(); {
			case maps == nil:
				return c.waiting()
			case maps.Current().Epoch() == 0:
				return errors.New("the cluster has no assignment yet")
			case !serving.Load():
				return c.waiting()
			}
			return nil
		})
		if err != nil {
			return err
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
		feeds, err := readFeeds(c.Feeds)
		if err != nil {
			return err
		}
		dial, err := c.dial()
		if err != nil {
			return err
		}
		definitions, err := cl.Artefacts(ctx, broker.FeedsKind)
		if err != nil {
			return err
		}
		models, err := cl.Artefacts(ctx, indexnode.ModelsKind)
		if err != nil {
			return err
		}
		key, err := cl.Secret(ctx, "pages")
		if err != nil {
			return err
		}
		b, err := broker.New(broker.Config{
			Maps: maps, Dial: broker.DialGRPC(dial), Feeds: feeds, Definitions: definitions, Models: models, PageKey: key, Zone: c.Zone, Quotas: c.Quotas, RequestMemory: c.RequestMemory << 20, Forbid: c.Forbid, Traced: cl.Traced(ctx), Metrics: r.metrics, Log: slog.Default(),
		})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, b.Close()) }()
		if c.HTTP != "" {
			l, err := c.listenCapped(c.HTTP, c.connections(), intake.RefusalHTTP)
			if err != nil {
				return fmt.Errorf("http: %w", err)
			}
			r.group.Go(func() error { return admin.ServeBy(ctx, l, b.HTTPServer()) })
		}
		l, err := c.listenCapped(c.GRPC, c.connections(), "")
		if err != nil {
			return fmt.Errorf("grpc: %w", err)
		}
		server := grpc.NewServer(b.ServerOptions()...)
		b.RegisterGRPC(server)
		serving.Store(true)
		r.group.Go(func() error {
			defer context.AfterFunc(ctx, server.GracefulStop)()
			return server.Serve(b.Guard(l))
		})
		return r.group.Wait()
	})
}

// readFeeds reads every definition of a directory, and reports the faults of
// all.
func readFeeds(dir string) ([]broker.Feed, error) {
	if dir == "" {
		return nil, nil
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, err
	}
	var feeds []broker.Feed
	var errs []error
	for _, file := range files {
		text, err := document.ReadFile(file)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		f, err := broker.ParseFeed(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file, err))
			continue
		}
		feeds = append(feeds, f)
	}
	return feeds, errors.Join(errs...)
}
