package experiment

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace/internal/slot"
)

// Change returns an [Error] with all changes from s to next that are not allowed; nil for none.
// Units in an experiment that runs must stay in it, with the variants that they have, and
// nothing that variants are compared by may change. Any other change needs an experiment with a
// new name. DESIGN.md has the table of what may change.
func (s *Set) Change(next *Set) error {
	c := changeOf(s, next)
	for _, l := range s.layers {
		c.layer(l)
	}
	for _, e := range s.experiments {
		c.experiment(e)
	}
	for _, e := range next.experiments {
		c.forces(e)
	}
	return c.error()
}

// StartsNone returns an [Error] that names the experiments that are paused in s and would run in
// next; nil for none.
func (s *Set) StartsNone(next *Set) error {
	c := changeOf(s, next)
	for _, old := range s.experiments {
		if e := next.experiment(old.Name); e != nil && old.State == Paused && e.State == Running {
			c.faultf(e.at, ".state", fmt.Sprintf("write state: paused; then millrace experiment status %s says why it is, and millrace experiment start %s starts it", old.Name, old.Name), "experiment %s is paused, and a definition starts nothing that is", old.Name)
		}
	}
	return c.error()
}

// change is a change from a set to the next one, and what is wrong with it.
type change struct {
	old, next *Set
	faults    []*faults // of each document of next, and then of each document of old that is gone
}

func changeOf(old, next *Set) *change {
	c := &change{old: old, next: next}
	for i := range next.docs {
		c.faults = append(c.faults, &faults{name: next.docs[i].Name, root: next.docs[i].root})
	}
	return c
}

func (c *change) error() error { return (&compiler{faults: c.faults}).error() }

func (c *change) faultf(at place, field, wayOut, format string, args ...any) {
	c.faults[at.doc].addf(at.path+field, wayOut, format, args...)
}

// layer refuses another salt or unit of a layer while an experiment of it runs or is paused: all
// units would fall into other slots.
func (c *change) layer(old *layer) {
	next := c.next.layer(old.Name)
	if next == nil || next.Salt == old.Salt && next.Unit == old.Unit {
		return
	}
	for _, e := range c.old.experiments {
		if e.layer != old || !e.lives() {
			continue
		}
		const wayOut = "stop it first, or define a layer with a new name"
		if next.Salt != old.Salt {
			c.faultf(next.at, ".salt", wayOut, "%s instead of %s would reshuffle experiment %s, which is %s", next.Salt, old.Salt, e.Name, e.State)
		}
		if next.Unit != old.Unit {
			c.faultf(next.at, ".unit", wayOut, "%s instead of %s would reshuffle experiment %s, which is %s", next.Unit, old.Unit, e.Name, e.State)
		}
	}
}

func (s *Set) layer(name string) *layer {
	i := slices.IndexFunc(s.layers, func(l *layer) bool { return l.Name == name })
	if i < 0 {
		return nil
	}
	return s.layers[i]
}

func (s *Set) experiment(name string) *compiled {
	i := slices.IndexFunc(s.experiments, func(e *compiled) bool { return e.Name == name })
	if i < 0 {
		return nil
	}
	return s.experiments[i]
}

// lives reports whether units are in the experiment now, or may be again once it goes on.
func (e *compiled) lives() bool { return e.State == Running || e.State == Paused }

// after are the states that may follow each state.
var after = map[State][]State{
	Draft:   {Draft, Running, Stopped},
	Running: {Running, Paused, Stopped},
	Paused:  {Paused, Running, Stopped},
	Stopped: {Stopped},
}

const newName = "define an experiment with a new name"

// experiment refuses what may not change of an experiment.
func (c *change) experiment(old *compiled) {
	next := c.next.experiment(old.Name)
	if next == nil {
		if old.lives() {
			c.gone(old)
		}
		return
	}
	if !slices.Contains(after[old.State], next.State) {
		wayOut := newName
		if old.State != Stopped {
			wayOut = fmt.Sprintf("write one of %v", after[old.State])
		}
		c.faultf(next.at, ".state", wayOut, "it is %s, and cannot become %s", old.State, next.State)
	}
	if old.State == Draft {
		return
	}
	for _, f := range fixed(old, next) {
		c.faultf(next.at, f.field, newName, "it is %s, and this may not change: %s", old.State, f.why)
	}
	if old.State == Running && next.State == Running {
		c.grows(old, next)
	}
}

// gone adds a fault: an experiment that runs or is paused is in no document any more.
func (c *change) gone(old *compiled) {
	name := c.old.docs[old.at.doc].Name
	i := slices.IndexFunc(c.faults, func(f *faults) bool { return f.name == name })
	if i < 0 {
		i = len(c.faults)
		c.faults = append(c.faults, &faults{name: name})
	}
	c.faults[i].addf("experiments", "stop it first, and remove it then", "experiment %s is %s and stands here no longer", old.Name, old.State)
}

// fixedFault is a field that has changed and may not.
type fixedFault struct{ field, why string }

// fixed returns the fields that have changed but may not change, since the experiment is not a
// draft.
func fixed(old, next *compiled) (all []fixedFault) {
	add := func(changed bool, field, why string) {
		if changed {
			all = append(all, fixedFault{field, why})
		}
	}
	add(old.Layer != next.Layer, ".layer", "every unit would fall into another slot")
	add(!slices.Equal(sorted(old.Feeds), sorted(next.Feeds)), ".feeds", "answers from before and after could not be compared")
	add(!slices.Equal(old.clauses(), next.clauses()), ".targeting", "viewers would come and go")
	add(!old.Monitored && next.Monitored, ".monitored", "units would change their variant; it can be ended, not begun")
	add(variantsForm(old) != variantsForm(next), ".variants", "units would change their variant, or variants their meaning")
	return all
}

// variantsForm returns the variants in JSON, the same text for the same meaning.
func variantsForm(e *compiled) string {
	var all []Variant
	for _, v := range e.variants {
		v.Set.Types = sorted(v.Set.Types)
		all = append(all, v)
	}
	b, err := json.Marshal(all)
	if err != nil {
		panic(err) // numbers are finite
	}
	return string(b)
}

// grows refuses a change by which slots that are in use go out of use.
func (c *change) grows(old, next *compiled) {
	lost := minus(old.used, next.used)
	if lost == nil {
		return
	}
	field := ".slots"
	if next.Share < old.Share {
		field = ".share"
	}
	c.faultf(next.at, field, "pause it first, or keep them", "slots %s would go out of use, and their units lose their variant", textOf(lost))
}

// forces refuses an experiment of next that forces units which have a variant by the hash, of an
// experiment that runs before and after the change: they would lose that variant.
func (c *change) forces(next *compiled) {
	if next.State != Running || next.unfit != "" {
		return
	}
	for _, e := range c.old.experiments {
		if now := c.next.experiment(e.Name); now == nil || now.State != Running || e.Layer != next.Layer {
			continue
		}
		taken := map[string][]string{} // by variant
		for _, id := range slices.Sorted(maps.Keys(next.Forced)) {
			variant, has := e.hashed(id)
			if !has || e.Name == next.Name && variant == next.Forced[id] {
				continue
			}
			if slices.ContainsFunc(e.Feeds, func(feed string) bool {
				by := e.forcedBy(feed, id)
				return slices.Contains(next.Feeds, feed) && (by == nil || by.e.State == Draft)
			}) {
				taken[variant] = append(taken[variant], id)
			}
		}
		for _, variant := range slices.Sorted(maps.Keys(taken)) {
			c.faultf(next.at, ".forced", fmt.Sprintf("leave them out, or pause %s first", e.Name),
				"%s would leave %s of experiment %s, which the hash deals them while it runs", unitsOf(taken[variant]), variant, e.Name)
		}
	}
}

// hashed returns the variant that the hash gives a viewer or entity of an experiment that runs,
// whatever its targeting. In a layer of an attribute the variant is not known, since the id does
// not tell the value of the attribute; has is then false.
func (e *compiled) hashed(id string) (variant string, has bool) {
	if e.State != Running || e.unfit != "" || e.layer.kind == ofAttribute || !slot.In(e.used, e.layer.prefix.Slot(id)) {
		return "", false
	}
	return e.arms[slot.ArmOf(e.arms, e.prefix.Slot(id))].Variant, true
}

// unitsOf says how many units there are, and names the first.
func unitsOf(ids []string) string {
	const most = 3
	text := fmt.Sprintf("%d unit", len(ids))
	if len(ids) > 1 {
		text += "s"
	}
	for i, id := range ids[:min(most, len(ids))] {
		text += []string{" (", ", "}[min(i, 1)] + fmt.Sprintf("%.100q", id)
	}
	if more := len(ids) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text + ")"
}

// minus returns the slots of a that b does not have.
func minus(a, b []slot.Range) []slot.Range {
	in, out := marked(a), marked(b)
	for s := range in {
		in[s] = in[s] && !out[s]
	}
	return rangesOf(in)
}
