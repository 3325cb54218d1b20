package experiment

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/slot"
)

// Ramp is how a coordinator raises an experiment's share by itself.
type Ramp struct {
	Steps   []int         `yaml:"steps"`   // shares of 10,000, rising
	Least   time.Duration `yaml:"least"`   // the least time at each step
	Viewers int64         `yaml:"viewers"` // how many viewers of each variant must have come at each step
}

// Guards are limits of how a variant may differ from the control (see [Experiment.Control]). A
// coordinator pauses an experiment once it is sure, by Alpha, that a variant is beyond one of
// them. A limit of 0 is not guarded. Refused, Empty, Partial and NaN are limits of rates, as
// multiples of the control's rate: 1 allows no more than the control has.
type Guards struct {
	Refused float64 `yaml:"refused,omitempty"` // viewers who get a refusal
	Empty   float64 `yaml:"empty,omitempty"`   // viewers who get no item, and no refusal
	Partial float64 `yaml:"partial,omitempty"` // viewers whose answer lacks timelines
	NaN     float64 `yaml:"nan,omitempty"`     // viewers whose answer has an item with a score that is no finite number
	// Millis is how many milliseconds longer than the control's the mean answer
	// may take.
	Millis float64 `yaml:"milliseconds,omitempty"`
	// P99 is how many milliseconds longer than the control's the 99th percentile
	// of answers may be.
	P99 float64 `yaml:"p99,omitempty"`
	// Cost is how long index nodes may take to score the candidates of an answer, as a multiple
	// of the control's mean.
	Cost float64 `yaml:"cost,omitempty"`
	// ShareOfEntity and ShareOfType bound the mean part of an answer's items that one entity,
	// or one type, has. FeaturesMissing bounds the mean part of the items' features that have
	// no value. Each is by how much that part may be above the control's: 0.1 is a tenth of all
	// items, or of all features.
	ShareOfEntity   float64 `yaml:"share_of_entity,omitempty"`
	ShareOfType     float64 `yaml:"share_of_type,omitempty"`
	FeaturesMissing float64 `yaml:"features_missing,omitempty"`
	// Fewer and More bound the part of viewers who do an action of Outcomes, by action: Fewer is
	// the least that this part may be, and More the most, as multiples of the control's part.
	Fewer map[string]float64 `yaml:"fewer,omitempty"`
	More  map[string]float64 `yaml:"more,omitempty"`
	// Alpha is the probability that the experiment is ever paused without reason; 0: 0.05.
	Alpha float64 `yaml:"alpha,omitempty"`
}

// Outcomes say where to find what viewers do with items that they were shown: in records of a
// topic, each of which has a viewer, a record and an action. A viewer counts once for an action.
type Outcomes struct {
	Topic   string   `yaml:"topic"`
	Actions []string `yaml:"actions"` // the actions that are compared
	// Window is how long after its answer an outcome counts; 0: an hour.
	Window time.Duration `yaml:"window,omitempty"`
	// AnswerField is the field of the records that holds the receipt's
	// answer_id; empty: answer_id.
	AnswerField string `yaml:"answer_field,omitempty"`
}

const (
	maxSteps      = 50 // of a ramp
	defaultAlpha  = 0.05
	defaultWindow = time.Hour
	// the column of this content in exports has the same name
	defaultAnswerField = "answer_id"
	maxWindow          = 30 * 24 * time.Hour
	maxActions         = 16
	maxActionBytes     = 128
	maxTopicBytes      = 249 // the bound that Kafka has
)

var topicPattern = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// isTopic reports whether a topic of Kafka may have the name.
func isTopic(name string) bool {
	return len(name) <= maxTopicBytes && topicPattern.MatchString(name) && name != "." && name != ".."
}

// For returns Window, or its default if it is left out.
func (o *Outcomes) For() time.Duration { return cmp.Or(o.Window, defaultWindow) }

// Field returns AnswerField, or its default if it is left out.
func (o *Outcomes) Field() string { return cmp.Or(o.AnswerField, defaultAnswerField) }

func (o *Outcomes) text() string {
	if o == nil {
		return ""
	}
	return fmt.Sprintf("%s of %s within %s, by %s", strings.Join(o.Actions, ", "), o.Topic, o.For(), o.Field())
}

func (o *Outcomes) check(f *faults, at string) {
	if o.Topic == "" || len(o.Topic) > maxTopicBytes {
		f.addf(at+".topic", "name the topic that outcomes are written to", "%d bytes", len(o.Topic))
	}
	if n := len(o.Actions); n == 0 || n > maxActions {
		f.addf(at+".actions", fmt.Sprintf("name 1 to %d, such as [click, hide]", maxActions), "%d of them", n)
	}
	for i, a := range o.Actions {
		at, wayOut := fmt.Sprintf("%s.actions[%d]", at, i), "name each action once, as records have it in their type"
		switch {
		case a == "":
			f.addf(at, wayOut, "it is empty")
		case len(a) > maxActionBytes:
			f.addf(at, wayOut, "%.40q has %d bytes, more than %d", a, len(a), maxActionBytes)
		case slices.Contains(o.Actions[:i], a):
			f.addf(at, wayOut, "%.40q is there twice", a)
		}
	}
	if o.Window < 0 || o.Window > maxWindow {
		f.addf(at+".window", "write a time such as 1h", "%s is not between 0 and %s", o.Window, maxWindow)
	}
	if len(o.AnswerField) > maxActionBytes {
		f.addf(at+".answer_field", "name a field of the records", "%d bytes", len(o.AnswerField))
	}
}

// Chance returns Alpha, or its default if it is left out.
func (g *Guards) Chance() float64 {
	if g.Alpha == 0 {
		return defaultAlpha
	}
	return g.Alpha
}

// Next returns the first step above a share; 0 if there is none.
func (r *Ramp) Next(share int) int {
	for _, s := range r.Steps {
		if s > share {
			return s
		}
	}
	return 0
}

// text returns the ramp in words; "" for nil.
func (r *Ramp) text() string {
	if r == nil {
		return ""
	}
	return fmt.Sprintf("%v, each for %s and %d viewers", r.Steps, r.Least, r.Viewers)
}

// text returns the guards as a definition has them; "" for nil.
func (g *Guards) text() string {
	if g == nil {
		return ""
	}
	var all []string
	for _, l := range g.limits() {
		if l.value != 0 {
			all = append(all, fmt.Sprintf("%s: %v", l.name, l.value))
		}
	}
	for _, x := range []struct {
		name   string
		limits map[string]float64
	}{{"fewer", g.Fewer}, {"more", g.More}} {
		var each []string
		for _, action := range slices.Sorted(maps.Keys(x.limits)) {
			each = append(each, fmt.Sprintf("%s: %v", action, x.limits[action]))
		}
		if len(each) > 0 {
			all = append(all, fmt.Sprintf("%s: {%s}", x.name, strings.Join(each, ", ")))
		}
	}
	if g.Alpha != 0 {
		all = append(all, fmt.Sprintf("alpha: %v", g.Alpha))
	}
	return "{" + strings.Join(all, ", ") + "}"
}

// limit is a guard that is one number. Those with a least of 1 are multiples of the control's
// figure, those with a most of 1 are parts, and the others are milliseconds.
type limit struct {
	name        string // the key in YAML
	value       float64
	least, most float64 // the bounds of a value other than 0
}

func (g *Guards) limits() []limit {
	endless := math.MaxFloat64
	return []limit{
		{"refused", g.Refused, 1, endless}, {"empty", g.Empty, 1, endless}, {"partial", g.Partial, 1, endless}, {"nan", g.NaN, 1, endless},
		{"milliseconds", g.Millis, 0, endless}, {"p99", g.P99, 0, endless}, {"cost", g.Cost, 1, endless},
		{"share_of_entity", g.ShareOfEntity, 0, 1}, {"share_of_type", g.ShareOfType, 0, 1}, {"features_missing", g.FeaturesMissing, 0, 1},
	}
}

func (e *Experiment) checkRamp(f *faults, path string) {
	if r := e.Ramp; r != nil {
		at := path + ".ramp"
		if n := len(r.Steps); n == 0 || n > maxSteps {
			f.addf(at+".steps", fmt.Sprintf("write 1 to %d shares, such as [100, 1000, 10000]", maxSteps), "%d of them", n)
		}
		for i, s := range r.Steps {
			if s < 1 || s > slot.Count || i > 0 && s <= r.Steps[i-1] {
				f.addf(fmt.Sprintf("%s.steps[%d]", at, i), "write shares of 10,000 that rise", "%d is not between the one before and %d", s, slot.Count)
				break
			}
		}
		if r.Least < 0 {
			f.addf(at+".least", "write a time such as 1h", "%s is negative", r.Least)
		}
		if r.Viewers < 0 {
			f.addf(at+".viewers", "write how many of each variant", "%d is negative", r.Viewers)
		}
		if r.Least == 0 && r.Viewers == 0 {
			f.addf(at, "write viewers: 1000, and least: 1h beside it", "nothing holds it at a step")
		}
		if e.Guards == nil {
			f.addf(at, "write guards: {refused: 1.5, empty: 1.5}, for one", "it would ramp whatever it does")
		}
	}
	if e.Outcomes != nil {
		e.Outcomes.check(f, path+".outcomes")
	}
	if e.Features < 0 || e.Features > slot.Count {
		f.addf(path+".features", "write 100 for 1 % of the answers", "%d is not between 0 and %d", e.Features, slot.Count)
	}
	g := e.Guards
	if g == nil {
		return
	}
	for _, x := range []struct {
		name      string
		limits    map[string]float64
		low, high float64
		wayOut    string
	}{{"fewer", g.Fewer, 0, 1, "write a part, such as 0.8: a fifth fewer viewers"}, {"more", g.More, 1, math.MaxFloat64, "write a multiple, such as 1.5: half as many again"}} {
		for _, action := range slices.Sorted(maps.Keys(x.limits)) {
			at := fmt.Sprintf("%s.guards.%s.%.40s", path, x.name, action)
			if limit := x.limits[action]; !(limit > 0 && x.low <= limit && limit <= x.high) {
				// A document that was put in place without checkMeant may have values beyond
				// those named here.
				f.addf(at, x.wayOut, "%v is not between %v and %v", limit, max(x.low, 1./maxMultiple), min(x.high, maxMultiple))
			}
			if e.Outcomes == nil || !slices.Contains(e.Outcomes.Actions, action) {
				f.addf(at, "write outcomes: {topic: clicks, actions: [click]}, with this action among them", "it is not among the actions of outcomes")
			}
		}
	}
	guarded := len(g.Fewer) + len(g.More)
	for _, x := range g.limits() {
		if x.value != 0 {
			guarded++
		}
		switch {
		case x.value == 0 || x.value >= x.least && x.value <= x.most:
		case x.most == 1:
			f.addf(path+".guards."+x.name, "write a part, such as 0.1: a tenth of them more", "%v is not between 0 and 1", x.value)
		default:
			f.addf(path+".guards."+x.name, "write a limit, or leave it out", "%v is below %v, or no number", x.value, x.least)
		}
	}
	if g.FeaturesMissing != 0 && e.Features == 0 {
		f.addf(path+".guards.features_missing", "write features: 1000 beside guards, for the features of a tenth of the answers", "no exposure has the features of items")
	}
	if !(g.Alpha >= 0 && g.Alpha <= 0.5) {
		f.addf(path+".guards.alpha", "write a chance such as 0.05", "%v is none, or more than a half", g.Alpha)
	}
	if guarded == 0 {
		f.addf(path+".guards", "write refused: 1.5, for one", "nothing is guarded")
	}
}

// Control returns the variant that the others are compared with: the variant that sets nothing,
// preferably one that units get by chance. If there are several or none, it is the one named
// control, or else the first by name.
func (e *Experiment) Control() string {
	control, _ := e.control()
	return control
}

// control returns what Control returns. said reports whether the definition says that this
// variant is the control: it sets nothing, or is named control.
func (e *Experiment) control() (control string, said bool) {
	best, dealt := -1, e.Dealt()
	for _, v := range byName(e.Variants) {
		rank := 0
		switch plain := v.Set.Nothing(); {
		case plain && slices.Contains(dealt, v.Name):
			rank = 4
		case plain:
			rank = 2
		}
		if v.Name == "control" {
			rank++
		}
		if rank > best {
			control, best = v.Name, rank
		}
	}
	return control, best > 0
}

// Dealt returns the variants, sorted by name, that units get by chance: those with a weight, or
// all if the experiment is monitored.
func (e *Experiment) Dealt() (names []string) {
	for _, a := range armsOf(byName(e.Variants), e.Monitored) {
		if a.Weight > 0 {
			names = append(names, a.Variant)
		}
	}
	return names
}

// ComparesNothing returns why guards cannot compare the variants; "" if they can. Each guard
// compares a variant with the control. So units must get the control and another variant by
// chance, and the definition must say which is the control: if the new ranking were taken for
// the control, a guard would not notice that the new ranking is worse.
func (e *Experiment) ComparesNothing() string {
	dealt := e.Dealt()
	control, said := e.control()
	switch {
	case len(dealt) == 0:
		return ""
	case len(dealt) == 1:
		return fmt.Sprintf("its guards compare with nothing: %s alone has viewers", dealt[0])
	case !slices.Contains(dealt, control):
		return fmt.Sprintf("its guards compare with nothing: %s are compared with %s, which has no viewers", strings.Join(dealt, " and "), control)
	case !said:
		return fmt.Sprintf("its guards do not know what to compare with: no variant sets nothing, and none of %s is named control", strings.Join(dealt, ", "))
	}
	return ""
}

// comparesWayOut returns the way out if ComparesNothing has a reason.
func (e *Experiment) comparesWayOut() string {
	if len(e.Variants) == 1 {
		return "add a variant without set that has a weight, as control; or leave guards and ramp out, and millrace experiment ramp raises the share"
	}
	if _, said := e.control(); !said {
		return "let the variant that shows what viewers have now set nothing, or name it control"
	}
	return "give the control a weight; or write monitored: true, which deals all variants evenly; or leave guards and ramp out, and millrace experiment ramp raises the share"
}
