package filter

import (
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
)

// sums is the tester for comparisons like record.a + record.b - record.c >= 3: it
// tests whether a sum of columns is within a range. The columns are ints and never null.
// Columns are added from the left; a row is an error if a sum on the way overflows.
type sums struct {
	columns  []summand
	lo, span uint64 // sum-lo <= span, as uint64s that wrap around
	outside  bool   // != : true for a sum that is not in the range
}

// summand is a column that is added, or subtracted.
type summand struct {
	index    int
	subtract bool
}

// fastSum returns the tester for op between a sum of columns and c, or nil.
func fastSum(sum *arithmetic, op expr.Op, c *constant) tester {
	columns := summands(nil, sum)
	lo, span, some := placed(func(x int64) int { return placeOf(compareInts(x, int64(c.word))) }, wanted[op].from, wanted[op].to)
	if columns == nil || !some {
		return nil
	}
	return &sums{columns, lo, span, op == expr.Ne}
}

// summands appends the columns of a sum to dst. It returns nil if k is no sum of columns of
// ints that are never null.
func summands(dst []summand, k kernel) []summand {
	switch k := k.(type) {
	case *field:
		if k.typ == expr.Int && !k.nullable {
			return append(dst, summand{index: k.index})
		}
	case *arithmetic:
		f, ok := k.b.(*field)
		if (k.op == expr.Add || k.op == expr.Sub) && ok && f.typ == expr.Int && !f.nullable {
			if dst = summands(dst, k.a); dst != nil {
				return append(dst, summand{f.index, k.op == expr.Sub})
			}
		}
	}
	return nil
}

func (k *sums) test(s *column.Slab, lo, hi int, v *verdict) {
	var sum [64]uint64
	for i := 0; lo < hi; i++ {
		n := min(64, hi-lo)
		words := sum[:n]
		copy(words, s.Column(k.columns[0].index)[lo:])
		var failed uint64
		for _, c := range k.columns[1:] {
			failed |= c.addTo(words, s.Column(c.index)[lo:lo+n])
		}
		hit := compute.Between(words, k.lo, k.span)
		if k.outside {
			hit = ^hit
		}
		v.hit[i], v.failed[i] = hit&^failed, failed
		lo += n
	}
}

// addTo adds words to sums, and returns a bit for each that overflows.
func (c summand) addTo(sums, words []uint64) (overflow uint64) {
	words = words[:len(sums)]
	var some uint64
	if c.subtract {
		for i, w := range words {
			x := sums[i] - w
			some |= (sums[i] ^ w) & (x ^ sums[i])
			sums[i] = x
		}
	} else {
		for i, w := range words {
			x := sums[i] + w
			some |= (x ^ sums[i]) & (x ^ w)
			sums[i] = x
		}
	}
	if some>>63 == 0 { // no sum overflows, as a rule
		return 0
	}
	for i, w := range words {
		before := sums[i] - w
		if c.subtract {
			before = sums[i] + w
			w = ^w
		}
		overflow |= (sums[i] ^ before) & (sums[i] ^ w) >> 63 << i
	}
	return overflow
}

// since is the tester for comparisons like as_of - record.t < duration("24h"): of
// the time between a column and a constant with another constant. As the column
// rises, the time between rises or falls from one overflow to the other. So the words of
// the column for which the comparison is true are a range, and so are those for which
// it is no error.
type since struct {
	wordRange
	none                bool   // no word is in the range
	validLo, validRange uint64 // no error if word-validLo <= validRange
}

// fastSince returns the tester for op between the difference of a column and a
// constant, and d; or nil.
func fastSince(difference *arithmetic, op expr.Op, d *constant) tester {
	f, c, rising := fieldAndConstant(difference.a, difference.b)
	if f == nil || f.typ != expr.Time || c.typ != expr.Time || c.state != present {
		return nil
	}
	if !rising {
		op = mirrored[op] // c - t falls as t rises: compare d with it instead
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
	k.validLo, k.validRange, _ = placed(place, 1, 3) // never empty: t = c is no error
	return k
}

// fieldAndConstant returns which of two operands is a column and which a constant. first
// says that the column is a. It returns nils unless there is one of each.
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
