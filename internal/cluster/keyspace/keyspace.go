// Package keyspace is what etcd holds of a cluster at a revision, and whether that
// is a sequel of what was there before: it calls nobody.
package keyspace

import (
	"crypto/rand"
	"fmt"
	"regexp"
)

// Name names what etcd holds of a cluster from its beginning or its last
// restoration on. An etcd that lost everything looks like one in which all was
// deleted, once its revisions have caught up; its keyspace tells. Of two, the
// one with the higher generation holds: only a restoration makes it.
type Name struct {
	Generation int64 `json:"generation"` // from 1; 0 is none
	// ID is 16 hex digits: eight that a cluster keeps from its beginning on, and
	// eight random ones.
	ID string `json:"id"`
}

// New returns the keyspace of a cluster that begins, or one of a generation without a past.
func New(generation int64) Name {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	return Name{generation, fmt.Sprintf("%x", id)}
}

// Next is the keyspace of a restoration of k.
func (k Name) Next(generation int64) Name {
	n := New(generation)
	if len(k.ID) == len(n.ID) {
		n.ID = k.ID[:len(n.ID)/2] + n.ID[len(n.ID)/2:]
	}
	return n
}

// Before reports whether o is a restoration of k, or one of a later one: an etcd
// that has k, after o, is an older backup, and not the beginning of another.
func (k Name) Before(o Name) bool {
	return k.Generation < o.Generation && len(k.ID) == len(o.ID) && k.ID[:len(k.ID)/2] == o.ID[:len(o.ID)/2] && k.ID != ""
}

func (k Name) String() string { return fmt.Sprintf("%d %s", k.Generation, k.ID) }

const maxKeyspaceBytes = 64

// Parse returns none for what is malformed: then nothing but the
// revision tells.
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

var idPattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$`)

// ValidID holds for everything that becomes part of a key.
func ValidID(s string) error {
	if !idPattern.MatchString(s) {
		return fmt.Errorf("%q is not an id: 1 to 63 letters, digits, dots, underscores and dashes, a letter or digit first", s)
	}
	return nil
}

// Memory is what a process remembers of its cluster when it registers: an etcd
// that lacks it has lost it.
type Memory struct {
	Keyspace string `json:"keyspace,omitempty"`
	Epoch    int64  `json:"epoch,omitempty"` // of the assignment
}

// LostBy reports whether an etcd of a keyspace and with an assignment lacks
// what is remembered.
func (m Memory) LostBy(now Name, epoch int64) bool {
	then := Parse(m.Keyspace)
	return m.Epoch > epoch || then.Generation > now.Generation || then.Generation == now.Generation && then != now
}
