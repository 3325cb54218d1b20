// Package compare says how the variants of an experiment do beside each other,
// by the exposures of its viewers. It may be asked at any time: what it says is
// wrong with a stated chance, over all looks together (package stats).
//
// A unit counts once, by the first page that is its earliest by time, of those
// that have come: viewers are independent of each other, and the answers of one
// viewer are not. A topic has what several brokers wrote, and each writes what
// waited with it when Kafka is back: its order is not that of the answers. Later
// pages, which may rightly be empty, say nothing of a variant. Who was
// forced into a variant is not chance, and only told. A unit that has met two
// variants stays with its first, and is told: more than a few say that
// something else than the hash assigns. An answer that says of a unit what the
// hash cannot have dealt it (see [experiment.Defined.Deals]) counts for nothing:
// whoever may write to the topic can write anything.
//
// A unit counts once for an action too. Of two models that draft one page,
// [Draft] says how often what the one drafted is preferred.
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

// MaxUnits bounds the units of an experiment that are told apart; what comes
// after them is counted as [Report.Beyond]. A unit takes some 130 bytes, however
// long its name is, and some 40 more once it has done something.
const MaxUnits = 5_000_000

// horizon is at how many units, of two arms together, intervals are narrowest.
const horizon = 20_000

// Tally is what units of an experiment have met so far.
type Tally struct {
	name    string
	deals   func(unit, variant, checksum string) bool
	arms    []arm // by name
	shares  []float64
	dealing int // arms that chance deals
	control int // of arms
	units   map[unitKey]met
	named   []experiment.Named
	actions []string
	did     map[unitKey]did // by unit
	room    func() bool     // whether there is any for a unit more; nil: there is
	acted   []millrace.Time // by action: the newest answer with an item that it was done with
	basis   Basis
	since   millrace.Time
	steps   int32 // how often since has changed
	report  Report

	credited, most int // items of drafts, by arm.pages
}

// did is what a unit did with what one arm showed it: the first with which it did anything.
type did struct {
	number  int32 // of the unit
	arm     int32
	actions uint16 // a bit for each
}

// met is what a unit met first, and where it is counted.
type met struct {
	arm     int32 // ^arm once it has met another
	step    int32 // of the tally, when it was counted
	at      millrace.Time
	outside bool // the basis has none of its answers: it was dealt its arm, and that is all
	refused bool
	partial bool
	nan     bool
	items   int32
	// What means are of, NaN where it is not known.
	millis, cost, share, types, missing float64
}

// counts reports whether the unit counts for an arm: for the first that it met.
func (m met) counts(arm int) bool { return !m.outside && (m.arm == int32(arm) || m.arm == ^int32(arm)) }

// arm is what the units of a variant have met.
type arm struct {
	Arm
	dealt                                      int64 // units, whatever the basis has of them
	items, millis, share, types, cost, missing stats.Mean

	times  stats.Quantiles
	drafts []string          // the two models, if the variant lets them draft
	pages  []map[string]page // what was done with their drafts, by action and answer; nil: is not credited
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

// CountSince counts units as [Arm.Fresh] whose first answer is of that time or
// later, and is added after this. The same time again changes nothing.
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

// Leaves tells whom experiments name now of those whom the hash deals a variant: that
// they are missing says nothing against how units fit the weights.
func (t *Tally) Leaves(named []experiment.Named) { t.named = named }

// Within has the tally ask whether there is room for a unit more, before it takes
// one that it does not know.
func (t *Tally) Within(room func() bool) { t.room = room }

// Units returns how many units it keeps: those that met something, and those that
// did something, each.
func (t *Tally) Units() int { return len(t.units) + len(t.did) }

// full reports whether no unit more may be kept beside so many.
func (t *Tally) full(kept int) bool { return kept >= MaxUnits || t.room != nil && !t.room() }

// On has what is added after this count only if the basis has it.
func (t *Tally) On(b Basis) { t.basis = b }

// Add takes an exposure, whatever experiments it is of. Of a unit's first pages
// the earliest counts, in whatever order they come.
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
		if was.arm >= 0 { // told once
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
	if did := t.did[unit]; (!again || was.outside) && did.arm == int32(at) { // before it was known to have met anything
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

// otherwise reports whether an answer's variant was dealt by another chance than now, as
// while an experiment was monitored: how many units variants have of then and of now, all
// together, fits neither. Where chance deals no two variants now nothing is held against
// shares, and what is known is of then.
func (t *Tally) otherwise(e *exposure.Experiment, at int) bool {
	return t.dealing > 1 && !e.Forced && e.ProbabilityInside > 0 && math.Abs(e.ProbabilityInside-t.arms[at].Weight) > 1e-9
}

// dealt notes that a unit was dealt an arm, by an answer that the basis has not: which
// arm that is does not hang on what ranks, but which answers are evidence does.
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

func (t *Tally) arm(variant string) (i int, known bool) {
	return slices.BinarySearchFunc(t.arms, variant, func(a arm, name string) int { return cmp.Compare(a.Variant, name) })
}

// Did takes what a unit did with what it was shown, of whatever experiment. It counts
// once a first page of the unit does: who has had pages from before the evidence begins
// would else be among those who act, and not among those who may. The
// same again changes nothing.
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
	// maxMillis is more than anybody waits for an answer.
	maxMillis = 3_600_000
	// maxCores is more than score one answer at a time.
	maxCores = 10_000
)

// metBy is what an answer lets its unit meet. A time that no answer takes is not known,
// and not plausible: one such would outweigh all others, and decide or blind a guard.
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
	case cost > 0: // else of nodes of before, which do not tell
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

// count counts what a unit met: 1 adds it, and -1 takes it out again.
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

// lacking returns the part of the features of items that have no value.
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

// largest returns the share of items that one name has.
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
	Weight  float64 // its part of the experiment's units, by the definition
	Units   int64
	Fresh   int64      // of these, since [Tally.CountSince]
	Answers int64      // of all of them, all pages
	Forced  int64      // answers of viewers who were forced, which count nowhere else
	Refused int64      // units that got a refusal
	Empty   int64      // that got no item
	Partial int64      // whose answer lacked timelines
	NaN     int64      // that got an item whose score is no finite number
	Items   float64    // mean of an answer
	Share   float64    // mean share of items that one entity has, of answers with items
	Millis  [3]float64 // quantiles 0.5, 0.95 and 0.99
	Cost    float64    // mean of what index nodes took to score the candidates of an answer, in microseconds
	Did     []int64    // of these units, those that did something, by Report.Actions
	// Undrafted is how many answers two models were to draft, of which only the
	// first ranked: no replica that was asked could rank by the second.
	Undrafted int64
	Latest    millrace.Time // of its first pages; 0: none has come
	// Ranked is by which versions of models its answers were ranked, all pages, in the
	// order of the first of each. A variant that has several of one model has changed
	// meanwhile, and what is counted pools them.
	Ranked []Ranked
}

// Ranked is a version of a model that has ranked answers of a variant.
type Ranked struct {
	Model, Version string
	Answers        int64
	First, Last    millrace.Time
}

// maxRanked bounds the versions that are told apart; answers by others are not told.
const maxRanked = 50

// rankedBy counts what has ranked an answer.
func (a *Arm) rankedBy(r *exposure.Record) {
	for i := range r.Models {
		m := &r.Models[i]
		same := func(x Ranked) bool { return x.Model == m.Name && x.Version == m.Version }
		if slices.ContainsFunc(r.Models[:i], func(x exposure.Model) bool { return x.Name == m.Name && x.Version == m.Version }) {
			continue // with other weights
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

// Changed says of each model of which several versions have ranked answers of the
// variant which these are; nil for none.
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
	Arms        []Arm  // by variant
	Units       string // what is counted, in the plural: viewers, or values of an attribute of theirs
	Control     string
	First, Last millrace.Time // of answers
	// Split is whether units fit the weights, by whatever they were shown, and evidence
	// the same of those of which answers are evidence; nil: chance deals no two arms,
	// and there is nothing that could not fit.
	Split, evidence *stats.Split

	other      byBroker           // answers that are none
	Crossed    int64              // units that met two variants
	Beyond     int64              // answers of units that are not told apart
	Unknown    int64              // answers of variants that the definition does not have
	Named      []experiment.Named // whom experiments name of those whom the hash deals a variant
	Misdealt   int64              // answers of units that the hash deals another variant
	Otherwise  int64              // answers whose variants were dealt by other chances than now
	BeyondActs int64              // acts of units, or with items of drafts, that are not told apart
	OtherTeams int64              // acts with drafts of other models than the definition's
	Actions    []string           // of the definition's outcomes
	Acted      []millrace.Time    // by these: the newest answer with an item that it was done with; 0: none
	Effects    []Effect
	Drafts     []Draft // if they are credited
	// Implausible is how many first pages say that they took what none takes: that is not
	// known of them.
	Implausible int64
}

// Effect is how a variant differs from the control.
type Effect struct {
	Variant string
	What    What
	stats.Effect
	// Same is true where it is the difference for every unit: none has another value than
	// the others of its variant. There is no interval of what does not vary.
	Same bool
}

// Unknown reports whether nothing can be said of it yet.
func (e *Effect) Unknown() bool {
	return math.IsNaN(e.Value) || math.IsInf(e.Low, -1) || math.IsInf(e.High, 1) && e.Low == 0
}

// What is compared. The first four are rates, as multiples of the control's, and
// so is the cost; the others are differences of means, or of a percentile.
type What string

// What is compared.
const (
	Refused What = "refused"
	Empty   What = "empty"
	Partial What = "partial"
	NaN     What = "nan"
	Items   What = "items"
	Share   What = "share of one entity"
	Millis  What = "milliseconds"
	// P99 is the 99th percentile of them.
	P99       What = "p99 milliseconds"
	Cost      What = "cost"
	TypeShare What = "share of one type"
	Missing   What = "features missing"
)

// didPrefix begins what is compared by outcomes.
const didPrefix = "did "

// Did is how many units did something.
func Did(action string) What { return What(didPrefix + action) }

// Rate reports whether an effect is a multiple and not a difference.
func (w What) Rate() bool {
	return w == Refused || w == Empty || w == Partial || w == NaN || w == Cost || strings.HasPrefix(string(w), didPrefix)
}

// counted reports whether an effect compares how many units there are of each, as if of
// all of them answers were evidence.
func (w What) counted() bool { return w == Refused || w == Empty || w == Partial || w == NaN }

// effects is how many a variant has, beside those of actions.
const effects = 11

// Report says how the arms do. The chance that any of the intervals is ever
// wrong, over all looks together, is at most alpha.
func (t *Tally) Report(alpha float64) (Report, error) {
	r := t.report
	r.other.n = maps.Clone(r.other.n) // which goes on
	r.Named = t.named
	r.Actions, r.Acted = t.actions, slices.Clone(t.acted)
	var counts, dealt, named []int64
	var shares []float64
	for i := range t.arms {
		a := &t.arms[i]
		out := a.Arm
		out.Did, out.Ranked = slices.Clone(a.Did), slices.Clone(a.Ranked) // which go on
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

// splitOf says how counts fit the shares of the arms that chance deals; nil where these
// are no two.
func splitOf(counts []int64, shares []float64) (*stats.Split, error) {
	if len(counts) < 2 {
		return nil, nil
	}
	s, err := stats.SampleRatio(counts, shares)
	return &s, err
}

// Fits reports whether units fit the weights, but for a chance of alpha to say no of
// units that do.
func (r *Report) Fits(alpha float64) bool { return r.Split == nil || r.Split.P >= alpha }

// withNamed returns counts with those who are missing by name, as far as they have the
// counts fit the shares: whether these would have asked is not known.
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

// Lopsided says of which variant answers are missing as evidence, though it was shown as
// often as it should be: they were not by the feed and models that serve now, as brokers
// show that have not heard of a change. What is counted of it cannot be compared then.
// Empty: of none.
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

// beside tells how an arm differs from the control.
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
