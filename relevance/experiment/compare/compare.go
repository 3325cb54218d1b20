// Package compare compares the variants of an experiment by the exposures of its
// units, most often viewers: what each answer showed. It may be asked at any time:
// the chance that anything it says is ever wrong has a stated bound, over all looks
// together (package stats).
//
// A unit counts once, by its earliest answer in time: units are independent of
// each other, and the answers of one unit are not. Only first pages count, since
// later pages may rightly be empty. The order of the topic is not that of the
// answers: several brokers write to it, and each writes what it has gathered when
// Kafka was away. So an earlier answer may come later, and takes the place of the
// one that counted.
//
// Answers of units that were forced into a variant are only counted, since their
// variant is not chance. A unit that has met two variants stays with its first,
// and [Report.Crossed] counts it: if that is more than a few, something else than
// the hash assigns variants. An answer with a variant that the hash cannot have
// dealt the unit (see [experiment.Defined.Deals]) does not count: whoever may
// write to the topic can write anything.
//
// A unit also counts once for an action. For two models that draft a page together,
// [Draft] says whose items are preferred.
package compare

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/outcome"
	"github.com/millrace/millrace/internal/stats"
	"github.com/millrace/millrace/relevance/experiment"
)

// MaxUnits bounds the units of an experiment that are kept; answers of further units are
// counted as [Report.Beyond]. A unit takes some 130 bytes, however long its name is, and
// some 40 more once it has done something.
const MaxUnits = 5_000_000

// horizon is the number of units, of two arms together, at which intervals are narrowest.
const horizon = 20_000

// Tally counts what the units of an experiment have met so far. An arm is a variant
// with its units. A Tally has no lock.
type Tally struct {
	name    string
	deals   func(unit, variant, checksum string) bool
	arms    []arm     // sorted by variant
	shares  []float64 // the weights of the arms
	dealing int       // how many arms have a weight
	control int       // index in arms
	units   map[unitKey]met
	named   []experiment.Named
	actions []string
	did     map[unitKey]did
	room    func() bool     // see Within; nil: there is room
	acted   []millrace.Time // by action: the newest answer with an item that the action was taken with
	basis   Basis
	since   millrace.Time // see CountSince
	steps   int32         // how often since has changed
	report  Report

	credited, most int // items in arm.pages, and how many there may be
}

// did is what a unit did with what an arm showed it. It counts for one arm: the first with
// whose items it did anything.
type did struct {
	number  int32  // of the unit, from 0 in the order in which units came
	arm     int32  // index in Tally.arms
	actions uint16 // a bit for each of Tally.actions
}

// met is what a unit met first, and where it is counted.
type met struct {
	arm     int32 // index in Tally.arms; ^arm once it has met another arm
	step    int32 // Tally.steps when it was counted
	at      millrace.Time
	outside bool  // no answer of it is evidence: it only counts as dealt its arm
	refused bool  // it got a refusal
	partial bool  // the answer lacked timelines
	nan     bool  // an item's score is no finite number
	items   int32 // how many
	// The values whose means are compared, see Arm and What; NaN if a value is not known.
	millis, cost, share, types, missing float64
}

// counts reports whether the unit counts for an arm: for the first arm that it met, if it
// has an answer that is evidence.
func (m met) counts(arm int) bool { return !m.outside && (m.arm == int32(arm) || m.arm == ^int32(arm)) }

// arm is what the units of a variant have met.
type arm struct {
	Arm
	dealt                                      int64 // units, with or without an answer that is evidence
	items, millis, share, types, cost, missing stats.Mean

	times  stats.Quantiles   // of millis
	drafts []string          // the two models, if the variant lets them draft pages
	pages  []map[string]page // what was done with their drafts, by action and the answer's id; nil: drafts are not credited
}

// New returns the tally of an experiment, whose arms are compared with its control
// (see [experiment.Experiment.Control]).
func New(d experiment.Defined) *Tally {
	t := &Tally{name: d.Experiment.Name, deals: d.Deals(), named: d.Named, units: map[unitKey]met{}, did: map[unitKey]did{}, most: MaxCredited}
	t.report.Units = "viewers"
	if attribute, is := strings.CutPrefix(d.Rule.Unit, "attribute "); is {
		t.report.Units = "values of " + attribute
	}
	if o := d.Experiment.Outcomes; o != nil {
		t.actions, t.acted = o.Actions, make([]millrace.Time, len(o.Actions))
	}
	control := d.Experiment.Control()
	for i, a := range d.Rule.Arms { // by name
		made := arm{Arm: Arm{Variant: a.Variant, Weight: float64(a.Weight) / 10_000, Did: make([]int64, len(t.actions))}}
		if j := slices.IndexFunc(d.Experiment.Variants, func(v experiment.Variant) bool { return v.Name == a.Variant }); j >= 0 {
			made.drafts = d.Experiment.Variants[j].Set.Interleave
		}
		t.arms = append(t.arms, made)
		t.shares = append(t.shares, float64(a.Weight))
		if a.Variant == control {
			t.control = i
		}
		if a.Weight > 0 {
			t.dealing++
		}
	}
	return t
}

// CountSince sets [Arm.Fresh] to 0. From now on it counts the units whose first
// answer is of that time or later, and is added after this call. The same time again
// changes nothing.
func (t *Tally) CountSince(at millrace.Time) {
	if at == t.since {
		return
	}
	t.since = at
	t.steps++
	for i := range t.arms {
		t.arms[i].Fresh = 0
	}
}

// Leaves sets the units that experiments name now, of those whom the hash deals a variant.
// A named unit gets the variant of whoever names it, so it is missing from its variant.
// That says nothing against how units fit the weights.
func (t *Tally) Leaves(named []experiment.Named) { t.named = named }

// Within has the tally call room before it keeps a unit that it does not know. If room
// returns false the unit is not kept.
func (t *Tally) Within(room func() bool) { t.room = room }

// Units returns how many units the tally keeps: those that met something plus those that
// did something. A unit that has done both counts twice, as it takes memory twice.
func (t *Tally) Units() int { return len(t.units) + len(t.did) }

// full reports whether no further unit may be kept beside kept others.
func (t *Tally) full(kept int) bool { return kept >= MaxUnits || t.room != nil && !t.room() }

// On sets the basis: of the answers that are added after this call, only those that it has
// are evidence.
func (t *Tally) On(b Basis) { t.basis = b }

// Add takes an exposure. It does nothing if that is of other experiments. Of a unit's
// first pages the earliest counts, in whatever order they come.
func (t *Tally) Add(r *exposure.Record) {
	i := slices.IndexFunc(r.Experiments, func(e exposure.Experiment) bool { return e.Experiment == t.name })
	if i < 0 {
		return
	}
	e := &r.Experiments[i]
	at, known := t.arm(e.Variant)
	switch deals := known && (e.Forced || t.deals(e.Unit, e.Variant, e.Checksum)); {
	case deals && t.otherwise(e, at):
		t.report.Otherwise++
		return
	case !t.basis.Has(r):
		if deals && !e.Forced && r.ServedBefore == 0 {
			t.dealt(e.Unit, at, r.Time)
			t.report.other.add(r)
		}
		return
	case !known:
		t.report.Unknown++
		return
	case !deals:
		t.report.Misdealt++
		return
	}
	if t.report.First == 0 || r.Time < t.report.First {
		t.report.First = r.Time
	}
	t.report.Last = max(t.report.Last, r.Time)
	a := &t.arms[at]
	if e.Forced {
		a.Forced++
		return
	}
	a.Answers++
	a.rankedBy(r)
	if len(a.drafts) > 0 && r.Refusal == "" && (r.Interleaving == nil || r.Interleaving.Experiment != t.name) {
		a.Undrafted++
	}
	if r.ServedBefore > 0 {
		return
	}
	a.Latest = max(a.Latest, r.Time)
	unit := keyOf(e.Unit)
	was, again := t.units[unit]
	switch {
	case again && was.arm != int32(at):
		if was.arm >= 0 { // count the unit once
			t.report.Crossed++
			was.arm = ^was.arm
			t.units[unit] = was
		}
		return
	case again && was.outside:
		was.step = t.steps
	case again && r.Time >= was.at:
		return
	case again:
		a.count(&was, -1)
		if was.step == t.steps && was.at >= t.since {
			a.Fresh--
		}
	case t.full(len(t.units)):
		t.report.Beyond++
		return
	default:
		was.step = t.steps
		a.dealt++
	}
	if did := t.did[unit]; (!again || was.outside) && did.arm == int32(at) { // it acted before its first answer came here
		for action := range t.actions {
			a.Did[action] += int64(did.actions >> action & 1)
		}
	}
	m, plausible := metBy(r)
	if !plausible {
		t.report.Implausible++
	}
	m.arm, m.step = int32(at), was.step
	a.count(&m, 1)
	if m.step == t.steps && m.at >= t.since {
		a.Fresh++
	}
	t.units[unit] = m
}

// otherwise reports whether an answer's variant was dealt by other chances than those of
// now, as while the experiment was monitored. The units of then and of now together would
// fit neither chances. If fewer than two arms have a weight now it returns false: then
// units are not compared with weights, and answers of then are all that is known.
func (t *Tally) otherwise(e *exposure.Experiment, at int) bool {
	return t.dealing > 1 && !e.Forced && e.ProbabilityInside > 0 && math.Abs(e.ProbabilityInside-t.arms[at].Weight) > 1e-9
}

// dealt notes that a unit was dealt an arm, by an answer that is no evidence. Such units
// count for whether units fit the weights: the hash deals an arm whatever ranks.
func (t *Tally) dealt(unit string, at int, when millrace.Time) {
	key := keyOf(unit)
	if _, again := t.units[key]; again {
		return
	}
	if t.full(len(t.units)) {
		t.report.Beyond++
		return
	}
	t.units[key] = met{arm: int32(at), at: when, outside: true}
	t.arms[at].dealt++
}

// arm returns the index of a variant in arms.
func (t *Tally) arm(variant string) (i int, known bool) {
	return slices.BinarySearchFunc(t.arms, variant, func(a arm, name string) int { return cmp.Compare(a.Variant, name) })
}

// Did takes an act: what a unit did with an item that it was shown. It does nothing if that
// was in other experiments. The act counts as soon as a first page of the unit counts.
// Otherwise a unit whose pages are all from before the evidence begins would be among those
// who acted, and not among those who could. The same act again changes nothing.
func (t *Tally) Did(a *outcome.Act) {
	action := slices.Index(t.actions, a.Action)
	i := slices.IndexFunc(a.Experiments, func(e exposure.Experiment) bool { return e.Experiment == t.name })
	if action < 0 || i < 0 || a.Experiments[i].Forced {
		return
	}
	e := &a.Experiments[i]
	at, known := t.arm(e.Variant)
	if !known || !t.deals(e.Unit, e.Variant, e.Checksum) || t.otherwise(e, at) {
		return
	}
	t.acted[action] = max(t.acted[action], a.Shown)
	unit := keyOf(e.Unit)
	did, again := t.did[unit]
	if !again {
		if t.full(len(t.did)) {
			t.report.BeyondActs++
			return
		}
		did.number, did.arm = int32(len(t.did)), int32(at)
	}
	arm := &t.arms[at]
	if bit := uint16(1) << action; did.actions&bit == 0 && did.arm == int32(at) {
		did.actions |= bit
		if m, met := t.units[unit]; met && m.counts(at) {
			arm.Did[action]++
		}
		t.did[unit] = did
	}
	if arm.pages != nil && a.Drafted == t.name {
		t.credit(arm, action, did.number, a)
	}
}

const (
	// maxMillis is an hour, longer than anybody waits for an answer.
	maxMillis = 3_600_000
	// maxCores is more than the number of cores that score one answer.
	maxCores = 10_000
)

// metBy returns what a unit meets by an answer. A time or a cost that no answer can take is
// not plausible, and counts as not known: a single one would outweigh all others, and could
// decide or blind a guard.
func metBy(r *exposure.Record) (m met, plausible bool) {
	none := math.NaN()
	m, plausible = met{at: r.Time, millis: r.Millis, refused: r.Refusal != "", cost: none, share: none, types: none, missing: none}, true
	if m.millis > maxMillis {
		m.millis, plausible = none, false
	}
	if m.refused {
		return m, plausible
	}
	m.partial = r.TimelinesAnswered < r.TimelinesAsked
	m.nan = slices.ContainsFunc(r.Items, func(it exposure.Item) bool { return !it.Finite() })
	m.items = int32(len(r.Items))
	switch cost := float64(r.ScoringNanos) / 1000; {
	case cost < 0 || cost > min(r.Millis, maxMillis)*1000*maxCores:
		plausible = false
	case cost > 0: // 0: nodes of an earlier version do not tell their cost
		m.cost = cost
	}
	if len(r.Items) > 0 {
		m.share = largest(r.Items, func(it *exposure.Item) string { return it.Entity })
		m.types = largest(r.Items, func(it *exposure.Item) string { return it.Type })
	}
	if missing, known := lacking(r.Items); known {
		m.missing = missing
	}
	return m, plausible
}

// count counts what a unit met if sign is 1, and takes it out again if sign is -1.
func (a *arm) count(m *met, sign int64) {
	mean := func(of *stats.Mean, x float64) {
		switch {
		case math.IsNaN(x): // it is not known
		case sign > 0:
			of.Add(x)
		default:
			of.Remove(x)
		}
	}
	a.Units += sign
	switch {
	case math.IsNaN(m.millis):
	case sign > 0:
		a.times.Add(m.millis)
	default:
		a.times.Remove(m.millis)
	}
	mean(&a.millis, m.millis)
	if m.refused {
		a.Refused += sign
		return
	}
	if m.partial {
		a.Partial += sign
	}
	if m.items == 0 {
		a.Empty += sign
	}
	if m.nan {
		a.NaN += sign
	}
	mean(&a.items, float64(m.items))
	mean(&a.cost, m.cost)
	mean(&a.share, m.share)
	mean(&a.types, m.types)
	mean(&a.missing, m.missing)
}

// lacking returns which part of the features of items has no value. It is not known if
// no item has features.
func lacking(items []exposure.Item) (part float64, known bool) {
	all, none := 0, 0
	for i := range items {
		for _, v := range items[i].Features {
			if all++; v.IsText && v.Text == "" || !v.IsText && math.IsNaN(v.Number) {
				none++
			}
		}
	}
	return float64(none) / float64(max(all, 1)), all > 0
}

// largest returns the share of items that the most frequent name has.
func largest(items []exposure.Item, name func(*exposure.Item) string) float64 {
	most, of := 0, map[string]int{}
	for i := range items {
		n := name(&items[i])
		of[n]++
		most = max(most, of[n])
	}
	return float64(most) / float64(len(items))
}

// Arm is what the units of a variant have met, each counted once by its first
// page.
type Arm struct {
	Variant string
	Weight  float64    // its part of the experiment's units, 0 to 1, by the definition
	Units   int64      // units that count for it
	Fresh   int64      // of Units, those since [Tally.CountSince]
	Answers int64      // answers that are evidence, all pages, without forced ones
	Forced  int64      // answers of units that were forced, which count nowhere else
	Refused int64      // units that got a refusal
	Empty   int64      // units that got no item, and no refusal
	Partial int64      // units whose answer lacked timelines
	NaN     int64      // units that got an item whose score is no finite number
	Items   float64    // mean number of items of an answer
	Share   float64    // mean of the largest share of items that one entity has, of answers with items
	Millis  [3]float64 // quantiles 0.5, 0.95 and 0.99 of the milliseconds that an answer took
	Cost    float64    // mean of what index nodes took to score the candidates of an answer, in microseconds
	Did     []int64    // of Units, those that took an action, by Report.Actions
	// Undrafted is how many answers two models were to draft, but only the first
	// ranked: no replica that was asked could rank by the second.
	Undrafted int64
	Latest    millrace.Time // the newest first page; 0: none has come
	// Ranked is the versions of models that ranked its answers, all pages, in the order
	// in which they first came. A variant that has several versions of a model has
	// changed meanwhile, and the other fields pool them.
	Ranked []Ranked
}

// Ranked is a version of a model that has ranked answers of a variant.
type Ranked struct {
	Model, Version string
	Answers        int64
	First, Last    millrace.Time
}

// maxRanked bounds the versions in Arm.Ranked; further versions are left out.
const maxRanked = 50

// rankedBy counts the versions of models that have ranked an answer.
func (a *Arm) rankedBy(r *exposure.Record) {
	for i := range r.Models {
		m := &r.Models[i]
		same := func(x Ranked) bool { return x.Model == m.Name && x.Version == m.Version }
		if slices.ContainsFunc(r.Models[:i], func(x exposure.Model) bool { return x.Name == m.Name && x.Version == m.Version }) {
			continue // the same version with other weights: count the answer once
		}
		at := slices.IndexFunc(a.Ranked, same)
		if at < 0 && len(a.Ranked) < maxRanked {
			at = len(a.Ranked)
			a.Ranked = append(a.Ranked, Ranked{Model: m.Name, Version: m.Version, First: r.Time})
		}
		if at >= 0 {
			x := &a.Ranked[at]
			x.Answers, x.First, x.Last = x.Answers+1, min(x.First, r.Time), max(x.Last, r.Time)
		}
	}
}

// Changed returns a line for each model of which several versions have ranked answers of
// the variant; nil if there is none.
func (a *Arm) Changed() (all []string) {
	for i, x := range a.Ranked {
		of := slices.DeleteFunc(slices.Clone(a.Ranked), func(y Ranked) bool { return y.Model != x.Model })
		if len(of) < 2 || slices.IndexFunc(a.Ranked, func(y Ranked) bool { return y.Model == x.Model }) < i {
			continue
		}
		var versions []string
		for _, y := range of {
			versions = append(versions, fmt.Sprintf("%s %s (%d answers since %s)", y.Model, y.Version, y.Answers, y.First))
		}
		all = append(all, fmt.Sprintf("%s has been ranked by %s", a.Variant, strings.Join(versions, " and ")))
	}
	return all
}

// Report is how the arms do.
type Report struct {
	Arms        []Arm         // by variant
	Units       string        // what units are, in the plural: viewers, or values of an attribute of theirs
	Control     string        // the variant that others are compared with
	First, Last millrace.Time // of answers that are evidence
	// Split is whether units fit the weights. It counts all units that were dealt an arm.
	// evidence is the same for units with an answer that is evidence. Both are nil if
	// fewer than two arms have a weight: then nothing could fail to fit.
	Split, evidence *stats.Split

	other      byBroker           // first pages that are no evidence
	Crossed    int64              // units that met two variants
	Beyond     int64              // answers of units that are not kept, see MaxUnits
	Unknown    int64              // answers of variants that the definition does not have
	Named      []experiment.Named // see Tally.Leaves
	Misdealt   int64              // answers of units that the hash deals another variant
	Otherwise  int64              // answers whose variants were dealt by other chances than now
	BeyondActs int64              // acts of units, or with items of drafts, that are not kept: see MaxUnits and MaxCredited
	OtherTeams int64              // acts with drafts of other models than the definition's
	Actions    []string           // of the definition's outcomes
	Acted      []millrace.Time    // by action: the newest answer with an item that it was taken with; 0: none
	Effects    []Effect           // of each variant but the control
	Drafts     []Draft            // empty unless they are credited
	// Implausible is how many first pages have a time or cost that no answer takes. That
	// value counts as not known.
	Implausible int64
}

// Effect is how a variant differs from the control.
type Effect struct {
	Variant string
	What    What
	stats.Effect
	// Same says that Value is the difference for every unit, since all units of a variant
	// have the same value. There is no interval then.
	Same bool
}

// Unknown reports whether nothing can be said of the effect yet.
func (e *Effect) Unknown() bool {
	return math.IsNaN(e.Value) || math.IsInf(e.Low, -1) || math.IsInf(e.High, 1) && e.Low == 0
}

// What is what an effect compares. The first four, those of [Did] and the cost are
// multiples of the control's value; the others are differences of means, or of a
// percentile.
type What string

// What effects compare; see the fields of [Arm].
const (
	Refused What = "refused"
	Empty   What = "empty"
	Partial What = "partial"
	NaN     What = "nan"
	Items   What = "items"
	Share   What = "share of one entity"
	Millis  What = "milliseconds"
	// P99 is the 99th percentile of the milliseconds.
	P99       What = "p99 milliseconds"
	Cost      What = "cost"
	TypeShare What = "share of one type"
	// Missing is the part of the features of an answer's items that have no value.
	Missing What = "features missing"
)

// didPrefix is the beginning of a What that compares an action.
const didPrefix = "did "

// Did returns the What that compares how many units took an action.
func Did(action string) What { return What(didPrefix + action) }

// Rate reports whether an effect is a multiple and not a difference.
func (w What) Rate() bool {
	return w == Refused || w == Empty || w == Partial || w == NaN || w == Cost || strings.HasPrefix(string(w), didPrefix)
}

// counted reports whether an effect compares numbers of units, as if every unit that was
// dealt an arm had an answer that is evidence.
func (w What) counted() bool { return w == Refused || w == Empty || w == Partial || w == NaN }

// effects is how many effects a variant has, beside those of actions.
const effects = 11

// Report returns how the arms do. The chance that any of the intervals is ever
// wrong, over all looks together, is at most alpha.
func (t *Tally) Report(alpha float64) (Report, error) {
	r := t.report
	r.other.n = maps.Clone(r.other.n) // the tally goes on to change its own
	r.Named = t.named
	r.Actions, r.Acted = t.actions, slices.Clone(t.acted)
	var counts, dealt, named []int64
	var shares []float64
	for i := range t.arms {
		a := &t.arms[i]
		out := a.Arm
		out.Did, out.Ranked = slices.Clone(a.Did), slices.Clone(a.Ranked)
		out.Items, out.Share, out.Cost = a.items.Mean, a.share.Mean, a.cost.Mean
		if a.times.N() > 0 {
			copy(out.Millis[:], a.times.At(0.5, 0.95, 0.99))
		}
		r.Arms = append(r.Arms, out)
		if t.shares[i] > 0 {
			counts, dealt, shares = append(counts, a.Units), append(dealt, a.dealt), append(shares, t.shares[i])
			named = append(named, 0)
			for _, n := range t.named {
				if n.Variant == a.Variant {
					named[len(named)-1] += int64(len(n.Units))
				}
			}
		}
	}
	if len(t.arms) == 0 {
		return r, nil
	}
	r.Control = t.arms[t.control].Variant
	var err error
	if r.Split, err = splitOf(withNamed(dealt, named, shares), shares); err != nil {
		return r, err
	}
	if r.evidence, err = splitOf(withNamed(counts, named, shares), shares); err != nil {
		return r, err
	}
	others, drafts := len(t.arms)-1, 0
	for i := range t.arms {
		if t.arms[i].pages != nil {
			drafts++
		}
	}
	intervals := others*(effects+len(t.actions)) + drafts*len(t.actions)
	if intervals == 0 {
		return r, nil
	}
	s, err := stats.NewSequence(alpha/float64(intervals), horizon)
	if err != nil {
		return r, err
	}
	for i := range t.arms {
		if err := t.drafted(&r, s, &t.arms[i]); err != nil {
			return r, err
		}
		if i == t.control {
			continue
		}
		if err := t.beside(&r, s, i); err != nil {
			return r, err
		}
	}
	return r, nil
}

// splitOf returns how counts fit the shares of the arms that have a weight; nil if there
// are fewer than two.
func splitOf(counts []int64, shares []float64) (*stats.Split, error) {
	if len(counts) < 2 {
		return nil, nil
	}
	s, err := stats.SampleRatio(counts, shares)
	return &s, err
}

// Fits reports whether units fit the weights. It says no of units that do fit with a chance
// of at most alpha.
func (r *Report) Fits(alpha float64) bool { return r.Split == nil || r.Split.P >= alpha }

// withNamed returns counts with named units of each arm added. It is not known which of
// these would have come, so it adds only as many as make the counts fit the shares better.
func withNamed(counts, named []int64, shares []float64) []int64 {
	counts, named = slices.Clone(counts), slices.Clone(named)
	for {
		least, most := -1, 0.0
		for i := range counts {
			of := float64(counts[i]) / shares[i]
			if most = max(most, of); named[i] > 0 && (least < 0 || of < float64(counts[least])/shares[least]) {
				least = i
			}
		}
		if least < 0 || float64(counts[least])/shares[least] >= most {
			return counts
		}
		counts[least]++
		named[least]--
	}
}

// Lopsided returns in words that too few answers of a variant are evidence, though the
// variant was dealt as often as it should be; empty if that is so of none. It happens if
// brokers have not heard of a change, so that their answers are not by the feed and models
// of now. Numbers of the variant's units cannot be compared then.
func (r *Report) Lopsided() string {
	if r.evidence == nil || r.evidence.P >= mismatch || !r.Fits(mismatch) {
		return ""
	}
	dealt := slices.DeleteFunc(slices.Clone(r.Arms), func(a Arm) bool { return a.Weight == 0 })
	least := slices.MinFunc(dealt, func(a, b Arm) int {
		return cmp.Compare(float64(a.Units)*b.Weight, float64(b.Units)*a.Weight)
	})
	return fmt.Sprintf("guards of rates are blind: answers of %s are no evidence, by other versions of feeds or models than etcd says, until their %s come again: %s", least.Variant, r.Units, &r.other)
}

// beside adds to the report how arm i differs from the control.
func (t *Tally) beside(r *Report, s stats.Sequence, i int) (err error) {
	c, v := &t.arms[t.control], &t.arms[i]
	type rate struct {
		what             What
		control, variant int64
	}
	rates := []rate{{Refused, c.Refused, v.Refused}, {Empty, c.Empty, v.Empty}, {Partial, c.Partial, v.Partial}, {NaN, c.NaN, v.NaN}}
	for k, action := range t.actions {
		rates = append(rates, rate{Did(action), c.Did[k], v.Did[k]})
	}
	for _, x := range rates {
		e := stats.Effect{Value: math.NaN(), Interval: stats.Interval{Low: 0, High: math.Inf(1)}, P: 1}
		if t.shares[t.control] > 0 && t.shares[i] > 0 {
			if e, err = s.RateRatio(x.control, x.variant, t.shares[i]/(t.shares[i]+t.shares[t.control])); err != nil {
				return err
			}
		}
		r.Effects = append(r.Effects, Effect{Variant: v.Variant, What: x.what, Effect: e})
	}
	for _, x := range []struct {
		what             What
		control, variant stats.Mean
	}{{Items, c.items, v.items}, {Share, c.share, v.share}, {TypeShare, c.types, v.types}, {Missing, c.missing, v.missing}, {Millis, c.millis, v.millis}} {
		r.Effects = append(r.Effects, Effect{v.Variant, x.what, s.Difference(x.control, x.variant), x.control.Same() && x.variant.Same()})
	}
	r.Effects = append(r.Effects, Effect{Variant: v.Variant, What: P99, Effect: s.QuantileDifference(c.times, v.times, 0.99)}, Effect{Variant: v.Variant, What: Cost, Effect: s.MeanRatio(c.cost, v.cost)})
	return nil
}
