package kafka

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
)

// The headers that records carry on Millrace's own topics (ARCHITECTURE.md,
// "On the wire").
const (
	HeaderSource = "src"    // where the input was read: topic/partition/offset
	HeaderCRC    = "crc"    // CRC32C of the value, 4 bytes big-endian
	HeaderReason = "reason" // why a dead letter is dead: a stable word
	HeaderDetail = "detail" // the same for people
	HeaderBatch  = "batch"  // of a whole batch that became dead letters: the offsets of its first and last record, "12-40"
	HeaderPiece  = "piece"  // which part of that batch the value is, and of how many: "1/3"
)

// Header is a record's header.
type Header = kgo.RecordHeader

// Source is a record's place in Kafka.
type Source struct {
	Topic     string
	Partition int32
	Offset    millrace.Offset
}

// String returns the place as the header src has it: "posts/3/1234".
func (s Source) String() string { return string(s.Append(nil)) }

// Append appends the printed form to b.
func (s Source) Append(b []byte) []byte {
	b = append(append(b, s.Topic...), '/')
	b = append(strconv.AppendInt(b, int64(s.Partition), 10), '/')
	return strconv.AppendInt(b, int64(s.Offset), 10)
}

// ParseSource reads the printed form of a Source.
func ParseSource(b []byte) (Source, error) {
	topic, rest, _ := strings.Cut(string(b), "/")
	part, off, _ := strings.Cut(rest, "/")
	p, err1 := strconv.ParseInt(part, 10, 32)
	o, err2 := strconv.ParseInt(off, 10, 64)
	if topic == "" || err1 != nil || err2 != nil || p < 0 || o < 0 {
		return Source{}, fmt.Errorf("kafka: header %s: %.64q is not topic/partition/offset", HeaderSource, b)
	}
	return Source{topic, int32(p), millrace.Offset(o)}, nil
}

// ErrCorrupt says that a value does not have its checksum: it is not what was written.
var ErrCorrupt = errors.New("kafka: corrupt record")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CRC returns the header crc's value for a record's value.
func CRC(value []byte) []byte { return appendCRC(nil, value) }

// appendCRC appends the header crc's value for a record's value.
func appendCRC(b, value []byte) []byte {
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(value, castagnoli))
}

// CheckCRC compares a value with its header crc. The error is ErrCorrupt.
func CheckCRC(crc, value []byte) error {
	if len(crc) != 4 {
		return fmt.Errorf("%w: header %s has %d bytes instead of 4", ErrCorrupt, HeaderCRC, len(crc))
	}
	if want, got := binary.BigEndian.Uint32(crc), crc32.Checksum(value, castagnoli); want != got {
		return fmt.Errorf("%w: CRC32C %08x instead of %08x", ErrCorrupt, got, want)
	}
	return nil
}
