package fanout

import (
	"maps"
	"slices"
	"strings"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
)

// Unseen are content types that no record has, by what index nodes say. Before the
// first record no type is known, and none of them is unseen.
type Unseen struct {
	types []string // that no node heard has a record of
	known map[string]bool
}

// UnseenOf returns types of which no node has been heard yet.
func UnseenOf(types []string) *Unseen {
	return &Unseen{slices.Clone(types), map[string]bool{}}
}

// Hear takes in what a node said that was asked for the types, or for more.
func (u *Unseen) Hear(resp *nodev1.QueryResponse) {
	u.types = slices.DeleteFunc(u.types, func(t string) bool { return !slices.Contains(resp.GetUnknownTypes(), t) })
	for _, t := range resp.GetKnownTypes() {
		u.known[t] = true
	}
}

// Open reports whether another node may know one of the types.
func (u *Unseen) Open() bool { return len(u.types) > 0 }

// Types returns the types that no record has, as all that were heard say it.
func (u *Unseen) Types() []string {
	if len(u.known) == 0 {
		return nil
	}
	return u.types
}

// Known returns the types that records have, as a list in words.
func (u *Unseen) Known() string { return strings.Join(slices.Sorted(maps.Keys(u.known)), ", ") }
