package relevance

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Diff describes what b changes of a, a line a change: version, features,
// parameters, and how far the scores of a's golden rows move. No lines: the
// models compute the same.
func Diff(a, b *Model, golden []Golden) []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if a.Version() != b.Version() {
		add("version: %s, was %s", b.Version(), a.Version())
	}
	if x, y := a.spec.Scorer(), b.spec.Scorer(); x != y {
		add("scorer: %s, was %s", y, x)
	}
	was, is := sources(a), sources(b)
	for _, name := range union(was, is) {
		x, old := was[name]
		y, now := is[name]
		switch {
		case !old:
			add("feature %s: new: %s", name, y)
		case !now:
			add("feature %s: gone", name)
		case x != y:
			add("feature %s: %s, was %s", name, y, x)
		}
	}
	out = append(out, diffParameters(&a.params, &b.params)...)
	if moved := drift(a, b, golden); moved != "" {
		add("%s", moved)
	}
	return out
}

func sources(m *Model) map[string]string {
	s := map[string]string{}
	for _, f := range m.spec.Features {
		s[f.Name] = strings.Join(strings.Fields(f.Source), " ")
	}
	return s
}

func union[V any](a, b map[string]V) []string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return slices.Sorted(maps.Keys(all))
}

func diffParameters(a, b *Parameters) []string {
	var out []string
	if a.Bias != b.Bias {
		out = append(out, fmt.Sprintf("bias: %v, was %v", b.Bias, a.Bias))
	}
	for _, name := range union(a.Weights, b.Weights) {
		x, old := a.Weights[name]
		y, now := b.Weights[name]
		if old && now && x.String() != y.String() {
			out = append(out, fmt.Sprintf("weight %s: %s, was %s", name, y, x))
		}
	}
	for _, name := range union(a.Tables, b.Tables) {
		x, y := a.Tables[name], b.Tables[name]
		if x.String() != y.String() {
			out = append(out, fmt.Sprintf("table %s: %s, was %s", name, y, x))
		}
	}
	if a.Forest != nil && b.Forest != nil && a.Forest.Trees() != b.Forest.Trees() {
		out = append(out, fmt.Sprintf("trees: %d, were %d", b.Forest.Trees(), a.Forest.Trees()))
	}
	return out
}

// String prints a weight as a spec writes it.
func (w Weight) String() string {
	if w.Table != nil {
		return w.Table.String()
	}
	return fmt.Sprint(w.Scalar)
}

// String prints a table as a spec writes it, keys ascending.
func (t Table) String() string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(t.Strings)) {
		parts = append(parts, fmt.Sprintf("%s: %v", k, t.Strings[k]))
	}
	for i, k := range t.Numbers {
		parts = append(parts, fmt.Sprintf("%v: %v", k, t.Values[i]))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// drift tells how far scores move over the golden rows whose features both
// models have.
func drift(a, b *Model, golden []Golden) string {
	n, moved, lost, sum, most := 0, 0, 0, 0.0, 0.0
	for _, g := range golden {
		x, err := a.featureValues(g.Features)
		if err != nil {
			continue
		}
		y, err := b.featureValues(g.Features)
		if err != nil {
			continue
		}
		n++
		was, is := a.ScoreFeatures(x), b.ScoreFeatures(y)
		switch by := math.Abs(is - was); {
		case math.IsNaN(was) != math.IsNaN(is):
			lost++
		case by > 0:
			moved++
			sum += by
			most = max(most, by)
		}
	}
	if moved+lost == 0 {
		return ""
	}
	s := fmt.Sprintf("scores: %d of %d golden rows move, by %.3g on average and %.3g at most", moved, n, sum/float64(n), most)
	if lost > 0 {
		s += fmt.Sprintf("; %d more have a score in one model only", lost)
	}
	return s
}
