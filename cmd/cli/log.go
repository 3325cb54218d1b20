package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/schemas"
)

// logFlags name Millrace's part of a Kafka.
type logFlags struct {
	brokers []string
	prefix  string
	wait    time.Duration
}

// defaultBroker is where the demo's Kafka is.
const defaultBroker = "127.0.0.1:9092"

func logFlagsOf(f *pflag.FlagSet) *logFlags {
	var l logFlags
	f.StringSliceVar(&l.brokers, "brokers", []string{defaultBroker}, "Kafka, host:port each")
	f.StringVar(&l.prefix, "topic-prefix", "", "before Millrace's own topics")
	f.DurationVar(&l.wait, "wait", 30*time.Second, "give up after this long")
	return &l
}

func (l *logFlags) at(ctx context.Context) kafka.Brokers { return kafkaAt(ctx, l.brokers) }

func (l *logFlags) topics() kafka.Topics { return kafka.Prefixed(l.prefix) }

// bound is ctx with the flags' limit.
func (l *logFlags) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, l.wait)
}

// withSchemas reads the schemas topic to its end for use.
func (l *logFlags) withSchemas(ctx context.Context, use func(*kafka.SchemaLog, *schemas.Snapshot) error) error {
	registry, err := schemas.NewRegistry(nil, nil)
	if err != nil {
		return err
	}
	log, err := kafka.OpenSchemaLog(kafka.SchemaLogConfig{Brokers: l.at(ctx), Topic: l.topics().Schemas, Registry: registry})
	if err != nil {
		return err
	}
	defer log.Close()
	if err := log.Refresh(ctx); err != nil {
		return err
	}
	return use(log, registry.Snapshot())
}

// kafkaFlags name Millrace's part of a Kafka, for who may do without.
type kafkaFlags struct {
	brokers []string
	prefix  string
}

func kafkaFlagsOf(c *cobra.Command, what string) *kafkaFlags {
	var k kafkaFlags
	c.Flags().StringSliceVar(&k.brokers, "brokers", nil, "Kafka, host:port each; "+what)
	c.Flags().StringVar(&k.prefix, "topic-prefix", "", "before Millrace's own topics")
	return &k
}

func (k *kafkaFlags) at(ctx context.Context) kafka.Brokers { return kafkaAt(ctx, k.brokers) }

func (k *kafkaFlags) topics() kafka.Topics { return kafka.Prefixed(k.prefix) }
