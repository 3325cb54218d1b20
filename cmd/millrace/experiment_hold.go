package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/relevance/experiment"
)

func experimentHold() *cobra.Command {
	var why string
	c := experimentOn(&cobra.Command{
		Use: "hold NAME", Short: "Veto the next step of an experiment's ramp, until it is resumed", Args: cobra.ExactArgs(1),
		Long: `Lets no coordinator raise the experiment's share until it is resumed. Its guards
pause it all the same, what was counted goes on to count, and a person may ramp
it.`,
		Example: `  millrace experiment hold fresher --why "the sale ends on Monday"`,
	}, func(ctx context.Context, t *trial, args []string) error { return t.hold(ctx, args[0], why) })
	c.Flags().StringVar(&why, "why", "", "what for, for others to read")
	return c
}

func (t *trial) hold(ctx context.Context, name, why string) error {
	if err := t.exists(ctx, name); err != nil {
		return err
	}
	hold := func() error {
		return t.trails.Hold(ctx, name, experiments.Hold{When: time.Now().UTC().Truncate(time.Millisecond), By: t.Who, Why: why})
	}
	if err := noted(t.note(ctx), audit.Entry{Act: "hold", On: "experiment " + name, Before: "may be ramped", After: "held: " + why}, hold); err != nil {
		return err
	}
	fmt.Fprintf(t.out, "experiment %s stays at its share until millrace experiment resume %s\n", name, name)
	return nil
}

func (t *trial) resume(ctx context.Context, name string) error {
	if err := t.exists(ctx, name); err != nil {
		return err
	}
	resume := func() error { return t.trails.Resume(ctx, name) }
	if err := noted(t.note(ctx), audit.Entry{Act: "resume", On: "experiment " + name, Before: "held", After: "may be ramped"}, resume); err != nil {
		return err
	}
	fmt.Fprintf(t.out, "experiment %s may be ramped again\n", name)
	return nil
}

// note writes down what a trail does not keep: it forgets who held an experiment
// when that goes on.
func (t *trial) note(ctx context.Context) func(audit.Entry) error {
	return func(e audit.Entry) error { return t.cluster.Note(ctx, e) }
}

func (t *trial) exists(ctx context.Context, name string) error {
	st, err := t.Read(ctx)
	if err == nil {
		_, err = st.Find(name)
	}
	return err
}

// printTrail prints why an experiment is where it is.
func printTrail(w io.Writer, e *experiment.Experiment, trail experiments.Trail, now time.Time) {
	if e.Guards == nil && trail.Looked == nil && len(trail.Decisions) == 0 {
		return
	}
	fmt.Fprintln(w)
	switch l := trail.Looked; {
	case l == nil && e.State == experiment.Running && e.Guards != nil:
		fmt.Fprintln(w, "no coordinator has looked at it: is one running, with exposures in its configuration?")
	case l != nil && e.State == experiment.Running:
		fmt.Fprintf(w, "%s looked %s ago: %s\n", l.By, now.Sub(l.When).Round(time.Second), l.Says)
		printInputs(w, l.Inputs)
	}
	if h := trail.Hold; h != nil {
		fmt.Fprintf(w, "HELD by %s since %s", h.By, h.When.Format(time.RFC3339))
		if h.Why != "" {
			fmt.Fprintf(w, ": %s", h.Why)
		}
		fmt.Fprintf(w, "; to let it go on: millrace experiment resume %s\n", e.Name)
	}
	for _, d := range trail.Decisions {
		fmt.Fprintf(w, "%s  %s %s: %s\n", d.When.Format(time.RFC3339), d.By, d.What, d.Why)
		printInputs(w, d.Inputs)
	}
}

func printInputs(w io.Writer, all []string) {
	for _, line := range all {
		fmt.Fprintf(w, "    %s\n", line)
	}
}
