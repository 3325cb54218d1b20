package nodewire

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	// maxValues is how many values (fields and elements of lists) a request may have, with
	// those of messages in it. A value of two bytes on the wire takes some hundred bytes of
	// memory once it is parsed. Brokers send half as many values at most.
	maxValues  = 500_000
	leastBytes = 2   // the least size of a value on the wire
	maxDepth   = 100 // how deep messages may be in messages
)

var errTooMany = errors.New("nodewire: the request has too many values")

// bounded returns an error for a message, encoded in b, that would take far more memory than it
// has bytes. It does not parse the message.
func bounded(b []byte, of protoreflect.MessageDescriptor) error {
	left := maxValues
	return count(b, of, maxDepth, &left)
}

// count takes the values in b off left, and returns an error when none is left.
func count(b []byte, of protoreflect.MessageDescriptor, depth int, left *int) error {
	if depth == 0 {
		return errTooMany
	}
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil // the parser returns the error
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
