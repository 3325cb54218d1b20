// Package collide makes names with a chosen xxHash64, as an attacker can: without a key the
// function can be run backwards. With such names tests show that nothing relies on the hash
// where somebody else chooses the names.
package collide

import (
	"math/bits"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/partition"
)

// The primes of xxHash64. They are odd, so multiplying by them modulo 2^64 can be undone.
const (
	p1 = 0x9E3779B185EBCA87
	p2 = 0xC2B2AE3D27D4EB4F
	p3 = 0x165667B19E3779F9
	p4 = 0x85EBCA77C2B2AE63
)

// Names returns n different names of 16 ASCII characters that all have the given hash.
func Names(hash uint64, n int) []string {
	names := make([]string, 0, n)
	for i := uint64(0); len(names) < n; i++ {
		first := text(letters(i))
		if last := End(first, hash); last&0x8080808080808080 == 0 { // all its bytes are ASCII
			names = append(names, first+text(last))
		}
	}
	return names
}

// Ends returns an ASCII text that gives the given hash when it follows prefix.
func Ends(prefix string, hash uint64) string {
	pad := strings.Repeat("p", (64-len(prefix)%32)%32)
	for i := uint64(0); ; i++ {
		first := pad + text(letters(i))
		if last := End(prefix+first, hash); last&0x8080808080808080 == 0 {
			return first + text(last)
		}
	}
}

// End returns the eight bytes, little-endian, that give the given hash when they follow
// prefix. The prefix must be a multiple of eight bytes long, and not 24 modulo 32.
func End(prefix string, hash uint64) uint64 {
	zero := partition.Hash(millrace.Entity(prefix + text(0)))
	return unround(unstep(unmix(zero)) ^ unstep(unmix(hash)))
}

// unmix returns the state before the final mixing, which gave the hash h.
func unmix(h uint64) uint64 {
	h ^= h >> 32
	h *= inverse(p3)
	h ^= h>>29 ^ h>>58
	h *= inverse(p2)
	return h ^ h>>33
}

// unstep returns the state with the last eight bytes mixed in, before it was rotated.
func unstep(h uint64) uint64 { return bits.RotateLeft64((h-p4)*inverse(p1), -27) }

// unround returns the eight bytes that are mixed into the state as h.
func unround(h uint64) uint64 { return bits.RotateLeft64(h*inverse(p1), -31) * inverse(p2) }

// inverse returns the number by which a multiplication by the odd p is undone, modulo 2^64.
// Each round of Newton's method doubles how many of the low bits are right.
func inverse(p uint64) uint64 {
	x := p
	for range 6 {
		x *= 2 - p*x
	}
	return x
}

// letters returns eight letters, which differ for each n below 2^32.
func letters(n uint64) (lane uint64) {
	for i := range 8 {
		lane |= ('a' + n>>(4*i)&15) << (8 * i)
	}
	return lane
}

func text(lane uint64) string {
	var b [8]byte
	for i := range b {
		b[i] = byte(lane >> (8 * i))
	}
	return string(b[:])
}
