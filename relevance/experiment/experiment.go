// Package experiment says which variants of a feed a viewer gets. It reads the definitions of
// layers and experiments ([Parse]), checks them against each other ([Admit]), and gives viewers
// and entities their variants by hashes alone ([Set.Assign]): nothing is stored about anybody.
//
// A unit is what gets a variant: a viewer, all viewers with one value of an attribute, or an
// entity. A layer hashes each unit into one of 10,000 slots. The experiment that has the slot
// hashes the unit again, to a draw of 10,000, and the weights of its variants divide the
// draws: so a variant is dealt. An arm is a variant with its weight. A variant is forced on a
// viewer or entity if the definition names them for it.
//
// An exposure is the record of an answer for analysis: what it showed, and by which variants. A
// coordinator is a process of the cluster that ramps and pauses experiments by itself.
//
//	layers:
//	  - name: ranking
//	    salt: ranking-2026
//	    unit: viewer            # or: attribute NAME, or: entity
//	    holdout: [9500-9999]    # slots that no experiment may have
//	experiments:
//	  - name: fresher
//	    layer: ranking
//	    feeds: [home]
//	    state: running          # draft, running, paused or stopped
//	    slots: [0-3999, 4500]   # of 10,000; no other experiment has them
//	    share: 500              # of 10,000 of its slots, which are in use
//	    targeting: viewer.country in ["de", "fr"]
//	    variants:
//	      - {name: control, weight: 5000}
//	      - {name: treatment, weight: 5000, set: {model: home2, limit: 30}}
//	    forced: {alice: treatment}
//	    ramp: {steps: [100, 1000, 10000], least: 1h, viewers: 1000}
//	    guards: {refused: 1.5, empty: 1.5, fewer: {click: 0.8}}
//	    outcomes: {topic: clicks, actions: [click], window: 1h}
//	    features: 100           # of 10,000 answers have features in their exposures
//
// Package internal/slot says byte for byte how the hashes are made. DESIGN.md says what may
// change while an experiment runs.
package experiment

import (
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/internal/slot"
)

// The bounds of definitions.
const (
	MaxDocumentBytes  = 256 << 10
	MaxLayers         = 100   // in all documents together
	MaxExperiments    = 1_000 // in all documents together
	MaxVariants       = 16    // in an experiment: its arms
	MaxFeeds          = 50    // that an experiment applies to
	MaxRanges         = 100   // of slots, in an experiment or a holdout
	MaxForced         = 100   // viewers or entities that an experiment names
	MaxTargetingBytes = 4_000 // of an experiment; also of the longest targetings of all layers of a feed together
	MaxWeights        = 100   // that a variant sets
	MaxGroups         = 16    // groups of entities in an answer, by what their variants set
)

// The bounds of what a variant sets are those of a feed's definition.
const (
	maxFilterBytes = 8_000
	maxTypes       = 100
	maxLimit       = 1_000 // items
	maxSpacing     = 10    // items
	maxUnitBytes   = 512   // of the id of a forced viewer or entity
	maxTargeted    = 256   // bytes of a text, or values of a list, that targeting reads; a longer one counts as missing
	maxKeyBytes    = 128   // of the name of a weight
)

// Document is one file of definitions. Names of layers and of experiments are
// unique over all documents.
type Document struct {
	Name        string       `yaml:"-"` // the name of the document in errors; "": it has none
	Layers      []Layer      `yaml:"layers,omitempty"`
	Experiments []Experiment `yaml:"experiments,omitempty"`

	// Gone is when a document of this name was last dropped, by the clock of the process that
	// dropped it. Experiments that this document had before are not the experiments that have
	// the same names now. 0: no document of this name was dropped, as far as is known.
	Gone millrace.Time `yaml:"-"`

	root *document.Node // the YAML, for lines and columns of faults; nil if it was not read from YAML
}

// Layer divides units over 10,000 slots. Each layer has a salt of its own, so that layers are
// independent of each other. Each experiment of a layer has slots of its own, so that a unit is
// in one of them at most.
type Layer struct {
	Name    string   `yaml:"name"`
	Salt    string   `yaml:"salt"`              // goes into the hash; no other layer has it
	Unit    string   `yaml:"unit"`              // what falls into a slot: "viewer", "attribute NAME" or "entity"
	Holdout []string `yaml:"holdout,omitempty"` // slots that no experiment may have, as in Experiment.Slots
}

// Experiment is a part of a layer's slots, and the variants that units in them get.
type Experiment struct {
	Name  string   `yaml:"name"`
	Layer string   `yaml:"layer"`
	Feeds []string `yaml:"feeds"` // the feeds that it applies to
	State State    `yaml:"state"`
	Slots []string `yaml:"slots"` // ranges such as "0-499", both included, or single slots
	// Share is what part of its slots are in use, of 10,000: 500 is 5 %. The lowest slots are
	// used first, and their number is rounded down.
	Share int `yaml:"share"`
	// Monitored divides the draws evenly among the variants, whatever their weights, so that
	// variants with about equally many units are compared at every share.
	Monitored bool `yaml:"monitored,omitempty"`
	// Targeting is a condition in CEL over viewer.*, as in a filter; empty: everybody. A viewer
	// for whom it is not true gets no variant.
	Targeting string    `yaml:"targeting,omitempty"`
	Variants  []Variant `yaml:"variants"`
	// Forced are the variants of named viewers (in a layer of entities, of named entities),
	// whatever their slot and the targeting. These viewers do not have their variants by chance,
	// and so must not be counted where variants are compared.
	Forced map[string]string `yaml:"forced,omitempty"`
	// Features is how many of 10,000 answers have, in their exposures, the features that their
	// items were scored by, for the training of models. Pages that two models draft have none.
	Features int `yaml:"features,omitempty"`
	// Ramp and Guards are for coordinators. Ramp nil: only people change the share. Guards nil:
	// only people pause the experiment.
	Ramp   *Ramp   `yaml:"ramp,omitempty"`
	Guards *Guards `yaml:"guards,omitempty"`
	// Outcomes say which actions of viewers are compared between the variants, beside their
	// answers; nil: none.
	Outcomes *Outcomes `yaml:"outcomes,omitempty"`
}

// Variant is one arm of an experiment.
type Variant struct {
	Name   string `yaml:"name"`
	Weight int    `yaml:"weight"`        // how many of 10,000 draws it has; those of an experiment add up to 10,000
	Set    Sets   `yaml:"set,omitempty"` // zero: the feed as it is defined
}

// Sets is what a variant changes of a feed's definition. A field that is nil or zero leaves
// what the feed says.
type Sets struct {
	Model string `yaml:"model,omitempty" json:"model,omitempty"`
	// Interleave are two models whose rankings draft one page in turns.
	Interleave []string `yaml:"interleave,omitempty" json:"interleave,omitempty"`
	// Weights replace weights of Model, or of the feed's model if Model is "". The name of a
	// weight is the name of a feature, FEATURE.VALUE for a value of a category, bias, or
	// tables.TABLE.KEY.
	Weights      map[string]float64     `yaml:"weights,omitempty" json:"weights,omitempty"`
	Filter       *string                `yaml:"filter,omitempty" json:"filter,omitempty"` // "": none
	Window       *time.Duration         `yaml:"window,omitempty" json:"window,omitempty"` // 0: no limit
	Types        []millrace.ContentType `yaml:"types,omitempty" json:"types,omitempty"`
	CapPerEntity *int                   `yaml:"cap_per_entity,omitempty" json:"cap_per_entity,omitempty"` // 0: no cap
	Spacing      *Spacing               `yaml:"spacing,omitempty" json:"spacing,omitempty"`
	Limit        int                    `yaml:"limit,omitempty" json:"limit,omitempty"`
}

// Spacing is how many other items there are at least between two items of one entity, and
// between two of one type; 0: none need be. It replaces both numbers of the feed.
type Spacing struct {
	Entity int `yaml:"entity,omitempty" json:"entity,omitempty"`
	Type   int `yaml:"type,omitempty" json:"type,omitempty"`
}

// State says whether an experiment gives units their variants.
type State string

// The states of an experiment. Only a running one deals variants by chance. A draft gives
// variants to forced units alone, so that people can look at it. A paused one gives none; it
// keeps its slots, and when it runs again the same units have the same variants. A stopped one
// gives its slots back and never runs again.
const (
	Draft   State = "draft"
	Running State = "running"
	Paused  State = "paused"
	Stopped State = "stopped"
)

// Known says what definitions may refer to in a cluster.
type Known interface {
	HasFeed(name string) bool
	HasModel(name string) bool
	// IsPrivate reports whether a feed is private: records that it drops must not be shown,
	// so no variant may set its filter, window or types. The error says why it is not known.
	IsPrivate(feed string) (bool, error)
	// CheckFilter returns why index nodes would refuse a filter, or nil.
	CheckFilter(src string) error
	// CheckWeights returns why index nodes would refuse weights of a model, or nil. If model is
	// "", they are of the feed's own model; the error is [OwnModelGone] if that does not serve.
	// A [millrace.Error] of the field weights says which weights the model does not have.
	CheckWeights(feed, model string, set map[string]float64) error
}

// Parse reads a document in YAML. name is the name of the document in errors. The error is an
// [Error] with all faults that the document has by itself. If the YAML could be decoded, the
// document is returned beside the error; otherwise the zero Document is. The time and memory
// that Parse takes are bounded whatever is in src.
func Parse(name string, src []byte) (Document, error) {
	d := Document{Name: name}
	f := &faults{name: name}
	if len(src) > MaxDocumentBytes {
		f.addf("", "leave some out, or keep them in several documents", "more than %d bytes", MaxDocumentBytes) // src may be the beginning of a longer file
		return Document{}, f.orNil()
	}
	root, err := document.Parse(src)
	if err == nil {
		err = root.Decode(&d)
	}
	if err != nil {
		f.take(err)
		return Document{}, f.orNil()
	}
	d.root, f.root = root, root
	if len(d.Layers)+len(d.Experiments) == 0 {
		f.addf("", "begin with layers: or experiments:", "the document is empty")
	}
	d.check(f)
	return d, f.orNil()
}

// Encode writes a document in YAML, as [Parse] reads it, without the comments
// that it had.
func (d *Document) Encode() ([]byte, error) { return document.Encode(d) }

// inUse returns the slots that a share, of 10,000, uses, and their number. They are the lowest
// of slots.
func inUse(slots []slot.Range, share int) (used []slot.Range, n int) {
	left := count(slots) * share / slot.Count
	for _, r := range slots {
		if left == n {
			break
		}
		r.To = min(r.To, r.From+left-n-1)
		used = append(used, r)
		n += r.To - r.From + 1
	}
	return used, n
}

func count(slots []slot.Range) (n int) {
	for _, r := range slots {
		n += r.To - r.From + 1
	}
	return n
}
