package filter

import (
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
)

// sums is record.a + record.b - record.c >= 3 and its like: a range of what
// columns of ints without null come to, added from the left. A sum that
// overflows on the way is an error.
type sums struct {
	columns  []summand
	lo, span uint64 // lo <= sum <= lo+span
	outside  bool   // true for what is not found
}

// summand is a column that is added, or subtracted.
type summand struct {
	index    int
	subtract bool
}

// fastSum returns the loop for op between a sum of columns and c, or nil.
func fastSum(sum *arithmetic, op expr.Op, c *constant) tester {
	columns := summands(nil, sum)
	lo, span, some := placed(func(x int64) int { return placeOf(compareInts(x, int64(c.word))) }, wanted[op].from, wanted[op].to)
	if columns == nil || !some {
		return nil
	}
	return &sums{columns, lo, span, op == expr.Ne}
}

// summands appends the columns of a sum to dst, or returns nil.
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
	if some>>63 == 0 { // as a rule
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
