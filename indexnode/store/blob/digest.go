package blob

import (
	"encoding/binary"
	"math/bits"

	"github.com/cespare/xxhash/v2"

	"github.com/millrace/millrace"
)

// DigestOf folds words into a digest.
func DigestOf(words ...uint64) uint64 {
	var b [8 * 8]byte
	for i, w := range words {
		binary.LittleEndian.PutUint64(b[8*i:], w)
	}
	return xxhash.Sum64(b[:8*len(words)])
}

// TimelineDigest is what the digests of a timeline's records begin with.
func TimelineDigest(t millrace.Timeline) uint64 {
	return xxhash.Sum64String(string(t.Entity)) ^ bits.RotateLeft64(xxhash.Sum64String(string(t.Type)), 1)
}

// RecordDigest is what a record adds to the digest of its partition.
func RecordDigest(timeline uint64, r *millrace.Record) uint64 {
	object := uint64(0)
	if !ownObject(r) {
		object = xxhash.Sum64String(string(r.Object))
	}
	deleted := uint64(0)
	if r.Deleted {
		deleted = 1
	}
	return DigestOf(timeline, xxhash.Sum64String(string(r.ID)), uint64(r.Time), uint64(r.Version),
		object, deleted, uint64(r.Schema), xxhash.Sum64(r.Body))
}
