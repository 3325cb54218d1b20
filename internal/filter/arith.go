package filter

import (
	"math"

	"github.com/millrace/millrace/internal/expr"
)

// arithmetic is + - * / % of two operands. apply computes a row in which both are
// present: it returns the word and present, or failed for an overflow or a division
// by zero.
type arithmetic struct {
	out
	op    expr.Op
	a, b  kernel
	apply func(a, b uint64) (uint64, state)
}

func (k *arithmetic) eval(b *batch) *vector {
	n := len(b.sel)
	k.begin(n)
	l, r := k.a.eval(b), k.b.eval(b)
	for i := range n {
		if ls, rs := l.states[i], r.states[i]; ls|rs != present {
			k.states[i] = firstError(ls, rs)
			continue
		}
		k.words[i], k.states[i] = k.apply(l.words[i], r.words[i])
	}
	return &k.vector
}

// firstError returns the state of an operation whose operands are not both present: that
// of the first that is an error, or unfit because one is null.
func firstError(a, b state) state {
	switch {
	case a.isError():
		return a
	case b.isError():
		return b
	}
	return unfit
}

// unary is -a, double(a), int(a). apply computes a row in which a is present.
type unary struct {
	out
	a     kernel
	apply func(a uint64) (uint64, state)
}

func (k *unary) eval(b *batch) *vector {
	k.begin(len(b.sel))
	v := k.a.eval(b)
	for i := range b.sel {
		if s := v.states[i]; s != present {
			k.states[i] = firstError(s, present)
			continue
		}
		k.words[i], k.states[i] = k.apply(v.words[i])
	}
	return &k.vector
}

// asDouble turns the ints of a column into doubles, because another schema has the field
// as a double. Null stays null.
type asDouble struct {
	out
	a kernel
}

func (k *asDouble) eval(b *batch) *vector {
	k.begin(len(b.sel))
	v := k.a.eval(b)
	for i := range b.sel {
		k.words[i], k.states[i] = math.Float64bits(float64(int64(v.words[i]))), v.states[i]
	}
	return &k.vector
}

func intArithmetic(op expr.Op) func(a, b uint64) (uint64, state) {
	f := map[expr.Op]func(a, b int64) (int64, bool){expr.Add: addInt, expr.Sub: subInt, expr.Mul: mulInt, expr.Div: divInt, expr.Mod: modInt}[op]
	return func(a, b uint64) (uint64, state) { return checked(f(int64(a), int64(b))) }
}

// checked returns an int as a word, or failed if it is not ok.
func checked(x int64, ok bool) (uint64, state) {
	if !ok {
		return 0, failed
	}
	return uint64(x), present
}

func addInt(a, b int64) (int64, bool) { c := a + b; return c, (c > a) == (b > 0) }
func subInt(a, b int64) (int64, bool) { c := a - b; return c, (c < a) == (b > 0) }

func mulInt(a, b int64) (int64, bool) {
	if a == int64(int32(a)) && b == int64(int32(b)) {
		return a * b, true
	}
	if a == 0 || b == 0 {
		return 0, true
	}
	if a == -1 && b == math.MinInt64 || b == -1 && a == math.MinInt64 {
		return 0, false
	}
	c := a * b
	return c, c/b == a
}

func divInt(a, b int64) (int64, bool) {
	if b == 0 || a == math.MinInt64 && b == -1 {
		return 0, false
	}
	return a / b, true
}

func modInt(a, b int64) (int64, bool) {
	if b == 0 || a == math.MinInt64 && b == -1 {
		return 0, false
	}
	return a % b, true
}

func doubleArithmetic(op expr.Op) func(a, b uint64) (uint64, state) {
	f := map[expr.Op]func(a, b float64) float64{
		expr.Add: func(a, b float64) float64 { return a + b },
		expr.Sub: func(a, b float64) float64 { return a - b },
		expr.Mul: func(a, b float64) float64 { return a * b },
		expr.Div: func(a, b float64) float64 { return a / b },
	}[op]
	return func(a, b uint64) (uint64, state) {
		return math.Float64bits(f(math.Float64frombits(a), math.Float64frombits(b))), present
	}
}

// The bounds of results, in milliseconds. CEL's times lie in the years 1 to 9999 once they
// are computed, and its durations are an int64 of nanoseconds.
const (
	minTime     = -62135596800_000
	maxTime     = 253402300799_999
	maxDuration = math.MaxInt64 / 1_000_000
)

func addTime(t, d uint64) (uint64, state) {
	sum, ok := addInt(int64(t), int64(d))
	return checked(sum, ok && sum >= minTime && sum <= maxTime)
}

func subTime(t, d uint64) (uint64, state) { return addTime(t, -d) }

// timeBetween is a - b. cel-go computes with whole seconds before it adds the
// rest, so the difference of the whole seconds must be in range, too.
func timeBetween(a, b uint64) (uint64, state) {
	as, am := floorSeconds(int64(a))
	bs, bm := floorSeconds(int64(b))
	seconds := as - bs
	if seconds > maxDuration/1000 || seconds < -maxDuration/1000 {
		return 0, failed
	}
	d := seconds*1000 + am - bm
	return checked(d, d <= maxDuration && d >= -maxDuration)
}

// floorSeconds splits milliseconds into whole seconds, rounded down, and the rest, 0 to
// 999 ms.
func floorSeconds(ms int64) (seconds, rest int64) {
	seconds, rest = ms/1000, ms%1000
	if rest < 0 {
		return seconds - 1, rest + 1000
	}
	return seconds, rest
}

func addDuration(a, b uint64) (uint64, state) {
	d := int64(a) + int64(b)
	return checked(d, d <= maxDuration && d >= -maxDuration)
}

func subDuration(a, b uint64) (uint64, state) { return addDuration(a, -b) }

func negateInt(a uint64) (uint64, state) { return checked(-int64(a), int64(a) != math.MinInt64) }
func negateDouble(a uint64) (uint64, state) {
	return math.Float64bits(-math.Float64frombits(a)), present
}
func negateDuration(a uint64) (uint64, state) { return -a, present }

func identity(a uint64) (uint64, state)    { return a, present }
func intToDouble(a uint64) (uint64, state) { return math.Float64bits(float64(int64(a))), present }

// doubleToInt truncates. Like cel-go it refuses both ends of the range.
func doubleToInt(a uint64) (uint64, state) {
	x := math.Float64frombits(a)
	return checked(int64(x), x > math.MinInt64 && x < math.MaxInt64)
}
