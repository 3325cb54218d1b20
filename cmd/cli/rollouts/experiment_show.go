package rollouts

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/slot"
	"github.com/millrace/millrace/relevance/experiment"
)

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

// leftOut is a document that brokers take nothing of, or nothing but what they keep.
type leftOut struct {
	Document string `json:"document"`
	Fault    string `json:"fault"`
	WayOut   string `json:"way_out"`
	Bare     bool   `json:"bytes_missing,omitempty"` // brokers go on by those that they keep
}

func (l *leftOut) String() string {
	is := "is left out"
	if l.Bare {
		is = "cannot be read, and brokers go on by the bytes that they keep"
	}
	return fmt.Sprintf("document %s %s: %s; %s", l.Document, is, l.Fault, l.WayOut)
}

func leftOuts(st *experiments.State) []leftOut {
	all := []leftOut{}
	for _, name := range slices.Sorted(maps.Keys(st.Faults)) {
		if _, is := st.LeftOut(name); is {
			all = append(all, leftOut{name, st.Faults[name].Error(), st.WayBack(name), st.Bare(name)})
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
		lines = append(lines, l.String())
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
