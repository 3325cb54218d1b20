package cluster

import (
	"slices"
	"sync"
)

// What brokers go by are documents of several kinds, and these, which are no documents.
const (
	SecretsKind = "secrets" // [secrets.Generations]
	TraceKind   = "trace"   // [brokers.Traced]
)

// Applied is what a process goes by of one kind: the state of etcd at a revision, but for
// some names.
type Applied struct {
	// Revision is that of the newest change in etcd that is taken over. It is 0 while
	// etcd has lost state that the process remembers.
	Revision int64 `json:"revision"`
	// Not has the names of which it has heard a change that it does not go by, because it
	// could not take it over, or has not yet. [AnyName] at the end stands for more.
	Not []string `json:"not,omitempty"`
}

// AnyName stands for all names that are not listed.
const AnyName = "*"

// maxNot is how many names an [Applied] lists.
const maxNot = 50

// NotGoneBy returns names for [Applied.Not]: sorted, and not too many.
func NotGoneBy(names []string) []string {
	slices.Sort(names)
	if len(names) > maxNot {
		names = append(names[:maxNot], AnyName)
	}
	return names
}

// Written is a change of something that brokers go by. It may have been written before, if
// there was nothing to change any more.
type Written struct {
	Kind     string // see [brokers.Broker.GoesBy]
	Name     string // of what has changed; empty: all of the kind is meant
	Revision int64  // that wrote it
}

// written is what a client has changed of what brokers go by.
type written struct {
	sync.Mutex
	at map[Written]int64 // the revision of each; as a key a Written has none
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

// Written returns what this client has changed of what brokers go by, or found to be so
// already: somebody who gives a command twice wants to know, too, whether all brokers have
// heard.
func (c *Client) Written() (all []Written) {
	c.written.Lock()
	defer c.written.Unlock()
	for w, at := range c.written.at {
		w.Revision = at
		all = append(all, w)
	}
	return all
}
