package client

import "github.com/millrace/millrace/internal/slot"

// Rule is what tells the variant of a viewer, an attribute's value or an entity
// without asking a broker, and as a broker deals it: the caller's own part of an
// experiment then follows the feed's. Whom the experiment's targeting takes is the
// caller's to judge; whom it names has their variant whatever that says.
//
// It holds until the experiment changes. What a feed was served with is in the
// receipt of the answer.
type Rule = slot.Rule

// Whom says whom [Rule.AssignTo] is asked about.
type Whom = slot.Whom

// ReadRule reads a rule in JSON, as Rule is written in it. The error
// is a [millrace.Error] that names the field.
func ReadRule(src []byte) (Rule, error) { return slot.ReadRule(src) }

// UnitOf returns the unit of a viewer whose attribute has a value, in a layer of that
// attribute: a text, a boolean, or a float64 that is whole and within ±2^53; "" for
// anything else, which is in no layer.
func UnitOf(value any) string { return slot.UnitOf(value) }
