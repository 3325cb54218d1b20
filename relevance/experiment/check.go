package experiment

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/slot"
)

var (
	namePattern      = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,62}$`)
	saltPattern      = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)
	attributePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
)

const (
	nameRule = "want a letter, then up to 62 letters, digits, '_', '.' and '-'"
	saltRule = "want a letter or digit, then up to 62 letters, digits, '_', '.' and '-'"
)

// check adds to f what is wrong with a document by itself.
func (d *Document) check(f *faults) {
	if len(d.Layers) > MaxLayers {
		f.addf("layers", "leave some out", "%d of them, more than %d", len(d.Layers), MaxLayers)
		return
	}
	if len(d.Experiments) > MaxExperiments {
		f.addf("experiments", "remove those that are stopped", "%d of them, more than %d", len(d.Experiments), MaxExperiments)
		return
	}
	for i := range d.Layers {
		d.Layers[i].check(f, fmt.Sprintf("layers[%d]", i))
	}
	for i := range d.Experiments {
		if f.full() {
			return
		}
		d.Experiments[i].check(f, fmt.Sprintf("experiments[%d]", i))
	}
}

func (l *Layer) check(f *faults, path string) {
	if !namePattern.MatchString(l.Name) {
		f.addf(path+".name", nameRule, "%.100q is no name", l.Name)
	}
	if !saltPattern.MatchString(l.Salt) {
		f.addf(path+".salt", saltRule, "%.100q is no salt", l.Salt)
	}
	if _, _, ok := l.unit(); !ok {
		f.addf(path+".unit", `write viewer, entity, or attribute and its name, such as "attribute country"`, "%.100q is no unit", l.Unit)
	}
	readSlots(f, path+".holdout", l.Holdout)
}

// unitKind is the kind of units that a layer divides over its slots.
type unitKind uint8

const (
	ofViewer unitKind = iota
	ofAttribute
	ofEntity
)

// unit returns the kind of units that the layer divides, and for an attribute its name. ok is
// false if the definition names no such kind.
func (l *Layer) unit() (kind unitKind, attribute string, ok bool) {
	switch name, isAttribute := strings.CutPrefix(l.Unit, "attribute "); {
	case l.Unit == "viewer":
		return ofViewer, "", true
	case l.Unit == "entity":
		return ofEntity, "", true
	case isAttribute && attributePattern.MatchString(name) && name != "id":
		return ofAttribute, name, true
	}
	return 0, "", false
}

func (e *Experiment) check(f *faults, path string) {
	if !namePattern.MatchString(e.Name) {
		f.addf(path+".name", nameRule, "%.100q is no name", e.Name)
	}
	if !namePattern.MatchString(e.Layer) {
		f.addf(path+".layer", "name the layer whose slots it takes", "%.100q is no name", e.Layer)
	}
	e.checkFeeds(f, path+".feeds")
	if !slices.Contains([]State{Draft, Running, Paused, Stopped}, e.State) {
		f.addf(path+".state", "write draft, running, paused or stopped", "%.100q is no state", e.State)
	}
	if len(e.Slots) == 0 {
		f.addf(path+".slots", "write ranges such as 0-499", "it takes no slot")
	}
	n := count(readSlots(f, path+".slots", e.Slots))
	switch {
	case e.Share < 0 || e.Share > slot.Count:
		f.addf(path+".share", "write 100 for 1 %", "%d is not between 0 and %d", e.Share, slot.Count)
	case e.Share > 0 && n > 0 && n*e.Share < slot.Count:
		f.addf(path+".share", "raise it, or take more slots", "%d of 10,000 of %d slots is less than one slot", e.Share, n)
	case e.Share == 0 && e.State == Running:
		f.addf(path+".share", "write 100 for 1 %, or make it a draft", "it runs for nobody")
	}
	if _, problems := readTargeting(e.Targeting); len(problems) > 0 {
		for _, p := range problems {
			f.addf(path+".targeting", p.wayOut, "%s", p.detail)
		}
	}
	e.checkRamp(f, path)
	if e.checkVariants(f, path+".variants") {
		e.checkForced(f, path+".forced")
	}
}

func (e *Experiment) checkFeeds(f *faults, path string) {
	if n := len(e.Feeds); n == 0 || n > MaxFeeds {
		f.addf(path, fmt.Sprintf("name 1 to %d feeds", MaxFeeds), "%d of them", n)
		return
	}
	for i, name := range e.Feeds {
		if !namePattern.MatchString(name) {
			f.addf(fmt.Sprintf("%s[%d]", path, i), nameRule, "%.100q is no name of a feed", name)
		}
		if slices.Contains(e.Feeds[:i], name) {
			f.addf(fmt.Sprintf("%s[%d]", path, i), "remove one", "%.100q is there twice", name)
		}
	}
}

// checkVariants checks the variants. It returns false, without a look at each, if there are none
// or too many.
func (e *Experiment) checkVariants(f *faults, path string) bool {
	if n := len(e.Variants); n == 0 || n > MaxVariants {
		f.addf(path, fmt.Sprintf("write 1 to %d variants", MaxVariants), "%d of them", n)
		return false
	}
	sum := 0
	for i := range e.Variants {
		v, at := &e.Variants[i], fmt.Sprintf("%s[%d]", path, i)
		if !namePattern.MatchString(v.Name) {
			f.addf(at+".name", nameRule, "%.100q is no name", v.Name)
		}
		if slices.ContainsFunc(e.Variants[:i], func(other Variant) bool { return other.Name == v.Name }) {
			f.addf(at+".name", "name it otherwise", "%.100q is there twice", v.Name)
		}
		if v.Weight < 0 || v.Weight > slot.Count {
			f.addf(at+".weight", "write 5000 for a half", "%d is not between 0 and %d", v.Weight, slot.Count)
		}
		sum += v.Weight
		v.Set.check(f, at+".set")
	}
	if sum != slot.Count {
		f.addf(path, "make them come to 10000", "the weights come to %d", sum)
	}
	return true
}

func (e *Experiment) checkForced(f *faults, path string) {
	if n := len(e.Forced); n > MaxForced {
		f.addf(path, "leave some out", "%d of them, more than %d", n, MaxForced)
		return
	}
	for _, unit := range slices.Sorted(maps.Keys(e.Forced)) {
		if unit == "" || len(unit) > maxUnitBytes || !utf8.ValidString(unit) {
			f.addf(path, fmt.Sprintf("write an id of 1 to %d bytes", maxUnitBytes), "%.100q is no id", unit)
		}
		if !slices.ContainsFunc(e.Variants, func(v Variant) bool { return v.Name == e.Forced[unit] }) {
			f.addf(path, "name one of the variants", "%.100q is to have %.100q, which is no variant", unit, e.Forced[unit])
		}
	}
}

func (s *Sets) check(f *faults, path string) {
	if s.Model != "" && !namePattern.MatchString(s.Model) {
		f.addf(path+".model", nameRule, "%.100q is no name of a model", s.Model)
	}
	s.checkInterleave(f, path+".interleave")
	s.checkWeights(f, path+".weights")
	if s.Filter != nil && (len(*s.Filter) > maxFilterBytes || !utf8.ValidString(*s.Filter) || strings.ContainsRune(*s.Filter, 0)) {
		f.addf(path+".filter", fmt.Sprintf("write at most %d bytes of UTF-8 without NUL", maxFilterBytes), "%d bytes are not a filter", len(*s.Filter))
	}
	if s.Window != nil && *s.Window < 0 {
		f.addf(path+".window", "write 0s for no limit", "%s is negative", *s.Window)
	}
	s.checkTypes(f, path+".types")
	if c := s.CapPerEntity; c != nil && (*c < 0 || *c > math.MaxInt32) {
		f.addf(path+".cap_per_entity", "write 0 for no cap", "%d is not between 0 and %d", *c, math.MaxInt32)
	}
	if p := s.Spacing; p != nil && (p.Entity < 0 || p.Entity > maxSpacing || p.Type < 0 || p.Type > maxSpacing) {
		f.addf(path+".spacing", fmt.Sprintf("write 0 to %d for each", maxSpacing), "entity %d and type %d", p.Entity, p.Type)
	}
	if s.Limit < 0 || s.Limit > maxLimit {
		f.addf(path+".limit", "leave it out for the feed's", "%d is not between 1 and %d", s.Limit, maxLimit)
	}
}

func (s *Sets) checkInterleave(f *faults, path string) {
	if s.Interleave == nil {
		return
	}
	if len(s.Interleave) != 2 || s.Interleave[0] == s.Interleave[1] {
		f.addf(path, "name two models", "it does not name two different models")
	}
	if s.Model != "" || len(s.Weights) > 0 {
		f.addf(path, "leave out model and weights", "two models rank, and another is set beside them")
	}
	for _, m := range s.Interleave {
		if !namePattern.MatchString(m) {
			f.addf(path, nameRule, "%.100q is no name of a model", m)
		}
	}
}

func (s *Sets) checkWeights(f *faults, path string) {
	if n := len(s.Weights); n > MaxWeights {
		f.addf(path, "push a model with other parameters", "%d of them, more than %d", n, MaxWeights)
		return
	}
	for _, key := range slices.Sorted(maps.Keys(s.Weights)) {
		if key == "" || len(key) > maxKeyBytes || !utf8.ValidString(key) {
			f.addf(path, "write the name of a feature", "%.100q is no feature", key)
		}
		if x := s.Weights[key]; math.IsNaN(x) || math.IsInf(x, 0) {
			f.addf(path, "write a finite number", "%v of %.100q is not finite", x, key)
		}
	}
}

func (s *Sets) checkTypes(f *faults, path string) {
	if n := len(s.Types); s.Types != nil && n == 0 || n > maxTypes {
		f.addf(path, fmt.Sprintf("name 1 to %d, or leave it out for the feed's", maxTypes), "%d of them", n)
		return
	}
	for i, t := range s.Types {
		if t == "" || len(t) > millrace.MaxTypeBytes || !utf8.ValidString(string(t)) {
			f.addf(fmt.Sprintf("%s[%d]", path, i), fmt.Sprintf("write 1 to %d bytes", millrace.MaxTypeBytes), "%.100q is no content type", t)
		}
		if slices.Contains(s.Types[:i], t) {
			f.addf(fmt.Sprintf("%s[%d]", path, i), "remove one", "%.100q is there twice", t)
		}
	}
}

// readSlots returns the ranges of slots that texts name, ascending, with adjacent ones joined.
// What is wrong with them is added to f.
func readSlots(f *faults, path string, texts []string) (slots []slot.Range) {
	if len(texts) > MaxRanges {
		f.addf(path, "take whole ranges", "%d ranges, more than %d", len(texts), MaxRanges)
		return nil
	}
	if len(texts) == 0 {
		return nil
	}
	taken := make([]bool, slot.Count)
	for i, s := range texts {
		r, ok := readRange(s)
		if !ok {
			f.addf(fmt.Sprintf("%s[%d]", path, i), "write a range such as 0-499, or one slot", "%.100q is no range of slots from 0 to %d", s, slot.Count-1)
			continue
		}
		if at := slices.Index(taken[r.From:r.To+1], true); at >= 0 {
			f.addf(fmt.Sprintf("%s[%d]", path, i), "leave it out of one", "slot %d stands in two ranges", r.From+at)
		}
		fill(taken[r.From:r.To+1], true)
	}
	return rangesOf(taken)
}

func readRange(s string) (r slot.Range, ok bool) {
	from, to, isRange := strings.Cut(s, "-")
	if !isRange {
		to = from
	}
	a, errA := strconv.ParseUint(from, 10, 16)
	b, errB := strconv.ParseUint(to, 10, 16)
	return slot.Range{From: int(a), To: int(b)}, errA == nil && errB == nil && a <= b && b < slot.Count
}

func fill(s []bool, x bool) {
	for i := range s {
		s[i] = x
	}
}

// rangesOf returns the slots that are marked, as the fewest ranges possible.
func rangesOf(marked []bool) (slots []slot.Range) {
	for i := 0; i < len(marked); i++ {
		if !marked[i] {
			continue
		}
		from := i
		for i+1 < len(marked) && marked[i+1] {
			i++
		}
		slots = append(slots, slot.Range{From: from, To: i})
	}
	return slots
}

// marked returns, for each of the 10,000 slots, whether it is in slots.
func marked(slots []slot.Range) []bool {
	m := make([]bool, slot.Count)
	for _, r := range slots {
		fill(m[r.From:r.To+1], true)
	}
	return m
}
