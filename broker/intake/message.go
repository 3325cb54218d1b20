package intake

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Message looks at the bytes of a protobuf message without parsing it, as
// [JSON] does, and returns what parsing it takes at most, in bytes beside it.
// entities is the path to the list of entities. Bytes that are no message are
// left to who parses them.
func Message(b []byte, of protoreflect.MessageDescriptor, entities ...protoreflect.Name) (cost int64, err error) {
	if len(b) > MaxBytes {
		return 0, TooLong()
	}
	c := counter{}
	if err := c.message(b, of, 0, entities); err != nil {
		return 0, err
	}
	if n := len(b) - c.entityBytes; n > MaxRestBytes {
		return 0, tooMuchBesides(n)
	}
	return 2*int64(len(b)) + entityBytes*int64(c.entities) + valueBytes*int64(c.values), nil
}

// counter counts what is in a message.
type counter struct{ values, entities, entityBytes int }

func (c *counter) message(b []byte, of protoreflect.MessageDescriptor, depth int, path []protoreflect.Name) error {
	if depth > MaxDepth {
		return tooDeep()
	}
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil
		}
		size := protowire.ConsumeFieldValue(number, kind, b[n:])
		if size < 0 {
			return nil
		}
		value := b[n : n+size]
		b = b[n+size:]
		fd := of.Fields().ByNumber(number)
		on := fd != nil && len(path) > 0 && fd.Name() == path[0]
		if on && len(path) == 1 {
			if c.entities++; c.entities > MaxEntities {
				return tooManyEntities(string(path[0]))
			}
			c.entityBytes += n + size
			continue
		}
		if c.values++; c.values > MaxValues {
			return tooManyValues()
		}
		if fd == nil || fd.Message() == nil || kind != protowire.BytesType {
			continue
		}
		inner, _ := protowire.ConsumeBytes(value)
		var rest []protoreflect.Name
		if on {
			rest = path[1:]
		}
		if err := c.message(inner, fd.Message(), depth+1, rest); err != nil {
			return err
		}
	}
	return nil
}
