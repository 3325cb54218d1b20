// This file defines what models compute, once: the interpreter and generated code
// call the same functions, so that their scores are the same bits. Nothing
// depends on the architecture. Products are converted to float64 before they are added, so
// that no compiler fuses them into a multiply-add. Only sums of products of lists have
// assembly (column.Probe), which rounds each product and each sum as the Go here does.
// A missing number is NaN; internal/expr/DESIGN.md has the table of what each function
// gives for it.

package compute

import (
	"math"
	"strconv"
	"unicode/utf8"
)

// Missing stands for a number that a record, an entity or a viewer does not have: NaN.
var Missing = math.NaN()

// Score returns x, and for any NaN the one in Missing. The bits of a NaN would otherwise
// depend on the order of a sum's operands.
func Score(x float64) float64 {
	if x != x {
		return Missing
	}
	return x
}

// If returns a if c is true, and else b. Both are computed before the call.
func If[T any](c bool, a, b T) T {
	if c {
		return a
	}
	return b
}

// Sigmoid returns 1 / (1 + exp(-x)).
func Sigmoid(x float64) float64 { return 1 / (1 + Exp(-x)) }

// Age returns how many seconds t lies before asOf, both in milliseconds since
// the epoch; negative for a t after it. NaN if t is.
func Age(t, asOf float64) float64 { return (asOf - t) / 1000 }

// Clamp returns x, or the bound it is beyond. NaN if x is.
func Clamp(x, lo, hi float64) float64 {
	if x < lo {
		return lo
	}
	if x > hi {
		return hi
	}
	return x
}

// Bucketize returns how many of the bounds are at most x: 0 to len(bounds). Bounds
// ascend. NaN if x is.
func Bucketize(x float64, bounds []float64) float64 {
	if x != x {
		return x
	}
	n := 0
	for _, b := range bounds {
		if b <= x {
			n++
		}
	}
	return float64(n)
}

// Coalesce returns x, or other if x is missing.
func Coalesce(x, other float64) float64 {
	if x != x {
		return other
	}
	return x
}

// Abs returns |x|.
func Abs(x float64) float64 { return math.Abs(x) }

// Sqrt returns the square root of x, NaN below 0.
func Sqrt(x float64) float64 { return math.Sqrt(x) }

// Min returns the lesser. NaN if either is; -0 is less than 0.
func Min(a, b float64) float64 { return min(a, b) }

// Max returns the greater. NaN if either is; 0 is greater than -0.
func Max(a, b float64) float64 { return max(a, b) }

// Dot returns the sum of a[i]*b[i], added from the first. NaN if the lists are
// empty or of different lengths: a missing list is empty.
func Dot(a, b []float64) float64 {
	if len(a) != len(b) || len(a) == 0 {
		return math.NaN()
	}
	var sum float64
	for i, x := range a {
		sum += float64(x * b[i])
	}
	return sum
}

// Cosine returns Dot(a, b) / (sqrt(Dot(a, a)) * sqrt(Dot(b, b))). NaN where
// Dot is, and if a list is all zeros.
func Cosine(a, b []float64) float64 {
	if len(a) != len(b) { // saves the sums: a viewer's list may be long, and Cosine is called for each record
		return Missing
	}
	return Dot(a, b) / float64(math.Sqrt(Dot(a, a))*math.Sqrt(Dot(b, b)))
}

// L2 returns the square root of the sum of (a[i]-b[i])^2, each rounded, added from the
// first: how far a is from b. NaN where Dot is.
func L2(a, b []float64) float64 {
	if len(a) != len(b) || len(a) == 0 {
		return Missing
	}
	var sum float64
	for i, x := range a {
		d := x - b[i]
		sum += float64(d * d)
	}
	return math.Sqrt(sum)
}

// MaxCrossBytes bounds the text that AppendCross makes, a key of look-up tables. It has
// room for the ids of an entity, an object and a viewer, 512 bytes each, and two bars
// between them. No table has a longer key. A viewer's text may have 16 KiB, which would
// be copied for each record.
const MaxCrossBytes = 3*512 + 2

// AppendCross appends a and b, joined by "|": the key of a cross, the combination of two
// features. A caller writes a number as [AppendNumber] does. If the key would be longer
// than [MaxCrossBytes], AppendCross appends nothing, and the text is missing.
func AppendCross(dst []byte, a, b string) []byte {
	if len(a)+1+len(b) > MaxCrossBytes {
		return dst
	}
	return append(append(append(dst, a...), '|'), b...)
}

// AppendNumber appends the shortest decimal that reads back as x: "3", "0.5",
// "1e+21", "NaN".
func AppendNumber(dst []byte, x float64) []byte {
	return strconv.AppendFloat(dst, x, 'g', -1, 64)
}

// Item returns item i of a list, i from 0; Missing if the list is not so long.
func Item(list []float64, i int) float64 {
	if i >= len(list) {
		return Missing
	}
	return list[i]
}

// Size returns the length of a string in Unicode code points, as the expression language
// CEL counts it.
func Size(s string) float64 { return float64(utf8.RuneCountInString(s)) }

// One returns 1 for true and 0 for false, without a branch.
func One(b bool) int {
	n := 0
	if b {
		n = 1
	}
	return n
}

// Bool returns 1 for true and 0 for false, without a branch: the processor would
// mispredict it, since the values of records follow no pattern.
func Bool(b bool) float64 { return float64(One(b)) }
