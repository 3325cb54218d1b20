package experiment

import (
	"maps"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/slot"
)

// Assignment is what a viewer gets of a feed.
type Assignment struct {
	Experiments []Assigned // at most one of a layer, in the order of the layers' names
	HeldOut     []string   // layers in whose holdout the unit is
}

// Assigned is a variant of one experiment.
type Assigned struct {
	Experiment string
	Layer      string
	Variant    string
	Unit       string // what fell into a slot; of a forced one the viewer or entity
	// Forced is true where a definition names the viewer: that is not chance
	// and must not be counted.
	Forced bool
	// Probability of this variant, for who fits the targeting; zero if forced.
	Probability Probability
	Checksum    string      // of the definition: SHA-256, 64 hexadecimal digits
	Sets        *Sets       // what the variant changes of the feed; never nil, and not to be changed
	SetsSum     uint64      // of Sets: the same where they are
	LifeSum     uint64      // of what stays for the experiment's life: another of its name, defined later, has another
	Parameters  []Parameter // that any variant of the experiment sets, sorted; not to be changed
	Features    int         // of 10,000 answers, whose exposures are to have the items' features
}

// Probability of a variant: Slots of 10,000 that the experiment uses, times
// Weight of 10,000 for the variant in it. It is exact but for the remainder of
// the hash, which moves it by less than 3 in a million of itself (package slot).
type Probability struct {
	Slots  int
	Weight int
}

// Float64 returns the probability that a unit has the variant.
func (p Probability) Float64() float64 {
	return float64(p.Slots) * float64(p.Weight) / (slot.Count * slot.Count)
}

// InExperiment returns the probability that a unit which is in the experiment
// has the variant.
func (p Probability) InExperiment() float64 { return float64(p.Weight) / slot.Count }

// Sets returns what all variants together change of the feed. No two of them
// change the same; what it returns must not be changed.
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

// Has reports whether any experiment deals to a feed.
func (s *Set) Has(feed string) bool { return s.feeds[feed] != nil }

// Again returns a variant that an earlier set dealt at some time, as this set has it. It
// is of the same experiment if both have the same LifeSum. False: this set does not have
// it, or it was dropped since, or does not fit any more.
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

// gone reports whether an experiment is another than had its name at some time.
func (s *Set) gone(e *compiled, then millrace.Time) bool { return then <= s.docs[e.at.doc].Gone }

// Assign returns what a viewer gets of a feed, by the layers of viewers and of
// attributes. A viewer without an id is in no layer of viewers. It depends on
// the definitions and the viewer alone.
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

// short returns a viewer as targeting reads them: what it costs to judge one is
// bounded, whatever their attributes hold.
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

// dealt is what a layer has for a unit.
type dealt struct {
	e       *compiled // nil: nothing
	arm     int
	unit    string
	forced  bool
	heldOut bool
}

// dealt deals a unit of a viewer.
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

// unitOf returns what of a viewer falls into a slot; "" for nothing.
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
