package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/outcome"
	"github.com/millrace/millrace/relevance/experiment"
)

// movesPerSecond is how many moves plans begin a second: with small partitions a
// move takes about 40 ms of a processor, of all processes together.
const movesPerSecond = 5

type coordinatorConfig struct {
	Common       `yaml:",inline"`
	Name         string        `yaml:"name"`
	Data         string        `yaml:"data"`
	Grace        time.Duration `yaml:"grace"`
	Repair       *bool         `yaml:"repair"`
	DropAfter    time.Duration `yaml:"drop_after"`
	MovesPerNode int           `yaml:"moves_per_node"`
	MovesBegun   int           `yaml:"moves_per_second"`
	Rate         int64         `yaml:"mib_per_second"`
	// Exposures is the topic of what answers of experiments showed; empty: no
	// experiment is ramped or paused.
	Exposures string `yaml:"exposures"`
}

// exposures returns how the topic of exposures is followed; nil if it is not.
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
	return func(ctx context.Context, from millrace.Time, take func(*exposure.Record)) error {
		return kafka.FollowExposures(ctx, at, c.Exposures, from, slog.Default(), take)
	}, nil
}

// outcomes returns how outcomes are read; nil if exposures are not.
func (c *coordinatorConfig) outcomes() coordinator.Outcomes {
	if c.Exposures == "" {
		return nil
	}
	return func(of experiment.Outcomes, from millrace.Time) func(context.Context, func(*outcome.Act)) error {
		acts := actsOf(&of, kafka.ActsConfig{Brokers: c.kafka(), Exposures: c.Exposures, Schemas: kafka.Prefixed(c.TopicPrefix).Schemas, From: from, Log: slog.Default()})
		return acts.Read
	}
}

// actsOf reads what an experiment's outcomes say, where the configuration has
// all that its definition does not.
func actsOf(o *experiment.Outcomes, cfg kafka.ActsConfig) *kafka.Acts {
	cfg.Outcomes, cfg.AnswerField, cfg.Window = o.Topic, o.Field(), o.For()
	return kafka.NewActs(cfg)
}

func coordinatorCommand() *cobra.Command {
	return roleCommand("coordinator", "Carry out plans of moves, and repair what nodes that are gone leave behind; run two or more", `  etcd: [etcd-1:2379]
  name: coordinator-1          # of its own; left out: the host's name
  data: /var/lib/millrace      # keeps the last good map; left out: it starts only with etcd
  grace: 60s                   # how long a node may be gone before its replicas are made elsewhere
  repair: true                 # false: they never are
  drop_after: 10m              # how long a node keeps what moved away
  moves_per_node: 48           # at a time
  moves_per_second: 5          # that plans begin, so that answers stay as fast; repairs begin all at once
  mib_per_second: 0            # of moves that are begun; 0: no bound
  exposures: exposures         # the topic by which experiments are ramped and paused; left out: only people do
  brokers: [kafka-1:9092]      # that have it
  admin: 127.0.0.1:6065`, func(ctx context.Context, c *coordinatorConfig) (err error) {
		var co *coordinator.Coordinator
		r, ctx, err := newRole(ctx, &c.Common, func() error {
			if co == nil {
				return c.waiting()
			}
			_, fault := co.Leads()
			return fault
		})
		if err != nil {
			return err
		}
		cl, err := c.openCluster(ctx, lastGood(c.Data))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, cl.Close()) }()
		r.metrics.MustRegister(cl)
		how, err := c.dial()
		if err != nil {
			return err
		}
		conns := nodeConns{how: how}
		defer conns.close()
		host, _ := os.Hostname() // or no name, which is refused
		exposures, err := c.exposures()
		if err != nil {
			return err
		}
		made, err := coordinator.New(coordinator.Config{
			Exposures: exposures, Outcomes: c.outcomes(),
			Cluster: cl, Name: cmp.Or(c.Name, host), Addr: c.Admin, Grace: c.Grace, RepairOff: c.Repair != nil && !*c.Repair, DropAfter: c.DropAfter,
			Limits: coordinator.Limits{PerNode: c.MovesPerNode, PerSecond: cmp.Or(c.MovesBegun, movesPerSecond), BytesPerSecond: c.Rate << 20}, Dial: conns.dial, Log: slog.Default(),
		})
		if err != nil {
			return err
		}
		r.metrics.MustRegister(made)
		co = made
		r.run(func() error { return made.Run(ctx) })
		return r.wait()
	})
}
