// Package partition decides where an entity lives. Ingest and query share it,
// so a record and the question for it always meet on the same partition.
package partition

import (
	"github.com/cespare/xxhash/v2"

	"github.com/millrace/millrace"
)

// Count is the number of partitions of the timeline and features topics. It
// divides by most node counts and never changes in the life of a cluster.
const Count = 720

// Of returns the partition of an entity: xxHash64 (seed 0) of its bytes,
// modulo Count.
func Of(e millrace.Entity) millrace.Partition {
	return millrace.Partition(xxhash.Sum64String(string(e)) % Count)
}

// OfBytes is Of for an entity that is still bytes, such as a Kafka key.
func OfBytes(e []byte) millrace.Partition {
	return millrace.Partition(xxhash.Sum64(e) % Count)
}
