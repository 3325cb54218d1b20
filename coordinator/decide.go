package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/relevance/experiment/compare"
)

// decision is what is to be done about an experiment, and by what.
type decision struct {
	of *watched
	compare.Verdict
	inputs []string
	newest millrace.Time    // of its answers that have come; 0: none has
	stay   experiments.Stay // for how long it was watched at its share
	acts   acts             // what is known of what viewers did
	beyond string           // which evidence there was no room for, or why what there is says nothing
}

const (
	lookEvery = 5 * time.Second // notes of what an experiment waits for
	// oldFor is for how long no answer of an older definition has to have come before a
	// step is taken.
	oldFor = time.Minute
)

// judge decides about each experiment, and does what was decided: first it pauses,
// by what has come. A step is decided about once more after the end of the log was
// asked for, and is taken only if all before it has been read.
func (g *guard) judge(ctx context.Context, shown Exposures) error {
	unsure := g.holdRestored(ctx) // why no step may be taken; nil: one may
	decisions, err := g.decide(ctx)
	errs := []error{err}
	does := func(d decision) {
		if d.Share > 0 && unsure != nil {
			return
		}
		d.of.looked = time.Now()
		if err := g.do(ctx, d); err != nil {
			errs = append(errs, fmt.Errorf("experiment %s: %w", d.of.Experiment.Name, err), g.fails(ctx, d, err))
		}
	}
	steps := false
	for _, d := range decisions {
		if steps = steps || d.Share > 0; d.Pause {
			does(d)
		}
	}
	now := time.Now()
	switch {
	case g.watches() == 0:
		g.sight.whole, g.sight.fault = now, nil
	case steps || now.Sub(g.asked) >= judgeEvery:
		g.asked = now
		g.sight.look(ctx, shown)
	}
	g.seen(g.sight, g.actsSeen(), g.keeps())
	unsure = errors.Join(unsure, g.noteSources(ctx, shown.Topic()))
	errs = append(errs, unsure)
	if steps {
		decisions, err = g.decide(ctx)
		errs = append(errs, err)
	}
	for _, d := range decisions {
		if why := g.sight.waits(); why != "" && d.Share > 0 {
			d.Verdict = compare.Verdict{Waits: why}
		}
		if !d.Pause && (d.Share > 0 || time.Since(d.of.looked) >= lookEvery) {
			does(d)
		}
	}
	return errors.Join(errs...)
}

// holdRestored holds all ramps once after each restoration of etcd.
func (g *guard) holdRestored(ctx context.Context) error {
	held, err := g.trails.HoldRestored(ctx, g.lead, func() (names []string, err error) {
		st, err := g.store.Read(ctx)
		if err != nil {
			return nil, err
		}
		for _, d := range st.Set.Experiments() {
			if d.Experiment.Ramp != nil && d.Experiment.State != experiment.Stopped {
				names = append(names, d.Experiment.Name)
			}
		}
		return names, nil
	})
	if len(held) > 0 && err == nil {
		g.log.Warn("etcd was restored: ramps are held until a person resumes them, since a veto may be among what was lost", "experiments", held)
	}
	return err
}

// fails notes that what was decided about an experiment cannot be done: nobody watches
// it as long as that is so.
func (g *guard) fails(ctx context.Context, d decision, why error) error {
	if !d.Acts() || errors.Is(why, cluster.ErrNotLeader) || errors.Is(why, cluster.ErrLost) || errors.Is(why, cluster.ErrAway) {
		return nil
	}
	what := "ramped"
	if d.Pause {
		what = "paused"
	}
	l := g.look(d)
	l.Blind = fmt.Sprintf("it is to be %s (%s), and cannot: %v", what, d.Why, why)
	return g.trails.Look(ctx, g.lead, d.of.Experiment.Name, l)
}

// noteSources notes of each experiment which topics its evidence is read from, and among
// its decisions that one is another than was read before, by this coordinator or the one
// that led before: what the former had is gone.
func (g *guard) noteSources(ctx context.Context, shown exposure.Topic) error {
	g.mu.Lock()
	now := map[string]experiments.Sources{}
	for name, w := range g.mu.watched {
		now[name] = experiments.Sources{Since: w.evidence(), Exposures: shown, Outcomes: w.acts.topic}
	}
	g.mu.Unlock()
	var errs []error
	for name, from := range now {
		if trail, err := g.trails.Of(name); err != nil || trail.Sources.Tell(from) {
			continue // a trail that cannot be read is begun anew by the next look
		}
		cut, err := g.trails.Reads(ctx, g.lead, name, g.name, from)
		if cut {
			g.sight.isCut()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("experiment %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func (g *guard) watches() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.mu.watched)
}

// decide says what is to be done about each experiment, by what is known.
func (g *guard) decide(ctx context.Context) (decisions []decision, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	now := time.Now()
	for _, w := range g.mu.watched {
		r, err := w.tally.Report(w.Experiment.Guards.Chance())
		if err != nil {
			errs = append(errs, err)
			continue
		}
		waits := ""
		if g.leans != nil {
			waits = g.leans.Waits(ctx, &w.Experiment)
		}
		unread := w.acts.waits(&w.Experiment, r.Last)
		w.count(&r, now, !g.asked.IsZero() && g.sight.waits() == "" && waits == "" && unread == "")
		v := compare.Judge(&w.Experiment, &r, w.stay.For())
		if v.Share > 0 {
			if why := w.acts.lacks(w.Experiment.Guards, &r, w.stay.Since); why != "" {
				v = compare.Verdict{Waits: why}
			}
		}
		if says := w.old.Says(millrace.TimeOf(now.Add(-oldFor))); says != "" && v.Share > 0 {
			v = compare.Verdict{Waits: says}
		}
		if hold := g.held(w.Experiment.Name); hold != nil && v.Share > 0 {
			v = compare.Verdict{Waits: fmt.Sprintf("%s holds its next step since %s", hold.By, hold.When.Format(time.RFC3339))}
		}
		beyond := cmp.Or(w.Experiment.ComparesNothing(), g.beyond(&r), r.Lopsided())
		if why := cmp.Or(waits, unread, beyond); why != "" && !v.Pause {
			v = compare.Verdict{Waits: why}
		}
		decisions = append(decisions, decision{w, v, append(compare.Inputs(&w.Experiment, &r), w.standsStill(&r, now, g.sight.waits())...), r.Last, w.stay, w.acts, beyond})
	}
	return decisions, errors.Join(errs...)
}

// count adds to how long an experiment has been watched at its share the time since
// this was counted last: if all that was shown is known, and each variant was shown
// just now as it is now. As long as it is not known what was shown nothing is
// known of this either, and what a coordinator before has counted stays.
func (w *watched) count(r *compare.Report, now time.Time, known bool) {
	last := w.counted
	w.counted = time.Time{}
	if !known {
		return
	}
	w.counted = now
	if since := millrace.TimeOf(w.atShare()).Std().UTC(); !w.stay.Since.Equal(since) {
		w.stay = experiments.Stay{Since: since}
	}
	// A longer gap, as of a process that was frozen, was not watched.
	if past := now.Sub(last); !last.IsZero() && past < breaks && len(w.standsStill(r, now, "")) == 0 {
		w.stay.Seconds += past.Seconds()
	}
}

// standsStill says why time at a share is not counted just now: what was shown is not
// known, or some variant was not shown; nil: it is counted, or a ramp asks for none.
func (w *watched) standsStill(r *compare.Report, now time.Time, unknown string) []string {
	e := &w.Experiment
	if e.Ramp == nil || e.Ramp.Least == 0 || e.Ramp.Next(e.Share) == 0 {
		return nil
	}
	if unknown != "" {
		return []string{"time at this share stands still: " + unknown}
	}
	variant, at := r.Shown()
	if at < millrace.TimeOf(w.atShare()) {
		return []string{fmt.Sprintf("time at this share stands still: %s has not been shown at it", variant)}
	}
	if age, most := now.Sub(at.Std()), compare.StandsFor(e.Ramp.Least); age > most {
		return []string{fmt.Sprintf("time at this share stands still: %s was last shown %s ago, more than %s", variant, age.Round(time.Second), most)}
	}
	return nil
}

var errOtherwise = errors.New("coordinator: the experiment is no longer as it was judged")

// held returns who holds the next step of an experiment; nil if nobody does.
func (g *guard) held(name string) *experiments.Hold {
	trail, _ := g.trails.Of(name) // one that cannot be read is held
	return trail.Hold
}

// look is what is noted of an experiment about which nothing is done.
func (g *guard) look(d decision) experiments.Look {
	l := experiments.Look{
		When: time.Now().UTC().Truncate(time.Millisecond), By: g.name, Says: d.Waits, Share: d.of.Experiment.Share, Inputs: d.inputs, Whole: g.sight.whole.UTC().Truncate(time.Millisecond),
		Blind: cmp.Or(g.sight.blind(g.name), d.acts.blind(g.name, d.of.Experiment.Guards, d.newest), d.beyond), Stay: d.stay,
	}
	if d.newest != 0 {
		l.Newest = d.newest.Std().UTC()
	}
	if d.acts.read != nil {
		l.Outcomes = d.acts.look()
	}
	if d.of.anew() {
		l.Since, l.Anew = d.of.basis.Since, d.of.basis.Why
	}
	return l
}

// do does what was decided, and in the same transaction notes by what.
func (g *guard) do(ctx context.Context, d decision) error {
	now := time.Now().UTC().Truncate(time.Millisecond)
	judged, v, inputs := d.of.Experiment, d.Verdict, d.inputs
	if !v.Acts() {
		l := g.look(d)
		_, unread := g.trails.Of(judged.Name)
		err := g.trails.Look(ctx, g.lead, judged.Name, l)
		if unread != nil && err == nil {
			g.log.Warn("what was noted of an experiment could not be read, and is begun anew; its ramp is held until a person resumes it", "experiment", judged.Name, "err", unread)
		}
		return err
	}
	what := fmt.Sprintf("%s%d of 10,000", rampedText(judged.Name), v.Share)
	if v.Pause {
		what = experiments.PausedText(judged.Name)
	}
	decision := experiments.Decision{When: now, By: g.name, What: what, Why: v.Why, Inputs: inputs}
	store := experiments.Store{Documents: g.store.Documents, Who: byCoordinator + g.name, Why: what + ": " + v.Why}
	store.UseParsed(g.store)
	if store.With = g.trails.Ramps(judged.Name, decision); v.Pause {
		store.With = g.trails.Pauses(judged.Name, decision)
	}
	_, err := store.Steer(ctx, judged.Name, func(now experiment.Experiment) (experiment.State, int, error) {
		switch {
		case now.State != experiment.Running || now.Share != judged.Share || !v.Pause && !reflect.DeepEqual(now, judged):
			return "", 0, errOtherwise
		case v.Pause:
			return experiment.Paused, now.Share, nil
		}
		return experiment.Running, v.Share, nil
	})
	if errors.Is(err, errOtherwise) || errors.Is(err, experiments.ErrHeld) {
		return nil
	}
	if err == nil {
		g.log.Warn(what, "why", v.Why)
	}
	return err
}
