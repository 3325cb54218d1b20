// Package partition decides where an entity lives. Ingest and query share it,
// so a record and the question for it always meet on the same partition.
package partition

import (
	"iter"

	"github.com/cespare/xxhash/v2"

	"github.com/millrace/millrace"
)

// Count is the number of partitions of the timeline and features topics. It
// divides by most node counts and never changes in the life of a cluster.
const Count = 720

// Of returns the partition of an entity: xxHash64 (seed 0) of its bytes,
// modulo Count.
func Of(e millrace.Entity) millrace.Partition { return OfHash(Hash(e)) }

// OfBytes is Of for an entity that is still bytes, such as a Kafka key.
func OfBytes(e []byte) millrace.Partition { return OfHash(xxhash.Sum64(e)) }

// Hash returns the hash from which OfHash computes the partition. Callers with many
// entities compute all hashes first: a processor overlaps hashes best with other hashes.
func Hash(e millrace.Entity) uint64 { return xxhash.Sum64String(string(e)) }

// OfHash returns the partition of an entity by its Hash.
func OfHash(h uint64) millrace.Partition { return millrace.Partition(h % Count) }

// All yields every partition.
func All() iter.Seq[millrace.Partition] {
	return func(yield func(millrace.Partition) bool) {
		for p := range millrace.Partition(Count) {
			if !yield(p) {
				return
			}
		}
	}
}
