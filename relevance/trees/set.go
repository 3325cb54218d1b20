package trees

import (
	"fmt"
	"slices"
)

// maxCategory is what a category stays below that a file names as a number, counted from 0:
// XGBoost's, and those of LightGBM's dump. LightGBM's text form has the bits themselves,
// which the length of the file bounds.
const maxCategory = 1 << 24

// The memory of sets. Bits are looked up in one step, and take as much room as
// the largest category says: a file of a few bytes may name one in the millions.
const (
	freeWords   = 128 // of bits that any set of newSet may take: categories below 4096
	wordsACode  = 8   // more of them that it may take for each category
	maxSetBytes = 128 << 20
)

// set is the categories that a split sends to one side.
type set struct {
	bits  []uint32 // by category, unless that would take far more room than codes
	codes []uint32 // ascending
	end   float64  // a multiple of 32; categories from here on are not looked up: node.stray says where they go
}

// newSet returns the set of codes, which it sorts and compacts in place.
func newSet(codes []uint32) set {
	if len(codes) == 0 {
		return set{}
	}
	slices.Sort(codes)
	codes = slices.Compact(codes)
	words := int(codes[len(codes)-1]/32) + 1
	s := set{end: float64(words * 32)}
	if words > freeWords+wordsACode*len(codes) {
		s.codes = slices.Clone(codes)
		return s
	}
	s.bits = make([]uint32, words)
	for _, c := range codes {
		s.bits[c/32] |= 1 << (c % 32)
	}
	return s
}

// has returns 1 if a category is in the set, and else 0. It must be below end.
func (s *set) has(c uint32) uint8 {
	if s.bits != nil {
		return uint8(s.bits[c/32] >> (c % 32) & 1)
	}
	return s.find(c)
}

// find is has of codes. It is kept out of line, so that has is inlined.
//
//go:noinline
func (s *set) find(c uint32) uint8 {
	if _, in := slices.BinarySearch(s.codes, c); in {
		return 1
	}
	return 0
}

// addSet keeps a set, and returns by what number a split names it.
func (m *Model) addSet(s set) (int, error) {
	m.setBytes += 4 * (len(s.bits) + len(s.codes))
	if m.setBytes > maxSetBytes {
		return 0, fmt.Errorf("the categories of all splits up to here take more than %d MiB", maxSetBytes>>20)
	}
	m.sets = append(m.sets, s)
	return len(m.sets) - 1, nil
}
