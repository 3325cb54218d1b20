package millrace

import "github.com/cespare/xxhash/v2"

// ServedHash identifies what a page served, so that the next one leaves it
// out: xxHash64 of the object when a feed deduplicates by object, else of the
// record within its timeline. Broker and index nodes share it.
func ServedHash(distinctObjects bool, object Object, t Timeline, id RecordID) uint64 {
	if distinctObjects {
		return xxhash.Sum64String(string(object))
	}
	var d xxhash.Digest
	d.Reset()
	d.WriteString(string(t.Entity))
	d.Write([]byte{0})
	d.WriteString(string(t.Type))
	d.Write([]byte{0})
	d.WriteString(string(id))
	return d.Sum64()
}
