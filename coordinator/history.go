package coordinator

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/internal/experiments"
)

// evidence returns when the experiment's evidence begins.
func (w *watched) evidence() millrace.Time {
	if w.anew() {
		return millrace.TimeOf(w.basis.Since)
	}
	return w.from
}

// anew reports whether the evidence begins with a change of what the experiment leans on, and
// not with a change of the experiment.
func (w *watched) anew() bool {
	return !w.basis.Since.IsZero() && millrace.TimeOf(w.basis.Since) >= w.from // they are equal if recall took w.from from the trail
}

// atShare returns when the experiment's share last changed, or what it leans on if that
// changed later.
func (w *watched) atShare() time.Time {
	if w.anew() && w.basis.Since.After(w.changed) {
		return w.basis.Since
	}
	return w.changed
}

// trace finds out, from the history of its document, when a person last changed an
// experiment (w.from) and when its share last changed (w.changed). It reports whether the
// last change was a coordinator's pause. Events that an earlier call has seen are not
// looked at again.
func (g *guard) trace(ctx context.Context, w *watched) (paused bool, err error) {
	events, err := g.store.Documents.History(ctx, w.Document)
	if err != nil {
		return false, err
	}
	name := w.Experiment.Name
	g.mu.Lock()
	old := g.mu.watched[name]
	g.mu.Unlock()
	known := -1 // the index of the last event that was looked at
	if old != nil && old.Document == w.Document {
		known = slices.IndexFunc(events, func(e ledger.Event) bool { return e == old.last })
	}
	if known >= 0 {
		w.from, w.changed = old.from, old.changed
	}
	var before artefacts.Version // the version that served before
	whole := ledger.Whole(events)
	unknown := !whole // the events do not tell whether a coordinator or a person changed it last
	for i, e := range events {
		w.last = e
		v := artefacts.Version{Name: w.Document, Version: e.Version, Sum: e.Sum}
		was := before
		switch {
		case e.What == ledger.Dropped && v == before:
			before, whole = artefacts.Version{}, true // the history is whole from here on
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

// recall fills in w.from and w.changed if the history of the document, which keeps only the
// newest events, does not tell them any more. It takes what a coordinator noted in the
// trail, or else oldest, the time of the oldest event that is left.
func (g *guard) recall(w *watched, oldest time.Time) {
	trail, _ := g.trails.Of(w.Experiment.Name) // a trail that cannot be read tells nothing
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

// byCoordinator is the prefix by which a document's history tells that a coordinator made a
// change. No person's name has it, since such names contain no space.
const byCoordinator = "coordinator "

// rampedText returns how a ramp is described, up to the share.
func rampedText(name string) string { return "ramped " + name + " to " }
