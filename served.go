package millrace

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
	"github.com/dchest/siphash"
)

// ServedKey is the key of [ServedHash], a secret of the cluster's brokers and
// index nodes. Who knew it could make an object that pages take for one that
// they have shown, which then is shown to nobody.
type ServedKey [16]byte

// ServedHash identifies what a page served, so that the next one leaves it
// out: SipHash-2-4 of the object when a feed deduplicates by object, else of
// the record within its timeline. Broker and index nodes share it.
//
// The zero key stands for none: brokers that know of no key hash otherwise, and
// index nodes of this version answer them too, while a cluster is upgraded.
func ServedHash(key ServedKey, distinctObjects bool, object Object, t Timeline, id RecordID) uint64 {
	if key == (ServedKey{}) {
		return unkeyed(distinctObjects, object, t, id)
	}
	var room [256]byte // most fit into it
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

// unkeyed is the hash of protocol 0: xxHash64.
func unkeyed(distinctObjects bool, object Object, t Timeline, id RecordID) uint64 {
	if distinctObjects {
		return xxhash.Sum64String(string(object))
	}
	return xxhash.Sum64String(string(t.Entity) + "\x00" + string(t.Type) + "\x00" + string(id))
}
