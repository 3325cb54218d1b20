package stats

import (
	"flag"
	"math"
	"math/rand/v2"
	"testing"
)

// runs is how many experiments a test simulates: make stats asks for more.
var runs = flag.Int("runs", 1000, "simulated experiments a test")

const (
	unitsAnArm = 10_000
	lookEvery  = 100 // units an arm
)

// simulate runs an experiment of two arms, unit by unit. Look is called after every 100
// units an arm, until it returns true; simulate reports whether it did.
func simulate(run int, unit func(r *rand.Rand, n int), look func(n int64) bool) bool {
	r := rand.New(rand.NewPCG(uint64(run), 20))
	for n := range unitsAnArm {
		unit(r, n)
		if (n+1)%lookEvery == 0 && look(int64(n+1)) {
			return true
		}
	}
	return false
}

// rates are the chances of an event in the control and the variant, for the
// unit that comes n-th in its arm.
type rates func(n int) (control, variant float64)

// alarms counts the experiments in which the variant's rate is found to be
// lower and higher, at the first look that finds it to be different.
func alarms(t *testing.T, experiments int, rates rates) (lower, higher int) {
	s := sequence(t, 0.05, 2*unitsAnArm)
	for run := range experiments {
		var control, variant int64
		simulate(run, func(r *rand.Rand, n int) {
			c, v := rates(n)
			if r.Float64() < c {
				control++
			}
			if r.Float64() < v {
				variant++
			}
		}, func(int64) bool {
			e, err := s.RateRatio(control, variant, 0.5)
			switch {
			case err != nil:
				t.Fatal(err)
			case e.Below(1):
				lower++
			case e.Above(1):
				higher++
			}
			return !e.Contains(1)
		})
	}
	return lower, higher
}

func TestEqualRatesRaiseFewAlarms(t *testing.T) {
	for name, rates := range map[string]rates{
		"1 %":  func(int) (float64, float64) { return 0.01, 0.01 },
		"50 %": func(int) (float64, float64) { return 0.5, 0.5 },
		// A backend fails for both arms, again and again.
		"1 %, 30 % for a while": func(n int) (float64, float64) {
			if n/500%5 == 3 {
				return 0.3, 0.3
			}
			return 0.01, 0.01
		},
	} {
		lower, higher := alarms(t, *runs, rates)
		t.Logf("%s: %d lower and %d higher of %d", name, lower, higher, *runs)
		if float64(lower+higher) > 0.05*float64(*runs) {
			t.Errorf("%s: %d of %d experiments without a difference raise an alarm, more than 5 %%", name, lower+higher, *runs)
		}
	}
}

func TestDoubledRateIsFound(t *testing.T) {
	experiments := max(100, *runs/10)
	_, got := alarms(t, experiments, func(int) (float64, float64) { return 0.01, 0.02 })
	t.Logf("%d of %d", got, experiments)
	if float64(got) < 0.95*float64(experiments) {
		t.Errorf("a doubled rate of 1 %% is found in %d of %d experiments within %d units an arm, fewer than 95 %%", got, experiments, unitsAnArm)
	}
}

// What is for one look alone, looked at as often, raises false alarms many times
// as often: the simulation sees what it is for.
func TestChiSquareMustNotBeLookedAtOften(t *testing.T) {
	var chi, anytime int
	for run := range *runs {
		var counts [2]int64
		early, late := false, false
		simulate(run, func(r *rand.Rand, _ int) {
			counts[r.IntN(2)]++
			counts[r.IntN(2)]++
		}, func(int64) bool {
			s, err := SampleRatio(counts[:], []float64{1, 1})
			if err != nil {
				t.Fatal(err)
			}
			early = early || s.ChiSquareP <= 0.05
			late = late || s.P <= 0.05
			return false
		})
		if early {
			chi++
		}
		if late {
			anytime++
		}
	}
	t.Logf("χ² %d, anytime %d of %d", chi, anytime, *runs)
	if float64(anytime) > 0.05*float64(*runs) {
		t.Errorf("the sequential test finds a mismatch in %d of %d experiments without one, more than 5 %%", anytime, *runs)
	}
	if float64(chi) < 0.2*float64(*runs) {
		t.Errorf("χ², looked at 100 times, errs in %d of %d experiments: the simulation looks too seldom", chi, *runs)
	}
}

func TestSampleRatioFindsMismatch(t *testing.T) {
	experiments := max(100, *runs/10)
	var found int
	for run := range experiments {
		var counts [2]int64
		if simulate(run, func(r *rand.Rand, _ int) {
			for range 2 {
				if r.Float64() < 0.53 {
					counts[0]++
				} else {
					counts[1]++
				}
			}
		}, func(int64) bool {
			s, err := SampleRatio(counts[:], []float64{1, 1})
			return err == nil && s.P <= 0.001
		}) {
			found++
		}
	}
	t.Logf("%d of %d", found, experiments)
	if float64(found) < 0.95*float64(experiments) {
		t.Errorf("53 to 47 is found in %d of %d experiments, fewer than 95 %%", found, experiments)
	}
}

// Over all looks together intervals miss the truth in at most alpha of the
// experiments.
func TestIntervalsHoldAtEveryLook(t *testing.T) {
	experiments := max(100, *runs/4)
	s := sequence(t, 0.05, 2*unitsAnArm)
	for name, c := range map[string]struct {
		draw  func(r *rand.Rand) float64
		truth float64
	}{
		"normal":       {func(r *rand.Rand) float64 { return 3 + r.NormFloat64() }, 3},
		"exponential":  {func(r *rand.Rand) float64 { return r.ExpFloat64() }, 1},
		"skewed":       {func(r *rand.Rand) float64 { return math.Exp(r.NormFloat64()) }, math.Exp(0.5)},
		"1 %":          {func(r *rand.Rand) float64 { return zeroOne(r.Float64() < 0.01) }, 0.01},
		"coins":        {func(r *rand.Rand) float64 { return 2*zeroOne(r.Float64() < 0.5) - 1 }, 0},
		"seldom a win": {func(r *rand.Rand) float64 { return math.Round(2*r.Float64()-1) * zeroOne(r.Float64() < 0.1) }, 0},
	} {
		var misses struct{ mean, difference int }
		for run := range experiments {
			var control, variant Mean
			var wrong struct{ mean, difference bool }
			simulate(run, func(r *rand.Rand, _ int) {
				control.Add(c.draw(r))
				variant.Add(c.draw(r))
			}, func(int64) bool {
				wrong.mean = wrong.mean || !s.Mean(control).Contains(c.truth)
				wrong.difference = wrong.difference || !s.Difference(control, variant).Contains(0)
				return false
			})
			misses.mean += int(zeroOne(wrong.mean))
			misses.difference += int(zeroOne(wrong.difference))
		}
		t.Logf("%s: %+v of %d", name, misses, experiments)
		if most := int(0.05 * float64(experiments)); misses.mean > most || misses.difference > most {
			t.Errorf("%s: %+v of %d experiments miss the truth at some look, more than 5 %%", name, misses, experiments)
		}
	}
}

func zeroOne(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
