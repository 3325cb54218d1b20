package filter

import (
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
)

// wordSet finds the words of a set. Strings too long for a word are looked up
// as such.
type wordSet struct {
	loop
	few   []uint64     // up to fewWords words, one loop each
	table *compute.Set // or else
	words []uint64     // of the table
	long  compute.Texts
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
			k.long = compute.Texts{}
		}
		k.long[t] = struct{}{}
	}
	if len(set) == 1 && k.long == nil {
		return &wordRange{k.loop, set[0], 0}
	}
	k.words = set
	if k.few = set; len(set) > fewWords {
		k.few, k.table = nil, compute.NewSet(set...)
	}
	return k
}

func (k *wordSet) test(s *column.Slab, lo, hi int, v *verdict) {
	col := s.Column(k.index)[lo:hi]
	for i := 0; len(col) > 0; i++ {
		words := col[:min(64, len(col))]
		col = col[len(words):]
		v.hit[i] = 0
		for _, w := range k.few {
			v.hit[i] |= compute.Equal(words, w)
		}
		if k.table != nil {
			v.hit[i] = k.table.In(words)
		}
		if k.long != nil {
			v.hit[i] |= k.long.In(s, words)
		}
	}
	k.finish(s, lo, hi, v)
}
