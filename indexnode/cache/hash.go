package cache

import (
	"math/bits"
	"math/rand/v2"
	"unsafe"

	"github.com/millrace/millrace"
)

// id stands for a key under random seeds. The index keeps 79 bits of it: of
// ten million keys, one look-up in 10^16 finds another's.
type id struct{ tag, check uint64 }

// seeds make ids.
type seeds struct{ a, b, c, d uint64 }

func newSeeds() (s seeds) {
	return seeds{rand.Uint64() | 1, rand.Uint64() | 1, rand.Uint64() | 1, rand.Uint64() | 1}
}

// part returns what one half of a key contributes to its id: both words in one
// pass, 16 bytes at a time.
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

// mix takes 16 bytes in: a product of 128 bits for each word, folded.
func (h id) mix(s *seeds, a, b uint64) id {
	h1, l1 := bits.Mul64(a^h.tag, b^s.b)
	h2, l2 := bits.Mul64(b^h.check, a^s.d)
	return id{h1 ^ l1 ^ h.check, h2 ^ l2 + h.tag}
}

func eight(s string) uint64 { return *(*uint64)(unsafe.Pointer(unsafe.StringData(s))) }

func four(s string) uint32 { return *(*uint32)(unsafe.Pointer(unsafe.StringData(s))) }

// parts is part for the names of a batch.
func (s *seeds) parts(dst *[batchKeys]id, names []millrace.Entity) {
	for i, name := range names {
		to := &dst[uint(i)%batchKeys]
		if n := uint64(len(name)); n >= 8 && n <= 16 { // as most have; the same as part, without a call
			*to = id{s.a ^ n, s.c + n}.mix(s, eight(string(name)), eight(string(name[n-8:])))
		} else {
			*to = s.part(string(name))
		}
	}
}

// turned returns what the type contributes to an id as join takes it. Names of
// entities are free, and may be those of types.
func (h id) turned() id {
	return id{bits.RotateLeft64(h.tag, 29), bits.RotateLeft64(h.check, 29)}
}

// join returns the id of a key from what its halves contribute. Of a product
// the upper bits are those to rely on, and the index does: see home and
// checkBits. A tag is never that of a free slot, and a check is of a key that
// was touched.
func join(entity, typ id) id {
	return id{(entity.tag^typ.tag)*0x9e3779b97f4a7c15 | 1, (entity.check^typ.check)*0xc2b2ae3d27d4eb4f | touched}
}

// home returns the number of the bucket that a key belongs to, modulo their
// number.
func home(tag uint64) uint64 { return tag >> 32 }

func (s *seeds) id(t millrace.Timeline) id {
	return join(s.part(string(t.Entity)), s.part(string(t.Type)).turned())
}
