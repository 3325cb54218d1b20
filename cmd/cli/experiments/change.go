package experiments

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/leans"
	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/slot"
	"github.com/millrace/millrace/relevance/experiment"
)

// documentName adds --name to c, which names the document that a file holds.
func documentName(c *cobra.Command, document *string) *cobra.Command {
	c.Flags().StringVar(document, "name", "", "of the document (default: the file's, without .yaml)")
	return c
}

func experimentDefine() *cobra.Command {
	var document string
	return documentName(experimentOn(&cobra.Command{
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
	}, func(ctx context.Context, t *opened, args []string) error {
		return t.define(ctx, args[0], document)
	}), &document)
}

func experimentDiff() *cobra.Command {
	var document string
	return documentName(experimentLook(&cobra.Command{Use: "diff FILE.yaml", Short: "What define would change, and who would move where", Args: cobra.ExactArgs(1)},
		func(ctx context.Context, t *opened, output *display.Form, args []string) error {
			return t.diff(ctx, output, args[0], document)
		}), &document)
}

func (t *opened) define(ctx context.Context, file, name string) error {
	name, c, err := ofFile(ctx, file, name, func(ctx context.Context, name string, src []byte) (c experiments.Changed, err error) {
		err = t.Steadily(ctx, func(ctx context.Context) (err error) {
			c, err = t.Define(ctx, name, src)
			return err
		})
		return c, err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(t.out, "document %s is defined, version %s\n", name, c.Version.Version)
	t.tell(c)
	st, err := t.Read(ctx)
	if err != nil {
		return err
	}
	wanting, err := t.Wanting(ctx, st, name)
	if err != nil {
		return err
	}
	for _, line := range append(t.Alike(ctx, st, name), wanting...) {
		fmt.Fprintf(t.out, "note: %s\n", line)
	}
	return leans.TellFaults(ctx, t.out, t.Cluster, t.Store)
}

func (t *opened) diff(ctx context.Context, output *display.Form, file, name string) error {
	name, c, err := ofFile(ctx, file, name, t.Check)
	if err != nil {
		return err
	}
	shown := struct {
		Document string   `json:"document"`
		Changes  []string `json:"changes"` // sentences
	}{name, display.List(c.Sentences)}
	return output.Write(t.out, shown, func(io.Writer) error { t.tell(c); return nil })
}

// ofFile calls do with the document in a file, and returns the document's name: name, or
// the file's if that is empty. The lines that experiment show writes above a document are
// no part of it.
func ofFile(ctx context.Context, file, name string, do func(context.Context, string, []byte) (experiments.Changed, error)) (string, experiments.Changed, error) {
	src, err := document.ReadFile(file)
	if err != nil {
		return name, experiments.Changed{}, err
	}
	if name == "" {
		name = strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
	}
	above := shownAbove.Find(src)
	blank := bytes.Repeat([]byte("\n"), bytes.Count(above, []byte("\n"))) // so that faults name the file's lines
	c, err := do(ctx, name, append(blank, src[len(above):]...))
	if err != nil {
		err = fmt.Errorf("%s: %w", file, err)
	}
	return name, c, err
}

func (t *opened) tell(c experiments.Changed) {
	if len(c.Sentences) == 0 {
		fmt.Fprintln(t.out, "no change")
	}
	for _, s := range c.Sentences {
		fmt.Fprintln(t.out, s)
	}
}

// asItIs is the value of --share if it is not given: the share stays as it is.
const asItIs = -1

// withShare adds --share to c: how many of an experiment's slots are in use, in percent.
func withShare(c *cobra.Command, share *float64) *cobra.Command {
	c.Flags().Float64Var(share, "share", asItIs, "of its slots that are in use, in percent, such as 5 (default: as it is)")
	c.Flags().Lookup("share").DefValue = "0" // the help shows no default that is 0
	return c
}

func experimentStart() *cobra.Command {
	var share float64
	return withShare(experimentOn(&cobra.Command{
		Use: "start NAME", Short: "Let an experiment assign, or go on after a pause", Args: cobra.ExactArgs(1),
		Example: `  millrace experiment start fresher --share 1`,
	}, func(ctx context.Context, t *opened, args []string) error {
		return t.steer(ctx, args[0], experiment.Running, share)
	}), &share)
}

func experimentRamp() *cobra.Command {
	var share float64
	ramp := withShare(experimentOn(&cobra.Command{
		Use: "ramp NAME --share PERCENT", Short: "Use more of an experiment's slots; nobody in it changes their variant", Args: cobra.ExactArgs(1),
		Example: `  millrace experiment ramp fresher --share 10`,
	}, func(ctx context.Context, t *opened, args []string) error { return t.steer(ctx, args[0], "", share) }), &share)
	if err := ramp.MarkFlagRequired("share"); err != nil {
		panic(err) // the flag is there
	}
	return ramp
}

// steer changes an experiment's state and its share, in percent of its slots. An empty
// state and the share asItIs stay as they are.
func (t *opened) steer(ctx context.Context, name string, state experiment.State, percent float64) error {
	share := -1
	if percent != asItIs {
		of := percent * slot.Count / 100
		if share = int(math.Round(of)); !(percent > 0 && percent <= 100) || share == 0 || math.Abs(of-float64(share)) > 1e-6 {
			return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "--share", Detail: fmt.Sprintf("%v percent of an experiment's slots", percent), WayOut: "say more than 0, in hundredths of a percent, and at most 100; to let nobody in, pause it"}
		}
	}
	to := func(now experiment.Experiment) (experiment.State, int, error) {
		to, at := state, share
		if to == "" {
			to = now.State
		}
		if at < 0 {
			at = now.Share
		}
		if to == experiment.Running && at == 0 && now.State != experiment.Stopped {
			return to, at, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "--share", Detail: fmt.Sprintf("experiment %s has no share, and would run for nobody", name), WayOut: fmt.Sprintf("say of how many: millrace experiment start %s --share 1", name)}
		}
		return to, at, nil
	}
	var c experiments.Changed
	err := t.Steadily(ctx, func(ctx context.Context) (err error) {
		c, err = t.Steer(ctx, name, to)
		return err
	})
	if err != nil {
		return err
	}
	t.tell(c)
	return leans.TellFaults(ctx, t.out, t.Cluster, t.Store)
}

// shownAbove matches the lines that experiment show writes above a document. They may be
// there several times.
var shownAbove = regexp.MustCompile(`^(# document [^\n]*, version [^\n]*\n(# [^\n]*\n)*?# [^\n]*: checksum [0-9a-f]+; [0-9]+ of [0-9]+ slots assign\n)+`)

func experimentDrop() *cobra.Command {
	var a command.Act
	c := &cobra.Command{Use: "drop DOCUMENT", Short: "Take a document whose experiments have stopped out of the cluster", Args: cobra.ExactArgs(1)}
	experimentOn(c, func(ctx context.Context, t *opened, args []string) error { return t.drop(ctx, args[0], a.Of(c)) })
	a.Flags(c)
	return c
}

func (t *opened) drop(ctx context.Context, name string, meant command.Meant) error {
	if done, err := leans.DropUnreadable(ctx, t.out, t.Documents, "document", name, meant); done || err != nil {
		return err
	}
	before, err := t.MayDrop(ctx, name)
	if err != nil {
		return err
	}
	fmt.Fprintf(t.out, "document %s would be dropped, with all its versions\n", name)
	for _, d := range before.Set.Experiments() {
		if d.Document == name {
			tellGone(t.out, &d.Experiment)
		}
	}
	if left, is := before.LeftOut(name); is {
		fmt.Fprintf(t.out, "it is left out by brokers that have started since, and goes on as it last was good on others: %v\n", before.Faults[name])
		if len(left) == 0 {
			fmt.Fprintln(t.out, "which experiments it has cannot be read")
		}
		for i := range left {
			tellGone(t.out, &left[i])
		}
	}
	if ok, err := meant(); !ok {
		return err
	}
	if err := t.Drop(ctx, name); err != nil {
		return err
	}
	fmt.Fprintf(t.out, "document %s is dropped\n", name)
	noted := t.trails.Noted() // read before the experiments: a trail that is begun later may be of a newer experiment
	st, err := t.Read(ctx)
	if err != nil {
		return err
	}
	var names []string
	for _, d := range st.Set.Experiments() {
		names = append(names, d.Experiment.Name)
	}
	for document := range st.Faults {
		if _, is := st.LeftOut(document); is {
			return nil // not all experiments of that document are known, so all trails are kept
		}
	}
	return t.trails.Keep(ctx, names, noted)
}

func tellGone(w io.Writer, e *experiment.Experiment) {
	fmt.Fprintf(w, "experiment %s, %s, goes with what was decided about it\n", e.Name, e.State)
}
