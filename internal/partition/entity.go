package partition

import (
	"encoding/binary"

	"github.com/millrace/millrace"
)

// EntityHead is how many bytes [AppendEntity] writes before those of the entity.
const EntityHead = 4

// AppendEntity appends an entity as brokers send it to index nodes: its partition and
// its length, two bytes each, little-endian, and its bytes, at most
// [millrace.MaxEntityBytes].
//
// The broker sends the partition because it knows it; to compute it again would be
// most of a node's work to read a request. The partition stands before every entity, and
// not once for a group of them: a request has about two entities of a partition, and the
// processor would mispredict where each group ends.
func AppendEntity(dst []byte, p millrace.Partition, e millrace.Entity) []byte {
	dst = binary.LittleEndian.AppendUint16(dst, uint16(p))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(e)))
	return append(dst, e...)
}

// CutEntity returns the first entity of what [AppendEntity] wrote, and the bytes after it.
// Both share b's memory. It panics if b is too short. The partition is the first two bytes
// of b.
func CutEntity(b []byte) (e, rest []byte) {
	end := EntityHead + int(binary.LittleEndian.Uint16(b[2:]))
	return b[EntityHead:end], b[end:]
}
