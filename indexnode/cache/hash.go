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
type seeds [4]uint64

func newSeeds() (s seeds) {
	for i := range s {
		s[i] = rand.Uint64() | 1
	}
	return s
}

// part returns what one half of a key contributes to its id: both words in one
// pass, 16 bytes at a time.
func (s *seeds) part(half string) id {
	n := uint64(len(half))
	h := id{s[0] ^ n, s[2] + n}
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
	h1, l1 := bits.Mul64(a^h.tag, b^s[1])
	h2, l2 := bits.Mul64(b^h.check, a^s[3])
	return id{h1 ^ l1 ^ h.check, h2 ^ l2 + h.tag}
}

func eight(s string) uint64 { return *(*uint64)(unsafe.Pointer(unsafe.StringData(s))) }

func four(s string) uint32 { return *(*uint32)(unsafe.Pointer(unsafe.StringData(s))) }

// join returns the id of a key from what its halves contribute, of which it
// turns one: names of entities are free, and may be those of types. A tag is
// never that of a free slot.
func join(entity, typ id) id {
	tag := (entity.tag ^ bits.RotateLeft64(typ.tag, 29)) * 0x9e3779b97f4a7c15
	check := (entity.check ^ bits.RotateLeft64(typ.check, 29)) * 0xc2b2ae3d27d4eb4f
	return id{(tag ^ tag>>32) | 1<<63, check ^ check>>32}
}

func (s *seeds) id(t millrace.Timeline) id {
	return join(s.part(string(t.Entity)), s.part(string(t.Type)))
}
