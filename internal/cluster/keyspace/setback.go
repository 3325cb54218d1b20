package keyspace

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Setback says that etcd went back to an older state. The first process that finds this
// writes a Setback to etcd, so that every other process knows: also a process for whose
// keys nothing went back, and a command that only looks. A restoration removes it.
type Setback struct {
	Of   string    `json:"of"`   // of what the process that found it remembered a newer state: "map", or a kind of documents
	At   int64     `json:"at"`   // etcd's revision when that was found: values of later revisions were written since
	When time.Time `json:"when"` // when that was found
	// Generation is the generation of the keyspace that etcd had before it went back. If
	// it is lower than the one that a process remembers, the setback itself is part of
	// an old backup of etcd. 0: not known.
	Generation int64 `json:"generation,omitempty"`

	Version int64 `json:"-"` // the revision of etcd at which the setback was written
}

func (b *Setback) String() string {
	return fmt.Sprintf("it went back to an older state: at %s a process remembered newer %s", b.When.Format(time.RFC3339), b.Of)
}

// ParseSetback reads the setback in the first of kvs; nil if kvs is empty. A malformed
// setback still counts as a setback, with the word "state" in Of.
func ParseSetback(kvs []*mvccpb.KeyValue) *Setback {
	if len(kvs) == 0 {
		return nil
	}
	var b Setback
	if json.Unmarshal(kvs[0].Value, &b) != nil {
		b = Setback{Of: "state"}
	}
	b.Version = kvs[0].ModRevision
	return &b
}

// Since reports whether the process that found the setback knew at least the generation
// that the caller remembers. If it did, the setback and the caller mean the same loss. has
// is the keyspace that etcd has now, and remembered is the one that the caller remembers.
// An older version of Millrace writes no generation: then the generation of has counts.
// For a nil b the result is false.
func (b *Setback) Since(has, remembered Name) bool {
	return b != nil && cmp.Or(b.Generation, has.Generation) >= remembered.Generation
}
