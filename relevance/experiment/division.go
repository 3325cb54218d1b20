package experiment

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/slot"
)

// Division gives the entities of a feed's answers their variants, by the experiments of layers
// of entities. An entity has the same variants for every viewer. A Division is immutable and
// safe for concurrent use. A nil Division gives no variants.
type Division struct {
	layers []dividing // sorted by name
}

// dividing is a layer with those of its experiments that give variants.
type dividing struct {
	*layer
	from []dealing
}

// dealing is an experiment with the slots in which it gives variants.
type dealing struct {
	*compiled
	share    int          // of 10,000; 0: only entities that the definition names, in Forced, get variants
	used     []slot.Range // the slots that this share uses
	assigned []Assigned   // for each arm, what an entity gets by chance
}

// Dealt is what a later page must know of an experiment to give entities the variants that the
// first page gave them.
type Dealt struct {
	Experiment string
	Share      int    // the share, of 10,000, when the first page was made; 0: the experiment was a draft
	Sum        uint64 // a checksum of the definition, without its share and its state
}

// Division returns the division of a feed; nil if no layer of entities is of it.
func (s *Set) Division(feed string) *Division {
	if f := s.feeds[feed]; f != nil {
		return f.division
	}
	return nil
}

// Redivide returns the division that was in use at the time dealt. all is what the method Dealt
// of that division returned. The experiments may be paused, stopped or have another share by
// now. If an experiment was changed otherwise, was dropped or is unfit, Redivide returns its
// name in gone, and no division.
func (s *Set) Redivide(all []Dealt, dealt millrace.Time) (d *Division, gone string) {
	var from []dealing
	for _, x := range all {
		e := s.experiment(x.Experiment)
		if e == nil || e.unfit != "" || s.gone(e, dealt) || e.dealSum() != x.Sum {
			return nil, x.Experiment
		}
		from = append(from, e.dealing(x.Share))
	}
	return divisionOf(from), ""
}

// dealing returns the experiment with the slots that a share uses.
func (e *compiled) dealing(share int) dealing {
	d := dealing{compiled: e, share: share, assigned: e.assigned}
	n := 0
	if d.used, n = inUse(e.slots, share); n != e.usedN {
		d.assigned = slices.Clone(e.assigned)
		for i := range d.assigned {
			d.assigned[i].Probability.Slots = n
		}
	}
	return d
}

// dealSum is a checksum of all that decides which entity gets which variant, without the share.
func (e *compiled) dealSum() uint64 {
	sum := sha256.Sum256(e.form(0))
	return binary.LittleEndian.Uint64(sum[:])
}

// divisionOf returns the division by some experiments; nil if there are none.
func divisionOf(from []dealing) *Division {
	if len(from) == 0 {
		return nil
	}
	d := &Division{}
	for _, x := range from {
		at := slices.IndexFunc(d.layers, func(l dividing) bool { return l.layer == x.layer })
		if at < 0 {
			at = len(d.layers)
			d.layers = append(d.layers, dividing{layer: x.layer})
		}
		d.layers[at].from = append(d.layers[at].from, x)
	}
	slices.SortFunc(d.layers, func(a, b dividing) int { return cmp.Compare(a.Name, b.Name) })
	return d
}

// Dealt returns what [Set.Redivide] needs.
func (d *Division) Dealt() (all []Dealt) {
	for _, x := range d.all() {
		all = append(all, Dealt{x.Name, x.share, x.dealSum()})
	}
	return all
}

func (d *Division) all() (from []dealing) {
	if d != nil {
		for _, l := range d.layers {
			from = append(from, l.from...)
		}
	}
	return from
}

// Without returns the division without the experiments for which drop returns true; nil if none
// is left. drop gets the name of each, and the parameters that its variants set.
func (d *Division) Without(drop func(experiment string, sets []Parameter) bool) *Division {
	return divisionOf(slices.DeleteFunc(d.all(), func(x dealing) bool { return drop(x.Name, x.parameters()) }))
}

// Deal appends to dst the variants that an entity gets: at most one of each layer, in the order
// of the layers' names.
func (d *Division) Deal(dst []Assigned, e millrace.Entity) []Assigned {
	if d == nil {
		return dst
	}
	for i := range d.layers {
		dst = d.layers[i].deal(dst, string(e))
	}
	return dst
}

func (l *dividing) deal(dst []Assigned, unit string) []Assigned {
	at := l.prefix.Slot(unit)
	in := slices.IndexFunc(l.from, func(x dealing) bool { return slot.In(x.used, at) })
	for _, x := range l.from {
		if variant, forced := x.Forced[unit]; forced && (x.share > 0 || in < 0) { // a draft, of share 0, takes no entity out of an experiment that uses its slot
			a := x.assigned[slices.IndexFunc(x.arms, func(a slot.Arm) bool { return a.Variant == variant })]
			a.Unit, a.Forced, a.Probability = unit, true, Probability{}
			return append(dst, a)
		}
	}
	if in < 0 {
		return dst
	}
	x := &l.from[in]
	a := x.assigned[slot.ArmOf(x.arms, x.compiled.prefix.Slot(unit))]
	a.Unit = unit
	return append(dst, a)
}

// Features returns, for each experiment, how many of 10,000 answers are to have the items'
// features in their exposures (see Experiment.Features).
func (d *Division) Features() (all []int) {
	for _, x := range d.all() {
		all = append(all, x.Features)
	}
	return all
}
