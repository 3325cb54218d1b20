package millrace

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
	"github.com/dchest/siphash"
)

// ServedKey is the key of [ServedHash], a secret of the cluster's brokers and
// index nodes. With it, somebody could make an object whose hash is that of another one. To
// a viewer who has seen the one, pages would not show the other.
type ServedKey [16]byte

// ServedHash returns the hash of what a page served, so that the next page leaves it
// out. It is SipHash-2-4 of the object if distinctObjects is true, as for a feed that
// deduplicates by object, else of the record's timeline and id. Brokers and index nodes
// must compute the same hash.
//
// The zero key stands for no key, and gives the hash of older brokers, which know of none.
// Index nodes need that hash while a cluster is upgraded.
func ServedHash(key ServedKey, distinctObjects bool, object Object, t Timeline, id RecordID) uint64 {
	if key == (ServedKey{}) {
		return unkeyed(distinctObjects, object, t, id)
	}
	var room [256]byte // most inputs fit
	b := room[:0]
	if distinctObjects {
		b = append(b, object...)
	} else {
		b = append(binary.AppendUvarint(b, uint64(len(t.Entity))), t.Entity...)
		b = append(binary.AppendUvarint(b, uint64(len(t.Type))), t.Type...)
		b = append(b, id...)
	}
	return siphash.Hash(binary.LittleEndian.Uint64(key[:8]), binary.LittleEndian.Uint64(key[8:]), b)
}

// unkeyed returns the hash that protocol 0, without a key, has: xxHash64.
func unkeyed(distinctObjects bool, object Object, t Timeline, id RecordID) uint64 {
	if distinctObjects {
		return xxhash.Sum64String(string(object))
	}
	return xxhash.Sum64String(string(t.Entity) + "\x00" + string(t.Type) + "\x00" + string(id))
}
