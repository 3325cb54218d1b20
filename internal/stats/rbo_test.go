package stats

import (
	"math"
	"testing"
)

func rbo[T comparable](t *testing.T, a, b Ranking[T], p float64, ties Ties) RBO {
	t.Helper()
	r, err := RankBiasedOverlap(a, b, p, ties)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The first two rankings and their values are the example in the documentation
// of the implementation by Corsi and Urbano (sigir2024-rbo, commit 0338fd9). The
// other values are what it gives for rankings of our own: extrapolated, least
// and most, with ties equal, in the mean, and corrected. The last pair is that
// of the example in Webber, Moffat and Zobel 2010; its extrapolated value is also
// what rbo 0.1.3 gives.
func TestRankBiasedOverlap(t *testing.T) {
	for _, c := range []struct {
		a, b string
		p    float64
		want [3]RBO
	}{
		{"red (blue green) yellow pink", "(blue red) white (yellow black purple) green", 0.95, [3]RBO{{0.7068257, 0.3429684, 0.9049857}, {0.6922853, 0.3310519, 0.8930692}, {0.7207131, 0.3509163, 0.9129336}}},
		{"e p k n b f j c", "k f g b p i h n", 0.9, [3]RBO{{0.4532606, 0.3296364, 0.6012457}, {0.4532606, 0.3296364, 0.6012457}, {0.4532606, 0.3296364, 0.6012457}}},
		{"f j b a e", "j e c l k f p h n", 0.9, [3]RBO{{0.4239069, 0.2739564, 0.6466944}, {0.4239069, 0.2739564, 0.6466944}, {0.4239069, 0.2739564, 0.6466944}}},
		{"n f d b j a i p g m", "b n k", 0.8, [3]RBO{{0.3761228, 0.2820523, 0.5626147}, {0.3761228, 0.2820523, 0.5626147}, {0.3761228, 0.2820523, 0.5626147}}},
		{"a b j l o m", "a c p k l i", 0.9, [3]RBO{{0.4132990, 0.3214606, 0.7280766}, {0.4132990, 0.3214606, 0.7280766}, {0.4132990, 0.3214606, 0.7280766}}},
		{"d e c i", "m (n b) (e d f) (j p) c", 0.95, [3]RBO{{0.4529349, 0.1652418, 0.7755795}, {0.3411910, 0.1519900, 0.7641183}, {0.3499399, 0.1538739, 0.7672010}}},
		{"d (b j) h p a (i o f)", "c j (n f e)", 0.5, [3]RBO{{0.1592678, 0.1576593, 0.1658168}, {0.1333103, 0.1317417, 0.1402644}, {0.1501922, 0.1485933, 0.1572956}}},
		{"(m g) e (a h) (b j)", "(b f c) p l (o a)", 0.99, [3]RBO{{0.2717114, 0.0474530, 0.9270871}, {0.2705793, 0.0463209, 0.9259549}, {0.2707234, 0.0464650, 0.9260990}}},
		{"l", "a d g i h o", 0.9, [3]RBO{{0.0000000, 0.0000000, 0.7868115}, {0.0000000, 0.0000000, 0.7868115}, {0.0000000, 0.0000000, 0.7868115}}},
		{"j (p m) n (b k h e) (f o l d)", "(d l e) k a i p (f g) (b n) m", 0.98, [3]RBO{{0.6572955, 0.2590767, 0.8499616}, {0.6452761, 0.2470573, 0.8379422}, {0.6477519, 0.2495330, 0.8404179}}},
		{"i (b c)", "b (h o g l) i p c (e n)", 0.85, [3]RBO{{0.3177228, 0.2138713, 0.5692706}, {0.3560941, 0.2261785, 0.5775427}, {0.4075592, 0.2518933, 0.6058712}}},
		{"a b c d e", "a b c d e", 0.9, [3]RBO{{1.0000000, 0.6719889, 1.0000000}, {1.0000000, 0.6719889, 1.0000000}, {1.0000000, 0.6719889, 1.0000000}}},
		{"a b c", "d e f", 0.9, [3]RBO{{0.0000000, 0.0000000, 0.6794280}, {0.0000000, 0.0000000, 0.6794280}, {0.0000000, 0.0000000, 0.6794280}}},
		{"(a b c d)", "(a b c d)", 0.9, [3]RBO{{1.0000000, 0.6063712, 1.0000000}, {0.8597500, 0.4661212, 0.8597500}, {1.0000000, 0.6063712, 1.0000000}}},
		{"a b c d e f g", "z c a v w x y", 0.9, [3]RBO{{0.2882173, 0.2216856, 0.5806760}, {0.2882173, 0.2216856, 0.5806760}, {0.2882173, 0.2216856, 0.5806760}}},
	} {
		for i, ties := range []Ties{TiesEqual, TiesAverage, TiesCorrected} {
			got := rbo(t, ranking(c.a), ranking(c.b), c.p, ties)
			same(t, c.a+" ext "+string(ties), got.Ext, c.want[i].Ext)
			same(t, c.a+" min "+string(ties), got.Min, c.want[i].Min)
			same(t, c.a+" max "+string(ties), got.Max, c.want[i].Max)
		}
	}
	// rbo 0.1.3, without ties and of other lengths.
	long := rbo(t, Ranking[rune]{Items: []rune("abcdefghijklmnopqrstuvwxyz")}, Ranking[rune]{Items: []rune("kxcnarvmwyp")}, 0.99, TiesEqual)
	same(t, "alphabet", long.Ext, 0.52939174745252)
}

func TestRankBiasedOverlapOfNothing(t *testing.T) {
	none := Ranking[string]{}
	if got := rbo(t, none, none, 0.9, TiesAverage); got != (RBO{1, 0, 1}) {
		t.Errorf("two empty rankings: %+v", got)
	}
	for _, ties := range []Ties{TiesEqual, TiesAverage, TiesCorrected} {
		got := rbo(t, none, ranking("a (b c) d"), 0.9, ties)
		if got.Ext != 0 || got.Min != 0 || math.IsNaN(got.Max) {
			t.Errorf("an empty ranking and another, ties %s: %+v", ties, got)
		}
	}
}

// RBO^a is the mean of RBO over every order that ties might have, as Corsi and
// Urbano 2024 define it.
func TestTiesAverageIsTheMeanOverOrders(t *testing.T) {
	tied, other := ranking("a (b c d) e"), ranking("(c a) e f d")
	var mean Mean
	for _, one := range []string{"b c d", "b d c", "c b d", "c d b", "d b c", "d c b"} {
		for _, two := range []string{"c a", "a c"} {
			mean.Add(rbo(t, ranking("a "+one+" e"), ranking(two+" e f d"), 0.8, TiesEqual).Ext)
		}
	}
	same(t, "mean over orders", rbo(t, tied, other, 0.8, TiesAverage).Ext, mean.Mean)
}

// The weight of the first ten ranks with p = 0.9 is 0.8556: Webber, Moffat and
// Zobel 2010, equation 21. Two rankings that agree in ten ranks and then in
// nothing have at least what it is.
func TestWeightOfTheTop(t *testing.T) {
	ten := ranking("a b c d e f g h i j")
	got := rbo(t, ten, ten, 0.9, TiesEqual)
	p, d := 0.9, 10.0
	tail := -math.Log(1 - p)
	for i := 1.0; i < d; i++ {
		tail -= math.Pow(p, i) / i
	}
	weight := 1 - math.Pow(p, d-1) + (1-p)/p*d*tail
	if math.Abs(weight-0.8556) > 5e-5 {
		t.Errorf("the weight of ten ranks is %v", weight)
	}
	// Min counts the overlap of ten at every further depth d as 10/d.
	same(t, "least overlap", got.Min, weight)
}
