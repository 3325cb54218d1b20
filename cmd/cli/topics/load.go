package topics

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/cmd/cli/rollouts"
	"github.com/millrace/millrace/cmd/cli/schemafiles"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/load"
)

// Load returns the command load, which brings records of a file into a topic.
func Load() *cobra.Command {
	var (
		o      load.Options
		schema string
		prefix string
		loss   bool
		cm     *clusters.Flags
		addrs  []string
	)
	c := &cobra.Command{
		Use:   "load --topic TOPIC FILE.ndjson[.zst]",
		Short: "Bring a file of JSON records into a content topic",
		Long: `Checks every line against a schema, encodes it as Avro and produces it to a
content or feature topic. A line that does not fit is reported by number and
field and written aside, and stops nothing; if no line fits, the command fails.
The check is that of the partitioners, which refuse a time in the future, too;
what they refuse all the same, millrace deadletters list shows.

It waits for Kafka, and creates the topic if it is missing. A topic that no
partitioner consumes is refused, since no feed would ever show its records, and
so is one that carries features if the schema is of content, and the reverse.

A schema that is new is compared with those that are known: what it changes is
printed, and it is refused if records of it would lack a field that a feed or a
model which serves reads.

The schema is one that ships (activity, note, features), or an .avsc file.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) (err error) {
			if o.Schema, err = schemafiles.Read(schema); err != nil {
				return err
			}
			o.Brokers = reach.Kafka(c.Context(), addrs)
			o.File, o.Progress, o.Log, o.Topics = args[0], os.Stderr, slog.Default(), kafka.Prefixed(prefix)
			o.Review = rollouts.Review(cm, c.OutOrStdout(), loss, "--accept-loss")
			began := time.Now()
			report, err := load.Run(c.Context(), o)
			if err != nil && report.Lines == 0 {
				return err // it read no line, so there is nothing to report
			}
			if report.Loaded > 0 {
				refused := "What partitioners refuse later"
				if o.Force { // it may be that no partitioner reads the topic
					refused = "If partitioners read this topic, what they refuse later"
				}
				fmt.Fprintf(c.ErrOrStderr(), "%s: millrace deadletters list --topic %s --since %s%s\n",
					refused, o.Topic, began.UTC().Format(time.RFC3339), sameLog(addrs, prefix))
			}
			w := c.OutOrStdout()
			for _, f := range report.Faults {
				fmt.Fprintln(w, f)
			}
			if n := report.Rejected - len(report.Faults); n > 0 {
				fmt.Fprintf(w, "... and %d more\n", n)
			}
			fmt.Fprintf(w, "%d lines: %d loaded, %d rejected, in %.1f s\n", report.Lines, report.Loaded, report.Rejected, report.Elapsed.Seconds())
			if report.RejectedFile != "" {
				fmt.Fprintf(w, "Rejected lines are in %s\n", report.RejectedFile)
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&o.Topic, "topic", "", "the content or feature topic")
	f.StringVar(&schema, "schema", "activity", "activity, note, features, or an .avsc file")
	f.StringSliceVar(&addrs, "brokers", []string{reach.DefaultBroker}, "Kafka, host:port each")
	f.StringVar(&o.Rejected, "rejected", "", "where rejected lines go (default FILE.rejected.ndjson)")
	f.DurationVar(&o.Wait, "wait", 0, "how long to wait for Kafka, and for a partitioner that consumes the topic (default 30s)")
	f.BoolVar(&o.Force, "force", false, "load even if no partitioner consumes the topic")
	f.BoolVar(&loss, "accept-loss", false, "load even if the schema takes a field from what serves")
	cm = clusters.FlagsOf(f)
	f.StringVar(&prefix, "topic-prefix", "", "before Millrace's own topics")
	if err := c.MarkFlagRequired("topic"); err != nil {
		panic(err) // the flag above exists
	}
	return c
}

// sameLog returns the flags that another command needs to reach the same log, each after a
// space; "" for the defaults.
func sameLog(brokers []string, prefix string) (flags string) {
	if list := strings.Join(brokers, ","); list != reach.DefaultBroker {
		flags += " --brokers " + list
	}
	if prefix != "" {
		flags += " --topic-prefix " + prefix
	}
	return flags
}
