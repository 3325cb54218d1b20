package compute

import (
	"math"
	"math/bits"
	"math/rand/v2"

	"github.com/millrace/millrace/internal/column"
)

// Table maps strings or numbers to numbers without a Go map on the way that
// short strings take. It is immutable while it is read.
type Table struct {
	missing float64 // what an unknown key gives
	slots   []slot  // open addressing; a power of two, at most half full
	few     []slot  // those used, if they are few
	used    int
	long    map[string]float64
	longest int // of the keys of long, in bytes
	// multiplier is odd, and shift leaves as many bits as slots are numbered by; see home.
	multiplier uint64
	shift      uint8
	dense      []float64 // of number keys 0, 1, 2, ...
	lo, hi     float64   // of the values, but for NaN; not of a set
}

type slot struct {
	key   uint64 // a column's word of a short string, or a number's bits
	value float64
	used  bool
}

// StringTable returns the table of values by string.
func StringTable(values map[string]float64, missing float64) *Table {
	t := new(Table)
	t.reset(len(values), missing)
	for k, v := range values {
		t.putString(k, v)
		t.widen(v)
	}
	return t.ready()
}

// NumberTable returns the table of values[i] by keys[i]. Of equal keys the
// last counts; NaN is never found.
func NumberTable(keys, values []float64, missing float64) *Table {
	t := new(Table)
	t.reset(len(keys), missing)
	dense := true
	for i, k := range keys {
		t.put(numberKey(k), values[i])
		t.widen(values[i])
		dense = dense && k == float64(i)
	}
	if dense {
		t.dense = values
	}
	return t.ready()
}

// SetStrings makes t the table that gives 1 for members and 0 for others, in
// the memory that it has.
func (t *Table) SetStrings(members []string) {
	t.reset(len(members), 0)
	for _, s := range members {
		t.putString(s, 1)
	}
	t.ready()
}

// SetNumbers is SetStrings of numbers.
func (t *Table) SetNumbers(members []float64) {
	t.reset(len(members), 0)
	for _, x := range members {
		t.put(numberKey(x), 1)
	}
	t.ready()
}

// reset empties the table and makes room for n keys.
func (t *Table) reset(n int, missing float64) {
	size := slotsFor(n)
	if cap(t.slots) < size {
		t.slots = make([]slot, size)
	}
	t.slots = t.slots[:size]
	clear(t.slots)
	t.multiplier, t.shift = oddNumber(), uint8(64-bits.Len(uint(size-1)))
	clear(t.long)
	t.longest = 0
	t.missing, t.few, t.used, t.dense = missing, t.few[:0], 0, nil
	t.lo, t.hi = math.Inf(1), math.Inf(-1)
	t.widen(missing)
}

// widen takes a value into the range.
func (t *Table) widen(v float64) {
	if v < t.lo {
		t.lo = v
	}
	if v > t.hi {
		t.hi = v
	}
}

// Range returns the least and the greatest value that the table gives, unless
// it gives NaN. It is not for sets.
func (t *Table) Range() (lo, hi float64) { return t.lo, t.hi }

func (t *Table) putString(k string, v float64) {
	if w, short := column.InlineWord(k); short {
		t.put(w, v)
		return
	}
	if t.long == nil {
		t.long = map[string]float64{}
	}
	t.long[k] = v
	t.longest = max(t.longest, len(k))
}

func slotsFor(n int) int {
	size := 2
	for size < 2*n {
		size *= 2
	}
	return size
}

func numberKey(x float64) uint64 {
	if x == 0 {
		x = 0 // of either sign
	}
	return math.Float64bits(x)
}

func (t *Table) put(key uint64, v float64) {
	i := t.home(key)
	for t.slots[i].used && t.slots[i].key != key {
		i = (i + 1) & (len(t.slots) - 1)
	}
	if !t.slots[i].used {
		t.used++
	}
	t.slots[i] = slot{key, v, true}
}

// fewSlots is how many keys are compared one after the other, without a
// branch, sooner than looked up.
const fewSlots = 4

// ready is called when all is put.
func (t *Table) ready() *Table {
	if t.used > fewSlots {
		return t
	}
	for _, s := range t.slots {
		if s.used {
			t.few = append(t.few, s)
		}
	}
	return t
}

// words sets dst to the value of the string of each of the words sel of rows.
func (t *Table) words(dst []float64, rows *column.Slab, words []uint64, sel []int32) {
	dst = dst[:len(sel)]
	if t.used > fewSlots || len(t.long) > 0 {
		for i, r := range sel {
			dst[i] = t.Word(rows, words[r])
		}
		return
	}
	missing := math.Float64bits(t.missing)
	for i, r := range sel {
		w, v := words[r], missing
		for k := range t.few {
			if t.few[k].key == w {
				v = math.Float64bits(t.few[k].value)
			}
		}
		dst[i] = math.Float64frombits(v)
	}
}

// contain tells of each of the words sel of rows whether its string is in the
// table, which is a set.
func (t *Table) contain(dst []bool, rows *column.Slab, words []uint64, sel []int32) {
	dst = dst[:len(sel)]
	switch {
	case t.used > fewSlots || len(t.long) > 0:
		for i, r := range sel {
			dst[i] = t.Word(rows, words[r]) != 0
		}
	case len(t.few) == 0:
		clear(dst)
	default:
		for i, r := range sel {
			dst[i] = words[r] == t.few[0].key
		}
		for k := range t.few[1:] {
			key := t.few[1+k].key
			for i, r := range sel {
				dst[i] = dst[i] || words[r] == key
			}
		}
	}
}

// home is where a key would stand: the high bits of its product with a number that is
// drawn for each table. The keys may be a caller's, who could choose thousands that
// share a slot if the number were known. Only the high bits depend on all of a key.
func (t *Table) home(key uint64) int {
	return int(key*t.multiplier>>(t.shift&63)) & (len(t.slots) - 1)
}

// oddNumber draws a number to multiply keys by.
func oddNumber() uint64 { return rand.Uint64() | 1 }

func (t *Table) get(key uint64) float64 {
	for i := t.home(key); t.slots[i].used; i = (i + 1) & (len(t.slots) - 1) {
		if t.slots[i].key == key {
			return t.slots[i].value
		}
	}
	return t.missing
}

// Word returns the value of the string of a word of rows.
func (t *Table) Word(rows *column.Slab, w uint64) float64 {
	if column.IsInline(w) {
		return t.get(w)
	}
	if len(t.long) == 0 {
		return t.missing
	}
	return t.longValue(rows.String(w))
}

// String returns the value of a string.
func (t *Table) String(s string) float64 {
	if w, short := column.InlineWord(s); short {
		return t.get(w)
	}
	return t.longValue(s)
}

func (t *Table) longValue(s string) float64 {
	if len(s) > t.longest { // which is not hashed: a record's text may have a megabyte
		return t.missing
	}
	if v, ok := t.long[s]; ok {
		return v
	}
	return t.missing
}

// Number returns the value of a number; NaN has none.
func (t *Table) Number(x float64) float64 {
	if x != x {
		return t.missing
	}
	if t.dense != nil {
		if x >= 0 && x < float64(len(t.dense)) && x == float64(int(x)) {
			return t.dense[int(x)]
		}
		return t.missing
	}
	return t.get(numberKey(x))
}
