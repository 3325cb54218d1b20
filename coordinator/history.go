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

// byCoordinator begins who made a change, in a document's history. A person's name has no
// space.
const byCoordinator = "coordinator "

func rampedText(name string) string { return "ramped " + name + " to " }
