package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/parquet-go/parquet-go"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/hint"
	"github.com/millrace/millrace/internal/stats"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/weights"
)

// replay ranks what was shown again, by another model.
type replay struct {
	file, action, experiment string
	k, match                 int
	alpha                    float64

	weights  map[string]string // in place of the model's own
	model    *relevance.Model
	features []string // of the model
	texts    []bool   // of each, whether it is one

	viewers                map[string]bool // whose answer counts
	ranked                 map[string]bool // whose answer with an outcome counts
	answers, bare, partial int             // in the file, without features, and with features of some items
	shown, again, more     [2]stats.Mean   // NDCG and reciprocal rank
	logged                 []stats.Logged
	alike, first           int // of logged, that begin alike; all
}

func replayCommand(avsc *[]string) *cobra.Command {
	r := replay{viewers: map[string]bool{}, ranked: map[string]bool{}}
	c := &cobra.Command{
		Use:   "replay PACK|SPEC.yaml|NAME",
		Short: "Rank what was shown again, and hold both rankings against what viewers did",
		Long: `Reads a file of millrace export exposures with features and outcomes (an
experiment with features: 10000, and --outcomes), ranks each page by the model,
from the features that it was shown by, and compares the order with that which
was shown: NDCG and the mean reciprocal rank, of pages on which the viewer did
--action. A model may use any of the features that were written, by the same
names; they must mean the same.

A page has what the old ranking chose. What the new one would have brought from
elsewhere, and what viewers would have done with it, it cannot tell. So beside it
stand two estimates of how many items of a page viewers would act on: by inverse
propensity, and self-normalised. They look at pages of --experiment alone that
the new ranking begins with the same --match items, and weigh each by how likely
its variant was. A mean weight far from 1 says that variants show the same
pages, or that none shows what the new ranking would: then believe neither.

Each viewer counts once, by their first page in the file.`,
		Example: `  millrace export exposures --outcomes clicks --out shown.parquet
  millrace model replay ./next --exposures shown.parquet --action click --experiment ranking`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) (err error) {
			if err := r.validate(); err != nil {
				return err
			}
			if r.model, _, err = openModel(args[0], *avsc); err != nil {
				return err
			}
			if err := r.weigh(c.OutOrStdout()); err != nil {
				return err
			}
			for _, f := range r.model.FeatureTypes() {
				r.features, r.texts = append(r.features, f.Name), append(r.texts, f.Type == "string")
			}
			if err := r.read(c.Context()); err != nil {
				return err
			}
			return r.tell(c.OutOrStdout())
		},
	}
	f := c.Flags()
	f.StringVar(&r.file, "exposures", "", "the file, as Parquet, or NDJSON if its name ends in .ndjson")
	f.StringVar(&r.action, "action", "click", "what viewers do with an item that was right")
	f.StringVar(&r.experiment, "experiment", "", "only answers that it had a part in, and estimates by its chances")
	f.IntVar(&r.k, "depth", 10, "how many places NDCG counts")
	f.IntVar(&r.match, "match", 1, "with how many of the same items both rankings must begin a page, for the estimates")
	f.Float64Var(&r.alpha, "alpha", 0.05, "the chance of being wrong, of each interval")
	f.StringToStringVar(&r.weights, "weights", nil, "in place of the model's own, such as likes=0.5,verb.share=2, as a variant sets them")
	_ = c.MarkFlagRequired("exposures")
	return c
}

// weigh puts weights in place of the model's own, and tells their checksum, as
// receipts and exposures have it.
func (r *replay) weigh(w io.Writer) error {
	if len(r.weights) == 0 {
		return nil
	}
	set := map[string]float64{}
	for _, name := range slices.Sorted(maps.Keys(r.weights)) {
		x, err := strconv.ParseFloat(r.weights[name], 64)
		if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
			return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "weights", Detail: fmt.Sprintf("%.40q of %.100q is no finite number", r.weights[name], name), WayOut: "say likes=0.5, for one"}
		}
		set[name] = x
	}
	weighted, err := r.model.Weighted(set)
	if err != nil {
		return err
	}
	r.model = weighted
	fmt.Fprintf(w, "model %s is replayed with weights %.12s\n", weighted.Name(), weights.Sum(weights.Form(set)))
	return nil
}

func (r *replay) validate() error {
	switch {
	case r.k < 1:
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "depth", Detail: fmt.Sprintf("%d is no number of places", r.k), WayOut: "say 10, for one"}
	case r.match < 1:
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "match", Detail: fmt.Sprintf("%d is no number of items", r.match), WayOut: "say 1, for one"}
	case !(r.alpha > 0 && r.alpha < 1):
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "alpha", Detail: fmt.Sprintf("%v is no chance", r.alpha), WayOut: "say one between 0 and 1, such as 0.05"}
	}
	return nil
}

// read takes the file's answers, whose rows stand together.
func (r *replay) read(ctx context.Context) error {
	f, err := os.Open(r.file)
	if err != nil {
		return err
	}
	defer f.Close()
	next, err := shownRows(f)
	if err != nil {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "exposures", Detail: fmt.Sprintf("%s: %v", r.file, err), WayOut: "name a file that millrace export exposures wrote"}
	}
	var page []shownItem
	for n := 1; ; n++ {
		row, err := next()
		if err != nil && !errors.Is(err, io.EOF) {
			return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "exposures", Detail: fmt.Sprintf("%s, row %d: %v", r.file, n, err), WayOut: "name a file that millrace export exposures wrote"}
		}
		if len(page) > 0 && (err != nil || row.Answer != page[0].Answer) {
			if err := r.take(page); err != nil {
				return fmt.Errorf("%s, the answer before row %d: %w", r.file, n, err)
			}
			page = page[:0]
		}
		if err != nil {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if row.ID != nil {
			page = append(page, row)
		}
	}
}

// shownRows reads rows that rowsTo has written.
func shownRows(f *os.File) (next func() (shownItem, error), err error) {
	if strings.HasSuffix(f.Name(), ".ndjson") {
		d := json.NewDecoder(f)
		return func() (row shownItem, err error) {
			err = d.Decode(&row)
			return row, err
		}, nil
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	file, err := parquet.OpenFile(f, info.Size())
	if err != nil {
		return nil, err
	}
	rows := parquet.NewGenericReader[shownItem](file)
	one := make([]shownItem, 1)
	return func() (shownItem, error) {
		clear(one)
		n, err := rows.Read(one)
		if n == 1 {
			err = nil
		}
		return one[0], err
	}, nil
}

// take ranks a page again, in the order in which it was shown.
func (r *replay) take(page []shownItem) error {
	chance := 0.
	for _, e := range page[0].Experiments {
		if e.Experiment == r.experiment {
			if chance = e.ProbabilityInside; e.Forced {
				return nil
			}
		}
	}
	if r.experiment != "" && chance == 0 {
		return nil
	}
	r.answers++
	with := 0
	for i := range page {
		if len(page[i].Features) > 0 {
			with++
		}
	}
	switch {
	case with == 0:
		r.bare++
		return nil
	case with < len(page):
		r.partial++
		return nil
	}
	slices.SortFunc(page, func(a, b shownItem) int { return cmp.Compare(*a.Place, *b.Place) })
	type scored struct {
		at    int
		score float64
	}
	order, gains := make([]scored, len(page)), make([]float64, len(page))
	acted := 0.
	for i := range page {
		score, err := r.score(page[i].Features)
		if err != nil {
			return err
		}
		order[i] = scored{i, score}
		if slices.ContainsFunc(page[i].Outcomes, func(o shownOutcome) bool { return o.Action == r.action }) {
			gains[i] = 1
			acted++
		}
	}
	// Best first; those that score the same as they were shown.
	slices.SortStableFunc(order, func(a, b scored) int { return millrace.CompareScores(a.score, b.score) })
	viewer := page[0].Viewer
	if viewer == "" { // so many may be nobody
		viewer = "\x00" + page[0].Answer
	}
	if r.experiment != "" && *page[0].Place == 1 && !r.viewers[viewer] {
		r.viewers[viewer] = true
		r.first++
		l := stats.Logged{Reward: acted, Old: chance}
		alike := true
		for i, s := range order[:min(r.match, len(order))] {
			alike = alike && s.at == i
		}
		if alike {
			l.New = 1
			r.alike++
		}
		r.logged = append(r.logged, l)
	}
	if acted == 0 || r.ranked[viewer] {
		return nil
	}
	r.ranked[viewer] = true
	anew := make([]float64, len(gains))
	for i, s := range order {
		anew[i] = gains[s.at]
	}
	was, err := stats.NDCG(gains, nil, r.k)
	if err != nil {
		return err
	}
	is, err := stats.NDCG(anew, nil, r.k)
	if err != nil {
		return err
	}
	for i, x := range [2][2]float64{{was, is}, {stats.ReciprocalRank(gains), stats.ReciprocalRank(anew)}} {
		r.shown[i].Add(x[0])
		r.again[i].Add(x[1])
		r.more[i].Add(x[1] - x[0])
	}
	return nil
}

// score is what the model gives an item by its features.
func (r *replay) score(logged []shownFeature) (float64, error) {
	values := make([]any, len(r.features))
	for i, name := range r.features {
		k := slices.IndexFunc(logged, func(f shownFeature) bool { return f.Name == name })
		if k < 0 {
			var names []string
			for _, f := range logged {
				names = append(names, f.Name)
			}
			return 0, &millrace.Error{Reason: millrace.ReasonUnknown, Field: "exposures", Detail: fmt.Sprintf("the model reads a feature %s, which was not written", name), WayOut: hint.Nearest(name, names)}
		}
		switch f := &logged[k]; {
		case r.texts[i] && f.Number != nil || !r.texts[i] && f.Text != nil:
			return 0, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "exposures", Detail: fmt.Sprintf("feature %s was written as another kind than the model reads", name), WayOut: "replay exposures of a model whose features mean the same"}
		case f.Text != nil:
			values[i] = *f.Text
		case f.Number != nil:
			values[i] = *f.Number
		case r.texts[i]:
			values[i] = ""
		default:
			values[i] = math.NaN()
		}
	}
	return r.model.ScoreFeatures(values), nil
}

func (r *replay) tell(w io.Writer) error {
	fmt.Fprintf(w, "%d answers are in %s", r.answers, r.file)
	if n := r.bare + r.partial; n > 0 {
		fmt.Fprintf(w, "; %d are left out, whose items have no features", n)
	}
	fmt.Fprintln(w)
	if r.answers == r.bare+r.partial {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "exposures", Detail: "no answer has the features of its items", WayOut: "define features: 10000 in the experiment, and export what is shown from then on"}
	}
	if r.shown[0].N == 0 {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "action", Detail: fmt.Sprintf("nobody did %s with what they were shown", r.action), WayOut: "export with --outcomes, and name an action that is there"}
	}
	sequence, err := stats.NewSequence(r.alpha, max(1, r.shown[0].N))
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "of %d viewers who did %s:\n\n", r.shown[0].N, r.action)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\tSHOWN\tNEW\tDIFFERENCE")
	for i, name := range []string{fmt.Sprintf("NDCG@%d", r.k), "MRR"} {
		more := sequence.Mean(r.more[i])
		says := "too little is known"
		if !math.IsInf(more.Low, 0) {
			says = fmt.Sprintf("%+.3g (%.3g to %.3g)", r.more[i].Mean, more.Low, more.High)
		}
		fmt.Fprintf(t, "%s\t%.3g\t%.3g\t%s\n", name, r.shown[i].Mean, r.again[i].Mean, says)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return r.estimate(w)
}

// estimate tells what the new ranking would have been worth.
func (r *replay) estimate(w io.Writer) error {
	if r.experiment == "" {
		return nil
	}
	var was stats.Mean
	for _, l := range r.logged {
		was.Add(l.Reward)
	}
	fmt.Fprintf(w, "\nof %d viewers' first pages %d would begin with the same %d items\n", r.first, r.alike, r.match)
	o, err := stats.CounterfactualReward(r.logged, 0, r.alpha)
	if refused := (*stats.Error)(nil); errors.As(err, &refused) {
		fmt.Fprintf(w, "that says nothing of the others: %v\n", err)
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "items of a page with %s: %.3g as shown\n", r.action, was.Mean)
	fmt.Fprintf(w, "  by inverse propensity: %.3g (%.3g to %.3g)\n", o.IPS, o.IPSInterval.Low, o.IPSInterval.High)
	fmt.Fprintf(w, "  self-normalised:       %.3g (%.3g to %.3g)\n", o.SelfNormalised, o.SelfNormalisedInterval.Low, o.SelfNormalisedInterval.High)
	fmt.Fprintf(w, "  mean weight %.3g; they say as much as %.0f pages would\n", o.MeanWeight, o.Effective)
	return nil
}
