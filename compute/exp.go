package compute

import "math"

// The constants of Exp and Log. ln 2 and its 256th part are each a sum of a head and a
// tail: the head has so few bits that small multiples of it are exact.
const (
	ln2Head      = 0x1.62e42fefa2000p-1
	ln2Tail      = 0x1.9ef35793c7673p-41
	ln2By256Head = 0x1.62e42fee00000p-9
	ln2By256Tail = 0x1.a39ef35793c76p-41

	expOverflow  = 709.782712893384   // for a greater x, e^x is beyond the largest double
	expUnderflow = -745.1332191019412 // for a lesser x, e^x rounds to 0
)

// Exp returns e^x, within 1.2 units of the last place. NaN if x is.
//
// With k = round(256 x / ln 2), e^x = 2^(k/256) e^r where |r| < ln 2 / 512: a
// table gives the first factor and four terms of the series the second.
func Exp(x float64) float64 {
	switch {
	case x != x:
		return x
	case x > expOverflow:
		return math.Inf(1)
	case x < expUnderflow:
		return 0
	}
	t := float64(x*(256/math.Ln2)) + toWhole
	k := t - toWhole
	r := float64(x-float64(k*ln2By256Head)) - float64(k*ln2By256Tail)
	p := 1 + float64(r*(1.0/2+float64(r*(1.0/6+float64(r*(1.0/24))))))
	return scale(math.Float64bits(t), float64(r*p))
}

// Log returns the natural logarithm of x, within 2 units of the last place.
// -Inf of 0, NaN below it or if x is.
//
// With x = 2^k f and f in [1/√2, √2), and t = (f-1)/(f+1), ln x is
// k ln 2 + 2 (t + t³/3 + t⁵/5 + ...).
func Log(x float64) float64 {
	switch {
	case x != x || x > math.MaxFloat64:
		return x
	case x < 0:
		return math.NaN()
	case x == 0:
		return math.Inf(-1)
	}
	k := 0
	if x < 0x1p-1022 {
		x, k = x*0x1p52, -52
	}
	b := math.Float64bits(x)
	k += int(b>>52) - 1023
	f := math.Float64frombits(b&(1<<52-1) | 1023<<52)
	if f > math.Sqrt2 {
		f, k = f/2, k+1
	}
	t := (f - 1) / (f + 1)
	z := float64(t * t)
	w := float64(z * z)
	odd := 2.0/3 + float64(w*(2.0/7+float64(w*(2.0/11+float64(w*(2.0/15+float64(w*(2.0/19))))))))
	even := 2.0/5 + float64(w*(2.0/9+float64(w*(2.0/13+float64(w*(2.0/17+float64(w*(2.0/21))))))))
	series := float64(z * (odd + float64(z*even)))
	n := float64(k)
	return float64(n*ln2Head) + (2*t + (float64(t*series) + float64(n*ln2Tail)))
}

// log1p is Log1p without the table. u = 1+x loses x-(u-1) by rounding. log1p adds that,
// divided by u, to the logarithm of u.
func log1p(x float64) float64 {
	u := 1 + x
	switch {
	case u == 1 || x != x || x > math.MaxFloat64:
		return x
	case x <= -1:
		return Log(u)
	}
	return Log(u) + (x-(u-1))/u
}

// log1ps[i] is log1p(i). Counters, such as likes, are mostly small whole numbers.
var log1ps = func() (t [1024]float64) {
	for i := range t {
		t[i] = log1p(float64(i))
	}
	return t
}()

// Log1p returns ln(1+x), within 3 units of the last place, for small x too. -Inf
// of -1, NaN below it or if x is.
func Log1p(x float64) float64 {
	if i := int(x); i > 0 && i < len(log1ps) && float64(i) == x {
		return log1ps[i]
	}
	return log1p(x)
}

// Log1pWhole is Log1p for whole numbers, such as those of a column of integers. It looks
// up 0 to 1023 in log1ps. It is small enough to be inlined.
func Log1pWhole(x float64) float64 {
	if i := uint(int(x)); i < 1024 {
		return log1ps[i]
	}
	return log1p(x)
}

// Log1ps sets dst to Log1p of each of a.
func Log1ps(dst, a []float64) {
	a = a[:len(dst)]
	for k, x := range a {
		if i := int(x); i > 0 && i < len(log1ps) && float64(i) == x {
			dst[k] = log1ps[i]
		} else {
			dst[k] = log1p(x)
		}
	}
}

// Log1pWholes sets dst to Log1p of each of a, which are whole numbers.
func Log1pWholes(dst, a []float64) {
	a = a[:len(dst)]
	for k, x := range a {
		dst[k] = Log1pWhole(x)
	}
}

// Pow returns x^y. For y = 0.5 it is the square root, for whole y from -64 to 64 a
// repeated multiplication, and else Exp(y * Log(x)), whose relative error is about |y ln
// x| units of the last place. It is NaN if x or y is, and for a negative x with a y that
// is not whole; but x^0 is always 1.
func Pow(x, y float64) float64 {
	n := math.Abs(y)
	whole := n == math.Floor(n)
	switch {
	case y == 0:
		return 1
	case x != x || y != y:
		return math.NaN()
	case y == 0.5:
		return math.Sqrt(x)
	case whole && n <= 64:
		p := powWhole(x, int(n))
		if y < 0 {
			return 1 / p
		}
		return p
	case x == 1:
		return 1
	case x >= 0:
		return Exp(float64(y * Log(x)))
	case !whole:
		return math.NaN()
	case n < 1<<53 && int64(n)&1 == 1:
		return -Exp(float64(y * Log(-x)))
	}
	return Exp(float64(y * Log(-x)))
}

// powWhole returns x^n by squaring, for n from 0.
func powWhole(x float64, n int) float64 {
	p := 1.0
	for ; n > 0; n >>= 1 {
		if n&1 == 1 {
			p *= x
		}
		x *= x
	}
	return p
}
