package experiment

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/filter"
	"github.com/millrace/millrace/internal/slot"
)

// Cause is why a unit is in an experiment, or why not. Programs may rely on its values: they
// keep their meaning.
type Cause string

// The causes. "It" is the experiment.
const (
	CauseState     Cause = "state"            // its state gives the unit no variant
	CauseUnfit     Cause = "unfit"            // it does not fit what is known: see Set.Unfit
	CauseFeed      Cause = "feed"             // it does not apply to the feed
	CauseForced    Cause = "forced"           // the unit is in it: it names the unit
	CauseElsewhere Cause = "forced_elsewhere" // another experiment of the layer names the unit
	CauseTaken     Cause = "slot_taken"       // it is a draft and names the unit, but another experiment of the layer uses the unit's slot
	CauseUnit      Cause = "unit"             // there is no unit, such as for a viewer without an id, or the layer divides something else
	CauseHeldOut   Cause = "held_out"         // the layer holds out the slot
	CauseSlot      Cause = "slot"             // the slot is not one of its own
	CauseShare     Cause = "share"            // the slot is its own, but its share does not use that slot yet
	CauseTargeting Cause = "targeting"        // its targeting does not admit the viewer
	CauseDealt     Cause = "dealt"            // the unit is in it by chance
)

// Explanation says why a unit is in an experiment, or why not.
type Explanation struct {
	Experiment string
	Layer      string
	Cause      Cause
	Variant    string // "": the unit is not in the experiment
	Unit       string // "": there is none
	Slot       int    // the unit's slot in the layer; -1 without a unit
	Clause     string // with CauseTargeting, the clause that was not true
	Why        string // the cause in words
}

// Explain says for each experiment of the set, in the order of names, why a viewer who asks for
// a feed is in it or not. It agrees with [Set.Assign].
func (s *Set) Explain(feed string, v *millrace.Viewer) []Explanation {
	return s.explain(feed, v, func(l *layer) string { return l.unitOf(v) }, false)
}

// ExplainEntity is Explain for an entity. It agrees with [Division.Deal].
func (s *Set) ExplainEntity(feed string, e millrace.Entity) []Explanation {
	return s.explain(feed, &millrace.Viewer{ID: string(e)}, func(*layer) string { return string(e) }, true)
}

func (s *Set) explain(feed string, v *millrace.Viewer, unitOf func(*layer) string, ofEntities bool) (all []Explanation) {
	if v == nil {
		v = &millrace.Viewer{}
	}
	v = short(v)
	for _, e := range s.experiments {
		x := Explanation{Experiment: e.Name, Layer: e.Layer, Slot: -1}
		if (e.layer.kind == ofEntity) != ofEntities {
			x.because(CauseUnit, "layer %s divides by %s, which was not asked for", e.Layer, e.layer.Unit)
		} else {
			if x.Unit = unitOf(e.layer); x.Unit != "" {
				x.Slot = e.layer.prefix.Slot(x.Unit)
			}
			x.explain(s, e, feed, v)
		}
		all = append(all, x)
	}
	return all
}

func (x *Explanation) because(c Cause, format string, args ...any) {
	x.Cause, x.Why = c, fmt.Sprintf(format, args...)
}

func (x *Explanation) explain(s *Set, e *compiled, feed string, v *millrace.Viewer) {
	by := e.forcedBy(feed, v.ID)
	holder := s.holder(e.layer, x.Slot, feed)
	if by != nil && by.e.State == Draft && holder != nil {
		by = nil // a draft takes nobody out of another experiment
	}
	switch _, named := e.Forced[v.ID]; {
	case named && e.State == Draft && holder != nil && slices.Contains(e.Feeds, feed):
		x.because(CauseTaken, "it is draft, and takes nobody out of another: slot %d is in use by experiment %s", x.Slot, holder.Name)
	case e.State != Running && (e.State != Draft || by == nil || by.e != e):
		x.because(CauseState, "it is %s", e.State)
		if e.State == Draft {
			x.Why += ", and assigns only those whom it forces"
		}
	case e.unfit != "":
		x.because(CauseUnfit, "nobody gets a variant: %s", e.unfit)
	case !slices.Contains(e.Feeds, feed):
		x.because(CauseFeed, "it applies to %s, not to %q", strings.Join(e.Feeds, ", "), feed)
	case by != nil && by.e == e:
		x.Unit, x.Variant = v.ID, e.arms[by.arm].Variant
		x.because(CauseForced, "the definition names %q for %s%s", v.ID, x.Variant, e.variants[by.arm].Set.weightsText())
	case by != nil:
		x.because(CauseElsewhere, "experiment %s of the same layer names %q", by.e.Name, v.ID)
	case x.Unit == "" && e.layer.kind == ofAttribute:
		x.because(CauseUnit, "layer %s divides by viewer.%s, which is missing, or no text, boolean or whole number", e.Layer, e.layer.attribute)
	case x.Unit == "":
		x.because(CauseUnit, "layer %s divides by %s, and it has no id", e.Layer, e.layer.Unit)
	case slot.In(e.layer.held, x.Slot):
		x.because(CauseHeldOut, "slot %d of layer %s is held out", x.Slot, e.Layer)
	case !slot.In(e.slots, x.Slot):
		x.because(CauseSlot, "slot %d of layer %s is not one of %s", x.Slot, e.Layer, textOf(e.slots))
	case !slot.In(e.used, x.Slot):
		x.because(CauseShare, "slot %d is its own and not in use yet: a share of %d of 10,000 uses %s", x.Slot, e.Share, textOf(e.used))
	default:
		x.explainTargeting(e, v)
	}
}

// holder returns the experiment that uses a slot of a layer and applies to a feed; nil for none,
// and for the slot -1.
func (s *Set) holder(l *layer, at int, feed string) *compiled {
	if at < 0 || l.holds[at] < 0 {
		return nil
	}
	if e := s.experiments[l.holds[at]]; slices.Contains(e.Feeds, feed) {
		return e
	}
	return nil
}

// forcedBy returns the variant that an experiment of e's layer, e itself or another, forces on a
// viewer or entity on a feed; nil for none.
func (e *compiled) forcedBy(feed, id string) *forced {
	for i, f := range e.layer.forced[id] {
		if slices.Contains(f.e.Feeds, feed) {
			return &e.layer.forced[id][i]
		}
	}
	return nil
}

func (x *Explanation) explainTargeting(e *compiled, v *millrace.Viewer) {
	d, err := e.target.judge(v)
	switch {
	case err != nil:
		x.because(CauseTargeting, "slot %d is in use, and the targeting cannot be asked: %v", x.Slot, err)
		return
	case d.Outcome == filter.Kept:
		draw := e.prefix.Slot(x.Unit)
		arm := slot.ArmOf(e.arms, draw)
		x.Variant = e.arms[arm].Variant
		r := drawsOf(e.arms)[arm]
		x.because(CauseDealt, "slot %d is in use (%s), and draw %d is %s's (%d-%d)%s", x.Slot, textOf(e.used), draw, x.Variant, r.From, r.To, e.variants[arm].Set.weightsText())
		return
	}
	x.Clause = e.target.clauses[d.Clause]
	said := map[filter.Outcome]string{filter.False: "is false", filter.NaN: "is false of what is not a number", filter.Null: "has no value", filter.Error: "fails"}
	values := e.target.values(d.Clause, v)
	if d.Outcome == filter.Null && values != "" && !strings.Contains(values, " is missing") {
		said[filter.Null] = "is neither true nor false, for a value of another type"
	}
	x.because(CauseTargeting, "slot %d is in use, and %s %s%s", x.Slot, x.Clause, said[d.Outcome], values)
}

// values returns what a clause has read, such as " (viewer.country = us)"; "" if it has read
// nothing.
func (t *targeting) values(clause int, v *millrace.Viewer) string {
	const mostBytes = 100 // of a value
	var read []string
	for _, o := range t.Operands(clause, nil, 0, nil, v, 0) {
		text := "is missing"
		if o.Value != nil {
			if text = fmt.Sprintf("= %v", o.Value); len(text) > mostBytes {
				text = strings.ToValidUTF8(text[:mostBytes], "") + "..."
			}
		}
		read = append(read, o.Name+" "+text)
	}
	if read == nil {
		return ""
	}
	return " (" + strings.Join(read, ", ") + ")"
}

// drawsOf returns the draws of each arm. An arm of weight 0 has none: its From is above its To.
func drawsOf(arms []slot.Arm) (draws []slot.Range) {
	next := 0
	for _, a := range arms {
		draws = append(draws, slot.Range{From: next, To: next + a.Weight - 1})
		next += a.Weight
	}
	return draws
}
