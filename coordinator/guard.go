package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/wait"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/relevance/experiment/compare"
)

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

const (
	guardEvery = 200 * time.Millisecond // looks, while exposures come
	judgeEvery = time.Second            // for what only time changes
	tellEvery  = time.Minute            // the same fault is logged
)

// run guards until ctx ends, or for so long that another is to lead, which it
// reports.
func (g *guard) run(ctx context.Context, shown Exposures) (yields bool) {
	g.sight.whole = time.Now()
	changed, leant := g.store.Documents.Changed(), g.revision()
	said := fault{again: tellEvery}
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
