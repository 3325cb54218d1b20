package keyspace

// Snapshot is everything under a prefix at one revision.
type Snapshot struct {
	Cluster  uint64 // the id that etcd's cluster gave itself
	Revision int64
	Count    string // the partition count; "" when the keyspace is lost
	Keyspace Name
	Setback  *Setback         // nil: nobody has found that etcd went back
	Forked   bool             // what this process has on disk was never written to this etcd
	Values   map[string]Value // by key behind the prefix
	Fault    error            // which values could not be read: they are as in the snapshot before
	Unread   []string         // keys of those
	Fits     func(int) error  // says why this process cannot hold so many bytes; nil if it can
	Bytes    int              // that this process holds once the snapshot is applied
}

// Value is what a key holds.
type Value struct {
	Data    []byte
	Version int64 // the revision that wrote it
}

// Size is what the values of a snapshot take.
func (s *Snapshot) Size() (bytes int) {
	for key, v := range s.Values {
		bytes += len(key) + len(v.Data)
	}
	return bytes
}

// MaxDocumentBytes bounds what is accepted from etcd, whose own limit is
// 1.5 MiB.
const MaxDocumentBytes = 1 << 20

// MaxPartedBytes bounds a document that is kept in parts, each of MaxDocumentBytes
// at most.
const MaxPartedBytes = 32 << 20
