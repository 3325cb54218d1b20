package cluster

import (
	"slices"
	"sync"
)

// A broker answers by ("goes by") the state of several kinds in etcd: kinds of documents, and
// these two, which are no documents.
const (
	SecretsKind = "secrets" // [secrets.Generations]
	TraceKind   = "trace"   // [brokers.Traced]
)

// Applied is how much of one kind of state a process has taken over: everything in etcd up
// to a revision, except some names.
type Applied struct {
	// Revision is that of the newest change in etcd that is taken over. It is 0 while
	// etcd has lost state that the process remembers.
	Revision int64 `json:"revision"`
	// Not is the names with a change that the process has heard of and not taken over,
	// because it could not, or has not yet. [AnyName] at the end stands for more.
	Not []string `json:"not,omitempty"`
}

// AnyName stands for all names that are not listed.
const AnyName = "*"

// maxNot is how many names an [Applied] lists at most.
const maxNot = 50

// NotGoneBy returns names as [Applied.Not] has them: sorted, at most maxNot, and then
// [AnyName]. It changes the slice.
func NotGoneBy(names []string) []string {
	slices.Sort(names)
	if len(names) > maxNot {
		names = append(names[:maxNot], AnyName)
	}
	return names
}

// Written is a change in etcd that brokers have to take over. If a command found nothing to
// change, it is the earlier change that made it so.
type Written struct {
	Kind     string // see [brokers.Broker.GoesBy]
	Name     string // of what has changed; empty: everything of the kind
	Revision int64  // of etcd, at which it was written
}

// written is the changes of a client that brokers have to take over.
type written struct {
	sync.Mutex
	at map[Written]int64 // the revision of each change; the keys have none
}

// NoteWritten notes a change for [Client.Written].
func (c *Client) NoteWritten(kind, name string, revision int64) {
	c.written.Lock()
	defer c.written.Unlock()
	if c.written.at == nil {
		c.written.at = map[Written]int64{}
	}
	c.written.at[Written{Kind: kind, Name: name}] = revision
}

// Written returns the changes that this client has made and brokers have to take over, in no
// order. It includes changes that were made already when a command tried to make them: a
// person who gives a command twice also wants to know whether all brokers have heard.
func (c *Client) Written() (all []Written) {
	c.written.Lock()
	defer c.written.Unlock()
	for w, at := range c.written.at {
		w.Revision = at
		all = append(all, w)
	}
	return all
}
