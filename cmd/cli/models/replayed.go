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

// replayed is what model replay shows. As JSON, null is a number that is not known.
type replayed struct {
	File     string      `json:"file"`
	Model    string      `json:"model"`
	Version  string      `json:"version"`
	Weights  string      `json:"weights_checksum,omitempty"` // in place of the model's own
	Action   string      `json:"action"`
	Answers  int         `json:"answers"`
	LeftOut  []leftOut   `json:"left_out"`
	Left     int         `json:"left"`
	Viewers  int64       `json:"viewers"` // who did the action
	Measures []measured  `json:"measures"`
	Estimate *estimation `json:"estimate"` // null: without an experiment
}

// leftOut is answers that do not count.
type leftOut struct {
	Answers int    `json:"answers"`
	Why     string `json:"why"`
}

// measured is a measure of both rankings: the means of viewers.
type measured struct {
	Measure    string  `json:"measure"`
	Shown      float64 `json:"shown"`
	New        float64 `json:"new"`
	Difference between `json:"difference"`
}

// between is a number and what it is known to lie between.
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
	Viewers    int      `json:"viewers"`
	Alike      int      `json:"alike"` // whose pages begin with the same items
	Match      int      `json:"match"` // how many items: --match, or as many as the longest page has
	Without    []string `json:"variants_left_out"`
	Unknown    string   `json:"unknown,omitempty"` // why nothing of what follows is
	Shown      *float64 `json:"shown"`             // items of a page with the action
	IPS        between  `json:"inverse_propensity"`
	Normalised between  `json:"self_normalised"`
	MeanWeight *float64 `json:"mean_weight"`
	Effective  *float64 `json:"effective_pages"`
}

// tell is what is shown, as far as there is something, and why it is not all.
func (r *replay) tell() (*replayed, error) {
	if r.answers == 0 && r.experiment != "" {
		return nil, r.noAnswer()
	}
	all := len(r.begun)
	shown := &replayed{File: r.file, Model: r.model.Name(), Version: r.model.Version(), Action: r.action, Answers: all, LeftOut: []leftOut{}, Left: r.answers - r.bare - r.lacking, Measures: []measured{}}
	for _, out := range []leftOut{
		{all - r.answers - r.forced - r.others, "which showed nothing"}, {r.forced, "whose variant was forced"},
		{r.others, "in which experiment " + r.experiment + " had no part"}, {r.bare, "whose items have no features"},
		{r.lacking, "which lack a feature that the model reads (" + strings.Join(slices.Sorted(maps.Keys(r.lacks)), ", ") + ")"},
	} {
		if out.Answers > 0 {
			shown.LeftOut = append(shown.LeftOut, out)
		}
	}
	switch {
	case shown.Left == 0 && r.lack != nil:
		return shown, r.lack
	case shown.Left == 0:
		return shown, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "exposures", Detail: "no answer has the features of its items", WayOut: "define features: 10000 in the experiment, and export what is shown from then on"}
	}
	if shown.Viewers = r.shown[0].N; shown.Viewers == 0 {
		return shown, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "action", Detail: fmt.Sprintf("nobody did %s with what they were shown", r.action), WayOut: "export with --outcomes, and name an action that is there"}
	}
	sequence, err := stats.NewSequence(r.alpha, shown.Viewers)
	if err != nil {
		return shown, err
	}
	for i, name := range []string{fmt.Sprintf("NDCG@%d", r.k), "MRR"} {
		shown.Measures = append(shown.Measures, measured{name, r.shown[i].Mean, r.again[i].Mean, betweenOf(r.more[i].Mean, sequence.Mean(r.more[i]))})
	}
	shown.Estimate, err = r.estimate()
	return shown, err
}

// estimate is nil without an experiment.
func (r *replay) estimate() (*estimation, error) {
	if r.experiment == "" {
		return nil, nil
	}
	var was stats.Mean
	for _, l := range r.logged {
		was.Add(l.Reward)
	}
	logged, without := r.chances()
	e := &estimation{Experiment: r.experiment, Viewers: r.first, Alike: r.alike, Match: min(r.match, r.longest), Without: display.List(without)}
	o, err := stats.CounterfactualReward(logged, 0, r.alpha)
	if refused := (*stats.Error)(nil); errors.As(err, &refused) {
		e.Unknown = err.Error()
		return e, nil
	}
	if err != nil {
		return nil, err
	}
	e.Shown, e.IPS, e.Normalised = display.Known(was.Mean), betweenOf(o.IPS, o.IPSInterval), betweenOf(o.SelfNormalised, o.SelfNormalisedInterval)
	e.MeanWeight, e.Effective = display.Known(o.MeanWeight), display.Known(o.Effective)
	return e, nil
}

func (shown *replayed) write(w io.Writer) error {
	if shown.Weights != "" {
		display.Printf(w, "model %s is replayed with weights %.12s\n", shown.Model, shown.Weights)
	}
	display.Printf(w, "%d answers are in %s", shown.Answers, shown.File)
	for _, out := range shown.LeftOut {
		display.Printf(w, "; %d are left out, %s", out.Answers, out.Why)
	}
	if shown.Left < shown.Answers {
		display.Printf(w, "; %d are left", shown.Left)
	}
	fmt.Fprintln(w)
	if len(shown.Measures) == 0 {
		return nil
	}
	display.Printf(w, "of %d viewers who did %s:\n\n", shown.Viewers, shown.Action)
	t := display.NewTable(w)
	t.Printf("\tSHOWN\tNEW\tDIFFERENCE\n")
	for _, m := range shown.Measures {
		says := "too little is known"
		if m.Difference.Low != nil {
			says = fmt.Sprintf("%+.3g (%.3g to %.3g)", *m.Difference.Value, *m.Difference.Low, *m.Difference.High)
		}
		t.Printf("%s\t%.3g\t%.3g\t%s\n", m.Measure, m.Shown, m.New, says)
	}
	if err := t.Flush(); err != nil || shown.Estimate == nil {
		return err
	}
	shown.Estimate.write(w, shown.Action)
	return nil
}

func (e *estimation) write(w io.Writer, action string) {
	number := func(x *float64) float64 {
		if x == nil {
			return math.NaN()
		}
		return *x
	}
	display.Printf(w, "\nof %d viewers' first pages %d would begin with the same %d items\n", e.Viewers, e.Alike, e.Match)
	if len(e.Without) > 0 {
		display.Printf(w, "all pages of %s are left out: chances are those among the other variants\n", strings.Join(e.Without, ", "))
	}
	if e.Unknown != "" {
		display.Printf(w, "that says nothing of the others: %s\n", e.Unknown)
		return
	}
	line := func(name string, x between) {
		display.Printf(w, "  %-23s%.3g (%.3g to %.3g)\n", name+":", number(x.Value), number(x.Low), number(x.High))
	}
	display.Printf(w, "items of a page with %s: %.3g as shown\n", action, number(e.Shown))
	line("by inverse propensity", e.IPS)
	line("self-normalised", e.Normalised)
	display.Printf(w, "  mean weight %.3g; they say as much as %.0f pages would\n", number(e.MeanWeight), number(e.Effective))
}
