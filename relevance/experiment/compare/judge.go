package compare

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/millrace/millrace/relevance/experiment"
)

// Verdict is what is to be done about an experiment that runs.
type Verdict struct {
	Pause bool
	Share int    // to ramp to; 0: none
	Why   string // of either
}

// mismatch is the chance below which viewers do not fit the weights.
const mismatch = 0.001

// Judge says what is to be done about an experiment whose report was made at
// the chance of its guards, and whose share is what it is for some time. The
// chance that it ever says to pause one whose variants all do as the control is
// at most that, and a thousandth for the split.
func Judge(e *experiment.Experiment, r *Report, atShare time.Duration) Verdict {
	if e.Guards == nil {
		return Verdict{}
	}
	if r.Split.P < mismatch && len(r.Arms) > 1 {
		return Verdict{Pause: true, Why: fmt.Sprintf("viewers do not fit the weights (p %.1g)", r.Split.P)}
	}
	limits := map[What]float64{Refused: e.Guards.Refused, Empty: e.Guards.Empty, Partial: e.Guards.Partial, NaN: e.Guards.NaN, Millis: e.Guards.Millis}
	for action, limit := range e.Guards.More {
		limits[Did(action)] = limit
	}
	below := map[What]float64{}
	for action, limit := range e.Guards.Fewer {
		below[Did(action)] = limit
	}
	for i := range r.Effects {
		x := &r.Effects[i]
		of := "times as often"
		if !x.What.Rate() {
			of = "more"
		}
		if limit := limits[x.What]; limit != 0 && !math.IsNaN(x.Low) && x.Above(limit) {
			return Verdict{Pause: true, Why: fmt.Sprintf("%s of %s: %.3g %s (at least %.3g; guard %g)", x.What, x.Variant, x.Value, of, x.Low, limit)}
		}
		if limit := below[x.What]; limit != 0 && !math.IsNaN(x.High) && x.Below(limit) {
			return Verdict{Pause: true, Why: fmt.Sprintf("%s of %s: %.3g %s (at most %.3g; guard %g)", x.What, x.Variant, x.Value, of, x.High, limit)}
		}
	}
	if e.Ramp == nil || atShare < e.Ramp.Least {
		return Verdict{}
	}
	next := e.Ramp.Next(e.Share)
	if next == 0 {
		return Verdict{}
	}
	var counts []string
	for _, a := range r.Arms {
		if a.Weight > 0 && a.Fresh < e.Ramp.Viewers {
			return Verdict{}
		}
		counts = append(counts, fmt.Sprintf("%d of %s", a.Fresh, a.Variant))
	}
	return Verdict{Share: next, Why: fmt.Sprintf("no guard after %s and %s", atShare.Round(time.Second), strings.Join(counts, ", "))}
}
