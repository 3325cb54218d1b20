// Package slot decides which of 10,000 slots a unit of an experiment falls
// into: a viewer, a value of an attribute, or an entity. Brokers and callers share it, so
// a caller can work out by itself what a broker does.
//
// # Byte for byte
//
// A layer is a set of experiments that have no slot in common. It has a salt, and an
// experiment has a name; neither has a '/' in it. All texts are UTF-8. A unit has:
//
//	slot = murmur3_x86_32(seed 0, salt "/" unit) mod 10,000
//	draw = murmur3_x86_32(seed 0, salt "/" experiment "/" unit) mod 10,000
//
// The hash is taken as an unsigned integer of 32 bits. The slot says whether
// the unit is in an experiment of the layer, and in which. The draw says which
// variant: the variants are put in the order of their names, by bytes, and each
// takes as many draws as its weight, from 0 upwards. So an experiment can get
// more slots without a unit changing its variant, and an experiment under a new
// name draws anew.
//
// 2^32 is no multiple of 10,000: the first 7,296 slots are each likelier than
// the others by 1 in 429,496.
package slot

import "github.com/twmb/murmur3"

// Count is how many slots a layer has. It is also the sum of the weights of an experiment's
// variants.
const Count = 10_000

// Of returns the slot of a unit in the layer with a salt.
func Of(salt, unit string) int { return Under(salt).Slot(unit) }

// Draw returns the draw of a unit, which decides its variant: from 0 to Count-1.
func Draw(salt, experiment, unit string) int { return Under(salt, experiment).Slot(unit) }

// Prefix is the text that is hashed before a unit.
type Prefix struct{ text string }

// Under returns the prefix of parts, each followed by '/'.
func Under(parts ...string) Prefix {
	var text string
	for _, s := range parts {
		text += s + "/"
	}
	return Prefix{text}
}

// Slot returns the hash of the prefix and a unit, modulo Count.
func (p Prefix) Slot(unit string) int {
	var room [128]byte // most fit into it
	return int(murmur3.Sum32(append(append(room[:0], p.text...), unit...)) % Count)
}
