package stats

import (
	"math"
	"testing"
)

// With a uniform prior, ten of ten in one of two even arms are 2^10/11 times
// likelier under the mixture, exactly: the beta function of 11 and 1 is 1/11.
func TestDirichletMixtureExactly(t *testing.T) {
	got := logDirichletMixture([]int64{10, 0}, []float64{0.5, 0.5}, []float64{1, 1})
	same(t, "bayes factor", math.Exp(got), 1024.0/11)
}

func TestSampleRatio(t *testing.T) {
	// scipy 1.17.1: dirichlet_multinomial.logpmf with 100 times the shares, less
	// multinomial.logpmf; chisquare. The second to the fourth are also what
	// Multinomial(theta_0, k=100) of savvi 0.3.1 gives.
	for _, c := range []struct {
		counts []int64
		shares []float64
		want   Split
	}{
		{[]int64{10, 0}, []float64{0.5, 0.5}, Split{0.4114659291, 0.6626780986, 10, 0.0015654023}},
		{[]int64{510, 490}, []float64{0.5, 0.5}, Split{-1.0192267046, 1, 0.4, 0.5270892569}},
		{[]int64{5200, 4800}, []float64{50, 50}, Split{5.6136134118, 0.0036478643, 16, 6.3342484e-05}},
		{[]int64{100, 290, 610}, []float64{1, 3, 6}, Split{-2.1721784943, 1, 0.5, 0.7788007831}},
		{[]int64{1050, 3000, 5950}, []float64{0.1, 0.3, 0.6}, Split{-3.2221571424, 1, 2.9166666667, 0.2326236579}},
		{[]int64{90000, 10500}, []float64{0.9, 0.1}, Split{7.5532875315, 0.0005243834, 22.3880597015, 2.2275458e-06}},
		{[]int64{0, 0}, []float64{1, 1}, Split{0, 1, 0, 1}},
	} {
		got, err := SampleRatio(c.counts, c.shares)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "log bayes factor", got.LogBayesFactor, c.want.LogBayesFactor)
		same(t, "chi square", got.ChiSquare, c.want.ChiSquare)
		closely(t, "P", got.P, c.want.P)
		closely(t, "chi square P", got.ChiSquareP, c.want.ChiSquareP)
	}
}

// closely fails the test where two positive numbers differ by more than 1e-5 of
// their size.
func closely(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-5*want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// Of scipy 1.17.1: chi2.sf and norm.ppf.
func TestDistributions(t *testing.T) {
	for _, c := range []struct {
		x       float64
		degrees int
		want    float64
	}{
		{0.1, 1, 0.7518296340458492}, {3.841458820694124, 1, 0.05}, {10, 3, 0.01856613546304325},
		{0.5, 5, 0.9921232932326296}, {50, 9, 1.0772382022574693e-07}, {200, 9, 3.312992393909567e-38},
		{0.001, 2, 0.9995001249791693}, {700, 700, 0.49289176727180817},
	} {
		closely(t, "chi square tail", chiSquareTail(c.x, c.degrees), c.want)
	}
	if p := chiSquareTail(math.Inf(1), 3); p != 0 {
		t.Errorf("the tail at infinity is %v", p)
	}
	for p, want := range map[float64]float64{0.5: 0, 0.975: 1.959963984540054, 0.995: 2.5758293035489004, 0.01: -2.3263478740408408, 1e-6: -4.753424308822899} {
		same(t, "normal quantile", normalQuantile(p), want)
	}
	// Two degrees of freedom have the tail exp(-x/2); the series meets the
	// fraction at x = 2.
	for x := 0.01; x < 100; x *= 1.3 {
		closely(t, "two degrees", chiSquareTail(x, 2), math.Exp(-x/2))
	}
}
