package intake

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Message checks the bytes of a protobuf message against the limits without parsing
// them, as [JSON] does. cost is the most bytes that parsing takes, without b itself.
// entities is the path of field names to the list of entities. Bytes that are no valid
// message are no error here: the parser refuses them. The error is a refusal.
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

// counter counts the values and entities of a message. entityBytes is how many bytes of the
// message its fields of entities take, tags included.
type counter struct{ values, entities, entityBytes int }

// message counts a message of type of, at a depth of nesting. path leads from it to the
// list of entities; it is empty if the list is not below it.
func (c *counter) message(b []byte, of protoreflect.MessageDescriptor, depth int, path []protoreflect.Name) error {
	if depth > MaxDepth {
		return tooDeep()
	}
	var on protoreflect.FieldNumber // the field that is first on the path; 0 without a path
	if len(path) > 0 {
		on = of.Fields().ByName(path[0]).Number()
	}
	last := len(path) == 1 && on < 16
	tag := byte(on)<<3 | byte(protowire.BytesType)
	for len(b) > 0 {
		for last && len(b) > 1 && b[0] == tag && b[1] < 0x80 && 2+int(b[1]) <= len(b) && c.entities < MaxEntities { // most fields are entities with a length of one byte
			size := 2 + int(b[1])
			c.entities++
			c.entityBytes += size
			b = b[size:]
		}
		number, kind, value, size := next(b)
		if size < 0 { // no valid field, or nothing is left
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

// next returns the number and the wire type of the first field of b. value is its bytes
// if it is length-delimited, else nil. size is the whole field's, tag included, in bytes;
// it is -1 if b does not begin with a valid field.
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
