package cluster

import (
	"crypto/rand"
	"fmt"
)

// keyspace names what etcd holds of a cluster from its beginning or its last
// restoration on. An etcd that lost everything looks like one in which all was
// deleted, once its revisions have caught up; its keyspace tells. Of two, the
// one with the higher generation holds: only [Client.Restore] makes it.
type keyspace struct {
	Generation int64 `json:"generation"` // from 1; 0 is none
	// ID is 16 hex digits: eight that a cluster keeps from its beginning on, and
	// eight random ones.
	ID string `json:"id"`
}

func newKeyspace(generation int64) keyspace {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	return keyspace{generation, fmt.Sprintf("%x", id)}
}

// next is the keyspace of a restoration of k.
func (k keyspace) next(generation int64) keyspace {
	n := newKeyspace(generation)
	if len(k.ID) == len(n.ID) {
		n.ID = k.ID[:len(n.ID)/2] + n.ID[len(n.ID)/2:]
	}
	return n
}

// before reports whether o is a restoration of k, or one of a later one: an etcd
// that has k, after o, is an older backup, and not the beginning of another.
func (k keyspace) before(o keyspace) bool {
	return k.Generation < o.Generation && len(k.ID) == len(o.ID) && k.ID[:len(k.ID)/2] == o.ID[:len(o.ID)/2] && k.ID != ""
}

func (k keyspace) String() string { return fmt.Sprintf("%d %s", k.Generation, k.ID) }

const maxKeyspaceBytes = 64

// parseKeyspace returns none for what is malformed: then nothing but the
// revision tells.
func parseKeyspace(s string) keyspace {
	var k keyspace
	if len(s) > maxKeyspaceBytes {
		return keyspace{}
	}
	if n, err := fmt.Sscanf(s, "%d %16s", &k.Generation, &k.ID); n != 2 || err != nil || k.Generation < 1 || k.String() != s {
		return keyspace{}
	}
	return k
}

func (c *Client) keyspaceKey() string { return c.prefix + "keyspace" }
