package filter

import (
	"math"

	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
)

// fast returns the loop that does what a term's kernel does, or nil: for a
// column of bools, a column compared with a constant, and a column looked for
// in constants.
func fast(k kernel) narrower {
	switch k := k.(type) {
	case *field:
		return wordsBetween(k, 1, 1, true)
	case *not:
		if f, ok := k.a.(*field); ok {
			return wordsBetween(f, 0, 0, true)
		}
	case *compare:
		return fastCompare(k)
	case *inConstants:
		return fastIn(k)
	}
	return nil
}

func fastCompare(k *compare) narrower {
	f, okF := k.a.(*field)
	c, okC := k.b.(*constant)
	op, class := k.op, k.class
	if !okF || !okC {
		f, okF = k.b.(*field)
		c, okC = k.a.(*constant)
		op = mirrored[op]
	}
	if !okF || !okC || c.state != present {
		return nil
	}
	switch class {
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

// wordsThat keeps the ints x for which op wants compare(x), which does not fall
// as x rises.
func wordsThat(f *field, op expr.Op, compare func(int64) outcomes) narrower {
	atLeast, someAtLeast := first(func(x int64) bool { return compare(x) != less })
	above, someAbove := first(func(x int64) bool { return compare(x) == greater })
	lo, hi, some := int64(math.MinInt64), int64(math.MaxInt64), true
	end := func(x int64, there bool) { // hi is before x
		if there {
			hi, some = x-1, some && x > lo
		}
	}
	switch op {
	case expr.Lt:
		end(atLeast, someAtLeast)
	case expr.Le:
		end(above, someAbove)
	case expr.Gt:
		lo, some = above, someAbove
	case expr.Ge:
		lo, some = atLeast, someAtLeast
	default:
		lo, some = atLeast, someAtLeast
		end(above, someAbove)
	}
	k := wordsBetween(f, lo, hi, op != expr.Eq && op != expr.Ne)
	if !some { // the outside of everything, but for null
		if k.nullable && !k.ordered {
			return nil
		}
		k.lo, k.span, k.outside = 0, math.MaxUint64, true
	}
	k.outside = k.outside != (op == expr.Ne)
	return k
}

// first returns the least x for which is, which stays true once it is, and
// whether there is one.
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

// wordRange keeps the rows whose word, as an int64, is in a range, or outside
// of it. Of an ordered comparison null is an error; otherwise it is outside.
type wordRange struct {
	index             int
	nullable, ordered bool
	lo, span          uint64 // lo <= word <= lo+span
	outside           bool
}

func wordsBetween(f *field, lo, hi int64, ordered bool) *wordRange {
	return &wordRange{index: f.index, nullable: f.nullable, ordered: ordered, lo: uint64(lo), span: uint64(hi) - uint64(lo)}
}

func (k *wordRange) narrow(b *Bound, live []int32) []int32 {
	col := b.at.rows.Column(k.index)
	n, lo, span, outside := 0, k.lo, k.span, k.outside
	if k.nullable {
		return k.narrowNullable(b, col, live)
	}
	for _, r := range live {
		live[n] = r
		n += one((col[r]-lo <= span) != outside)
	}
	b.counts.False += int64(len(live) - n)
	return live[:n]
}

func (k *wordRange) narrowNullable(b *Bound, col []uint64, live []int32) []int32 {
	nulls, bit := b.at.rows.Nulls(k.index)
	n, aside := 0, len(b.undecided)
	for _, r := range live {
		isNull := nulls[r]&bit != 0
		if isNull && k.ordered {
			b.setAside(r, unfit)
			continue
		}
		live[n] = r
		n += one((!isNull && col[r]-k.lo <= k.span) != k.outside)
	}
	b.counts.False += int64(len(live) - n - (len(b.undecided) - aside))
	return live[:n]
}

// one is 1 for true, without a branch.
func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

// doubleRange keeps the rows whose double is in a range, or outside of it. NaN
// is outside.
type doubleRange struct {
	index             int
	nullable, ordered bool
	lo, hi            float64
	outside           bool
}

// doublesThat keeps the doubles that op c is true for.
func doublesThat(f *field, op expr.Op, c float64) narrower {
	if c != c {
		return nil
	}
	k := &doubleRange{index: f.index, nullable: f.nullable, ordered: op != expr.Eq && op != expr.Ne, lo: math.Inf(-1), hi: math.Inf(1)}
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

func (k *doubleRange) narrow(b *Bound, live []int32) []int32 {
	col := b.at.rows.Column(k.index)
	var nulls []uint64
	var bit uint64
	if k.nullable {
		nulls, bit = b.at.rows.Nulls(k.index)
	}
	n, nans, aside := 0, 0, len(b.undecided)
	for _, r := range live {
		isNull := nulls != nil && nulls[r]&bit != 0
		if isNull && k.ordered {
			b.setAside(r, unfit)
			continue
		}
		x := math.Float64frombits(col[r])
		live[n] = r
		nans += one(x != x)
		n += one((one(x >= k.lo)&one(x <= k.hi)&one(!isNull) != 0) != k.outside)
	}
	if k.outside {
		nans = 0 // NaN != c is true
	}
	b.counts.NaN += int64(nans)
	b.counts.False += int64(len(live) - n - nans - (len(b.undecided) - aside))
	return live[:n]
}

// wordSet keeps the rows whose word is one of a set, or none of it. Strings
// too long for a word are looked up as such.
type wordSet struct {
	index    int
	nullable bool
	few      []uint64 // up to fewWords words, or
	table    []uint64 // an open-addressed table of them
	empty    uint64   // what stands in the free slots of table
	long     map[string]struct{}
	outside  bool
}

const fewWords = 8

func fastIn(k *inConstants) narrower {
	f, ok := k.x.(*field)
	if !ok || k.hasNull || k.anything != present || len(k.doubles)+len(k.ints) > 0 || f.typ == expr.Double {
		return nil
	}
	return wordsIn(f, k.same, k.texts, false)
}

func wordsIn(f *field, set []uint64, texts []string, outside bool) narrower {
	k := &wordSet{index: f.index, nullable: f.nullable, outside: outside}
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
		only := wordsBetween(f, int64(set[0]), int64(set[0]), false)
		only.outside = outside
		return only
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

func (k *wordSet) narrow(b *Bound, live []int32) []int32 {
	col := b.at.rows.Column(k.index)
	var nulls []uint64
	var bit uint64
	if k.nullable {
		nulls, bit = b.at.rows.Nulls(k.index)
	}
	n := 0
	for _, r := range live {
		w, hit := col[r], 0
		for _, x := range k.few {
			hit |= one(w == x)
		}
		if k.table != nil && w != k.empty {
			hit = one(k.table[k.slot(w)] == w)
		}
		if k.long != nil && !column.IsInline(w) {
			_, ok := k.long[b.at.rows.String(w)]
			hit = one(ok)
		}
		if nulls != nil && nulls[r]&bit != 0 {
			hit = 0
		}
		live[n] = r
		n += one((hit != 0) != k.outside)
	}
	b.counts.False += int64(len(live) - n)
	return live[:n]
}
