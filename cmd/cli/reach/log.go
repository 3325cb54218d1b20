package reach

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/schemas/registry"
)

// LogFlags name Millrace's part of a Kafka.
type LogFlags struct {
	brokers []string
	prefix  string
	wait    time.Duration
}

// DefaultBroker is where the demo's Kafka is.
const DefaultBroker = "127.0.0.1:9092"

// LogFlagsOf adds them to a command's.
func LogFlagsOf(f *pflag.FlagSet) *LogFlags {
	var l LogFlags
	f.StringSliceVar(&l.brokers, "brokers", []string{DefaultBroker}, "Kafka, host:port each")
	f.StringVar(&l.prefix, "topic-prefix", "", "before Millrace's own topics")
	f.DurationVar(&l.wait, "wait", 30*time.Second, "give up after this long")
	return &l
}

// At is the Kafka that they name.
func (l *LogFlags) At(ctx context.Context) kafka.Brokers { return Kafka(ctx, l.brokers) }

// Topics are Millrace's own in it.
func (l *LogFlags) Topics() kafka.Topics { return kafka.Prefixed(l.prefix) }

// Wait is the flags' limit.
func (l *LogFlags) Wait() time.Duration { return l.wait }

// Bound is ctx with the flags' limit.
func (l *LogFlags) Bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, l.wait)
}

// WithSchemas reads the schemas topic to its end for use.
func (l *LogFlags) WithSchemas(ctx context.Context, use func(*schemalog.Log, *registry.Snapshot) error) error {
	return WithSchemas(ctx, l.At(ctx), l.Topics(), use)
}

// WithSchemas reads the schemas topic of a Kafka to its end for use.
func WithSchemas(ctx context.Context, at kafka.Brokers, topics kafka.Topics, use func(*schemalog.Log, *registry.Snapshot) error) error {
	registry, err := registry.New(nil, nil)
	if err != nil {
		return err
	}
	log, err := schemalog.Open(schemalog.Config{Brokers: at, Topic: topics.Schemas, Registry: registry})
	if err != nil {
		return err
	}
	defer log.Close()
	if err := log.Refresh(ctx); err != nil {
		return err
	}
	return use(log, registry.Snapshot())
}

// KafkaFlags name Millrace's part of a Kafka, for who may do without.
type KafkaFlags struct {
	Brokers []string
	prefix  string
}

// KafkaFlagsOf adds them to a command's; what says what it is for.
func KafkaFlagsOf(c *cobra.Command, what string) *KafkaFlags {
	var k KafkaFlags
	c.Flags().StringSliceVar(&k.Brokers, "brokers", nil, "Kafka, host:port each; "+what)
	c.Flags().StringVar(&k.prefix, "topic-prefix", "", "before Millrace's own topics")
	return &k
}

// At is the Kafka that they name; none where they name none.
func (k *KafkaFlags) At(ctx context.Context) kafka.Brokers { return Kafka(ctx, k.Brokers) }

// Topics are Millrace's own in it.
func (k *KafkaFlags) Topics() kafka.Topics { return kafka.Prefixed(k.prefix) }
