package models

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/limits"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/export"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/internal/hint"
	"github.com/millrace/millrace/internal/stats"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/weights"
)

// replay ranks the pages of a file of exposures anew, by another model, the replayed model. A
// page is the items of one answer. The fields are what the flags say, what is needed to rank,
// and what was found in the file.
type replay struct {
	file, action, experiment string   // experiment: "" for none
	k, match                 int      // --depth and --match
	alpha                    float64  // the probability that an interval misses the true value
	places, definition       string   // the files of --positions and --definition; "" for none
	beside                   []string // packs of the models by which variants rank

	weights      map[string]string // weights to use in place of the model's own; numbers as texts, by name
	ranker       *ranker           // ranks by the replayed model
	from         string            // where the model was found
	self         ranking           // the replayed model as rows name it; zero if rows cannot name it
	propensities map[int64]float64 // the probability that a viewer looks at a place; nil: the measures do not correct for places

	firsts        map[string]*loggedPage   // first pages for the estimates, by viewer
	ranked        map[string]*measuredPage // first pages for the measures, by viewer
	begun         map[string]int64         // the place that the first row of an answer has, for each answer of the file
	experiments   map[string]bool          // the names of all experiments in the file
	forced        int                      // answers that do not count, since their variant was set by name and not by chance
	others        int                      // answers that do not count, since the experiment had no part in them
	answers, bare int                      // answers that may count, and of these those with an item without any features
	lacking       int                      // of the answers that may count, those that lack a feature that the model reads
	lack          error                    // says which feature the first of these answers lacks
	gaps          int                      // of the answers that may count, those of which rows are missing
	partial       bool                     // some page that counts does not begin at place 1
	idle          bool                     // some item that counts was not acted on
	most, latest  int                      // the numbers of items of the longest page of the file and of the last one
	should        int                      // how many items the last answer says it has; -1: it does not say
	lacks         map[string]int           // in how many answers a feature is the first that is missing, by feature
	measures      []*measuring
	acted         int            // viewers that count for the measures and did the action
	dealt         map[dealt]*arm // all arms that were found so far
	all           []*arm         // the arms that survey found, in the order of the method arms
	logged        []*loggedPage  // firsts in the order of viewers; settle fills it
	longest       int            // the number of items of the longest page that may count for the estimates
}

// measuring is a measure, such as NDCG, and its means over viewers.
type measuring struct {
	name string
	// of returns the measure of a page by the gains of its items in order. tied are the
	// sizes of groups of items with equal scores, as in ordered; nil: no scores are equal.
	of               func(gains []float64, tied []int) (float64, error)
	shown, new, more stats.Mean // of pages as shown, of pages as ranked anew, and of the difference
}

func replayCommand(avsc *[]string) *cobra.Command {
	var output display.Form
	r := replay{firsts: map[string]*loggedPage{}, ranked: map[string]*measuredPage{}, begun: map[string]int64{}, experiments: map[string]bool{}, lacks: map[string]int{}, dealt: map[dealt]*arm{}}
	c := &cobra.Command{
		Use:   "replay PACK|SPEC.yaml|NAME",
		Short: "Rank what was shown again, and hold both rankings against what viewers did",
		Long: `Reads a file of millrace export exposures with features and outcomes (an
experiment with features: 10000, and --outcomes), ranks each page by the model,
from the features that it was shown by, and compares the order with that which
was shown: NDCG and the mean reciprocal rank, of pages on which the viewer did
--action. The rows of an answer must stand together, as export writes them. A
NAME is of a built-in model, or of one that serves in the cluster, of which then
the version is ranked by that serves now; a file or directory of that name goes
first, and the first line says which was taken. Schemas are those of --schema and,
where they do not do, those of the cluster: of --brokers, or of the context.

A model may use any of the features that were written, by the same names; they
must mean the same. Written is what the model that ranked the page reads: a page
that lacks a feature of the new model is left out, and counted. So there must be
pages of a model whose features include those of the new one, such as those of a
variant that ranks by a version of it. A page of which rows are missing, so that
its places have gaps or it has fewer items than it says, is left out, too. In a
file of before, which does not say that, one whose first or last rows are missing
looks like a shorter page.

TIES. Items that the new model gives the same score have no order of its own. What
a feed shows is the newer one first, which the file does not tell. So measures are
the means over all orders of such items, each as likely (McSherry and Najork
2008), and a page that begins as it was shown in some of these orders alone does
not count for the estimates. What was shown has its order, ties or not.

POSITION BIAS. Viewers do more with what stands higher, whatever it is. Taken as
they are, their clicks favour the order that was shown: DIFFERENCE finds nearly
every other order worse, also one that is as good or better. --positions takes a
file of two columns, place,propensity: how likely a viewer looks at a place (1 is
the first of a feed), as a randomised swap of places tells. A click then counts
one over the propensity of its place, and the measure is DCG, the first page of
each viewer counting, clicks or none: without bias if that is how viewers act.

A page has what the old ranking chose. What the new one would have brought from
elsewhere, and what viewers would have done with it, it cannot tell. So beside it
stand two estimates of how many items of a page viewers would act on: by inverse
propensity, and self-normalised. They look at pages of --experiment alone that
the new ranking begins with the same --match items, and divide each by how likely
it was: the sum of probability_inside of all variants that would have begun it so.
Where variants rank by this very model only their pages count: they show what it
earns. Of another model pages tell as far as their items do, which another variant
chose: so they must have ten items for each of --match, and the estimates lean
towards what was shown where the new ranking would have chosen others. Shorter
pages are left out, and counted, if no variant has a say in how many items a page
has; where one sets a limit, or it is not known, there is no estimate for them.
That takes the models of the variants: built-in ones, the one that is replayed,
the packs of --beside and, where --etcd, --cluster, a context or a model that
serves there names a cluster, the versions that it keeps. Weights and filters that variants set are those of the
experiment's document: --definition, or the cluster's. Where it is not known how
some variant begins pages, there is no estimate. A variant of which all pages are
left out counts as if it had not been there.

The mean weight of pages is 1 where chances are right and some variant shows what
the new ranking would. Where it is not, beyond chance (its 99 % interval lacks 1),
the estimates are not believable, and are not shown.

Each viewer counts once: for NDCG and MRR by the first page on which they did
--action, for the estimates and DCG by their first page, whatever they did. The
first is the earliest by the column time, and then by answer_id, wherever it stands
in the file. There is no interval of fewer than 100 viewers, nor of estimates that
say less than 100 pages would. All intervals are for one look, at a file that is
complete: one that is looked at again while it grows misses more often than
--alpha.`,
		Example: `  millrace export exposures --outcomes clicks --out shown.parquet
  millrace model replay ./next --exposures shown.parquet --action click --experiment ranking --beside ./now
  millrace model replay ./next --exposures shown.parquet --positions places.csv`,
		Args: cobra.ExactArgs(1),
	}
	display.Flag(c, &output)
	f := c.Flags()
	at := source{cm: clusters.FlagsOf(f), kafka: reach.KafkaFlagsOf(c, "for the schemas that a model reads, where --schema does not give them"), avsc: avsc}
	c.RunE = func(c *cobra.Command, args []string) (err error) {
		at.named = f.Changed("etcd") || f.Changed("cluster") // a context sets these flags, too
		if err := r.validate(); err != nil {
			return err
		}
		have := newShelf()
		weighted, err := r.open(c.Context(), &at, have, args[0])
		if err != nil {
			return err
		}
		if err := r.prepare(c.Context(), &at, have); err != nil {
			return err
		}
		if err := r.read(c.Context()); err != nil {
			return err
		}
		shown, why := r.shown()
		if shown == nil {
			return why
		}
		shown.Weights = weighted
		if err := output.Write(c.OutOrStdout(), shown, shown.write); err != nil {
			return err
		}
		return why
	}
	f.StringVar(&r.file, "exposures", "", "the file, Parquet or NDJSON")
	f.StringVar(&r.action, "action", "click", "what viewers do with an item that was right")
	f.StringVar(&r.experiment, "experiment", "", "only answers that it had a part in, and estimates by its chances")
	f.StringSliceVar(&r.beside, "beside", nil, "packs by which variants of --experiment rank, for the estimates")
	f.StringVar(&r.definition, "definition", "", "the document of --experiment, a YAML file, for the weights and filters that variants set")
	f.StringVar(&r.places, "positions", "", "how likely viewers look at a place, a CSV file of place,propensity")
	f.IntVar(&r.k, "depth", 10, "how many places NDCG or DCG counts")
	f.IntVar(&r.match, "match", 1, "with how many of the same items both rankings must begin a page, for the estimates; a page that has fewer, with all of them")
	f.Float64Var(&r.alpha, "alpha", 0.05, "the chance of being wrong, of each interval")
	f.StringToStringVar(&r.weights, "weights", nil, "in place of the model's own, such as likes=0.5,verb.share=2, as a variant sets them")
	_ = c.MarkFlagRequired("exposures")
	return c
}

// open finds the replayed model and makes its ranker. weighted is the checksum of the weights
// of --weights; "" without that flag.
func (r *replay) open(ctx context.Context, at *source, have *shelf, name string) (weighted string, err error) {
	o, err := at.open(ctx, name)
	if err != nil {
		return "", err
	}
	r.from = o.from
	if o.named {
		r.self = ranking{o.model.Name(), o.model.Version(), o.sum}
		have.models[r.self] = o.model
	}
	m, weighted, err := r.weigh(o.model, have)
	if err != nil {
		return "", err
	}
	if weighted != "" && o.named {
		r.self.checksum += "+" + weighted
	}
	r.ranker = rankerOf(m)
	return weighted, nil
}

// prepare sets the measures. With an experiment it also reads the models and documents of
// its variants, and finds the arms.
func (r *replay) prepare(ctx context.Context, at *source, have *shelf) (err error) {
	if r.measures, err = r.measured(); err != nil || r.experiment == "" {
		return err
	}
	for _, name := range r.beside {
		o, err := at.open(ctx, name)
		if err != nil {
			return err
		}
		have.models[ranking{o.model.Name(), o.model.Version(), o.sum}] = o.model
	}
	if r.definition != "" {
		if err := have.definedBy(r.definition, r.experiment); err != nil {
			return err
		}
	}
	if err := r.survey(ctx); err != nil {
		return err
	}
	if at.named {
		have.fault = at.fetch(ctx, have, r.experiment, r.wanted())
	}
	r.rank(have)
	return nil
}

// measured returns the measures: NDCG and MRR, or DCG where --positions gives propensities
// of places, which it reads.
func (r *replay) measured() ([]*measuring, error) {
	if r.places == "" {
		return []*measuring{
			{name: fmt.Sprintf("NDCG@%d", r.k), of: func(gains []float64, tied []int) (float64, error) {
				means, err := stats.MeanOfTied(gains, tied)
				if err != nil {
					return 0, err
				}
				return stats.NDCG(means, gains, r.k)
			}},
			{name: "MRR", of: stats.ReciprocalRank},
		}, nil
	}
	var err error
	r.propensities, err = readPlaces(r.places)
	return []*measuring{{name: fmt.Sprintf("DCG@%d", r.k), of: func(gains []float64, tied []int) (float64, error) {
		means, err := stats.MeanOfTied(gains, tied)
		if err != nil {
			return 0, err
		}
		return stats.DCG(means, r.k)
	}}}, err
}

// weigh returns m with the weights of --weights in place of its own, and the checksum of
// these as receipts and exposures have it. It adds these weights to have. Without --weights
// it returns m and "".
func (r *replay) weigh(m *relevance.Model, have *shelf) (*relevance.Model, string, error) {
	if len(r.weights) == 0 {
		return m, "", nil
	}
	set := map[string]float64{}
	for _, name := range slices.Sorted(maps.Keys(r.weights)) {
		x, err := strconv.ParseFloat(r.weights[name], 64)
		if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
			return nil, "", &millrace.Error{Reason: millrace.ReasonInvalid, Field: "weights", Detail: fmt.Sprintf("%.40q of %.100q is no finite number", r.weights[name], name), WayOut: "say likes=0.5, for one"}
		}
		set[name] = x
	}
	have.weigh(set)
	weighted, err := m.Weighted(set)
	return weighted, weights.Sum(weights.Form(set)), err
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

// take counts a page whose rows are in the order of the file, and ranks it anew if it is
// whole and has all features. It sorts page by place. An error is a fault of the file.
func (r *replay) take(page []export.Item) error {
	if r.latest, r.most = len(page), max(r.most, len(page)); page[0].Items != nil {
		r.should = int(*page[0].Items)
	}
	var of export.Variant
	part := false
	for _, e := range page[0].Experiments {
		r.experiments[e.Experiment] = true
		if e.Experiment == r.experiment {
			if of, part = e, true; e.Forced {
				r.forced++
				return nil
			}
		}
	}
	switch {
	case r.experiment != "" && !part:
		r.others++
		return nil
	case part && of.ProbabilityInside == 0:
		return fmt.Errorf("probability_inside of experiment %s is 0, and what has no chance is shown to nobody", r.experiment)
	}
	r.answers++
	a := r.armOf(&of)
	if !r.complete(page) {
		a.unread++
		return nil
	}
	slices.SortFunc(page, func(a, b export.Item) int { return cmp.Compare(*a.Place, *b.Place) })
	for i := range page[1:] {
		if place := *page[i].Place; place == *page[i+1].Place {
			return fmt.Errorf("place %d stands twice: the file has rows of one export twice, or of two exports whose times overlap; give each answer once", place)
		}
	}
	if err := itemTwice(page); err != nil {
		return err
	}
	first, last := *page[0].Place, *page[len(page)-1].Place
	if last-first != int64(len(page)-1) || r.latest < r.should {
		r.gaps++
		return nil
	}
	a.ranked++
	return r.rankAnew(a, page)
}

// rankAnew ranks a page that is whole, for the measures and the estimates.
func (r *replay) rankAnew(a *arm, page []export.Item) error {
	order, err := r.ranker.order(page)
	if err != nil {
		return err
	}
	gains, acted, err := r.gains(page)
	if err != nil {
		return err
	}
	viewer := page[0].Viewer
	if viewer == "" { // answers without a viewer are not all of one viewer
		viewer = "\x00" + page[0].Answer
	}
	whole := *page[0].Place == 1
	r.partial, r.idle = r.partial || !whole, r.idle || acted < len(page)
	if r.experiment != "" && whole {
		r.longest = max(r.longest, len(page))
		l := &loggedPage{moment: momentOf(page), reward: float64(acted), of: a, items: len(page), own: order.begins(r.match)}
		if err := r.log(viewer, l, page); err != nil {
			return err
		}
	}
	if acted == 0 && r.propensities == nil {
		return nil
	}
	return r.measure(viewer, &measuredPage{moment: momentOf(page), acted: acted > 0}, gains, order)
}

// gains returns the gain of each item of a page, and on how many items the viewer acted. The
// gain of an item that was acted on is 1, or 1 / propensity of its place if propensities are
// given. The gain of other items, and of further copies of a record, is 0.
func (r *replay) gains(page []export.Item) (gains []float64, acted int, err error) {
	gains = make([]float64, len(page))
	for i := range page {
		if page[i].CopyOf != nil || !slices.ContainsFunc(page[i].Outcomes, func(o export.Outcome) bool { return o.Action == r.action }) {
			continue
		}
		acted++
		gains[i] = 1
		if r.propensities == nil {
			continue
		}
		looked, ok := r.propensities[*page[i].Place]
		if !ok {
			return nil, 0, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "positions", Detail: fmt.Sprintf("%s has no place %d, at which viewers did %s", r.places, *page[i].Place, r.action), WayOut: "give every place at which something was shown"}
		}
		gains[i] = 1 / looked
	}
	return gains, acted, nil
}

// measure keeps page as the viewer's page for the measures, unless an earlier one is known,
// and computes its values from the gains. Where the new model gives items equal scores, a
// value is the mean over all orders of these items.
func (r *replay) measure(viewer string, page *measuredPage, gains []float64, order ordered) error {
	if first := r.ranked[viewer]; first != nil && !page.before(first.moment) {
		return nil
	}
	r.ranked[viewer] = page
	anew := make([]float64, len(gains))
	for i, at := range order.items {
		anew[i] = gains[at]
	}
	for _, m := range r.measures {
		was, err := m.of(gains, nil)
		if err != nil {
			return err
		}
		is, err := m.of(anew, order.tied)
		if err != nil {
			return err
		}
		page.values = append(page.values, [2]float64{was, is})
	}
	return nil
}

// itemTwice returns an error if a page has a record twice under one entity. A record may be
// on a page under two entities, from two timelines.
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

// complete reports whether every item of a page has all features that the model reads. If
// not, it counts the page in r.bare or in r.lacking.
func (r *replay) complete(page []export.Item) bool {
	for i := range page {
		if len(page[i].Features) == 0 {
			r.bare++
			return false
		}
	}
	item, name, lacks := r.ranker.lack(page)
	if !lacks {
		return true
	}
	if r.lack == nil {
		var names []string
		for _, f := range page[item].Features {
			names = append(names, f.Name)
		}
		r.lack = &millrace.Error{Reason: millrace.ReasonUnknown, Field: "exposures", Detail: fmt.Sprintf("the model reads a feature %s, which was not written", name), WayOut: hint.Nearest(name, names) + "; replay pages of a model that reads what this one does, as a version of it in a variant"}
	}
	r.lacking++
	r.lacks[name]++
	return false
}

// noAnswer returns the error for a file in which no answer of the experiment counts.
func (r *replay) noAnswer() error {
	if r.experiments[r.experiment] {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "experiment", Detail: fmt.Sprintf("every answer of experiment %s in %s was forced, which is no chance", r.experiment, r.file), WayOut: "export answers whose variant was dealt"}
	}
	return command.UnknownAmong("experiment", r.experiment, r.file+" has no answer", "", r.experiments)
}
