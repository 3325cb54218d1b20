package models

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/internal/stats"
)

// replayed is what the command model replay prints. In JSON, a number that is not known is
// null.
type replayed struct {
	File     string      `json:"file"`
	Model    string      `json:"model"`
	Version  string      `json:"version"`
	From     string      `json:"from"`                       // where the model was found
	Weights  string      `json:"weights_checksum,omitempty"` // the checksum of weights in place of the model's own
	Action   string      `json:"action"`
	Answers  int         `json:"answers"`
	Cut      bool        `json:"last_may_be_cut"` // the last answer is shorter than others, and the file does not say whether it is whole
	LeftOut  []leftOut   `json:"left_out"`
	Left     int         `json:"left"`                // answers that count
	Viewers  int64       `json:"viewers"`             // viewers who did the action; with positions, all
	Alpha    float64     `json:"alpha"`               // the probability that an interval misses, if the file is looked at once
	Places   string      `json:"positions,omitempty"` // the file of the propensities of places
	Bias     string      `json:"position_bias"`
	Measures []measured  `json:"measures"`
	Estimate *estimation `json:"estimate"` // null: without an experiment
}

// leftOut is a number of answers that do not count, for one reason.
type leftOut struct {
	Answers int    `json:"answers"`
	Why     string `json:"why"`
}

// measured is a measure of both rankings, as means over viewers.
type measured struct {
	Measure    string  `json:"measure"`
	Shown      float64 `json:"shown"`
	New        float64 `json:"new"`
	Difference between `json:"difference"`
	Same       bool    `json:"same_for_all"` // every viewer has the same difference
}

// between is a number and the bounds of its interval; nil where they are not known.
type between struct {
	Value *float64 `json:"value"`
	Low   *float64 `json:"low"`
	High  *float64 `json:"high"`
}

func betweenOf(value float64, in stats.Interval) between {
	return between{display.Known(value), display.Known(in.Low), display.Known(in.High)}
}

// estimation is what the new ranking would have been worth, by first pages of viewers.
type estimation struct {
	Experiment string   `json:"experiment"`
	Viewers    int      `json:"viewers"`           // viewers whose first pages count
	Alike      int      `json:"alike"`             // how many of Viewers have a page that begins with the same items by both rankings
	Open       int      `json:"open"`              // how many of Viewers have a page that does so only in some order of items of equal scores
	Short      int      `json:"short"`             // first pages that are left out, with too few items to tell by
	Match      int      `json:"match"`             // how many first items are compared: --match, or fewer if the longest page has fewer
	Without    []string `json:"variants_left_out"` // variants of which all pages are left out
	Unclear    []string `json:"variants_unclear"`  // variants of which it is not known how they begin pages, and why
	Alone      []string `json:"variants_alone"`    // variants that the model itself ranked; if there are any, only their pages count
	Unknown    string   `json:"unknown,omitempty"` // why none of the fields below is known
	Shown      *float64 `json:"shown"`             // the mean number of items of a page with the action, as shown
	IPS        between  `json:"inverse_propensity"`
	Normalised between  `json:"self_normalised"`
	Unbelieved string   `json:"not_believable,omitempty"` // why neither estimate is shown
	MeanWeight *float64 `json:"mean_weight"`              // should be 1
	Effective  *float64 `json:"effective_pages"`          // how many pages of equal weights would tell as much as these pages
}

// shown returns what is to be printed. The error says why something is missing in it; the
// part that is known may be returned beside the error.
func (r *replay) shown() (*replayed, error) {
	if r.answers == 0 && r.experiment != "" {
		return nil, r.noAnswer()
	}
	all := len(r.begun)
	shown := &replayed{File: r.file, Model: r.ranker.model.Name(), Version: r.ranker.model.Version(), From: r.from, Action: r.action, Answers: all, LeftOut: []leftOut{}, Left: r.answers - r.bare - r.lacking - r.gaps, Measures: []measured{}}
	for _, out := range []leftOut{
		{all - r.answers - r.forced - r.others, "which showed nothing"}, {r.forced, "whose variant was forced"},
		{r.others, "in which experiment " + r.experiment + " had no part"}, {r.bare, "whose items have no features"},
		{r.lacking, "which lack a feature that the model reads (" + strings.Join(slices.Sorted(maps.Keys(r.lacks)), ", ") + ")"},
		{r.gaps, "of which rows are missing"},
	} {
		if out.Answers > 0 {
			shown.LeftOut = append(shown.LeftOut, out)
		}
	}
	shown.Cut = strings.HasSuffix(r.file, ".ndjson") && r.latest > 0 && r.latest < r.most
	if r.should >= 0 {
		shown.Cut = r.latest < r.should
	}
	switch {
	case shown.Left == 0 && r.gaps > 0, !r.idle && (r.gaps > 0 || r.partial):
		return shown, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "exposures", Detail: fmt.Sprintf("%s lacks rows of its answers: places have gaps, answers have more items than rows, or all that is left was acted on", r.file), WayOut: "give all rows of each answer, also of items without outcomes, as export writes them"}
	case shown.Left == 0 && r.lack != nil:
		return shown, r.lack
	case shown.Left == 0:
		return shown, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "exposures", Detail: "no answer has the features of its items", WayOut: "define features: 10000 in the experiment, and export what is shown from then on"}
	}
	if shown.Viewers = r.measures[0].more.N; r.acted == 0 {
		shown.Viewers = 0
		return shown, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "action", Detail: fmt.Sprintf("nobody did %s with what they were shown", r.action), WayOut: "export with --outcomes, and name an action that is there"}
	}
	shown.Alpha, shown.Places, shown.Bias = r.alpha, r.places, biasOf(r.propensities != nil)
	for _, m := range r.measures {
		shown.Measures = append(shown.Measures, measured{m.name, m.shown.Mean, m.new.Mean, betweenOf(m.more.Mean, m.more.Once(r.alpha)), m.more.M2 == 0})
	}
	var err error
	shown.Estimate, err = r.estimate()
	return shown, err
}

// biasOf returns the text on position bias: whether the measures are corrected for it.
func biasOf(corrected bool) string {
	if corrected {
		return "corrected by --positions: a click counts one over the propensity of its place"
	}
	return "not corrected: viewers do more with what stands higher, which favours the order that was shown over any other; --positions corrects it"
}

// estimate returns the estimates; nil without an experiment.
func (r *replay) estimate() (*estimation, error) {
	if r.experiment == "" {
		return nil, nil
	}
	logged, on := r.chances()
	e := &estimation{Experiment: r.experiment, Viewers: on.viewers, Alike: on.alike, Open: on.open, Match: min(r.match, r.longest), Without: display.List(on.without), Unclear: display.List(on.unclear), Alone: display.List(on.alone), Unknown: on.whyUnknown(r.experiment)}
	if on.sized == "" {
		e.Short = on.short
	}
	if e.Unknown != "" {
		return e, nil
	}
	o, err := stats.CounterfactualReward(logged, 0, r.alpha)
	if refused := (*stats.Error)(nil); errors.As(err, &refused) {
		e.Unknown = err.Error()
		return e, nil
	}
	if err != nil {
		return nil, err
	}
	e.Shown, e.MeanWeight, e.Effective = display.Known(on.shown.Mean), display.Known(o.MeanWeight), display.Known(o.Effective)
	if !o.Believable() {
		e.Unbelieved = on.unbelieved(o)
		return e, nil
	}
	e.IPS, e.Normalised = betweenOf(o.IPS, o.IPSInterval), betweenOf(o.SelfNormalised, o.SelfNormalisedInterval)
	return e, nil
}

// unbelieved returns why the estimates are not believable, as far as that is known.
func (g *grounds) unbelieved(o stats.OffPolicy) string {
	var why string
	switch {
	case len(g.amiss) > 0:
		why = "pages are missing, or were not dealt by their chances: " + strings.Join(g.amiss, "; ")
	case len(g.alone) > 0:
		why = "viewers of " + strings.Join(g.alone, ", ") + ", which the model itself ranked, are not in the file as often as their chances say"
	case o.MeanWeight > 1:
		why = "variants show the same pages without its being known"
	default:
		why = "variants are in the file as often as their chances say, so it seems that none shows some of what the new ranking would"
	}
	if g.open > 0 {
		why += fmt.Sprintf("; %d pages may begin alike, in some order of items that score the same, and do not count", g.open)
	}
	return fmt.Sprintf("mean weight %.3g (%.3g to %.3g), should be 1; %s", o.MeanWeight, o.MeanWeightInterval.Low, o.MeanWeightInterval.High, why)
}

func (shown *replayed) write(w io.Writer) error {
	display.Printf(w, "model %s %s, %s", shown.Model, shown.Version, shown.From)
	if shown.Weights != "" {
		display.Printf(w, ", with weights %.12s", shown.Weights)
	}
	fmt.Fprintln(w)
	display.Printf(w, "%d answers are in %s", shown.Answers, shown.File)
	for _, out := range shown.LeftOut {
		display.Printf(w, "; %d are left out, %s", out.Answers, out.Why)
	}
	if shown.Left < shown.Answers {
		display.Printf(w, "; %d are left", shown.Left)
	}
	fmt.Fprintln(w)
	if shown.Cut {
		display.Printf(w, "the last answer has fewer items than it says, or than others: if the file was cut, rows of it are missing\n")
	}
	if len(shown.Measures) == 0 {
		return nil
	}
	who := "who did " + shown.Action
	if shown.Places != "" {
		who = "by propensities of places in " + shown.Places
	}
	display.Printf(w, "of %d viewers %s:\n\n", shown.Viewers, who)
	t := display.NewTable(w)
	t.Printf("\tSHOWN\tNEW\tDIFFERENCE\n")
	for _, m := range shown.Measures {
		t.Printf("%s\t%.3g\t%.3g\t%s\n", m.Measure, m.Shown, m.New, m.difference())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	display.Printf(w, "intervals are of %.4g %%, for one look at a complete file\nposition bias is %s\n", 100*(1-shown.Alpha), shown.Bias)
	if shown.Estimate == nil {
		return nil
	}
	shown.Estimate.write(w, shown.Action)
	return nil
}

func (m *measured) difference() string {
	switch d := m.Difference; {
	case d.Low != nil:
		return fmt.Sprintf("%+.3g (%.3g to %.3g)", *d.Value, *d.Low, *d.High)
	case m.Same && *d.Value == 0:
		return "none, for every viewer"
	case m.Same:
		return fmt.Sprintf("%+.3g, for every viewer", *d.Value)
	}
	return tooLittle
}

// tooLittle stands in place of an interval that is not known.
const tooLittle = "too little is known"

func (e *estimation) write(w io.Writer, action string) {
	number := func(x *float64) float64 {
		if x == nil {
			return math.NaN()
		}
		return *x
	}
	display.Printf(w, "\nof %d viewers' first pages %d would begin with the same %d items\n", e.Viewers, e.Alike, e.Match)
	if e.Short > 0 {
		display.Printf(w, "%d more are left out, of fewer than %d items for each of --match: estimates are of viewers with longer pages\n", e.Short, tellingPage)
	}
	if e.Open > 0 {
		display.Printf(w, "%d may do so, in some order of items that score the same: they do not count\n", e.Open)
	}
	if len(e.Without) > 0 {
		display.Printf(w, "all pages of %s are left out: chances are those among the other variants\n", strings.Join(e.Without, ", "))
	}
	if e.Unknown != "" {
		display.Printf(w, "no estimate: %s\n", e.Unknown)
		return
	}
	if len(e.Alone) > 0 {
		display.Printf(w, "only pages of %s count, which the model itself ranked\n", strings.Join(e.Alone, ", "))
	}
	if e.Unbelieved != "" {
		display.Printf(w, "items of a page with %s: %.3g as shown\n  not believable: %s\n", action, number(e.Shown), e.Unbelieved)
		return
	}
	line := func(name string, x between) {
		says := tooLittle
		if x.Low != nil {
			says = fmt.Sprintf("%.3g (%.3g to %.3g)", number(x.Value), *x.Low, *x.High)
		}
		display.Printf(w, "  %-23s%s\n", name+":", says)
	}
	display.Printf(w, "items of a page with %s: %.3g as shown\n", action, number(e.Shown))
	line("by inverse propensity", e.IPS)
	line("self-normalised", e.Normalised)
	display.Printf(w, "  mean weight %.3g; they say as much as %.0f pages would\n", number(e.MeanWeight), number(e.Effective))
}
