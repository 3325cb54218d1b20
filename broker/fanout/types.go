package fanout

import (
	"maps"
	"slices"
	"strings"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
)

// Unseen finds out which of some content types no index node has seen in a record. As long
// as the nodes know no type at all, because there are no records yet, no type counts as
// unseen.
type Unseen struct {
	types []string // those that no node heard so far knows
	known map[string]bool
}

// UnseenOf returns an Unseen of types, before any node has been heard.
func UnseenOf(types []string) *Unseen {
	return &Unseen{slices.Clone(types), map[string]bool{}}
}

// Hear takes in the response of a node that was asked for the types, or for more types.
func (u *Unseen) Hear(resp *nodev1.QueryResponse) {
	u.types = slices.DeleteFunc(u.types, func(t string) bool { return !slices.Contains(resp.GetUnknownTypes(), t) })
	for _, t := range resp.GetKnownTypes() {
		u.known[t] = true
	}
}

// Open reports whether some type is still unknown, so that it helps to ask another node.
func (u *Unseen) Open() bool { return len(u.types) > 0 }

// Types returns the types that none of the nodes heard knows; nil if they know no type.
func (u *Unseen) Types() []string {
	if len(u.known) == 0 {
		return nil
	}
	return u.types
}

// Known returns the types that the nodes heard know, sorted and joined by ", ".
func (u *Unseen) Known() string { return strings.Join(slices.Sorted(maps.Keys(u.known)), ", ") }
