package experiments

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/line"
	"github.com/millrace/millrace/internal/outcome"
)

// TrailsKind is the kind of the cluster's documents that say why experiments are
// ramped (given a larger share) and paused, each under its experiment's name. A coordinator
// pauses an experiment if one of its guards (bounds on harm) is broken. Trails are apart from
// the definitions: a look at an experiment or a hold must not change its definition, since
// then its evidence would begin anew.
const TrailsKind = "decisions"

// Trail is what coordinators saw of an experiment and decided about it, and whether a person
// holds its next step.
type Trail struct {
	Looked    *Look      `json:"looked,omitempty"`    // the last look; nil: no coordinator has looked
	Decisions []Decision `json:"decisions,omitempty"` // the newest last
	Hold      *Hold      `json:"hold,omitempty"`      // nil: the experiment may be ramped
	Sources   Sources    `json:"sources,omitzero"`    // where its evidence is read from
}

// Sources are the topics that the evidence of an experiment is read from. They have the
// IDs of the topics: by these the coordinator that leads next finds out that a topic was
// deleted and created again while nobody looked.
type Sources struct {
	Since     millrace.Time  `json:"since"` // when the evidence begins
	Exposures exposure.Topic `json:"exposures,omitzero"`
	Outcomes  exposure.Topic `json:"outcomes,omitzero"`
}

// Tell reports whether s already tells all that now does, so that nothing needs to be noted.
func (s Sources) Tell(now Sources) bool {
	next, _ := s.with(now)
	return next == s
}

// with returns s with what now tells beyond it. anew are the topics that were created again:
// they have another ID in now than in s. If s is of other evidence (Since differs), with
// returns now as it is.
func (s Sources) with(now Sources) (next Sources, anew []exposure.Topic) {
	if next = s; s.Since != now.Since {
		return now, nil
	}
	for _, pair := range [][2]*exposure.Topic{{&next.Exposures, &now.Exposures}, {&next.Outcomes, &now.Outcomes}} {
		was, is := pair[0], pair[1]
		if is.ID == "" || *was == *is {
			continue
		}
		if was.ID != "" {
			anew = append(anew, *is)
		}
		*was = *is
	}
	return next, anew
}

// Look is what a coordinator saw when it last looked at an experiment, and what it waits for.
type Look struct {
	When   time.Time `json:"when"`
	By     string    `json:"by"`               // the coordinator
	Says   string    `json:"says"`             // what the coordinator waits for
	Share  int       `json:"share,omitempty"`  // the experiment's share then, in slots of 10,000; 0: noted by an older release
	Inputs []string  `json:"inputs,omitempty"` // the numbers that it saw, in words
	Whole  time.Time `json:"whole,omitzero"`   // when it last was sure to have read all exposures that there were
	Newest time.Time `json:"newest,omitzero"`  // the newest answer that was read; zero: none was
	Since  time.Time `json:"since,omitzero"`   // when the evidence began anew, since a feed or model changed; zero: it begins with the experiment
	Anew   string    `json:"anew,omitempty"`   // which feed or model changed
	Blind  string    `json:"blind,omitempty"`  // why guards do not see what is shown, or what viewers do
	Stay   Stay      `json:"stay,omitzero"`
	// Outcomes is what is known of what viewers do; nil: the definition names no outcomes.
	Outcomes *OutcomesLook `json:"outcomes,omitempty"`
}

// Stay is for how long an experiment has been watched since it got its present share, and
// since each variant shows what it shows now. The coordinator that leads next adds to it.
type Stay struct {
	Since   time.Time `json:"since"`   // when the experiment got its share, or its evidence began anew if that was later
	Seconds float64   `json:"seconds"` // how much of the time since then a coordinator watched
}

// For returns Seconds as a duration.
func (s Stay) For() time.Duration { return time.Duration(s.Seconds * float64(time.Second)) }

// OutcomesLook is what a coordinator knows of the outcomes of an experiment.
type OutcomesLook struct {
	Topic  string    `json:"topic"`
	Whole  time.Time `json:"whole"`           // when all outcomes were last read
	Before bool      `json:"before,omitzero"` // Whole is from the coordinator before, or from other evidence; this one has not read them all yet
	Newest time.Time `json:"newest,omitzero"` // the newest outcome that belongs to an answer; zero: there is none
	// Told is what became of all outcomes; nil: noted by an older release.
	Told *outcome.Report `json:"told,omitempty"`
}

// LooksEvery is the longest time between two looks of a coordinator that watches an
// experiment. In fact it looks far more often: if its last look is older, it does not
// watch.
const LooksEvery = 30 * time.Second

// Unwatched says why no coordinator watches an experiment with guards, so that nobody
// would notice if the experiment does harm. It returns "" if a coordinator watches it, or
// need not have looked yet. since is when the experiment began to run; t and err are what
// [Trails.Of] returned.
func (t *Trail) Unwatched(err error, since, now time.Time) string {
	last := since
	if t.LookedSince(since) {
		last = t.Looked.When
	}
	switch ago := now.Sub(last); {
	case err != nil:
		return fmt.Sprintf("what coordinators noted of it cannot be read; the one that leads begins it anew within seconds, and so do millrace experiment hold and resume: %v", err)
	case ago > LooksEvery && t.Looked == nil:
		return "no coordinator has looked at it: is one running, with exposures in its configuration?"
	case ago > LooksEvery:
		return fmt.Sprintf("no coordinator has looked at it for %s: does one lead, and does it get on?", ago.Round(time.Second))
	case t.LookedSince(since):
		return t.Looked.Blind
	}
	return ""
}

// LookedSince reports whether a coordinator has looked since a time, such as when the
// experiment began to run.
func (t *Trail) LookedSince(since time.Time) bool {
	return t.Looked != nil && !t.Looked.When.Before(since)
}

// Decision is a step of a ramp or a pause by a coordinator, a hold or resume by a person, or
// a note that evidence is gone.
type Decision struct {
	When   time.Time `json:"when"`
	By     string    `json:"by"`               // the coordinator, a person, or beginner or restorer
	Person bool      `json:"person,omitempty"` // By is a person
	Cut    bool      `json:"cut,omitempty"`    // it only notes that evidence is gone; nothing was decided
	What   string    `json:"what"`             // in words
	Why    string    `json:"why"`              // empty: a person gave no reason
	Inputs []string  `json:"inputs,omitempty"` // the numbers that it was decided by, in words
}

// Apart reports whether a decision is only in the trail. A step of a ramp or a pause by a
// coordinator is not: it also changes the experiment's document, whose history tells of it.
func (d *Decision) Apart() bool {
	return d.Person || d.Cut || d.By == restorer || d.By == beginner
}

// SteppedSince reports whether a coordinator has ramped or paused the experiment since a
// time, as far as the trail tells.
func (t *Trail) SteppedSince(when time.Time) bool {
	return slices.ContainsFunc(t.Decisions, func(d Decision) bool { return !d.Apart() && d.When.After(when) })
}

// PausedLast returns the last step or pause by a coordinator in the trail, if that was a
// pause and no coordinator has looked at the experiment after it. (Coordinators look only
// at experiments that run.) Else it returns nil.
func (t *Trail) PausedLast(name string) *Decision {
	for i := range t.Decisions {
		d := &t.Decisions[len(t.Decisions)-1-i]
		if d.Apart() {
			continue
		}
		if d.What == PausedText(name) && (t.Looked == nil || !t.Looked.When.After(d.When)) {
			return d
		}
		return nil
	}
	return nil
}

// PausedText returns the What of the Decision by which a coordinator pauses an experiment.
func PausedText(name string) string { return "paused " + name }

// Hold is a veto, as a rule a person's, against the next step of a ramp. It does not keep
// guards from pausing the experiment.
type Hold struct {
	When time.Time `json:"when"`
	By   string    `json:"by"`
	Why  string    `json:"why,omitempty"`
}

// beginner is Hold.By and Decision.By for a trail that was begun anew because the old one
// could not be read: there may have been a veto in it.
const beginner = "a trail that could not be read"

// anew returns a trail, with a hold, in place of one that cannot be read.
func anew(name string, why error, when time.Time) Trail {
	t := Trail{Hold: &Hold{When: when, By: beginner, Why: "there may have been a veto in it"}}
	t.decide(Decision{When: when, By: beginner, What: "was begun anew for " + name, Why: why.Error()})
	return t
}

// restorer is Hold.By and Decision.By for the holds after a restoration of etcd: a veto may
// have been lost.
const restorer = "a restoration of etcd"

// restoredName is the document that has the number of the last restoration of etcd after
// which ramps were held; see [documents.Kind.Generation]. No experiment can have such a
// name.
const restoredName = "0-restored"

// IsTrail reports whether a document of [TrailsKind] is an experiment's.
func IsTrail(name string) bool { return name != restoredName }

// HoldRestored holds the ramps of experiments once after each restoration of etcd. If they
// are to be held, it calls to, which returns the names of the experiments. It returns the
// names of those that are held then; nil if there was no new restoration.
func (t *Trails) HoldRestored(ctx context.Context, lead *cluster.Lead, to func() ([]string, error)) (held []string, err error) {
	now := t.docs.Generation()
	if known, _ := strconv.ParseInt(t.docs.Current()[restoredName].Body, 10, 64); known >= now {
		return nil, nil
	}
	if now > 1 { // 1 is a new cluster, in which nothing was restored
		if held, err = to(); err != nil {
			return nil, err
		}
	}
	for _, name := range held {
		when := time.Now().UTC().Truncate(time.Millisecond)
		err := t.change(ctx, lead, name, func(trail *Trail) error {
			if trail.Hold == nil {
				trail.Hold = &Hold{When: when, By: restorer, Why: "a veto may be among what was lost"}
				trail.decide(Decision{When: when, By: restorer, What: "held " + name, Why: trail.Hold.Why})
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return held, t.docs.ChangeAs(ctx, lead, restoredName, func(string) (string, error) { return strconv.FormatInt(now, 10), nil })
}

// The bounds of a trail.
const (
	maxDecisions  = 30  // the newest are kept
	maxInputs     = 60  // inputs of a decision or a look; others are dropped
	maxInputBytes = 200 // bytes of each input, and of other texts
)

// Trails is the watched trails of all experiments.
type Trails struct{ docs *documents.Kind }

// OpenTrails watches the trails of a cluster. It returns once they have been read, from etcd
// or, if etcd is away, from disk; see [documents.Watch].
func OpenTrails(ctx context.Context, cl *cluster.Client) (*Trails, error) {
	docs, err := documents.Watch(ctx, cl, TrailsKind)
	return &Trails{docs}, err
}

// Changed returns a channel that is closed once any trail has changed.
func (t *Trails) Changed() <-chan struct{} { return t.docs.Changed() }

// Of returns an experiment's trail; an empty one if nothing is known. An error says that the
// trail cannot be read; the trail returned with it is a new one, with a hold.
func (t *Trails) Of(name string) (Trail, error) { return parseTrail(name, t.docs.Current()[name].Body) }

// parseTrail reads the trail of experiment name; see [Trails.Of].
func parseTrail(name, body string) (trail Trail, err error) {
	if body == "" {
		return trail, nil
	}
	if err = json.Unmarshal([]byte(body), &trail); err != nil {
		err = fmt.Errorf("experiments: decisions/%s: %w", name, err)
		trail = anew(name, err, time.Now().UTC().Truncate(time.Millisecond))
	}
	trail.inLines()
	return trail, err
}

// inLines replaces what would break a line in each text of a trail, whoever wrote it.
func (t *Trail) inLines() {
	texts := []*string{}
	inputs := [][]string{}
	if l := t.Looked; l != nil {
		texts, inputs = append(texts, &l.By, &l.Says, &l.Blind, &l.Anew), append(inputs, l.Inputs)
	}
	if h := t.Hold; h != nil {
		texts = append(texts, &h.By, &h.Why)
	}
	for i := range t.Decisions {
		d := &t.Decisions[i]
		texts, inputs = append(texts, &d.By, &d.What, &d.Why), append(inputs, d.Inputs)
	}
	for _, all := range inputs {
		for i := range all {
			texts = append(texts, &all[i])
		}
	}
	for _, s := range texts {
		*s = line.Of(*s)
	}
}

// Look notes what the leading coordinator saw. If lead no longer leads, as after the process
// was frozen, it notes nothing and returns [cluster.ErrNotLeader]. Like every change of a
// trail, it replaces a trail that cannot be read by a new one, with a hold that stays until a
// person resumes the experiment.
func (t *Trails) Look(ctx context.Context, lead *cluster.Lead, name string, l Look) error {
	l.Says, l.Blind, l.Anew, l.Inputs = short(l.Says), short(l.Blind), short(l.Anew), shortInputs(l.Inputs)
	return t.change(ctx, lead, name, func(trail *Trail) error { trail.Looked = &l; return nil })
}

// Reads notes, as [Trails.Look] does, the topics that a coordinator reads evidence from. If
// one of them was created again, it adds a decision that says so, and reports cut.
func (t *Trails) Reads(ctx context.Context, lead *cluster.Lead, name, by string, from Sources) (cut bool, err error) {
	err = t.change(ctx, lead, name, func(trail *Trail) error {
		next, anew := trail.Sources.with(from)
		for _, topic := range anew {
			trail.decide(Decision{When: time.Now().UTC().Truncate(time.Millisecond), By: by, Cut: true, What: "found evidence of " + name + " cut", Why: topic.Anew().Error()})
		}
		trail.Sources, cut = next, len(anew) > 0
		return nil
	})
	return cut, err
}

// ErrHeld refuses a step that somebody has vetoed.
var ErrHeld = errors.New("experiments: its next step is held")

// Ramps returns the change of a trail that notes a step of a ramp, for [Store.With]. The
// Store makes it in one transaction with the change of the experiment's document, so that
// there is no step without its reason. The change fails with [ErrHeld] if there is a hold.
func (t *Trails) Ramps(name string, d Decision) *artefacts.With {
	return t.with(name, func(body string) (string, error) {
		trail, err := parseTrail(name, body)
		if trail.Hold != nil {
			return "", errors.Join(ErrHeld, err)
		}
		return trail.textWith(d)
	})
}

// Pauses is Ramps for a pause. A hold does not prevent it.
func (t *Trails) Pauses(name string, d Decision) *artefacts.With {
	return t.with(name, func(body string) (string, error) {
		trail, _ := parseTrail(name, body)
		return trail.textWith(d)
	})
}

func (t *Trails) with(name string, by func(body string) (string, error)) *artefacts.With {
	return &artefacts.With{Documents: t.docs, Name: name, By: by}
}

// textWith returns the text of a trail with one more decision.
func (t Trail) textWith(d Decision) (string, error) {
	t.decide(d)
	text, err := json.Marshal(t)
	return string(text), err
}

// decide adds a decision, and drops the oldest ones beyond maxDecisions.
func (t *Trail) decide(d Decision) {
	d.Why, d.Inputs = short(d.Why), shortInputs(d.Inputs)
	t.Decisions = append(t.Decisions, d)
	t.Decisions = t.Decisions[max(0, len(t.Decisions)-maxDecisions):]
}

// Hold vetoes the next step of an experiment's ramp, until Resume. It refuses an experiment
// that a person holds already. It replaces a hold that is there because a trail could not be
// read or etcd was restored. It also adds the hold to the decisions.
func (t *Trails) Hold(ctx context.Context, name string, h Hold) error {
	if err := line.Check("why", h.Why); err != nil {
		return err
	}
	h.Why = short(h.Why)
	return t.change(ctx, nil, name, func(trail *Trail) error {
		if trail.Hold != nil && trail.Hold.By != beginner && trail.Hold.By != restorer {
			return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "experiment", Detail: fmt.Sprintf("%s holds it since %s", trail.Hold.By, trail.Hold.When.Format(time.RFC3339)), WayOut: "let it go on with millrace experiment resume"}
		}
		trail.Hold = &h
		trail.decide(Decision{When: h.When, By: h.By, Person: true, What: "held " + name, Why: h.Why})
		return nil
	})
}

// Resume ends a hold, and adds that to the decisions. It refuses an experiment without one.
func (t *Trails) Resume(ctx context.Context, name, by string, when time.Time) error {
	return t.change(ctx, nil, name, func(trail *Trail) error {
		if trail.Hold == nil {
			return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "experiment", Detail: "nobody holds it", WayOut: "see millrace experiment status for what it waits for"}
		}
		trail.Hold = nil
		trail.decide(Decision{When: when, By: by, Person: true, What: "resumed " + name})
		return nil
	})
}

// Noted is the trails of all experiments as they were at some time.
type Noted struct{ docs map[string]documents.Document }

// Noted returns the trails as they are now.
func (t *Trails) Noted() Noted { return Noted{t.docs.Current()} }

// Keep deletes the trails in before, except those of the experiments in names. The caller
// must first have called Noted, for before, and then have listed the experiments. A trail
// that has changed since Noted stays: its experiment may have been defined and held
// meanwhile.
func (t *Trails) Keep(ctx context.Context, names []string, before Noted) error {
	for _, name := range slices.Sorted(maps.Keys(before.docs)) {
		if !IsTrail(name) || slices.Contains(names, name) {
			continue
		}
		was := before.docs[name].Body
		err := t.docs.Change(ctx, name, func(body string) (string, error) {
			if body != was {
				return body, nil
			}
			return "", nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// change changes a trail; if lead is not nil, only as long as it leads.
func (t *Trails) change(ctx context.Context, lead *cluster.Lead, name string, by func(*Trail) error) error {
	return t.docs.ChangeAs(ctx, lead, name, func(body string) (string, error) {
		trail, _ := parseTrail(name, body)
		if err := by(&trail); err != nil {
			return "", err
		}
		next, err := json.Marshal(trail)
		return string(next), err
	})
}

// short returns s, cut to at most maxInputBytes bytes: after a word, with " ..." at the end.
func short(s string) string {
	if len(s) <= maxInputBytes {
		return strings.ToValidUTF8(s, "")
	}
	const more = " ..."
	cut := s[:maxInputBytes-len(more)]
	if at := strings.LastIndexByte(cut, ' '); at > 0 && s[len(cut)] != ' ' {
		cut = cut[:at]
	}
	return strings.ToValidUTF8(cut, "") + more
}

func shortInputs(all []string) []string {
	out := make([]string, 0, min(len(all), maxInputs))
	for _, s := range all[:min(len(all), maxInputs)] {
		out = append(out, short(s))
	}
	return out
}
