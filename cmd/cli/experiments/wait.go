package experiments

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/relevance/experiment"
)

// The values of --for.
const (
	untilRamped = "ramped"
	untilEnded  = "ended"
)

// awaited is what wait waits for.
type awaited struct {
	name, until string
	timeout     time.Duration // 0: as long as it takes
}

func experimentWait() *cobra.Command {
	var a awaited
	c := experimentOn(&cobra.Command{
		Use: "wait NAME", Short: "Wait until an experiment's ramp is through, and fail once it is paused or stopped", Args: cobra.ExactArgs(1),
		Long: `Returns when the experiment runs at the last step of its ramp (--for ramped), or when
it is stopped or dropped (--for ended). It fails, and says why, once somebody or a
guard pauses it, its share is taken back, or it is stopped before it is ramped; and
when --timeout is over, with where it stands. It tells of each change meanwhile, and
waits for an etcd that is away.`,
		Example: `  millrace experiment wait fresher --for ramped --timeout 24h && millrace experiment stop fresher`,
	}, func(ctx context.Context, t *opened, args []string) error {
		a.name = args[0]
		return t.await(ctx, a)
	})
	c.Flags().StringVar(&a.until, "for", untilRamped, untilRamped+" or "+untilEnded)
	c.Flags().DurationVar(&a.timeout, "timeout", 0, "how long to wait, such as 24h (default: as long as it takes)")
	return c
}

// await waits until an experiment is in the state that a names.
func (t *opened) await(ctx context.Context, a awaited) error {
	if a.until != untilRamped && a.until != untilEnded {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "--for", Detail: fmt.Sprintf("%.100q is nothing to wait for", a.until), WayOut: "say " + untilRamped + " or " + untilEnded}
	}
	var over <-chan time.Time // nil: never
	if a.timeout > 0 {
		over = time.After(a.timeout)
	}
	w := waiting{opened: t, awaited: a}
	for {
		changed, held := t.Documents.Changed(), t.trails.Changed()
		done, err := w.look(ctx)
		if done || err != nil {
			return err
		}
		again := time.After(maxUnlooked)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-over:
			return fmt.Errorf("experiment %s is not %s after %s: it is %s", a.name, a.until, a.timeout, w.stands)
		case <-changed:
		case <-held:
		case <-again: // an etcd that was away tells of no change
		}
	}
}

// maxUnlooked is how long a wait goes without a look if nothing tells of a change.
const maxUnlooked = 5 * time.Second

// waiting is a wait, and what its looks have seen.
type waiting struct {
	*opened
	awaited
	share    int    // the largest share at which it was seen to run, of 10,000
	stands   string // the state last printed; "": it was not seen yet
	document string // the document in which it was last seen
}

// look reads the experiment, tells what has changed, and says whether the wait is over.
func (w *waiting) look(ctx context.Context) (done bool, err error) {
	st, err := w.Read(ctx)
	if errors.Is(err, cluster.ErrAway) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	d, err := st.Find(w.name)
	if err != nil && w.stands != "" && w.until == untilEnded && w.isDropped(st) {
		fmt.Fprintf(w.out, "experiment %s is dropped\n", w.name)
		return true, nil
	}
	if err != nil {
		return false, err
	}
	w.document = d.Document
	return w.judge(ctx, &d)
}

// isDropped reports whether an experiment that was seen, and is not found now, is in no
// document. It may still be in a document that is left out for a fault: in the one in which
// it was seen, in another that has it, or in one that cannot be read.
func (w *waiting) isDropped(st *experiments.State) bool {
	for document := range st.Faults {
		all, left := st.LeftOut(document)
		has := func(e experiment.Experiment) bool { return e.Name == w.name }
		if left && (document == w.document || len(all) == 0 || slices.ContainsFunc(all, has)) {
			return false
		}
	}
	return true
}

// judge reports whether the wait is over. It fails if the wait can never end well.
func (w *waiting) judge(ctx context.Context, d *experiment.Defined) (done bool, err error) {
	e := &d.Experiment
	if w.until == untilRamped && e.Ramp == nil && e.State != experiment.Stopped {
		return false, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "--for", Detail: w.name + " has no ramp", WayOut: "give it one, or wait --for " + untilEnded}
	}
	w.tellStand(d)
	switch {
	case e.State == experiment.Stopped && w.until == untilEnded:
		return true, nil
	case e.State == experiment.Stopped:
		return false, fmt.Errorf("experiment %s is stopped, at %g%% of its slots; millrace experiment history %s tells by whom", w.name, float64(e.Share)/100, w.name)
	case e.State == experiment.Paused:
		return false, w.paused(ctx, d)
	case e.State == experiment.Running && e.Share < w.share:
		return false, fmt.Errorf("experiment %s was taken back from %g%% of its slots to %g%%; millrace experiment history %s tells by whom", w.name, float64(w.share)/100, float64(e.Share)/100, w.name)
	case e.State == experiment.Running:
		w.share = e.Share
	}
	return w.until == untilRamped && e.State == experiment.Running && e.Ramp.Next(e.Share) == 0, nil
}

// paused returns the error of a wait for an experiment that is paused: by whom and why, as
// far as that is known.
func (w *waiting) paused(ctx context.Context, d *experiment.Defined) error {
	by, known, err := w.pausedBy(ctx, d)
	if err != nil {
		return err
	}
	way := fmt.Sprintf("; millrace experiment status %s tells what was seen", w.name)
	if !known {
		return fmt.Errorf("experiment %s is paused%s", w.name, way)
	}
	return fmt.Errorf("experiment %s is paused since %s by %s%s", w.name, display.ShortTime(by.When), by.Who, way)
}

// tellStand prints an experiment's state, if that is not what it printed last.
func (w *waiting) tellStand(d *experiment.Defined) {
	e := &d.Experiment
	stands := fmt.Sprintf("%s, at %g%% of its slots", e.State, float64(e.Share)/100)
	if d.Unfit != "" {
		stands += ", and brokers give nobody a variant of it: " + d.Unfit
	}
	if trail, err := w.trails.Of(w.name); err == nil && trail.Hold != nil {
		stands += ", and held by " + display.Joined(trail.Hold.By, trail.Hold.Why)
	}
	if stands != w.stands {
		w.stands = stands
		fmt.Fprintf(w.out, "experiment %s is %s\n", w.name, stands)
	}
}
