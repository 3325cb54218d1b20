package stats

import "math"

// logGamma returns the logarithm of the gamma function of x > 0.
func logGamma(x float64) float64 {
	log, _ := math.Lgamma(x)
	return log
}

// logBeta returns the logarithm of the beta function of a, b > 0.
func logBeta(a, b float64) float64 { return logGamma(a) + logGamma(b) - logGamma(a+b) }

// normalQuantile returns the x below which a standard normal value lies with
// chance p.
func normalQuantile(p float64) float64 { return math.Sqrt2 * math.Erfinv(2*p-1) }

// chiSquareTail returns the chance that a χ² value of so many degrees of
// freedom is at least x.
func chiSquareTail(x float64, degrees int) float64 {
	return upperGamma(float64(degrees)/2, x/2)
}

// upperGamma returns the regularised upper incomplete gamma function Q(a, x): for x
// below a+1 by its power series, and above by its continued fraction, evaluated by
// Lentz's method (Abramowitz and Stegun, 6.5.29 and 6.5.31).
func upperGamma(a, x float64) float64 {
	const enough = 1e-15
	switch {
	case x <= 0:
		return 1
	case math.IsInf(x, 1):
		return 0
	}
	scale := math.Exp(a*math.Log(x) - x - logGamma(a))
	if x < a+1 {
		term := 1 / a
		sum := term
		for k := a + 1; term > sum*enough; k++ {
			term *= x / k
			sum += term
		}
		return max(0, 1-scale*sum)
	}
	const tiny = 1e-300
	b := x + 1 - a
	c, d := 1/tiny, 1/b
	fraction := d
	for k := 1.0; k < 1e5; k++ {
		numerator := -k * (k - a)
		b += 2
		d = 1 / orTiny(b+numerator*d, tiny)
		c = orTiny(b+numerator/c, tiny)
		change := c * d
		fraction *= change
		if math.Abs(change-1) < enough {
			break
		}
	}
	return scale * fraction
}

// orTiny keeps a divisor from being zero.
func orTiny(x, tiny float64) float64 {
	if math.Abs(x) < tiny {
		return tiny
	}
	return x
}
