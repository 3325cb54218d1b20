package coordinator

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/outcome"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/relevance/experiment/compare"
)

// acts is how much a guard sees of what viewers of an experiment did.
type acts struct {
	read   Acts // nil: it has no outcomes
	of     experiment.Outcomes
	from   millrace.Time             // of the experiment's evidence
	topic  exposure.Topic            // that was read last
	newest millrace.Time             // outcome; 0: none has come
	told   outcome.Report            // of all that have come
	whole  time.Time                 // when all was last read; first: when it began
	ever   bool                      // all was read
	was    *experiments.OutcomesLook // what the coordinator before knew; nil: nothing
	unread string                    // why that is not so now, or why it counts nothing
	mute   bool                      // its log did not answer the last reading
	next   time.Time                 // the next reading, after one that failed; zero: not known yet
}

const (
	// actsBlindAfter is for how long outcomes may be unread before guards are said to
	// be blind: they are read less often than exposures.
	actsBlindAfter = time.Minute
	// silent is how much older than the newest answer the newest outcome may be, at
	// least: the definition's window may say more.
	silent = 10 * time.Minute
)

const notReadYet = "outcomes have not been read yet by the coordinator that leads now, which soon does"

// reads notes that all was read, or why not.
func (a *acts) reads(err error) {
	a.topic, a.newest, a.told, a.mute, a.next = a.read.Topic(), a.read.Newest(), a.read.Told(), isSilence(err), time.Time{}
	if err != nil {
		a.unread = err.Error()
		return
	}
	a.whole, a.ever, a.unread = a.read.Whole(), true, ""
}

func guardsActs(g *experiment.Guards) bool { return len(g.Fewer)+len(g.More) > 0 }

// waits says why no step may be taken by what is known of outcomes; empty: it may.
func (a *acts) waits(g *experiment.Guards) string {
	broken := a.broken()
	switch {
	case !guardsActs(g) || a.unread == "" && broken == "":
		return ""
	case a.unread == "":
		return "its guards on what viewers do see almost nothing: " + broken
	}
	return "its guards on what viewers do can count nothing: " + a.unread + a.again()
}

// broken says why most outcomes that name an answer of the experiment cannot belong to it;
// empty: most do.
func (a *acts) broken() string {
	if says := a.told.Broken(); says != "" {
		return fmt.Sprintf("of %s %s; mend what writes it, then pause and start this", a.of.Topic, says)
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
	switch {
	case a.newest < began:
		return fmt.Sprintf("its guards on what viewers do wait for outcomes: none has come to %s since %s; %s", a.of.Topic, began, a.age(time.Now()))
	case a.silence(r.Last) > 0:
		return fmt.Sprintf("its guards on what viewers do wait for outcomes: %s, and answers have come for %s since", a.age(time.Now()), a.silence(r.Last).Round(time.Second))
	}
	for _, action := range slices.Sorted(maps.Keys(g.Fewer)) {
		if i := slices.Index(r.Actions, action); i >= 0 && r.Acted[i] < began {
			return fmt.Sprintf("its guard on fewer %s waits for one: no viewer has done that with what was shown since %s; %s", action, began, a.age(time.Now()))
		}
	}
	return ""
}

// silence is for how long answers have come without an outcome, if that is too long.
func (a *acts) silence(last millrace.Time) time.Duration {
	if past := last.Std().Sub(max(a.newest, a.from).Std()); last != 0 && past > max(silent, a.of.For()) {
		return past
	}
	return 0
}

// age says how old the newest outcome is.
func (a *acts) age(now time.Time) string {
	if a.newest == 0 {
		return fmt.Sprintf("no outcome has come to %s since the evidence began", a.of.Topic)
	}
	return fmt.Sprintf("the newest outcome of %s is %s old", a.of.Topic, now.Sub(a.newest.Std()).Round(time.Second))
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
	if broken := a.broken(); broken != "" {
		return "guards on what viewers do are blind: " + broken
	}
	if past := a.silence(last); past > 0 {
		return fmt.Sprintf("guards on what viewers do are blind: %s, and answers have come for %s since", a.age(time.Now()), past.Round(time.Second))
	}
	return ""
}

// look is what is noted of it: until it has been read, what the coordinator before knew.
func (a *acts) look() *experiments.OutcomesLook {
	if !a.ever {
		return a.was
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
