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

// LogFlags are the flags that name a Kafka and Millrace's topics in it, and bound how long
// the command waits for them.
type LogFlags struct {
	brokers []string
	prefix  string
	wait    time.Duration
}

// DefaultBroker is where the demo's Kafka is.
const DefaultBroker = "127.0.0.1:9092"

// LogFlagsOf adds LogFlags to f, the flags of a command. What it returns has their values
// once f is parsed.
func LogFlagsOf(f *pflag.FlagSet) *LogFlags {
	var l LogFlags
	f.StringSliceVar(&l.brokers, "brokers", []string{DefaultBroker}, "Kafka, host:port each")
	f.StringVar(&l.prefix, "topic-prefix", "", "before Millrace's own topics")
	f.DurationVar(&l.wait, "wait", 30*time.Second, "give up after this long")
	return &l
}

// At returns the Kafka that the flags name.
func (l *LogFlags) At(ctx context.Context) kafka.Brokers { return Kafka(ctx, l.brokers) }

// Topics returns the names of Millrace's own topics.
func (l *LogFlags) Topics() kafka.Topics { return kafka.Prefixed(l.prefix) }

// Wait returns how long the command may wait, as --wait says.
func (l *LogFlags) Wait() time.Duration { return l.wait }

// Bound returns ctx with a timeout of Wait.
func (l *LogFlags) Bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, l.wait)
}

// WithSchemas reads the schemas topic to its end, then calls use and returns its error.
func (l *LogFlags) WithSchemas(ctx context.Context, use func(*schemalog.Log, *registry.Snapshot) error) error {
	return WithSchemas(ctx, l.At(ctx), l.Topics(), use)
}

// WithSchemas reads the schemas topic of a Kafka to its end, then calls use and returns its
// error. The log is closed when use returns.
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

// KafkaFlags are the flags that name a Kafka and Millrace's topics in it, for commands that
// also work without Kafka.
type KafkaFlags struct {
	Brokers []string
	prefix  string
}

// KafkaFlagsOf adds KafkaFlags to the flags of c. what ends the help of --brokers: what the
// command needs Kafka for.
func KafkaFlagsOf(c *cobra.Command, what string) *KafkaFlags {
	var k KafkaFlags
	c.Flags().StringSliceVar(&k.Brokers, "brokers", nil, "Kafka, host:port each; "+what)
	c.Flags().StringVar(&k.prefix, "topic-prefix", "", "before Millrace's own topics")
	return &k
}

// At returns the Kafka that the flags name; the zero Brokers if they name none.
func (k *KafkaFlags) At(ctx context.Context) kafka.Brokers { return Kafka(ctx, k.Brokers) }

// Topics returns the names of Millrace's own topics.
func (k *KafkaFlags) Topics() kafka.Topics { return kafka.Prefixed(k.prefix) }
