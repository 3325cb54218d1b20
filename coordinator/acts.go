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

// Outcomes returns a reader of what viewers did with what answers showed from a time on. of
// is an experiment with outcomes, and defines what counts as one.
type Outcomes func(of *experiment.Experiment, from millrace.Time) Acts

// Acts reads the outcomes of an experiment: what viewers did. An act is an outcome that
// belongs to an answer of the experiment.
type Acts interface {
	// Read reads on from where the last Read ended to the end of the log, and passes the
	// acts that it finds to take, some of them more than once.
	Read(ctx context.Context, take func(*outcome.Act)) error
	// Newest returns the time of the newest outcome read, whether or not it belongs to an
	// answer; 0: none was read.
	Newest() millrace.Time
	// Whole returns the time up to which all that viewers did has been read.
	Whole() time.Time
	// Topic returns which topic was read last.
	Topic() exposure.Topic
	// Told returns what became of all outcomes that have been read.
	Told() outcome.Report
	// Course returns when outcomes came, right and wrong ones.
	Course() *outcome.Course
}

// acts is how much a guard knows of what viewers of an experiment did.
type acts struct {
	read       Acts // nil: the experiment has no outcomes
	of         experiment.Outcomes
	from       millrace.Time             // when the experiment's evidence begins
	topic      exposure.Topic            // the topic that was read last
	newest     millrace.Time             // of the newest outcome that belongs to an answer of the experiment; 0: none has come
	came       millrace.Time             // of the newest of all outcomes
	told       outcome.Report            // what became of all outcomes
	broken     string                    // why the outcomes that come now are wrong; empty: they are not
	whole      time.Time                 // up to when all has been read; at first when the guard began
	ever       bool                      // all has been read once
	was        *experiments.OutcomesLook // what the last leader knew; nil: nothing
	unread     string                    // why not all is read now, or why guards can count nothing; empty: they can
	unanswered bool                      // the log did not answer the last reading
	next       time.Time                 // when outcomes are read next; zero: not known yet
}

const (
	// actsBlindAfter is how long outcomes may be unread before guards are said to be
	// blind. It is longer than blindAfter, because outcomes are read less often than
	// exposures.
	actsBlindAfter = time.Minute
	// silent is how long answers may come without an outcome that belongs to one before
	// guards are said to be blind. If an experiment's window for outcomes is longer, that
	// counts instead.
	silent = 10 * time.Minute
	// missed bounds the time without an outcome that belongs to an answer, while other
	// outcomes come: this many times the mean time between those that belong.
	missed = 20
)

const notReadYet = "outcomes have not been read yet by the coordinator that leads now, which soon does"

// reads notes what is known after a reading. err is why not all was read; nil: all was.
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

// guardsActs reports whether some guard is on what viewers do.
func guardsActs(g *experiment.Guards) bool { return len(g.Fewer)+len(g.More) > 0 }

// waits says why, as far as outcomes tell, the ramp may take no step, and why the time at its
// share does not count; empty: no reason. last is the time of the newest answer.
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

// again says when outcomes that could not be read are read again; empty: not known.
func (a *acts) again() string {
	if a.next.IsZero() {
		return ""
	}
	return fmt.Sprintf("; it is read again at %s", a.next.UTC().Format(time.RFC3339))
}

// lacks says which outcomes are still lacking for the ramp's next step; empty: none. since is
// the time from which outcomes count for it. An empty log of outcomes must not count as
// evidence for a variant.
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

// silence returns how long answers have come without an outcome that belongs to one, if that
// is too long, else 0.
func (a *acts) silence(last millrace.Time) time.Duration {
	if past := a.without(last); past > max(silent, a.of.For()) {
		return past
	}
	return 0
}

// without returns how long before last the newest outcome was that belongs to an answer, or
// the beginning of the evidence; 0 if last is 0.
func (a *acts) without(last millrace.Time) time.Duration {
	if last == 0 {
		return 0
	}
	return last.Std().Sub(max(a.newest, a.from).Std())
}

// strays returns how long both answers and outcomes have come without an outcome that
// belongs to an answer, if that is too long by the rate at which they came before, else 0.
// Then the writer of outcomes has probably begun to write wrong names. Outcomes that all
// come late are no sign of that.
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

// age says in words how old the newest outcome is that belongs to an answer.
func (a *acts) age(now time.Time) string {
	if a.newest == 0 {
		return fmt.Sprintf("no outcome that belongs to what was shown has come to %s since the evidence began", a.of.Topic)
	}
	return fmt.Sprintf("the newest outcome of %s that belongs to what was shown is %s old", a.of.Topic, now.Sub(a.newest.Std()).Round(time.Second))
}

// blind says why guards on what viewers do see nothing; empty: they see. by is the name of
// this coordinator, last the time of the newest answer.
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

// look returns what is noted of the outcomes in the experiment's trail. Until they have been
// read once, it is what the last leader noted; nil: nothing.
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

// actsSeen is how much is known of the outcomes of an experiment with guards on them, for
// metrics. See acts.
type actsSeen struct {
	experiment    string
	whole, newest time.Time // newest is the beginning of the evidence if no outcome has come
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
	// actsShare is the largest share of time that may go into reading outcomes: after a
	// reading comes a rest of nine times as long.
	actsShare = 0.1
	// actsAgain is the pause before a log that did not answer is read again. Waiting for
	// such a log does not count as reading, and costs no rest.
	actsAgain = 5 * time.Second
)

// isSilence reports whether a reading failed because the log did not answer in time.
func isSilence(err error) bool {
	t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	return ok && t.Timeout()
}

// readActs reads the outcomes of experiments, one after the other, until ctx ends. Every
// g.every, or less often if reading takes long, it reads all; in between it reads again
// those whose log did not answer.
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

// readsNext returns the rest before outcomes are read again, and notes for each experiment
// when that is. due is when all are read. The error says which could not be read and why.
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
		now.acts = w.acts // refresh has replaced w meanwhile
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
