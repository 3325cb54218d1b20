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

// textOf returns slots as a definition has them, such as "0-499, 600". It has eight ranges at
// most, and then says how many more slots there are.
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

// String returns what is set as JSON, with the names that definitions have.
func (s *Sets) String() string {
	type text struct { // has the window as people write it, and not in nanoseconds
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

// weightsText returns a text on the weights that are set, with the checksum that receipts have;
// "" if none are.
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
	Document   string // the name of the document that it is in
	Experiment Experiment
	Checksum   string
	Unfit      string // why it does not fit what is known, so that it gives nobody a variant; "": it fits
	// Rule is what a caller needs to compute variants by itself. It has no slots unless the
	// experiment runs.
	Rule slot.Rule
	// Named are the units that the hash gives a variant, but that a running experiment names
	// and so forces a variant on. They do not have their variant by chance, and so are missing
	// among the units that do. In a layer of an attribute these units are not known, and Named
	// is empty.
	Named []Named
}

// Named are units that the hash gives a variant, and that an experiment names.
type Named struct {
	Variant string   // the one that the hash gives
	By      string   // the experiment that names them; it may be the one of the variant
	Units   []string // sorted
}

func (n *Named) String() string {
	return fmt.Sprintf("experiment %s names %s whom the hash deals %s", n.By, unitsOf(n.Units), n.Variant)
}

// named returns [Defined.Named] of an experiment; nil for a nil one.
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

// stays returns a text on the units that a draft names and does not get, since other experiments
// use their slots; "" if there are none.
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

// Experiments returns all experiments, sorted by name.
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

// elsewhere returns, by feed, the units that are in another experiment of the layer there,
// sorted. These are the units that another experiment forces and that is not a draft. If e is a
// draft, they are also the units that e names and whose slots another experiment uses.
func (s *Set) elsewhere(e *compiled) (all map[string][]string) {
	for id, by := range e.layer.forced {
		for _, f := range by {
			for _, feed := range e.Feeds {
				switch {
				case !slices.Contains(f.e.Feeds, feed):
					continue
				case f.e == e: // in a layer of an attribute, the id does not tell the slot
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

// taken returns, by feed, the slots that other experiments of the layer use, if e is a draft
// that names viewers in a layer of an attribute; otherwise nil. Whether a draft gets a viewer
// whom it names depends on the slot, and there only the value of the attribute tells that.
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

// Deals returns a function that reports whether a unit can have got a variant by chance, at
// any time of the experiment's life, under the definition with a checksum. It goes by the
// draw alone, which neither the share nor the slots change. Two other changes are allowed
// for. The experiment may have been monitored before. And once it is stopped, its layer may
// get another salt; then the function returns true for every other definition than the
// current one.
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

// UsesModel returns the names of the experiments that are not stopped and whose variants name a
// model, sorted. While there are any, the model must not be dropped.
func (s *Set) UsesModel(name string) (experiments []string) {
	return s.using(func(e *compiled) bool {
		return slices.ContainsFunc(e.Variants, func(v Variant) bool { return slices.Contains(v.Set.models(), name) })
	})
}

// Weighted returns what the variants of an experiment set, for each variant that sets weights;
// nil if there is no such variant.
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

// Compared returns the models that the variants of an experiment rank by, "" for the feed's own;
// nil if no variant names a model.
func (s *Set) Compared(experiment string) (models []string) {
	if e := s.experiment(experiment); e != nil && e.ComparesModels() {
		for i := range e.Variants {
			models = append(models, e.Variants[i].Set.Rankings()...)
		}
	}
	return models
}

// DraftsSecond returns the names of the experiments that are not stopped and have a variant in
// which a model is the second of two that draft pages, sorted.
func (s *Set) DraftsSecond(model string) (experiments []string) {
	return s.using(func(e *compiled) bool {
		return slices.ContainsFunc(e.Variants, func(v Variant) bool { return len(v.Set.Interleave) == 2 && v.Set.Interleave[1] == model })
	})
}

// UsesFeed returns the names of the experiments that are not stopped and apply to a feed,
// sorted. While there are any, the feed must not be removed.
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
