package experiments

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/limits"
	"github.com/millrace/millrace/cmd/cli/ask"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/internal/nodewire"
	"github.com/millrace/millrace/relevance/experiment"
)

// asked is the viewer or the entity that explain is asked about, and the feed.
type asked struct {
	feed, viewer, entity string
	attributes           map[string]string
}

// explained is what explain says of an experiment.
type explained struct {
	Experiment string           `json:"experiment"`
	Layer      string           `json:"layer"`
	Variant    string           `json:"variant,omitempty"` // empty: the viewer or entity is not in the experiment
	Cause      experiment.Cause `json:"cause"`
	Slot       *int             `json:"slot,omitempty"`      // of the viewer or entity in the layer; nil: it has none there
	Clause     string           `json:"clause,omitempty"`    // the clause of the targeting that was not true
	Why        string           `json:"why"`                 // all of this, as a sentence
	Unapplied  string           `json:"unapplied,omitempty"` // why the variant is not applied now
}

func experimentExplain() *cobra.Command {
	var whom asked
	explain := experimentLook(&cobra.Command{
		Use: "explain --feed NAME --viewer ID|--entity ID", Short: "Say of every experiment why a viewer or an entity is in it, or why not", Args: cobra.NoArgs,
		Example: `  millrace experiment explain --feed home --viewer member:42 --attribute country=de`,
	}, func(ctx context.Context, t *opened, output *display.Form, _ []string) error {
		return t.explain(ctx, output, whom)
	})
	explain.Flags().StringVar(&whom.feed, "feed", "", "the feed that is asked for")
	explain.Flags().StringVar(&whom.viewer, "viewer", "", "the viewer's id")
	explain.Flags().StringVar(&whom.entity, "entity", "", "an entity, in layers that divide entities")
	explain.Flags().StringToStringVar(&whom.attributes, "attribute", nil, ask.AttributeUsage)
	if err := explain.MarkFlagRequired("feed"); err != nil {
		panic(err) // the flag is there
	}
	explain.MarkFlagsOneRequired("viewer", "entity")
	explain.MarkFlagsMutuallyExclusive("viewer", "entity")
	return explain
}

func (t *opened) explain(ctx context.Context, output *display.Form, whom asked) error {
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
			if e.Unapplied, err = t.Unapplied(ctx, &d.Experiment); err != nil {
				return err
			}
		}
		shown = append(shown, e)
	}
	return output.Write(t.out, shown, func(w io.Writer) error {
		dealing, drafts := shown[:0:0], 0
		for _, x := range shown {
			if d, err := st.Find(x.Experiment); x.Cause == experiment.CauseState && err == nil && d.Experiment.State == experiment.Draft {
				drafts++ // a draft that does not force a variant on this viewer or entity
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
another experiment of the layer there. The targeting is in it as the definition has
it, in CEL, and no program here judges it: say of each viewer whether it takes them
(whom the experiment names has their variant all the same). In a layer of an attribute
say the viewer's id too, by which viewers are named. A rule is old with the next change.`,
	}
	display.Flag(c, new(display.Form), "json")
	return experimentOn(c, func(ctx context.Context, t *opened, args []string) error { return t.rule(ctx, args[0]) })
}

func (t *opened) rule(ctx context.Context, name string) error {
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
