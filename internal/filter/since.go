package filter

import (
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
)

// since is as_of - record.t < duration("24h") and its like: the time between a
// column and a constant, compared with another. As the column rises, the time
// between goes from one overflow to the other; so the words for which the term
// is true are a range, and so are those for which it is no error.
type since struct {
	wordRange
	none                bool // no word is in the range
	validLo, validRange uint64
}

// fastSince returns the loop for op between the difference of a column and a
// constant, and d; or nil.
func fastSince(difference *arithmetic, op expr.Op, d *constant) tester {
	f, c, rising := fieldAndConstant(difference.a, difference.b)
	if f == nil || f.typ != expr.Time || c.typ != expr.Time || c.state != present {
		return nil
	}
	if !rising {
		op = mirrored[op] // of c - t, the greater come first
	}
	place := func(t int64) int {
		between, s := timeBetween(uint64(t), c.word)
		if !rising {
			between, s = timeBetween(c.word, uint64(t))
		}
		switch {
		case s != present && t < int64(c.word):
			return 0
		case s != present:
			return 4
		case !rising:
			return placeOf(compareInts(int64(d.word), int64(between)))
		}
		return placeOf(compareInts(int64(between), int64(d.word)))
	}
	k := &since{wordRange: wordRange{loop: loop{index: f.index, nullable: f.nullable, ordered: true, outside: op == expr.Ne}}}
	var some bool
	k.lo, k.span, some = placed(place, wanted[op].from, wanted[op].to)
	k.none = !some
	k.validLo, k.validRange, _ = placed(place, 1, 3) // c itself is valid
	return k
}

// fieldAndConstant tells which of two operands is a column and which is a
// constant, and whether the column is the first; nil if not one of each.
func fieldAndConstant(a, b kernel) (f *field, c *constant, first bool) {
	f, okF := a.(*field)
	c, okC := b.(*constant)
	if okF && okC {
		return f, c, true
	}
	f, okF = b.(*field)
	c, okC = a.(*constant)
	if okF && okC {
		return f, c, false
	}
	return nil, nil, false
}

func (k *since) test(s *column.Slab, lo, hi int, v *verdict) {
	k.wordRange.test(s, lo, hi, v)
	col := s.Column(k.index)[lo:hi]
	for i := 0; len(col) > 0; i++ {
		words := col[:min(64, len(col))]
		col = col[len(words):]
		if k.none {
			v.hit[i] = -compute.Bit(k.outside) &^ v.unfit[i]
		}
		v.failed[i] = ^(compute.Between(words, k.validLo, k.validRange) | v.unfit[i])
		v.hit[i] &^= v.failed[i]
	}
}
