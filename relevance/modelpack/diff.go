package modelpack

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/millrace/millrace/relevance"
)

// Change is one thing in which two models differ.
type Change struct {
	What   string `json:"what"`           // version, scorer, feature, bias, weight, table, trees or scores
	Name   string `json:"name,omitempty"` // of the feature, the weight or the table
	Was    string `json:"was,omitempty"`  // empty: it is new
	Is     string `json:"is,omitempty"`   // empty: it is gone
	*Drift        // of scores; nil for anything else
}

// Drift is how far scores move over the golden rows whose features both models
// have.
type Drift struct {
	Rows  int     `json:"rows"`
	Moved int     `json:"moved"`  // rows whose score differs
	Mean  float64 `json:"mean"`   // distance of the two scores, over all rows
	Most  float64 `json:"most"`   // the largest distance
	Lost  int     `json:"in_one"` // rows that have a score in one model only
}

// String tells the change in a line.
func (c Change) String() string {
	subject := c.What
	if c.Name != "" {
		subject += " " + c.Name
	}
	switch {
	case c.Drift != nil:
		return subject + ": " + c.Drift.String()
	case c.Was == "":
		return fmt.Sprintf("%s: new: %s", subject, c.Is)
	case c.Is == "":
		return subject + ": gone"
	case c.What == "trees":
		return fmt.Sprintf("%s: %s, were %s", subject, c.Is, c.Was)
	}
	return fmt.Sprintf("%s: %s, was %s", subject, c.Is, c.Was)
}

func (d *Drift) String() string {
	s := fmt.Sprintf("%d of %d golden rows move, by %.3g on average and %.3g at most", d.Moved, d.Rows, d.Mean, d.Most)
	if d.Lost > 0 {
		s += fmt.Sprintf("; %d more have a score in one model only", d.Lost)
	}
	return s
}

// Diff returns in what b differs from a: version, features, parameters, and how far
// the scores of the golden rows move. It is empty if no difference was found.
func Diff(a, b *relevance.Model, golden []Golden) []Change {
	var out []Change
	if a.Version() != b.Version() {
		out = append(out, Change{What: "version", Was: a.Version(), Is: b.Version()})
	}
	if x, y := a.Spec().Scorer(), b.Spec().Scorer(); x != y {
		out = append(out, Change{What: "scorer", Was: x, Is: y})
	}
	was, is := sources(a), sources(b)
	for _, name := range union(was, is) {
		if was[name] != is[name] {
			out = append(out, Change{What: "feature", Name: name, Was: was[name], Is: is[name]})
		}
	}
	out = append(out, diffParameters(a.Parameters(), b.Parameters())...)
	if d := drift(a, b, golden); d.Moved+d.Lost > 0 {
		out = append(out, Change{What: "scores", Drift: d})
	}
	return out
}

// sources returns the expression of each feature, with single spaces.
func sources(m *relevance.Model) map[string]string {
	s := map[string]string{}
	for _, f := range m.Spec().Features {
		s[f.Name] = strings.Join(strings.Fields(f.Source), " ")
	}
	return s
}

func union[V any](a, b map[string]V) []string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return slices.Sorted(maps.Keys(all))
}

func diffParameters(a, b *relevance.Parameters) []Change {
	var out []Change
	if a.Bias != b.Bias {
		out = append(out, Change{What: "bias", Was: fmt.Sprint(a.Bias), Is: fmt.Sprint(b.Bias)})
	}
	for _, name := range union(a.Weights, b.Weights) {
		x, old := a.Weights[name]
		y, now := b.Weights[name]
		if old && now && x.String() != y.String() {
			out = append(out, Change{What: "weight", Name: name, Was: x.String(), Is: y.String()})
		}
	}
	for _, name := range union(a.Tables, b.Tables) {
		c := Change{What: "table", Name: name}
		if t, ok := a.Tables[name]; ok {
			c.Was = t.String()
		}
		if t, ok := b.Tables[name]; ok {
			c.Is = t.String()
		}
		if c.Was != c.Is {
			out = append(out, c)
		}
	}
	if a.Forest != nil && b.Forest != nil && a.Forest.Trees() != b.Forest.Trees() {
		out = append(out, Change{What: "trees", Was: fmt.Sprint(a.Forest.Trees()), Is: fmt.Sprint(b.Forest.Trees())})
	}
	return out
}

// drift scores the features of golden rows by both models. It skips rows whose features do
// not fit one of them.
func drift(a, b *relevance.Model, golden []Golden) *Drift {
	d, sum := &Drift{}, 0.0
	for _, g := range golden {
		x, err := featureValues(a, g.Features)
		if err != nil {
			continue
		}
		y, err := featureValues(b, g.Features)
		if err != nil {
			continue
		}
		d.Rows++
		was, is := a.ScoreFeatures(x)[0], b.ScoreFeatures(y)[0]
		switch by := math.Abs(is - was); {
		case math.IsNaN(was) != math.IsNaN(is):
			d.Lost++
		case by > 0:
			d.Moved++
			sum += by
			d.Most = max(d.Most, by)
		}
	}
	if d.Rows > 0 {
		d.Mean = sum / float64(d.Rows)
	}
	return d
}
