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

// decision is what is to be done about an experiment, and the evidence for it.
type decision struct {
	of              *watched
	compare.Verdict                  // pause, step to a share, or what it waits for
	inputs          []string         // the figures that were judged, in words
	newest          millrace.Time    // of the newest answer; 0: none has come
	stay            experiments.Stay // how long it was watched at its share
	acts            acts             // what is known of what viewers did
	beyond          string           // which evidence there was no room for, or why the evidence says nothing; empty: neither
}

const (
	lookEvery = 5 * time.Second // between notes of what an experiment waits for
	// oldFor is how long no answer by an older definition of the experiment may have come
	// before a step is taken.
	oldFor = time.Minute
)

// judge decides about each experiment, and does what was decided. Pauses come first, by the
// evidence that has come so far. Before a step, it makes sure that the log of exposures has
// been read to its end, and decides once more by what came with that.
func (g *guard) judge(ctx context.Context, shown Exposures) error {
	unsure := g.holdRestored(ctx) // unsure says why no step may be taken; nil: one may
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

// fails notes in the trail that what was decided about an experiment cannot be done. The
// experiment counts as not watched meanwhile.
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

// noteSources notes for each experiment which topics its evidence is read from. If a topic
// is another one than was read before, by this leader or an earlier one, it notes that
// among the experiment's decisions: the evidence of the former topic is lost.
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

// watches returns how many experiments are watched.
func (g *guard) watches() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.mu.watched)
}

// decide decides about each watched experiment by the evidence so far. The error says for
// which it could not.
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

// count adds the time since the last count to how long the experiment has been watched at
// its share. The time counts only if known is true (all exposures have been read) and each
// variant was shown lately at this share. Without known, it changes nothing: what an
// earlier leader has counted stays.
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
	// After a gap as long as the constant breaks or longer, nothing is added: the process
	// may have been frozen.
	if past := now.Sub(last); !last.IsZero() && past < breaks && len(w.standsStill(r, now, "")) == 0 {
		w.stay.Seconds += past.Seconds()
	}
}

// standsStill says why time at the share does not count now: not all exposures are known
// (unknown says why), or some variant was not shown lately. nil: it counts, or no ramp
// asks for time.
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

// held returns who vetoes the next step of an experiment; nil if nobody does.
func (g *guard) held(name string) *experiments.Hold {
	trail, _ := g.trails.Of(name) // if the trail cannot be read, Of returns one with a hold
	return trail.Hold
}

// look returns the note for the trail of an experiment about which nothing is done.
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

// do does what was decided, and notes the reasons in the trail in the same transaction. A
// decision to do nothing is only noted. If the experiment has changed since it was judged,
// nothing is done and no error returned.
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
