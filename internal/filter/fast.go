package filter

import (
	"math"
	"math/bits"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
)

// fast returns a tester that says the same as a term's kernel, or nil. There are
// testers for constants, for a column of bools, for a column, a sum of columns or the time
// between a column and a constant that is compared with a constant or with null, for a
// column that is looked for among constants, and for && || ! of these.
func fast(k kernel) tester {
	switch k := k.(type) {
	case *constant:
		return fastConstant(k)
	case *field:
		return wordsBetween(k, 1, 0, true)
	case *not:
		if a := fast(k.a); a != nil {
			return notOf{a}
		}
	case *has:
		if f, ok := k.a.(*field); ok {
			return fastNull(f, true)
		}
	case *junction:
		return fastJunction(k)
	case *compare:
		return fastCompare(k)
	case *inConstants:
		return fastIn(k)
	}
	return nil
}

func fastCompare(k *compare) tester {
	op := k.op
	f, c, inOrder := fieldAndConstant(k.a, k.b)
	if f == nil {
		return fastArithmetic(k)
	}
	if !inOrder {
		op = mirrored[op]
	}
	switch {
	case c.state.isError():
		return nil
	case c.state == null && (k.ordering() || f.typ == expr.Double): // isNull does not count NaN
		return nil
	case c.state == null:
		return fastNull(f, op == expr.Ne)
	}
	switch k.class {
	case words:
		return wordsThat(f, op, func(x int64) outcomes { return compareInts(x, int64(c.word)) })
	case intDouble, doubleInt:
		if f.typ == expr.Double { // the int is the constant
			return doublesThat(f, op, float64(int64(c.word)))
		}
		if x := math.Float64frombits(c.word); x == x {
			return wordsThat(f, op, func(i int64) outcomes { return compareIntDouble(i, x) })
		}
	case doubles:
		return doublesThat(f, op, math.Float64frombits(c.word))
	case texts:
		if op == expr.Eq || op == expr.Ne {
			return wordsIn(f, nil, []string{c.text}, op == expr.Ne)
		}
	}
	return nil
}

// fastArithmetic is fastCompare for a comparison of a constant with the difference of two
// times, or with a sum of columns.
func fastArithmetic(k *compare) tester {
	op := k.op
	difference, okA := k.a.(*arithmetic)
	c, okC := k.b.(*constant)
	if !okA || !okC {
		difference, okA = k.b.(*arithmetic)
		c, okC = k.a.(*constant)
		op = mirrored[op]
	}
	if !okA || !okC || k.class != words || c.state != present {
		return nil
	}
	if difference.typ == expr.Int {
		return fastSum(difference, op, c)
	}
	if difference.typ != expr.Duration {
		return nil
	}
	return fastSince(difference, op, c)
}

// mirrored is the operator that says the same of swapped operands.
var mirrored = [...]expr.Op{expr.Eq: expr.Eq, expr.Ne: expr.Ne, expr.Lt: expr.Gt, expr.Le: expr.Ge, expr.Gt: expr.Lt, expr.Ge: expr.Le}

func compareInts(a, b int64) outcomes {
	switch {
	case a < b:
		return less
	case a > b:
		return greater
	}
	return equal
}

// wordsThat returns the tester for the ints x of a column for which op is true of
// compare(x), or nil. compare(x) must not fall as x rises.
func wordsThat(f *field, op expr.Op, compare func(int64) outcomes) tester {
	lo, span, some := placed(func(x int64) int { return placeOf(compare(x)) }, wanted[op].from, wanted[op].to)
	k := wordsBetween(f, lo, span, op != expr.Eq && op != expr.Ne)
	if !some { // no int is in the range: find the ints outside of the range of all ints
		if k.nullable && !k.ordered {
			return nil
		}
		k.lo, k.span, k.outside = 0, math.MaxUint64, true
	}
	k.outside = k.outside != (op == expr.Ne)
	return k
}

// placeOf numbers the results of a comparison in ascending order: 1 is less, 2 equal, 3
// greater. These numbers are called places.
func placeOf(o outcomes) int { return 1 + bits.TrailingZeros8(uint8(o)) }

// wanted are the first and the last place for which an operator is true; for != they are
// those for which it is false.
var wanted = [...]struct{ from, to int }{
	expr.Eq: {2, 2}, expr.Ne: {2, 2}, expr.Lt: {1, 1}, expr.Le: {1, 2}, expr.Gt: {3, 3}, expr.Ge: {2, 3},
}

// placed returns the int64s x with from <= place(x) <= to as a range: uint64(x)-lo <= span.
// place(x) must not fall as x rises. ok is false if there is no such x.
func placed(place func(int64) int, from, to int) (lo, span uint64, ok bool) {
	least, ok := first(func(x int64) bool { return place(x) >= from })
	last := int64(math.MaxInt64)
	if past, some := first(func(x int64) bool { return place(x) > to }); some {
		ok = ok && past > least
		last = past - 1
	}
	return uint64(least), uint64(last) - uint64(least), ok
}

// first returns the least x for which is(x) is true. ok is false if there is none. is must
// stay true from the first such x on.
func first(is func(int64) bool) (x int64, ok bool) {
	if !is(math.MaxInt64) {
		return 0, false
	}
	lo, hi := uint64(0), uint64(math.MaxUint64) // from the least int64
	for lo < hi {
		mid := lo + (hi-lo)/2
		if is(int64(mid + 1<<63)) {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return int64(lo + 1<<63), true
}

// loop is what the loops over one column have in common.
type loop struct {
	index    int  // of the column
	nullable bool // the column may have nulls
	ordered  bool // a null makes the term an error; otherwise it is just not found
	outside  bool // the term is true for the values that are not found
}

// finish turns the hits of a loop into the verdict of the term: it clears the nulls, and
// inverts the hits if outside.
func (k *loop) finish(s *column.Slab, lo, hi int, v *verdict) {
	if k.nullable {
		k.nulls(s, lo, hi, v)
	}
	if k.outside {
		for i := range (hi - lo + 63) / 64 {
			v.hit[i] = ^(v.hit[i] | v.unfit[i])
		}
	}
}

func (k *loop) nulls(s *column.Slab, lo, hi int, v *verdict) {
	words, bit := s.Nulls(k.index)
	for i := 0; lo < hi; i++ {
		end := min(lo+64, hi)
		m := compute.Nulls(words[lo:end], bit)
		v.hit[i] &^= m
		v.nan[i] &^= m
		if k.ordered {
			v.unfit[i] = m
		}
		lo = end
	}
}

// wordRange finds the words that, as an int64, are in a range.
type wordRange struct {
	loop
	lo, span uint64 // word-lo <= span, as uint64s that wrap around
}

func wordsBetween(f *field, lo, span uint64, ordered bool) *wordRange {
	return &wordRange{loop{index: f.index, nullable: f.nullable, ordered: ordered}, lo, span}
}

func (k *wordRange) test(s *column.Slab, lo, hi int, v *verdict) {
	col := s.Column(k.index)[lo:hi]
	for i := 0; len(col) > 0; i++ {
		words := col[:min(64, len(col))]
		col = col[len(words):]
		v.hit[i] = compute.Between(words, k.lo, k.span)
	}
	k.finish(s, lo, hi, v)
}

// doubleRange finds the doubles x with lo <= x <= hi. NaN is in no range.
type doubleRange struct {
	loop
	lo, hi float64
}

// doublesThat returns the tester for the doubles x of a column with x op c. It is nil if c
// is NaN.
func doublesThat(f *field, op expr.Op, c float64) tester {
	if c != c {
		return nil
	}
	k := &doubleRange{loop{index: f.index, nullable: f.nullable, ordered: op != expr.Eq && op != expr.Ne}, math.Inf(-1), math.Inf(1)}
	switch op {
	case expr.Lt:
		if k.hi = math.Nextafter(c, math.Inf(-1)); math.IsInf(c, -1) {
			k.lo = math.Inf(1) // nothing is less
		}
	case expr.Le:
		k.hi = c
	case expr.Gt:
		if k.lo = math.Nextafter(c, math.Inf(1)); math.IsInf(c, 1) {
			k.hi = math.Inf(-1) // nothing is greater
		}
	case expr.Ge:
		k.lo = c
	default:
		k.lo, k.hi, k.outside = c, c, op == expr.Ne
	}
	return k
}

func (k *doubleRange) test(s *column.Slab, lo, hi int, v *verdict) {
	col := s.Column(k.index)[lo:hi]
	for i := 0; len(col) > 0; i++ {
		words := col[:min(64, len(col))]
		col = col[len(words):]
		found := compute.DoublesBetween(words, k.lo, k.hi)
		v.hit[i], v.nan[i] = found.Hit, found.NaN
	}
	k.finish(s, lo, hi, v)
}

// wordSet finds the words of a set. Strings that are too long for a word are in a set of
// their own.
type wordSet struct {
	loop
	few   []uint64       // the words, if they are few: one loop each
	table *compute.Set   // the words, if they are more
	words []uint64       // the words in any case
	texts []string       // strings that are too long for a word
	long  *compute.Texts // of these; nil: there are none
}

// fewWords is how many words are sooner compared one after the other than looked up.
const fewWords = 4

func fastIn(k *inConstants) tester {
	f, ok := k.x.(*field)
	if !ok || k.hasNull || len(k.doubles)+len(k.ints) > 0 || f.typ == expr.Double {
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
		k.texts = append(k.texts, t)
	}
	if len(k.texts) > 0 {
		k.long = compute.NewTexts(k.texts...)
	} else if len(set) == 1 {
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
			v.hit[i] |= k.long.Among(s, words, v.asked[i])
		}
	}
	k.finish(s, lo, hi, v)
}
