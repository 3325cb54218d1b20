package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/outcome"
	"github.com/millrace/millrace/internal/wait"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/relevance/experiment/compare"
)

// Outcomes returns what viewers did, as an experiment that has outcomes defines them, with what
// answers showed from a time on.
type Outcomes func(of *experiment.Experiment, from millrace.Time) Acts

// Acts are what viewers did.
type Acts interface {
	// Read reads on, again and again, each time from where it ended, and hands over
	// the acts that it finds, some of them twice.
	Read(ctx context.Context, take func(*outcome.Act)) error
	// Newest returns when the newest outcome was that has been read, whether it belongs
	// to an answer or not; 0: none was.
	Newest() millrace.Time
	// Whole returns as of when all that viewers did has been read.
	Whole() time.Time
	// Topic returns which topic was read last.
	Topic() exposure.Topic
	// Told returns what became of all outcomes that have been read.
	Told() outcome.Report
	// Course returns how they came along.
	Course() *outcome.Course
}

// Leans knows the feeds and models that experiments lean on.
type Leans interface {
	// Waits returns what the next step of an experiment's ramp waits for besides its
	// guards; "": nothing.
	Waits(ctx context.Context, e *experiment.Experiment) string
	// Basis says which answers are evidence on an experiment by what it leans on now.
	Basis(ctx context.Context, e *experiment.Experiment) (compare.Basis, error)
	// Revision is another one after each change of a feed or model, or of what is
	// condemned.
	Revision() int64
}

// guard ramps experiments and pauses those that hurt, for as long as its
// coordinator leads. What it knows it reads anew from the log of exposures when
// it begins: nothing but the decisions themselves is stored, and for how long an
// experiment has been watched, which no log tells.
//
// An experiment's evidence begins with the last change of it that a person made:
// who resumes what was paused begins anew; or of what it leans on (see [Leans]).
// What else stands in its document may change meanwhile. Two coordinators that
// both believe to lead decide by the same log; a decision is written only while
// the experiment runs at the share that was judged, so the second one changes
// nothing. A step is taken only while all of its definition is what was judged: a
// person may have given it another ramp or guard. A pause goes by the share alone: to
// pause what a person has just changed costs little, to let it run may cost much.
type guard struct {
	store  *experiments.Store
	trails *experiments.Trails // of what is decided, and why
	name   string              // of the coordinator
	log    *slog.Logger
	leans  Leans                 // as of [Config]
	tell   func(paused []string) // experiments that guards have paused
	fault  func(error)           // why they are not guarded as they should be; nil: they are
	lead   *cluster.Lead         // as which it looks
	sight  sight
	seen   func(sight, []actsSeen, int) // is told how much is seen, and how many units are kept
	most   int                          // units, of all experiments together
	// outcomes are read every so long, or less often where it takes long. nil: no
	// action is guarded.
	outcomes Outcomes
	every    time.Duration
	asked    time.Time // when it was last asked how much is seen

	mu struct {
		sync.Mutex
		watched map[string]*watched // by experiment
		fresh   bool                // an exposure has come since the last look
	}
}

// watched is an experiment that runs and has guards.
type watched struct {
	experiment.Defined
	from    millrace.Time // a person changed it last
	changed time.Time     // since when its share is what it is
	basis   compare.Basis
	last    ledger.Event // of its document, that was looked at
	looked  time.Time    // when it was last noted what it waits for
	tally   *compare.Tally
	old     *compare.Outdated // of brokers that do not hear etcd
	acts    acts              // of its outcomes
	stay    experiments.Stay  // how long it has been watched at its share
	counted time.Time         // until when that has been counted; zero: it is not counted now
}

// evidence is when it begins.
func (w *watched) evidence() millrace.Time {
	if w.anew() {
		return millrace.TimeOf(w.basis.Since)
	}
	return w.from
}

// anew reports whether evidence begins with what the experiment leans on, and not with
// itself.
func (w *watched) anew() bool {
	return !w.basis.Since.IsZero() && millrace.TimeOf(w.basis.Since) >= w.from // the same where it is recalled
}

// atShare is since when its share is what it is, of what it leans on now.
func (w *watched) atShare() time.Time {
	if w.anew() && w.basis.Since.After(w.changed) {
		return w.basis.Since
	}
	return w.changed
}

// decision is what is to be done about an experiment, and by what.
type decision struct {
	of *watched
	compare.Verdict
	inputs []string
	newest millrace.Time // of its answers that have come; 0: none has
	stay   experiments.Stay
	acts   acts
	beyond string // what there was no room for, or is no evidence
}

const (
	guardEvery = 200 * time.Millisecond // looks, while exposures come
	judgeEvery = time.Second            // for what only time changes
	lookEvery  = 5 * time.Second        // notes of what an experiment waits for
	// byCoordinator begins who made a change, in a document's history. A
	// person's name has no space.
	byCoordinator = "coordinator "
	// oldFor is for how long no answer of an older definition has to have come before a
	// step is taken.
	oldFor = time.Minute
)

// run guards until ctx ends, or for so long that another is to lead, which it
// reports.
func (g *guard) run(ctx context.Context, shown Exposures) (yields bool) {
	g.sight.whole = time.Now()
	changed, leant := g.store.Documents.Changed(), g.revision()
	var said fault
	for {
		err := g.refresh(ctx)
		if err == nil {
			break
		}
		if g.fault(err); said.isNews(err, true, time.Now()) && ctx.Err() == nil {
			g.log.Warn("experiments are not guarded now; trying again", "err", err)
		}
		if wait.For(ctx, time.Second) != nil {
			return false
		}
	}
	ctx, stop := context.WithCancel(ctx)
	var following sync.WaitGroup
	following.Go(func() {
		if err := shown.Follow(ctx, g.oldest(), g.take); err != nil && ctx.Err() == nil {
			g.log.Error("exposures are not followed: no experiment is guarded or ramped", "err", err)
		}
	})
	following.Go(func() { g.readActs(ctx) })
	defer following.Wait()
	defer stop()
	var judged time.Time
	for wait.For(ctx, guardEvery) == nil {
		var err error
		began := time.Now()
		now := g.revision()
		if now != leant {
			changed = closed
		}
		select {
		case <-changed:
			changed, leant = g.store.Documents.Changed(), now
			if err = g.refresh(ctx); err != nil {
				changed = closed // again
			}
		default:
		}
		if g.came() || time.Since(judged) >= judgeEvery {
			judged = time.Now()
			err = errors.Join(err, g.judge(ctx, shown))
			g.fault(err)
		}
		if said.isNews(err, judged.After(began), time.Now()) && ctx.Err() == nil {
			g.log.Warn("experiments are not guarded now; trying again", "err", err)
		}
		if g.sight.yields() {
			return true
		}
	}
	return false
}

// fault is what was logged last, until all is well again.
type fault struct {
	text string
	at   time.Time
}

// tellEvery is how often the same fault is logged.
const tellEvery = time.Minute

// isNews reports whether err is to be logged, and takes it that it is. No err says
// that all is well only after a look at all.
func (f *fault) isNews(err error, looked bool, now time.Time) bool {
	switch {
	case err != nil && (err.Error() != f.text || now.Sub(f.at) > tellEvery):
		*f = fault{err.Error(), now}
		return true
	case err == nil && looked:
		*f = fault{}
	}
	return false
}

// revision is that of what experiments lean on.
func (g *guard) revision() int64 {
	if g.leans == nil {
		return 0
	}
	return g.leans.Revision()
}

var closed = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func (g *guard) take(r *exposure.Record) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.fresh = true
	for _, w := range g.mu.watched {
		if r.Time >= w.evidence() {
			w.tally.Add(r)
			w.old.Add(r)
		}
	}
}

const (
	// actsShare is the part of its time in which outcomes may be read, at most.
	actsShare = 0.1
	// actsAgain is the pause before outcomes are read again of a log that did not answer.
	// The time for which it was waited for is no work, and costs no rest.
	actsAgain = 5 * time.Second
)

// isSilence reports whether a reading failed since it was not answered in time.
func isSilence(err error) bool {
	t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	return ok && t.Timeout()
}

// readActs reads what viewers did, one experiment after the other: all when that is due,
// and before that those again whose log did not answer.
func (g *guard) readActs(ctx context.Context) {
	told, due := "", time.Now().Add(g.every)
	for rest := g.every; wait.For(ctx, rest) == nil; {
		all, worked := !time.Now().Before(due), time.Duration(0)
		for _, w := range g.withOutcomes() {
			if !all && !w.acts.mute {
				continue
			}
			began := time.Now()
			err := w.acts.read.Read(ctx, func(a *outcome.Act) {
				g.mu.Lock()
				defer g.mu.Unlock()
				g.mu.fresh = true
				w.tally.Did(a)
			})
			if !isSilence(err) {
				worked += time.Since(began)
			}
			g.reads(w, err)
		}
		owed := time.Duration(float64(worked) * (1/actsShare - 1))
		if due = due.Add(owed); all {
			due = time.Now().Add(max(g.every, owed))
		}
		var faults []string
		rest, faults = g.readsNext(due)
		now := strings.Join(faults, "\n")
		if now != told && now != "" && ctx.Err() == nil {
			g.log.Warn("outcomes are not read now; trying again", "in", rest.Round(time.Second), "err", now)
		}
		told = now
	}
}

// readsNext returns the rest before outcomes are read again, and notes it where they
// could not be read; and why they could not.
func (g *guard) readsNext(due time.Time) (rest time.Duration, faults []string) {
	all := g.withOutcomes()
	g.mu.Lock()
	defer g.mu.Unlock()
	rest = time.Until(due)
	for _, w := range all {
		if w.acts.mute {
			rest = min(rest, g.every, actsAgain)
		}
	}
	for _, w := range all {
		if w.acts.next = due; w.acts.mute {
			w.acts.next = time.Now().Add(rest)
		}
		if w.acts.unread != "" && w.acts.unread != notReadYet {
			faults = append(faults, fmt.Sprintf("experiment %s: %s", w.Experiment.Name, w.acts.unread))
		}
	}
	return rest, faults
}

// reads notes that the outcomes of an experiment have been read, or why they could not.
func (g *guard) reads(w *watched, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	w.acts.reads(err)
	if now := g.mu.watched[w.Experiment.Name]; now != nil && now.evidence() == w.evidence() {
		now.acts = w.acts // it was looked at anew meanwhile
	}
}

func (g *guard) withOutcomes() (all []*watched) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range g.mu.watched {
		if w.acts.read != nil {
			all = append(all, w)
		}
	}
	slices.SortFunc(all, func(a, b *watched) int { return strings.Compare(a.Experiment.Name, b.Experiment.Name) })
	return all
}

const (
	// maxUnits bounds the units that a coordinator keeps of all experiments together,
	// see [compare.Tally.Units]: some 1.5 GB.
	maxUnits  = 10_000_000
	unitBytes = 150
)

// unitsIn returns how many units are kept where there is so much memory, which may be
// unknown: 0. They have a third. What else a coordinator holds, with what it reads of
// outcomes, needs less than 100 MB however much there is.
func unitsIn(bytes int64) int {
	if bytes == 0 {
		return maxUnits
	}
	return int(min(maxUnits, bytes/3/unitBytes))
}

// units returns how many are kept; the guard is locked.
func (g *guard) units() (n int) {
	for _, w := range g.mu.watched {
		n += w.tally.Units()
	}
	return n
}

// keeps is units for callers that do not hold the lock.
func (g *guard) keeps() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.units()
}

// beyond says which evidence there was no room for; empty: there was for all.
func (g *guard) beyond(r *compare.Report) string {
	if r.Beyond+r.BeyondActs == 0 {
		return ""
	}
	return fmt.Sprintf("guards are blind to new %s: there is no room for more, by %d answers and %d acts, of %d of an experiment and %d of all experiments with guards; stop or pause other experiments, or give coordinators more memory, then pause and start this one, so that its evidence begins anew", r.Units, r.Beyond, r.BeyondActs, compare.MaxUnits, g.most)
}

// came reports whether an exposure has come since it was asked last.
func (g *guard) came() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	came := g.mu.fresh
	g.mu.fresh = false
	return came
}

// oldest returns from when on exposures are evidence.
func (g *guard) oldest() millrace.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	oldest := millrace.TimeOf(time.Now())
	for _, w := range g.mu.watched {
		oldest = min(oldest, w.evidence())
	}
	return oldest
}

// refresh looks which experiments are to be watched, and since when.
func (g *guard) refresh(ctx context.Context) error {
	st, err := g.store.Read(ctx)
	if err != nil {
		return err
	}
	next, paused := map[string]*watched{}, []string(nil)
	for _, d := range st.Set.Experiments() {
		if d.Experiment.Guards == nil || d.Experiment.State != experiment.Running && d.Experiment.State != experiment.Paused {
			continue
		}
		w := &watched{Defined: d}
		decided, err := g.trace(ctx, w)
		if err == nil && g.leans != nil {
			w.basis, err = g.leans.Basis(ctx, &d.Experiment)
		}
		if err != nil {
			return err
		}
		switch {
		case d.Experiment.State == experiment.Running:
			next[d.Experiment.Name] = w
		case decided:
			paused = append(paused, d.Experiment.Name)
		}
	}
	g.tell(paused)
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, w := range next {
		w.old = compare.NewOutdated(w.Defined, w.last.When)
		if old := g.mu.watched[name]; old != nil && old.Checksum == w.Checksum && old.last == w.last {
			w.old = old.old
		}
		if old := g.mu.watched[name]; old != nil && old.evidence() == w.evidence() {
			w.tally, w.acts, w.looked, w.stay, w.counted = old.tally, old.acts, old.looked, old.stay, old.counted
		} else {
			w.tally = compare.New(w.Defined)
			w.tally.Within(func() bool { return g.units() < g.most }) // it is locked whenever units are added
			if o := w.Experiment.Outcomes; o != nil && g.outcomes != nil {
				w.acts = acts{read: g.outcomes(&w.Experiment, w.evidence()), of: *o, from: w.evidence(), whole: time.Now(), unread: notReadYet}
			}
			if trail, err := g.trails.Of(name); err == nil && trail.Looked != nil {
				w.stay = trail.Looked.Stay
				if o := trail.Looked.Outcomes; o != nil && o.Topic == w.acts.of.Topic {
					w.acts.was = o
				}
			}
		}
		w.tally.On(w.basis)
		w.tally.Leaves(w.Named)
		w.tally.CountSince(millrace.TimeOf(w.atShare()))
	}
	g.mu.watched = next
	return nil
}

// trace finds in the history of its document since when an experiment is what it is,
// and reports whether a coordinator has paused it last. Events that an earlier look
// has seen are not looked at again.
func (g *guard) trace(ctx context.Context, w *watched) (paused bool, err error) {
	events, err := g.store.Documents.History(ctx, w.Document)
	if err != nil {
		return false, err
	}
	name := w.Experiment.Name
	g.mu.Lock()
	old := g.mu.watched[name]
	g.mu.Unlock()
	known := -1 // the last event that was looked at
	if old != nil && old.Document == w.Document {
		known = slices.IndexFunc(events, func(e ledger.Event) bool { return e == old.last })
	}
	if known >= 0 {
		w.from, w.changed = old.from, old.changed
	}
	var before artefacts.Version // that served
	whole := ledger.Whole(events)
	unknown := !whole // whether a person has changed it since the last that is known of it
	for i, e := range events {
		w.last = e
		v := artefacts.Version{Name: w.Document, Version: e.Version, Sum: e.Sum}
		was := before
		switch {
		case e.What == ledger.Dropped && v == before:
			before, whole = artefacts.Version{}, true // from here on
			continue
		case e.What != ledger.Served && e.What != ledger.RolledBack:
			continue
		}
		before = v
		if i <= known {
			continue
		}
		if strings.HasPrefix(e.Who, byCoordinator) {
			pauses := strings.Contains(e.Who, experiments.PausedText(name)+": ")
			if pauses || strings.Contains(e.Who, rampedText(name)) {
				w.changed, paused, unknown = e.When, pauses, false
			}
			continue
		}
		same, err := g.store.Same(ctx, was, v, name)
		if err != nil {
			return false, err
		}
		if !same {
			w.from, w.changed = millrace.TimeOf(e.When), e.When
			has := g.store.Documents.Has
			if unknown = !has(v) || !has(was) && (!whole || was != artefacts.Version{}); !unknown {
				paused = false
			}
		}
	}
	if len(events) > 0 {
		g.recall(w, events[0].When)
	}
	if trail, err := g.trails.Of(name); unknown && err == nil {
		paused = trail.PausedLast(name) != nil
	}
	return paused, nil
}

// recall fills in what the history of a document does not tell any more, since so much
// has happened to it since: what a coordinator noted, or else the oldest that there is
// of the history, before which it was.
func (g *guard) recall(w *watched, oldest time.Time) {
	trail, _ := g.trails.Of(w.Experiment.Name) // nothing is noted in one that cannot be read
	if w.from == 0 {
		w.from = cmp.Or(trail.Sources.Since, millrace.TimeOf(oldest))
	}
	if !w.changed.IsZero() {
		return
	}
	w.changed = oldest
	if l := trail.Looked; l != nil && l.Share == w.Experiment.Share && !l.Stay.Since.IsZero() && !trail.SteppedSince(l.Stay.Since) {
		w.changed = l.Stay.Since
	}
}

// judge decides about each experiment, and does what was decided: first it pauses,
// by what has come. A step is decided about once more after the end of the log was
// asked for, and is taken only if all before it has been read.
func (g *guard) judge(ctx context.Context, shown Exposures) error {
	unsure := g.holdRestored(ctx) // whether a step may be taken
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

func rampedText(name string) string { return "ramped " + name + " to " }

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
	store.GoesOn(g.store)
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
