package experiment

import (
	"fmt"
	"slices"
	"strings"
)

// Control returns the variant that the others are compared with: the one that sets
// nothing, one that chance deals first; of several, or none, the one named control, or
// else the first by name.
func (e *Experiment) Control() string {
	control, best, dealt := "", -1, e.Dealt()
	for _, v := range byName(e.Variants) {
		rank := 0
		switch plain := v.Set.Nothing(); {
		case plain && slices.Contains(dealt, v.Name):
			rank = 4
		case plain:
			rank = 2
		}
		if v.Name == "control" {
			rank++
		}
		if rank > best {
			control, best = v.Name, rank
		}
	}
	return control
}

// Dealt returns the variants, by name, that chance deals to anybody: those with a
// weight, and where it is monitored all.
func (e *Experiment) Dealt() (names []string) {
	for _, a := range armsOf(byName(e.Variants), e.Monitored) {
		if a.Weight > 0 {
			names = append(names, a.Variant)
		}
	}
	return names
}

// ComparesNothing says why its guards can never pause it: each compares a variant with
// the control, and chance deals no two that could be compared. "": it does.
func (e *Experiment) ComparesNothing() string {
	dealt, control := e.Dealt(), e.Control()
	switch {
	case len(dealt) == 0:
		return ""
	case len(dealt) == 1:
		return fmt.Sprintf("its guards compare with nothing: %s alone has viewers", dealt[0])
	case !slices.Contains(dealt, control):
		return fmt.Sprintf("its guards compare with nothing: %s are compared with %s, which has no viewers", strings.Join(dealt, " and "), control)
	}
	return ""
}

// comparesWayOut is what to do where guards compare with nothing.
func (e *Experiment) comparesWayOut() string {
	if len(e.Variants) == 1 {
		return "add a variant without set that has a weight, as control; or leave guards and ramp out, and millrace experiment ramp raises the share"
	}
	return "give the control a weight; or write monitored: true, which deals all variants evenly; or leave guards and ramp out, and millrace experiment ramp raises the share"
}
