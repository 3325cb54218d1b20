package keyspace

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Setback says that etcd went back to an older state. Whoever finds that writes
// it, by whatever it watches: so that all know, also those who watch nothing
// that is older than it was, and those who only look. A restoration removes it.
type Setback struct {
	Of   string    `json:"of"` // what was newer: "map", or a kind of documents
	At   int64     `json:"at"` // etcd's revision when that was found: what is newer was written since
	When time.Time `json:"when"`
	// Generation is that of the keyspace from which it went back. One of a lower
	// generation than a process remembers came with the backup.
	Generation int64 `json:"generation,omitempty"`

	Version int64 `json:"-"` // the revision that wrote it
}

func (b *Setback) String() string {
	return fmt.Sprintf("it went back to an older state: at %s a process remembered newer %s", b.When.Format(time.RFC3339), b.Of)
}

// ParseSetback reads a setback; nil if there is none. One that is malformed is one.
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

// Since reports whether a setback was found by somebody who remembers as much: etcd
// has one keyspace, and another is remembered. nil is none. One that does not say
// so was found by an older version, in the keyspace that etcd has.
func (b *Setback) Since(has, remembered Name) bool {
	return b != nil && cmp.Or(b.Generation, has.Generation) >= remembered.Generation
}
