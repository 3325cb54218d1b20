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

// order returns the items of a page, which lacks nothing, best first; those that
// score the same stay as they were shown.
func (r *ranker) order(page []export.Item) ([]int, error) {
	order, scores := make([]int, len(page)), make([]float64, len(page))
	for i := range page {
		score, err := r.score(page[i].Features)
		if err != nil {
			return nil, err
		}
		order[i], scores[i] = i, score
	}
	slices.SortStableFunc(order, func(a, b int) int { return millrace.CompareScores(scores[a], scores[b]) })
	return order, nil
}

// begins reports whether an order begins with the items that were shown first.
func begins(order []int, items int) bool {
	for i, at := range order[:min(items, len(order))] {
		if at != i {
			return false
		}
	}
	return true
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
