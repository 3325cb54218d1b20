package partition

import (
	"encoding/binary"

	"github.com/millrace/millrace"
)

// EntityHead is how many bytes [AppendEntity] writes before those of the entity.
const EntityHead = 4

// AppendEntity appends an entity as brokers send it to index nodes: its partition and
// its length, of two bytes each, little-endian, and its bytes, of which there may be
// [millrace.MaxEntityBytes].
//
// The broker sends the partition because it knows it, and to compute it again would be
// most of a node's work to read a request. It stands before every entity, and not once
// before all that a partition has: a request has about two of a partition, and the
// processor would mispredict where each group ends.
func AppendEntity(dst []byte, p millrace.Partition, e millrace.Entity) []byte {
	dst = binary.LittleEndian.AppendUint16(dst, uint16(p))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(e)))
	return append(dst, e...)
}

// CutEntity takes the first entity off what [AppendEntity] wrote.
func CutEntity(b []byte) (e, rest []byte) {
	end := EntityHead + int(binary.LittleEndian.Uint16(b[2:]))
	return b[EntityHead:end], b[end:]
}
