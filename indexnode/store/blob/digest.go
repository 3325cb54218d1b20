package blob

import (
	"encoding/binary"
	"math/bits"

	"github.com/cespare/xxhash/v2"

	"github.com/millrace/millrace"
)

// DigestOf returns a digest of words. It panics if there are more than 8.
func DigestOf(words ...uint64) uint64 {
	var b [8 * 8]byte
	for i, w := range words {
		binary.LittleEndian.PutUint64(b[8*i:], w)
	}
	return xxhash.Sum64(b[:8*len(words)])
}

// TimelineDigest returns the hash of a timeline's name that [RecordDigest] takes.
func TimelineDigest(t millrace.Timeline) uint64 {
	return xxhash.Sum64String(string(t.Entity)) ^ bits.RotateLeft64(xxhash.Sum64String(string(t.Type)), 1)
}

// RecordDigest returns what a record adds to the digests of its blob and its partition, which
// are sums. timeline is the timeline's TimelineDigest.
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
