package experiments

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/relevance/experiment"
)

func experimentHold() *cobra.Command {
	var why string
	c := experimentOn(&cobra.Command{
		Use: "hold NAME", Short: "Veto the next step of an experiment's ramp, until it is resumed", Args: cobra.ExactArgs(1),
		Long: `Lets no coordinator raise the experiment's share until it is resumed. Its guards
pause it all the same, what was counted goes on to count, and a person may ramp
it. Status and history tell who held it and who resumed it, and list who holds it.`,
		Example: `  millrace experiment hold fresher --why "the sale ends on Monday"`,
	}, func(ctx context.Context, t *opened, args []string) error { return t.hold(ctx, args[0], why) })
	c.Flags().StringVar(&why, "why", "", "what for, for others to read")
	return c
}

func (t *opened) hold(ctx context.Context, name, why string) error {
	of, err := t.find(ctx, name)
	if err != nil {
		return err
	}
	if of.Rule.Unit == "entity" {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "experiment", Detail: fmt.Sprintf("%s divides entities, and no coordinator ramps it: they compare viewers", name), WayOut: "its share stays as it is until somebody ramps it"}
	}
	e := &of.Experiment
	if e.State == experiment.Stopped {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "experiment", Detail: fmt.Sprintf("%s is stopped, and has no next step", name), WayOut: "hold one of millrace experiment list that runs"}
	}
	if err := t.trails.Hold(ctx, name, experiments.Hold{When: time.Now().UTC().Truncate(time.Millisecond), By: t.Who, Why: why}); err != nil {
		return err
	}
	switch {
	case e.Ramp == nil:
		fmt.Fprintf(t.out, "experiment %s has no ramp, so that only people change its share; one that it is given is held until millrace experiment resume %[1]s\n", name)
	case e.Ramp.Next(e.Share) == 0:
		fmt.Fprintf(t.out, "experiment %s is at the last step of its ramp; one that it is given is held until millrace experiment resume %[1]s\n", name)
	default:
		fmt.Fprintf(t.out, "experiment %s stays at its share until millrace experiment resume %[1]s\n", name)
	}
	return nil
}

func (t *opened) resume(ctx context.Context, name string) error {
	of, err := t.find(ctx, name)
	if err != nil {
		return err
	}
	if err := t.trails.Resume(ctx, name, t.Who, time.Now().UTC().Truncate(time.Millisecond)); err != nil {
		return err
	}
	if of.Experiment.State == experiment.Stopped {
		fmt.Fprintf(t.out, "experiment %s is not held any more; it is stopped, and has no next step\n", name)
		return nil
	}
	fmt.Fprintf(t.out, "experiment %s may be ramped again\n", name)
	return nil
}

func (t *opened) find(ctx context.Context, name string) (experiment.Defined, error) {
	st, err := t.Read(ctx)
	if err != nil {
		return experiment.Defined{}, err
	}
	return st.Find(name)
}

// said returns the decisions about experiments that the history of their document does not
// have, as events to be added to it: that people, or a restoration of etcd, held or resumed
// a ramp, or that evidence is gone. Of an experiment whose trail cannot be read it returns
// none.
func (t *opened) said(of []experiment.Experiment) (all []ledger.Event) {
	for i := range of {
		trail, err := t.trails.Of(of[i].Name)
		if err != nil {
			continue
		}
		for _, d := range trail.Decisions {
			if !d.Apart() {
				continue
			}
			who := d.By
			if d.Why != "" {
				who += ": " + d.Why
			}
			all = append(all, ledger.Event{What: ledger.Change(d.What), Version: "-", Who: who, When: d.When})
		}
	}
	return all
}

// watch is an experiment's trail (what coordinators noted of it), and whether a
// coordinator watches it.
type watch struct {
	experiments.Trail
	runs      time.Time // since when it runs, or a later time that is still before the look that is due; zero: it does not run with guards, or its history does not tell
	unwatched string    // why nobody knows whether the experiment hurts; "": it is watched, or it does not run with guards
}

// watching returns an experiment's trail, and whether a coordinator watches it.
func (t *opened) watching(ctx context.Context, of *experiment.Defined) (w watch, err error) {
	var unread error
	w.Trail, unread = t.trails.Of(of.Experiment.Name)
	if of.Experiment.Guards == nil || of.Experiment.State != experiment.Running {
		return w, nil
	}
	now := time.Now()
	due := now.Add(-experiments.LooksEvery)
	if w.Looked != nil && w.Looked.When.Before(due) {
		due = w.Looked.When
	}
	if w.runs, err = t.Runs(ctx, of, due); err == nil {
		w.unwatched = w.Unwatched(unread, w.runs, now)
	}
	return w, err
}

// unwatchedLines returns a line for each experiment that runs with guards and that no
// coordinator watches, with the reason. outcomes says of each one that is watched how old
// the newest outcomes are that its guards judge by.
func (t *opened) unwatchedLines(ctx context.Context, st *experiments.State) (lines []string, outcomes string, err error) {
	for _, d := range st.Set.Experiments() {
		w, err := t.watching(ctx, &d)
		if err != nil {
			return nil, "", err
		}
		name := d.Experiment.Name
		switch guarded := d.Experiment.Guards != nil && d.Experiment.State == experiment.Running; {
		case w.unwatched != "":
			lines = append(lines, fmt.Sprintf("experiment %s is NOT WATCHED: %s", name, w.unwatched))
		case guarded && w.LookedSince(w.runs) && w.Looked.Outcomes != nil:
			outcomes += fmt.Sprintf("; outcomes of %s: %s", name, newestOutcome(w.Looked.Outcomes, time.Now()))
		}
	}
	return lines, outcomes, nil
}

// printWatch prints whether an experiment is watched, and what its next step waits for.
func printWatch(out io.Writer, e *experiment.Experiment, w *watch, now time.Time) {
	if w.unwatched != "" {
		display.Printf(out, "NOT WATCHED: %s\n", w.unwatched)
	}
	switch l := w.Looked; {
	case e.State != experiment.Running:
	case w.LookedSince(w.runs):
		then := ""
		if l.Share != 0 && l.Share != e.Share { // the next look is seconds away
			then = fmt.Sprintf(", when it had %g%% of its slots", float64(l.Share)/100)
		}
		display.Printf(out, "%s looked %s ago%s: %s\n", l.By, now.Sub(l.When).Round(time.Second), then, l.Says)
		printInputs(out, l.Inputs)
		printEvidence(out, l, now)
	case w.unwatched == "" && e.Guards != nil:
		display.Printf(out, "it runs since %s ago, and no coordinator has looked at it since; one does within %s\n", now.Sub(w.runs).Round(time.Second), experiments.LooksEvery)
	}
	if w.Hold != nil {
		display.Printf(out, "%s\n", heldLine(w.Hold, e.Name))
	}
}

// heldLine says who holds an experiment.
func heldLine(h *experiments.Hold, name string) string {
	says := fmt.Sprintf("HELD by %s since %s", h.By, h.When.Format(time.RFC3339))
	if h.Why != "" {
		says += ": " + h.Why
	}
	return says + "; to let it go on: millrace experiment resume " + name
}

// printDecisions prints what was decided about an experiment, and by what.
func printDecisions(w io.Writer, trail experiments.Trail) {
	if len(trail.Decisions) > 0 {
		fmt.Fprintln(w)
	}
	for _, d := range trail.Decisions {
		display.Printf(w, "%s  %s %s", d.When.Format(time.RFC3339), d.By, d.What)
		if d.Why != "" {
			display.Printf(w, ": %s", d.Why)
		}
		fmt.Fprintln(w)
		printInputs(w, d.Inputs)
	}
}

// printEvidence prints how old the answers and outcomes are that a coordinator goes by.
func printEvidence(w io.Writer, l *experiments.Look, now time.Time) {
	if l.Whole.IsZero() { // the coordinator is of a release that does not tell it
		return
	}
	if l.Anew != "" {
		display.Printf(w, "    evidence began anew at %s: %s\n", l.Since.Format(time.RFC3339), l.Anew)
	}
	newest := "no answer has come"
	if !l.Newest.IsZero() {
		newest = "the newest answer is " + ageOf(l.Newest, now)
	}
	display.Printf(w, "    evidence: all that was written was read %s ago; %s\n", now.Sub(l.Whole).Round(time.Second), newest)
	if o := l.Outcomes; o != nil {
		known := "outcomes"
		if o.Before {
			known = "outcomes, as they were known before"
		}
		display.Printf(w, "    %s: all of %s were read %s ago; %s\n", known, o.Topic, now.Sub(o.Whole).Round(time.Second), newestOutcome(o, now))
	}
}

// newestOutcome says how old the newest outcome is that belongs to an answer, and how many
// of all outcomes did.
func newestOutcome(o *experiments.OutcomesLook, now time.Time) string {
	says := "none that belongs to what was shown has come"
	if !o.Newest.IsZero() {
		says = "the newest that belongs to what was shown is " + ageOf(o.Newest, now)
	}
	if o.Told != nil {
		says += fmt.Sprintf("; of all, by what it showed, %s", o.Told)
	}
	return says
}

// ageOf says how old something is by this machine's clock. The clock of the machine that
// wrote it may be ahead.
func ageOf(at, now time.Time) string {
	if ahead := at.Sub(now).Round(time.Second); ahead > 0 {
		return fmt.Sprintf("%s ahead of this clock", ahead)
	}
	return fmt.Sprintf("%s old", now.Sub(at).Round(time.Second))
}

func printInputs(w io.Writer, all []string) {
	for _, line := range all {
		display.Printf(w, "    %s\n", line)
	}
}
