package rollouts

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/limits"
	"github.com/millrace/millrace/cmd/cli/ask"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/nodewire"
	"github.com/millrace/millrace/internal/slot"
	"github.com/millrace/millrace/relevance/experiment"
)

// Experiments is the command of experiments.
func Experiments() *cobra.Command {
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
for a whole answer, are refused there, and so are targeting, ramp and guards.`,
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
		explain, experimentStatus(),
		experimentRule(),
		experimentLook(&cobra.Command{Use: "history NAME", Short: "Who changed an experiment's document, by the name of either, and when", Args: cobra.ExactArgs(1),
			Long: `Tells of each version of a document, by its own name or that of an experiment in
it: who put it in place, and when; also once it is dropped. Beside these it tells who held and resumed its
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
	*experiments.Store
	cluster *cluster.Client
	feeds   *feedStore
	trails  *experiments.Trails
	out     io.Writer
	rolled  *rollout // nil: not read yet
}

// experimentOn makes a command that runs on a cluster.
func experimentOn(c *cobra.Command, run func(context.Context, *trial, []string) error) *cobra.Command {
	clusters.On(c, func(ctx context.Context, cm *clusters.Flags, cl *cluster.Client, args []string) error {
		t, err := openTrial(ctx, cm, cl, c.OutOrStdout())
		if err != nil {
			return err
		}
		clusters.TellFaults(c, t.Documents, t.feeds.versions)
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

func openTrial(ctx context.Context, cm *clusters.Flags, cl *cluster.Client, out io.Writer) (*trial, error) {
	documents, err := cl.Artefacts(ctx, experiments.Kind)
	if err != nil {
		return nil, err
	}
	feeds, err := cl.Artefacts(ctx, feeds.Kind)
	if err != nil {
		return nil, err
	}
	store := &feedStore{cm, cl, feeds}
	known, err := newReferred(ctx, store)
	if err != nil {
		return nil, err
	}
	trails, err := experiments.OpenTrails(ctx, cl)
	return &trial{Store: &experiments.Store{Documents: documents, Known: known, Who: clusters.Who()}, cluster: cl, feeds: store, trails: trails, out: out}, err
}

// steadily has an experiment change by what it leans on, which does not change
// meanwhile.
func (t *trial) steadily(ctx context.Context, change func(ctx context.Context) error) error {
	return t.cluster.Steady(ctx, leaning, func(ctx context.Context) error {
		err := t.feeds.versions.Settle(ctx)
		if err == nil {
			t.Known, err = newReferred(ctx, t.feeds)
		}
		if err != nil {
			return err
		}
		return change(ctx)
	})
}

// referred is what documents may refer to, as the cluster has it now.
type referred struct {
	ctx      context.Context
	feeds    *feedStore
	models   []string
	versions *cluster.Artefacts // of models
	asked    map[string]error   // filters that index nodes were asked about
	private  map[string]bool    // feeds that were looked at
}

func newReferred(ctx context.Context, feeds *feedStore) (*referred, error) {
	models, err := feeds.models(ctx)
	if err != nil {
		return nil, err
	}
	versions, err := feeds.cluster.Artefacts(ctx, indexnode.ModelsKind)
	return &referred{ctx: ctx, feeds: feeds, models: models, versions: versions, asked: map[string]error{}, private: map[string]bool{}}, err
}

func (k *referred) HasFeed(name string) bool {
	_, defined := k.feeds.versions.Serving()[name]
	return defined || slices.ContainsFunc(feeds.BuiltIn(), func(f feeds.Feed) bool { return f.Name == name })
}

// IsPrivate reads the feed's definition. One that cannot be read is taken for
// private.
func (k *referred) IsPrivate(name string) bool {
	private, asked := k.private[name]
	if v, defined := k.feeds.versions.Serving()[name]; defined && !asked {
		d := k.feeds.read(k.ctx, v)
		private = d.fault != nil || d.Private
		k.private[name] = private
	}
	return private
}

func (k *referred) HasModel(name string) bool { return slices.Contains(k.models, name) }

// CheckFilter asks the index nodes, once for each filter.
func (k *referred) CheckFilter(src string) error {
	err, asked := k.asked[src]
	if asked {
		return err
	}
	checks, done, err := k.feeds.checks(k.ctx)
	defer done()
	if err == nil {
		_, err = feeds.Check(k.ctx, feeds.Feed{Model: "recency", Filter: src}, checks)
	}
	k.asked[src] = err
	return err
}

// CheckWeights looks into the version that serves.
func (k *referred) CheckWeights(feed, model string, set map[string]float64) error {
	if model == "" {
		var err error
		if model, err = k.modelOf(feed); err != nil {
			return err
		}
	}
	return servedWeighs(k.ctx, k.versions, model, set)
}

func (k *referred) modelOf(feed string) (string, error) {
	d, err := k.feeds.find(k.ctx, []string{feed})
	if err == nil {
		err = d.fault
	}
	return d.Model, err
}

func (t *trial) define(ctx context.Context, file, name string) error {
	name, c, err := ofFile(ctx, file, name, func(ctx context.Context, name string, src []byte) (c experiments.Changed, err error) {
		err = t.steadily(ctx, func(ctx context.Context) (err error) {
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
	for _, line := range t.alike(ctx, st, name) {
		fmt.Fprintf(t.out, "note: %s\n", line)
	}
	return tellFaults(ctx, t.out, t.cluster)
}

func (t *trial) diff(ctx context.Context, output *display.Form, file, name string) error {
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

// ofFile does something with the document of a file, whose name is the file's
// unless it is said. What show has written above it is no part of it.
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

// tellFaults tells of experiments with a fault, or that are not applied, once something
// was changed: schemas and condemned versions are no part of the transaction, and may
// have changed meanwhile.
func tellFaults(ctx context.Context, w io.Writer, cl *cluster.Client) error {
	t, err := openTrial(ctx, nil, cl, w)
	if err != nil {
		return err
	}
	st, err := t.Read(ctx)
	if err != nil {
		return err
	}
	lines, err := t.notes(ctx, st)
	for _, line := range lines {
		fmt.Fprintf(w, "note: %s\n", line)
	}
	return err
}

func (t *trial) tell(c experiments.Changed) {
	if len(c.Sentences) == 0 {
		fmt.Fprintln(t.out, "no change")
	}
	for _, s := range c.Sentences {
		fmt.Fprintln(t.out, s)
	}
}

// asItIs is a share that stays.
const asItIs = -1

// steer changes an experiment's state, "" for the one that it has, and its
// share in percent.
func (t *trial) steer(ctx context.Context, name string, state experiment.State, percent float64) error {
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
		return to, at, nil
	}
	var c experiments.Changed
	err := t.steadily(ctx, func(ctx context.Context) (err error) {
		c, err = t.Steer(ctx, name, to)
		return err
	})
	if err != nil {
		return err
	}
	t.tell(c)
	return tellFaults(ctx, t.out, t.cluster)
}

// experimentShown is an experiment as list and show tell of it.
type experimentShown struct {
	Name       string           `json:"name"`
	State      experiment.State `json:"state"`
	Share      float64          `json:"share_percent"` // of its slots
	Layer      string           `json:"layer"`
	Feeds      []string         `json:"feeds"`
	Variants   []armShown       `json:"variants"`
	Document   string           `json:"document"`
	Version    string           `json:"version"`
	Checksum   string           `json:"checksum"`
	Assigning  int              `json:"slots_assigning"` // of all slots
	Slots      int              `json:"slots"`
	Fault      string           `json:"fault,omitempty"`     // so that brokers give nobody a variant
	Unapplied  string           `json:"unapplied,omitempty"` // why answers count for no variant
	Paused     *eventShown      `json:"paused,omitempty"`    // by whom, and why
	Definition any              `json:"definition,omitempty"`
}

type armShown struct {
	Name   string  `json:"name"`
	Weight float64 `json:"weight_percent"`
}

func (t *trial) shown(ctx context.Context, st *experiments.State, d *experiment.Defined) (x experimentShown, err error) {
	e := &d.Experiment
	x = experimentShown{
		Name: e.Name, State: e.State, Share: float64(e.Share) / 100, Layer: e.Layer, Feeds: display.List(e.Feeds), Variants: []armShown{},
		Document: d.Document, Version: st.Versions[d.Document].Version, Checksum: d.Checksum, Slots: slot.Count, Fault: d.Unfit,
	}
	for _, a := range d.Rule.Arms {
		x.Variants = append(x.Variants, armShown{a.Variant, float64(a.Weight) / 100})
	}
	for _, r := range d.Rule.Slots {
		x.Assigning += r.To - r.From + 1
	}
	by, paused, err := t.pausedBy(ctx, d)
	if err != nil {
		return x, err
	}
	if paused {
		x.Paused = &eventsShown([]cluster.Event{by})[0]
	}
	x.Unapplied, err = t.unapplied(ctx, e)
	return x, err
}

// pausedBy returns who paused an experiment, and why, if it is paused and its history
// tells it.
func (t *trial) pausedBy(ctx context.Context, of *experiment.Defined) (by cluster.Event, ok bool, err error) {
	if of.Experiment.State != experiment.Paused {
		return by, false, nil
	}
	return t.PausedBy(ctx, of)
}

// leftOut is a document that brokers take nothing of.
type leftOut struct {
	Document string `json:"document"`
	Fault    string `json:"fault"`
	WayOut   string `json:"way_out"`
}

func leftOuts(st *experiments.State) []leftOut {
	all := []leftOut{}
	for _, name := range slices.Sorted(maps.Keys(st.Faults)) {
		if _, is := st.LeftOut(name); is {
			all = append(all, leftOut{name, st.Faults[name].Error(), st.WayBack(name)})
		}
	}
	return all
}

func (t *trial) list(ctx context.Context, output *display.Form) error {
	st, err := t.Read(ctx)
	if err != nil {
		return err
	}
	unwatched, _, err := t.unwatchedLines(ctx, st)
	if err != nil {
		return err
	}
	shown := struct {
		Experiments []experimentShown `json:"experiments"`
		LeftOut     []leftOut         `json:"left_out"`
		NotWatched  []string          `json:"not_watched"` // who runs with guards, and why
	}{[]experimentShown{}, leftOuts(st), display.List(unwatched)}
	for _, d := range st.Set.Experiments() {
		x, err := t.shown(ctx, st, &d)
		if err != nil {
			return err
		}
		shown.Experiments = append(shown.Experiments, x)
	}
	lines, err := t.notes(ctx, st)
	if err != nil {
		return err
	}
	return output.Write(t.out, shown, func(w io.Writer) error {
		table := display.NewTable(w)
		table.Printf("NAME\tSTATE\tSHARE\tLAYER\tFEEDS\tVARIANTS\tDOCUMENT\n")
		for _, e := range shown.Experiments {
			var names []string
			for _, a := range e.Variants {
				names = append(names, fmt.Sprintf("%s %g%%", a.Name, a.Weight))
			}
			table.Printf("%s\t%s\t%g%%\t%s\t%s\t%s\t%s %s\n", e.Name, e.State, e.Share, e.Layer, strings.Join(e.Feeds, ","), strings.Join(names, ", "), e.Document, e.Version)
		}
		if err := table.Flush(); err != nil {
			return err
		}
		for _, e := range shown.Experiments {
			if e.Paused != nil {
				display.Printf(w, "experiment %s is paused since %s by %s\n", e.Name, e.Paused.When.Format(time.RFC3339), e.Paused.Who)
			}
		}
		for _, line := range append(lines, shown.NotWatched...) {
			fmt.Fprintln(w, line)
		}
		return nil
	})
}

// faultLines says of each document with a fault what brokers make of it, and the way
// out.
func faultLines(st *experiments.State) (lines []string) {
	for _, l := range leftOuts(st) {
		lines = append(lines, fmt.Sprintf("document %s is left out: %s; %s", l.Document, l.Fault, l.WayOut))
	}
	for _, d := range st.Set.Experiments() {
		if d.Unfit != "" {
			lines = append(lines, unfitLine(&d))
		}
	}
	return lines
}

func unfitLine(d *experiment.Defined) string {
	return fmt.Sprintf("experiment %s, %s, has a fault, and brokers give nobody a variant of it: %s; mend that, or stop it: millrace experiment stop %s", d.Experiment.Name, d.Experiment.State, d.Unfit, d.Experiment.Name)
}

func (t *trial) show(ctx context.Context, output *display.Form, name string) error {
	st, err := t.Read(ctx)
	if err != nil {
		return err
	}
	d, err := st.Find(name)
	if err != nil {
		return err
	}
	shown, err := t.shown(ctx, st, &d)
	if err != nil {
		return err
	}
	shown.Definition = display.Object(st.Texts[d.Document])
	return output.Write(t.out, shown, func(w io.Writer) error {
		fmt.Fprintf(w, "# document %s, version %s\n", shown.Document, shown.Version)
		if d.Unfit != "" {
			fmt.Fprintf(w, "# %s\n", unfitLine(&d))
		}
		if shown.Unapplied != "" {
			fmt.Fprintf(w, "# %s\n", unappliedLine(&d.Experiment, shown.Unapplied))
		}
		fmt.Fprintf(w, "# %s: checksum %s; %d of %d slots assign\n", name, shown.Checksum, shown.Assigning, shown.Slots)
		_, err := w.Write(st.Texts[d.Document])
		return err
	})
}

// shownAbove is what show writes above a document, once or more often.
var shownAbove = regexp.MustCompile(`^(# document [^\n]*, version [^\n]*\n(# [^\n]*\n)*?# [^\n]*: checksum [0-9a-f]+; [0-9]+ of [0-9]+ slots assign\n)+`)

// asked is whom explain is asked about.
type asked struct {
	feed, viewer, entity string
	attributes           map[string]string
}

// explained is what explain says of an experiment.
type explained struct {
	Experiment string           `json:"experiment"`
	Layer      string           `json:"layer"`
	Variant    string           `json:"variant,omitempty"` // empty: not in
	Cause      experiment.Cause `json:"cause"`
	Slot       *int             `json:"slot,omitempty"`
	Clause     string           `json:"clause,omitempty"` // of the targeting, the one that was not true
	Why        string           `json:"why"`              // all of it, as a sentence
	Unapplied  string           `json:"unapplied,omitempty"`
}

func (t *trial) explain(ctx context.Context, output *display.Form, whom asked) error {
	st, err := t.Read(ctx)
	if err != nil {
		return err
	}
	if !t.Known.HasFeed(whom.feed) {
		return &millrace.Error{Reason: millrace.ReasonUnknown, Field: "--feed", Detail: fmt.Sprintf("there is no feed %.100q", whom.feed), WayOut: "name one of millrace feed list"}
	}
	if err := limits.CheckViewerID(whom.viewer); err != nil {
		return err
	}
	sent, err := ask.Attributes(whom.attributes)
	if err != nil {
		return err
	}
	v, err := nodewire.Viewer(&feedv1.Viewer{Id: whom.viewer, Attributes: sent})
	if err != nil {
		return err
	}
	all := st.Set.Explain(whom.feed, v)
	if whom.entity != "" {
		all = st.Set.ExplainEntity(whom.feed, millrace.Entity(whom.entity))
	}
	shown := []explained{}
	for _, x := range all {
		e := explained{Experiment: x.Experiment, Layer: x.Layer, Variant: x.Variant, Cause: x.Cause, Clause: x.Clause, Why: x.Why}
		if x.Slot >= 0 {
			e.Slot = &x.Slot
		}
		if d, err := st.Find(x.Experiment); err == nil && x.Variant != "" {
			if e.Unapplied, err = t.unapplied(ctx, &d.Experiment); err != nil {
				return err
			}
		}
		shown = append(shown, e)
	}
	return output.Write(t.out, shown, func(w io.Writer) error {
		dealing, drafts := shown[:0:0], 0
		for _, x := range shown {
			if d, err := st.Find(x.Experiment); x.Cause == experiment.CauseState && err == nil && d.Experiment.State == experiment.Draft {
				drafts++ // which does not name whom was asked about
				continue
			}
			dealing = append(dealing, x)
		}
		if err := writeExplained(w, dealing); err != nil {
			return err
		}
		switch {
		case drafts == 1:
			display.Printf(w, "1 draft assigns only those whom it forces, and this is none of them\n")
		case drafts > 1:
			display.Printf(w, "%d drafts assign only those whom they force, and this is none of them\n", drafts)
		}
		return nil
	})
}

func writeExplained(w io.Writer, all []explained) error {
	t := display.NewTable(w)
	t.Printf("EXPERIMENT\tVARIANT\tWHY\n")
	for _, e := range all {
		why := e.Why
		if e.Unapplied != "" {
			why += "; " + e.Unapplied
		}
		t.Printf("%s\t%s\t%s\n", e.Experiment, cmp.Or(e.Variant, "-"), why)
	}
	return t.Flush()
}

func experimentRule() *cobra.Command {
	c := &cobra.Command{
		Use: "rule NAME", Short: "What another program needs to tell variants by itself, as JSON", Args: cobra.ExactArgs(1),
		Long: `Prints the slots that an experiment uses now, its variants and whom it forces, as
client.ReadRule of the Go client and docs/assign.py take it, and by feed who has
another experiment of the layer there. It does not have the targeting, and is old
with the next change.`,
	}
	display.Flag(c, new(display.Form), "json")
	return experimentOn(c, func(ctx context.Context, t *trial, args []string) error { return t.rule(ctx, args[0]) })
}

func (t *trial) rule(ctx context.Context, name string) error {
	st, err := t.Read(ctx)
	if err != nil {
		return err
	}
	d, err := st.Find(name)
	if err != nil {
		return err
	}
	return display.WriteJSON(t.out, d.Rule)
}

// history tells of a document by its own name, or by that of an experiment that is or
// was in it, also once it is dropped.
func (t *trial) history(ctx context.Context, output *display.Form, name string) error {
	st, err := t.Read(ctx)
	if err != nil {
		return err
	}
	if len(t.Documents.All()[name]) == 0 {
		dropped := ""
		if len(t.Documents.Histories()[name]) > 0 {
			dropped = name
		}
		if name = cmp.Or(st.DocumentOf(name), dropped, st.Had(name)); name == "" {
			return &millrace.Error{Reason: millrace.ReasonUnknown, Field: "name", Detail: "there is no experiment and no document of this name", WayOut: "millrace experiment list names what there is"}
		}
	}
	events, err := t.Documents.History(ctx, name)
	if err != nil {
		return err
	}
	of := st.Of(name)
	r, err := t.rollout(ctx)
	if err != nil {
		return err
	}
	others, err := r.becameOthers(ctx, of, events[0].When)
	if err != nil {
		return err
	}
	events = append(append(events, t.said(of)...), others...)
	slices.SortStableFunc(events, func(a, b cluster.Event) int { return a.When.Compare(b.When) })
	return output.Write(t.out, eventsShown(events), func(w io.Writer) error { return writeEvents(w, events) })
}

func experimentDrop() *cobra.Command {
	var a command.Act
	c := &cobra.Command{Use: "drop DOCUMENT", Short: "Take a document whose experiments have stopped out of the cluster", Args: cobra.ExactArgs(1)}
	experimentOn(c, func(ctx context.Context, t *trial, args []string) error { return t.drop(ctx, args[0], a.Of(c)) })
	a.Flags(c)
	return c
}

func (t *trial) drop(ctx context.Context, name string, meant command.Meant) error {
	if done, err := dropUnreadable(ctx, t.out, t.Documents, "document", name, meant); done || err != nil {
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
			return nil // whose experiments are not all known
		}
	}
	return t.trails.Keep(ctx, names)
}

func tellGone(w io.Writer, e *experiment.Experiment) {
	fmt.Fprintf(w, "experiment %s, %s, goes with what was decided about it\n", e.Name, e.State)
}

// experimentsUsing returns the experiments that need something that is to be
// dropped. Documents with a fault need nothing.
func experimentsUsing(ctx context.Context, cl *cluster.Client, uses func(*experiment.Set) []string) ([]string, error) {
	set, err := experimentSet(ctx, cl)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, name := range uses(set) {
		all = append(all, "experiment "+name)
	}
	return all, nil
}
