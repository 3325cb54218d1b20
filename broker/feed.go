package broker

import (
	"errors"
	"time"

	"github.com/millrace/millrace"
)

// Feed is a feed definition: what a request that names it gets unless it says
// otherwise.
type Feed struct {
	Name   string                 `yaml:"name"`
	Types  []millrace.ContentType `yaml:"types"`  // the types that may be asked for; empty: all
	Filter string                 `yaml:"filter"` // joined with the request's by "and"
	Window time.Duration          `yaml:"window"` // how far back from as_of; 0: no limit
	Model  string                 `yaml:"model"`
	// DistinctObjects shows the best record of each object, others as "also".
	DistinctObjects bool `yaml:"distinct_objects"`
	CapPerEntity    int  `yaml:"cap_per_entity"` // 0: no cap
	Limit           int  `yaml:"limit"`          // of a request that names none; 0: 20
}

// ParseFeed reads a feed definition in YAML and reports all its faults at
// once.
func ParseFeed(file []byte) (Feed, error) { return Feed{}, errors.New("broker: not finished yet") }

// BuiltIn returns the feeds that every broker serves: recent and home.
func BuiltIn() []Feed {
	return []Feed{
		{Name: "recent", Model: "recency", Limit: 20},
		{Name: "home", Model: "home", Limit: 20, DistinctObjects: true, CapPerEntity: 3, Types: []millrace.ContentType{"post", "share", "like", "comment"}},
	}
}
