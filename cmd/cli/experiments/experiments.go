// Package experiments has the commands that define, change and judge experiments.
//
// A document in etcd defines experiments and their layers. An exposure is the record of
// what one answer showed, and an outcome that of what a viewer then did; both are in
// topics of Kafka. An experiment's evidence is the exposures and outcomes that count for
// it. Its share is how many of its slots are in use. Coordinators raise the share by the
// steps of its ramp, unless somebody holds it, and pause it when one of its guards finds
// that a variant does harm. What they saw and decided is the experiment's trail, in etcd.
//
// The word draft has two meanings. An experiment in the state draft gives a variant only
// to those whom it names. Two models that are compared by interleaving draft a page: they
// choose its items in turns.
package experiments

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/leans"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/relevance/experiment"
)

// Command returns the command experiment, with the commands below it.
func Command() *cobra.Command {
	c := &cobra.Command{
		Use:   "experiment",
		Short: "Give viewers variants of a feed, and change how many",
		Long: `An experiment gives a share of viewers another variant of a feed: another
model, other weights, filter, window, cap, spacing or limit; or it treats a share
of the entities so, whoever looks. Layers divide viewers or entities over 10,000
slots by a hash; the experiments of a layer have slots of their own, and so
exclude each other. Nothing is stored about anybody.

Definitions are documents in the cluster. "define" checks one against all others
and puts it in place; brokers assign by it within a second, and the last line says which
do. One that has lost etcd goes on as before until it hears etcd again: it is named as
NOT HEARD, "millrace doctor --admin" says more, and "status" goes by its answers.
"start", "ramp", "pause" and "stop" change one experiment where it stands in its
document.`,
	}
	c.AddCommand(
		experimentDefine(), experimentDiff(),
		experimentLook(&cobra.Command{Use: "list", Short: "The experiments there are, and what is wrong with their documents", Args: cobra.NoArgs},
			func(ctx context.Context, t *opened, output *display.Form, _ []string) error {
				return t.list(ctx, output)
			}),
		experimentLook(&cobra.Command{Use: "show NAME", Short: "An experiment and the document that it stands in", Args: cobra.ExactArgs(1)},
			func(ctx context.Context, t *opened, output *display.Form, args []string) error {
				return t.show(ctx, output, args[0])
			}),
		experimentStart(), experimentRamp(),
		experimentEnd(&cobra.Command{Use: "pause NAME", Short: "Let an experiment assign nobody for a while; the same viewers go on with it later", Args: cobra.ExactArgs(1)},
			func(ctx context.Context, t *opened, args []string) error {
				return t.steer(ctx, args[0], experiment.Paused, asItIs)
			}),
		experimentEnd(&cobra.Command{Use: "stop NAME", Short: "End an experiment for good, and give its slots back", Args: cobra.ExactArgs(1)},
			func(ctx context.Context, t *opened, args []string) error {
				return t.steer(ctx, args[0], experiment.Stopped, asItIs)
			}),
		experimentHold(),
		experimentOn(&cobra.Command{Use: "resume NAME", Short: "Let a ramp go on that somebody holds", Args: cobra.ExactArgs(1)},
			func(ctx context.Context, t *opened, args []string) error { return t.resume(ctx, args[0]) }),
		experimentExplain(), experimentStatus(), experimentWait(), experimentRule(), experimentHistory(), experimentDrop(),
	)
	return c
}

// opened is the experiments of a cluster, opened for one command.
type opened struct {
	*leans.Experiments
	trails *experiments.Trails // what was seen of experiments and decided about them
	out    io.Writer
	notes  io.Writer // for people, whatever the form of the output
}

// experimentWays are the ways out of refusals, what to do instead, of these commands.
var experimentWays = []command.Way{
	{Of: artefacts.ErrNoVersion, WayOut: "millrace experiment list names what there is"},
}

// experimentOn makes a command that runs on a cluster.
func experimentOn(c *cobra.Command, run func(context.Context, *opened, []string) error) *cobra.Command {
	clusters.On(c, func(ctx context.Context, _ *clusters.Flags, cl *cluster.Client, args []string) error {
		t, err := open(ctx, cl, c.OutOrStdout())
		if err != nil {
			return err
		}
		t.notes = c.ErrOrStderr()
		clusters.TellFaults(c, t.Documents, t.Feeds.Versions)
		return command.WithWay(run(ctx, t, args), experimentWays)
	})
	return c
}

// experimentEnd is experimentOn of a command that takes an experiment's variants from
// viewers: pause and stop.
func experimentEnd(c *cobra.Command, run func(context.Context, *opened, []string) error) *cobra.Command {
	experimentOn(c, run)
	ends := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error { return goesOn(ends(c, args)) }
	return c
}

// goesOn completes the error of a command that could not end an experiment because etcd
// takes no change: it says what callers can still do. It returns any other error as it is.
func goesOn(err error) error {
	e := (*millrace.Error)(nil)
	if of := errors.As(err, &e) && e.Field == "etcd"; !of && !errors.Is(err, cluster.ErrAway) && !errors.Is(err, cluster.ErrLost) {
		return err
	}
	says := millrace.Error{Reason: millrace.ReasonUnavailable, Detail: err.Error()}
	if e != nil {
		says = *e
	}
	says.Detail += ". Until etcd is mended brokers go on dealing the variants, and no command and no configuration ends that; callers get none that ask another feed, or name themselves what a variant sets"
	return command.Refused(&says, err)
}

// experimentLook is experimentOn of a command that shows something, in the form of -o.
func experimentLook(c *cobra.Command, run func(context.Context, *opened, *display.Form, []string) error) *cobra.Command {
	var output display.Form
	display.Flag(c, &output)
	return experimentOn(c, func(ctx context.Context, t *opened, args []string) error { return run(ctx, t, &output, args) })
}

func open(ctx context.Context, cl *cluster.Client, out io.Writer) (*opened, error) {
	read, err := leans.OpenExperiments(ctx, cl)
	if err != nil {
		return nil, err
	}
	trails, err := experiments.OpenTrails(ctx, cl)
	return &opened{Experiments: read, trails: trails, out: out, notes: io.Discard}, err
}
