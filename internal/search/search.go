// Package search searches texts of untrusted origin. Nobody can make a search slow by
// choosing the texts. Filters and models use it.
package search

import (
	"math/bits"
	"math/rand/v2"
	"strings"
)

// Contains reports whether part is within s, as strings.Contains does, in time that grows
// with the length of s alone. strings.Contains may need that time multiplied by the length
// of part, if somebody chooses the texts for that. s may be a record's text and part a
// viewer's; neither can be trusted.
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
	// searchedWhole is the longest part, in bytes, for which Contains uses the standard
	// library alone: so few bytes take little time to compare, even at every place.
	searchedWhole = 63
	// falseStarts is how often the first searchedWhole bytes of a longer part may be
	// found without the rest. Then Contains goes on by rolling.
	falseStarts = 16
)

// rolling is Contains by a rolling hash (Rabin-Karp). It compares the bytes only where
// the hashes are equal. The hash's base is random and secret, so nobody can make texts
// that have equal hashes and other bytes.
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
	var out [256]uint64 // what to add to the hash when a byte leaves the window
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

// hashBase is drawn at random for each process. It is above every byte.
var hashBase = 256 + rand.Uint64N(hashModulus-256)

// reduce returns x modulo hashModulus, for x below twice hashModulus.
func reduce(x uint64) uint64 {
	if x >= hashModulus {
		x -= hashModulus
	}
	return x
}

// multiply returns the product of x and y modulo hashModulus; both are below it.
func multiply(x, y uint64) uint64 {
	hi, lo := bits.Mul64(x, y)
	return reduce(lo&hashModulus + (hi<<3 | lo>>61))
}
