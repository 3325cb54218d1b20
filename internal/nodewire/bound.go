package nodewire

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	// maxValues is how many fields and elements a request may have, those in its
	// messages included. Brokers send half of that at most: a parsed one takes
	// some hundred bytes, of two that it takes on the wire.
	maxValues = 500_000
	maxDepth  = 100 // of messages in messages
)

var errTooMany = errors.New("nodewire: the request has too many values")

// bounded refuses a message that takes far more memory than bytes, before it is
// parsed.
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
			return nil // which the parser says
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
