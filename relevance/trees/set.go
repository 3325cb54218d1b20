package trees

import (
	"fmt"
	"slices"
)

// maxCategory bounds the categories that a file names as numbers: they are from 0 to
// maxCategory-1. XGBoost's models and LightGBM's dumps do that. LightGBM's text models have
// sets as bits, which the length of the file bounds.
const maxCategory = 1 << 24

// The bounds of the memory of sets. A set as bits is searched in one step, but takes memory
// up to its largest category, and a file of a few bytes may name one in the millions. So
// newSet uses bits only if they take at most freeWords, and wordsACode for each category.
const (
	freeWords   = 128       // words of 32 bits: enough for categories below 4096
	wordsACode  = 8         // words of 32 bits
	maxSetBytes = 128 << 20 // the most bytes of all sets of a model together
)

// set is the categories that a split sends to one side, as bits or as codes.
type set struct {
	bits  []uint32 // one bit for each category; nil if bits would take too much memory
	codes []uint32 // ascending; nil if there are bits
	end   float64  // a multiple of 32; categories from end on are not looked up: node.stray says where they go
}

// newSet returns the set of the categories codes. It sorts and compacts codes in place.
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

// has returns 1 if a category is in the set, and else 0. c must be below end.
func (s *set) has(c uint32) uint8 {
	if s.bits != nil {
		return uint8(s.bits[c/32] >> (c % 32) & 1)
	}
	return s.find(c)
}

// find is has for a set of codes. It is not inlined, so that has can be.
//
//go:noinline
func (s *set) find(c uint32) uint8 {
	if _, in := slices.BinarySearch(s.codes, c); in {
		return 1
	}
	return 0
}

// addSet adds a set to the model, and returns its index, by which a split names it.
func (m *Model) addSet(s set) (int, error) {
	m.setBytes += 4 * (len(s.bits) + len(s.codes))
	if m.setBytes > maxSetBytes {
		return 0, fmt.Errorf("the categories of all splits up to here take more than %d MiB", maxSetBytes>>20)
	}
	m.sets = append(m.sets, s)
	return len(m.sets) - 1, nil
}
