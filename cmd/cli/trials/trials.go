// Package trials is the commands that define, change and judge experiments.
package trials

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/ask"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/leans"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/relevance/experiment"
)

// Command is the command of experiments.
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
	var document string
	named := func(c *cobra.Command) *cobra.Command {
		c.Flags().StringVar(&document, "name", "", "of the document (default: the file's, without .yaml)")
		return c
	}
	var feed, viewer, entity string
	var attributes map[string]string
	explain := experimentLook(&cobra.Command{
		Use: "explain --feed NAME --viewer ID|--entity ID", Short: "Say of every experiment why a viewer or an entity is in it, or why not", Args: cobra.NoArgs,
		Example: `  millrace experiment explain --feed home --viewer member:42 --attribute country=de`,
	}, func(ctx context.Context, t *trial, output *display.Form, _ []string) error {
		return t.explain(ctx, output, asked{feed, viewer, entity, attributes})
	})
	explain.Flags().StringVar(&feed, "feed", "", "the feed that is asked for")
	explain.Flags().StringVar(&viewer, "viewer", "", "the viewer's id")
	explain.Flags().StringVar(&entity, "entity", "", "an entity, in layers that divide entities")
	explain.Flags().StringToStringVar(&attributes, "attribute", nil, ask.AttributeUsage)
	if err := explain.MarkFlagRequired("feed"); err != nil {
		panic(err) // the flag is there
	}
	explain.MarkFlagsOneRequired("viewer", "entity")
	explain.MarkFlagsMutuallyExclusive("viewer", "entity")
	var share float64
	withShare := func(c *cobra.Command) *cobra.Command {
		c.Flags().Float64Var(&share, "share", asItIs, "of its slots that are in use, in percent, such as 5 (default: as it is)")
		c.Flags().Lookup("share").DefValue = "0" // which is not shown
		return c
	}
	ramp := withShare(experimentOn(&cobra.Command{
		Use: "ramp NAME --share PERCENT", Short: "Use more of an experiment's slots; nobody in it changes their variant", Args: cobra.ExactArgs(1),
		Example: `  millrace experiment ramp fresher --share 10`,
	}, func(ctx context.Context, t *trial, args []string) error { return t.steer(ctx, args[0], "", share) }))
	if err := ramp.MarkFlagRequired("share"); err != nil {
		panic(err) // the flag is there
	}
	c.AddCommand(
		named(experimentOn(&cobra.Command{
			Use: "define FILE.yaml", Short: "Check a document and put it in place, and say which brokers have heard of it", Args: cobra.ExactArgs(1),
			Long: `Checks a document against all others, the feeds, the models that serve and the
index nodes' schemas, and puts it in place as the next version of its name. A
document with a fault changes nothing; nor does one that would take viewers out
of a variant while its experiment runs, by a name under forced too.

  layers:
    - {name: ranking, salt: ranking-2026, unit: viewer}   # or: attribute NAME, or: entity
  experiments:
    - name: fresher
      layer: ranking
      feeds: [home]
      state: draft             # draft, running, paused or stopped
      slots: [0-3999]          # of 10,000, this experiment's alone
      share: 0                 # of 10,000 of its slots: the ramp
      targeting: viewer.country in ["de", "fr"]
      variants:
        - {name: control, weight: 5000}
        - {name: treatment, weight: 5000, set: {model: home2}}
      forced: {member:42: treatment}   # never counted

A variant sets model or interleave, weights, filter, window, types,
cap_per_entity, spacing or limit. Weights stand in place of the model's own:
"weights: {likes: 2, type.share: 0.5, bias: -1}"; what is no parameter of the
model is refused. In a layer of entities a variant treats the entities
that it is dealt to, whoever looks; interleave, spacing and limit, which are one
for a whole answer, are refused there, and so are targeting, ramp and guards.

Coordinators take the steps of "ramp" and pause what "guards" find hurt; "outcomes"
names the topic of what viewers did, which guards, status and export go by. What
these have is in docs/experiments.md.`,
		}, func(ctx context.Context, t *trial, args []string) error {
			return t.define(ctx, args[0], document)
		})),
		named(experimentLook(&cobra.Command{Use: "diff FILE.yaml", Short: "What define would change, and who would move where", Args: cobra.ExactArgs(1)},
			func(ctx context.Context, t *trial, output *display.Form, args []string) error {
				return t.diff(ctx, output, args[0], document)
			})),
		experimentLook(&cobra.Command{Use: "list", Short: "The experiments there are, and what is wrong with their documents", Args: cobra.NoArgs},
			func(ctx context.Context, t *trial, output *display.Form, _ []string) error {
				return t.list(ctx, output)
			}),
		experimentLook(&cobra.Command{Use: "show NAME", Short: "An experiment and the document that it stands in", Args: cobra.ExactArgs(1)},
			func(ctx context.Context, t *trial, output *display.Form, args []string) error {
				return t.show(ctx, output, args[0])
			}),
		withShare(experimentOn(&cobra.Command{
			Use: "start NAME", Short: "Let an experiment assign, or go on after a pause", Args: cobra.ExactArgs(1),
			Example: `  millrace experiment start fresher --share 1`,
		}, func(ctx context.Context, t *trial, args []string) error {
			return t.steer(ctx, args[0], experiment.Running, share)
		})),
		ramp,
		experimentEnd(&cobra.Command{Use: "pause NAME", Short: "Let an experiment assign nobody for a while; the same viewers go on with it later", Args: cobra.ExactArgs(1)},
			func(ctx context.Context, t *trial, args []string) error {
				return t.steer(ctx, args[0], experiment.Paused, asItIs)
			}),
		experimentEnd(&cobra.Command{Use: "stop NAME", Short: "End an experiment for good, and give its slots back", Args: cobra.ExactArgs(1)},
			func(ctx context.Context, t *trial, args []string) error {
				return t.steer(ctx, args[0], experiment.Stopped, asItIs)
			}),
		experimentHold(),
		experimentOn(&cobra.Command{Use: "resume NAME", Short: "Let a ramp go on that somebody holds", Args: cobra.ExactArgs(1)},
			func(ctx context.Context, t *trial, args []string) error { return t.resume(ctx, args[0]) }),
		explain, experimentStatus(), experimentWait(),
		experimentRule(),
		experimentLook(&cobra.Command{Use: "history NAME", Short: "Who changed an experiment's document, by the name of either, and when", Args: cobra.ExactArgs(1),
			Long: `Tells of each version of a document, by its own name or that of an experiment in
it: who put it in place, and when; also once it is dropped. A name of both is the
document's, which a note says. Beside these it tells who held and resumed its
experiments, be it a restoration of etcd; of the models that these compare or set weights of, when another
version began to rank, or was condemned; and of their feeds, when another
definition changed what their variants leave to it, whose evidence begins anew
then.`},
			func(ctx context.Context, t *trial, output *display.Form, args []string) error {
				return t.history(ctx, output, args[0])
			}),
		experimentDrop(),
	)
	return c
}

// trial is what the commands see that change experiments.
type trial struct {
	*leans.Experiments
	trails *experiments.Trails
	out    io.Writer
	notes  io.Writer // for people, whatever the form of the output
}

// experimentWays are the ways out of refusals.
var experimentWays = []command.Way{
	{Of: artefacts.ErrNoVersion, WayOut: "millrace experiment list names what there is"},
}

// experimentOn makes a command that runs on a cluster.
func experimentOn(c *cobra.Command, run func(context.Context, *trial, []string) error) *cobra.Command {
	clusters.On(c, func(ctx context.Context, _ *clusters.Flags, cl *cluster.Client, args []string) error {
		t, err := openTrial(ctx, cl, c.OutOrStdout())
		if err != nil {
			return err
		}
		t.notes = c.ErrOrStderr()
		clusters.TellFaults(c, t.Documents, t.Feeds.Versions)
		return command.WithWay(run(ctx, t, args), experimentWays)
	})
	return c
}

// experimentEnd is experimentOn of one that takes its variants from viewers.
func experimentEnd(c *cobra.Command, run func(context.Context, *trial, []string) error) *cobra.Command {
	experimentOn(c, run)
	ends := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error { return goesOn(ends(c, args)) }
	return c
}

// goesOn says what is left to who cannot end an experiment since etcd takes no change.
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

// experimentLook is experimentOn of one that shows something.
func experimentLook(c *cobra.Command, run func(context.Context, *trial, *display.Form, []string) error) *cobra.Command {
	var output display.Form
	display.Flag(c, &output)
	return experimentOn(c, func(ctx context.Context, t *trial, args []string) error { return run(ctx, t, &output, args) })
}

func openTrial(ctx context.Context, cl *cluster.Client, out io.Writer) (*trial, error) {
	read, err := leans.OpenExperiments(ctx, cl)
	if err != nil {
		return nil, err
	}
	trails, err := experiments.OpenTrails(ctx, cl)
	return &trial{Experiments: read, trails: trails, out: out, notes: io.Discard}, err
}
