package schemas

import (
	"encoding/binary"
	"fmt"

	"github.com/millrace/millrace"
)

// frameBytes is the length of a single-object header: C3 01, then the
// fingerprint, little-endian.
const frameBytes = 10

// Framed is a value taken from its framing.
type Framed struct {
	Fingerprint millrace.Fingerprint // of single-object encoding
	Confluent   bool                 // the value had Confluent framing, and ID is set
	ID          uint32               // of the schema in its Confluent registry
	Body        []byte               // shares the value's memory
}

// Frame returns body in Avro's single-object encoding.
func Frame(fp millrace.Fingerprint, body []byte) []byte {
	return append(AppendFrame(make([]byte, 0, frameBytes+len(body)), fp), body...)
}

// AppendFrame appends what comes before a body in single-object encoding.
func AppendFrame(dst []byte, fp millrace.Fingerprint) []byte {
	return binary.LittleEndian.AppendUint64(append(dst, 0xc3, 0x01), uint64(fp))
}

// Unframe takes a value from single-object encoding or from Confluent framing
// (00, then the schema's id, big-endian). It looks at the header only.
func Unframe(value []byte) (Framed, error) {
	switch {
	case len(value) == 0:
		return Framed{}, &Error{Reason: EmptyValue, Detail: "the value has no bytes"}
	case value[0] == 0xc3 && len(value) > 1 && value[1] == 0x01:
		if len(value) < frameBytes {
			return Framed{}, &Error{Reason: Truncated, Detail: "the value ends within its single-object header"}
		}
		fp := millrace.Fingerprint(binary.LittleEndian.Uint64(value[2:]))
		return Framed{Fingerprint: fp, Body: value[frameBytes:]}, nil
	case value[0] == 0x00:
		if len(value) < 5 {
			return Framed{}, &Error{Reason: Truncated, Detail: "the value ends within its Confluent header"}
		}
		return Framed{Confluent: true, ID: binary.BigEndian.Uint32(value[1:]), Body: value[5:]}, nil
	}
	return Framed{}, &Error{Reason: BadFraming, Detail: fmt.Sprintf("the value starts with %#02x; want c3 01 (single-object encoding) or 00 (Confluent framing)", value[0])}
}
