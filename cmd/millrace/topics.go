package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
)

func topicsCommand() *cobra.Command {
	c := &cobra.Command{Use: "topics", Short: "Show the log and how far it is partitioned, and get past what cannot be read"}
	l := logFlagsOf(c.PersistentFlags())
	c.AddCommand(topicsShow(l), topicsSkip(l), topicsForget(l))
	return c
}

func topicsShow(l *logFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "show",
		Short: "Show Millrace's own topics and the progress of the partitioners",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := l.bound(c.Context())
			defer cancel()
			return showTopics(ctx, c.OutOrStdout(), l)
		},
	}
}

func showTopics(ctx context.Context, w io.Writer, l *logFlags) error {
	log, err := kafka.InspectTopics(ctx, l.brokers, l.topics())
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "Kafka cluster %s\n", log.Cluster)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "TOPIC\tPARTITIONS\tCLEANUP\tKEPT")
	for _, t := range log.Topics() {
		kept := "for ever"
		if t.Retention >= 0 {
			kept = t.Retention.String()
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\n", t.Name, t.Partitions, t.CleanupPolicy, kept)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, d := range log.Deletes() {
		fmt.Fprintf(w, "WARNING: %s; an index node cannot be rebuilt from the log alone\n", d)
	}
	if log.Progress.Partitions == 0 {
		return nil
	}
	return l.withProgress(ctx, func(progress *kafka.ProgressLog) error {
		for _, p := range progress.Groups() {
			now := time.Now()
			fmt.Fprintf(w, "group %s: heartbeat of %s %s ago; everything from before %s ago is partitioned\n", p.Group, p.Instance,
				now.Sub(p.At()).Round(time.Millisecond), now.Sub(p.Through()).Round(time.Millisecond))
			for _, topic := range slices.Sorted(maps.Keys(p.Kinds)) {
				fmt.Fprintf(w, "  %s carries %s\n", topic, p.Kinds[topic])
			}
			for _, s := range p.Stuck {
				fmt.Fprintf(w, "  %s\n", s)
			}
		}
		return nil
	})
}

// withProgress reads the topic progress to its end for use.
func (l *logFlags) withProgress(ctx context.Context, use func(*kafka.ProgressLog) error) error {
	progress, err := kafka.OpenProgressLog(kafka.ProgressLogConfig{Brokers: l.brokers, Topic: l.topics().Progress})
	if err != nil {
		return err
	}
	defer progress.Close()
	if err := progress.Refresh(ctx); err != nil {
		return err
	}
	return use(progress)
}

func topicsSkip(l *logFlags) *cobra.Command {
	var s kafka.Skip
	var offset int64
	var yes bool
	c := &cobra.Command{
		Use:   "skip --topic TOPIC --partition P --offset O --yes",
		Short: "Have the partitioners go on behind a batch that cannot be opened",
		Long: `A batch that cannot be opened stops its partition; "millrace topics show" and a
partitioner's /readyz name it. This has the partitioner keep the batch aside in
the dead letters, byte for byte, and go on behind it, while it runs.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s.Offset = millrace.Offset(offset)
			ctx, cancel := l.bound(c.Context())
			defer cancel()
			return l.withProgress(ctx, func(progress *kafka.ProgressLog) error {
				return skipBatch(ctx, c.OutOrStdout(), l, progress, s, yes)
			})
		},
	}
	f := c.Flags()
	f.StringVar(&s.Group, "group", "millrace-partitioner", "the partitioners' consumer group")
	f.StringVar(&s.Topic, "topic", "", "the content or feature topic")
	f.Int32Var(&s.Partition, "partition", 0, "its partition")
	f.Int64Var(&offset, "offset", 0, "where the batch begins")
	f.BoolVar(&yes, "yes", false, "yes, for good")
	for _, name := range []string{"topic", "partition", "offset"} {
		if err := c.MarkFlagRequired(name); err != nil {
			panic(err) // the flag above exists
		}
	}
	return c
}

// skipBatch asks for a skip and waits until it was carried out.
func skipBatch(ctx context.Context, w io.Writer, l *logFlags, progress *kafka.ProgressLog, s kafka.Skip, yes bool) error {
	at, ok := stuckPlace(progress, s)
	if !ok {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "offset",
			Detail: fmt.Sprintf("group %s does not say that %s/%d is stuck at %d", s.Group, s.Topic, s.Partition, s.Offset),
			WayOut: "millrace topics show names what is stuck; a partitioner must be running"}
	}
	if !yes {
		fmt.Fprintf(w, "%s/%d would go on at %d: %s\n", at.Topic, at.Partition, at.Next, at.Reason)
		return errNotConfirmed
	}
	if err := kafka.RequestSkip(ctx, l.brokers, l.topics().Progress, s); err != nil {
		return err
	}
	if err := progress.Refresh(ctx); err != nil {
		return err
	}
	for {
		moved := progress.Moved()
		if !slices.Contains(progress.Skips(s.Group), s) {
			fmt.Fprintf(w, "%s/%d goes on at %d; what was skipped is in the topic %s\n", at.Topic, at.Partition, at.Next, l.topics().DeadLetters)
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("the partitioners have not carried it out yet; they will as soon as one runs that is stuck there: %w", ctx.Err())
		}
	}
}

func stuckPlace(progress *kafka.ProgressLog, s kafka.Skip) (kafka.Stuck, bool) {
	p, _ := progress.Group(s.Group)
	for _, at := range p.Stuck {
		if at.Topic == s.Topic && at.Partition == s.Partition && at.Offset == s.Offset {
			return at, true
		}
	}
	return kafka.Stuck{}, false
}

func topicsForget(l *logFlags) *cobra.Command {
	var group string
	var yes bool
	c := &cobra.Command{
		Use:   "forget --group GROUP --yes",
		Short: "Forget a group of partitioners that was retired, so that nobody waits for its heartbeat",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := l.bound(c.Context())
			defer cancel()
			return l.withProgress(ctx, func(progress *kafka.ProgressLog) error {
				if _, ok := progress.Group(group); !ok {
					return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "group", Detail: fmt.Sprintf("no partitioner of the group %q ever wrote", group),
						WayOut: "millrace topics show names the groups"}
				}
				if !yes {
					return errNotConfirmed
				}
				return kafka.ForgetGroup(ctx, l.brokers, l.topics().Progress, group)
			})
		},
	}
	c.Flags().StringVar(&group, "group", "", "the partitioners' consumer group")
	c.Flags().BoolVar(&yes, "yes", false, "yes: no partitioner of it runs any more")
	if err := c.MarkFlagRequired("group"); err != nil {
		panic(err) // the flag above exists
	}
	return c
}
