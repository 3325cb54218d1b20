package compare

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/relevance/experiment"
)

// Verdict is what is to be done about an experiment that runs.
type Verdict struct {
	Pause bool   // the experiment is to be paused
	Share int    // the share to ramp to, of 10,000; 0: none
	Why   string // why it is to be paused or ramped; empty if there is nothing to do
	Waits string // what it waits for, if there is nothing to do
}

// Acts reports whether there is anything to do.
func (v Verdict) Acts() bool { return v.Pause || v.Share > 0 }

// mismatch is the p-value below which units do not fit the weights.
const mismatch = 0.001

// Judge returns what is to be done about an experiment. r must be made with the alpha of
// the experiment's guards; atShare is how long the experiment has been watched at its
// share. The chance that Judge ever says to pause an experiment whose variants all do as
// the control is at most that alpha, and 0.001 more for the split of units.
func Judge(e *experiment.Experiment, r *Report, atShare time.Duration) Verdict {
	if e.Guards == nil {
		return Verdict{Waits: "it has no guards, and so no ramp"}
	}
	if why := e.ComparesNothing(); why != "" {
		return Verdict{Waits: why}
	}
	if !r.Fits(mismatch) {
		return Verdict{Pause: true, Why: fmt.Sprintf("%s do not fit the weights (p %.1g)", r.Units, r.Split.P)}
	}
	lopsided := r.Lopsided()
	limits, below := limitsOf(e.Guards)
	for i := range r.Effects {
		x := &r.Effects[i]
		if lopsided != "" && x.What.counted() {
			continue
		}
		of := x.What.unit()
		if limit := limits[x.What]; limit != 0 && !math.IsNaN(x.Low) && x.Above(limit) {
			return Verdict{Pause: true, Why: fmt.Sprintf("%s of %s: %s %s (at least %.3g; guard %g)", x.What, x.Variant, number(x.Value), of, x.Low, limit)}
		}
		if limit := below[x.What]; limit != 0 && !math.IsNaN(x.High) && x.Below(limit) {
			return Verdict{Pause: true, Why: fmt.Sprintf("%s of %s: %s %s (at most %.3g; guard %g)", x.What, x.Variant, number(x.Value), of, x.High, limit)}
		}
	}
	if lopsided != "" {
		return Verdict{Waits: lopsided}
	}
	return ramp(e, r, atShare)
}

// ramp says whether an experiment that no guard stops is ready for its next
// step, and if not, what it waits for.
func ramp(e *experiment.Experiment, r *Report, atShare time.Duration) Verdict {
	if e.Ramp == nil {
		return Verdict{Waits: "no guard says stop, and there is no ramp: a person decides"}
	}
	next := e.Ramp.Next(e.Share)
	if next == 0 {
		return Verdict{Waits: "no guard says stop, and it is at the last step of its ramp"}
	}
	if atShare < e.Ramp.Least {
		return Verdict{Waits: fmt.Sprintf("no guard says stop; it is to stay at %g%% for %s, and has for %s in which it was watched and each variant shown", float64(e.Share)/100, e.Ramp.Least, atShare.Round(time.Second))}
	}
	var counts []string
	for _, a := range r.Arms {
		if a.Weight == 0 {
			continue
		}
		if least := max(e.Ramp.Viewers, 1); a.Fresh < least {
			return Verdict{Waits: fmt.Sprintf("no guard says stop; %d %s of each variant are to see something at %g%%, and %d of %s have", least, r.Units, float64(e.Share)/100, a.Fresh, a.Variant)}
		}
		counts = append(counts, fmt.Sprintf("%d of %s", a.Fresh, a.Variant))
	}
	return Verdict{Share: next, Why: fmt.Sprintf("no guard after %s and %s", atShare.Round(time.Second), strings.Join(counts, ", "))}
}

// StandsFor returns for how long after an answer of a variant the variant counts as
// shown, if a step of the ramp takes least: a tenth of that, but at least ten seconds and
// at most ten minutes.
func StandsFor(least time.Duration) time.Duration {
	return min(max(least/10, 10*time.Second), 10*time.Minute)
}

// Shown returns the variant that was not shown for the longest time, and when it was shown
// last; 0: it never was. It leaves out variants of weight 0.
func (r *Report) Shown() (variant string, at millrace.Time) {
	for _, a := range r.Arms {
		if a.Weight > 0 && (variant == "" || a.Latest < at) {
			variant, at = a.Variant, a.Latest
		}
	}
	return variant, at
}

// limitsOf returns the limits of guards: values of effects may not be above those in above,
// nor below those in below. 0 is no limit.
func limitsOf(g *experiment.Guards) (above, below map[What]float64) {
	above = map[What]float64{
		Refused: g.Refused, Empty: g.Empty, Partial: g.Partial, NaN: g.NaN, Millis: g.Millis, P99: g.P99, Cost: g.Cost,
		Share: g.ShareOfEntity, TypeShare: g.ShareOfType, Missing: g.FeaturesMissing,
	}
	for action, limit := range g.More {
		above[Did(action)] = limit
	}
	below = map[What]float64{}
	for action, limit := range g.Fewer {
		below[Did(action)] = limit
	}
	return above, below
}

// unit returns the words after an effect's value, such as "times as many".
func (w What) unit() string {
	switch {
	case w == Cost:
		return "times as much"
	case w.Rate():
		return "times as many"
	}
	return "more"
}

// number returns an effect's value in words. It is infinite if the control has none to
// divide by.
func number(x float64) string {
	if math.IsInf(x, 1) {
		return "any number"
	}
	return fmt.Sprintf("%.3g", x)
}

// Misdealt says what is wrong with the answers that [Report.Misdealt] counts; it follows
// their number.
const Misdealt = "are of viewers whom the hash deals another variant, and do not count: something but brokers writes to the topic"

// Implausible says what is wrong with the answers that [Report.Implausible] counts; it
// follows their number.
const Implausible = "say that they took longer than any answer does, or less than nothing, and do not count for times and costs: a node's or broker's clock is broken, or something but brokers writes to the topic"

// Inputs returns by what [Judge] judges an experiment, a line each: what the units of each
// variant have met, and each effect that has a guard.
func Inputs(e *experiment.Experiment, r *Report) (all []string) {
	for _, a := range r.Arms {
		all = append(all, fmt.Sprintf("%s: %d %s, %d at this share; refused %d, empty %d, partial %d, nan %d; p99 %.3g ms", a.Variant, a.Units, r.Units, a.Fresh, a.Refused, a.Empty, a.Partial, a.NaN, a.Millis[2]))
		all = append(all, a.Changed()...)
	}
	for i := range r.Named {
		all = append(all, r.Named[i].String())
	}
	if r.Misdealt > 0 {
		all = append(all, fmt.Sprintf("%d answers %s", r.Misdealt, Misdealt))
	}
	if r.Implausible > 0 {
		all = append(all, fmt.Sprintf("%d answers %s", r.Implausible, Implausible))
	}
	if e.Guards == nil {
		return all
	}
	above, below := limitsOf(e.Guards)
	for i := range r.Effects {
		x := &r.Effects[i]
		limit := above[x.What]
		if limit == 0 {
			limit = below[x.What]
		}
		switch {
		case limit == 0:
		case x.Unknown():
			all = append(all, fmt.Sprintf("%s of %s: too little is known; guard %g", x.What, x.Variant, limit))
		default:
			between := fmt.Sprintf("%.3g to %.3g", x.Low, x.High)
			if math.IsInf(x.High, 1) {
				between = fmt.Sprintf("at least %.3g", x.Low)
			}
			all = append(all, fmt.Sprintf("%s of %s: %s %s (%s); guard %g", x.What, x.Variant, number(x.Value), x.What.unit(), between, limit))
		}
	}
	return all
}
