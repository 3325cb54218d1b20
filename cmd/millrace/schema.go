package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace"
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

// errNotConfirmed is the refusal of a command that cannot be taken back.
var errNotConfirmed = errors.New("nothing was done: this cannot be taken back; say --yes if it is meant")

func schemaCommand() *cobra.Command {
	c := &cobra.Command{Use: "schema", Short: "List and check the schemas of the log, and give up one that will never come"}
	l := logFlagsOf(c.PersistentFlags())
	c.AddCommand(schemaList(l), schemaCheck(l), schemaRetire(l), schemaRefuse(l))
	return c
}

func schemaList(l *logFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List every schema in the schemas topic, and every fingerprint that was given up",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := l.bound(c.Context())
			defer cancel()
			return listSchemas(ctx, c.OutOrStdout(), l)
		},
	}
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

func listSchemas(ctx context.Context, w io.Writer, l *logFlags) error {
	return l.withSchemas(ctx, func(log *kafka.SchemaLog, known *schemas.Snapshot) error {
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "FINGERPRINT\tNAME\tSTATE")
		for _, s := range known.All() {
			state := "known"
			if known.Retired(s.Fingerprint()) {
				state = "retired"
			}
			fmt.Fprintf(table, "%s\t%s\t%s\n", s.Fingerprint(), s.Name(), state)
		}
		for _, fp := range log.AllRefused() {
			fmt.Fprintf(table, "%s\t\trefused\n", fp)
		}
		if err := table.Flush(); err != nil {
			return err
		}
		for _, f := range known.Families() {
			for _, c := range f.Clashes() {
				fmt.Fprintf(w, "NOTE: %s\n", c)
			}
		}
		for _, c := range known.Disagreements() {
			fmt.Fprintf(w, "NOTE: %s\n", c)
		}
		return nil
	})
}

func schemaRetire(l *logFlags) *cobra.Command {
	return schemaWord(l, kafka.RetireSchema, "retired: it shapes nothing any more", &cobra.Command{
		Use:   "retire FINGERPRINT --yes",
		Short: "Take a schema out of what shapes the records of its name",
		Long: `A schema that was a mistake leaves columns, aliases and defaults, and schemas to
come must read its records. This takes all that back, on every node, from one
moment to the next. Its records stay readable, in the fields that other schemas
of the name have. The last schema of a name stays.`,
	})
}

func schemaRefuse(l *logFlags) *cobra.Command {
	return schemaWord(l, kafka.RefuseSchema, "given up: its records are passed over", &cobra.Command{
		Use:   "refuse FINGERPRINT --yes",
		Short: "Give up a schema that will never come, so that index nodes get past its records",
		Long: `Index nodes wait for the schema of a record that they cannot read yet. Where it
will never come, this lets every index node pass over the records of that
fingerprint, now and later. A schema of it is refused from then on.`,
	})
}

// schemaWord completes a command that gives an operator's word about a
// fingerprint to everyone, for good.
func schemaWord(l *logFlags, give func(context.Context, kafka.Brokers, string, millrace.Fingerprint) error, done string, c *cobra.Command) *cobra.Command {
	var yes bool
	c.Args = cobra.ExactArgs(1)
	c.RunE = func(c *cobra.Command, args []string) error {
		fp, err := kafka.ParseFingerprint(args[0])
		if err != nil {
			return err
		}
		if !yes {
			return errNotConfirmed
		}
		ctx, cancel := l.bound(c.Context())
		defer cancel()
		if err := give(ctx, l.at(ctx), l.topics().Schemas, fp); err != nil {
			return err
		}
		fmt.Fprintf(c.OutOrStdout(), "schema %s is %s\n", fp, done)
		return nil
	}
	c.Flags().BoolVar(&yes, "yes", false, "yes, for good")
	return c
}
