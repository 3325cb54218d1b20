package models

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

	"github.com/parquet-go/parquet-go"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/limits"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/export"
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

	viewers            map[string]bool  // whose answer counts
	ranked             map[string]bool  // whose answer with an outcome counts
	begun              map[string]int64 // the answers of the file, with the place of the first row of each
	experiments        map[string]bool  // of the file
	forced, others     int              // answers that do not count: their variant is forced, or the experiment had no part in them
	answers, bare      int              // that may count, and of these without features of all items
	lacking            int              // of these without a feature that the model reads
	lack               error            // of the first of those
	lacks              map[string]int   // features, and in how many answers each is the first that is not there
	shown, again, more [2]stats.Mean    // NDCG and reciprocal rank
	dealt              map[dealt]*pages
	logged             []loggedPage
	alike, first       int // of logged, that begin alike; all
	longest            int // page of these
}

// dealt is a variant of the experiment as a definition of it had it.
type dealt struct{ checksum, variant string }

// pages are a variant's.
type pages struct {
	chance         float64 // that who is in the experiment has it
	ranked, unread int     // by the model, and left out for want of features
}

// loggedPage is a viewer's first page, for the estimates.
type loggedPage struct {
	stats.Logged
	of dealt
}

func replayCommand(avsc *[]string) *cobra.Command {
	var output display.Form
	var cm *clusters.Flags
	r := replay{viewers: map[string]bool{}, ranked: map[string]bool{}, begun: map[string]int64{}, experiments: map[string]bool{}, lacks: map[string]int{}, dealt: map[dealt]*pages{}}
	c := &cobra.Command{
		Use:   "replay PACK|SPEC.yaml|NAME",
		Short: "Rank what was shown again, and hold both rankings against what viewers did",
		Long: `Reads a file of millrace export exposures with features and outcomes (an
experiment with features: 10000, and --outcomes), ranks each page by the model,
from the features that it was shown by, and compares the order with that which
was shown: NDCG and the mean reciprocal rank, of pages on which the viewer did
--action. The rows of an answer must stand together, as export writes them. A
NAME is of a built-in model, or of one that serves in the cluster, of which then
the version is ranked by that serves now.

A model may use any of the features that were written, by the same names; they
must mean the same. Written is what the model that ranked the page reads: a page
that lacks a feature of the new model is left out, and counted. So there must be
pages of a model whose features include those of the new one, such as those of a
variant that ranks by a version of it.

A page has what the old ranking chose. What the new one would have brought from
elsewhere, and what viewers would have done with it, it cannot tell. So beside it
stand two estimates of how many items of a page viewers would act on: by inverse
propensity, and self-normalised. They look at pages of --experiment alone that
the new ranking begins with the same --match items, and divide each by
probability_inside, how likely its variant was among those in the experiment. A
variant of which all pages are left out counts as if it had not been there. A
mean weight far from 1 says that variants show the same pages, that none shows
what the new ranking would, or that some pages of a variant are left out, so that
the viewers of the others are no fair sample: then believe neither.

Each viewer counts once: for NDCG and MRR by the first page in the file on which
they did --action, for the estimates by their first page, whatever they did.`,
		Example: `  millrace export exposures --outcomes clicks --out shown.parquet
  millrace model replay ./next --exposures shown.parquet --action click --experiment ranking`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) (err error) {
			if err := r.validate(); err != nil {
				return err
			}
			if r.model, err = openServed(c.Context(), cm, args[0], *avsc); err != nil {
				return err
			}
			weighted, err := r.weigh()
			if err != nil {
				return err
			}
			for _, f := range r.model.FeatureTypes() {
				r.features, r.texts = append(r.features, f.Name), append(r.texts, f.Type == "string")
			}
			if err := r.read(c.Context()); err != nil {
				return err
			}
			shown, why := r.tell()
			if shown == nil {
				return why
			}
			shown.Weights = weighted
			if err := output.Write(c.OutOrStdout(), shown, shown.write); err != nil {
				return err
			}
			return why
		},
	}
	display.Flag(c, &output)
	f := c.Flags()
	cm = clusters.FlagsOf(f)
	f.StringVar(&r.file, "exposures", "", "the file, as Parquet, or NDJSON if its name ends in .ndjson")
	f.StringVar(&r.action, "action", "click", "what viewers do with an item that was right")
	f.StringVar(&r.experiment, "experiment", "", "only answers that it had a part in, and estimates by its chances")
	f.IntVar(&r.k, "depth", 10, "how many places NDCG counts")
	f.IntVar(&r.match, "match", 1, "with how many of the same items both rankings must begin a page, for the estimates; a page that has fewer, with all of them")
	f.Float64Var(&r.alpha, "alpha", 0.05, "the chance of being wrong, of each interval")
	f.StringToStringVar(&r.weights, "weights", nil, "in place of the model's own, such as likes=0.5,verb.share=2, as a variant sets them")
	_ = c.MarkFlagRequired("exposures")
	return c
}

// weigh puts weights in place of the model's own, and returns their checksum, as
// receipts and exposures have it; "" for none.
func (r *replay) weigh() (string, error) {
	if len(r.weights) == 0 {
		return "", nil
	}
	set := map[string]float64{}
	for _, name := range slices.Sorted(maps.Keys(r.weights)) {
		x, err := strconv.ParseFloat(r.weights[name], 64)
		if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
			return "", &millrace.Error{Reason: millrace.ReasonInvalid, Field: "weights", Detail: fmt.Sprintf("%.40q of %.100q is no finite number", r.weights[name], name), WayOut: "say likes=0.5, for one"}
		}
		set[name] = x
	}
	weighted, err := r.model.Weighted(set)
	if err != nil {
		return "", err
	}
	r.model = weighted
	return weights.Sum(weights.Form(set)), nil
}

func (r *replay) validate() error {
	switch {
	case r.k < 1 || r.k > limits.MaxLimit:
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "depth", Detail: fmt.Sprintf("%d is no number of places of a page", r.k), WayOut: fmt.Sprintf("say one from 1 to %d, such as 10", limits.MaxLimit)}
	case r.match < 1 || r.match > limits.MaxLimit:
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "match", Detail: fmt.Sprintf("%d is no number of items of a page", r.match), WayOut: fmt.Sprintf("say one from 1 to %d, such as 1", limits.MaxLimit)}
	}
	return command.CheckChance("alpha", r.alpha)
}

// read takes the file's answers, whose rows stand together.
func (r *replay) read(ctx context.Context) error {
	f, err := os.Open(r.file)
	if err != nil {
		return err
	}
	defer f.Close()
	next, err := shownRows(f)
	if errors.Is(err, errDamaged) {
		return r.damaged(err)
	}
	if err != nil {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "exposures", Detail: fmt.Sprintf("%s: %v", r.file, err), WayOut: notExported}
	}
	var page []export.Item
	answer, held := "", 0 // bytes of texts of the page
	for n := 1; ; n++ {
		row, err := next()
		if errors.Is(err, errDamaged) {
			return r.damaged(err)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return r.badRow(n, err.Error(), notExported)
		}
		begins := err == nil && (n == 1 || row.Answer != answer)
		if (begins || err != nil) && len(page) > 0 {
			if err := r.take(page); err != nil {
				return fmt.Errorf("%s, the answer before row %d: %w", r.file, n, err)
			}
			clear(page)
			page, held = page[:0], 0
		}
		if err != nil {
			return nil
		}
		bytes, err := textsOf(&row)
		if err = cmp.Or(err, impossible(&row)); err != nil {
			return r.badRow(n, err.Error(), notExported)
		}
		if begins {
			if err := r.begin(&row, n); err != nil {
				return err
			}
			answer = row.Answer
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if row.ID == nil {
			continue
		}
		if held += bytes; held > maxPageBytes || len(page) == limits.MaxLimit {
			return r.badRow(n, fmt.Sprintf("the rows of its answer, of which it is the %dth, are more than %d or have more than %d bytes of texts", len(page)+1, limits.MaxLimit, maxPageBytes), notExported)
		}
		page = append(page, row)
	}
}

// The bounds of what is read: some that no export reaches. In a Parquet file a text
// stands once, however many rows have it; in memory each row has its own.
const (
	maxNameBytes = 512      // ids, and names of whatever
	maxPageBytes = 64 << 20 // texts of an answer's rows
)

const notExported = "name a file that millrace export exposures wrote"

// textsOf returns how many bytes the texts of a row take, and refuses a text that is
// longer than what its column has in an exposure.
func textsOf(row *export.Item) (bytes int, err error) {
	long := func(column string, most int, texts ...*string) {
		for _, text := range texts {
			if text == nil {
				continue
			}
			if bytes += len(*text); len(*text) > most && err == nil {
				err = fmt.Errorf("its %s has %d bytes, more than %d", column, len(*text), most)
			}
		}
	}
	for _, x := range []struct {
		column string
		text   *string
	}{
		{"answer_id", &row.Answer}, {"viewer", &row.Viewer}, {"feed", &row.Feed}, {"broker", &row.Broker}, {"refusal", &row.Refusal}, {"id", row.ID}, {"entity", row.Entity},
		{"type", row.Type}, {"model", row.Model}, {"model_version", row.ModelVersion}, {"model_checksum", row.ModelChecksum}, {"team", row.Team},
	} {
		long(x.column, maxNameBytes, x.text)
	}
	for i := range row.HeldOut {
		long("held_out", maxNameBytes, &row.HeldOut[i])
	}
	for i := range row.Experiments {
		e := &row.Experiments[i]
		long("experiments", maxNameBytes, &e.Layer, &e.Experiment, &e.Variant, &e.Checksum)
		long("experiments.unit", limits.MaxAttributeBytes, &e.Unit)
	}
	for i := range row.Outcomes {
		long("outcomes.action", maxNameBytes, &row.Outcomes[i].Action)
	}
	for i := range row.Features {
		long("features.name", maxNameBytes, &row.Features[i].Name)
		long("features.text", millrace.MaxBodyBytes, row.Features[i].Text)
	}
	return bytes, err
}

// impossible says which of the numbers that are gone by no answer has; nil: none.
func impossible(row *export.Item) error {
	if row.Place != nil && *row.Place < 1 {
		return fmt.Errorf("its place is %d, and places begin at 1", *row.Place)
	}
	if row.ID != nil && row.Place == nil {
		return errors.New("it has an item without a place")
	}
	for _, o := range row.Outcomes {
		if o.Count < 1 {
			return fmt.Errorf("its outcome %.100q has the count %d, and what is there came once at least", o.Action, o.Count)
		}
	}
	for _, e := range row.Experiments {
		if !(e.ProbabilityInside >= 0 && e.ProbabilityInside <= 1) {
			return fmt.Errorf("probability_inside of experiment %.100q is %v, which is no chance", e.Experiment, e.ProbabilityInside)
		}
	}
	return nil
}

// begin notes the first row of an answer. Of rows that stand apart, each would
// count as a page of its own.
func (r *replay) begin(row *export.Item, n int) error {
	place := int64(0)
	if row.Place != nil {
		place = *row.Place
	}
	before, again := r.begun[row.Answer]
	switch {
	case again && before == place:
		return r.twice(row.Answer, place, n)
	case again:
		return r.badRow(n, fmt.Sprintf("it is of answer %s, of which rows stand further up, before other answers", row.Answer), "sort the rows by answer_id and place, so that those of an answer stand together")
	}
	r.begun[row.Answer] = place
	return nil
}

// twice is the refusal of a row that the file has twice.
func (r *replay) twice(answer string, place int64, n int) error {
	return r.badRow(n, fmt.Sprintf("place %d of answer %s has been there before", place, answer), "give each answer once: the file has rows of one export twice, or of two exports whose times overlap")
}

func (r *replay) badRow(n int, detail, wayOut string) error {
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "exposures", Detail: fmt.Sprintf("%s, row %d: %s", r.file, n, detail), WayOut: wayOut}
}

func (r *replay) damaged(err error) error {
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "exposures", Detail: fmt.Sprintf("%s: %v", r.file, err), WayOut: "export it once more, or name another file that millrace export exposures wrote"}
}

// errDamaged is of a file whose parts contradict each other.
var errDamaged = errors.New("it is damaged, or no file of rows as an export has them")

// orDamaged makes a panic of who reads a file an error: the library that reads Parquet
// believes numbers in a file.
func orDamaged(err *error) {
	if why := recover(); why != nil {
		*err = fmt.Errorf("%w: %v", errDamaged, why)
	}
}

// shownRows reads rows that export.RowsTo has written.
func shownRows(f *os.File) (next func() (export.Item, error), err error) {
	defer orDamaged(&err)
	if strings.HasSuffix(f.Name(), ".ndjson") {
		d := json.NewDecoder(f)
		return func() (row export.Item, err error) {
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
	rows := parquet.NewGenericReader[export.Item](file)
	one := make([]export.Item, 1)
	return func() (row export.Item, err error) {
		defer orDamaged(&err)
		clear(one)
		n, err := rows.Read(one)
		switch {
		case n == 1:
			return one[0], nil
		case err == nil:
			return row, fmt.Errorf("%w: it ends before its last row", errDamaged)
		}
		return row, err
	}, nil
}

// take ranks a page again, in the order in which it was shown.
func (r *replay) take(page []export.Item) error {
	var of dealt
	chance, part := 0., false
	for _, e := range page[0].Experiments {
		r.experiments[e.Experiment] = true
		if e.Experiment == r.experiment {
			if of, chance, part = (dealt{e.Checksum, e.Variant}), e.ProbabilityInside, true; e.Forced {
				r.forced++
				return nil
			}
		}
	}
	switch {
	case r.experiment != "" && !part:
		r.others++
		return nil
	case part && chance == 0:
		return fmt.Errorf("probability_inside of experiment %s is 0, and what has no chance is shown to nobody", r.experiment)
	}
	r.answers++
	if r.dealt[of] == nil {
		r.dealt[of] = &pages{chance: chance}
	}
	if !r.complete(page) {
		r.dealt[of].unread++
		return nil
	}
	r.dealt[of].ranked++
	slices.SortFunc(page, func(a, b export.Item) int { return cmp.Compare(*a.Place, *b.Place) })
	for i := range page[1:] {
		if place := *page[i].Place; place == *page[i+1].Place {
			return fmt.Errorf("place %d stands twice: the file has rows of one export twice, or of two exports whose times overlap; give each answer once", place)
		}
	}
	if err := itemTwice(page); err != nil {
		return err
	}
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
		if page[i].CopyOf == nil && slices.ContainsFunc(page[i].Outcomes, func(o export.Outcome) bool { return o.Action == r.action }) {
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
		l := loggedPage{stats.Logged{Reward: acted, Old: chance}, of}
		r.longest = max(r.longest, len(order))
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

// itemTwice refuses a page on which a record stands twice under one entity: of two
// timelines it may.
func itemTwice(page []export.Item) error {
	places := make(map[[2]string]int64, len(page))
	for i := range page {
		it := [2]string{*page[i].ID}
		if entity := page[i].Entity; entity != nil {
			it[1] = *entity
		}
		if first, twice := places[it]; twice {
			return fmt.Errorf("record %.100q stands at place %d and at place %d, of the same entity, as on no page", it[0], first, *page[i].Place)
		}
		places[it] = *page[i].Place
	}
	return nil
}

// complete reports whether every item of a page has the features that the model
// reads, and counts a page that has not.
func (r *replay) complete(page []export.Item) bool {
	for i := range page {
		if len(page[i].Features) == 0 {
			r.bare++
			return false
		}
	}
	for i := range page {
		for _, name := range r.features {
			if slices.ContainsFunc(page[i].Features, func(f export.Feature) bool { return f.Name == name }) {
				continue
			}
			if r.lack == nil {
				var names []string
				for _, f := range page[i].Features {
					names = append(names, f.Name)
				}
				r.lack = &millrace.Error{Reason: millrace.ReasonUnknown, Field: "exposures", Detail: fmt.Sprintf("the model reads a feature %s, which was not written", name), WayOut: hint.Nearest(name, names) + "; replay pages of a model that reads what this one does, as a version of it in a variant"}
			}
			r.lacking++
			r.lacks[name]++
			return false
		}
	}
	return true
}

// score is what the model gives an item by its features, which it has.
func (r *replay) score(logged []export.Feature) (float64, error) {
	values := make([]any, len(r.features))
	for i, name := range r.features {
		k := slices.IndexFunc(logged, func(f export.Feature) bool { return f.Name == name })
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
	return r.model.ScoreFeatures(values)[0], nil
}

// noAnswer is the refusal of an experiment of which the file has no answer.
func (r *replay) noAnswer() error {
	if r.experiments[r.experiment] {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "experiment", Detail: fmt.Sprintf("every answer of experiment %s in %s was forced, which is no chance", r.experiment, r.file), WayOut: "export answers whose variant was dealt"}
	}
	return command.UnknownAmong("experiment", r.experiment, r.file+" has no answer", "", r.experiments)
}

// chances are those of the pages that count, among the variants that have some:
// a variant of which all pages are left out is dealt to nobody among those.
func (r *replay) chances() (logged []stats.Logged, without []string) {
	rest := map[string]float64{} // by checksum
	for of, p := range r.dealt {
		if p.ranked == 0 && p.unread > 0 {
			rest[of.checksum] += p.chance
			without = append(without, of.variant)
		}
	}
	for _, l := range r.logged {
		l.Old = min(1, l.Old/(1-rest[l.of.checksum]))
		logged = append(logged, l.Logged)
	}
	slices.Sort(without)
	return logged, slices.Compact(without)
}
