// Package rollouts has the commands that show and change the feeds and models of a
// cluster, and the check of who reads the fields that a change of schemas would lose.
//
// A model and a feed definition have versions in etcd, one of which serves: brokers
// answer by it. A model that is pushed is published first, then admitted by every index
// node, and only then serves. A version that fails while it serves is condemned, and
// another ranks in its place until it is released.
package rollouts

import (
	"bytes"
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
	"github.com/millrace/millrace/cmd/cli/leans"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/relevance/modelpack"
)

// rollout is a cluster's models and feeds, for one command on models.
type rollout struct {
	*leans.Serving
	out   io.Writer
	maps  *cluster.Watcher
	heard *members.Admitted // which versions each index node has admitted or refused
	who   string            // the person who runs the command; see [clusters.Who]
	// overrideWay says how to override a refusal ([command.Act.OverrideWay]); "" for
	// a command that cannot.
	overrideWay string
}

// The texts that say what to do when the store of versions refuses a change (package
// artefacts).
var (
	modelWays = []command.Way{
		{Of: artefacts.ErrNothingBefore, WayOut: "let another version serve: millrace model push PACK --serve"},
		{Of: artefacts.ErrNoVersion, WayOut: "millrace model list names what there is"},
		{Of: artefacts.ErrInUse, WayOut: "let feeds name another model (millrace feed define FILE.yaml), stop the experiments that it names (millrace experiment stop NAME), or another version serve (millrace model rollback NAME, or millrace model push PACK --serve)"},
	}
	feedWays = []command.Way{
		{Of: artefacts.ErrNothingBefore, WayOut: "put another definition in place: millrace feed define FILE.yaml"},
		{Of: artefacts.ErrNoVersion, WayOut: "millrace feed list names what there is"},
		{Of: artefacts.ErrInUse, WayOut: "stop the experiments first: millrace experiment stop NAME"},
	}
)

// openRollout reads the models and feeds of a cluster, and follows their changes until
// ctx ends.
func openRollout(ctx context.Context, cl *cluster.Client, out io.Writer) (*rollout, error) {
	serves, err := leans.OpenServing(ctx, cl)
	if err != nil {
		return nil, err
	}
	r := &rollout{Serving: serves, out: out, who: clusters.Who()}
	if r.maps, err = cl.Watch(ctx); err != nil {
		return nil, err
	}
	r.heard, err = members.WatchAdmitted(ctx, cl)
	r.Models.Spare(func(v artefacts.Version) bool { return r.ranksNowhere(v) != nil }, func(v artefacts.Version, history []ledger.Event) bool {
		return time.Now().Before(pagesUntil(history, v))
	})
	return r, err
}

// rolloutCommand makes run the action of c, on the models of the cluster that its flags
// name.
func rolloutCommand(c *cobra.Command, run func(ctx context.Context, r *rollout, args []string) error) *cobra.Command {
	onRollout(c, run)
	return c
}

// onRollout does what rolloutCommand does, and returns the flags that name the cluster.
func onRollout(c *cobra.Command, run func(ctx context.Context, r *rollout, args []string) error) *clusters.Flags {
	return clusters.On(c, func(ctx context.Context, _ *clusters.Flags, cl *cluster.Client, args []string) error {
		r, err := openRollout(ctx, cl, c.OutOrStdout())
		if err != nil {
			return err
		}
		clusters.TellFaults(c, r.Models, r.maps, r.heard, r.Feeds.Versions)
		return command.WithWay(run(ctx, r, args), modelWays)
	})
}

// rolloutLook does what rolloutCommand does for a command that only shows something.
func rolloutLook(c *cobra.Command, run func(ctx context.Context, r *rollout, output *display.Form, args []string) error) *cobra.Command {
	var output display.Form
	display.Flag(c, &output)
	return rolloutCommand(c, func(ctx context.Context, r *rollout, args []string) error { return run(ctx, r, &output, args) })
}

// rolloutAct does what rolloutCommand does for a command that only shows what it would do,
// unless it gets --apply.
func rolloutAct(c *cobra.Command, run func(ctx context.Context, r *rollout, args []string, meant command.Meant) error) *cobra.Command {
	var a command.Act
	rolloutCommand(c, func(ctx context.Context, r *rollout, args []string) error { return run(ctx, r, args, a.Of(c)) })
	a.Flags(c)
	return c
}

// Models returns the commands that show and change the models of a cluster. avsc are the
// schema files of the flag of their parent command.
func Models(avsc *[]string) []*cobra.Command {
	var out string
	pull := rolloutCommand(&cobra.Command{
		Use: "pull NAME [VERSION]", Short: "Write a pack to a file: the version that serves, or another", Args: cobra.RangeArgs(1, 2),
	}, func(ctx context.Context, r *rollout, args []string) error { return r.pull(ctx, args, out) })
	pull.Flags().StringVar(&out, "out", "", "the file; default NAME-VERSION.tar.zst")
	return []*cobra.Command{
		pushModel(avsc), pull,
		rolloutLook(&cobra.Command{Use: "list", Short: "The models there are, which version serves, and which nodes have it", Args: cobra.NoArgs},
			func(ctx context.Context, r *rollout, output *display.Form, _ []string) error {
				return r.list(ctx, output)
			}),
		rolloutLook(&cobra.Command{Use: "history NAME", Short: "Who changed what of a model, and when", Args: cobra.ExactArgs(1)},
			func(ctx context.Context, r *rollout, output *display.Form, args []string) error {
				return r.history(ctx, output, args[0])
			}),
		rollbackModel(),
		rolloutCommand(&cobra.Command{
			Use: "release NAME VERSION", Short: "Let a version be asked for again that was condemned, or that a node died of", Args: cobra.ExactArgs(2),
			Long: `Lets a version be asked for again that is condemned. An index node condemns a
version that panics, that has no score that is a finite number for any candidate
of ten questions in a row where the version before has one, or whose records
take fifty times as long as its admission reckoned. Feeds whose model it is are
then ranked by the version that served last before it and is not condemned, or
else by recency; pages that it drafts second are their first model's alone; and
requests that name the model are refused. To push the same version again
releases it too.

Index nodes that refuse a version since they died twice in a row while they
admitted it try it again, once.`,
		}, func(ctx context.Context, r *rollout, args []string) error { return r.release(ctx, args[0], args[1]) }),
		dropModel(),
	}
}

func rollbackModel() *cobra.Command {
	var serve bool
	c := rolloutAct(&cobra.Command{
		Use: "rollback NAME", Short: "Let the version serve that served before", Args: cobra.ExactArgs(1),
		Long: `Lets the version serve that served before. Where that changes what a variant of a
running experiment is ranked by, and the experiment compares models or sets
weights, it is refused without --serve, unless what serves is condemned; and so it is
where that version is condemned itself, and another would rank in its place.`,
	}, func(ctx context.Context, r *rollout, args []string, meant command.Meant) error {
		return r.rollback(ctx, args[0], serve, meant)
	})
	c.Flags().BoolVar(&serve, "serve", false, "let it serve even if it is condemned, or changes a variant of a running experiment, whose evidence begins anew then")
	return c
}

// pack reads the pack of a version from etcd.
func (r *rollout) pack(ctx context.Context, v artefacts.Version) (*modelpack.Pack, error) {
	body, err := r.Models.Body(ctx, v)
	if err != nil {
		return nil, err
	}
	return modelpack.Read(bytes.NewReader(body))
}

// version returns the version of a model that was pushed under a version text, such as 1.2.
func (r *rollout) version(name, version string) (artefacts.Version, error) {
	all := r.Models.All()[name]
	if len(all) == 0 {
		return artefacts.Version{}, fmt.Errorf("no model %q has been pushed; see millrace model list", name)
	}
	var known []string
	for _, v := range all {
		if v.Version == version {
			return v, nil
		}
		known = append(known, v.Version)
	}
	return artefacts.Version{}, fmt.Errorf("model %s has no version %q; it has %s", name, version, strings.Join(known, ", "))
}

func (r *rollout) rollback(ctx context.Context, name string, serve bool, meant command.Meant) error {
	before, _ := r.Models.Served(name)
	v, err := r.Models.RollsBackTo(ctx, name)
	if errors.Is(err, artefacts.ErrNoVersion) && before.Version != "" {
		others := ""
		for _, v := range r.Models.All()[name] {
			if v != before {
				others += fmt.Sprintf(" (%s is there, and is no way back from it)", v.Version)
			}
		}
		return fmt.Errorf("no version of model %s that is still there served before %s%s: to let another of millrace model list serve, run millrace model pull %s VERSION --out FILE, and millrace model push --serve FILE: %w", name, before.Version, others, name, err)
	}
	switch {
	case errors.Is(err, artefacts.ErrNothingBefore) && len(r.Models.All()[name]) == 0:
		return fmt.Errorf("no model %q has been pushed, so that there is nothing to go back to; see millrace model list", name)
	case errors.Is(err, artefacts.ErrNothingBefore):
		return fmt.Errorf("no version of model %s serves, and none that is still there served before: millrace model push --serve PACK lets one serve; see millrace model list", name)
	case err != nil:
		return err
	}
	fmt.Fprintf(r.out, "%s would serve again, in place of %s\n", v, before.Version)
	if err := r.showUses(ctx, name); err != nil {
		return err
	}
	r.tellUnfit(ctx, v)
	changes, err := r.mayGoBack(ctx, before, v, serve)
	if err != nil {
		return err
	}
	leans.TellAltered(r.out, changes)
	if ok, err := meant(); !ok {
		return err
	}
	err = r.Feeds.Keeping(ctx, func(ctx context.Context) error {
		_, err := r.mayGoBack(ctx, before, v, serve)
		return err
	}, func(ctx context.Context) error { return goBack(ctx, r.Models, v) })
	if err != nil {
		return err
	}
	fmt.Fprintf(r.out, "%s serves again, in place of %s\n", v, before.Version)
	return nil
}

// mayGoBack returns what a rollback would change of running experiments; "" for nothing.
// It refuses a rollback that would give an experiment a fault. Unless meant is set, it
// also refuses one that changes a running experiment, and one to a condemned version.
func (r *rollout) mayGoBack(ctx context.Context, from, to artefacts.Version, meant bool) (string, error) {
	if x, is := r.Failed.Current()[to]; is && !meant {
		return "", &millrace.Error{
			Reason: millrace.ReasonInvalid, Field: "version", Detail: fmt.Sprintf("%s is condemned, and would not rank: %s", to, x.Why),
			WayOut: fmt.Sprintf("let it be asked again (millrace model release %s %s), let another serve (millrace model pull %[1]s VERSION --out FILE, and millrace model push --serve FILE), or add --serve", to.Name, to.Version),
		}
	}
	if err := r.Feeds.Keeps(ctx, leans.Change{Model: to}); err != nil {
		return "", err
	}
	changes, err := r.Changes(ctx, from, to)
	if err == nil && changes != "" && !meant {
		err = &millrace.Error{Reason: millrace.ReasonInvalid, Field: "experiment", Detail: changes, WayOut: "pause or stop it first, or add --serve: its evidence begins anew then"}
	}
	return changes, err
}

// tellUnfit prints what speaks against a version: it is condemned, or nodes have not
// admitted it. It refuses nothing; mayGoBack refuses a condemned one.
func (r *rollout) tellUnfit(ctx context.Context, v artefacts.Version) {
	if x, is := r.Failed.Current()[v]; is {
		fmt.Fprintln(r.out, r.condemnation(ctx, v, x))
	}
	for _, a := range r.answers(v) {
		if a.State != stateAdmitted {
			fmt.Fprintf(r.out, "%s: %s; others are asked\n", a.Node, a)
		}
	}
}

func (r *rollout) pull(ctx context.Context, args []string, out string) error {
	v, serves := r.Models.Served(args[0])
	if len(args) > 1 {
		var err error
		if v, err = r.version(args[0], args[1]); err != nil {
			return err
		}
	} else if !serves {
		return fmt.Errorf("no version of model %q serves; see millrace model list", args[0])
	}
	body, err := r.Models.Body(ctx, v)
	if err != nil {
		return err
	}
	if out == "" {
		out = v.Name + "-" + v.Version + ".tar.zst"
		if strings.ContainsAny(out, `/\`) {
			return fmt.Errorf("%q is not the name of a file; name one with --out", out)
		}
	}
	if err := command.WriteFile(out, body); err != nil {
		return err
	}
	fmt.Fprintf(r.out, "%s is in %s, %d bytes\n", v, out, len(body))
	return nil
}
