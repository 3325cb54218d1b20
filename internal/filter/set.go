package filter

import (
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
)

// wordSet finds the words of a set. Strings too long for a word are looked up
// as such.
type wordSet struct {
	loop
	few   []uint64 // up to fewWords words, one loop each
	table []uint64 // or else an open-addressed table of them
	empty uint64   // what stands in the free slots of table
	long  map[string]struct{}
}

const fewWords = 4

func fastIn(k *inConstants) tester {
	f, ok := k.x.(*field)
	if !ok || k.hasNull || k.anything != present || len(k.doubles)+len(k.ints) > 0 || f.typ == expr.Double {
		return nil
	}
	return wordsIn(f, k.same, k.texts, false)
}

func wordsIn(f *field, set []uint64, texts []string, outside bool) tester {
	k := &wordSet{loop: loop{index: f.index, nullable: f.nullable, outside: outside}}
	for _, t := range texts {
		if w, ok := column.InlineWord(t); ok {
			set = append(set, w)
			continue
		}
		if k.long == nil {
			k.long = map[string]struct{}{}
		}
		k.long[t] = struct{}{}
	}
	if len(set) == 1 && k.long == nil {
		return &wordRange{k.loop, set[0], 0}
	}
	if k.few = set; len(set) > fewWords {
		k.few = nil
		k.fillTable(set)
	}
	return k
}

func (k *wordSet) fillTable(set []uint64) {
	in := map[uint64]bool{}
	for _, w := range set {
		in[w] = true
	}
	for in[k.empty] {
		k.empty++
	}
	n := 16
	for n < 2*len(in) {
		n *= 2
	}
	k.table = make([]uint64, n)
	fill(k.table, k.empty)
	for w := range in {
		k.table[k.slot(w)] = w
	}
}

// slot is where w stands in the table, or would.
func (k *wordSet) slot(w uint64) uint64 {
	mask := uint64(len(k.table) - 1)
	at := w * 0x9e3779b97f4a7c15 >> 32 & mask
	for k.table[at] != k.empty && k.table[at] != w {
		at = (at + 1) & mask
	}
	return at
}

func (k *wordSet) test(s *column.Slab, lo, hi int, v *verdict) {
	col := s.Column(k.index)[lo:hi]
	for i := 0; len(col) > 0; i++ {
		block := col[:min(64, len(col))]
		col = col[len(block):]
		v.hit[i] = 0
		for _, w := range k.few {
			v.hit[i] |= between(block, w, 0)
		}
		if k.table != nil {
			v.hit[i] = k.tabled(block)
		}
		if k.long != nil {
			v.hit[i] |= k.spelled(s, block)
		}
	}
	k.finish(s, lo, hi, v)
}

func (k *wordSet) tabled(block []uint64) (m uint64) {
	for i := len(block) - 1; i >= 0; i-- {
		w := block[i]
		m = m<<1 | one(k.table[k.slot(w)] == w)&one(w != k.empty)
	}
	return m
}

func (k *wordSet) spelled(s *column.Slab, block []uint64) (m uint64) {
	for i := len(block) - 1; i >= 0; i-- {
		m <<= 1
		if w := block[i]; !column.IsInline(w) {
			_, ok := k.long[s.String(w)]
			m |= one(ok)
		}
	}
	return m
}
