package coordinator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace"
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

// acts is how much a guard sees of what viewers of an experiment did.
type acts struct {
	read       Acts // nil: it has no outcomes
	of         experiment.Outcomes
	from       millrace.Time             // of the experiment's evidence
	topic      exposure.Topic            // that was read last
	newest     millrace.Time             // outcome that belongs to an answer of the experiment; 0: none has come
	came       millrace.Time             // newest of all
	told       outcome.Report            // of all that have come
	broken     string                    // why what comes now is broken; empty: it is not
	whole      time.Time                 // when all was last read; first: when it began
	ever       bool                      // all was read
	was        *experiments.OutcomesLook // what the coordinator before knew; nil: nothing
	unread     string                    // why that is not so now, or why it counts nothing
	unanswered bool                      // its log did not answer the last reading
	next       time.Time                 // the next reading, after one that failed; zero: not known yet
}

const (
	// actsBlindAfter is for how long outcomes may be unread before guards are said to
	// be blind: they are read less often than exposures.
	actsBlindAfter = time.Minute
	// silent is how much older than the newest answer the newest outcome may be that
	// belongs to one, at least: the definition's window may say more.
	silent = 10 * time.Minute
	// missed is how many times the mean time between outcomes that belong to an answer may
	// pass without one, while others come.
	missed = 20
)

const notReadYet = "outcomes have not been read yet by the coordinator that leads now, which soon does"

// reads notes that all was read, or why not.
func (a *acts) reads(err error) {
	course := a.read.Course()
	a.topic, a.newest, a.came, a.told, a.unanswered, a.next = a.read.Topic(), course.Newest(), a.read.Newest(), a.read.Told(), isSilence(err), time.Time{}
	if a.broken = ""; course.Now() != nil {
		a.broken = fmt.Sprintf("of %s %s; mend what writes it, and they see again once ten more belong than do not", a.of.Topic, course.Now())
	}
	if err != nil {
		a.unread = err.Error()
		return
	}
	a.whole, a.ever, a.unread = a.read.Whole(), true, ""
}

func guardsActs(g *experiment.Guards) bool { return len(g.Fewer)+len(g.More) > 0 }

// waits says why no step may be taken by what is known of outcomes, nor time count for one;
// empty: they may. Last is when the newest answer was.
func (a *acts) waits(e *experiment.Experiment, last millrace.Time) string {
	switch {
	case !guardsActs(e.Guards):
		return ""
	case a.unread != "":
		return "its guards on what viewers do can count nothing: " + a.unread + a.again()
	case a.broken != "":
		return "its guards on what viewers do see almost nothing: " + a.broken
	case a.read == nil:
		return ""
	case a.silence(last) > 0:
		return fmt.Sprintf("its guards on what viewers do wait for outcomes: %s, and answers have come for %s since", a.age(time.Now()), a.silence(last).Round(time.Second))
	}
	var least time.Duration
	if e.Ramp != nil {
		least = e.Ramp.Least
	}
	if past := a.strays(last, least); past > 0 {
		return fmt.Sprintf("its guards on what viewers do wait for outcomes that belong to what was shown: %s, and others have come for %s since", a.age(time.Now()), past.Round(time.Second))
	}
	return ""
}

// again says when what could not be read is read again.
func (a *acts) again() string {
	if a.next.IsZero() {
		return ""
	}
	return fmt.Sprintf("; it is read again at %s", a.next.UTC().Format(time.RFC3339))
}

// lacks says which outcomes have to come before a step is taken; empty: none. A log of
// outcomes that nothing comes to says nothing good of a variant.
func (a *acts) lacks(g *experiment.Guards, r *compare.Report, since time.Time) string {
	if a.read == nil || !guardsActs(g) {
		return ""
	}
	began := millrace.TimeOf(since)
	if a.newest < began {
		return fmt.Sprintf("its guards on what viewers do wait for outcomes: none that belongs to what was shown has come to %s since %s; %s", a.of.Topic, began, a.age(time.Now()))
	}
	for _, action := range slices.Sorted(maps.Keys(g.Fewer)) {
		if i := slices.Index(r.Actions, action); i >= 0 && r.Acted[i] < began {
			return fmt.Sprintf("its guard on fewer %s waits for one: no viewer has done that with what was shown since %s; %s", action, began, a.age(time.Now()))
		}
	}
	return ""
}

// silence is for how long answers have come without an outcome that belongs to one, if that
// is too long.
func (a *acts) silence(last millrace.Time) time.Duration {
	if past := a.without(last); past > max(silent, a.of.For()) {
		return past
	}
	return 0
}

// without is for how long something has come without an outcome that belongs to an answer,
// by when it came last.
func (a *acts) without(last millrace.Time) time.Duration {
	if last == 0 {
		return 0
	}
	return last.Std().Sub(max(a.newest, a.from).Std())
}

// strays is for how long answers and outcomes have come, and none of these that belongs to an
// answer, if that is too long by how many belonged before: who writes them has begun to write
// wrong names. Outcomes that all come late are no sign of that.
func (a *acts) strays(last millrace.Time, least time.Duration) time.Duration {
	past := a.without(min(last, a.came))
	if a.told.Attributed == 0 || past <= max(2*outcome.Skew, compare.StandsFor(least)) {
		return 0
	}
	if mean := time.Duration(a.newest-a.from) * time.Millisecond / time.Duration(a.told.Attributed); past > missed*mean {
		return past
	}
	return 0
}

// age says how old the newest outcome is that belongs to an answer.
func (a *acts) age(now time.Time) string {
	if a.newest == 0 {
		return fmt.Sprintf("no outcome that belongs to what was shown has come to %s since the evidence began", a.of.Topic)
	}
	return fmt.Sprintf("the newest outcome of %s that belongs to what was shown is %s old", a.of.Topic, now.Sub(a.newest.Std()).Round(time.Second))
}

// blind says why guards on what viewers do see nothing, by when the newest answer was;
// empty: they do.
func (a *acts) blind(by string, g *experiment.Guards, last millrace.Time) string {
	if a.read == nil || !guardsActs(g) {
		return ""
	}
	if past := time.Since(a.whole); a.unread != "" && past >= actsBlindAfter {
		return fmt.Sprintf("guards on what viewers do are blind: %s is not read since %s by %s, which leads: %s%s", a.of.Topic, past.Round(time.Second), by, a.unread, a.again())
	}
	if a.broken != "" {
		return "guards on what viewers do are blind: " + a.broken
	}
	if past := a.silence(last); past > 0 {
		return fmt.Sprintf("guards on what viewers do are blind: %s, and answers have come for %s since", a.age(time.Now()), past.Round(time.Second))
	}
	return ""
}

// look is what is noted of it: until it has been read, what the coordinator before knew.
func (a *acts) look() *experiments.OutcomesLook {
	if !a.ever {
		if a.was == nil {
			return nil
		}
		was := *a.was
		was.Before = true
		return &was
	}
	l := &experiments.OutcomesLook{Topic: a.of.Topic, Whole: a.whole.UTC().Truncate(time.Millisecond), Told: &a.told}
	if a.newest != 0 {
		l.Newest = a.newest.Std().UTC()
	}
	return l
}

// actsSeen is how much is seen of what viewers of an experiment did that guards watch.
type actsSeen struct {
	experiment    string
	whole, newest time.Time // newest: or the beginning of the evidence
}

func (g *guard) actsSeen() (all []actsSeen) {
	for _, w := range g.withOutcomes() {
		if guardsActs(w.Experiment.Guards) {
			g.mu.Lock()
			all = append(all, actsSeen{w.Experiment.Name, w.acts.whole, max(w.acts.newest, w.acts.from).Std()})
			g.mu.Unlock()
		}
	}
	slices.SortFunc(all, func(a, b actsSeen) int { return strings.Compare(a.experiment, b.experiment) })
	return all
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
	var said fault
	due := time.Now().Add(g.every)
	for rest := g.every; wait.For(ctx, rest) == nil; {
		all, worked := !time.Now().Before(due), time.Duration(0)
		for _, w := range g.withOutcomes() {
			if !all && !w.acts.unanswered {
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
		var err error
		if rest, err = g.readsNext(due); said.isNews(err, true, time.Now()) && ctx.Err() == nil {
			g.log.Warn("outcomes are not read now; trying again", "in", rest.Round(time.Second), "err", err)
		}
	}
}

// readsNext returns the rest before outcomes are read again, and notes it where they
// could not be read; and why they could not.
func (g *guard) readsNext(due time.Time) (rest time.Duration, err error) {
	all := g.withOutcomes()
	g.mu.Lock()
	defer g.mu.Unlock()
	rest = time.Until(due)
	var faults []error
	for _, w := range all {
		if w.acts.unanswered {
			rest = min(rest, g.every, actsAgain)
		}
	}
	for _, w := range all {
		if w.acts.next = due; w.acts.unanswered {
			w.acts.next = time.Now().Add(rest)
		}
		if w.acts.unread != "" && w.acts.unread != notReadYet {
			faults = append(faults, fmt.Errorf("experiment %s: %s", w.Experiment.Name, w.acts.unread))
		}
	}
	return rest, errors.Join(faults...)
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
