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
	var on protoreflect.FieldNumber // the field that the path goes on by
	if len(path) > 0 {
		on = of.Fields().ByName(path[0]).Number()
	}
	last := len(path) == 1 && on < 16
	tag := byte(on)<<3 | byte(protowire.BytesType)
	for len(b) > 0 {
		for last && len(b) > 1 && b[0] == tag && b[1] < 0x80 && 2+int(b[1]) <= len(b) && c.entities < MaxEntities { // as most are
			size := 2 + int(b[1])
			c.entities++
			c.entityBytes += size
			b = b[size:]
		}
		number, kind, value, size := next(b)
		if size < 0 { // also where nothing is left
			return nil
		}
		b = b[size:]
		if number == on && len(path) == 1 {
			if c.entities++; c.entities > MaxEntities {
				return tooManyEntities(string(path[0]))
			}
			c.entityBytes += size
			continue
		}
		if c.values++; c.values > MaxValues {
			return tooManyValues()
		}
		fd := of.Fields().ByNumber(number)
		if fd == nil || fd.Message() == nil || kind != protowire.BytesType {
			continue
		}
		var rest []protoreflect.Name
		if number == on {
			rest = path[1:]
		}
		if err := c.message(value, fd.Message(), depth+1, rest); err != nil {
			return err
		}
	}
	return nil
}

// next returns the first field of a message, its bytes if it has a length, and
// the size of all of it, -1 if it is none.
func next(b []byte) (number protoreflect.FieldNumber, kind protowire.Type, value []byte, size int) {
	number, kind, n := protowire.ConsumeTag(b)
	if n < 0 {
		return 0, 0, nil, -1
	}
	m := protowire.ConsumeFieldValue(number, kind, b[n:])
	if m < 0 {
		return 0, 0, nil, -1
	}
	if kind == protowire.BytesType {
		value, _ = protowire.ConsumeBytes(b[n:])
	}
	return number, kind, value, n + m
}
