package cluster

import (
	"slices"
	"sync"
)

// The kinds of what brokers go by that is no document.
const (
	SecretsKind = "secrets" // [secrets.Generations]
	TraceKind   = "trace"   // [brokers.Traced]
)

// Applied is what a process goes by of one kind: it has taken over what was there at
// a revision, but for some.
type Applied struct {
	// Revision is of a change in etcd. What etcd has lost, by what the process
	// remembers, counts as nothing: 0.
	Revision int64 `json:"revision"`
	// Not are the names of what it has heard of and does not go by, as it could not
	// take it over, or has not yet. After the first few it is [AnyName].
	Not []string `json:"not,omitempty"`
}

// AnyName stands for all names that are not listed.
const AnyName = "*"

// maxNot is how many names an [Applied] lists.
const maxNot = 50

// NotGoneBy are names as an [Applied] has them.
func NotGoneBy(names []string) []string {
	slices.Sort(names)
	if len(names) > maxNot {
		names = append(names[:maxNot], AnyName)
	}
	return names
}

// Written is a change of what brokers go by, or what stands as it was to be changed.
type Written struct {
	Kind     string // see [brokers.Broker.GoesBy]
	Name     string // of what has changed; empty: all of the kind is meant
	Revision int64  // that wrote it
}

// written is what a client has changed of what brokers go by.
type written struct {
	sync.Mutex
	at map[Written]int64 // without the revision, which is this
}

// NoteWritten notes for [Client.Written] which revision wrote something.
func (c *Client) NoteWritten(kind, name string, revision int64) {
	c.written.Lock()
	defer c.written.Unlock()
	if c.written.at == nil {
		c.written.at = map[Written]int64{}
	}
	c.written.at[Written{Kind: kind, Name: name}] = revision
}

// Written returns what this client has changed of what brokers go by, or had no need to
// change: who says a thing again wants to know whether all have heard.
func (c *Client) Written() (all []Written) {
	c.written.Lock()
	defer c.written.Unlock()
	for w, at := range c.written.at {
		w.Revision = at
		all = append(all, w)
	}
	return all
}
