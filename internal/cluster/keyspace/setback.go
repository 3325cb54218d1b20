package keyspace

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Setback says that etcd went back to an older state. The first process that finds that
// writes it to etcd. So every process knows, also one that watches only what did not go
// back, and a command that only looks. A restoration removes it.
type Setback struct {
	Of   string    `json:"of"` // what the finder remembered newer: "map", or a kind of documents
	At   int64     `json:"at"` // etcd's revision when that was found: values of later revisions were written since
	When time.Time `json:"when"`
	// Generation is that of the keyspace which etcd had before it went back. If it is
	// lower than a process remembers, the setback itself is part of an old backup.
	Generation int64 `json:"generation,omitempty"`

	Version int64 `json:"-"` // the revision that wrote it
}

func (b *Setback) String() string {
	return fmt.Sprintf("it went back to an older state: at %s a process remembered newer %s", b.When.Format(time.RFC3339), b.Of)
}

// ParseSetback reads the setback in the first of kvs; nil if kvs is empty. A malformed
// setback counts as one.
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
// that the caller remembers, so that it tells of the same loss. has is the keyspace that
// etcd has now, and remembered the caller's. An older version of Millrace writes no
// generation: then the one of has counts. For nil it is false.
func (b *Setback) Since(has, remembered Name) bool {
	return b != nil && cmp.Or(b.Generation, has.Generation) >= remembered.Generation
}
