package experiment

import (
	"encoding/json"
	"fmt"
	"maps"
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
	// Named are the units that the hash deals a variant and that experiments which run
	// name: they are not dealt it by chance, and so are missing among who is. In a layer
	// of attributes that is not known of anybody.
	Named []Named
}

// Named are units that the hash deals a variant, and that an experiment names.
type Named struct {
	Variant string
	By      string // the experiment; it may be the same
	Units   []string
}

func (n *Named) String() string {
	return fmt.Sprintf("experiment %s names %s whom the hash deals %s", n.By, unitsOf(n.Units), n.Variant)
}

// named returns whom experiments that run name of those whom the hash deals to one.
func (e *compiled) named() (all []Named) {
	if e == nil {
		return nil
	}
	for _, id := range slices.Sorted(maps.Keys(e.layer.forced)) {
		variant, has := e.hashed(id)
		for _, f := range e.layer.forced[id] {
			if !has || f.e.State != Running || !slices.ContainsFunc(f.e.Feeds, func(feed string) bool { return slices.Contains(e.Feeds, feed) }) {
				continue
			}
			at := slices.IndexFunc(all, func(n Named) bool { return n.Variant == variant && n.By == f.e.Name })
			if at < 0 {
				at, all = len(all), append(all, Named{Variant: variant, By: f.e.Name})
			}
			all[at].Units = append(all[at].Units, id)
		}
	}
	return all
}

// stays says whom a draft names and does not get, since others use their slots.
func (s *Set) stays(e *compiled) string {
	if e == nil || e.State != Draft || e.layer.kind == ofAttribute {
		return ""
	}
	var ids []string
	for id := range e.Forced {
		if slices.ContainsFunc(e.Feeds, func(feed string) bool { return s.holder(e.layer, e.layer.prefix.Slot(id), feed) != nil }) {
			ids = append(ids, id)
		}
	}
	if ids == nil {
		return ""
	}
	slices.Sort(ids)
	return unitsOf(ids) + " that it names stay with the experiments that use their slots: a draft takes nobody out"
}

// Experiments returns all experiments, by name.
func (s *Set) Experiments() (all []Defined) {
	for _, e := range s.experiments {
		r := slot.Rule{Experiment: e.Name, Feeds: sorted(e.Feeds), Salt: e.layer.Salt, Unit: e.layer.Unit, Slots: []slot.Range{}, Arms: slices.Clone(e.arms), Targeting: e.Targeting}
		if e.State == Running && e.unfit == "" {
			r.Slots = append(r.Slots, e.used...)
		}
		if e.unfit == "" && (e.State == Running || e.State == Draft) {
			r.Forced, r.Elsewhere, r.Taken = e.Forced, s.elsewhere(e), s.taken(e)
		}
		all = append(all, Defined{s.docs[e.at.doc].Name, e.Experiment, e.checksum, e.unfit, r, e.named()})
	}
	return all
}

// elsewhere returns, in order and by feed, who has another experiment of the layer
// there: those whom that one forces, and of a draft those of its own forced who have
// the other's slots.
func (s *Set) elsewhere(e *compiled) (all map[string][]string) {
	for id, by := range e.layer.forced {
		for _, f := range by {
			for _, feed := range e.Feeds {
				switch {
				case !slices.Contains(f.e.Feeds, feed):
					continue
				case f.e == e: // of attributes the slot is not that of the id
					if e.State == Running || e.layer.kind == ofAttribute || s.holder(e.layer, e.layer.prefix.Slot(id), feed) == nil {
						continue
					}
				case f.e.State == Draft:
					continue
				}
				if all == nil {
					all = map[string][]string{}
				}
				all[feed] = append(all[feed], id)
			}
		}
	}
	for _, ids := range all {
		slices.Sort(ids)
	}
	return all
}

// taken returns, by feed, the slots that others of the layer use, for whom a draft in a
// layer of an attribute names: which slot that is, the value says, and not the id.
func (s *Set) taken(e *compiled) (all map[string][]slot.Range) {
	if e.State != Draft || e.layer.kind != ofAttribute || len(e.Forced) == 0 {
		return nil
	}
	all = map[string][]slot.Range{}
	for _, feed := range e.Feeds {
		for at := range slot.Count {
			if s.holder(e.layer, at, feed) == nil {
				continue
			}
			if n := len(all[feed]); n > 0 && all[feed][n-1].To == at-1 {
				all[feed][n-1].To = at
			} else {
				all[feed] = append(all[feed], slot.Range{From: at, To: at})
			}
		}
	}
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
