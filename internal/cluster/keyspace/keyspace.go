// Package keyspace describes what etcd holds of a cluster at one revision, and judges
// whether that follows from what was there before, or whether etcd has lost state. It
// makes no calls.
//
// A restoration (millrace cluster restore) writes the state of a cluster into etcd again
// after etcd has lost it.
package keyspace

import (
	"crypto/rand"
	"fmt"
	"regexp"
)

// Name names a keyspace: all that etcd holds of a cluster from the cluster's beginning,
// or from its last restoration, to the next one. An etcd that lost everything looks, once
// its revisions have caught up, like one in which everything was deleted. The name tells
// them apart. Of two names the one with the higher generation is valid: only a
// restoration raises the generation.
type Name struct {
	Generation int64 `json:"generation"` // 1 at the cluster's beginning, and higher after each restoration; 0: no keyspace
	// ID is 16 hex digits: eight that a cluster keeps from its beginning on, and
	// eight that are random for each keyspace.
	ID string `json:"id"`
}

// New returns the name of a keyspace that follows from no other, with a generation.
func New(generation int64) Name {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	return Name{generation, fmt.Sprintf("%x", id)}
}

// Next returns the name of the keyspace that a restoration of k makes. The caller chooses
// its generation, above that of k.
func (k Name) Next(generation int64) Name {
	n := New(generation)
	if len(k.ID) == len(n.ID) {
		n.ID = k.ID[:len(n.ID)/2] + n.ID[len(n.ID)/2:]
	}
	return n
}

// Before reports whether o comes from k by one or more restorations. If so, an etcd that
// has k after it had o was reset to an older backup; it does not hold another cluster.
func (k Name) Before(o Name) bool {
	return k.Generation < o.Generation && len(k.ID) == len(o.ID) && k.ID[:len(k.ID)/2] == o.ID[:len(o.ID)/2] && k.ID != ""
}

func (k Name) String() string { return fmt.Sprintf("%d %s", k.Generation, k.ID) }

// maxKeyspaceBytes bounds the text that Parse reads: 64 bytes are more than any Name takes.
const maxKeyspaceBytes = 64

// Parse reads what String writes. It returns the zero Name for malformed text. A caller
// can then notice a loss of state only by etcd's revision.
func Parse(s string) Name {
	var k Name
	if len(s) > maxKeyspaceBytes {
		return Name{}
	}
	if n, err := fmt.Sscanf(s, "%d %16s", &k.Generation, &k.ID); n != 2 || err != nil || k.Generation < 1 || k.String() != s {
		return Name{}
	}
	return k
}

// idPattern is the form of an id; see ValidID.
var idPattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$`)

// ValidID returns an error unless s can be part of a key in etcd. It checks every id that
// becomes part of one.
func ValidID(s string) error {
	if !idPattern.MatchString(s) {
		return fmt.Errorf("%q is not an id: 1 to 63 letters, digits, dots, underscores and dashes, a letter or digit first", s)
	}
	return nil
}

// Memory is what a process remembers of its cluster, and writes to etcd when it
// registers. If etcd has less than that, it has lost state.
type Memory struct {
	Keyspace string `json:"keyspace,omitempty"` // as [Name.String] writes it
	Epoch    int64  `json:"epoch,omitempty"`    // the epoch of the newest assignment of partitions to nodes, which rises with each new assignment
}

// LostBy reports whether etcd has lost something that m remembers. now and epoch are the
// keyspace and the epoch of the assignment that etcd has.
func (m Memory) LostBy(now Name, epoch int64) bool {
	then := Parse(m.Keyspace)
	return m.Epoch > epoch || then.Generation > now.Generation || then.Generation == now.Generation && then != now
}
