package filter

import (
	"math"
	"strings"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/expr"
)

// outcomes is a set of results of a comparison, a bit each: the one that two values have,
// or those for which an operator is true.
type outcomes uint8

const (
	less outcomes = 1 << iota
	equal
	greater
	unordered // an operand is NaN
)

var outcomesOf = [...]outcomes{
	expr.Eq: equal, expr.Ne: less | greater | unordered,
	expr.Lt: less, expr.Le: less | equal, expr.Gt: greater, expr.Ge: greater | equal,
}

// compare is == != < <= > >=.
type compare struct {
	out
	op    expr.Op
	a, b  kernel
	class class
	left  *vector // the values of a at the last eval
	right *vector // the values of b at the last eval
}

// class is how values of two types compare.
type class uint8

const (
	never   class = iota // different types: not equal, and an order is an error
	words                // two of int, time, duration or bool, of the same type
	doubles              // double and double
	intDouble
	doubleInt
	texts
	lists // two lists of the viewer; columns of lists cannot be compared
)

func classOf(a, b expr.Type) class {
	switch {
	case a == expr.Int && b == expr.Double:
		return intDouble
	case a == expr.Double && b == expr.Int:
		return doubleInt
	case isList(a) && isList(b):
		return lists
	case a != b || a == expr.Null:
		return never
	case a == expr.Double:
		return doubles
	case a == expr.String:
		return texts
	}
	return words
}

func isList(t expr.Type) bool { return t == expr.Doubles || t == expr.Strings }

func (k *compare) ordering() bool { return k.op != expr.Eq && k.op != expr.Ne }

func (k *compare) eval(b *batch) *vector {
	n := len(b.sel)
	l, r := k.a.eval(b), k.b.eval(b)
	k.left, k.right = l, r
	k.begin(n)
	want := outcomesOf[k.op]
	if k.class == words && all(l.states[:n], present) && all(r.states[:n], present) {
		lw, rw := l.words[:n], r.words[:n]
		for i := range k.words {
			k.words[i] = compute.Bit(compareInts(int64(lw[i]), int64(rw[i]))&want != 0)
		}
		return &k.vector
	}
	for i := range n {
		if l.states[i]|r.states[i] != present || k.class == never || k.class == lists {
			k.words[i], k.states[i] = k.odd(i)
			continue
		}
		k.words[i] = compute.Bit(k.outcome(i)&want != 0)
	}
	return &k.vector
}

// outcome compares the values at position i, which are both present.
func (k *compare) outcome(i int) outcomes {
	l, r := k.left.words, k.right.words
	switch k.class {
	case words:
		return compareInts(int64(l[i]), int64(r[i]))
	case doubles:
		return compareDoubles(math.Float64frombits(l[i]), math.Float64frombits(r[i]))
	case intDouble:
		return compareIntDouble(int64(l[i]), math.Float64frombits(r[i]))
	case doubleInt:
		return flip(compareIntDouble(int64(r[i]), math.Float64frombits(l[i])))
	}
	return ordered(strings.Compare(k.left.strings[i], k.right.strings[i]))
}

// odd compares the values at position i if one is null or an error, if they are lists, or
// if their types differ.
func (k *compare) odd(i int) (uint64, state) {
	l, r := k.left.states[i], k.right.states[i]
	switch {
	case l.isError():
		return 0, l
	case r.isError():
		return 0, r
	case !k.ordering():
		same := l == null && r == null
		if k.class == lists && l == present && r == present {
			same = equalLists(k.a.(*constant), k.b.(*constant))
		}
		return compute.Bit(same == (k.op == expr.Eq)), present
	case isNaN(k.a, k.left, i), isNaN(k.b, k.right, i) && l == present && !isList(k.a.kind()):
		return 0, present // cel-go looks for NaN before it looks at the other type
	}
	return 0, unfit
}

func all(states []state, want state) bool {
	for _, s := range states {
		if s != want {
			return false
		}
	}
	return true
}

func isNaN(k kernel, v *vector, i int) bool {
	return k.kind() == expr.Double && v.states[i] == present && isNaNWord(v.words[i])
}

func isNaNWord(w uint64) bool { x := math.Float64frombits(w); return x != x }

// comparedNaN reports whether an operand at position i of the last eval is
// NaN, and the comparison is one that is false because of it: any but !=.
func (k *compare) comparedNaN(i int) bool {
	return k.op != expr.Ne && (isNaN(k.a, k.left, i) || isNaN(k.b, k.right, i))
}

// ordered returns the result of a comparison that is -1, 0 or 1.
func ordered(c int) outcomes {
	switch {
	case c < 0:
		return less
	case c > 0:
		return greater
	}
	return equal
}

// flip returns the result of a comparison with its operands swapped.
func flip(o outcomes) outcomes {
	switch o {
	case less:
		return greater
	case greater:
		return less
	}
	return o
}

func compareDoubles(a, b float64) outcomes {
	switch {
	case a < b:
		return less
	case a > b:
		return greater
	case a == b:
		return equal
	}
	return unordered
}

// compareIntDouble compares as cel-go does. A double beyond the range of ints is less or
// greater than every int; any other is compared with the double nearest to the int.
func compareIntDouble(a int64, b float64) outcomes {
	switch {
	case b < math.MinInt64:
		return greater
	case b > math.MaxInt64:
		return less
	}
	return compareDoubles(float64(a), b)
}

func equalLists(a, b *constant) bool {
	if len(a.list) != len(b.list) || len(a.doubles) != len(b.doubles) {
		return false
	}
	for i := range a.list {
		if a.list[i] != b.list[i] {
			return false
		}
	}
	for i := range a.doubles {
		if a.doubles[i] != b.doubles[i] {
			return false
		}
	}
	return true
}
