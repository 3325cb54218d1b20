package client

import "github.com/millrace/millrace/internal/slot"

// Rule computes the variant of an experiment that a viewer, the value of an attribute, or an
// entity has. It computes what a broker computes, without a request to one. With it a caller
// gives its own part of a page the same variant as the feed. A Rule does not evaluate the
// targeting of the
// experiment: the caller does, and says the result in [Whom]. Viewers and entities that the
// experiment names have the variant that it gives them, whatever the targeting says.
//
// A Rule holds until the experiment changes. The receipt of an answer tells the variants that
// the feed was served with.
type Rule = slot.Rule

// Whom is the viewer or entity that [Rule.AssignTo] is asked about.
type Whom = slot.Whom

// ReadRule reads a Rule in the JSON that json.Marshal writes of one. The error is a
// [millrace.Error] that names the field.
func ReadRule(src []byte) (Rule, error) { return slot.ReadRule(src) }

// UnitOf returns the unit of a viewer, for a layer of experiments that assigns variants by an
// attribute of viewers. The unit is the text whose hash says which slot of the layer the
// viewer is in. value is the viewer's value of the attribute: a string of 512 bytes at most,
// a bool, or a float64 that is whole and within ±2^53. UnitOf returns "" for anything else:
// such a viewer is in no slot of the layer.
func UnitOf(value any) string { return slot.UnitOf(value) }
