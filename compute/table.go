package compute

import (
	"math"
	"math/bits"
	"math/rand/v2"

	"github.com/millrace/millrace/internal/column"
)

// Table maps strings or numbers to numbers. Its keys that are numbers, or strings that fit
// into a column's word, are in a hash table that this file implements. Only longer strings
// are in a Go map. A Table may be read by several goroutines, but not while it is changed.
type Table struct {
	missing float64            // the value of an unknown key
	slots   []slot             // open addressing; a power of two, at most half full
	few     []slot             // the used slots, if there are at most fewSlots
	used    int                // how many slots are used
	long    map[string]float64 // the strings that do not fit into a word
	lengths lengths            // of the keys of long

	// home computes from these the slot where the search for a key begins. multiplier
	// is odd.
	multiplier uint64
	shift      uint8

	dense  []float64 // the values, if the keys are the numbers 0, 1, 2, ...; else nil
	lo, hi float64   // the range of the values and of missing, NaN apart; not kept for a set
}

// slot is a place for one key of a table and its value.
type slot struct {
	key   uint64 // the word of a short string, or the bits of a number
	value float64
	used  bool
}

// StringTable returns a table of values by string. A string that is not in it has the value
// missing.
func StringTable(values map[string]float64, missing float64) *Table {
	t := new(Table)
	t.reset(len(values), missing)
	for k, v := range values {
		t.putString(k, v)
		t.widen(v)
	}
	return t.ready()
}

// NumberTable returns a table that maps keys[i] to values[i]. Of equal keys the last
// counts. A number that is not in it, and NaN, has the value missing. The table may keep
// values.
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

// SetStrings makes t a set: a table that gives 1 for members and 0 for all others. It
// reuses the memory of t.
func (t *Table) SetStrings(members []string) {
	t.reset(len(members), 0)
	for _, s := range members {
		t.putString(s, 1)
	}
	t.ready()
}

// SetNumbers is SetStrings for numbers.
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
	t.lengths = lengths{}
	t.missing, t.few, t.used, t.dense = missing, t.few[:0], 0, nil
	t.lo, t.hi = math.Inf(1), math.Inf(-1)
	t.widen(missing)
}

// widen extends lo and hi to a value; NaN changes nothing.
func (t *Table) widen(v float64) {
	if v < t.lo {
		t.lo = v
	}
	if v > t.hi {
		t.hi = v
	}
}

// Range returns the least and the greatest value that the table can give, missing
// included and NaN left out. If all are NaN, lo is above hi. It is not for sets.
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
	t.lengths.add(len(k))
}

// slotsFor returns the number of slots for n keys: a power of two, at least 2n.
func slotsFor(n int) int {
	size := 2
	for size < 2*n {
		size *= 2
	}
	return size
}

// numberKey returns the key of a number: its bits, and those of 0 for -0.
func numberKey(x float64) uint64 {
	if x == 0 {
		x = 0 // -0 becomes 0
	}
	return math.Float64bits(x)
}

// put sets the value of a key that is the word of a short string, or the bits of a number.
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

// fewSlots is how many keys a table may have at most so that a look-up compares all of them,
// one after the other and without a branch, instead of hashing.
const fewSlots = 4

// ready fills few. It is called when all keys are in the table.
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

// words sets dst[i] to the value of the string of row sel[i]. words is the column of these
// strings.
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

// contain sets dst[i] to whether the string of row sel[i] is in the table, which is a
// set. words is the column of these strings.
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

// home returns the slot where the search for a key begins: the high bits of
// key*multiplier, as only these depend on all bits of the key. The multiplier is drawn at
// random for each table. Otherwise a caller who sends keys could choose thousands that
// share a slot.
func (t *Table) home(key uint64) int {
	return int(key*t.multiplier>>(t.shift&63)) & (len(t.slots) - 1)
}

// oddNumber returns a random odd number to multiply keys by.
func oddNumber() uint64 { return rand.Uint64() | 1 }

func (t *Table) get(key uint64) float64 {
	for i := t.home(key); t.slots[i].used; i = (i + 1) & (len(t.slots) - 1) {
		if t.slots[i].key == key {
			return t.slots[i].value
		}
	}
	return t.missing
}

// Word returns the value of the string whose word in rows is w.
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
	if !t.lengths.may(len(s)) {
		return t.missing
	}
	if v, ok := t.long[s]; ok {
		return v
	}
	return t.missing
}

// Number returns the value of a number; missing for NaN.
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
