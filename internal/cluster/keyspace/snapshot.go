package keyspace

// Snapshot is everything that etcd has under a prefix, which a watcher follows, at one
// revision.
type Snapshot struct {
	Cluster  uint64           // the id that etcd's cluster gave itself
	Revision int64            // etcd's
	Count    string           // the number of partitions, in digits; "": etcd holds nothing of the cluster
	Keyspace Name             // the zero Name: none, or a malformed one
	Setback  *Setback         // nil: nobody has found that etcd went back
	Forked   bool             // this process has a state on disk that was never written to this etcd
	Values   map[string]Value // the values, by key without the prefix
	Fault    error            // says which values could not be read; they are as in the snapshot before
	Unread   []string         // the keys of those values
	Fits     func(int) error  // returns why this process cannot hold so many bytes; nil: it can
	Bytes    int              // how many this process holds once the snapshot is applied
}

// Value is what a key holds.
type Value struct {
	Data    []byte
	Version int64 // the revision of etcd at which it was written
}

// Size returns how many bytes the keys and values of a snapshot take.
func (s *Snapshot) Size() (bytes int) {
	for key, v := range s.Values {
		bytes += len(key) + len(v.Data)
	}
	return bytes
}

// MaxDocumentBytes bounds a value that is accepted from etcd. Etcd's own limit is 1.5 MiB.
const MaxDocumentBytes = 1 << 20

// MaxPartedBytes bounds a document that is kept in parts, each of MaxDocumentBytes
// at most.
const MaxPartedBytes = 32 << 20
