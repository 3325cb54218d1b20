package cache

import (
	"math/bits"
	"math/rand/v2"
	"unsafe"

	"github.com/millrace/millrace"
)

// id stands for a key: a hash of its entity and type under random seeds. The index
// compares 79 bits of it: 63 of the tag and 16 of the check. Among ten million keys, fewer
// than one look-up in 10^16 finds the timeline of another key.
type id struct{ tag, check uint64 }

// seeds are what ids are hashed with. Each cache draws its own, so that nobody can choose
// names that collide.
type seeds struct{ a, b, c, d uint64 }

// newSeeds draws seeds. They are odd, so that none is 0.
func newSeeds() (s seeds) {
	return seeds{rand.Uint64() | 1, rand.Uint64() | 1, rand.Uint64() | 1, rand.Uint64() | 1}
}

// part hashes one half of a key, its entity or its type, 16 bytes at a time. join makes
// the id of both halves.
func (s *seeds) part(half string) id {
	n := uint64(len(half))
	h := id{s.a ^ n, s.c + n}
	for len(half) > 16 {
		h = h.mix(s, eight(half), eight(half[8:]))
		half = half[16:]
	}
	switch n := len(half); {
	case n >= 8:
		return h.mix(s, eight(half), eight(half[n-8:]))
	case n >= 4:
		return h.mix(s, uint64(four(half)), uint64(four(half[n-4:])))
	case n > 0:
		return h.mix(s, uint64(half[0])|uint64(half[n/2])<<8|uint64(half[n-1])<<16, 0)
	}
	return h.mix(s, 0, 0)
}

// mix hashes the next 16 bytes, a and b, into h: for each word of h it computes a product
// of 128 bits and combines its halves.
func (h id) mix(s *seeds, a, b uint64) id {
	h1, l1 := bits.Mul64(a^h.tag, b^s.b)
	h2, l2 := bits.Mul64(b^h.check, a^s.d)
	return id{h1 ^ l1 ^ h.check, h2 ^ l2 + h.tag}
}

// eight returns the first 8 bytes of s, which must have as many.
func eight(s string) uint64 { return *(*uint64)(unsafe.Pointer(unsafe.StringData(s))) }

// four returns the first 4 bytes of s, which must have as many.
func four(s string) uint32 { return *(*uint32)(unsafe.Pointer(unsafe.StringData(s))) }

// parts sets dst[i] to the part of names[i], for the names of one batch.
func (s *seeds) parts(dst *[batchKeys]id, names []millrace.Entity) {
	for i, name := range names {
		to := &dst[uint(i)%batchKeys]
		if n := uint64(len(name)); n >= 8 && n <= 16 { // most names; it does what part does, without a call
			*to = id{s.a ^ n, s.c + n}.mix(s, eight(string(name)), eight(string(name[n-8:])))
		} else {
			*to = s.part(string(name))
		}
	}
}

// turned returns the part of a type as join takes it: rotated. An entity may have the name
// of a type, and without the rotation the two parts would cancel each other in join.
func (h id) turned() id {
	return id{bits.RotateLeft64(h.tag, 29), bits.RotateLeft64(h.check, 29)}
}

// join returns the id of a key from the parts of its entity and its type. The upper bits
// of a product are the best mixed, and the index uses those: see home and checkBits. A tag
// is never 0, which is a free slot's. A check has the bit touched set, so that
// batch.match can compare the check and that bit of a slot at once.
func join(entity, typ id) id {
	return id{(entity.tag^typ.tag)*0x9e3779b97f4a7c15 | 1, (entity.check^typ.check)*0xc2b2ae3d27d4eb4f | touched}
}

// home returns the number of the bucket in which the search for a key begins, modulo the
// number of buckets.
func home(tag uint64) uint64 { return tag >> 32 }

// id returns the id of a timeline's key.
func (s *seeds) id(t millrace.Timeline) id {
	return join(s.part(string(t.Entity)), s.part(string(t.Type)).turned())
}
