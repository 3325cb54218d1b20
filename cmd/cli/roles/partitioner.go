package roles

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/cli/config"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/partitioner"
	"github.com/millrace/millrace/schemas"
)

// partitionerConfig is the configuration file of a partitioner. The tags doc describe its
// keys.
type partitionerConfig struct {
	Common         `yaml:",inline"`
	Content        []string      `yaml:"content" doc:"topics of content records; there is at least one topic, here or in features"`
	Features       []string      `yaml:"features" doc:"topics of feature records"`
	Group          string        `yaml:"group" doc:"the consumer group; two groups are two clusters' partitioners"`
	Instance       string        `yaml:"instance" doc:"this process's name in the group, kept across restarts"`
	SchemaRegistry string        `yaml:"schema_registry" form:"URL" doc:"of topics with Confluent framing; left out: there are none"`
	Future         time.Duration `yaml:"future" range:"0s.." doc:"how far a record's time may be after its arrival; the same in all of a group"`
}

func (c *partitionerConfig) Settings() []config.Setting {
	return append(c.Common.Settings(), ownSettings(c)...)
}

func (c *partitionerConfig) Complete() {
	c.Common.Complete()
	c.Group = cmp.Or(c.Group, partitioner.DefaultGroup)
	c.Future = cmp.Or(c.Future, schemas.DefaultFuture)
}

func (c *partitionerConfig) Validate() error {
	return errors.Join(c.Common.Validate("partitioner"), c.partitioner().Validate())
}

func (c *partitionerConfig) partitioner() partitioner.Config {
	return partitioner.Config{
		Brokers: c.kafka(), Content: c.Content, Features: c.Features, Topics: kafka.Prefixed(c.TopicPrefix),
		Group: c.Group, Instance: c.Instance, Address: c.found(), SchemaRegistry: c.SchemaRegistry, RegistryAccess: c.Connections.SchemaRegistry, Future: c.Future,
	}
}

// found returns the address of the process's admin port, by which people find it; "" if
// it has none.
func (c *partitionerConfig) found() string {
	host, port, err := net.SplitHostPort(c.Admin)
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host, _ = os.Hostname()
	}
	return net.JoinHostPort(host, port)
}

// Partitioner returns the command that runs a partitioner.
func Partitioner() *cobra.Command {
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
