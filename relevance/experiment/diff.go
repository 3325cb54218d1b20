package experiment

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/slot"
)

// Diff returns sentences on what next changes, for people; none if it changes nothing. For each
// layer and experiment they say first which fields differ, and then which units move to which
// variant, by slots of the layer and draws of the experiment.
func (s *Set) Diff(next *Set) (sentences []string) {
	for _, name := range namesOf(s.layers, next.layers, func(l *layer) string { return l.Name }) {
		for _, text := range diffLayer(s.layer(name), next.layer(name)) {
			sentences = append(sentences, fmt.Sprintf("layer %s: %s", name, text))
		}
	}
	for _, name := range namesOf(s.experiments, next.experiments, func(e *compiled) string { return e.Name }) {
		old, now := s.experiment(name), next.experiment(name)
		texts := diffExperiment(old, now)
		before := old.named()
		for _, n := range now.named() {
			if !slices.ContainsFunc(before, func(b Named) bool { return b.String() == n.String() }) {
				texts = append(texts, n.String())
			}
		}
		if stay := next.stays(now); stay != "" && stay != s.stays(old) {
			texts = append(texts, stay)
		}
		for _, text := range texts {
			sentences = append(sentences, fmt.Sprintf("experiment %s: %s", name, text))
		}
	}
	return sentences
}

func namesOf[T any](old, next []T, name func(T) string) []string {
	all := map[string]bool{}
	for _, x := range slices.Concat(old, next) {
		all[name(x)] = true
	}
	return slices.Sorted(maps.Keys(all))
}

func diffLayer(old, next *layer) (texts []string) {
	switch {
	case old == nil && next.kind == ofEntity:
		return []string{"it is new, of unit entity: no coordinator ramps or guards its experiments, and experiment status does not compare them, for viewers are what is counted"}
	case old == nil:
		return []string{fmt.Sprintf("it is new, of unit %s", next.Unit)}
	case next == nil:
		return []string{"it is removed"}
	}
	texts = written(texts, "salt", old.Salt, next.Salt)
	texts = written(texts, "unit", old.Unit, next.Unit)
	if old.Salt != next.Salt || old.Unit != next.Unit {
		texts = append(texts, "every unit falls into another slot")
	}
	return written(texts, "holdout", textOf(old.held), textOf(next.held))
}

// written adds a text on a field if it differs. "" is shown as none.
func written(texts []string, what, old, next string) []string {
	if old == next {
		return texts
	}
	or := func(s string) string {
		if s == "" {
			return "none"
		}
		return s
	}
	return append(texts, fmt.Sprintf("%s %s → %s", what, or(old), or(next)))
}

func diffExperiment(old, next *compiled) (texts []string) {
	switch {
	case old == nil:
		texts = append(texts, fmt.Sprintf("it is new, %s", next.State))
	case next == nil:
		texts = append(texts, fmt.Sprintf("it is removed, which was %s", old.State))
	default:
		texts = diffWritten(old, next)
	}
	redealt, moves := movesBetween(old, next)
	if redealt {
		texts = append(texts, "every unit is dealt anew: of those below, who came in before comes in by chance alone")
	}
	for _, m := range moves {
		m.targeted = cmp.Or(next, old).target != nil
		texts = append(texts, m.String())
	}
	switch named := old != nil && next != nil && !maps.Equal(old.Forced, next.Forced); {
	case len(texts) == 0 || len(moves) > 0:
	case named:
		texts = append(texts, "nobody else moves")
	default:
		texts = append(texts, "no unit moves")
	}
	return texts
}

func diffWritten(old, next *compiled) (texts []string) {
	texts = written(texts, "state", string(old.State), string(next.State))
	texts = written(texts, "layer", old.Layer, next.Layer)
	texts = written(texts, "feeds", strings.Join(sorted(old.Feeds), ", "), strings.Join(sorted(next.Feeds), ", "))
	texts = written(texts, "slots", textOf(old.slots), textOf(next.slots))
	texts = written(texts, "share", fmt.Sprint(old.Share), fmt.Sprint(next.Share))
	texts = written(texts, "monitored", fmt.Sprint(old.Monitored), fmt.Sprint(next.Monitored))
	texts = written(texts, "ramp", old.Ramp.text(), next.Ramp.text())
	texts = written(texts, "guards", old.Guards.text(), next.Guards.text())
	texts = written(texts, "outcomes", old.Outcomes.text(), next.Outcomes.text())
	texts = written(texts, "features", fmt.Sprint(old.Features), fmt.Sprint(next.Features))
	texts = written(texts, "targeting", strings.Join(old.clauses(), " && "), strings.Join(next.clauses(), " && "))
	variants := func(e *compiled) map[string]string {
		all := map[string]string{}
		for _, v := range e.variants {
			all[v.Name] = fmt.Sprintf("weight %d, sets %s", v.Weight, v.Set.String())
		}
		return all
	}
	texts = writtenEach(texts, "variant", variants(old), variants(next))
	return writtenEach(texts, "forced", old.Forced, next.Forced)
}

// writtenEach does what written does, for each name of two maps.
func writtenEach(texts []string, what string, old, next map[string]string) []string {
	both := maps.Clone(next)
	if both == nil {
		both = map[string]string{}
	}
	maps.Copy(both, old)
	for _, name := range slices.Sorted(maps.Keys(both)) {
		texts = written(texts, what+" "+name, old[name], next[name])
	}
	return texts
}

// move says which units change from one variant to another: the units in slots whose draw is in
// draws.
type move struct {
	slots    []slot.Range
	draws    slot.Range
	from, to string // variants; "": none
	targeted bool   // only units that the targeting admits move
}

func (m move) String() string {
	of := "all units"
	if m.targeted {
		of = "those whom the targeting admits"
	}
	who := fmt.Sprintf("slots %s, draws %d-%d (%.4g %% of %s)", textOf(m.slots), m.draws.From, m.draws.To,
		100*Probability{count(m.slots), m.draws.To - m.draws.From + 1}.Float64(), of)
	switch {
	case m.from == "":
		return who + " come to " + m.to
	case m.to == "":
		return who + " leave " + m.from
	}
	return who + " move from " + m.from + " to " + m.to
}

// movesBetween returns the moves of units from an old definition of an experiment to the next
// one; each of the two may be nil. redealt says that the layer has another name, salt or unit:
// then all units leave, and others come.
func movesBetween(old, next *compiled) (redealt bool, moves []move) {
	was, is := old.serving(), next.serving()
	if was == nil && is == nil {
		return false, nil
	}
	var stay []slot.Range
	if was != nil && is != nil {
		redealt = old.layer.Name != next.layer.Name || old.layer.Salt != next.layer.Salt || old.layer.Unit != next.layer.Unit
		if !redealt {
			stay = minus(was, minus(was, is))
		}
	}
	if out := minus(was, stay); out != nil {
		for i, d := range drawsOf(old.arms) {
			moves = appendMove(moves, move{slots: out, draws: d, from: old.arms[i].Variant})
		}
	}
	if in := minus(is, stay); in != nil {
		for i, d := range drawsOf(next.arms) {
			moves = appendMove(moves, move{slots: in, draws: d, to: next.arms[i].Variant})
		}
	}
	if stay == nil {
		return redealt, moves
	}
	before, now := drawsOf(old.arms), drawsOf(next.arms)
	for i, b := range before {
		for j, n := range now {
			if from, to := old.arms[i].Variant, next.arms[j].Variant; from != to {
				moves = appendMove(moves, move{slots: stay, draws: slot.Range{From: max(b.From, n.From), To: min(b.To, n.To)}, from: from, to: to})
			}
		}
	}
	return redealt, moves
}

// serving returns the slots whose units get a variant by chance; nil for none, and for a nil e.
func (e *compiled) serving() []slot.Range {
	if e == nil || e.State != Running || e.unfit != "" {
		return nil
	}
	return e.used
}

func appendMove(moves []move, m move) []move {
	if m.draws.From > m.draws.To {
		return moves
	}
	return append(moves, m)
}
