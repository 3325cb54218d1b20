// Package feeds has the definitions of feeds: what they say and forbid, how one is
// checked and stored, which of them a broker serves now, and which served when the
// first page of a request was made.
package feeds

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/limits"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/document"
)

// Feed is a feed definition: what a request for the feed gets, unless the request says
// otherwise. In YAML its fields are in lower case, words joined by '_'.
type Feed struct {
	Name   string                 `yaml:"name"`
	Types  []millrace.ContentType `yaml:"types,omitempty"`  // the content types that may be asked for; empty: all
	Filter string                 `yaml:"filter,omitempty"` // joined with the request's by "and"
	Window time.Duration          `yaml:"window,omitempty"` // how far back from as_of, such as 168h; 0: no limit
	Model  string                 `yaml:"model"`
	// Shadow are models that do not rank answers. They score each item beside Model
	// if a request asks to explain.
	Shadow []string `yaml:"shadow,omitempty"`
	// ShadowShare is the share of answers, from 0 to 1, that each model of Shadow
	// ranks again after the answer, to count how far its ranking would differ.
	ShadowShare float64 `yaml:"shadow_share,omitempty"`
	// DistinctObjects shows only the best record of each object, and up to three
	// others below it as "also". An object is what a record is about, such as the
	// post that a like is of.
	DistinctObjects bool `yaml:"distinct_objects,omitempty"`
	CapPerEntity    int  `yaml:"cap_per_entity,omitempty"` // 0: no cap
	Limit           int  `yaml:"limit,omitempty"`          // items on a page if the request gives no limit; 0: DefaultLimit
	// Spacing moves items of a page apart.
	Spacing Spacing `yaml:"spacing,omitempty"`
	// Forbid is what callers may not ask of the feed.
	Forbid Forbid `yaml:"forbid,omitempty"`
	// Private forbids all by which a caller could learn of records that the feed
	// drops: explain (in a request for the feed), the request /v1/why, an as_of in the past
	// or a window beyond the feed's own, and, of all callers of the broker, the built-in
	// feeds, which show the same timelines.
	Private bool `yaml:"private,omitempty"`

	refused bool // the broker cannot use the definition, and refuses requests for the feed; that it forbids the built-in feeds holds all the same
	// Version is the number of the definition in the cluster; 0 if it is not from there.
	Version int64 `yaml:"-"`

	builtIn bool // the feed is as it came with Millrace
	// interleaved is the model that takes turns with Model to choose the items of a page,
	// if a variant sets that; "" if none does.
	interleaved string
	edition     artefacts.Version // the version of the definition, which page tokens carry
}

// Spacing is how many other items stand between two of one entity, or of one
// type, as far as a page has others; 0: none need to.
type Spacing struct {
	Entity int `yaml:"entity,omitempty"`
	Type   int `yaml:"type,omitempty"`
}

// DefaultLimit is how many items a page holds at most, unless the feed or the request gives
// a limit.
const DefaultLimit = 20

// BuiltIn returns the feeds that come with Millrace: recent and home. Every broker serves
// them, unless a definition replaces or forbids them.
func BuiltIn() []Feed {
	return []Feed{
		{Name: "recent", Model: "recency", Limit: DefaultLimit, builtIn: true},
		{
			Name: "home", Model: "home", Limit: DefaultLimit, builtIn: true, DistinctObjects: true, CapPerEntity: 3,
			Types: []millrace.ContentType{"post", "share", "like", "comment"},
		},
	}
}

// maxShadow is how many models may score beside that of a feed.
const maxShadow = 8

// maxFeedBytes bounds a definition's file.
const maxFeedBytes = 64 << 10

// Parse reads a feed definition in YAML and reports all its faults at
// once.
func Parse(file []byte) (f Feed, err error) {
	if len(file) > maxFeedBytes {
		return Feed{}, fmt.Errorf("feed: more than %d bytes", maxFeedBytes)
	}
	if err := document.Decode(file, &f); err != nil {
		return Feed{}, fmt.Errorf("feed: %w", err)
	}
	return f, f.Validate()
}

// FaultWayOut is the way out that a caller is told about a feed that has a fault.
const FaultWayOut = "who runs it finds the fault by millrace feed list"

// Validate reports every fault at once.
func (f Feed) Validate() error {
	var errs []error
	fault := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("feed %q: %s: %s", f.Name, field, fmt.Sprintf(format, args...)))
	}
	if !limits.NamePattern.MatchString(f.Name) {
		fault("name", "want a letter, then up to 62 letters, digits, '_', '.' and '-'")
	}
	if !limits.NamePattern.MatchString(f.Model) {
		fault("model", "%q is not the name of a model; recency always is there", f.Model)
	}
	if len(f.Shadow) > maxShadow {
		fault("shadow", "%d models, more than %d", len(f.Shadow), maxShadow)
	}
	for i, m := range f.Shadow {
		if !limits.NamePattern.MatchString(m) {
			fault(fmt.Sprintf("shadow[%d]", i), "%q is not the name of a model", m)
		}
		if m == f.Model || slices.Contains(f.Shadow[:i], m) {
			fault(fmt.Sprintf("shadow[%d]", i), "%q is there twice", m)
		}
	}
	switch {
	case !(f.ShadowShare >= 0 && f.ShadowShare <= 1):
		fault("shadow_share", "%v is not between 0 and 1", f.ShadowShare)
	case f.ShadowShare > 0 && len(f.Shadow) == 0:
		fault("shadow_share", "there are no models in shadow to rank answers again")
	}
	if len(f.Types) > limits.MaxTypes {
		fault("types", "%d of them, more than %d; leave them out for all", len(f.Types), limits.MaxTypes)
	}
	for i, t := range f.Types {
		if err := limits.CheckText(string(t), millrace.MaxTypeBytes); err != nil {
			fault(fmt.Sprintf("types[%d]", i), "%v", err)
		}
		if slices.Contains(f.Types[:i], t) {
			fault(fmt.Sprintf("types[%d]", i), "%q is there twice", t)
		}
	}
	if err := limits.CheckFilter(f.Filter); err != nil {
		fault("filter", "%v", err)
	}
	if f.Window < 0 {
		fault("window", "%s is negative; leave it out for no limit", f.Window)
	}
	if f.CapPerEntity < 0 || f.CapPerEntity > math.MaxInt32 {
		fault("cap_per_entity", "%d is not between 1 and %d; leave it out for no cap", f.CapPerEntity, math.MaxInt32)
	}
	if f.Spacing.Entity < 0 || f.Spacing.Entity > maxSpacing {
		fault("spacing.entity", "%d is not between 0 and %d", f.Spacing.Entity, maxSpacing)
	}
	if f.Spacing.Type < 0 || f.Spacing.Type > maxSpacing {
		fault("spacing.type", "%d is not between 0 and %d", f.Spacing.Type, maxSpacing)
	}
	if f.Limit < 0 || f.Limit > limits.MaxLimit {
		fault("limit", "%d is not between 1 and %d; leave it out for %d", f.Limit, limits.MaxLimit, DefaultLimit)
	}
	return errors.Join(errs...)
}

// IsRefused reports whether the cluster's definition of the feed has a fault and no
// earlier one is good, so that the feed answers nobody.
func (f *Feed) IsRefused() bool { return f.refused }

// IsBuiltIn reports whether the feed is as it came with Millrace.
func (f *Feed) IsBuiltIn() bool { return f.builtIn }

// Edition returns the version of the definition. All pages of a request go by the same one.
func (f *Feed) Edition() artefacts.Version { return f.edition }

// Beside returns the model that takes turns with the feed's to choose items, if a variant
// sets one; else "".
func (f *Feed) Beside() string { return f.interleaved }
