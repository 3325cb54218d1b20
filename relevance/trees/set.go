package trees

import (
	"fmt"
	"slices"
)

// maxCategory is what a category stays below: LightGBM's and XGBoost's are
// codes, counted from 0.
const maxCategory = 1 << 24

// The memory of sets. Bits are looked up in one step, and take as much room as
// the largest category says: a file of a few bytes may name one in the millions.
const (
	freeWords   = 128 // of bits that any set may take: categories below 4096
	wordsACode  = 8   // more of them that it may take for each category
	maxSetBytes = 128 << 20
)

// set is the categories that a split sends to one side.
type set struct {
	bits  []uint32 // by category, unless that would take far more room than codes
	codes []uint32 // ascending
	end   float64  // what is stray begins here
}

// newSet returns the set of codes, whose order it changes.
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

// has returns 1 for a category below end that is in the set, and else 0.
func (s *set) has(c uint32) uint8 {
	if s.bits != nil {
		return uint8(s.bits[c/32] >> (c % 32) & 1)
	}
	return s.find(c)
}

// find is has of codes. It is a call, so that has is none.
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
