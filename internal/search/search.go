// Package search searches texts that nobody is to be trusted with, as filters and
// models do.
package search

import (
	"math/bits"
	"math/rand/v2"
	"strings"
)

// Contains is strings.Contains in a time that grows with the length of s alone.
// That of the library multiplies it by the length of part where both are made for
// it: one text may be a record's and the other its reader's, and neither is to be
// trusted.
func Contains(s, part string) bool {
	if len(part) <= searchedWhole {
		return strings.Contains(s, part)
	}
	for range falseStarts {
		i := strings.Index(s, part[:searchedWhole])
		if i < 0 || len(s)-i < len(part) {
			return false
		}
		if s[i:i+len(part)] == part {
			return true
		}
		s = s[i+1:]
	}
	return rolling(s, part)
}

const (
	searchedWhole = 63 // bytes, which take little time to compare, however often
	falseStarts   = 16 // of a text that is met more often it is compared no more
)

// rolling compares hashes first, by a base that nobody knows: nobody can make texts
// that have the hash and not the bytes.
func rolling(s, part string) bool {
	n := len(part)
	if len(s) < n {
		return false
	}
	want, at, power := uint64(0), uint64(0), uint64(1)
	for i := range n {
		want = reduce(multiply(want, hashBase) + uint64(part[i]))
		at = reduce(multiply(at, hashBase) + uint64(s[i]))
		power = multiply(power, hashBase)
	}
	var out [256]uint64 // what a byte adds when it goes
	for c := range out {
		out[c] = hashModulus - multiply(power, uint64(c))
	}
	for i := n; ; i++ {
		if at == want && s[i-n:i] == part {
			return true
		}
		if i == len(s) {
			return false
		}
		at = reduce(multiply(at, hashBase) + reduce(uint64(s[i])+out[s[i-n]]))
	}
}

const hashModulus = 1<<61 - 1 // a prime

var hashBase = 256 + rand.Uint64N(hashModulus-256)

// reduce returns x modulo the modulus, of x below twice that.
func reduce(x uint64) uint64 {
	if x >= hashModulus {
		x -= hashModulus
	}
	return x
}

// multiply returns the product modulo the modulus, of numbers below it.
func multiply(x, y uint64) uint64 {
	hi, lo := bits.Mul64(x, y)
	return reduce(lo&hashModulus + (hi<<3 | lo>>61))
}
