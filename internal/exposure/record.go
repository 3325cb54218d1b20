package exposure

import (
	"cmp"
	"fmt"
	"math"

	"github.com/millrace/millrace"
)

// Record is what one answer showed to one viewer. The fields are those of
// schemas/exposure.avsc, which says what each means.
type Record struct {
	ID                                string          // the id of the request
	Time                              millrace.Time   // when the answer was made
	Viewer                            string          // empty if the request named none
	Feed                              string          // the name of the feed
	FeedVersion                       int64           // the version of the feed's definition in the cluster; 0 for a definition of the broker's own
	Broker                            string          // the name of the broker that answered
	AsOf                              millrace.Time   // the time that filter and model took for now
	ServedBefore                      int             // how many items earlier pages have served
	TimelinesAsked, TimelinesAnswered int             // how many timelines the request asked for, and how many were answered: fewer in a partial answer
	Experiments                       []Experiment    // the experiments that had a part in the answer
	HeldOut                           []string        // the layers (sets of experiments) that hold the viewer out: the viewer gets none of their experiments
	ShadowShare                       float64         // the share of answers that shadows rank again; 0: this one was not sampled
	Interleaving                      *Interleaving   // nil: the answer is no draft
	Models                            []Model         // the models that ranked items; the one that the answer's receipt names comes first
	Shadows                           []Model         // the shadow models that ranked the answer again, then those that failed to
	Items                             []Item          // in the order in which they were served
	FeaturesLeftOut                   bool            // set by Log if the record would have been too large
	Millis                            float64         // milliseconds until the broker had an answer, or a refusal
	Refusal                           string          // the reason of a refusal; empty for an answer
	ScoringNanos                      int64           // nanoseconds that scoring took on all index nodes together; 0 for a refusal
	Looked                            int             // if shadows ranked the answer: how many items were checked for features that they lack
	Lacking                           []Lacked        // by feature, how many of these items lack it
	ShadowRankings                    []ShadowRanking // one for each of Shadows, without those that failed
}

// Failed returns the shadows that should have ranked the answer again and could not. Under
// the earlier schema, shadows scored the items and ranked nothing: then none failed if the
// items have their scores.
func (r *Record) Failed() []Model {
	if len(r.ShadowRankings) == 0 && len(r.Items) > 0 && len(r.Items[0].Shadows) > 0 {
		return nil
	}
	return r.Shadows[len(r.ShadowRankings):]
}

// Lacked is how many of the checked items lacked a feature.
type Lacked struct {
	Feature string
	Items   int
}

// ShadowRanking is how a shadow, a model that only ranks for comparison, ranked the
// candidates of an answer.
type ShadowRanking struct {
	// How like the answer the shadow's ranking is, from 0 to 1: the share of the first ten
	// items in common, the share of all items in common, and rank-biased overlap.
	Overlap10, Overlap, RBO float64

	Tau                       float64      // Kendall's tau-b of the items in common, from -1 to 1; NaN: there are not two
	ServedNanos, ServedScored int64        // how many nanoseconds the answer's model took to score the candidates again, and how many candidates there were
	Nanos, Scored             int64        // the same for the shadow
	Looked                    int          // items of this ranking that were checked for features that they lack
	Lacking                   []Lacked     // by feature, how many of these items lack it
	Items                     []ShadowItem // in the order of the shadow
}

// ShadowItem is an item of a shadow's ranking.
type ShadowItem struct {
	ID, Entity, Type string  // of the record
	Score            float64 // may be NaN
}

// Experiment is a variant that had a part in an answer.
type Experiment struct {
	Layer, Experiment, Variant string  // names; a layer is a set of experiments of which a unit is in one at most
	Unit                       string  // what got the variant: the viewer, a value of an attribute, or an entity
	Checksum                   string  // the checksum of the experiment's definition
	Probability                float64 // the chance that a unit that fits the targeting gets the variant; 0 if forced
	ProbabilityInside          float64 // the chance that a unit in the experiment gets the variant; 0 if forced
	Forced                     bool    // the definition names the viewer: this is not chance, and is not counted
}

// Interleaving is how an answer was drafted from the rankings of several models; see
// package interleave.
type Interleaving struct {
	Experiment string   // the experiment that had the answer drafted
	Seed       uint64   // decides the order in which the teams draft
	Turns      uint64   // how many turns of the draft came before this page
	Teams      []string // the models, each of which drafts items of its own ranking
}

// Model is a version of a model.
type Model struct {
	Name, Version, Checksum string
	Features                []string // the names of the values in Item.Features; nil unless they were asked for
}

// Item is an item as it was served.
type Item struct {
	Place      int // in the answer, from 1
	ID, Entity string
	Type       string
	Score      float64   // may be NaN; see Finite for an infinite one
	Model      int       // the index in Record.Models
	Team       int       // the index in Interleaving.Teams; -1: no team's, or no draft
	Shadows    []float64 // the scores by the shadows that did not fail; may be nil
	Features   []Value   // in the order of Model.Features; nil unless they were asked for
}

// Finite reports whether the score is a finite number. In a record that was written and
// read, an infinite score has become the largest finite number. So that one counts as
// infinite too.
func (it *Item) Finite() bool { return math.Abs(it.Score) < math.MaxFloat64 }

// Value is a feature's value: a number, NaN if it is missing, or a text.
type Value struct {
	Number float64 // the value unless IsText
	Text   string  // the value if IsText
	IsText bool
}

// Number returns the value of a number. NaN is a missing value; true is 1, false 0.
func Number(x float64) Value { return Value{Number: x} }

// Text returns the value of a text.
func Text(s string) Value { return Value{Text: s, IsText: true} }

// Missing returns the value of a feature that a record does not have.
func Missing() Value { return Value{Number: math.NaN()} }

// maxName bounds the name, version and checksum of a model, in bytes, since readers keep
// and print them.
const maxName = 1 << 10

// maxModels bounds the models that a record names, and the shadows, since readers compare
// each with the others. Answers are ranked by only a few.
const maxModels = 1000

// check checks what the schema cannot: that the record's parts fit each other. The error is
// a [*millrace.Error].
func (r *Record) check() error {
	wrong := func(field, detail string, args ...any) error {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: field, Detail: fmt.Sprintf(detail, args...), WayOut: "write what was served, as schemas/exposure.avsc says"}
	}
	share := func(x float64) bool { return x >= 0 && x <= 1 }
	switch {
	case r.ID == "":
		return wrong("id", "empty")
	case r.Feed == "":
		return wrong("feed", "empty")
	case !(r.Millis >= 0) || math.IsInf(r.Millis, 0):
		return wrong("millis", "%v", r.Millis)
	case !share(r.ShadowShare):
		return wrong("shadow_share", "%v is not from 0 to 1", r.ShadowShare)
	case len(r.ShadowRankings) > len(r.Shadows):
		return wrong("shadow_rankings", "%d of %d shadows", len(r.ShadowRankings), len(r.Shadows))
	}
	for of, models := range map[string][]Model{"models": r.Models, "shadows": r.Shadows} {
		if len(models) > maxModels {
			return wrong(of, "%d are more than %d", len(models), maxModels)
		}
		for i := range models {
			if m := &models[i]; max(len(m.Name), len(m.Version), len(m.Checksum)) > maxName {
				return wrong(fmt.Sprintf("%s[%d]", of, i), "a name, version or checksum of more than %d bytes", maxName)
			}
		}
	}
	for i := range r.ShadowRankings {
		x := &r.ShadowRankings[i]
		if !share(x.Overlap10) || !share(x.Overlap) || !share(x.RBO) {
			return wrong(fmt.Sprintf("shadow_rankings[%d].overlap", i), "%v, %v and %v are not from 0 to 1", x.Overlap10, x.Overlap, x.RBO)
		}
	}
	for i := range r.Experiments {
		e := &r.Experiments[i]
		if !share(e.Probability) || !share(e.ProbabilityInside) {
			return wrong(fmt.Sprintf("experiments[%d].probability", i), "%v, and inside %v, are not from 0 to 1", e.Probability, e.ProbabilityInside)
		}
		if e.Forced != (e.Probability == 0) || e.Forced != (e.ProbabilityInside == 0) {
			return wrong(fmt.Sprintf("experiments[%d].forced", i), "%v with the probability %v, and %v inside", e.Forced, e.Probability, e.ProbabilityInside)
		}
	}
	teams := 0
	if r.Interleaving != nil {
		teams = len(r.Interleaving.Teams)
	}
	for i := range r.Items {
		it := &r.Items[i]
		at := func(field string) string { return fmt.Sprintf("items[%d].%s", i, field) }
		switch {
		case it.Place < 1 || it.Place > math.MaxInt32:
			return wrong(at("place"), "%d", it.Place)
		case it.Model < 0 || it.Model >= len(r.Models):
			return wrong(at("model"), "%d of %d", it.Model, len(r.Models))
		case it.Team < -1 || it.Team >= teams:
			return wrong(at("team"), "%d of %d", it.Team, teams)
		case len(it.Shadows) > 0 && len(it.Shadows) != cmp.Or(len(r.ShadowRankings), len(r.Shadows)):
			return wrong(at("shadow_scores"), "%d of %d shadows", len(it.Shadows), len(r.Shadows))
		case len(it.Features) > 0 && len(it.Features) != len(r.Models[it.Model].Features):
			return wrong(at("features"), "%d of %d names", len(it.Features), len(r.Models[it.Model].Features))
		}
	}
	return nil
}
