package experiment

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/slot"
)

// Set is the definitions of several documents, checked against each other. It is immutable and
// safe for concurrent use. Its zero value has no definitions.
type Set struct {
	docs        []Document
	layers      []*layer         // sorted by name
	experiments []*compiled      // sorted by name
	feeds       map[string]*feed // the feeds that experiments give variants on, by name
	misfits     []*faults        // for each document, what does not fit Known in its experiments (see Serve)
}

// layer is a [Layer] with what giving variants needs.
type layer struct {
	Layer
	at        place
	kind      unitKind
	attribute string              // the name of the attribute if kind is ofAttribute
	prefix    slot.Prefix         // hashes units to slots
	held      []slot.Range        // the holdout
	holds     [slot.Count]int16   // for each slot, the index in Set.experiments of the experiment that uses it, or free, or heldOut
	forced    map[string][]forced // by the id of the viewer or entity
}

// What a slot may have in layer.holds in place of an experiment.
const (
	free    = -1
	heldOut = -2
)

// forced is the variant that an experiment gives a named viewer or entity.
type forced struct {
	e   *compiled
	arm int
}

// compiled is an [Experiment] with what giving variants needs.
type compiled struct {
	Experiment
	at       place
	layer    *layer
	feeds    []*feed      // the feeds on which it gives variants; nil if it gives none
	slots    []slot.Range // all its slots
	used     []slot.Range // the slots in use by its share, whatever its state
	usedN    int          // how many slots are in use
	variants []Variant    // sorted by name
	arms     []slot.Arm   // for each of variants, its weight, or an even one if Monitored
	target   *targeting   // nil: none
	prefix   slot.Prefix  // hashes units to draws
	checksum string       // of the definition, as in Assigned
	assigned []Assigned   // for each of arms, what a unit gets by chance
	unfit    string       // why it does not fit what is known, so that nobody gets a variant; "": it fits
}

// feed is what gives variants on a feed: its layers, and their experiments that apply to it and
// run, or are drafts that force somebody.
type feed struct {
	layers   []*layer  // the layers of these experiments, sorted by name
	targets  bool      // one of these experiments has a targeting
	division *Division // gives the entities of its answers their variants; nil: no layer of entities does
}

// place is where a definition is: the index of its document, and the path in it.
type place struct {
	doc  int
	path string
}

// Serve compiles documents that are in place already. It checks them against each other and
// against known. The error is an [Error] with all that is wrong. If two definitions contradict
// each other, the one in the later document is at fault. known may be nil: then feeds, models
// and filters are not checked.
//
// What the documents refer to may have changed since they were put in place. That is no error:
// an experiment that does not fit known any more is unfit. It stays in the set with its slots,
// but gives nobody a variant, and [Set.Unfit] returns it.
func Serve(docs []Document, known Known) (*Set, error) {
	return compileAll(docs, len(docs), len(docs), known)
}

// Admit does what Serve does, for documents of which the last is about to be put in place. In
// the last document it is also an error if an experiment does not fit known, or if something
// has no effect (see Document.checkMeant).
func Admit(docs []Document, known Known) (*Set, error) {
	return compileAll(docs, len(docs)-1, len(docs)-1, known)
}

// Steer does what Admit does, for a last document that only gets another state or share. What
// has no effect in it is no error, since its author wrote that before.
func Steer(docs []Document, known Known) (*Set, error) {
	return compileAll(docs, len(docs)-1, len(docs), known)
}

// Unfit returns the documents that have experiments which do not fit what is known, and why; nil
// for none.
func (s *Set) Unfit() *Error { return errorOf(s.misfits) }

// compileAll compiles documents. In the first served documents, an experiment that does not fit
// known is unfit; in the others it is an error. In the first written documents, what has no
// effect is accepted; in the others it is an error.
func compileAll(docs []Document, served, written int, known Known) (*Set, error) {
	c := compiler{Set: &Set{docs: slices.Clone(docs), feeds: map[string]*feed{}}, known: known, served: served, layersByName: map[string]*layer{}, byName: map[string]*compiled{}}
	for i := range docs {
		f := &faults{name: docs[i].Name, root: docs[i].root}
		docs[i].check(f)
		if i >= written {
			docs[i].checkMeant(f)
		}
		c.faults = append(c.faults, f)
		c.misfits = append(c.misfits, &faults{name: f.name, root: f.root})
	}
	if err := c.error(); err != nil {
		return nil, err
	}
	for i := range docs {
		c.addLayers(i)
	}
	for i := range docs {
		c.addExperiments(i)
	}
	if err := c.error(); err != nil {
		return nil, err
	}
	slices.SortFunc(c.layers, func(a, b *layer) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(c.experiments, func(a, b *compiled) int { return cmp.Compare(a.Name, b.Name) })
	c.deal()
	return c.Set, nil
}

// compiler is a Set in the making, and what is needed to check definitions against each other.
type compiler struct {
	*Set
	known        Known
	served       int       // see compileAll
	faults       []*faults // of each document
	layersByName map[string]*layer
	byName       map[string]*compiled           // the experiments, by name
	salts        map[string]string              // the name of the layer that has a salt
	owner        map[*layer][]*compiled         // for each slot of a layer, the experiment that has it
	setters      map[setter]*compiled           // the first experiment that sets a parameter of a feed
	targeting    map[string]map[*layer]int      // by feed and layer, the length of the longest targeting
	forces       map[*layer]map[forces]string   // the experiment that forces a unit on a feed
	groups       map[string]map[*layer][]uint64 // by feed and layer of entities, the checksums of what variants set, each once
	drafts       map[string]*compiled           // by feed, an experiment with a variant in which two models draft the page (Sets.Interleave)
	divides      map[string]*compiled           // by feed, an experiment of a layer of entities
}

// setter is a parameter of a feed, which some experiment sets.
type setter struct {
	feed      string
	parameter Parameter
}

// forces is a unit on a feed, which some experiment forces.
type forces struct{ feed, unit string }

func (c *compiler) error() error {
	if e := errorOf(c.faults); e != nil {
		return e
	}
	return nil
}

func errorOf(all []*faults) *Error {
	e := &Error{}
	for _, f := range all {
		if len(f.all) > 0 {
			e.Documents = append(e.Documents, Faulty{f.name, f.error()})
		}
	}
	if len(e.Documents) == 0 {
		return nil
	}
	return e
}

func (c *compiler) faultf(at place, field, wayOut, format string, args ...any) {
	c.faults[at.doc].addf(at.path+field, wayOut, format, args...)
}

func (c *compiler) addLayers(doc int) {
	if c.salts == nil {
		c.salts = map[string]string{}
	}
	for i, def := range c.docs[doc].Layers {
		l := &layer{Layer: def, at: place{doc, fmt.Sprintf("layers[%d]", i)}}
		if met, ok := c.layersByName[l.Name]; ok {
			wayOut := "name it otherwise"
			if met.at.doc != doc {
				wayOut = "leave it out here: experiments may be of a layer of another document; or name it otherwise, with a salt of its own, for one that is independent" + c.oneDocument(met.at)
			}
			c.faultf(l.at, ".name", wayOut, "there is a layer %s already%s", l.Name, c.in(met.at))
			continue
		}
		if other, ok := c.salts[l.Salt]; ok {
			c.faultf(l.at, ".salt", "choose another one", "layer %s has it too, so that the two would not be independent", other)
		}
		if beyond := len(c.layers) - MaxLayers; beyond == 0 || beyond > 0 && c.layers[len(c.layers)-1].at.doc != doc { // one fault for each document
			c.faultf(l.at, "", "put experiments that may exclude each other into one layer, or drop documents whose experiments have stopped",
				"more than %d layers in all documents of the cluster together: %s", MaxLayers, c.most(func(d *Document) int { return len(d.Layers) }))
		}
		l.kind, l.attribute, _ = l.unit()
		l.prefix = slot.Under(l.Salt)
		l.held = readSlots(&faults{}, "", l.Holdout)
		c.layersByName[l.Name], c.salts[l.Salt] = l, l.Name
		c.layers = append(c.layers, l)
	}
}

// most returns a text on how many of something the documents have. It names the five that have
// the most.
func (c *compiler) most(of func(*Document) int) string {
	var all []string
	rest := 0
	for i, d := range slices.SortedStableFunc(slices.Values(c.docs), func(a, b Document) int { return cmp.Compare(of(&b), of(&a)) }) {
		if n := of(&d); n > 0 && i < 5 {
			all = append(all, fmt.Sprintf("%s has %d", cmp.Or(d.Name, "this one"), n))
		} else {
			rest += n
		}
	}
	if rest > 0 {
		all = append(all, fmt.Sprintf("others %d", rest))
	}
	return strings.Join(all, ", ")
}

// in returns the words that say in which document something is; "" if the document has no name.
func (c *compiler) in(at place) string {
	if name := c.docs[at.doc].Name; name != "" {
		return " in " + name
	}
	return ""
}

// oneDocument returns a further way out, for a user who wants to change the document that
// something is in, but has a file of another name. It is "" if the document has no name.
func (c *compiler) oneDocument(at place) string {
	name := c.docs[at.doc].Name
	if name == "" {
		return ""
	}
	return fmt.Sprintf("; or, to change document %s, say --name %[1]s: a document is named as its file otherwise", name)
}

func (c *compiler) addExperiments(doc int) {
	for i, def := range c.docs[doc].Experiments {
		e := &compiled{Experiment: def, at: place{doc, fmt.Sprintf("experiments[%d]", i)}}
		if met, ok := c.byName[e.Name]; ok {
			wayOut := "name it otherwise"
			if met.at.doc != doc {
				wayOut += c.oneDocument(met.at)
			}
			c.faultf(e.at, ".name", wayOut, "there is an experiment %s already%s", e.Name, c.in(met.at))
			continue
		}
		if len(c.experiments) == MaxExperiments {
			c.faultf(e.at, "", "remove those that are stopped", "more than %d experiments in all documents of the cluster together: %s", MaxExperiments, c.most(func(d *Document) int { return len(d.Experiments) }))
			return
		}
		c.byName[e.Name] = e
		if e.layer = c.layersByName[e.Layer]; e.layer == nil {
			c.faultf(e.at, ".layer", "define it, or name another one", "there is no layer %s", e.Layer)
			continue
		}
		c.experiments = append(c.experiments, e)
		e.compile()
		if e.State != Stopped {
			c.checkAgainstAll(e)
		}
	}
}

// compile sets the fields of an experiment that follow from its definition and its layer.
func (e *compiled) compile() {
	e.slots = readSlots(&faults{}, "", e.Slots)
	e.used, e.usedN = inUse(e.slots, e.Share)
	e.target, _ = readTargeting(e.Targeting)
	e.prefix = slot.Under(e.layer.Salt, e.Name)
	e.variants = byName(e.Variants)
	e.arms = armsOf(e.variants, e.Monitored)
	e.checksum = e.sum()
	parameters, life := e.parameters(), e.lifeSum()
	for i, a := range e.arms {
		e.assigned = append(e.assigned, Assigned{
			Experiment: e.Name, Layer: e.Layer, Variant: a.Variant, Checksum: e.checksum, Sets: &e.variants[i].Set,
			Probability: Probability{Slots: e.usedN, Weight: a.Weight}, Parameters: parameters, SetsSum: e.variants[i].Set.sum(), LifeSum: life, Features: e.Features,
		})
	}
}

func byName(variants []Variant) []Variant {
	return slices.SortedFunc(slices.Values(variants), func(a, b Variant) int { return cmp.Compare(a.Name, b.Name) })
}

// armsOf returns the arms of variants, which are sorted by name. Their weights are those of the
// variants or, if evenly is true, as even as possible.
func armsOf(variants []Variant, evenly bool) (arms []slot.Arm) {
	n := len(variants)
	for i, v := range variants {
		if evenly {
			v.Weight = slot.Count*(i+1)/n - slot.Count*i/n
		}
		arms = append(arms, slot.Arm{Variant: v.Name, Weight: v.Weight})
	}
	return arms
}

// sum returns SHA-256 of an experiment's form, in hexadecimal digits.
func (e *compiled) sum() string {
	sum := sha256.Sum256(e.form(e.Share))
	return hex.EncodeToString(sum[:])
}

// lifeSum returns a checksum of an experiment's form without what may change while it runs or
// is paused (see [Set.Change]).
func (e *compiled) lifeSum() uint64 {
	lasting := *e
	lasting.slots, lasting.Monitored, lasting.Forced = nil, false, nil
	sum := sha256.Sum256(lasting.form(0))
	return binary.LittleEndian.Uint64(sum[:])
}

// form returns the canonical form of an experiment by a share: JSON of all that decides which
// unit gets which variant, except the state. It is the same text for the same meaning.
func (e *compiled) form(share int) []byte {
	form := struct {
		Layer, Salt, Unit, Experiment string
		Feeds                         []string
		Slots                         []slot.Range
		Share                         int
		Monitored                     bool
		Targeting                     []string
		Variants                      []Variant
		Forced                        map[string]string
	}{e.Layer, e.layer.Salt, e.layer.Unit, e.Name, sorted(e.Feeds), e.slots, share, e.Monitored, e.clauses(), nil, nil}
	if len(e.Forced) > 0 { // an empty map means the same as nil
		form.Forced = e.Forced
	}
	for _, v := range e.variants {
		v.Set.Types = sorted(v.Set.Types)
		form.Variants = append(form.Variants, v)
	}
	b, err := json.Marshal(form)
	if err != nil {
		panic(err) // numbers are finite
	}
	return b
}

// sum returns a checksum of what a variant sets. The order of types does not matter.
func (s Sets) sum() uint64 {
	s.Types = sorted(s.Types)
	sum := sha256.Sum256([]byte(s.String()))
	return binary.LittleEndian.Uint64(sum[:])
}

// clauses returns the clauses of the targeting in canonical form; nil for none.
func (e *compiled) clauses() []string {
	if e.target == nil {
		return nil
	}
	return e.target.clauses
}

func sorted[T cmp.Ordered](s []T) []T {
	s = slices.Clone(s)
	slices.Sort(s)
	return s
}

// checkAgainstAll checks an experiment against the layers, the experiments that were added
// before it, and what is known.
func (c *compiler) checkAgainstAll(e *compiled) {
	c.checkSlots(e)
	c.checkParameters(e)
	c.checkForced(e)
	c.checkTargeting(e)
	if e.layer.kind == ofEntity {
		c.checkOfEntities(e)
	}
	c.checkDrafts(e)
	if c.known != nil {
		c.checkKnown(e)
	}
}

// checkSlots refuses slots that another experiment or the holdout has.
func (c *compiler) checkSlots(e *compiled) {
	if c.owner == nil {
		c.owner = map[*layer][]*compiled{}
	}
	owner := c.owner[e.layer]
	if owner == nil {
		owner = make([]*compiled, slot.Count)
		c.owner[e.layer] = owner
	}
	taken := map[*compiled][]int{} // the slots that each other experiment has, ascending
	var by []*compiled             // these experiments, in the order of their first slots
	var kept []int                 // the slots that are held out
	for _, r := range e.slots {
		for s := r.From; s <= r.To; s++ {
			switch {
			case owner[s] != nil:
				if taken[owner[s]] == nil {
					by = append(by, owner[s])
				}
				taken[owner[s]] = append(taken[owner[s]], s)
			case slot.In(e.layer.held, s):
				kept = append(kept, s)
			default:
				owner[s] = e
			}
		}
	}
	for _, x := range by {
		c.faultf(e.at, ".slots", "take others, or stop that one first", "experiment %s%s has slots %s of layer %s", x.Name, c.in(x.at), textOf(together(taken[x])), e.Layer)
	}
	if both := together(kept); both != nil {
		c.faultf(e.at, ".slots", "take others, or make the holdout smaller", "slots %s of layer %s are held out", textOf(both), e.Layer)
	}
}

// together returns slots, which are ascending, as ranges.
func together(slots []int) (ranges []slot.Range) {
	for _, s := range slots {
		if n := len(ranges); n > 0 && ranges[n-1].To == s-1 {
			ranges[n-1].To = s
			continue
		}
		ranges = append(ranges, slot.Range{From: s, To: s})
	}
	return ranges
}

// checkParameters refuses an experiment that sets a parameter of a feed which an experiment of
// another layer sets too: some viewers would be in both.
func (c *compiler) checkParameters(e *compiled) {
	if c.setters == nil {
		c.setters = map[setter]*compiled{}
	}
	told := map[Parameter]bool{}
	for _, v := range e.Variants {
		for _, parameter := range v.Set.parameters() {
			for _, name := range e.Feeds {
				first, ok := c.setters[setter{name, parameter}]
				switch {
				case !ok:
					c.setters[setter{name, parameter}] = e
				case first.layer != e.layer && !told[parameter]:
					told[parameter] = true
					wayOut := "put both into one layer, where they exclude each other"
					if (first.layer.kind == ofEntity) != (e.layer.kind == ofEntity) { // a layer of viewers and one of entities cannot be put together
						wayOut = "stop that one first, or leave it out of one"
					}
					c.faultf(e.at, ".variants", wayOut,
						"%s by experiment %s of layer %s%s too", first.sets(parameter, name), first.Name, first.Layer, c.in(first.at))
				}
			}
		}
	}
}

// sets returns a text that the experiment sets a parameter of a feed. For OfModel it says
// whether that is another model, or only weights.
func (e *compiled) sets(parameter Parameter, feed string) string {
	ranks := func(v Variant) bool { return v.Set.Model != "" || v.Set.Interleave != nil }
	if parameter == OfModel && !slices.ContainsFunc(e.Variants, ranks) {
		return fmt.Sprintf("weights of the model of feed %s are set", feed)
	}
	return fmt.Sprintf("%s of feed %s is set", parameter, feed)
}

// Parameter is what a variant can set of a feed. Model, interleave and weights are one
// parameter, OfModel: what ranks.
type Parameter string

// The parameters, as messages name them.
const (
	OfModel   Parameter = "the model"
	OfFilter  Parameter = "filter"
	OfWindow  Parameter = "window"
	OfTypes   Parameter = "types"
	OfCap     Parameter = "cap_per_entity"
	OfSpacing Parameter = "spacing"
	OfLimit   Parameter = "limit"

	// OfDistinct is a parameter of feeds that no variant can set.
	OfDistinct Parameter = "distinct_objects"
)

// parameters returns the parameters that are set, sorted.
func (s *Sets) parameters() (all []Parameter) {
	for p, set := range map[Parameter]bool{
		OfModel: s.Model != "" || s.Interleave != nil || len(s.Weights) > 0, OfFilter: s.Filter != nil, OfWindow: s.Window != nil,
		OfTypes: s.Types != nil, OfCap: s.CapPerEntity != nil, OfSpacing: s.Spacing != nil, OfLimit: s.Limit != 0,
	} {
		if set {
			all = append(all, p)
		}
	}
	slices.Sort(all)
	return all
}

// parameters returns the parameters that any variant sets, sorted.
func (e *compiled) parameters() (all []Parameter) {
	for i := range e.variants {
		all = append(all, e.variants[i].Set.parameters()...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// checkForced refuses an experiment that forces a unit which another experiment of its layer
// forces on the same feed.
func (c *compiler) checkForced(e *compiled) {
	if c.forces == nil {
		c.forces = map[*layer]map[forces]string{}
	}
	if c.forces[e.layer] == nil {
		c.forces[e.layer] = map[forces]string{}
	}
	by := c.forces[e.layer]
	for _, unit := range slices.Sorted(maps.Keys(e.Forced)) {
		for _, name := range e.Feeds {
			if other, ok := by[forces{name, unit}]; ok {
				c.faultf(e.at, ".forced", "leave it out of one", "experiment %s of the same layer forces %q too, for feed %s", other, unit, name)
				break
			}
			by[forces{name, unit}] = e.Name
		}
	}
}

// checkTargeting bounds how much targeting is evaluated for one viewer on a feed. That is one
// experiment's for each layer at most, so it adds up the longest targeting of each layer.
func (c *compiler) checkTargeting(e *compiled) {
	if c.targeting == nil {
		c.targeting = map[string]map[*layer]int{}
	}
	for _, name := range e.Feeds {
		if c.targeting[name] == nil {
			c.targeting[name] = map[*layer]int{}
		}
		of := c.targeting[name]
		before := of[e.layer]
		of[e.layer] = max(before, len(e.Targeting))
		sum := 0
		for _, n := range of {
			sum += n
		}
		if sum > MaxTargetingBytes {
			c.faultf(e.at, ".targeting", "send the viewer with an attribute that says it shorter, or use one layer", "with the targeting of other layers it has %d bytes for feed %s, more than %d", sum, name, MaxTargetingBytes)
			of[e.layer] = before
			return
		}
	}
}

// checkOfEntities refuses what an experiment of a layer of entities cannot have, such as
// parameters that hold for a whole answer and cannot differ between its entities.
func (c *compiler) checkOfEntities(e *compiled) {
	const ofViewers = "use a layer of viewers, or leave it out"
	for _, x := range []struct {
		field string
		set   bool
		why   string
	}{
		{".targeting", e.Targeting != "", "layer %s divides entities, whatever the viewer"},
		{".ramp", e.Ramp != nil, "layer %s divides entities, and coordinators compare viewers"},
		{".guards", e.Guards != nil, "layer %s divides entities, and coordinators compare viewers"},
		{".outcomes", e.Outcomes != nil, "layer %s divides entities, and outcomes are counted by viewer; an export has them by item"},
	} {
		if x.set {
			c.faultf(e.at, x.field, ofViewers, x.why, e.Layer)
		}
	}
	for i, v := range e.Variants {
		for field, set := range map[string]bool{"interleave": v.Set.Interleave != nil, "spacing": v.Set.Spacing != nil, "limit": v.Set.Limit != 0} {
			if set {
				c.faultf(e.at, fmt.Sprintf(".variants[%d].set.%s", i, field), "use a layer of viewers, or set model, weights, filter, window, types or cap_per_entity",
					"it is one for a whole answer, and layer %s divides its entities", e.Layer)
			}
		}
	}
	c.checkGroups(e)
}

// checkGroups bounds how many questions a broker asks the nodes for one answer: one for each
// combination of what variants set for its entities.
func (c *compiler) checkGroups(e *compiled) {
	if c.groups == nil {
		c.groups = map[string]map[*layer][]uint64{}
	}
	for _, name := range e.Feeds {
		if c.groups[name] == nil {
			c.groups[name] = map[*layer][]uint64{}
		}
		of := c.groups[name]
		for i := range e.Variants {
			if s := &e.Variants[i].Set; !s.Nothing() && !slices.Contains(of[e.layer], s.sum()) {
				of[e.layer] = append(of[e.layer], s.sum())
			}
		}
		n := 1
		for _, sums := range of {
			n *= 1 + len(sums)
		}
		if n > MaxGroups {
			c.faultf(e.at, ".variants", "put them into one layer, or stop some", "entities of one answer of feed %s could be of %d groups, more than %d, each of which is asked for by itself", name, n, MaxGroups)
			return
		}
	}
}

// checkDrafts refuses an experiment in which two models draft the pages of a feed
// (Sets.Interleave) while another experiment divides the entities of that feed, or the reverse:
// no model would then rank the whole page.
func (c *compiler) checkDrafts(e *compiled) {
	if c.drafts == nil {
		c.drafts, c.divides = map[string]*compiled{}, map[string]*compiled{}
	}
	for _, name := range e.Feeds {
		drafts := slices.ContainsFunc(e.Variants, func(v Variant) bool { return v.Set.Interleave != nil })
		if drafts {
			c.drafts[name] = e
		}
		if e.layer.kind == ofEntity {
			c.divides[name] = e
		}
		other := c.divides[name]
		if !drafts {
			other = c.drafts[name]
		}
		if other != nil && other != e && (drafts || e.layer.kind == ofEntity) {
			c.faultf(e.at, ".variants", "stop that one first, or use another feed", "of feed %s, two models draft the page or its entities are divided, and experiment %s%s does the other", name, other.Name, c.in(other.at))
			return
		}
	}
}

// checkKnown checks an experiment against what is known. In a document that is in place already,
// an experiment that does not fit becomes unfit, but not if c.known could not be asked. In a
// document that is about to be put in place, both are errors.
func (c *compiler) checkKnown(e *compiled) {
	served := e.at.doc < c.served
	for _, m := range e.misfits(c.known) {
		switch {
		case !served:
			c.misfit(c.faults[e.at.doc], e, m)
		case !m.unasked():
			c.misfit(c.misfits[e.at.doc], e, m)
			e.unfit = cmp.Or(e.unfit, m.String())
		}
	}
}

// deal fills in the tables by which variants are given.
func (c *compiler) deal() {
	for _, l := range c.layers {
		l.forced = map[string][]forced{}
		for s := range l.holds {
			l.holds[s] = free
		}
		for _, r := range l.held {
			for s := r.From; s <= r.To; s++ {
				l.holds[s] = heldOut
			}
		}
	}
	for i, e := range c.experiments {
		if e.unfit != "" || e.State != Running && (e.State != Draft || len(e.Forced) == 0) {
			continue
		}
		for _, name := range e.Feeds {
			if c.feeds[name] == nil {
				c.feeds[name] = &feed{}
			}
			f := c.feeds[name]
			f.targets = f.targets || e.target != nil
			if e.feeds = append(e.feeds, f); !slices.Contains(f.layers, e.layer) {
				f.layers = append(f.layers, e.layer)
			}
		}
		for unit, variant := range e.Forced {
			arm := slices.IndexFunc(e.arms, func(a slot.Arm) bool { return a.Variant == variant })
			e.layer.forced[unit] = append(e.layer.forced[unit], forced{e, arm})
		}
		if e.State != Running {
			continue
		}
		for _, r := range e.used {
			for s := r.From; s <= r.To; s++ {
				e.layer.holds[s] = int16(i)
			}
		}
	}
	for _, f := range c.feeds {
		slices.SortFunc(f.layers, func(a, b *layer) int { return cmp.Compare(a.Name, b.Name) })
		var from []dealing
		for _, e := range c.experiments {
			if e.layer.kind != ofEntity || !slices.Contains(e.feeds, f) {
				continue
			}
			share := e.Share
			if e.State != Running {
				share = 0
			}
			from = append(from, e.dealing(share))
		}
		f.division = divisionOf(from)
	}
}
