package experiment

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/slot"
)

// Division gives the entities of a feed's answers variants, the same for every viewer, by
// the experiments of layers of entities. It is immutable and safe for concurrent use; nil
// gives none.
type Division struct {
	layers []dividing
}

// dividing is a layer with its experiments that give variants.
type dividing struct {
	*layer
	from []dealing
}

// dealing is an experiment with the slots in which it gives variants.
type dealing struct {
	*compiled
	share    int
	used     []slot.Range
	assigned []Assigned // what each arm gives, with its probability
}

// Dealt is what a later page must know of an experiment to give entities the variants that
// the first page gave them.
type Dealt struct {
	Experiment string
	Share      int    // of 10,000, at the first page
	Sum        uint64 // a checksum of the definition, without its share and its state
}

// Division returns the division of a feed; nil if no layer of entities is of it.
func (s *Set) Division(feed string) *Division {
	if f := s.feeds[feed]; f != nil {
		return f.division
	}
	return nil
}

// Redivide returns the division that was in use at a time, from what it dealt. It can, as
// long as all its experiments are defined as they were then, even if they are paused,
// stopped or ramped by now. Else it names one that has changed, or was dropped since.
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

// dealing returns the experiment as it deals by a share of its slots.
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

// dealSum is a checksum of all that decides which entity gets which variant, but the share.
func (e *compiled) dealSum() uint64 {
	sum := sha256.Sum256(e.form(0))
	return binary.LittleEndian.Uint64(sum[:])
}

// divisionOf makes a division of experiments, by layer.
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

// Without returns the division without the experiments of which drop is true; nil if none
// is left.
func (d *Division) Without(drop func(experiment string, sets []Parameter) bool) *Division {
	return divisionOf(slices.DeleteFunc(d.all(), func(x dealing) bool { return drop(x.Name, x.parameters()) }))
}

// Deal appends the variants that an entity gets: at most one of each layer, in the order of
// the layers' names.
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
		if variant, forced := x.Forced[unit]; forced && (x.share > 0 || in < 0) { // of a draft only forced units get a variant, in slots that no other uses
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

// Features returns of how many of 10,000 answers each experiment wants the items'
// features in exposures.
func (d *Division) Features() (all []int) {
	for _, x := range d.all() {
		all = append(all, x.Features)
	}
	return all
}
