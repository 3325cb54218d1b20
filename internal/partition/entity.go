package partition

import (
	"encoding/binary"

	"github.com/millrace/millrace"
)

// EntityHead is how many bytes AppendEntity puts before an entity's.
const EntityHead = 4

// AppendEntity appends an entity as brokers send it to index nodes: its
// partition and its length, two bytes both, little-endian, and its bytes. It
// has not more than millrace.MaxEntityBytes.
//
// The partition goes along because the broker has found it, and finding it
// again would be most of a node's work to read a request. It stands before
// every entity, not once before all of a partition: there are about two, so
// that a reader of counts would mispredict where they end.
func AppendEntity(dst []byte, p millrace.Partition, e millrace.Entity) []byte {
	dst = binary.LittleEndian.AppendUint16(dst, uint16(p))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(e)))
	return append(dst, e...)
}

// CutEntity takes the first entity off what AppendEntity wrote.
func CutEntity(b []byte) (e, rest []byte) {
	end := EntityHead + int(binary.LittleEndian.Uint16(b[2:]))
	return b[EntityHead:end], b[end:]
}
