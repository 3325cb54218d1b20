package nodewire

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	// maxValues is how many fields and elements a request may have, with those in the
	// messages in it. It is needed since a value takes a hundred bytes or more once it is
	// parsed, but may take only two on the wire. Brokers send half of this number at most.
	maxValues = 500_000
	maxDepth  = 100 // how deep messages may be nested
)

var errTooMany = errors.New("nodewire: the request has too many values")

// bounded refuses a message that would take far more memory than it has bytes. It does so
// before the message is parsed.
func bounded(b []byte, of protoreflect.MessageDescriptor) error {
	left := maxValues
	return count(b, of, maxDepth, &left)
}

func count(b []byte, of protoreflect.MessageDescriptor, depth int, left *int) error {
	if depth == 0 {
		return errTooMany
	}
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil // the message is malformed, and the parser will refuse it
		}
		m := protowire.ConsumeFieldValue(number, kind, b[n:])
		if m < 0 {
			return nil
		}
		if *left--; *left < 0 {
			return errTooMany
		}
		if fd := of.Fields().ByNumber(number); kind == protowire.BytesType && fd != nil && fd.Message() != nil {
			value, _ := protowire.ConsumeBytes(b[n:])
			if err := count(value, fd.Message(), depth-1, left); err != nil {
				return err
			}
		}
		b = b[n+m:]
	}
	return nil
}
