package block

import "github.com/millrace/millrace/internal/column"

// Set is words in an open-addressed table.
type Set struct {
	table []uint64
	empty uint64 // what stands in the free slots
}

// NewSet returns a set of words.
func NewSet(words ...uint64) *Set {
	in := map[uint64]bool{}
	for _, w := range words {
		in[w] = true
	}
	var s Set
	for in[s.empty] {
		s.empty++
	}
	n := 16
	for n < 2*len(in) {
		n *= 2
	}
	s.table = make([]uint64, n)
	for i := range s.table {
		s.table[i] = s.empty
	}
	for w := range in {
		s.table[s.slot(w)] = w
	}
	return &s
}

// slot is where w stands in the table, or would.
func (s *Set) slot(w uint64) uint64 {
	mask := uint64(len(s.table) - 1)
	at := w * 0x9e3779b97f4a7c15 >> 32 & mask
	for s.table[at] != s.empty && s.table[at] != w {
		at = (at + 1) & mask
	}
	return at
}

// In has a bit for each word of a block that is in the set.
func (s *Set) In(block []uint64) (m uint64) {
	for i := len(block) - 1; i >= 0; i-- {
		w := block[i]
		m = m<<1 | One(s.table[s.slot(w)] == w)&One(w != s.empty)
	}
	return m
}

// Texts are strings too long for a word.
type Texts map[string]struct{}

// NewTexts returns a set of strings.
func NewTexts(texts ...string) Texts {
	t := Texts{}
	for _, s := range texts {
		t[s] = struct{}{}
	}
	return t
}

// In has a bit for each string of a block of s that is one of the texts.
func (t Texts) In(s *column.Slab, block []uint64) (m uint64) {
	for i := len(block) - 1; i >= 0; i-- {
		m <<= 1
		if w := block[i]; !column.IsInline(w) {
			_, ok := t[s.String(w)]
			m |= One(ok)
		}
	}
	return m
}
