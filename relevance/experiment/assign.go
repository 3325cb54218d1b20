package experiment

import (
	"maps"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/slot"
)

// Assignment is the variants that a viewer gets of a feed.
type Assignment struct {
	Experiments []Assigned // at most one for each layer, in the order of the layers' names
	HeldOut     []string   // the layers that hold out the viewer's slot
}

// Assigned is a variant of one experiment.
type Assigned struct {
	Experiment string
	Layer      string
	Variant    string
	Unit       string // the unit that was hashed; if Forced, the id of the viewer or entity
	// Forced is true if the definition names the viewer or entity. They do not have the variant
	// by chance, and must not be counted where variants are compared.
	Forced bool
	// Probability is the probability of this variant, for units that the targeting admits; zero
	// if Forced.
	Probability Probability
	Checksum    string      // the checksum of the experiment's definition: SHA-256, 64 hexadecimal digits
	Sets        *Sets       // what the variant changes of the feed; never nil, and not to be changed
	SetsSum     uint64      // a checksum of Sets: equal for equal ones
	LifeSum     uint64      // a checksum of what does not change while the experiment runs or is paused; an experiment that is defined later under the same name has another one
	Parameters  []Parameter // the parameters that any variant of the experiment sets, sorted; not to be changed
	Features    int         // see Experiment.Features
}

// Probability is the probability of a variant: Slots / 10,000 × Weight / 10,000. It is exact up
// to the remainder of the hash, which changes it by less than 3 in a million of itself (package
// slot).
type Probability struct {
	Slots  int // how many of 10,000 slots the experiment uses
	Weight int // how many of 10,000 draws the variant has
}

// Float64 returns the probability that a unit has the variant.
func (p Probability) Float64() float64 {
	return float64(p.Slots) * float64(p.Weight) / (slot.Count * slot.Count)
}

// InExperiment returns the probability that a unit which is in the experiment
// has the variant.
func (p Probability) InExperiment() float64 { return float64(p.Weight) / slot.Count }

// Sets returns what all variants together change of the feed. No two of them change the same.
// What the result points to must not be changed.
func (a *Assignment) Sets() (all Sets) {
	for _, x := range a.Experiments {
		s := x.Sets
		if s.Model != "" || s.Interleave != nil || len(s.Weights) > 0 {
			all.Model, all.Interleave, all.Weights = s.Model, s.Interleave, s.Weights
		}
		if s.Filter != nil {
			all.Filter = s.Filter
		}
		if s.Window != nil {
			all.Window = s.Window
		}
		if s.Types != nil {
			all.Types = s.Types
		}
		if s.CapPerEntity != nil {
			all.CapPerEntity = s.CapPerEntity
		}
		if s.Spacing != nil {
			all.Spacing = s.Spacing
		}
		if s.Limit != 0 {
			all.Limit = s.Limit
		}
	}
	return all
}

// Has reports whether any experiment gives variants on a feed.
func (s *Set) Has(feed string) bool { return s.feeds[feed] != nil }

// Again returns a variant of an experiment as this set has it. An earlier set gave that variant
// at the time dealt. The experiment is still the same one if the LifeSum of the result is that
// of the earlier variant. Again returns false if this set does not have the variant, if its
// document was dropped since dealt, or if the experiment is unfit now (see [Set.Unfit]).
func (s *Set) Again(experiment, variant string, dealt millrace.Time) (Assigned, bool) {
	if e := s.experiment(experiment); e != nil && e.unfit == "" && !s.gone(e, dealt) {
		for _, a := range e.assigned {
			if a.Variant == variant {
				return a, true
			}
		}
	}
	return Assigned{}, false
}

// gone reports whether e may be another experiment than the one that had its name at the time
// then: the document of e has been dropped since.
func (s *Set) gone(e *compiled, then millrace.Time) bool { return then <= s.docs[e.at.doc].Gone }

// Assign returns the variants that a viewer gets of a feed, by the layers of viewers and of
// attributes. A viewer without an id is in no layer of viewers. The result depends only on the
// definitions and the viewer. For layers of entities see [Set.Division].
func (s *Set) Assign(feed string, v *millrace.Viewer) (a Assignment) {
	f := s.feeds[feed]
	if f == nil {
		return a
	}
	targeted := v
	if f.targets {
		targeted = short(v)
	}
	for _, l := range f.layers {
		if l.kind != ofEntity {
			a.add(l, s.dealt(l, f, l.unitOf(v), targeted))
		}
	}
	return a
}

// short returns the viewer that targeting reads: v without attributes that are too long, so
// that the time which targeting takes is bounded. It does not change v.
func short(v *millrace.Viewer) *millrace.Viewer {
	if v == nil {
		return nil
	}
	long := func(x any) bool {
		switch x := x.(type) {
		case string:
			return len(x) > maxTargeted
		case []string:
			n := 0
			for _, s := range x {
				n += len(s)
			}
			return len(x) > maxTargeted || n > 4*maxTargeted
		case []float64:
			return len(x) > maxTargeted
		}
		return false
	}
	for _, x := range v.Attributes {
		if !long(x) {
			continue
		}
		out := *v
		out.Attributes = maps.Clone(v.Attributes)
		maps.DeleteFunc(out.Attributes, func(_ string, x any) bool { return long(x) })
		return &out
	}
	return v
}

func (a *Assignment) add(l *layer, d dealt) {
	switch {
	case d.e != nil:
		x := d.e.assigned[d.arm]
		x.Unit = d.unit
		if d.forced {
			x.Forced, x.Probability = true, Probability{}
		}
		a.Experiments = append(a.Experiments, x)
	case d.heldOut:
		a.HeldOut = append(a.HeldOut, l.Name)
	}
}

// dealt is what a layer gives a unit.
type dealt struct {
	e       *compiled // nil: no variant
	arm     int       // index into e.assigned
	unit    string
	forced  bool
	heldOut bool
}

// dealt returns what a layer gives a viewer on a feed: the variant that an experiment forces, or
// else the variant by the slot of the unit. A draft forces its variant only if no running
// experiment of the feed uses the slot. unit is "" if the viewer has none in this layer. v is
// the viewer that targeting reads; nil: none.
func (s *Set) dealt(l *layer, f *feed, unit string, v *millrace.Viewer) dealt {
	holds := int16(free)
	if unit != "" {
		holds = l.holds[l.prefix.Slot(unit)]
	}
	if len(l.forced) > 0 && v != nil {
		for _, x := range l.forced[v.ID] {
			if slices.Contains(x.e.feeds, f) && (x.e.State == Running || holds < 0 || !slices.Contains(s.experiments[holds].feeds, f)) {
				return dealt{e: x.e, arm: x.arm, unit: v.ID, forced: true}
			}
		}
	}
	if holds < 0 {
		return dealt{heldOut: holds == heldOut}
	}
	e := s.experiments[holds]
	if !slices.Contains(e.feeds, f) || !e.target.admits(v) {
		return dealt{}
	}
	return dealt{e: e, arm: slot.ArmOf(e.arms, e.prefix.Slot(unit)), unit: unit}
}

// unitOf returns the unit of a viewer in a layer; "" for none.
func (l *layer) unitOf(v *millrace.Viewer) string {
	switch {
	case v == nil || l.kind == ofEntity:
		return ""
	case l.kind == ofViewer:
		return v.ID
	}
	x, _ := v.Value(l.attribute)
	return slot.UnitOf(x)
}
