package compute

import (
	"math"
	"math/bits"
	"slices"

	"github.com/millrace/millrace/internal/column"
)

// Set is a set of words (see decoder.go), in a hash table with open addressing. Each word
// of a small set stands in its home slot, so that a look-up needs no branch: the processor
// would mispredict it for about every other row. As in a [Table], the
// multiplier of the hash is drawn at random for each set, so that nobody can choose words
// that share a slot.
type Set struct {
	table      []uint64 // a power of two of slots
	empty      uint64   // the word of the free slots, which is not in the set
	multiplier uint64   // the home slot of a word w is w*multiplier>>shift
	shift      uint8
	apart      bool // every word stands in its home slot
}

// fewWords is the greatest number of words of a small set, in which each word stands in its
// home slot. It is small because the number of slots for that grows with the square of the
// number of words.
const fewWords = 32

// NewSet returns a set of words.
func NewSet(words ...uint64) *Set {
	in := map[uint64]bool{}
	for _, w := range words {
		in[w] = true
	}
	s := &Set{multiplier: oddNumber(), apart: len(in) <= fewWords}
	for in[s.empty] {
		s.empty++
	}
	slots := 2 * len(in)
	if s.apart {
		slots = len(in) * len(in) / 2
	}
	s.grow(max(slots, 16))
	for tries := 1; !s.put(in); tries++ {
		if s.multiplier = oddNumber(); tries%16 == 0 {
			s.grow(2 * len(s.table))
		}
	}
	return s
}

// grow makes a table of at least n slots.
func (s *Set) grow(n int) {
	width := bits.Len(uint(n - 1))
	s.table, s.shift = make([]uint64, 1<<width), uint8(64-width)
}

// put fills the table. It returns false if the words must stand in their home slots, and
// two of them share one.
func (s *Set) put(in map[uint64]bool) bool {
	for i := range s.table {
		s.table[i] = s.empty
	}
	for w := range in {
		at := s.slot(w)
		if s.apart && at != w*s.multiplier>>s.shift {
			return false
		}
		s.table[at] = w
	}
	return true
}

// slot returns the slot of w, or the free slot where it would stand.
func (s *Set) slot(w uint64) uint64 {
	at := w * s.multiplier >> s.shift
	for s.table[at] != s.empty && s.table[at] != w {
		at = (at + 1) & uint64(len(s.table)-1)
	}
	return at
}

// In returns a bit for each word of a block, of up to 64, that is in the set: bit i for
// block[i].
func (s *Set) In(block []uint64) (m uint64) {
	if !s.apart {
		for i := len(block) - 1; i >= 0; i-- {
			w := block[i]
			m = m<<1 | Bit(s.table[s.slot(w)] == w)&Bit(w != s.empty)
		}
		return m
	}
	table, multiplier, shift := s.table, s.multiplier, s.shift&63
	for i := len(block) - 1; i >= 0; i-- {
		w := block[i]
		m = m<<1 | Bit(table[w*multiplier>>shift] == w)&Bit(w != s.empty)
	}
	return m
}

// Texts is a set of strings. Most strings that are not in it are told by their length alone,
// without reading them.
type Texts struct {
	lengths lengths
	few     []string            // all of them, if they are few: it is faster to compare than to hash
	many    map[string]struct{} // else all of them
}

// fewTexts is up to how many texts are compared one after the other.
const fewTexts = 8

// NewTexts returns a set of strings. It may keep texts.
func NewTexts(texts ...string) *Texts {
	t := new(Texts)
	for _, s := range texts {
		t.lengths.add(len(s))
	}
	if len(texts) <= fewTexts {
		t.few = texts
		return t
	}
	t.many = make(map[string]struct{}, len(texts))
	for _, s := range texts {
		t.many[s] = struct{}{}
	}
	return t
}

// Contains reports whether s is one of the texts.
func (t *Texts) Contains(s string) bool {
	if !t.lengths.may(len(s)) {
		return false
	}
	if t.many == nil {
		return slices.Contains(t.few, s)
	}
	_, ok := t.many[s]
	return ok
}

// In returns a bit for each word of a block of s whose string is one of the texts. Those whose
// string is in the word itself are not.
func (t *Texts) In(s *column.Slab, block []uint64) uint64 { return t.Among(s, block, math.MaxUint64) }

// Among is In for the words of a block whose bits are set in of: no string of another is read.
func (t *Texts) Among(s *column.Slab, block []uint64, of uint64) (m uint64) {
	for of &= firstBits(len(block)); of != 0; of &= of - 1 {
		i := bits.TrailingZeros64(of)
		if w := block[i]; !column.IsInline(w) {
			m |= Bit(t.Contains(s.String(w))) << i
		}
	}
	return m
}

// lengths is the lengths of strings, in bytes: a bit for each remainder of 256, and the
// greatest. A record's text may have a megabyte, and to hash it or to bring it into the cache
// takes longer than all else.
type lengths struct {
	remainders [4]uint64
	longest    int
}

func (l *lengths) add(n int) {
	l.remainders[n>>6&3] |= 1 << (n & 63)
	l.longest = max(l.longest, n)
}

// may reports whether a string of n bytes may have been added.
func (l *lengths) may(n int) bool {
	return n <= l.longest && l.remainders[n>>6&3]>>(n&63)&1 != 0
}
