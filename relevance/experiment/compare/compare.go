// Package compare says how the variants of an experiment do beside each other,
// by the exposures of its viewers. It may be asked at any time: what it says is
// wrong with a stated chance, over all looks together (package stats).
//
// A unit counts once, by its first answer in the order of the topic: viewers
// are independent of each other, and the answers of one viewer are not. Who was
// forced into a variant is not chance, and only told. A unit that has met two
// variants stays with its first, and is told: more than a few say that
// something else than the hash assigns.
package compare

import (
	"cmp"
	"math"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/stats"
	"github.com/millrace/millrace/relevance/experiment"
)

// MaxUnits bounds the units of an experiment that are told apart; what comes
// after them is counted as [Report.Beyond]. A unit takes some 100 bytes.
const MaxUnits = 5_000_000

// horizon is at how many units, of two arms together, intervals are narrowest.
const horizon = 20_000

// Tally is what units of an experiment have met so far.
type Tally struct {
	name    string
	arms    []arm // by name
	shares  []float64
	control int // of arms
	units   map[string]int32
	since   millrace.Time
	report  Report
}

// arm is what the units of a variant have met.
type arm struct {
	Arm
	items, millis, share stats.Mean
	times                stats.Quantiles
}

// New returns the tally of an experiment. The arm that the others are compared
// with is that which sets nothing; of several, or none, the one named control,
// or else the first by name.
func New(d experiment.Defined) *Tally {
	t := &Tally{name: d.Experiment.Name, units: map[string]int32{}}
	best := -1
	for i, a := range d.Rule.Arms { // by name
		t.arms = append(t.arms, arm{Arm: Arm{Variant: a.Variant, Weight: float64(a.Weight) / 10_000}})
		t.shares = append(t.shares, float64(a.Weight))
		rank := 0
		if j := slices.IndexFunc(d.Experiment.Variants, func(v experiment.Variant) bool { return v.Name == a.Variant }); j >= 0 && d.Experiment.Variants[j].Set.Nothing() {
			rank = 2
		}
		if a.Variant == "control" {
			rank++
		}
		if rank > best {
			t.control, best = i, rank
		}
	}
	return t
}

// CountSince counts units as [Arm.Fresh] whose first answer is of that time or
// later, and is added after this. The same time again changes nothing.
func (t *Tally) CountSince(at millrace.Time) {
	if at == t.since {
		return
	}
	t.since = at
	for i := range t.arms {
		t.arms[i].Fresh = 0
	}
}

// Add takes an exposure, whatever experiments it is of, in the topic's order.
func (t *Tally) Add(r *exposure.Record) {
	i := slices.IndexFunc(r.Experiments, func(e exposure.Experiment) bool { return e.Experiment == t.name })
	if i < 0 {
		return
	}
	e := &r.Experiments[i]
	at, known := slices.BinarySearchFunc(t.arms, e.Variant, func(a arm, name string) int { return cmp.Compare(a.Variant, name) })
	if !known {
		t.report.Unknown++
		return
	}
	if t.report.First == 0 || r.Time < t.report.First {
		t.report.First = r.Time
	}
	t.report.Last = max(t.report.Last, r.Time)
	a := &t.arms[at]
	if e.Forced {
		a.Forced++
		return
	}
	a.Answers++
	met, again := t.units[e.Unit]
	switch {
	case again && met != int32(at):
		if met >= 0 { // told once
			t.report.Crossed++
			t.units[e.Unit] = ^met
		}
		return
	case again:
		return
	case len(t.units) >= MaxUnits:
		t.report.Beyond++
		return
	}
	t.units[e.Unit] = int32(at)
	a.first(r, t.since)
}

// first counts what a unit met first.
func (a *arm) first(r *exposure.Record, since millrace.Time) {
	a.Units++
	if r.Time >= since {
		a.Fresh++
	}
	a.times.Add(r.Millis)
	a.millis.Add(r.Millis)
	if r.Refusal != "" {
		a.Refused++
		return
	}
	if r.TimelinesAnswered < r.TimelinesAsked {
		a.Partial++
	}
	if len(r.Items) == 0 {
		a.Empty++
	}
	if slices.ContainsFunc(r.Items, func(it exposure.Item) bool { return math.IsNaN(it.Score) }) {
		a.NaN++
	}
	a.items.Add(float64(len(r.Items)))
	if len(r.Items) > 0 {
		a.share.Add(largest(r.Items))
	}
}

// largest returns the share of items that one entity has.
func largest(items []exposure.Item) float64 {
	most, of := 0, map[string]int{}
	for i := range items {
		of[items[i].Entity]++
		most = max(most, of[items[i].Entity])
	}
	return float64(most) / float64(len(items))
}

// Arm is what the units of a variant have met, each counted once by its first
// answer.
type Arm struct {
	Variant string
	Weight  float64 // its part of the experiment's units, by the definition
	Units   int64
	Fresh   int64      // of these, since [Tally.CountSince]
	Answers int64      // of all of them, all pages
	Forced  int64      // answers of viewers who were forced, which count nowhere else
	Refused int64      // units that got a refusal
	Empty   int64      // that got no item
	Partial int64      // whose answer lacked timelines
	NaN     int64      // that got an item whose score is not a number
	Items   float64    // mean of an answer
	Share   float64    // mean share of items that one entity has, of answers with items
	Millis  [3]float64 // quantiles 0.5, 0.95 and 0.99
}

// Report is how the arms do.
type Report struct {
	Arms        []Arm // by variant
	Control     string
	First, Last millrace.Time // of answers
	Split       stats.Split   // whether units fit the weights
	Crossed     int64         // units that met two variants
	Beyond      int64         // answers of units that are not told apart
	Unknown     int64         // answers of variants that the definition does not have
	Effects     []Effect
}

// Effect is how a variant differs from the control.
type Effect struct {
	Variant string
	What    What
	stats.Effect
}

// What is compared. The first four are rates, as multiples of the control's;
// the others are differences of means.
type What string

// What is compared.
const (
	Refused What = "refused"
	Empty   What = "empty"
	Partial What = "partial"
	NaN     What = "nan"
	Items   What = "items"
	Share   What = "share of one entity"
	Millis  What = "milliseconds"
)

// Rate reports whether an effect is a multiple and not a difference.
func (w What) Rate() bool { return w == Refused || w == Empty || w == Partial || w == NaN }

// effects is how many a variant has.
const effects = 7

// Report says how the arms do. The chance that any of the intervals is ever
// wrong, over all looks together, is at most alpha.
func (t *Tally) Report(alpha float64) (Report, error) {
	r := t.report
	var counts []int64
	var shares []float64
	for i := range t.arms {
		a := &t.arms[i]
		out := a.Arm
		out.Items, out.Share = a.items.Mean, a.share.Mean
		if a.times.N() > 0 {
			copy(out.Millis[:], a.times.At(0.5, 0.95, 0.99))
		}
		r.Arms = append(r.Arms, out)
		if t.shares[i] > 0 {
			counts, shares = append(counts, a.Units), append(shares, t.shares[i])
		}
	}
	if len(t.arms) == 0 {
		return r, nil
	}
	r.Control = t.arms[t.control].Variant
	if len(counts) > 1 {
		var err error
		if r.Split, err = stats.SampleRatio(counts, shares); err != nil {
			return r, err
		}
	}
	others := len(t.arms) - 1
	if others == 0 {
		return r, nil
	}
	s, err := stats.NewSequence(alpha/float64(effects*others), horizon)
	if err != nil {
		return r, err
	}
	c := &t.arms[t.control]
	for i := range t.arms {
		if i == t.control {
			continue
		}
		v := &t.arms[i]
		for _, x := range []struct {
			what             What
			control, variant int64
		}{{Refused, c.Refused, v.Refused}, {Empty, c.Empty, v.Empty}, {Partial, c.Partial, v.Partial}, {NaN, c.NaN, v.NaN}} {
			e := stats.Effect{Value: math.NaN(), Interval: stats.Interval{Low: 0, High: math.Inf(1)}, P: 1}
			if t.shares[t.control] > 0 && t.shares[i] > 0 {
				if e, err = s.RateRatio(x.control, x.variant, t.shares[i]/(t.shares[i]+t.shares[t.control])); err != nil {
					return r, err
				}
			}
			r.Effects = append(r.Effects, Effect{v.Variant, x.what, e})
		}
		for _, x := range []struct {
			what             What
			control, variant stats.Mean
		}{{Items, c.items, v.items}, {Share, c.share, v.share}, {Millis, c.millis, v.millis}} {
			r.Effects = append(r.Effects, Effect{v.Variant, x.what, s.Difference(x.control, x.variant)})
		}
	}
	return r, nil
}
