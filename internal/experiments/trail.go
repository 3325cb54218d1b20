package experiments

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
)

// trailsKind is the kind of the cluster's documents that say why experiments are
// ramped and paused, each under its experiment's name. They stand apart from the
// definitions: to look at an experiment, or to hold it, begins no evidence anew.
const trailsKind = "decisions"

// Trail is what a coordinator made of an experiment, and what a person says to
// its next step.
type Trail struct {
	Looked    *Look      `json:"looked,omitempty"`    // at last
	Decisions []Decision `json:"decisions,omitempty"` // the newest last
	Hold      *Hold      `json:"hold,omitempty"`      // nil: it may be ramped
}

// Look is what a coordinator saw, and why it did nothing.
type Look struct {
	When   time.Time `json:"when"`
	By     string    `json:"by"`   // the coordinator
	Says   string    `json:"says"` // what it waits for
	Inputs []string  `json:"inputs,omitempty"`
}

// Decision is a step that a coordinator took, and by what.
type Decision struct {
	When   time.Time `json:"when"`
	By     string    `json:"by"`
	What   string    `json:"what"`
	Why    string    `json:"why"`
	Inputs []string  `json:"inputs,omitempty"`
}

// Hold is a person's veto against the next step of a ramp. Guards pause all the
// same.
type Hold struct {
	When time.Time `json:"when"`
	By   string    `json:"by"`
	Why  string    `json:"why,omitempty"`
}

// The bounds of a trail.
const (
	maxDecisions  = 30
	maxInputs     = 60  // of a decision or a look
	maxInputBytes = 200 // of each, and of other texts
)

// Trails is the watched trails of all experiments.
type Trails struct{ docs *cluster.Documents }

// OpenTrails watches the trails of a cluster. It returns as
// [cluster.Client.Documents] does.
func OpenTrails(ctx context.Context, cl *cluster.Client) (*Trails, error) {
	docs, err := cl.Documents(ctx, trailsKind)
	return &Trails{docs}, err
}

// Of returns an experiment's trail; an empty one if nothing is known.
func (t *Trails) Of(name string) (Trail, error) { return parseTrail(t.docs.Current()[name].Body) }

func parseTrail(body string) (trail Trail, err error) {
	if body == "" {
		return trail, nil
	}
	if err = json.Unmarshal([]byte(body), &trail); err != nil {
		err = fmt.Errorf("experiments: decisions: %w", err)
	}
	return trail, err
}

// Look notes what a coordinator saw.
func (t *Trails) Look(ctx context.Context, name string, l Look) error {
	l.Says, l.Inputs = short(l.Says), shortInputs(l.Inputs)
	return t.change(ctx, name, func(trail *Trail) error { trail.Looked = &l; return nil })
}

// Decide notes a step.
func (t *Trails) Decide(ctx context.Context, name string, d Decision) error {
	d.Why, d.Inputs = short(d.Why), shortInputs(d.Inputs)
	return t.change(ctx, name, func(trail *Trail) error {
		trail.Decisions = append(trail.Decisions, d)
		trail.Decisions = trail.Decisions[max(0, len(trail.Decisions)-maxDecisions):]
		return nil
	})
}

// Hold vetoes the next step of an experiment's ramp, until Resume. One that is
// held already stays so, for the first reason.
func (t *Trails) Hold(ctx context.Context, name string, h Hold) error {
	h.Why = short(h.Why)
	return t.change(ctx, name, func(trail *Trail) error {
		if trail.Hold != nil {
			return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "experiment", Detail: fmt.Sprintf("%s holds it since %s", trail.Hold.By, trail.Hold.When.Format(time.RFC3339)), WayOut: "let it go on with millrace experiment resume"}
		}
		trail.Hold = &h
		return nil
	})
}

// Resume takes a veto back.
func (t *Trails) Resume(ctx context.Context, name string) error {
	return t.change(ctx, name, func(trail *Trail) error {
		if trail.Hold == nil {
			return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "experiment", Detail: "nobody holds it", WayOut: "see millrace experiment status for what it waits for"}
		}
		trail.Hold = nil
		return nil
	})
}

// Keep forgets the trails of all but some experiments.
func (t *Trails) Keep(ctx context.Context, names []string) error {
	for _, name := range slices.Sorted(maps.Keys(t.docs.Current())) {
		if slices.Contains(names, name) {
			continue
		}
		if err := t.docs.Delete(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// change changes a trail. One that is malformed begins anew.
func (t *Trails) change(ctx context.Context, name string, by func(*Trail) error) error {
	return t.docs.Change(ctx, name, func(body string) (string, error) {
		trail, err := parseTrail(body)
		if err != nil {
			trail = Trail{}
		}
		if err := by(&trail); err != nil {
			return "", err
		}
		next, err := json.Marshal(trail)
		return string(next), err
	})
}

func short(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxInputBytes)], "") }

func shortInputs(all []string) []string {
	out := make([]string, 0, min(len(all), maxInputs))
	for _, s := range all[:min(len(all), maxInputs)] {
		out = append(out, short(s))
	}
	return out
}
