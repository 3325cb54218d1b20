package roles

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/config"
	"github.com/millrace/millrace/cmd/cli/experiments"
	"github.com/millrace/millrace/cmd/cli/leans"
	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/exposures"
	"github.com/millrace/millrace/relevance/experiment"
)

// movesPerSecond is the default of how many moves plans begin a second in the cluster. A
// move of a small partition takes about 40 ms of CPU, over all processes together.
const movesPerSecond = 5

// coordinatorConfig is the configuration file of a coordinator. The tags doc describe its
// keys.
type coordinatorConfig struct {
	Common       `yaml:",inline"`
	Name         string        `yaml:"name" default:"the host's name" doc:"its own among the cluster's coordinators"`
	Data         string        `yaml:"data" form:"directory" doc:"keeps the last good map; left out: it starts only with etcd"`
	Grace        time.Duration `yaml:"grace" range:"0s.." doc:"how long a node may be gone before its replicas are made elsewhere"`
	Repair       *bool         `yaml:"repair" doc:"false: replicas of nodes that are gone are never made elsewhere"`
	DropAfter    time.Duration `yaml:"drop_after" range:"0s.." doc:"how long a node keeps what moved away"`
	MovesPerNode int           `yaml:"moves_per_node" range:"0.." doc:"moves to a node at a time"`
	MovesBegun   int           `yaml:"moves_per_second" range:"0.." doc:"moves that plans begin, in the whole cluster, so that they take less of what answers need; repairs begin at once"`
	Rate         int64         `yaml:"mib_per_second" unit:"MiB a second" range:"0.." doc:"of moves that are begun; 0: no bound"`
	Exposures    string        `yaml:"exposures" doc:"the topic of what answers of experiments showed, whose Kafka is brokers, by which experiments are ramped and paused; left out: only people do"`
}

func (c *coordinatorConfig) Settings() []config.Setting {
	return append(c.Common.Settings(), ownSettings(c)...)
}

func (c *coordinatorConfig) Complete() {
	c.Common.Complete()
	c.Grace = cmp.Or(c.Grace, coordinator.DefaultGrace)
	c.DropAfter = cmp.Or(c.DropAfter, coordinator.DefaultDropAfter)
	c.MovesPerNode = cmp.Or(c.MovesPerNode, coordinator.DefaultPerNode)
	c.MovesBegun = cmp.Or(c.MovesBegun, movesPerSecond)
	repair := c.repairs()
	c.Repair = &repair
}

func (c *coordinatorConfig) Validate() error {
	co, err := c.coordinator()
	co.Cluster = new(cluster.Client) // co.Validate refuses nil; the command sets the real client
	return errors.Join(c.Common.Validate("coordinator"), err, c.inEtcd("").Validate(), checkPlace(c.Data), co.Validate())
}

func (c *coordinatorConfig) repairs() bool { return c.Repair == nil || *c.Repair }

// coordinator returns the part of the coordinator's configuration that follows from the
// file. The command adds what it opens.
func (c *coordinatorConfig) coordinator() (coordinator.Config, error) {
	host, _ := os.Hostname() // "" on an error, which Validate refuses
	exposures, err := c.exposures()
	return coordinator.Config{
		Name: cmp.Or(c.Name, host), Addr: c.Admin, Grace: c.Grace, RepairOff: !c.repairs(), DropAfter: c.DropAfter, Exposures: exposures, Outcomes: c.outcomes(),
		Limits: coordinator.Limits{PerNode: c.MovesPerNode, PerSecond: c.MovesBegun, BytesPerSecond: min(c.Rate, 1<<40) << 20}, Log: slog.Default(),
	}, err
}

// exposures returns a reader of the topic of exposures, which has what answers of
// experiments showed; nil if the configuration names no topic.
func (c *coordinatorConfig) exposures() (coordinator.Exposures, error) {
	if c.Exposures == "" {
		return nil, nil
	}
	if len(c.Brokers) == 0 {
		return nil, noKafka("exposures")
	}
	at := c.kafka()
	if err := at.Validate(); err != nil {
		return nil, err
	}
	return exposures.NewReader(at, c.Exposures, slog.Default()), nil
}

// outcomes returns a function that returns a reader of what viewers did after answers of an
// experiment, from a time on. It returns nil if the configuration names no topic of
// exposures.
func (c *coordinatorConfig) outcomes() coordinator.Outcomes {
	if c.Exposures == "" {
		return nil
	}
	return func(of *experiment.Experiment, from millrace.Time) coordinator.Acts {
		return experiments.Acts(of, exposures.ActReaderConfig{Brokers: c.kafka(), Exposures: c.Exposures, Schemas: kafka.Prefixed(c.TopicPrefix).Schemas, From: from, Log: slog.Default()})
	}
}

// Coordinator returns the command that runs a coordinator.
func Coordinator() *cobra.Command {
	return roleCommand("coordinator", "Carry out plans of moves, and repair what nodes that are gone leave behind; run two or more", `  etcd: [etcd-1:2379]
  name: coordinator-1          # of its own; left out: the host's name
  data: /var/lib/millrace      # keeps the last good map; left out: it starts only with etcd
  grace: 60s                   # how long a node may be gone before its replicas are made elsewhere
  repair: true                 # false: they never are
  drop_after: 10m              # how long a node keeps what moved away
  moves_per_node: 48           # at a time
  moves_per_second: 5          # that plans begin; repairs begin all at once
  mib_per_second: 0            # of moves that are begun; 0: no bound
  exposures: exposures         # the topic by which experiments are ramped and paused; left out: only people do
  brokers: [kafka-1:9092]      # that have it
  admin: 127.0.0.1:6065`, func(ctx context.Context, c *coordinatorConfig) (err error) {
		var made atomic.Pointer[coordinator.Coordinator]
		r, ctx, err := newRole(ctx, &c.Common, func() error {
			if co := made.Load(); co != nil {
				_, fault := co.Leads()
				return fault
			}
			return c.waiting()
		}, nil)
		if err != nil {
			return err
		}
		cl, err := r.openCluster(ctx, &c.Common, clusters.LastGood(c.Data))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, cl.Close()) }()
		how, err := c.Dial()
		if err != nil {
			return err
		}
		conns := clusters.ConnsBy(how)
		defer conns.Close()
		cfg, err := c.coordinator()
		if err != nil {
			return err
		}
		cfg.Cluster, cfg.Dial = cl, conns.Dial
		if cfg.Leans, err = leans.Of(ctx, cl); err != nil {
			return err
		}
		co, err := coordinator.New(cfg)
		if err != nil {
			return err
		}
		r.metrics.MustRegister(co)
		made.Store(co)
		r.run(func() error { return co.Run(ctx) })
		return r.wait()
	})
}
