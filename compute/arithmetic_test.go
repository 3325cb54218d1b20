package compute

import (
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
)

// ulps returns how many doubles lie between a and b.
func ulps(a, b float64) float64 {
	if a == b || a != a && b != b {
		return 0
	}
	return math.Abs(a-b) / (math.Nextafter(math.Abs(b), math.Inf(1)) - math.Abs(b))
}

func TestAgainstStandardLibrary(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	check := func(name string, got, want, x, limit float64) {
		t.Helper()
		if d := ulps(got, want); !(d <= limit) {
			t.Fatalf("%s(%v) = %v, want %v: %v units off", name, x, got, want, d)
		}
	}
	for range 200_000 {
		x := r.NormFloat64() * math.Exp2(float64(r.IntN(20)-10))
		if math.Abs(x) < 709 { // beyond, the standard library overflows early on amd64
			check("Exp", Exp(x), math.Exp(x), x, 2)
		}
		l := math.Abs(x) * math.Exp2(float64(r.IntN(2000)-1000))
		check("Log", Log(l), math.Log(l), l, 4)
		check("Log1p", Log1p(x), math.Log1p(x), x, 4)
		y := r.NormFloat64() * 3
		want := math.Pow(math.Abs(x), y)
		if got := Pow(math.Abs(x), y); math.Abs(got-want) > 1e-13*want {
			t.Fatalf("Pow(%v, %v) = %v, want %v", math.Abs(x), y, got, want)
		}
	}
}

func TestEdges(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		name      string
		got, want float64
	}{
		{"exp 0", Exp(0), 1}, {"exp inf", Exp(inf), inf}, {"exp -inf", Exp(-inf), 0}, {"exp nan", Exp(nan), nan},
		{"exp max", Exp(709.78), math.Exp(709.78)}, {"exp denormal", Exp(-745), math.Exp(-745)},
		{"log 0", Log(0), -inf}, {"log 1", Log(1), 0}, {"log inf", Log(inf), inf}, {"log -1", Log(-1), nan},
		{"log denormal", Log(0x1p-1074), -1074 * math.Ln2},
		{"log1p -1", Log1p(-1), -inf}, {"log1p tiny", Log1p(1e-300), 1e-300}, {"log1p -2", Log1p(-2), nan}, {"log1p inf", Log1p(inf), inf}, {"log1p nan", Log1p(nan), nan},
		{"pow 2 10", Pow(2, 10), 1024}, {"pow 2 -2", Pow(2, -2), .25}, {"pow -2 3", Pow(-2, 3), -8}, {"pow -8 1/3", Pow(-8, 1.0/3), nan}, {"pow nan 0", Pow(nan, 0), 1}, {"pow 0 -1", Pow(0, -1), inf},
		{"decay half", Decay(10, 10), .5}, {"decay future", Decay(-5, 10), 1}, {"decay nan", Decay(nan, 10), nan},
		{"clamp", Clamp(5, 0, 3), 3}, {"clamp nan", Clamp(nan, 0, 3), nan},
		{"bucket below", Bucketize(0, []float64{1, 2}), 0}, {"bucket on", Bucketize(1, []float64{1, 2}), 1}, {"bucket above", Bucketize(9, []float64{1, 2}), 2}, {"bucket nan", Bucketize(nan, []float64{1}), nan},
		{"coalesce", Coalesce(nan, 3), 3}, {"min nan", Min(1, nan), nan}, {"max", Max(1, 2), 2},
		{"dot", Dot([]float64{1, 2}, []float64{3, 4}), 11}, {"dot lengths", Dot([]float64{1}, []float64{1, 2}), nan}, {"dot empty", Dot(nil, nil), nan},
		{"l2", L2([]float64{1, 2}, []float64{4, 6}), 5}, {"l2 of one", L2([]float64{7}, []float64{7}), 0}, {"l2 of none", L2(nil, nil), nan}, {"l2 of other lengths", L2([]float64{1}, nil), nan},
		{"cosine", Cosine([]float64{3, 4}, []float64{3, 4}), 1}, {"cosine zero", Cosine([]float64{0}, []float64{1}), nan},
		{"age", Age(1000, 61000), 60},
	} {
		if ulps(c.got, c.want) > 1 {
			t.Errorf("%s: got %v, want %v", c.name, c.got, c.want)
		}
	}
	long := strings.Repeat("x", 1535)
	if got := AppendCross(nil, long, "en"); len(got) != 1538 {
		t.Errorf("three of the longest names make %d bytes", len(got))
	}
	if got := string(AppendCross([]byte("before"), long, "eng")); got != "before" {
		t.Errorf("what is longer makes %d bytes", len(got))
	}
	if got := string(AppendCross(nil, "en", string(AppendNumber(nil, 2)))); got != "en|2" {
		t.Errorf("cross: %q", got)
	}
}

// exact returns e^x to 60 digits.
func exact(x *big.Float) *big.Float {
	const halvings = 30
	r := new(big.Float).SetPrec(300).SetMantExp(x, -halvings)
	sum, term := big.NewFloat(1).SetPrec(300), big.NewFloat(1).SetPrec(300)
	for n := 1; n < 12; n++ {
		term.Mul(term, r).Quo(term, big.NewFloat(float64(n)))
		sum.Add(sum, term)
	}
	for range halvings {
		sum.Mul(sum, sum)
	}
	return sum
}

// off returns how many units of its last place got is from want.
func off(got float64, want *big.Float) float64 {
	d := new(big.Float).SetPrec(300).SetFloat64(got)
	f, _ := d.Sub(d, want).Float64()
	return math.Abs(f) / (math.Nextafter(got, math.Inf(1)) - got)
}

// TestAgainstExact holds Exp and Decay to the errors that they state.
func TestAgainstExact(t *testing.T) {
	ln2, _ := new(big.Float).SetPrec(300).SetString("0.69314718055994530941723212145817656807550013436025525412068000949339362196969471560586332699641868754")
	r := rand.New(rand.NewPCG(5, 6))
	var worstExp, worstDecay float64
	for i := range 4000 {
		x := r.NormFloat64() * 30
		if i%2 == 0 {
			x = r.NormFloat64() / 100 // where tables meet
		}
		worstExp = max(worstExp, off(Exp(x), exact(new(big.Float).SetPrec(300).SetFloat64(x))))
		age, half := r.Float64()*math.Exp2(float64(r.IntN(30))), 1+float64(r.IntN(100_000))
		if age/half > 700 {
			continue
		}
		past := new(big.Float).SetPrec(300).SetFloat64(-age)
		past.Quo(past, big.NewFloat(half)).Mul(past, ln2)
		worstDecay = max(worstDecay, off(Decay(age, half), exact(past))-1.5*age/half)
	}
	if t.Logf("Exp is %.3f units off, Decay %.3f beside those of its age", worstExp, worstDecay); worstExp > 1.2 || worstDecay > 1.2 {
		t.Errorf("Exp is %v units off, Decay %v", worstExp, worstDecay)
	}
}

// Decays is Decay, where the result is a normal number and where it is not.
func TestDecays(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	ages := []float64{0, math.Copysign(0, -1), 1, -1, 30, 7153, 7154, 7155, 7520, 7525, 7600, 1e300, inf, -inf, nan, 5e-324}
	for _, half := range []float64{7, 1e-3, 1e9, -7, 0, inf, nan, 5e-324} {
		got := append([]float64(nil), ages...)
		Decays(got, got, half)
		for i, age := range ages {
			one := Decay(age, half)
			if math.Float64bits(got[i]) != math.Float64bits(one) && (one == one || got[i] == got[i]) {
				t.Errorf("%v by %v: %v in a batch, %v alone", age, half, got[i], one)
			}
			want := math.Exp2(-max(age, 0) / half)
			if d := math.Abs(one - want); d > 1e-12*want && !(want < 0x1p-1022 && d <= 5e-324) && (one == one || want == want) && half != 5e-324 {
				t.Errorf("%v by %v: %v, want %v", age, half, one, want)
			}
		}
	}
}

// TestBits pins results, so that every architecture gives the same.
func TestBits(t *testing.T) {
	sum := uint64(14695981039346656037)
	mix := func(x float64) {
		if x != x {
			x = math.NaN()
		}
		sum = (sum ^ math.Float64bits(x)) * 1099511628211
	}
	r := rand.New(rand.NewPCG(3, 4))
	for range 10_000 {
		x, y := r.NormFloat64()*20, r.NormFloat64()
		for _, v := range []float64{Exp(x), Log(math.Abs(x)), Log1p(x), Pow(math.Abs(x), y), Decay(math.Abs(x), 7), Dot([]float64{x, y}, []float64{y, x}), Cosine([]float64{x, y}, []float64{y, x})} {
			mix(v)
		}
	}
	if want := uint64(0xff6f9afd06bd1bc2); sum != want {
		t.Errorf("the bits of the functions changed: sum %#x", sum)
	}
}
