// Package doctor checks a cluster from end to end, and says whether roles are ready.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/line"
)

// doctor is what the checks look at, and what they found.
type doctor struct {
	clusters.Flags
	brokers     []string // of Kafka
	topicPrefix string
	grpc        string
	feed        string        // that the broker is asked for
	ports       []string      // admin ports of roles, host:port each
	exposed     []string      // what is wrong with files of secrets that doctor itself uses
	patience    time.Duration // how long roles may take to hear that etcd was restored

	// What a check found, for the checks after it.
	kafkaAway, logMissing, logGone, etcdAway, etcdFull, etcdDoubted, unassigned, lost bool
}

// Command returns the command doctor, which checks a cluster from end to end.
func Command() *cobra.Command {
	d := doctor{patience: cluster.LookTime}
	c := display.Looking(&cobra.Command{
		Use:   "doctor",
		Short: "Check a cluster from end to end, and say how to mend what is wrong",
		Args:  cobra.NoArgs,
	}, func(c *cobra.Command, output *display.Form, _ []string) error {
		return d.run(c.Context(), c.OutOrStdout(), output)
	})
	f := c.Flags()
	f.StringSliceVar(&d.brokers, "brokers", []string{"127.0.0.1:9092"}, "Kafka, host:port each")
	f.StringSliceVar(&d.Etcd, "etcd", []string{"127.0.0.1:2379"}, "etcd, host:port each")
	f.StringVar(&d.Cluster, "cluster", "millrace", "the cluster's name in etcd")
	f.StringVar(&d.topicPrefix, "topic-prefix", "", "before Millrace's own topics")
	f.StringVar(&d.grpc, "grpc", "127.0.0.1:9090", "the broker's gRPC address")
	f.StringVar(&d.feed, "feed", "recent", "the feed that the broker is asked for")
	f.StringSliceVar(&d.ports, "admin", nil, "admin ports of roles that should be ready, host:port each")
	return c
}

// checkTimeout bounds each check, beside its patience.
const checkTimeout = 5 * time.Second

// check is one thing that doctor looks at.
type check struct {
	name string
	// do returns a note on what is well. A [warning] as its error does not fail the check.
	do     func(context.Context) (string, error)
	wayOut string // how to mend what is wrong; an error's own goes before it
	// rests reports whether the earlier checks that this one depends on found no
	// fault. Where they did, this check is not made and its result is unknown: its
	// advice would not be about the cause. nil: it depends on no other check.
	rests    func() bool
	patience time.Duration // time for this check beyond checkTimeout
}

func (d *doctor) checks() []check {
	kafkaUp := func() bool { return !d.kafkaAway }
	etcdUp := func() bool { return !d.etcdAway }
	believed := func() bool { return !d.etcdAway && !d.etcdDoubted }
	assigned := func() bool { return !d.etcdAway && !d.unassigned }
	served := func() bool { return d.etcdAway || d.lost || !d.unassigned } // without etcd, or after it lost state, brokers use what they remember
	checks := []check{
		{"Kafka answers", d.kafkaAnswers, "start Kafka, or name it with --brokers", nil, 0},
		{"its topics fit", d.topicsFit, "start any role once: it creates them; a topic with another partition count must be deleted or another --topic-prefix used", kafkaUp, 0},
		{"the log is whole", d.logWhole, "look at Kafka's log", func() bool { return !d.kafkaAway && !d.logMissing }, 0},
		{"partitioners keep up", d.partitionersKeepUp, "look at the partitioner's log and its /readyz", func() bool { return !d.kafkaAway && !d.logGone }, 0},
		{"etcd answers", d.etcdAnswers, "start etcd, or name it with --etcd and --cluster", nil, 0},
		{"partitions are assigned", d.assigned, clusters.AssignWayOut, etcdUp, 0},
		{"index nodes are ready", d.nodesReady, "start the nodes that are gone; of the others look at the log and /readyz", assigned, 0},
		{"models do not fail", d.modelsGood, "", believed, 0},
		{"feeds are whole", d.feedsWhole, "", believed, 0},
		{"experiments are whole", d.experimentsWhole, "", believed, 0},
		{"a coordinator leads", d.coordinatorLeads, "", etcdUp, 0},
		{"brokers hear of changes", d.brokersHear, "mend the way from there to etcd, or what its log says that it cannot take over (experiment list, feed list, model list), or stop the broker", believed, d.patience},
		{"a broker answers", d.brokerAnswers, "start a broker, or name it with --grpc; of one that runs, look at its log and /readyz", served, 0},
	}
	if len(d.exposed) > 0 {
		checks = append(checks, check{"secrets are private", d.secretsPrivate, "", nil, 0})
	}
	if len(d.ports) > 0 {
		checks = append(checks, check{"roles are ready", d.rolesReady, "start the role, or mend what its /readyz says", nil, d.patience},
			check{"roles hear etcd", d.rolesHear, "mend the way from there to etcd, or stop the role: a broker goes on with variants that were paused since and models that were rolled back; its log says why", believed, d.patience})
	}
	return checks
}

// warning is an error that does not fail a check: nothing is wrong yet, and something will
// be if nobody acts.
type warning struct{ text string }

func (w warning) Error() string { return w.text }

// checkShown is what a check found, as JSON shows it.
type checkShown struct {
	Check  string `json:"check"`
	Result string `json:"result"` // ok, warn, fail or unknown
	Detail string `json:"detail"`
	WayOut string `json:"way_out,omitempty"`
}

func (d *doctor) look(ctx context.Context, c check) checkShown {
	if c.rests != nil && !c.rests() {
		return checkShown{c.name, "unknown", "cannot be told before what is wrong above is mended", ""}
	}
	limited, cancel := context.WithTimeout(ctx, checkTimeout+c.patience)
	note, err := c.do(limited)
	cancel()
	if err == nil {
		return checkShown{c.name, "ok", note, ""}
	}
	if warns, ok := errors.AsType[warning](err); ok {
		return checkShown{c.name, "warn", warns.text, ""}
	}
	if _, is := errors.AsType[others](err); !is {
		err = command.Told(err)
	}
	what, wayOut := err.Error(), c.wayOut
	if e := (*millrace.Error)(nil); errors.As(err, &e) && e.WayOut != "" {
		what, wayOut = e.Detail, e.WayOut
		if e.Reason == millrace.ReasonForbidden {
			what = e.Field + ": " + what
		}
	}
	return checkShown{c.name, "fail", what, wayOut}
}

func (c checkShown) write(w io.Writer) {
	const indent = "\n                               "
	result := map[string]string{"ok": "ok", "warn": "warn", "fail": "FAIL", "unknown": "-"}[c.Result]
	fmt.Fprintf(w, "%-5s %-24s %s\n", result, c.Check, strings.ReplaceAll(line.Keep(c.Detail, "\n"), "\n", indent))
	if c.WayOut != "" {
		fmt.Fprintf(w, "      %-24s way out: %s\n", "", line.Of(c.WayOut))
	}
}

// run makes the checks, and fails if one does. As text, each result is written as soon as
// it is known, since some checks take seconds.
func (d *doctor) run(ctx context.Context, w io.Writer, output *display.Form) error {
	d.exposed = reach.Exposed(ctx)
	all, failed := []checkShown{}, 0
	for _, check := range d.checks() {
		found := d.look(ctx, check)
		if all = append(all, found); found.Result == "fail" {
			failed++
		}
		if !output.JSON() {
			found.write(w)
		}
	}
	if output.JSON() {
		if err := display.WriteJSON(w, all); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d checks failed", failed)
	}
	return nil
}

// secretsPrivate warns of files of secrets that others may read. They are those by which
// doctor itself reaches the cluster.
func (d *doctor) secretsPrivate(context.Context) (string, error) {
	return "", warning{strings.Join(d.exposed, "\n")}
}

// finding returns what is wrong as an error with a way out of its own. what is a format of
// args.
func finding(wayOut, what string, args ...any) error {
	return &millrace.Error{Reason: millrace.ReasonUnavailable, Detail: fmt.Sprintf(what, args...), WayOut: wayOut}
}
