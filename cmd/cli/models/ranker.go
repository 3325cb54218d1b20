package models

import (
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/export"
	"github.com/millrace/millrace/relevance"
)

// ranking names the model that ranked an item, as rows of exposures do. An exposure is an
// answer that was shown to a viewer; export writes a row for each of its items.
type ranking struct {
	name, version string
	checksum      string // PACK, or PACK+WEIGHTS where a variant set weights; PACK is "" for a built-in model
}

func rankingOf(row *export.Item) (k ranking) {
	for _, x := range []struct {
		from *string
		to   *string
	}{{row.Model, &k.name}, {row.ModelVersion, &k.version}, {row.ModelChecksum, &k.checksum}} {
		if x.from != nil {
			*x.to = *x.from
		}
	}
	return k
}

func (k ranking) String() string {
	if k.name == "" {
		return "a model that is not named"
	}
	text := fmt.Sprintf("model %s %s", k.name, k.version)
	if k.checksum != "" {
		text += fmt.Sprintf(" (%.12s)", k.checksum)
	}
	return text
}

// wayOut returns what a user can do to have the model at hand, in brackets, for the end of a
// message.
func (k ranking) wayOut() string {
	switch {
	case k.name == "":
		return ""
	case k.checksum == "":
		return fmt.Sprintf(" (it is built in; a millrace that has version %s can replay it)", k.version)
	}
	return " (give its pack by --beside, or name the cluster that has it by --etcd and --cluster)"
}

// ranker ranks pages by a model, from the features that the rows of the pages have.
type ranker struct {
	model    *relevance.Model
	features []string // the features that the model reads
	texts    []bool   // for each of features, whether it is a text and no number
}

func rankerOf(m *relevance.Model) *ranker {
	r := &ranker{model: m}
	for _, f := range m.FeatureTypes() {
		r.features, r.texts = append(r.features, f.Name), append(r.texts, f.Type == "string")
	}
	return r
}

// lack returns the first feature of the model that a row of the page lacks, by the index of
// the row and the name of the feature. If none is lacking, lacks is false.
func (r *ranker) lack(page []export.Item) (item int, name string, lacks bool) {
	for i := range page {
		for _, name := range r.features {
			if !slices.ContainsFunc(page[i].Features, func(f export.Feature) bool { return f.Name == name }) {
				return i, name, true
			}
		}
	}
	return 0, "", false
}

// ordered is a page in the order of a model.
type ordered struct {
	items []int // indices into the page, best first; those of equal scores in the order that was shown
	tied  []int // the sizes of the groups of equal scores along items; their sum is len(items)
}

// order returns the order of a page by the model. The page must have all features of the
// model. The error says that a feature is a text where the model reads a number, or a number
// where it reads a text.
func (r *ranker) order(page []export.Item) (o ordered, err error) {
	o.items = make([]int, len(page))
	scores := make([]float64, len(page))
	for i := range page {
		if scores[i], err = r.score(page[i].Features); err != nil {
			return o, err
		}
		o.items[i] = i
	}
	slices.SortStableFunc(o.items, func(a, b int) int { return millrace.CompareScores(scores[a], scores[b]) })
	for at, item := range o.items {
		if at > 0 && millrace.CompareScores(scores[o.items[at-1]], scores[item]) == 0 {
			o.tied[len(o.tied)-1]++
		} else {
			o.tied = append(o.tied, 1)
		}
	}
	return o, nil
}

// begun says whether a model begins a page with the same items as were shown first. Items of
// equal scores can stand in several orders: may is true if the page begins so in some of
// these orders, must if it does in all of them. A feed shows the newer of two such items
// first, and rows do not tell which is newer.
type begun struct{ may, must bool }

// begins compares the first items of the page, items in number, with those that were shown
// there.
func (o ordered) begins(items int) begun {
	items = min(items, len(o.items))
	for i, at := range o.items[:items] {
		if at != i {
			return begun{}
		}
	}
	at := 0
	for _, size := range o.tied {
		if at < items && size > 1 {
			return begun{may: true}
		}
		at += size
	}
	return begun{true, true}
}

// score returns the score that the model gives an item. logged must have all features that
// the model reads. One without a value counts as "" or NaN. The error is as that of order.
func (r *ranker) score(logged []export.Feature) (float64, error) {
	values := make([]any, len(r.features))
	for i, name := range r.features {
		k := slices.IndexFunc(logged, func(f export.Feature) bool { return f.Name == name })
		switch f := &logged[k]; {
		case r.texts[i] && f.Number != nil || !r.texts[i] && f.Text != nil:
			return 0, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "exposures", Detail: fmt.Sprintf("feature %s was written as another kind than model %s reads", name, r.model.Name()), WayOut: "replay exposures of a model whose features mean the same"}
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
