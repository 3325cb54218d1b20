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

// Leans knows the feeds and models that experiments lean on: those by which the answers of
// an experiment are made, whose changes change what the answers show.
type Leans interface {
	// Waits returns what the next step of an experiment's ramp waits for besides its
	// guards; "": nothing.
	Waits(ctx context.Context, e *experiment.Experiment) string
	// Basis says which answers are evidence on an experiment, by the feeds and models
	// that it leans on now.
	Basis(ctx context.Context, e *experiment.Experiment) (compare.Basis, error)
	// Revision differs after each change of a feed or model, or of which model versions
	// are condemned.
	Revision() int64
}

// guard ramps experiments and pauses those that do harm, for as long as its coordinator
// leads. When it begins, it reads the evidence anew from the log of exposures. Stored are
// only the decisions, and how long an experiment has been watched, which no log tells.
//
// An experiment's evidence begins with the last change that a person made to it, or that
// was made to what it leans on (see [Leans]). So evidence begins anew when a person resumes
// a paused experiment. Other experiments in the same document may change meanwhile.
//
// Two coordinators that both believe they lead decide by the same log. A decision is
// written only while the experiment runs at the share that was judged, so the second one
// changes nothing. A step is written only while the whole definition is what was judged,
// since a person may have changed its ramp or guards. A pause depends on the share alone:
// pausing what a person has just changed costs little, letting it run may cost much.
type guard struct {
	store  *experiments.Store
	trails *experiments.Trails // what was decided about each experiment, and why
	name   string              // of the coordinator
	log    *slog.Logger
	leans  Leans                        // as in [Config]
	tell   func(paused []string)        // is told which experiments guards have paused
	fault  func(error)                  // is told why experiments are not guarded as they should be; nil: they are
	lead   *cluster.Lead                // the leadership under which it writes
	sight  sight                        // how much it sees of exposures
	seen   func(sight, []actsSeen, int) // is told how much is seen, and how many units are kept
	most   int                          // how many units may be kept, of all experiments together
	// outcomes opens the readers of outcomes. nil: there are no guards on what viewers do.
	outcomes Outcomes
	every    time.Duration // between two readings of outcomes; longer if reading takes long
	asked    time.Time     // when sight last looked; zero: never

	mu struct {
		sync.Mutex
		watched map[string]*watched // by experiment
		fresh   bool                // an exposure or an act has come since the last look
	}
}

// watched is an experiment that runs and has guards.
type watched struct {
	experiment.Defined
	from    millrace.Time     // when a person changed it last
	changed time.Time         // since when it has its share
	basis   compare.Basis     // which answers are evidence
	last    ledger.Event      // the last event of its document's history that trace has seen
	looked  time.Time         // when a note of what it waits for was last written, or something was done about it
	tally   *compare.Tally    // the evidence
	old     *compare.Outdated // counts answers by an older definition, of brokers that do not hear etcd
	acts    acts              // what is known of its outcomes
	stay    experiments.Stay  // how long it has been watched at its share
	counted time.Time         // until when stay has been counted; zero: it is not counted now
}

const (
	guardEvery = 200 * time.Millisecond // between decisions while exposures come
	judgeEvery = time.Second            // between decisions otherwise: time alone changes some
	tellEvery  = time.Minute            // how often the same fault is logged
)

// run guards until ctx ends. It returns yields if it ended because it has been blind for so
// long that another coordinator is to lead.
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
				changed = closed // refresh again in the next round
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

// revision returns the revision of what experiments lean on; 0 without Leans.
func (g *guard) revision() int64 {
	if g.leans == nil {
		return 0
	}
	return g.leans.Revision()
}

// closed is a channel that is closed: a change that has happened already.
var closed = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// take adds an exposure to the evidence of each experiment.
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
	// maxUnits bounds the units, such as viewers, that a coordinator keeps of all
	// experiments together (see [compare.Tally.Units]): some 1.5 GB.
	maxUnits  = 10_000_000
	unitBytes = 150 // what one unit takes in memory
)

// unitsIn returns how many units may be kept on a machine with so many bytes of memory; 0:
// not known. Units may take a third of it. Everything else that a coordinator holds takes
// less than 100 MB.
func unitsIn(bytes int64) int {
	if bytes == 0 {
		return maxUnits
	}
	return int(min(maxUnits, bytes/3/unitBytes))
}

// units returns how many units are kept. The caller holds g.mu.
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

// beyond says for which evidence there was no room; empty: there was room for all.
func (g *guard) beyond(r *compare.Report) string {
	if r.Beyond+r.BeyondActs == 0 {
		return ""
	}
	return fmt.Sprintf("guards are blind to new %s: there is no room for more, by %d answers and %d acts, of %d of an experiment and %d of all experiments with guards; stop or pause other experiments, or give coordinators more memory, then pause and start this one, so that its evidence begins anew", r.Units, r.Beyond, r.BeyondActs, compare.MaxUnits, g.most)
}

// came reports whether an exposure or an act has come since the last call.
func (g *guard) came() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	came := g.mu.fresh
	g.mu.fresh = false
	return came
}

// oldest returns the time from which exposures are evidence for any experiment.
func (g *guard) oldest() millrace.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	oldest := millrace.TimeOf(time.Now())
	for _, w := range g.mu.watched {
		oldest = min(oldest, w.evidence())
	}
	return oldest
}

// refresh reads the experiments and sets which are watched: those that run and have guards.
// One whose evidence begins when it did before keeps its tally.
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
			w.tally.Within(func() bool { return g.units() < g.most }) // g.mu is held whenever units are added
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
