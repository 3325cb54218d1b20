package experiments

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/leans"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/slot"
	"github.com/millrace/millrace/relevance/experiment"
)

// experimentShown is an experiment as list and show tell of it.
type experimentShown struct {
	Name       string            `json:"name"`
	State      experiment.State  `json:"state"`
	Share      float64           `json:"share_percent"` // of its slots that are in use
	Layer      string            `json:"layer"`
	Feeds      []string          `json:"feeds"`
	Variants   []armShown        `json:"variants"`
	Document   string            `json:"document"`
	Version    string            `json:"version"`
	Checksum   string            `json:"checksum"`
	Assigning  int               `json:"slots_assigning"` // how many slots give their units a variant now
	Slots      int               `json:"slots"`
	Fault      string            `json:"fault,omitempty"`      // why brokers give nobody a variant
	Unapplied  string            `json:"unapplied,omitempty"`  // why answers count for no variant
	Unreadable []string          `json:"unreadable,omitempty"` // sentences: which of its feeds and models cannot be read, and why
	Paused     *leans.EventShown `json:"paused,omitempty"`     // who paused it, and why; nil: it is not paused, or nobody knows
	Held       *experiments.Hold `json:"held,omitempty"`       // who holds its ramp, and why; only list sets it
	Definition any               `json:"definition,omitempty"`
}

// armShown is a variant of an experiment.
type armShown struct {
	Name   string  `json:"name"`
	Weight float64 `json:"weight_percent"`
}

func (t *opened) shown(ctx context.Context, st *experiments.State, d *experiment.Defined) (x experimentShown, err error) {
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
		x.Paused = &leans.EventsShown([]ledger.Event{by})[0]
	}
	if x.Unapplied, err = t.Unapplied(ctx, e); err != nil {
		return x, err
	}
	x.Unreadable, err = t.Unread(ctx, e)
	return x, err
}

// pausedBy returns who paused an experiment, and why. ok is false if it is not paused, or
// neither its history nor its trail tells.
func (t *opened) pausedBy(ctx context.Context, of *experiment.Defined) (by ledger.Event, ok bool, err error) {
	if of.Experiment.State != experiment.Paused {
		return by, false, nil
	}
	if by, ok, err = t.PausedBy(ctx, of); ok || err != nil {
		return by, ok, err
	}
	trail, unread := t.trails.Of(of.Experiment.Name)
	if d := trail.PausedLast(of.Experiment.Name); d != nil && unread == nil {
		return ledger.Event{What: ledger.Served, Who: fmt.Sprintf("coordinator %s: %s: %s", d.By, d.What, d.Why), When: d.When}, true, nil
	}
	return by, false, nil
}

func (t *opened) list(ctx context.Context, output *display.Form) error {
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
		LeftOut     []leans.LeftOut   `json:"left_out"`
		NotWatched  []string          `json:"not_watched"` // a line for each experiment with guards that no coordinator watches
	}{[]experimentShown{}, leans.LeftOuts(st), display.List(unwatched)}
	for _, d := range st.Set.Experiments() {
		x, err := t.shown(ctx, st, &d)
		if err != nil {
			return err
		}
		if trail, _ := t.trails.Of(x.Name); x.State != experiment.Stopped && d.Experiment.Ramp != nil {
			x.Held = trail.Hold
		}
		shown.Experiments = append(shown.Experiments, x)
	}
	lines, err := t.Notes(ctx, st)
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
			if e.Held != nil {
				display.Printf(w, "experiment %s is %s\n", e.Name, heldLine(e.Held, e.Name))
			}
		}
		for _, line := range append(lines, shown.NotWatched...) {
			fmt.Fprintln(w, line)
		}
		return nil
	})
}

func (t *opened) show(ctx context.Context, output *display.Form, name string) error {
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
			fmt.Fprintf(w, "# %s\n", leans.UnfitLine(&d))
		}
		if shown.Unapplied != "" {
			fmt.Fprintf(w, "# %s\n", leans.UnappliedLine(&d.Experiment, shown.Unapplied))
		}
		for _, line := range shown.Unreadable {
			fmt.Fprintf(w, "# %s\n", strings.ReplaceAll(line, "\n", "\n# "))
		}
		fmt.Fprintf(w, "# %s: checksum %s; %d of %d slots assign\n", name, shown.Checksum, shown.Assigning, shown.Slots)
		_, err := w.Write(st.Texts[d.Document])
		return err
	})
}

func experimentHistory() *cobra.Command {
	return experimentLook(&cobra.Command{Use: "history NAME", Short: "Who changed an experiment's document, by the name of either, and when", Args: cobra.ExactArgs(1),
		Long: `Tells of each version of a document, by its own name or that of an experiment in
it: who put it in place, and when; also once it is dropped. A name of both is the
document's, which a note says. Beside these it tells who held and resumed its
experiments, be it a restoration of etcd; of the models that these compare or set weights of, when another
version began to rank, or was condemned; and of their feeds, when another
definition changed what their variants leave to it, whose evidence begins anew
then.`},
		func(ctx context.Context, t *opened, output *display.Form, args []string) error {
			return t.history(ctx, output, args[0])
		})
}

// history shows the history of a document, which may be dropped. name is the document's,
// or that of an experiment that is or was in it.
func (t *opened) history(ctx context.Context, output *display.Form, name string) error {
	st, err := t.Read(ctx)
	if err != nil {
		return err
	}
	in := st.DocumentOf(name)
	if len(t.Documents.All()[name]) > 0 {
		if in != "" && in != name {
			fmt.Fprintf(t.notes, "NOTE: this is of document %s; experiment %[1]s stands in document %[2]s, of which millrace experiment history %[2]s tells\n", name, in)
		}
	} else {
		dropped := ""
		if len(t.Documents.Histories()[name]) > 0 {
			dropped = name
		}
		if name = cmp.Or(in, dropped, st.Had(name)); name == "" {
			return &millrace.Error{Reason: millrace.ReasonUnknown, Field: "name", Detail: "there is no experiment and no document of this name", WayOut: "millrace experiment list names what there is"}
		}
	}
	events, err := t.Documents.History(ctx, name)
	if err != nil {
		return err
	}
	of := st.Of(name)
	r, err := t.Serving(ctx)
	if err != nil {
		return err
	}
	others, err := r.BecameOthers(ctx, of, events[0].When)
	if err != nil {
		return err
	}
	events = append(append(events, t.said(of)...), others...)
	slices.SortStableFunc(events, func(a, b ledger.Event) int { return a.When.Compare(b.When) })
	return output.Write(t.out, leans.EventsShown(events), func(w io.Writer) error { return leans.WriteEvents(w, events) })
}
