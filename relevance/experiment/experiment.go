// Package experiment says which variants of a feed a viewer gets. It reads the
// definitions of layers and experiments ([Parse]), holds them against each other
// ([Admit]), and assigns viewers and entities by hashes alone ([Set.Assign]):
// nothing is stored about anybody.
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
//	    slots: [0-3999, 4500]   # of 10,000, this experiment's alone
//	    share: 500              # of 10,000 of its slots: the ramp
//	    targeting: viewer.country in ["de", "fr"]
//	    variants:
//	      - {name: control, weight: 5000}
//	      - {name: treatment, weight: 5000, set: {model: home2, limit: 30}}
//	    forced: {alice: treatment}
//	    ramp: {steps: [100, 1000, 10000], least: 1h, viewers: 1000}
//	    guards: {refused: 1.5, empty: 1.5, fewer: {click: 0.8}}
//	    outcomes: {topic: clicks, actions: [click], window: 1h}
//	    features: 100           # of 10,000 answers, whose exposures have them
//
// Package internal/slot says byte for byte how a unit is dealt. DESIGN.md says
// what may change while an experiment runs.
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
	MaxLayers         = 100   // of all documents together
	MaxExperiments    = 1_000 // of all documents together
	MaxVariants       = 16    // of an experiment: its arms
	MaxFeeds          = 50    // of an experiment
	MaxRanges         = 100   // of slots, of an experiment or a holdout
	MaxForced         = 100   // viewers or entities of an experiment
	MaxTargetingBytes = 4_000 // of an experiment, and of all that one viewer can meet in a feed
	MaxWeights        = 100   // of a model, of a variant
	MaxGroups         = 16    // of the entities of an answer
)

// The bounds of what a variant sets are those of a feed.
const (
	maxFilterBytes = 8_000
	maxTypes       = 100
	maxLimit       = 1_000 // items
	maxSpacing     = 10    // items
	maxUnitBytes   = 512   // of a viewer's id, an attribute's text or an entity; more is no unit
	maxTargeted    = 256   // bytes of a text, or values of a list, that targeting reads; more is as if it was missing
	maxKeyBytes    = 128   // of a weight
)

// Document is one file of definitions. Names of layers and of experiments are
// unique over all documents.
type Document struct {
	Name        string       `yaml:"-"` // of the file, as errors say it
	Layers      []Layer      `yaml:"layers,omitempty"`
	Experiments []Experiment `yaml:"experiments,omitempty"`

	// Gone is when one of its name was dropped last, whose experiments were others than
	// those that have their names now, by the clock of who dropped it; 0: it is not known
	// that one was.
	Gone millrace.Time `yaml:"-"`

	root *document.Node // where things stand; nil if it was not read from YAML
}

// Layer divides units over 10,000 slots. Layers are independent of each other
// by their salts; the experiments of a layer exclude each other by their slots.
type Layer struct {
	Name    string   `yaml:"name"`
	Salt    string   `yaml:"salt"`              // of this layer alone
	Unit    string   `yaml:"unit"`              // what falls into a slot: "viewer", "attribute NAME" or "entity"
	Holdout []string `yaml:"holdout,omitempty"` // slots that no experiment may have, as in Experiment.Slots
}

// Experiment is a part of a layer's slots, and what units in them get.
type Experiment struct {
	Name  string   `yaml:"name"`
	Layer string   `yaml:"layer"`
	Feeds []string `yaml:"feeds"` // that it applies to
	State State    `yaml:"state"`
	Slots []string `yaml:"slots"` // ranges such as "0-499", both included, or single slots
	// Share is how many of 10,000 of its slots are in use, the lowest first,
	// rounded down.
	Share int `yaml:"share"`
	// Monitored deals the slots in use evenly among the variants, whatever
	// their weights, so that arms of equal size are compared at every share.
	Monitored bool `yaml:"monitored,omitempty"`
	// Targeting is CEL over viewer.*, as in a filter; empty: everybody. Who it
	// is not true of gets no variant.
	Targeting string    `yaml:"targeting,omitempty"`
	Variants  []Variant `yaml:"variants"`
	// Forced are variants of named viewers (of named entities, in a layer of
	// entities), whatever their slot and the targeting. They are not dealt by
	// chance and must not be counted.
	Forced map[string]string `yaml:"forced,omitempty"`
	// Features is of how many of 10,000 answers exposures have the features that
	// the items were scored by: to train on. Pages that two models draft have none.
	Features int `yaml:"features,omitempty"`
	// Ramp and Guards are for coordinators; nil: nobody changes the share, and
	// nobody pauses the experiment, but people.
	Ramp   *Ramp   `yaml:"ramp,omitempty"`
	Guards *Guards `yaml:"guards,omitempty"`
	// Outcomes are what its variants are compared by beside their answers; nil:
	// nothing.
	Outcomes *Outcomes `yaml:"outcomes,omitempty"`
}

// Variant is one arm of an experiment.
type Variant struct {
	Name   string `yaml:"name"`
	Weight int    `yaml:"weight"`        // of 10,000; an experiment's come to 10,000
	Set    Sets   `yaml:"set,omitempty"` // nothing: the feed as it is defined
}

// Sets is what a variant changes of a feed's definition. What is left out, nil
// or zero, stays as the feed says.
type Sets struct {
	Model string `yaml:"model,omitempty" json:"model,omitempty"`
	// Interleave are two models whose rankings draft one page in turns.
	Interleave []string `yaml:"interleave,omitempty" json:"interleave,omitempty"`
	// Weights stand in place of those of Model, or of the feed's own: by feature,
	// or by feature.value for a category, bias, or tables.name.key.
	Weights      map[string]float64     `yaml:"weights,omitempty" json:"weights,omitempty"`
	Filter       *string                `yaml:"filter,omitempty" json:"filter,omitempty"` // "": none
	Window       *time.Duration         `yaml:"window,omitempty" json:"window,omitempty"` // 0: no limit
	Types        []millrace.ContentType `yaml:"types,omitempty" json:"types,omitempty"`
	CapPerEntity *int                   `yaml:"cap_per_entity,omitempty" json:"cap_per_entity,omitempty"` // 0: no cap
	Spacing      *Spacing               `yaml:"spacing,omitempty" json:"spacing,omitempty"`
	Limit        int                    `yaml:"limit,omitempty" json:"limit,omitempty"`
}

// Spacing is how many other items stand between two of one entity, or of one
// type; 0: none need to. Both replace the feed's.
type Spacing struct {
	Entity int `yaml:"entity,omitempty" json:"entity,omitempty"`
	Type   int `yaml:"type,omitempty" json:"type,omitempty"`
}

// State says whether an experiment assigns.
type State string

// The states of an experiment. Only a running one assigns by chance; a draft
// assigns forced viewers, so that it can be looked at. A paused one keeps its
// slots and goes on with the same units; a stopped one gives its slots back and
// never runs again.
const (
	Draft   State = "draft"
	Running State = "running"
	Paused  State = "paused"
	Stopped State = "stopped"
)

// Known says what definitions may refer to.
type Known interface {
	HasFeed(name string) bool
	HasModel(name string) bool
	// IsPrivate reports whether what a feed drops must not be shown: no variant
	// may set its filter, window or types. The error says why that is not known.
	IsPrivate(feed string) (bool, error)
	// CheckFilter returns why index nodes would refuse a filter, or nil.
	CheckFilter(src string) error
	// CheckWeights returns why index nodes would refuse weights, or nil. The model
	// is that of the feed where none is named, and [OwnModelGone] says that it does
	// not serve; a [millrace.Error] of the field weights says which of them it lacks.
	CheckWeights(feed, model string, set map[string]float64) error
}

// Parse reads a document in YAML and reports all that is wrong with it by
// itself at once, as an [Error], with the document as far as it could be read. Name
// is what errors call it. What it costs is bounded whatever the file holds.
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

// inUse returns the part of slots that a share of 10,000 takes, the lowest
// first, and how many they are.
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
