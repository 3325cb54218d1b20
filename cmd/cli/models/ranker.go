package models

import (
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/export"
	"github.com/millrace/millrace/relevance"
)

// ranking names what ranked an item, as rows of exposures have it.
type ranking struct {
	name, version string
	checksum      string // of the pack, and behind a + that of weights; "" of a built-in model
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

// wayOut says, in brackets, how a model comes to hand.
func (k ranking) wayOut() string {
	switch {
	case k.name == "":
		return ""
	case k.checksum == "":
		return fmt.Sprintf(" (it is built in; a millrace that has version %s can replay it)", k.version)
	}
	return " (give its pack by --beside, or name the cluster that has it by --etcd and --cluster)"
}

// ranker ranks pages by a model, from the features that they were shown by.
type ranker struct {
	model    *relevance.Model
	features []string // that it reads
	texts    []bool   // of each, whether it is one
}

func rankerOf(m *relevance.Model) *ranker {
	r := &ranker{model: m}
	for _, f := range m.FeatureTypes() {
		r.features, r.texts = append(r.features, f.Name), append(r.texts, f.Type == "string")
	}
	return r
}

// lack returns the item and the name of the first feature that a page lacks.
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
	items []int // by place; those that score the same as they were shown
	tied  []int // the sizes of groups that score the same, by place
}

// order returns a page, which lacks nothing, best first.
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

// begun is whether a model begins a page with the items that were shown first: in some
// order of those that score the same, and in every one. A feed has the newer of two
// first, which rows do not tell.
type begun struct{ may, must bool }

// begins says it of the first items of a page.
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

// score is what the model gives an item by its features, which it has.
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
