package keyspace

// Snapshot is everything under a prefix at one revision.
type Snapshot struct {
	Cluster  uint64 // etcd's id of itself
	Revision int64
	Count    string // the partition count; "" when the keyspace is lost
	Keyspace Name
	Setback  *Setback         // nil: nobody has found that etcd went back
	Forked   bool             // what is remembered was never written there
	Values   map[string]Value // by key behind the prefix
	Fault    error            // what of values could not be read and is as it was before
	Fits     func(int) error  // says why so many bytes cannot be held; nil if they can
	Bytes    int              // that are held once it is applied
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

// MaxPartedBytes bounds what is kept in parts, each of which is at most that.
const MaxPartedBytes = 32 << 20
