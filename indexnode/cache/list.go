package cache

import "github.com/millrace/millrace"

// listKind is which of the caches an entry counts in.
type listKind uint8

const (
	fat listKind = iota
	skinny
	features
	listKinds
)

func kindOf(t millrace.Timeline, tl *Timeline) listKind {
	switch {
	case isFeatures(t.Type):
		return features
	case tl.records == 0:
		return skinny
	}
	return fat
}

// isOf reports whether a timeline of the index counts in a list. Tags in the
// list of features are of features only.
func isOf(kind listKind, tl *Timeline) bool {
	return kind == features || (kind == skinny) == (tl.records == 0)
}

// weightOf is what is told of a list: records, keys, or rows of features.
func weightOf(kind listKind, tl *Timeline) int {
	if kind == skinny {
		return 1
	}
	return max(1, tl.Len())
}

func isFeatures(t millrace.ContentType) bool { return t == Features || t == Objects }

// list is the keys of a cache in the order of their eviction.
type list struct {
	order     order
	weight    int // see weightOf
	bytes     int // of the blocks and of the keys
	evictions uint64
	door      doorkeeper
}

// newList returns a list whose order has no bound of its own: only the cache
// knows the bytes.
func newList() list { return list{order: newOrder()} }

// doorkeeper remembers, roughly, what asked for room lately: two bits of a
// set for each. It forgets all at once when it is a quarter full.
type doorkeeper struct {
	bits    []uint64
	members int
}

const (
	minDoorBits   = 1 << 12
	bitsPerMember = 16 // of the set for each key of the cache
)

// seen reports whether k asked before, and remembers it. entries is how many
// the cache holds.
func (d *doorkeeper) seen(k id, entries int) bool {
	if d.bits == nil || d.members > len(d.bits)*64/8 {
		d.forget(entries)
	}
	mask := uint64(len(d.bits)*64 - 1)
	a, b := k.tag&mask, k.check&mask
	if d.has(a) && d.has(b) {
		return true
	}
	d.bits[a/64] |= 1 << (a % 64)
	d.bits[b/64] |= 1 << (b % 64)
	d.members++
	return false
}

func (d *doorkeeper) has(bit uint64) bool { return d.bits[bit/64]&(1<<(bit%64)) != 0 }

func (d *doorkeeper) forget(entries int) {
	bits := minDoorBits
	for bits < entries*bitsPerMember {
		bits *= 2
	}
	if len(d.bits)*64 != bits {
		d.bits = make([]uint64, bits/64)
	} else {
		clear(d.bits)
	}
	d.members = 0
}
