package schemas

import (
	"encoding/base64"
	"encoding/binary"
	"math"
)

// Fields of google.protobuf.Struct, of a Struct's entries, of ListValue and of
// Value, as protobuf's wire writes them.
const (
	structEntry = 1<<3 | 2
	entryKey    = 1<<3 | 2
	entryValue  = 2<<3 | 2
	listItem    = 1<<3 | 2

	valueNull   = 1 << 3
	valueNumber = 2<<3 | 1
	valueString = 3<<3 | 2
	valueBool   = 4 << 3
	valueStruct = 5<<3 | 2
	valueList   = 6<<3 | 2
)

// Selection is some of a schema's own fields, by their places; nil is all.
type Selection []bool

// Select returns those fields that names name, or all where there are no names.
// What no field has for a name counts for nothing.
func (s *Schema) Select(names []string) Selection {
	if len(names) == 0 {
		return nil
	}
	wanted := make(map[string]bool, len(names))
	for _, name := range names {
		wanted[name] = true
	}
	fields := make(Selection, 0, len(s.root.fields))
	last := 0
	for i := range s.root.fields {
		fields = append(fields, wanted[s.root.fields[i].name])
		if fields[i] {
			last = i + 1
		}
	}
	return fields[:last]
}

// AppendStruct appends a body as the wire form of a google.protobuf.Struct
// that says what [Schema.JSONValue] says of the fields selected. Of all fields
// the error is that of JSONValue, an [*Error]. The values of others than those
// selected are passed over unseen: what is wrong within one is no error.
func (s *Schema) AppendStruct(dst, body []byte, only Selection) ([]byte, error) {
	if only != nil {
		in := input{b: body}
		return in.appendSome(dst, s.root.fields, only)
	}
	m := machine{input: input{b: body}, kept: new(kept)}
	defer m.release()
	if err := m.whole(s.envelope); err != nil {
		return dst, err
	}
	in := input{b: body}
	for i := range s.root.fields {
		dst = in.appendField(dst, &s.root.fields[i])
	}
	return dst, nil
}

// appendSome appends those fields of a body that was not checked.
func (in *input) appendSome(dst []byte, fields []field, only Selection) ([]byte, error) {
	from := len(dst)
	for i := range fields {
		f := &fields[i]
		if i < len(only) && only[i] {
			dst = in.appendField(dst, f)
		} else {
			in.skip(f.typ)
		}
		if in.fault != "" {
			return dst[:from], &Error{Reason: in.fault, Field: f.name, Detail: explain[in.fault]}
		}
	}
	if more := len(in.b) - in.at; more > 0 {
		return dst[:from], trailing(more)
	}
	return dst, nil
}

// appendValue appends a value as a Value without its length.
func (in *input) appendValue(dst []byte, n *node) []byte {
	switch n.kind {
	case kindBoolean:
		if in.boolean() {
			return append(dst, valueBool, 1)
		}
		return append(dst, valueBool, 0)
	case kindInt:
		return appendNumber(dst, float64(in.int()))
	case kindLong:
		return appendLong(dst, n, in.long())
	case kindFloat:
		return appendNumber(dst, shortest(in.float()))
	case kindDouble:
		return appendNumber(dst, in.double())
	case kindBytes:
		return appendBase64(dst, in.bytes())
	case kindFixed:
		return appendBase64(dst, in.take(n.size))
	case kindString:
		return appendText(dst, valueString, in.string())
	case kindEnum:
		return appendText(dst, valueString, n.symbols[in.index(len(n.symbols), BadEnumIndex)])
	case kindUnion:
		return in.appendValue(dst, n.branches[in.index(len(n.branches), BadUnionIndex)])
	case kindArray:
		dst, at := open(dst, valueList)
		in.blocks(func() {
			item, at := open(dst, listItem)
			dst = sealed(in.appendValue(item, n.items), at)
		})
		return sealed(dst, at)
	case kindMap:
		dst, at := open(dst, valueStruct)
		in.blocks(func() {
			entry, at := open(dst, structEntry)
			entry, value := open(appendText(entry, entryKey, in.string()), entryValue)
			dst = sealed(sealed(in.appendValue(entry, n.items), value), at)
		})
		return sealed(dst, at)
	case kindRecord:
		dst, at := open(dst, valueStruct)
		for i := range n.fields {
			dst = in.appendField(dst, &n.fields[i])
		}
		return sealed(dst, at)
	}
	return append(dst, valueNull, 0)
}

// appendField appends a field of a record as an entry of a Struct.
func (in *input) appendField(dst []byte, f *field) []byte {
	dst, at := open(dst, structEntry)
	dst, value := open(appendText(dst, entryKey, f.name), entryValue)
	return sealed(sealed(in.appendValue(dst, f.typ), value), at)
}

func appendNumber(dst []byte, x float64) []byte {
	return binary.LittleEndian.AppendUint64(append(dst, valueNumber), math.Float64bits(x))
}

func appendLong(dst []byte, n *node, x int64) []byte {
	text, at := open(dst, valueString)
	if text, ok := appendLongText(text, n, x); ok {
		return sealed(text, at)
	}
	return appendNumber(dst, float64(x))
}

func appendBase64(dst, b []byte) []byte {
	dst, at := open(dst, valueString)
	return sealed(base64.StdEncoding.AppendEncode(dst, b), at)
}

func appendText[T string | []byte](dst []byte, tag byte, text T) []byte {
	return append(binary.AppendUvarint(append(dst, tag), uint64(len(text))), text...)
}

// open begins a field whose length is not known yet, and leaves a byte for it.
// What the field holds begins at the place returned.
func open(dst []byte, tag byte) (_ []byte, at int) { return append(dst, tag, 0), len(dst) + 2 }

// sealed ends the field that [open] began at at: it says the length, and moves
// the field where that takes more than the byte left for it.
func sealed(dst []byte, at int) []byte {
	n := len(dst) - at
	if n < 0x80 {
		dst[at-1] = byte(n)
		return dst
	}
	var length [binary.MaxVarintLen64]byte
	wide := binary.PutUvarint(length[:], uint64(n))
	dst = append(dst, length[1:wide]...) // room, whatever is in it
	copy(dst[at+wide-1:], dst[at:at+n])
	copy(dst[at-1:], length[:wide])
	return dst
}
