package slot

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/millrace/millrace"
)

// Range is the slots From to To of a layer, both included.
type Range struct {
	From int `json:"from"`
	To   int `json:"to"`
}

// Arm is a variant of an experiment. Weight is how many of [Count] draws give the variant.
type Arm struct {
	Variant string `json:"variant"`
	Weight  int    `json:"weight"`
}

// Rule is what a caller needs to work out, without asking a broker, which variant of an
// experiment a unit has at the moment. The caller must also evaluate the targeting for the
// viewer: see Targeting.
// See the package's comment for layers, slots and draws.
type Rule struct {
	Experiment string            `json:"experiment"`
	Feeds      []string          `json:"feeds"`            // the feeds on which the experiment runs
	Salt       string            `json:"salt"`             // the salt of the layer
	Unit       string            `json:"unit"`             // viewer, attribute NAME or entity
	Slots      []Range           `json:"slots"`            // the experiment's slots, ascending
	Arms       []Arm             `json:"arms"`             // in the order of their names, by bytes
	Forced     map[string]string `json:"forced,omitempty"` // variants of named viewers or entities, not dealt by chance
	// Elsewhere are, by feed, the viewers or entities that are in another experiment of the
	// layer there, and so have no variant of this one. Either the other experiment names
	// them, or this one is a draft (an interleaving of several models' rankings) that names
	// them, and their slot is the other's.
	Elsewhere map[string][]string `json:"elsewhere,omitempty"`
	// Taken are, by feed, the slots of other experiments of the layer. They are given only
	// if this experiment is a draft in a layer of an attribute. Viewers that such a draft
	// names stay in the experiment that has their slot.
	Taken map[string][]Range `json:"taken,omitempty"`
	// Targeting is a condition, in CEL, for those who get a variant by their slot. It does
	// not apply to those whom the experiment names. Empty: there is none.
	Targeting string `json:"targeting,omitempty"`
}

// Whom is a viewer or an entity whose variant a caller asks for.
type Whom struct {
	ID      string // the id of the viewer or the entity
	Unit    string // what falls into a slot: the ID; in a layer of an attribute, [UnitOf] its value
	Outside bool   // the targeting does not take them
}

// ReadRule reads a rule in JSON. It refuses one that no broker gives: its slots, arms or
// feeds are impossible. The error is a millrace.Error that names the field.
func ReadRule(src []byte) (Rule, error) {
	var r Rule
	if err := json.Unmarshal(src, &r); err != nil {
		return Rule{}, &millrace.Error{Reason: millrace.ReasonInvalid, Detail: fmt.Sprintf("not a rule of an experiment: %v", err), WayOut: "give one like {\"experiment\":\"e\",\"feeds\":[\"home\"],\"salt\":\"s\",\"unit\":\"viewer\",\"slots\":[{\"from\":0,\"to\":999}],\"arms\":[{\"variant\":\"a\",\"weight\":10000}]}"}
	}
	return r, r.check()
}

func (r *Rule) check() error {
	fault := func(field, format string, args ...any) error {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: field, Detail: fmt.Sprintf(format, args...), WayOut: "take the rule as it was given"}
	}
	if len(r.Feeds) == 0 {
		return fault("feeds", "it is on no feed")
	}
	for i, s := range r.Slots {
		if s.From < 0 || s.To < s.From || s.To >= Count || i > 0 && s.From <= r.Slots[i-1].To {
			return fault(fmt.Sprintf("slots[%d]", i), "%d to %d is no range of slots that ascend below %d", s.From, s.To, Count)
		}
	}
	sum := 0
	for i, a := range r.Arms {
		if a.Weight < 0 || a.Weight > Count || i > 0 && a.Variant <= r.Arms[i-1].Variant {
			return fault(fmt.Sprintf("arms[%d]", i), "%q with weight %d, where names ascend and weights are 0 to %d", a.Variant, a.Weight, Count)
		}
		sum += a.Weight
	}
	if sum != Count {
		return fault("arms", "the weights come to %d and not to %d", sum, Count)
	}
	return nil
}

// MaxUnitBytes is how many bytes a unit may have. A longer one has no slot.
const MaxUnitBytes = 512

// UnitOf returns the unit of an attribute's value, as JSON decodes it: of a text, a
// boolean, or a number that is whole and within ±2^53. It returns "" for any other value,
// which has no slot.
func UnitOf(value any) string {
	switch x := value.(type) {
	case string:
		if len(x) <= MaxUnitBytes {
			return x
		}
	case bool:
		return strconv.FormatBool(x)
	case float64:
		if x == math.Trunc(x) && math.Abs(x) <= 1<<53 {
			return strconv.FormatInt(int64(x), 10)
		}
	}
	return ""
}

// Assign is [Rule.AssignTo] for a unit that the targeting takes. In a layer of an attribute,
// it is for a viewer whom no experiment names.
func (r *Rule) Assign(feed, unit string) (variant string, ok bool) {
	if r.byAttribute() {
		return r.AssignTo(feed, Whom{Unit: unit})
	}
	return r.AssignTo(feed, Whom{ID: unit, Unit: unit})
}

// byAttribute reports whether the units of the layer are values of an attribute.
func (r *Rule) byAttribute() bool { return r.Unit != "viewer" && r.Unit != "entity" }

// AssignTo returns the variant that a broker gives somebody on a feed, and whether they have
// one. Without an ID, they are taken to be named by no experiment. Without a unit, or with
// one of more than MaxUnitBytes, they have no slot.
func (r *Rule) AssignTo(feed string, who Whom) (variant string, ok bool) {
	if !slices.Contains(r.Feeds, feed) {
		return "", false
	}
	at := -1
	if who.Unit != "" && len(who.Unit) <= MaxUnitBytes {
		at = Of(r.Salt, who.Unit)
	}
	if who.ID != "" {
		if slices.Contains(r.Elsewhere[feed], who.ID) {
			return "", false
		}
		if v, ok := r.Forced[who.ID]; ok && !In(r.Taken[feed], at) {
			return v, true
		}
	}
	if who.Outside || at < 0 || !In(r.Slots, at) {
		return "", false
	}
	return r.Arms[ArmOf(r.Arms, Draw(r.Salt, r.Experiment, who.Unit))].Variant, true
}

// In reports whether a slot is in one of the ranges, which ascend.
func In(ranges []Range, slot int) bool {
	_, ok := slices.BinarySearchFunc(ranges, slot, func(r Range, s int) int {
		if r.To < s {
			return -1
		}
		return max(0, cmp.Compare(r.From, s))
	})
	return ok
}

// ArmOf returns the index of the arm to which a draw falls. The sum of the weights must be
// [Count], and the draw below it.
func ArmOf(arms []Arm, draw int) int {
	for i := range arms {
		if draw -= arms[i].Weight; draw < 0 {
			return i
		}
	}
	panic("slot: weights that do not come to 10,000")
}
