package interleave

import (
	"cmp"
	"flag"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

var experiments = flag.Int("experiments", 60, "simulated experiments of each design")

// What interleaving and A/B are compared by.
const (
	candidates = 30  // of a session
	shown      = 10  // items of an answer
	noise      = 0.5 // of a model's scores, in logits
	share      = 0.1 // of the answers that the change concerns
	regression = 0.5 // further noise in these, in logits

	sessions = 10_000 // of an interleaved experiment, which give it a power of some 80 %
	fewer    = 50     // times as many has an A/B experiment, both arms together
)

// session is one viewer with one feed: what there is to rank, and how they click.
//
// The viewer follows the cascade model (Craswell, Zoeter, Taylor and Ramsey, "An
// Experimental Comparison of Click Position-Bias Models", WSDM 2008): they look at
// one item after the other, click item i with its attraction r(i), and go away
// with the first click.
//
// logit r = -3.5 + viewer + item, both standard normal. A model ranks by the item
// with some noise.
type session struct {
	attraction [candidates]float64
	rankings   [2][]int // by the old model, by the new one
}

// change says how the new model differs from the old one: it has the old one's
// score, and in a share of the answers more noise.
func change(rng *rand.Rand, affected bool, item, old float64) float64 {
	if affected {
		return old + regression*rng.NormFloat64()
	}
	return old
}

// equal is a new model that is as good as the old one and ranks otherwise.
func equal(rng *rand.Rand, _ bool, item, _ float64) float64 {
	return item + noise*rng.NormFloat64()
}

func (s *session) draw(rng *rand.Rand, model func(rng *rand.Rand, affected bool, item, old float64) float64) {
	viewer, affected := rng.NormFloat64(), rng.Float64() < share
	var scores [2][candidates]float64
	for i := range s.attraction {
		item := rng.NormFloat64()
		s.attraction[i] = 1 / (1 + math.Exp(3.5-viewer-item))
		scores[0][i] = item + noise*rng.NormFloat64()
		scores[1][i] = model(rng, affected, item, scores[0][i])
	}
	for m := range s.rankings {
		if s.rankings[m] == nil {
			s.rankings[m] = make([]int, candidates)
		}
		for i := range s.rankings[m] {
			s.rankings[m][i] = i
		}
		slices.SortFunc(s.rankings[m], func(a, b int) int { return cmp.Compare(scores[m][b], scores[m][a]) })
	}
}

// click returns the place that is clicked; shown is none.
func (s *session) click(rng *rand.Rand, items []int) int {
	for place, item := range items {
		if rng.Float64() < s.attraction[item] {
			return place
		}
	}
	return shown
}

// chances returns the chance of each place to be clicked, and of none:
// c(i) = r(i) * product over j before i of (1 - r(j)), Craswell et al. 2008.
func (s *session) chances(items []int) (c [shown + 1]float64) {
	looked := 1.0
	for place, item := range items {
		c[place] = looked * s.attraction[item]
		looked -= c[place]
	}
	c[shown] = looked
	return c
}

// interleave returns what the drawn session prefers, interleaved: 1 the old
// model, -1 the new one.
func (s *session) interleave(t testing.TB, rng *rand.Rand) int {
	picks, _ := mustDraft(t, Cursor{Seed: rng.Uint64()}, shown, s.rankings[0], s.rankings[1])
	items, teams := make([]int, len(picks)), make([]Team, len(picks))
	for i, p := range picks {
		items[i], teams[i] = s.rankings[p.Ranking][p.Place], p.Team
	}
	var clicked []int
	if place := s.click(rng, items); place < shown {
		clicked = append(clicked, place)
	}
	return creditOf(teams, clicked).Preference(0, 1)
}

// sample is what a z-test needs of a metric.
type sample struct{ n, sum, squares float64 }

func (s *sample) add(x, times float64) {
	s.n, s.sum, s.squares = s.n+times, s.sum+x*times, s.squares+x*x*times
}

func (s *sample) mean() float64 { return s.sum / s.n }

// variance is that of the mean.
func (s *sample) variance() float64 { return (s.squares/s.n - s.mean()*s.mean()) / s.n }

// significant is a two-sided z-test at 5 %.
func significant(difference, variance float64) bool {
	return math.Abs(difference) > 1.959963984540054*math.Sqrt(variance)
}

// interleavedPower returns the share of experiments that tell the models apart.
func interleavedPower(t *testing.T, rng *rand.Rand, sessions int, model func(*rand.Rand, bool, float64, float64) float64) float64 {
	found := 0
	var s session
	for range *experiments {
		var tally Tally
		for range sessions {
			s.draw(rng, model)
			tally.Add(s.interleave(t, rng))
		}
		var x sample
		x.add(1, float64(tally.Wins))
		x.add(-1, float64(tally.Losses))
		x.add(0, float64(tally.Ties))
		if significant(x.mean(), x.variance()) {
			found++
		}
	}
	return float64(found) / float64(*experiments)
}

// Interleaving tells a small change of a model, on the viewers of the cascade
// model above, with less than a fiftieth of the sessions of A/B, whichever metric
// A/B goes by: the clicks, the place of the click (its reciprocal, as in MRR), or
// the one that no other can beat, which nobody knows before: the log-likelihood
// ratio of the place (Neyman and Pearson, 1933).
func TestInterleavingNeedsAFiftiethOfTheSessions(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2008))

	// Sessions of A/B are independent of each other, and the place of the click
	// is all that a metric can go by. So an arm is drawn from the chances of the
	// places, which are the mean over many sessions, the same for both models.
	const mean = 100_000
	var places [2][shown + 1]float64
	var clicks [shown + 1]int
	var s session
	for range mean {
		s.draw(rng, change)
		for m := range places {
			for place, chance := range s.chances(s.rankings[m][:shown]) {
				places[m][place] += chance / mean
			}
		}
		clicks[s.click(rng, s.rankings[0][:shown])]++
	}
	chi := 0.0 // the formula is what viewers do
	for place, n := range clicks {
		expected := mean * places[0][place]
		chi += (float64(n) - expected) * (float64(n) - expected) / expected
	}
	if chi > 46.8 { // of 10 degrees of freedom, one in a million
		t.Errorf("the clicks of the cascade model are not as its formula: χ² = %.1f", chi)
	}
	t.Logf("viewers who click: %.4f with the old model, %.4f with the new", 1-places[0][shown], 1-places[1][shown])

	power := interleavedPower(t, rng, sessions, change)
	t.Logf("interleaving, %d sessions: power %.2f", sessions, power)
	if power < 0.6 {
		t.Errorf("the power of interleaving is %.2f", power)
	}
	arm := func(chances [shown + 1]float64) (counts [shown + 1]float64) {
		for range sessions * fewer / 2 {
			place, left := 0, rng.Float64()
			for place < shown && left >= chances[place] {
				left -= chances[place]
				place++
			}
			counts[place]++
		}
		return counts
	}
	metrics := []struct {
		name  string
		value func(place int) float64 // of a session
	}{
		{"clicked", func(place int) float64 {
			if place < shown {
				return 1
			}
			return 0
		}},
		{"reciprocal place", func(place int) float64 {
			if place < shown {
				return 1 / float64(place+1)
			}
			return 0
		}},
		{"likelihood ratio", func(place int) float64 { return math.Log(places[0][place] / places[1][place]) }},
	}
	found := make([]int, len(metrics))
	for range *experiments {
		counts := [2][shown + 1]float64{arm(places[0]), arm(places[1])}
		for i, metric := range metrics {
			var x [2]sample
			for m := range x {
				for place, n := range counts[m] {
					x[m].add(metric.value(place), n)
				}
			}
			if significant(x[0].mean()-x[1].mean(), x[0].variance()+x[1].variance()) {
				found[i]++
			}
		}
	}
	for i, metric := range metrics {
		ab := float64(found[i]) / float64(*experiments)
		t.Logf("A/B by %s, %d sessions: power %.2f", metric.name, sessions*fewer, ab)
		chance := math.Sqrt((power*(1-power) + ab*(1-ab)) / float64(*experiments))
		if ab > power-3*chance {
			t.Errorf("A/B by %s has a power of %.2f with %d times the sessions; interleaving has %.2f", metric.name, ab, fewer, power)
		}
	}
}

// Of two models that are as good, and rank quite differently, none is preferred
// more often than a test at 5 % has it.
func TestEqualModelsAreEqual(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2008))
	n := float64(*experiments)
	if found := interleavedPower(t, rng, 500, equal); found > 0.05+4*math.Sqrt(0.05*0.95/n) {
		t.Errorf("equal models are told apart in %.0f %% of the experiments", 100*found)
	}
}
