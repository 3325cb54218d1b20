package roles

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/config"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/indexnode/backups"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/admin"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/kafka"
)

// indexnodeConfig is the configuration file of an index node. The tags doc describe its
// keys.
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
		// Records and EmptyKeys are keys of old versions. They are read only so that
		// cacheMemory can refuse them and say what to write instead.
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

func (c *indexnodeConfig) Settings() []config.Setting {
	return append(c.Common.Settings(), ownSettings(c)...)
}

func (c *indexnodeConfig) Complete() {
	c.Common.Complete()
	c.MinFree = cmp.Or(c.MinFree, store.DefaultMinFreeBytes>>20)
	c.Weight = cmp.Or(c.Weight, 1)
	c.QuestionMemory = cmp.Or(c.QuestionMemory, indexnode.DefaultQuestionMemory>>20)
	c.Backup = c.Backup.WithDefaults()
	drain, serves := c.drain(), c.serves()
	c.Drain, c.Serves = &drain, &serves
}

func (c *indexnodeConfig) Validate() error {
	n, err := c.node()
	n.Cluster = new(cluster.Client) // n.Validate refuses nil; the command sets the real client
	return errors.Join(c.Common.Validate("indexnode", c.port()), err, c.inEtcd("").Validate(), checkPlace(c.Data), n.Validate())
}

// maxNodeConns is how many connections a node's port takes at a time: each broker and
// each other node has a few.
const maxNodeConns = 1024

func (c *indexnodeConfig) port() port {
	return port{field: "listen", addr: c.Listen, conns: maxNodeConns}
}

func (c *indexnodeConfig) serves() bool { return c.Serves == nil || *c.Serves }

// node returns the part of the node's configuration that follows from the file. The
// command adds what it opens.
func (c *indexnodeConfig) node() (indexnode.Config, error) {
	keeps, noSet := c.keeps()
	memory, noSize := c.cacheMemory()
	return indexnode.Config{
		ID: c.ID, Zone: c.Zone, Weight: c.Weight, Advertise: c.Advertise, Dir: c.Data, Brokers: c.kafka(), Topics: kafka.Prefixed(c.TopicPrefix),
		BackupsReach: c.BackupsReach, Backup: c.Backup, Keeps: keeps, Drain: c.drain(), QuestionMemory: c.QuestionMemory << 20,
		Store: store.Options{Retention: c.retention(), MinFreeBytes: c.MinFree << 20}, Cache: cache.Config{Memory: memory}, Log: slog.Default(),
	}, errors.Join(noSet, noSize)
}

// drain is how long the node goes on answering when it is told to stop. A backup
// node answers nobody.
func (c *indexnodeConfig) drain() time.Duration {
	switch {
	case c.Drain != nil:
		return *c.Drain
	case !c.serves():
		return 0
	}
	return DrainFor
}

// keeps returns the partitions that a backup node backs up; none for a node that serves.
func (c *indexnodeConfig) keeps() (topology.Set, error) {
	if c.serves() {
		if c.Partitions != "" {
			return topology.Set{}, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "partitions", Detail: "a node that serves has the partitions that the cluster assigns to it", WayOut: "leave it out, or make a backup node of it (serves: false)"}
		}
		return topology.Set{}, nil
	}
	var errs []error
	if c.Backup.To == "" {
		errs = append(errs, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "backup.to", Detail: "a backup node (serves: false) needs a place for its backups", WayOut: "name one, such as s3://bucket/prefix or file:///dir"})
	}
	if c.Partitions == "" {
		return topology.All(), errors.Join(errs...)
	}
	set, err := topology.ParseSet(c.Partitions)
	return set, errors.Join(append(errs, err)...)
}

// cacheMemory returns the most that the caches take, in bytes; 0 if the file does not say.
func (c *indexnodeConfig) cacheMemory() (int, error) {
	wrong := func(field, detail, wayOut string) (int, error) {
		return 0, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "cache." + field, Detail: detail, WayOut: wayOut}
	}
	const instead = "write cache: {memory: 8GiB} in its place, or nothing for half of the machine's memory; a record takes about a third more than its body"
	switch {
	case c.Cache.Records != nil:
		return wrong("records", "caches are no longer bounded by records, but by bytes", instead)
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

// parseBytes returns the number of bytes of a text such as 8GiB. The unit is MiB, GiB or
// TiB.
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

// retention returns how much the node's store keeps of each content type. A type that is
// not there is kept without a bound.
func (c *indexnodeConfig) retention() map[millrace.ContentType]store.Retention {
	m := make(map[millrace.ContentType]store.Retention, len(c.Retention))
	for t, r := range c.Retention {
		m[t] = store.Retention{MaxAge: r.Age, MaxCount: r.Count}
	}
	return m
}

// IndexNode returns the command that runs an index node.
func IndexNode() *cobra.Command {
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
    insecure: false            # true: its server may speak plain text (?endpoint=http://host:port) beyond loopback
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
				err := n.Ready()
				if errors.Is(err, indexnode.ErrUnassigned) { // ready, with a note: else a new node would hold up rollouts
					return admin.Noted{What: err}
				}
				return err
			}
			if why := closed.Load(); why != nil {
				return errors.New("the store cannot be opened: " + *why)
			}
			if joined.Load() {
				return errors.New("the store is being opened")
			}
			return c.waiting()
		}, nil) // no leave: the node itself goes on answering for Config.Drain
		if err != nil {
			return err
		}
		l, err := r.listen(ctx, &c.Common, c.port())
		if err != nil {
			return err
		}
		defer l.Close()
		cfg.Instance, err = c.checkDir(c.Data, c.ID)
		// While the disk is full, the node waits and says so in readyz. A full disk must not
		// end the process.
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
		cl, err := r.openCluster(ctx, &c.Common, clusters.LastGood(c.Data))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, cl.Close()) }()
		joined.Store(true)
		dial, err := c.Dial()
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

// openNode opens a node. While the disk fails (store.ErrFailed) it tries again every
// second until ctx ends, since a fault of a disk must not end the process. It sets closed to
// the text of the last such failure.
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
