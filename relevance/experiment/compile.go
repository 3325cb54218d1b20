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

// Set is the definitions of several documents, held against each other. It is
// immutable and safe for concurrent use. Its zero value has none.
type Set struct {
	docs        []Document
	layers      []*layer    // by name
	experiments []*compiled // by name
	feeds       map[string]*feed
	misfits     []*faults // of each document, what is known against it
}

// layer is a [Layer] as units are dealt by it.
type layer struct {
	Layer
	at        place
	kind      unitKind
	attribute string
	prefix    slot.Prefix
	held      []slot.Range
	holds     [slot.Count]int16   // of each slot: the experiment in it, by its place in the set, or free, or heldOut
	forced    map[string][]forced // by viewer or entity
}

// What a slot may hold but an experiment.
const (
	free    = -1
	heldOut = -2
)

// forced is a variant of a named viewer or entity.
type forced struct {
	e   *compiled
	arm int
}

// compiled is an [Experiment] as units are dealt by it.
type compiled struct {
	Experiment
	at       place
	layer    *layer
	feeds    []*feed
	slots    []slot.Range
	used     []slot.Range // by its share, whatever its state
	usedN    int
	variants []Variant  // by name
	arms     []slot.Arm // of variants, with the weights that are dealt
	target   *targeting
	prefix   slot.Prefix
	checksum string
	assigned []Assigned // of each arm, by chance
	unfit    string     // what is known against it, so that nobody gets a variant; "" for nothing
}

// feed is what deals to a feed.
type feed struct {
	layers   []*layer  // with an experiment that assigns
	targets  bool      // one of them has a targeting
	division *Division // of its answers' entities
}

// place is where a definition stands.
type place struct {
	doc  int
	path string
}

// Serve holds documents that were put in place before against each other and
// against what is known, and reports all that is wrong at once, as an [Error]. Of
// two definitions that contradict each other the one in the later document is at
// fault. Known may be nil: then feeds, models and filters are not looked at. What
// the documents refer to may have changed since: an experiment that does not fit keeps its slots and is
// one of the set, but gives nobody a variant, and [Set.Unfit] tells of it.
func Serve(docs []Document, known Known) (*Set, error) {
	return compileAll(docs, len(docs), len(docs), known)
}

// Admit is Serve of documents of which the last is about to be put in place: of
// that one all that is wrong is refused.
func Admit(docs []Document, known Known) (*Set, error) {
	return compileAll(docs, len(docs)-1, len(docs)-1, known)
}

// Steer is Admit of a last document that only gets another state or share: what its
// author wrote in vain stays.
func Steer(docs []Document, known Known) (*Set, error) {
	return compileAll(docs, len(docs)-1, len(docs), known)
}

// Unfit returns the documents with experiments that do not fit what is known, nil
// for none.
func (s *Set) Unfit() *Error { return errorOf(s.misfits) }

// compileAll compiles documents. The first were put in place before: so many fit, or
// did, and so many are as their authors wrote them then.
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

type compiler struct {
	*Set
	known        Known
	served       int       // how many documents were put in place before
	faults       []*faults // of each document
	layersByName map[string]*layer
	byName       map[string]*compiled
	salts        map[string]string              // the layers that have them
	owner        map[*layer][]*compiled         // of each slot
	setters      map[setter]*compiled           // the first to set a parameter of a feed
	targeting    map[string]map[*layer]int      // bytes, the most of a layer, by feed
	forces       map[*layer]map[forces]string   // the experiments that force a viewer, by feed
	groups       map[string]map[*layer][]uint64 // what variants of entities set, by feed
	drafts       map[string]*compiled           // an experiment that interleaves, by feed
	divides      map[string]*compiled           // one of entities
}

type setter struct {
	feed      string
	parameter Parameter
}

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
		if beyond := len(c.layers) - MaxLayers; beyond == 0 || beyond > 0 && c.layers[len(c.layers)-1].at.doc != doc { // told once of a document
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

// most says how many of something the documents have, the five with the most by name.
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

// in says where else something stands.
func (c *compiler) in(at place) string {
	if name := c.docs[at.doc].Name; name != "" {
		return " in " + name
	}
	return ""
}

// oneDocument is the way out of who meant to change the document in which something
// stands, by a file of another name.
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

// compile works out what an experiment by itself comes to.
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

// armsOf returns variants, which are by name, with the weights that are dealt.
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

// sum is SHA-256 of an experiment's canonical form.
func (e *compiled) sum() string {
	sum := sha256.Sum256(e.form(e.Share))
	return hex.EncodeToString(sum[:])
}

// lifeSum is of the canonical form without what may change while an experiment runs
// or is paused ([Set.Change]).
func (e *compiled) lifeSum() uint64 {
	lasting := *e
	lasting.slots, lasting.Monitored, lasting.Forced = nil, false, nil
	sum := sha256.Sum256(lasting.form(0))
	return binary.LittleEndian.Uint64(sum[:])
}

// form is JSON of all that decides about an assignment but for the state,
// everything in one order.
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
	if len(e.Forced) > 0 { // {} is as good as nothing
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

// sum is of what a variant sets, the types in one order.
func (s Sets) sum() uint64 {
	s.Types = sorted(s.Types)
	sum := sha256.Sum256([]byte(s.String()))
	return binary.LittleEndian.Uint64(sum[:])
}

// clauses returns the targeting as it is understood; nil for none.
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

// checkAgainstAll holds an experiment against the layers, the other experiments
// and what is known.
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
	taken := map[*compiled][]int{} // slots that others have; they ascend
	var by []*compiled             // these, in the order of their slots
	var kept []int                 // slots of the holdout
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

// together returns slots that ascend as ranges.
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

// checkParameters refuses what an experiment sets of a feed that one of another
// layer sets too: some viewers would be in both.
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
					if (first.layer.kind == ofEntity) != (e.layer.kind == ofEntity) { // a viewer's cannot be an entity's
						wayOut = "stop that one first, or leave it out of one"
					}
					c.faultf(e.at, ".variants", wayOut,
						"%s by experiment %s of layer %s%s too", first.sets(parameter, name), first.Name, first.Layer, c.in(first.at))
				}
			}
		}
	}
}

// sets says that the experiment sets a parameter of a feed: of what ranks, whether
// that is another model, or weights alone.
func (e *compiled) sets(parameter Parameter, feed string) string {
	ranks := func(v Variant) bool { return v.Set.Model != "" || v.Set.Interleave != nil }
	if parameter == OfModel && !slices.ContainsFunc(e.Variants, ranks) {
		return fmt.Sprintf("weights of the model of feed %s are set", feed)
	}
	return fmt.Sprintf("%s of feed %s is set", parameter, feed)
}

// Parameter is what a variant can set of a feed. Model, interleave and weights
// are one: what ranks.
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

	// OfDistinct is of the feed alone: no variant sets it.
	OfDistinct Parameter = "distinct_objects"
)

// parameters returns what is set, sorted.
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

// parameters returns what any variant sets.
func (e *compiled) parameters() (all []Parameter) {
	for i := range e.variants {
		all = append(all, e.variants[i].Set.parameters()...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// checkForced refuses a viewer whom two experiments of a layer force for one
// feed.
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

// checkTargeting bounds what it costs to judge a viewer by all experiments of a
// feed: of each layer they meet one.
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

// checkOfEntities refuses what cannot differ between the entities of one
// answer.
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

// checkGroups bounds how many questions an answer takes: one for each
// combination of what the variants of its entities set.
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

// checkDrafts refuses two models that draft a page whose entities are divided:
// there would be no ranking of each model.
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

// checkKnown holds an experiment against what is known. In a document that is
// there already a fault does not stand in the way of the others.
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

// deal prepares what assigning looks up.
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
