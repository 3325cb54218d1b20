package fn

import "math"

// The constants of Exp and Log: ln 2, and its 64th part, each as a sum of a
// head with few enough bits that small multiples of it are exact, and a tail.
const (
	ln2Head     = 0x1.62e42fefa2000p-1
	ln2Tail     = 0x1.9ef35793c7673p-41
	ln2By64Head = 0x1.62e42fee00000p-7
	ln2By64Tail = 0x1.a39ef35793c76p-39

	expOverflow  = 709.782712893384   // above, e^x is beyond the largest double
	expUnderflow = -745.1332191019412 // below, it rounds to 0
)

// Exp returns e^x, within 2 units of the last place. NaN if x is.
//
// With k = round(64 x / ln 2), e^x = 2^(k/64) e^r where |r| < ln 2 / 128: a
// table gives the first factor and six terms of the series the second.
func Exp(x float64) float64 {
	switch {
	case x != x:
		return x
	case x > expOverflow:
		return math.Inf(1)
	case x < expUnderflow:
		return 0
	}
	k := math.Floor(float64(x*(64/math.Ln2)) + 0.5)
	r := float64(x-float64(k*ln2By64Head)) - float64(k*ln2By64Tail)
	r2 := float64(r * r)
	tail := 1.0/24 + float64(r*(1.0/120))
	mid := 0.5 + float64(r*(1.0/6)) + float64(r2*tail)
	p := r + float64(r2*mid)
	i := int(k)
	t := exp2By64[i&63]
	y := t + float64(t*p)
	e := i >> 6
	if e < -1022 || e > 1023 {
		return math.Ldexp(y, e)
	}
	return y * math.Float64frombits(uint64(e+1023)<<52)
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

// Log1p returns ln(1+x), within 3 units of the last place, for small x too.
// -Inf of -1, NaN below it or if x is.
func Log1p(x float64) float64 {
	u := 1 + x
	switch {
	case u == 1 || x != x || x > math.MaxFloat64:
		return x
	case x <= -1:
		return Log(u)
	}
	return Log(u) + (x-(u-1))/u
}

// Pow returns x^y: by repeated multiplication for whole y up to 64 either way,
// as Exp(y * Log(x)) otherwise, whose relative error is about |y ln x| units
// of the last place. Of a negative x and a y that is not whole NaN, as if
// either is NaN, but x^0 is 1.
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

// exp2By64[i] is 2^(i/64).
var exp2By64 = [64]float64{
	0x1.0000000000000p+0, 0x1.02c9a3e778061p+0, 0x1.059b0d3158574p+0, 0x1.0874518759bc8p+0,
	0x1.0b5586cf9890fp+0, 0x1.0e3ec32d3d1a2p+0, 0x1.11301d0125b51p+0, 0x1.1429aaea92de0p+0,
	0x1.172b83c7d517bp+0, 0x1.1a35beb6fcb75p+0, 0x1.1d4873168b9aap+0, 0x1.2063b88628cd6p+0,
	0x1.2387a6e756238p+0, 0x1.26b4565e27cddp+0, 0x1.29e9df51fdee1p+0, 0x1.2d285a6e4030bp+0,
	0x1.306fe0a31b715p+0, 0x1.33c08b26416ffp+0, 0x1.371a7373aa9cbp+0, 0x1.3a7db34e59ff7p+0,
	0x1.3dea64c123422p+0, 0x1.4160a21f72e2ap+0, 0x1.44e086061892dp+0, 0x1.486a2b5c13cd0p+0,
	0x1.4bfdad5362a27p+0, 0x1.4f9b2769d2ca7p+0, 0x1.5342b569d4f82p+0, 0x1.56f4736b527dap+0,
	0x1.5ab07dd485429p+0, 0x1.5e76f15ad2148p+0, 0x1.6247eb03a5585p+0, 0x1.6623882552225p+0,
	0x1.6a09e667f3bcdp+0, 0x1.6dfb23c651a2fp+0, 0x1.71f75e8ec5f74p+0, 0x1.75feb564267c9p+0,
	0x1.7a11473eb0187p+0, 0x1.7e2f336cf4e62p+0, 0x1.82589994cce13p+0, 0x1.868d99b4492edp+0,
	0x1.8ace5422aa0dbp+0, 0x1.8f1ae99157736p+0, 0x1.93737b0cdc5e5p+0, 0x1.97d829fde4e50p+0,
	0x1.9c49182a3f090p+0, 0x1.a0c667b5de565p+0, 0x1.a5503b23e255dp+0, 0x1.a9e6b5579fdbfp+0,
	0x1.ae89f995ad3adp+0, 0x1.b33a2b84f15fbp+0, 0x1.b7f76f2fb5e47p+0, 0x1.bcc1e904bc1d2p+0,
	0x1.c199bdd85529cp+0, 0x1.c67f12e57d14bp+0, 0x1.cb720dcef9069p+0, 0x1.d072d4a07897cp+0,
	0x1.d5818dcfba487p+0, 0x1.da9e603db3285p+0, 0x1.dfc97337b9b5fp+0, 0x1.e502ee78b3ff6p+0,
	0x1.ea4afa2a490dap+0, 0x1.efa1bee615a27p+0, 0x1.f50765b6e4540p+0, 0x1.fa7c1819e90d8p+0,
}
