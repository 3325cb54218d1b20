package experiment

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/slot"
	"github.com/millrace/millrace/relevance/weights"
)

// textOf writes slots as a definition does: "0-499, 600".
func textOf(slots []slot.Range) string {
	const most = 8
	var parts []string
	for i, r := range slots {
		switch {
		case i == most:
			parts = append(parts, fmt.Sprintf("and %d more", count(slots[i:])))
			return strings.Join(parts, ", ")
		case r.From == r.To:
			parts = append(parts, fmt.Sprint(r.From))
		default:
			parts = append(parts, fmt.Sprintf("%d-%d", r.From, r.To))
		}
	}
	return strings.Join(parts, ", ")
}

// String writes what is set as JSON, with the names of a definition.
func (s *Sets) String() string {
	type text struct { // a span of time as people write it
		Sets
		Window string `json:"window,omitempty"`
	}
	t := text{Sets: *s}
	if s.Window != nil {
		t.Window = s.Window.String()
	}
	b, err := json.Marshal(t)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// weightsText tells weights that are set, by the checksum that receipts have.
func (s *Sets) weightsText() string {
	if len(s.Weights) == 0 {
		return ""
	}
	return fmt.Sprintf("; it sets weights %.12s", weights.Sum(weights.Form(s.Weights)))
}

// Nothing reports whether a variant leaves the feed as it is defined.
func (s *Sets) Nothing() bool { return len(s.parameters()) == 0 }

// Defined is an experiment of a set.
type Defined struct {
	Document   string // that it stands in
	Experiment Experiment
	Checksum   string
	Unfit      string // what is known against it, so that it gives nobody a variant; "" for nothing
	// Rule is what a caller needs to deal units by itself; it has no slots
	// unless the experiment runs.
	Rule slot.Rule
}

// Experiments returns all experiments, by name.
func (s *Set) Experiments() (all []Defined) {
	for _, e := range s.experiments {
		r := slot.Rule{Experiment: e.Name, Salt: e.layer.Salt, Unit: e.layer.Unit, Slots: []slot.Range{}, Arms: slices.Clone(e.arms)}
		if e.State == Running && e.unfit == "" {
			r.Slots = append(r.Slots, e.used...)
		}
		if e.unfit == "" && (e.State == Running || e.State == Draft) {
			r.Forced, r.Elsewhere = e.Forced, e.elsewhere()
		}
		all = append(all, Defined{s.docs[e.at.doc].Name, e.Experiment, e.checksum, e.unfit, r})
	}
	return all
}

// elsewhere returns, in order, whom other experiments of the layer force on a feed of
// this one.
func (e *compiled) elsewhere() (all []string) {
	for id, by := range e.layer.forced {
		if slices.ContainsFunc(by, func(f forced) bool {
			return f.e != e && slices.ContainsFunc(f.e.feeds, func(x *feed) bool { return slices.Contains(e.feeds, x) })
		}) {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	return all
}

// Deals returns what says whether chance can have dealt a variant to a unit, at any
// time in the experiment's life: by the draw alone, which neither its share nor
// its slots change. Two things do change what is dealt, and are allowed for: the
// experiment may have been monitored before; and once it has stopped its layer may
// get another salt, so then only answers of the definition as it is are judged.
func (d *Defined) Deals() func(unit, variant, checksum string) bool {
	prefix := slot.Under(d.Rule.Salt, d.Rule.Experiment)
	arms, evenly := d.Rule.Arms, armsOf(byName(d.Experiment.Variants), true)
	return func(unit, variant, checksum string) bool {
		if d.Experiment.State == Stopped && checksum != d.Checksum {
			return true
		}
		draw := prefix.Slot(unit)
		return unit != "" && (arms[slot.ArmOf(arms, draw)].Variant == variant || evenly[slot.ArmOf(evenly, draw)].Variant == variant)
	}
}

// UsesModel returns the experiments, by name, that are not stopped and rank by a
// model: it must not be dropped.
func (s *Set) UsesModel(name string) (experiments []string) {
	return s.using(func(e *compiled) bool {
		return slices.ContainsFunc(e.Variants, func(v Variant) bool { return slices.Contains(v.Set.models(), name) })
	})
}

// Weighted returns what the variants of an experiment set that set weights.
func (s *Set) Weighted(experiment string) (all []Sets) {
	if e := s.experiment(experiment); e != nil {
		for _, v := range e.Variants {
			if len(v.Set.Weights) > 0 {
				all = append(all, v.Set)
			}
		}
	}
	return all
}

// Compared returns the models that the variants of an experiment rank by, if it
// compares any; "" is the feed's own.
func (s *Set) Compared(experiment string) (models []string) {
	if e := s.experiment(experiment); e != nil && e.ComparesModels() {
		for i := range e.Variants {
			models = append(models, e.Variants[i].Set.Rankings()...)
		}
	}
	return models
}

// DraftsSecond returns the experiments, by name, that are not stopped and have a
// variant in which a model drafts pages as the second of two.
func (s *Set) DraftsSecond(model string) (experiments []string) {
	return s.using(func(e *compiled) bool {
		return slices.ContainsFunc(e.Variants, func(v Variant) bool { return len(v.Set.Interleave) == 2 && v.Set.Interleave[1] == model })
	})
}

// UsesFeed returns the experiments, by name, that are not stopped and apply to a
// feed: it must not be removed.
func (s *Set) UsesFeed(name string) (experiments []string) {
	return s.using(func(e *compiled) bool { return slices.Contains(e.Feeds, name) })
}

func (s *Set) using(uses func(*compiled) bool) (names []string) {
	for _, e := range s.experiments {
		if e.State != Stopped && uses(e) {
			names = append(names, e.Name)
		}
	}
	return names
}
