package trees

import (
	"math"

	"github.com/millrace/millrace/compute"
)

// link is the function that turns the sum of the leaves into the score.
type link uint8

const (
	identity link = iota
	sigmoid       // 1 / (1 + exp(-scale*x))
	exponent      // exp(x)
	softmax       // over the classes
	argmax        // the number of the class with the greatest sum, the first of equals
	log1pExp      // log(1 + exp(x)), only LightGBM's
	square        // sign(x) * x*x, only LightGBM's
	step          // 1 for x above 0, else 0, only XGBoost's
)

// needsAllClasses reports whether a score needs the sums of all classes.
func (l link) needsAllClasses() bool { return l == softmax || l == argmax }

// linked applies a link that needs the sum x of one class alone.
func (f *Forest) linked(x float64) float64 {
	if f.single {
		return float64(f.linked32(float32(x)))
	}
	switch f.link {
	case sigmoid:
		return 1 / (1 + compute.Exp(float64(-f.scale*x)))
	case exponent:
		return compute.Exp(x)
	case log1pExp:
		return compute.Log1p(compute.Exp(x))
	case square:
		return math.Copysign(float64(x*x), x)
	}
	return x
}

// linked32 is linked in float32, as XGBoost computes it.
func (f *Forest) linked32(x float32) float32 {
	switch f.link {
	case sigmoid:
		const eps = 1e-16 // as in XGBoost; exp overflows above 88.7
		return 1 / (exp32(min(-x, 88.7)) + 1 + eps)
	case exponent:
		return exp32(x)
	case step:
		if x > 0 {
			return 1
		}
		return 0
	}
	return x
}

func exp32(x float32) float32 { return float32(compute.Exp(float64(x))) }

// linkedAll applies a link that needs the sums x of all classes: it returns the softmax of
// f.class, or for argmax the number of the class with the greatest sum.
func (f *Forest) linkedAll(x []float64) float64 {
	top, at := x[0], 0
	for c, v := range x {
		if v > top {
			top, at = v, c
		}
	}
	if f.link == argmax {
		return float64(at)
	}
	if f.single {
		sum := 0.0
		for _, v := range x {
			sum += float64(exp32(float32(v) - float32(top)))
		}
		return float64(exp32(float32(x[f.class])-float32(top)) / float32(sum))
	}
	sum := 0.0
	for _, v := range x {
		sum += compute.Exp(v - top)
	}
	return compute.Exp(x[f.class]-top) / sum
}
